//! Folders of runs: what a start finds in them, writes, and leaves.

use std::{fs, path::Path, sync::atomic::AtomicBool};

use burn::tensor::Device;
use regard_train::ranks::Alone;
use regard_train::{
    Registry, TrainError,
    learner::{Event, Run},
};

use super::{TINY, recipe, resume_with, train, train_and_die};

#[test]
fn test_text_is_looked_at_before_training() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("text"), "a b\nb a\n").unwrap();
    let text = Some(path("text"));
    let mut recipe = recipe(&["training.epochs=1"]);
    let data = &mut recipe.data;
    data.synthetic = None;
    (data.train_source, data.train_target) = (text.clone(), text.clone());
    (data.valid_source, data.valid_target) = (text.clone(), text);
    (data.test_source, data.test_target) = (Some(path("none.en")), Some(path("none.de")));
    let error = train(&recipe, &path("run"), None, false).unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("none.") && error.contains("cannot read"),
        "{error}"
    );
    assert!(!path("run").exists());
}

#[test]
fn a_folder_that_holds_a_run_is_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = recipe(&["training.epochs=1", "data.synthetic.sentences=64"]);
    let run = folder.path().join("run");
    train(&recipe, &run, None, false).unwrap();
    assert!(matches!(
        train(&recipe, &run, None, false),
        Err(TrainError::Occupied(_))
    ));
    let empty = folder.path().join("empty");
    assert!(matches!(
        train(&recipe, &empty, None, true),
        Err(TrainError::NothingToResume(_))
    ));
    fs::remove_file(run.join("recipe.toml")).unwrap();
    let error = train(&recipe, &run, None, true).unwrap_err().to_string();
    assert!(error.contains("no recipe.toml"), "{error}");
}

/// A recipe or tokenizer of the user's own is not lost in a run that is given their folder.
#[test]
fn a_file_that_no_run_has_written_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = recipe(&["training.steps=1", "data.synthetic.sentences=64"]);
    let refused = |run: &Path, file: &str| {
        let path = run.join(file);
        let before = fs::read(&path).unwrap();
        let error = train(&recipe, run, None, false).unwrap_err();
        assert!(
            matches!(&error, TrainError::OtherFile(named) if *named == path),
            "{error}"
        );
        assert_eq!(fs::read(&path).unwrap(), before);
    };
    let with = |name: &str, file: &str, text: &str| {
        let run = folder.path().join(name);
        fs::create_dir_all(&run).unwrap();
        fs::write(run.join(file), text).unwrap();
        run
    };
    let own = "# Mine.\n".to_owned() + TINY;
    refused(&with("recipe", "recipe.toml", &own), "recipe.toml");
    refused(&with("tokenizer", "tokenizer.json", "{}"), "tokenizer.json");
    // One that stays as it is.
    let same = with("same", "recipe.toml", &recipe.to_toml().unwrap());
    train(&recipe, &same, None, false).unwrap();
    // What a start left that died before it could save is replaced, unless it was changed since.
    let died = folder.path().join("died");
    train_and_die(&self::recipe(&[]), &died, None);
    let written = fs::read_to_string(died.join("recipe.toml")).unwrap();
    let mine = format!("# Mine.\n{written}");
    with("died", "recipe.toml", &mine);
    refused(&died, "recipe.toml");
    let error = resume_with(&died, &[]).unwrap_err();
    assert!(matches!(error, TrainError::OtherFile(_)), "{error}");
    assert_eq!(fs::read_to_string(died.join("recipe.toml")).unwrap(), mine);
    with("died", "recipe.toml", &written);
    train(&recipe, &died, None, false).unwrap();
    // A model whose state is gone is not lost either.
    let best = with("best", "best.safetensors", "mine");
    let error = train(&recipe, &best, None, false).unwrap_err();
    assert!(matches!(error, TrainError::Occupied(_)), "{error}");
}

/// A recipe without a run is not one that was interrupted.
#[test]
fn a_recipe_of_ones_own_is_not_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let path = |file: &str| folder.path().join(file);
    let own = "# Mine.\n".to_owned() + TINY;
    for (file, text) in [("recipe.toml", own.as_str()), ("tokenizer.json", "{}")] {
        fs::write(path(file), text).unwrap();
    }
    let error = resume_with(folder.path(), &["training.steps=1"]).unwrap_err();
    assert!(matches!(error, TrainError::NothingToResume(_)), "{error}");
    assert_eq!(fs::read_to_string(path("recipe.toml")).unwrap(), own);
    assert_eq!(fs::read_to_string(path("tokenizer.json")).unwrap(), "{}");
    assert!(!path("metrics.jsonl").exists());
}

/// What a start that fails leaves: nothing in a folder that it made, and a folder that was there free for another start.
#[test]
fn a_start_that_fails_leaves_no_run() {
    let folder = tempfile::tempdir().unwrap();
    let made = folder.path().join("runs/made");
    let there = folder.path().join("there");
    fs::create_dir(&there).unwrap();
    fs::write(there.join("notes.txt"), "mine").unwrap();
    let good = recipe(&["training.epochs=1", "data.synthetic.sentences=64"]);
    let mut no_data = good.clone();
    no_data.data.synthetic = None;
    no_data.data.train_source = Some(folder.path().join("none.en"));
    no_data.data.train_target = Some(folder.path().join("none.de"));
    let diverging = recipe(&[
        "schedule.learning_rate=1e30",
        "optimizer.clip_norm=0",
        "training.log_every=100",
    ]);
    for bad in [&no_data, &diverging] {
        for run in [&made, &there] {
            let error = train(bad, run, None, false).unwrap_err();
            assert!(!matches!(error, TrainError::Occupied(_)), "{error}");
        }
        assert!(!folder.path().join("runs").exists());
        assert!(there.join("notes.txt").exists());
    }
    train(&good, &there, None, false).unwrap();
}

#[test]
fn two_runs_in_one_folder_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = recipe(&["training.epochs=1", "data.synthetic.sentences=64"]);
    let run = folder.path().join("run");
    let stop = AtomicBool::new(false);
    let of = Run {
        folder: &run,
        device: &Device::flex(),
        stop: &stop,
        ranks: &Alone,
    };
    let mut refused = 0;
    let mut report = |event: &Event| {
        if let Event::Started(_) = event {
            for resume in [false, true] {
                let error = train(&recipe, &run, None, resume).unwrap_err();
                assert!(matches!(error, TrainError::Busy(_)), "{error}");
                assert!(error.to_string().contains(&run.display().to_string()));
                refused += 1;
            }
        }
    };
    Registry::default()
        .train(&recipe, &of, &mut report)
        .unwrap();
    assert_eq!(refused, 2);
    // What died has left its file, but no lock.
    assert!(run.join(".lock").exists());
    train(&recipe, &run, None, true).unwrap();
}
