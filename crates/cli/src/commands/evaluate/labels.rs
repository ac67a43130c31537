//! Classifiers of sentences, scored by their accuracy.

use std::{fmt::Write as _, path::Path};

use burn::tensor::Device;
use regard_evaluate::Accuracy;
use regard_train::{
    Registry, corpus::LabelledText, model_file, recipe::Split, tasks::Classification,
};
use serde_json::json;

use crate::{
    arguments::{Evaluate, Named, Part},
    failure::{CommandError, Failure},
    output::{self, Output},
};

/// Whether the options ask for labels: by a file of labelled sentences, or by a classifier as a model.
pub fn wanted(options: &Evaluate) -> bool {
    options.labelled.is_some()
        || options
            .model
            .iter()
            .any(|named| Registry::default().holds::<Classification>(&named.path))
}

/// Scores the classifiers that the options name.
///
/// # Errors
/// Options that lack something, files that are wrong.
pub fn run(options: &Evaluate) -> Result<(), Failure> {
    if options.by_length {
        return Err(Failure::Usage(
            "--by-length scores translations; a classifier gives labels".to_owned(),
        ));
    }
    output::print(&print(&judge(options)?, options)?)
}

/// The classifiers that the options name, and how many sentences each labels correctly.
///
/// # Errors
/// Options that lack something, files that are wrong.
pub fn judge(options: &Evaluate) -> Result<Vec<Judged<'_>>, Failure> {
    let usage = |message: &str| Err(Failure::Usage(message.to_owned()));
    if !options.output.is_empty() && options.output.len() != options.model.len() {
        return usage("give one --output file for each --model");
    }
    let text = match (&options.labelled, options.split) {
        (Some(path), _) => LabelledText::read(path)?,
        (None, Some(part)) => of_recipe(&options.model[0].path, part)?,
        (None, None) => {
            return usage(
                "a classifier needs labelled sentences; give --labelled FILE or --split test",
            );
        }
    };
    let compute = &options.compute;
    compute.run(None, |device| judge_all(options, &text, device))
}

fn judge_all<'a>(
    options: &'a Evaluate,
    text: &LabelledText,
    device: &Device,
) -> Result<Vec<Judged<'a>>, Failure> {
    let mut judged = vec![];
    for (index, named) in options.model.iter().enumerate() {
        let classifier = Registry::default().classifier(&named.path, device)?;
        let labels = &classifier.description().labels;
        let truth = text.classes(labels)?;
        let found = classifier.classify(text.sentences())?;
        if let Some(path) = options.output.get(index) {
            let mut output = Output::file(path)?;
            for one in &found {
                output.line(&one.label)?;
            }
            output.flush()?;
        }
        let classes: Vec<usize> = found.iter().map(|one| one.class).collect();
        judged.push(Judged {
            named,
            accuracy: Accuracy::of(&classes, &truth, labels.len()),
            labels: labels.clone(),
        });
    }
    Ok(judged)
}

/// A classifier and its accuracy.
pub struct Judged<'a> {
    named: &'a Named,
    /// How many sentences got their true label.
    pub accuracy: Accuracy,
    labels: Vec<String>,
}

fn of_recipe(model: &Path, part: Part) -> Result<LabelledText, Failure> {
    let path = model_file::locate(model)?.with_file_name("recipe.toml");
    let recipe = Registry::default().load(&path, &[])?;
    let (split, name) = match part {
        Part::Valid => (Split::Valid, "validation"),
        Part::Test => (Split::Test, "test"),
    };
    let text = match &recipe.data.labelled {
        Some(labelled) => labelled.load(split)?,
        None => None,
    };
    let missing = || CommandError::NoLabelled {
        recipe: path.clone(),
        part: name,
    };
    Ok(text.ok_or_else(missing)?)
}

fn print(judged: &[Judged<'_>], options: &Evaluate) -> Result<String, Failure> {
    if options.json {
        let all: Vec<_> = judged.iter().map(Judged::json).collect();
        return Ok(serde_json::to_string_pretty(&json!({ "classifiers": all }))? + "\n");
    }
    let width = usize::from(options.digits);
    let text = judged.iter().map(|one| {
        let share = 100.0 * one.accuracy.share();
        match (options.score_only, judged.len()) {
            (true, _) => format!("{share:.width$}\n"),
            (false, 1) => one.text(),
            (false, _) => format!("{}: {}", one.named.name, one.text()),
        }
    });
    Ok(text.collect())
}

impl Judged<'_> {
    /// The accuracy, and how the sentences of each label were labelled.
    fn text(&self) -> String {
        let mut text = format!("{}\n", self.accuracy);
        for (class, label) in self.labels.iter().enumerate() {
            let found = self.accuracy.confusion(class).iter().zip(&self.labels);
            let found: Vec<String> = found
                .map(|(count, label)| format!("{count} as {label}"))
                .collect();
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  of label {label}: {}", found.join(", "));
        }
        text
    }

    fn json(&self) -> serde_json::Value {
        let (low, high) = self.accuracy.interval();
        let confusion: Vec<&[usize]> = (0..self.labels.len())
            .map(|class| self.accuracy.confusion(class))
            .collect();
        json!({
            "name": self.named.name,
            "accuracy": self.accuracy.share(),
            "correct": self.accuracy.correct,
            "sentences": self.accuracy.sentences,
            "confidence_95": [low, high],
            "labels": self.labels,
            "confusion": confusion,
        })
    }
}
