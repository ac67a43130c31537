//! Training as a whole: it learns, it stops and resumes exactly, and it refuses bad input.

mod folders;
mod learning;
mod resuming;
mod validation;

use std::{
    fs,
    io::Write as _,
    panic::{self, AssertUnwindSafe},
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use burn::tensor::Device;
use regard_train::ranks::Alone;
use regard_train::{
    Registry, TrainError,
    learner::{Event, Run, Summary},
    recipe::Recipe,
};

const TINY: &str = r#"
[model]
kind = "rnnsearch"
embedding = 32
hidden = 32
attention_dimension = 32
maxout = 32
dropout = { embedding = 0.1, annotation = 0.1, output = 0.1 }
[data.synthetic]
task = "reverse"
symbols = 6
min_length = 2
max_length = 5
sentences = 300
valid_sentences = 20
test_sentences = 60
[batch]
sentences = 32
[optimizer]
kind = "adam"
clip_norm = 1.0
[schedule]
kind = "plateau"
learning_rate = 0.01
[training]
epochs = 3
log_every = 1
average = 2
[validation]
tokenizer = "none"
"#;

fn recipe(overrides: &[&str]) -> Recipe {
    let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
    Registry::default()
        .parse(TINY, "tiny.toml", &overrides)
        .unwrap()
}

/// Trains in `folder`, and tells `report` what happens.
fn train_telling(
    recipe: &Recipe,
    folder: &Path,
    report: &mut dyn FnMut(&Event),
) -> Result<Summary, TrainError> {
    let run = Run {
        folder,
        device: &Device::flex(),
        stop: &AtomicBool::new(false),
        ranks: &Alone,
    };
    Registry::default().train(recipe, &run, report)
}

/// Trains in `folder`, asking to stop once update `stop_at` is reported.
fn train(
    recipe: &Recipe,
    folder: &Path,
    stop_at: Option<u64>,
    resume: bool,
) -> Result<Summary, TrainError> {
    let stop = AtomicBool::new(false);
    let run = Run {
        folder,
        device: &Device::flex(),
        stop: &stop,
        ranks: &Alone,
    };
    let mut report = |event: &Event| {
        if let Event::Train(metrics) = event
            && Some(metrics.step) == stop_at
        {
            stop.store(true, Ordering::SeqCst);
        }
    };
    match resume {
        false => Registry::default().train(recipe, &run, &mut report),
        true => Registry::default().resume(&[], &run, &mut report),
    }
}

/// Trains in `folder` until update `dies_at` is reported; then the session dies without saving anything more.
fn train_and_die(recipe: &Recipe, folder: &Path, dies_at: Option<u64>) {
    let mut report = |event: &Event| match event {
        Event::Started(_) if dies_at.is_none() => panic!("killed"),
        Event::Train(metrics) if Some(metrics.step) == dies_at => panic!("killed"),
        _ => {}
    };
    let died = panic::catch_unwind(AssertUnwindSafe(|| {
        train_telling(recipe, folder, &mut report)
    }));
    assert!(died.is_err());
    // What a process that is killed while it writes leaves: half a file, and half a line, which ends inside a letter.
    fs::write(folder.join(".regard-left.tmp"), "half").unwrap();
    let log = folder.join("metrics.jsonl");
    let mut log = fs::OpenOptions::new().append(true).open(log).unwrap();
    log.write_all(b"{\"kind\":\"train\",\"step\":1,\"\xc3")
        .unwrap();
}

/// Goes on with the run in `folder` with other settings.
fn resume_with(folder: &Path, overrides: &[&str]) -> Result<Summary, TrainError> {
    let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
    let run = Run {
        folder,
        device: &Device::flex(),
        stop: &AtomicBool::new(false),
        ranks: &Alone,
    };
    Registry::default().resume(&overrides, &run, &mut |_| {})
}

/// The lines of `metrics.jsonl` without what depends on the clock.
fn metrics(folder: &Path) -> Vec<serde_json::Value> {
    fs::read_to_string(folder.join("metrics.jsonl"))
        .unwrap()
        .lines()
        .map(|line| {
            let mut value: serde_json::Value = serde_json::from_str(line).unwrap();
            let object = value.as_object_mut().unwrap();
            object.remove("seconds");
            object.remove("tokens_per_second");
            if let Some(validation) = object.get_mut("validation") {
                validation.as_object_mut().unwrap().remove("seconds");
            }
            value
        })
        .collect()
}
