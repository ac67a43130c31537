//! Runs that were stopped or killed go on exactly, or are refused where they cannot.

use std::{fs, path::Path};

use regard_nn::weights;
use regard_train::{TrainError, learner::Reason};

use super::{metrics, recipe, resume_with, train, train_and_die};

#[test]
fn an_interrupted_run_goes_on_exactly() {
    let folder = tempfile::tempdir().unwrap();
    for (name, extra) in [
        ("adam", vec![]),
        ("sgd", vec!["optimizer.kind=sgd", "optimizer.momentum=0.9"]),
        (
            "adadelta",
            vec!["optimizer.kind=adadelta", "schedule.learning_rate=1.0"],
        ),
        (
            "sampling",
            vec![
                "training.scheduled_sampling.final_probability=0.5",
                "training.scheduled_sampling.decay_steps=5",
            ],
        ),
        ("reinforce", vec!["model.normalizer=hard-reinforce"]),
    ] {
        let recipe = recipe(&extra);
        let whole = folder.path().join(format!("{name}-whole"));
        let parts = folder.path().join(format!("{name}-parts"));
        assert_eq!(
            train(&recipe, &whole, None, false).unwrap().reason,
            Reason::Limit
        );
        // In the middle of the first epoch, and again in the last one.
        let first = train(&recipe, &parts, Some(4), false).unwrap();
        assert_eq!((first.reason, first.step), (Reason::Interrupted, 4));
        let second = train(&recipe, &parts, Some(23), true).unwrap();
        assert_eq!((second.reason, second.step), (Reason::Interrupted, 23));
        let last = train(&recipe, &parts, None, true).unwrap();
        assert_eq!(last.reason, Reason::Limit);
        let (whole_metrics, parts_metrics) = (metrics(&whole), metrics(&parts));
        assert!(whole_metrics.len() > 30);
        assert_eq!(whole_metrics, parts_metrics, "{name}");
        for file in ["model.safetensors", "best.safetensors"] {
            let content =
                |run: &Path| weights::from_bytes(&fs::read(run.join(file)).unwrap()).unwrap();
            assert_eq!(content(&whole), content(&parts), "{name}: {file}");
        }
    }
}

#[test]
fn other_batches_are_refused_in_the_middle_of_an_epoch() {
    let folder = tempfile::tempdir().unwrap();
    let [middle, end] = ["middle", "end"].map(|name| folder.path().join(name));
    // Ten batches an epoch.
    let recipe = recipe(&["training.epochs=2"]);
    train(&recipe, &middle, Some(4), false).unwrap();
    let (last, settings) = (middle.join("last.safetensors"), middle.join("recipe.toml"));
    let [saved, written] = [&last, &settings].map(|file| fs::read(file).unwrap());
    let refused = |overrides: &[&str]| {
        let error = resume_with(&middle, overrides).unwrap_err().to_string();
        for part in ["last.safetensors", "batches", "[batch]"] {
            assert!(error.contains(part), "{overrides:?}: {error}");
        }
        assert_eq!(fs::read(&settings).unwrap(), written, "{overrides:?}");
    };
    // Two batches, ten others, ten of which the sentences are put together in another way.
    for setting in ["batch.sentences=256", "batch.sentences=31", "batch.pool=10"] {
        refused(&[setting]);
    }
    // A damaged file.
    let (arrays, mut metadata) = weights::from_bytes(&saved).unwrap();
    let progress = metadata.get_mut("regard.training").unwrap();
    assert!(progress.contains("\"position\":4,"), "{progress}");
    *progress = progress.replace("\"position\":4,", "\"position\":4000,");
    let damaged = weights::to_bytes(&arrays, metadata, weights::Storage::F32).unwrap();
    fs::write(&last, damaged).unwrap();
    refused(&[]);
    fs::write(&last, saved).unwrap();
    assert_eq!(resume_with(&middle, &[]).unwrap().step, 20);

    // Where an epoch begins, others are as good.
    train(&recipe, &end, Some(10), false).unwrap();
    let ended = resume_with(&end, &["batch.sentences=256"]).unwrap();
    assert_eq!((ended.reason, ended.step), (Reason::Limit, 12));
}

#[test]
fn the_last_update_of_an_epoch_is_one_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = recipe(&["training.epochs=2", "data.synthetic.sentences=64"]);
    train(&recipe, &folder.path().join("run"), None, false).unwrap();
    let epochs: Vec<u64> = metrics(&folder.path().join("run"))
        .iter()
        .filter(|line| line["kind"] == "train")
        .map(|line| line["epoch"].as_u64().unwrap())
        .collect();
    assert_eq!(epochs, [1, 1, 2, 2]);
}

#[test]
fn a_run_that_was_killed_before_its_first_validation_goes_on_exactly() {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole");
    let recipe = recipe(&["training.epochs=1"]);
    train(&recipe, &whole, None, false).unwrap();
    let content = |run: &Path| {
        let bytes = fs::read(run.join("model.safetensors")).unwrap();
        weights::from_bytes(&bytes).unwrap()
    };
    // The first dies before it could write any state.
    for (name, dies_at) in [("started", None), ("trained", Some(5))] {
        let run = folder.path().join(name);
        train_and_die(&recipe, &run, dies_at);
        assert_eq!(run.join("last.safetensors").exists(), dies_at.is_some());
        // The recipe given here is ignored: the run has its own.
        let resumed = train(&self::recipe(&["training.seed=99"]), &run, None, true).unwrap();
        assert_eq!(resumed.reason, Reason::Limit, "{name}");
        assert!(!run.join(".regard-left.tmp").exists(), "{name}");
        assert_eq!(content(&whole), content(&run), "{name}");
        assert_eq!(metrics(&whole), metrics(&run), "{name}");
    }
    // A model whose state is gone is not trained over.
    fs::remove_file(whole.join("last.safetensors")).unwrap();
    assert!(matches!(
        train(&recipe, &whole, None, true),
        Err(TrainError::NothingToResume(_))
    ));
}

/// A run that goes on has its weights and its tokenizer: others to begin with would be written into its recipe, and change nothing.
#[test]
fn a_run_that_goes_on_takes_no_other_start() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let recipe = recipe(&["training.steps=1", "data.synthetic.sentences=64"]);
    train(&recipe, &run, None, false).unwrap();
    let written = fs::read(run.join("recipe.toml")).unwrap();
    for (start, key) in [
        ("training.start=other", "training.start"),
        (" training . start = \"other\"", "training.start"),
        ("data.vocabulary.size=100", "data.vocabulary.size"),
        ("data.tokenizer.path=other", "data.tokenizer"),
        ("data.vocabulary={size=100}", "data.vocabulary.joint"),
        ("data.lowercase=true", "data.lowercase"),
        ("data.text.units=bytes", "data.text.units"),
        ("data.images.size=8", "data.images.size"),
        ("data.objects.size=8", "data.objects.size"),
        ("data.questions.min_answers=1", "data.questions.min_answers"),
    ] {
        let error = resume_with(&run, &["training.steps=2", start]).unwrap_err();
        let error = error.to_string();
        let expected = format!("{key}: given for a run that has begun already");
        assert!(error.contains(&expected), "{error}");
        assert_eq!(fs::read(run.join("recipe.toml")).unwrap(), written);
    }
    assert_eq!(resume_with(&run, &["training.steps=2"]).unwrap().step, 2);
}

/// A run that goes on averages as many models as its recipe says, whatever was kept before.
#[test]
fn a_finished_run_takes_another_average() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let recipe = recipe(&["training.average=3", "data.synthetic.sentences=64"]);
    train(&recipe, &run, None, false).unwrap();
    let averaged = || {
        let lines = metrics(&run);
        let of = lines.iter().find(|line| line["kind"] == "averaged");
        of.map(|line| line["checkpoints"].as_u64().unwrap())
    };
    let kept = || fs::read_dir(run.join("recent")).unwrap().count();
    assert_eq!((averaged(), kept()), (Some(3), 3));
    resume_with(&run, &["training.average=2"]).unwrap();
    assert_eq!((averaged(), kept()), (Some(2), 2));
    resume_with(&run, &["training.average=1"]).unwrap();
    assert_eq!((averaged(), kept()), (None, 1));
}

/// The state of one kind of optimizer is no state of another.
#[test]
fn another_optimizer_does_not_go_on_from_its_state() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    train(&recipe(&["training.epochs=1"]), &run, None, false).unwrap();
    let file = run.join("recipe.toml");
    let text = fs::read_to_string(&file).unwrap();
    let start = text.find("[optimizer]").unwrap();
    let end = start + text[start..].find("\n\n").unwrap();
    let other = |kind: &str| {
        let section = format!("[optimizer]\nkind = \"{kind}\"");
        fs::write(&file, [&text[..start], &section, &text[end..]].concat()).unwrap();
        resume_with(&run, &["training.epochs=2"])
    };
    let error = other("adadelta").unwrap_err().to_string();
    assert!(
        error.contains("that of adam") && error.contains("optimizer.kind"),
        "{error}"
    );
    other("adamw").unwrap();
}

#[test]
fn damaged_checkpoints_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = recipe(&["training.epochs=1", "data.synthetic.sentences=64"]);
    let run = folder.path().join("run");
    train(&recipe, &run, None, false).unwrap();
    let last = run.join("last.safetensors");
    let whole = fs::read(&last).unwrap();
    fs::write(&last, &whole[..whole.len() / 2]).unwrap();
    let error = train(&recipe, &run, None, true).unwrap_err().to_string();
    assert!(
        error.contains("last.safetensors") && error.contains("safetensors"),
        "{error}"
    );
    // The optimizer's numbers are those of a weight of another shape, or of none.
    let (arrays, metadata) = weights::from_bytes(&whole).unwrap();
    let mut names = arrays.keys();
    let name = names.find_map(|key| key.strip_prefix("optimizer.first."));
    let name = name.unwrap();
    let (mut reshaped, mut renamed) = (arrays.clone(), arrays.clone());
    for slot in ["first", "second"].map(|slot| format!("optimizer.{slot}.{name}")) {
        let array = renamed.remove(&slot).unwrap();
        renamed.insert(format!("{slot}.other"), array);
        let number = weights::Array {
            shape: vec![1; 4],
            values: vec![0.0],
        };
        reshaped.insert(slot, number);
    }
    for (arrays, expected) in [(reshaped, "as the weight has"), (renamed, "no such weight")] {
        let bytes = weights::to_bytes(&arrays, metadata.clone(), weights::Storage::F32).unwrap();
        fs::write(&last, bytes).unwrap();
        let error = train(&recipe, &run, None, true).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(expected), "{error}");
    }
    // A model file is not a checkpoint.
    fs::copy(run.join("model.safetensors"), &last).unwrap();
    let error = train(&recipe, &run, None, true).unwrap_err().to_string();
    assert!(error.contains("regard.training"), "{error}");
}
