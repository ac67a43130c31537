//! Classifiers of sentences and of images, scored by their accuracy.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

use burn::tensor::Device;
use regard_evaluate::Accuracy;
use regard_images::{
    Image,
    data::{Broken, Dataset, Example, Source},
};
use regard_train::{
    ImageClassifier, Registry, TrainError,
    corpus::LabelledText,
    recipe::{Recipe, Split, read_images},
    tasks::{Classification, ImageClassification},
};
use regard_view::label::visible;
use serde_json::json;

use super::{
    Scored, expect_no_resampling, expect_no_search, expect_no_translation, expect_same, left_out,
    read_recipe,
};
use crate::{
    arguments::{Evaluate, Named, Part},
    commands::reduced,
    failure::{CommandError, Failure},
    output, ranks,
};

/// Whether the options ask for labels: by a file of labelled sentences, or by a classifier as a model.
pub fn wanted(options: &Evaluate) -> bool {
    options.labelled.is_some() || options.model.iter().any(|named| is_classifier(&named.path))
}

fn is_classifier(path: &Path) -> bool {
    let registry = Registry::default();
    registry.holds::<Classification>(path) || registry.holds::<ImageClassification>(path)
}

/// Scores the classifiers that the options name.
///
/// # Errors
/// Options that lack something, files that are wrong.
pub fn run(options: &Evaluate) -> Result<(), Failure> {
    let why = "a classifier is scored by its accuracy on --labelled PATH or --split";
    expect_no_translation(options, why)?;
    expect_no_resampling(options, why)?;
    expect_no_search(options, why)?;
    output::print(&print(&judge(options)?, options)?)
}

/// The scores of the classifiers, for a table.
///
/// # Errors
/// Files that are wrong.
pub fn scores(options: &Evaluate) -> Result<Vec<Scored>, Failure> {
    let all = judge(options)?.into_iter().map(|judged| {
        let (low, high) = judged.accuracy.interval();
        let [share, low, high] = [judged.accuracy.share(), low, high].map(|x| 100.0 * x);
        Scored {
            columns: vec![("accuracy", format!("{share:.2} % ({low:.2} to {high:.2})"))],
            json: judged.json(),
            right: Some(judged.right),
            comparisons: vec![],
        }
    });
    Ok(all.collect())
}

fn judge(options: &Evaluate) -> Result<Vec<Judged<'_>>, Failure> {
    let usage = |message: &str| Err(Failure::Usage(message.to_owned()));
    if !options.output.is_empty() && options.output.len() != options.model.len() {
        return usage("give one --output file for each --model");
    }
    if options.labelled.is_none() && options.split.is_none() {
        return usage(
            "a classifier needs labelled sentences or images; give --labelled PATH or --split test",
        );
    }
    let compute = &options.compute;
    compute.run(None, |device| judge_all(options, device))
}

fn judge_all<'a>(options: &'a Evaluate, device: &Device) -> Result<Vec<Judged<'a>>, Failure> {
    let mut judged = vec![];
    for (index, named) in options.model.iter().enumerate() {
        let registry = Registry::default();
        let Predictions {
            found,
            truth,
            labels,
            noun,
            cut,
            left_out,
        } = match registry.holds::<ImageClassification>(&named.path) {
            true => {
                let classifier = registry.image_classifier(&named.path, device)?;
                of_images(options, &named.path, classifier)?
            }
            false => of_sentences(options, &named.path, device)?,
        };
        if let Some(path) = options.output.get(index) {
            let lines = found.iter().map(|&class| visible(&labels[class]));
            output::write_lines(path, lines)?;
        }
        if let Some((count @ 1.., most)) = cut.filter(|_| !options.quiet) {
            output::warn(&format!(
                "{}: {count} of {} sentences have more than {most} tokens; only their start is read",
                named.name,
                truth.len()
            ));
        }
        judged.push(Judged {
            named,
            right: found.iter().zip(&truth).map(|(a, b)| a == b).collect(),
            accuracy: Accuracy::of(&found, &truth, labels.len()),
            labels,
            noun,
            cut: cut.map(|(count, _)| count),
            left_out,
        });
    }
    Ok(judged)
}

/// The classes that a classifier finds, and the true ones.
struct Predictions {
    found: Vec<usize>,
    truth: Vec<usize>,
    labels: Vec<String>,
    /// What is classified, in the plural.
    noun: &'static str,
    /// Of sentences: how many were cut, and the most tokens that are read of one.
    cut: Option<(usize, usize)>,
    /// Of images: how many were left out.
    left_out: Option<usize>,
}

fn of_sentences(options: &Evaluate, model: &Path, device: &Device) -> Result<Predictions, Failure> {
    let classifier = Registry::default().classifier(model, device)?;
    let text = match (&options.labelled, options.split) {
        (Some(path), _) => LabelledText::read(path)?,
        (None, part) => of_recipe(options, part, no_labelled, |recipe, split| {
            let labelled = recipe.data.labelled.as_ref();
            Ok(labelled
                .map(|labelled| labelled.load(split))
                .transpose()?
                .flatten())
        })?,
    };
    expect_same(options, Some(model), text.sentences(), None)?;
    let labels = classifier.description().labels.clone();
    let truth = text.classes(&labels)?;
    let found = ranks::all().spread(text.sentences(), |_, own| -> Result<_, Failure> {
        let found = classifier.classify(own)?;
        let told = found.iter().map(|one| (one.class, one.cut_from.is_some()));
        Ok(told.collect::<Vec<(usize, bool)>>())
    })?;
    let (found, cut): (Vec<usize>, Vec<bool>) = found.into_iter().unzip();
    let count = cut.into_iter().filter(|&cut| cut).count();
    Ok(Predictions {
        found,
        truth,
        labels,
        noun: "sentences",
        cut: Some((count, classifier.description().max_tokens)),
        left_out: None,
    })
}

/// Images that are decoded and classified together.
const AT_ONCE: usize = 100;

fn of_images(
    options: &Evaluate,
    model: &Path,
    classifier: ImageClassifier,
) -> Result<Predictions, Failure> {
    let description = classifier.description();
    let labels = description.labels.clone();
    let read = |path: &Path| -> Result<Dataset, Failure> {
        let dataset = read_images(path, true, Some(&labels))?;
        ranks::expect_same_images(path, &dataset)?;
        Ok(dataset)
    };
    let (dataset, broken): (Dataset, Broken) = match (&options.labelled, options.split) {
        (Some(path), _) => (read(path)?, Broken::Error),
        (None, part) => of_recipe(options, part, no_labelled, |recipe, split| {
            let images = recipe.data.images.as_ref();
            let named = images.and_then(|images| Some((images.path(split)?, images.broken())));
            Ok(match named {
                Some((path, broken)) => Some((read(path)?, broken)),
                None => None,
            })
        })?,
    };
    let examples = dataset.examples.iter().map(known);
    expect_same(options, Some(model), examples, None)?;
    let decoding = description.preparation.decoding();
    let image = |example: &Example| match example.image(&decoding) {
        Err(error) if broken == Broken::Skip && error.is_broken_image() => Ok(None),
        image => image.map(|image| Some(reduced(image, &description.preparation))),
    };
    let all = ranks::all().spread(&dataset.examples, |_, own| -> Result<_, Failure> {
        let mut all: Vec<Option<usize>> = vec![];
        for examples in own.chunks(AT_ONCE) {
            let images = examples.iter().map(image);
            let images: Vec<Option<Image>> = images.collect::<Result<_, _>>()?;
            let there: Vec<bool> = images.iter().map(Option::is_some).collect();
            let images: Vec<Image> = images.into_iter().flatten().collect();
            let mut classified = classifier.classify(&images)?.into_iter();
            let found = |&there: &bool| there.then(|| classified.next().map(|one| one.class));
            all.extend(there.iter().map(found).map(Option::flatten));
        }
        Ok(all)
    })?;
    // A broken image that the recipe allows is left out.
    let broken = all.iter().filter(|found| found.is_none()).count();
    let left_out = dataset.skipped.len() + broken;
    let examples = dataset.examples.iter().zip(all);
    let pairs =
        examples.filter_map(|(example, found)| Some((found?, example.label.unwrap_or_default())));
    let (found, truth): (Vec<usize>, Vec<usize>) = pairs.unzip();
    if found.is_empty() {
        let none = TrainError::NoImages {
            key: match (&options.labelled, options.split) {
                (Some(_), _) => "--labelled",
                (None, Some(Part::Valid)) => "data.images.valid",
                (None, _) => "data.images.test",
            },
            broken: left_out,
            expected: "images that can be read",
        };
        return Err(none.into());
    }
    Ok(Predictions {
        found,
        truth,
        labels,
        noun: "images",
        cut: None,
        left_out: Some(left_out),
    })
}

/// What is known of an example before its image is opened: its class, and the file's name or the pixels.
fn known(example: &Example) -> Vec<u8> {
    let known = match &example.source {
        Source::File(path) => path.file_name().unwrap_or_default().as_encoded_bytes(),
        Source::Pixels(image) => image.pixels(),
    };
    let class = example.label.map(usize::to_le_bytes).unwrap_or_default();
    [known, &class].concat()
}

/// A classifier and its accuracy.
struct Judged<'a> {
    named: &'a Named,
    /// Which examples got their true label.
    right: Vec<bool>,
    accuracy: Accuracy,
    labels: Vec<String>,
    noun: &'static str,
    /// Of sentences: how many were cut.
    cut: Option<usize>,
    /// Of images: how many were left out.
    left_out: Option<usize>,
}

/// What `read` finds of a part in the recipe of the first model; the error is `missing` if the recipe names no such data.
pub fn of_recipe<T>(
    options: &Evaluate,
    part: Option<Part>,
    missing: impl FnOnce(PathBuf, &'static str) -> CommandError,
    read: impl FnOnce(&Recipe, Split) -> Result<Option<T>, Failure>,
) -> Result<T, Failure> {
    let (path, recipe) = read_recipe(&options.model[0].path)?;
    let (split, name) = match part {
        Some(Part::Valid) => (Split::Valid, "validation"),
        _ => (Split::Test, "test"),
    };
    Ok(read(&recipe, split)?.ok_or_else(|| missing(path, name))?)
}

fn no_labelled(recipe: PathBuf, part: &'static str) -> CommandError {
    CommandError::NoLabelled { recipe, part }
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
        let accuracy = self.accuracy.describe(self.noun);
        let mut text = format!("{accuracy}{}\n", left_out(self.left_out.unwrap_or(0)));
        for (class, label) in self.labels.iter().enumerate() {
            let found = self.accuracy.confusion(class).iter().zip(&self.labels);
            let found: Vec<String> = found
                .map(|(count, label)| format!("{count} as {}", visible(label)))
                .collect();
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  of label {}: {}", visible(label), found.join(", "));
        }
        text
    }

    fn json(&self) -> serde_json::Value {
        let (low, high) = self.accuracy.interval();
        let confusion: Vec<&[usize]> = (0..self.labels.len())
            .map(|class| self.accuracy.confusion(class))
            .collect();
        let mut found = json!({
            "name": self.named.name,
            "accuracy": self.accuracy.share(),
            "correct": self.accuracy.correct,
            "sentences": self.accuracy.sentences,
            "confidence_95": [low, high],
            "labels": self.labels,
            "confusion": confusion,
        });
        if let Some(cut) = self.cut {
            found["cut"] = json!(cut);
        }
        if let Some(left_out) = self.left_out {
            found["left_out"] = json!(left_out);
        }
        found
    }
}
