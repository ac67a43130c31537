//! Validations: which model is the best, and that it is kept.

use std::fs;

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

/// A model that was validated is not lost, though the run dies before it can save more.
#[test]
fn a_validated_run_is_not_abandoned() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path();
    fs::write(run.join("recent"), "in the way of a folder").unwrap();
    let recipe = recipe(&["training.epochs=2", "training.log_every=100"]);
    train(&recipe, run, None, false).unwrap_err();
    assert!(run.join("best.safetensors").exists());
    fs::remove_file(run.join("recent")).unwrap();
    train(&recipe, run, None, true).unwrap();
}
