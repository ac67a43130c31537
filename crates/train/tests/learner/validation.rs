//! Validations: which model is the best, and that it is kept.

use std::{fs, path::Path};

use regard_nn::weights;
use regard_train::{TrainError, learner::Event};

use super::{metrics, recipe, resume_with, train, train_telling};

/// Losses and accuracies are not compared with each other: with another measure the best model is looked for anew.
#[test]
fn another_measure_has_another_best() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let by_loss = recipe(&["training.epochs=1", "validation.measure=loss"]);
    let former = train(&by_loss, &run, None, false).unwrap().best.unwrap();
    let by_bleu = ["training.epochs=2", "validation.measure=bleu"];
    let best = resume_with(&run, &by_bleu).unwrap().best.unwrap();
    assert!(former.0 < best.0, "{former:?} {best:?}");
}

/// Nor are measures by other validation data or settings; those that do not change the measure leave the best model as it is.
#[test]
fn other_validation_data_have_another_best() {
    let folder = tempfile::tempdir().unwrap();
    let of_bleu = [
        ("validation.diagnose=1", true),
        ("validation.batch_sentences=5", true),
        ("translate.beam=3", true),
        ("validation.tokenizer=char", false),
        ("translate.no_repeat_ngram=2", false),
        ("data.synthetic.valid_sentences=10", false),
    ];
    let of_loss = [
        ("validation.beam=2", true),
        ("translate.length_penalty=0.5", true),
        ("validation.tokenizer=char", true),
        ("data.synthetic.valid_sentences=10", false),
    ];
    for (measure, unreachable, settings) in [
        ("bleu", 1000.0_f64, &of_bleu[..]),
        ("loss", -1000.0, &of_loss),
    ] {
        let run = folder.path().join(measure);
        let measured = format!("validation.measure={measure}");
        let recipe = recipe(&["training.epochs=1", &measured]);
        let former = train(&recipe, &run, None, false).unwrap().best.unwrap();
        // As if the best had been one that no model reaches.
        let last = run.join("last.safetensors");
        let (arrays, mut metadata) = weights::from_bytes(&fs::read(&last).unwrap()).unwrap();
        let progress = metadata.get_mut("regard.training").unwrap();
        let mut changed: serde_json::Value = serde_json::from_str(progress).unwrap();
        changed["best"]["measure"] = unreachable.into();
        *progress = changed.to_string();
        let changed = weights::to_bytes(&arrays, metadata, weights::Storage::F32).unwrap();
        for &(setting, is_kept) in settings {
            fs::write(&last, &changed).unwrap();
            let resumed = resume_with(&run, &["training.epochs=2", setting]).unwrap();
            let best = resumed.best.unwrap();
            let found = (best.0 == former.0, best.1 == unreachable);
            assert_eq!(found, (is_kept, is_kept), "{measure}, {setting}: {best:?}");
            // The next setting alone is another one.
            fs::write(run.join("recipe.toml"), recipe.to_toml().unwrap()).unwrap();
        }
    }
}

/// Where the best model was found by other settings and nothing is left to train, it is judged anew, and the average beside it.
#[test]
fn an_average_is_compared_with_a_best_model_by_other_settings() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let recipe = recipe(&[
        "training.average=3",
        "data.synthetic.sentences=64",
        "validation.measure=bleu",
    ]);
    train(&recipe, &run, None, false).unwrap();
    let resumed = resume_with(&run, &["validation.tokenizer=char"]).unwrap();
    assert_eq!(resumed.best, None);
    let lines = metrics(&run);
    let averaged = lines.iter().find(|line| line["kind"] == "averaged");
    let validation = &averaged.unwrap()["validation"];
    let signature = validation["signature"].as_str();
    assert!(
        signature.is_some_and(|signature| signature.contains("tok:char")),
        "{validation}"
    );
}

/// Of validations with the same measure the one with the lower loss is better: a BLEU of 0 is no reason to stop or to learn slower.
#[test]
fn equal_measures_are_told_apart_by_the_loss() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let recipe = recipe(&[
        "training.validate_every=1",
        "training.steps=6",
        "training.average=1",
        "validation.measure=bleu",
    ]);
    let best = train(&recipe, &run, None, false).unwrap().best.unwrap();
    let validations: Vec<(u64, f64, f64)> = metrics(&run)
        .iter()
        .filter_map(|line| {
            let bleu = line["bleu"].as_f64()?;
            Some((line["step"].as_u64()?, bleu, line["loss"].as_f64()?))
        })
        .collect();
    assert_eq!(validations.len(), 6);
    let highest = validations.iter().map(|one| one.1).fold(0.0, f64::max);
    let equal = validations.iter().filter(|one| one.1 == highest);
    let lowest = equal.min_by(|a, b| a.2.total_cmp(&b.2)).unwrap();
    assert_eq!(best.0, lowest.0, "{validations:?}");
}

/// Filters leave out training pairs alone: validation is by the same pairs whatever they are.
#[test]
fn filters_leave_validation_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let loss = |name: &str, filter: &str| {
        let run = folder.path().join(name);
        let recipe = recipe(&[
            "training.steps=1",
            "training.validate_every=1",
            "schedule.learning_rate=1e-30",
            "schedule.min_learning_rate=0",
            filter,
        ]);
        let mut found = None;
        let mut report = |event: &Event| {
            if let Event::Validation(metrics) = event {
                found = Some(metrics.loss);
            }
        };
        train_telling(&recipe, &run, &mut report).unwrap();
        found.unwrap()
    };
    let all = loss("all", "data.filter.max_words=100");
    // Sentences have 2 to 5 words.
    assert_eq!(all, loss("few", "data.filter.max_words=2"));
}

/// A validation that is no number is no best one, and what was saved before can be read.
#[test]
fn a_validation_of_nan_is_not_kept() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let diverging = recipe(&[
        "schedule.learning_rate=1e30",
        "optimizer.clip_norm=0",
        "training.log_every=100",
        "training.validate_every=1",
        "validation.measure=loss",
    ]);
    let error = train(&diverging, &run, None, false).unwrap_err();
    assert!(matches!(error, TrainError::Loss { .. }), "{error}");
    if run.exists() {
        let error = train(&diverging, &run, None, true).unwrap_err();
        assert!(matches!(error, TrainError::Loss { .. }), "{error}");
    }
}

/// Where a checkpoint cannot be written, the former one and the models that it names stay.
#[test]
fn a_checkpoint_that_cannot_be_written_leaves_the_former_one() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let recipe = recipe(&["training.epochs=4"]);
    let last = run.join("last.safetensors");
    let mut former = None;
    let mut validations = 0;
    let mut report = |event: &Event| {
        validations += usize::from(matches!(event, Event::Validation(_)));
        if validations == 3 && former.is_none() {
            former = Some(fs::read(&last).unwrap());
            fs::remove_file(&last).unwrap();
            fs::create_dir(&last).unwrap();
        }
    };
    let error = train_telling(&recipe, &run, &mut report);
    assert!(error.unwrap_err().to_string().contains("last.safetensors"));
    fs::remove_dir(&last).unwrap();
    fs::write(&last, former.unwrap()).unwrap();
    // The models of both validations before are there to be averaged.
    resume_with(&run, &["training.epochs=2"]).unwrap();
}

/// A validation that fails loses no work: a run that goes on makes it again, and is as one in which it did not fail.
#[test]
fn a_validation_that_failed_is_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let [whole, run] = ["whole", "run"].map(|name| folder.path().join(name));
    let recipe = recipe(&["training.epochs=2", "training.log_every=7"]);
    train(&recipe, &whole, None, false).unwrap();
    fs::create_dir(&run).unwrap();
    fs::write(run.join("recent"), "in the way of a folder").unwrap();
    train(&recipe, &run, None, false).unwrap_err();
    assert!(run.join("best.safetensors").exists());
    let saved = fs::read(run.join("last.safetensors")).unwrap();
    let (_, metadata) = weights::from_bytes(&saved).unwrap();
    let progress: serde_json::Value = serde_json::from_str(&metadata["regard.training"]).unwrap();
    let saved = ["step", "validated"].map(|key| progress[key].as_u64());
    assert_eq!(saved, [Some(10), Some(0)]);
    fs::remove_file(run.join("recent")).unwrap();
    // What a process tells that is killed before it can save.
    let log = run.join("metrics.jsonl");
    let told = fs::read_to_string(&log).unwrap() + "{\"kind\":\"validation\",\"step\":10}\n";
    fs::write(&log, told).unwrap();
    train(&recipe, &run, None, true).unwrap();
    assert_eq!(metrics(&whole), metrics(&run));
    let model = |run: &Path| {
        let file = fs::read(run.join("model.safetensors")).unwrap();
        weights::from_bytes(&file).unwrap()
    };
    assert_eq!(model(&whole), model(&run));
}

/// The models that the saved state names stay, though the validation that failed was to leave one out.
#[test]
fn a_validation_that_failed_leaves_out_no_model() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let log = run.join("metrics.jsonl");
    let recipe = recipe(&["training.log_every=100"]);
    let mut report = |event: &Event| {
        if matches!(event, Event::Saved { step: 20, .. }) {
            fs::remove_file(&log).unwrap();
            fs::create_dir(&log).unwrap();
        }
    };
    train_telling(&recipe, &run, &mut report).unwrap_err();
    fs::remove_dir(&log).unwrap();
    resume_with(&run, &["training.average=3"]).unwrap();
}

/// A validation cuts the lines that `translate.long_lines` refuses.
#[test]
fn long_lines_do_not_end_a_training() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = recipe(&[
        "training.steps=2",
        "training.validate_every=1",
        "validation.diagnose=20",
        "translate.max_source_tokens=2",
        "translate.long_lines=error",
    ]);
    train(&recipe, &folder.path().join("run"), None, false).unwrap();
}
