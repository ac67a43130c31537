//! Detectors, scored by COCO's average precision.

use std::{fmt::Write as _, path::Path};

use regard_train::{
    Detector, Registry,
    corpus::FilterReport,
    recipe::Split,
    tasks::{
        Detection,
        detection::{Judged, Samples, judge},
    },
};
use regard_view::label::visible;
use serde_json::{Value, json};

use super::{
    Scored, expect_no_search, expect_no_translation, expect_same,
    intervals::{self, Intervals, OfImages, Unit, of_images},
    left_out, own_scenes, read_recipe, write_lines,
};
use crate::{
    arguments::{Evaluate, Part},
    failure::Failure,
    output, ranks,
};

/// Whether a model that the options name is a detector.
pub fn wanted(options: &Evaluate) -> bool {
    let registry = Registry::default();
    let mut models = options.model.iter();
    models.any(|named| registry.holds::<Detection>(&named.path))
}

/// Scores the detectors that the options name, each on its own part of the data.
///
/// # Errors
/// Options that lack something, files that are wrong.
pub fn run(options: &Evaluate) -> Result<(), Failure> {
    let usage = |message: &str| Err(Failure::Usage(message.to_owned()));
    if options.labelled.is_some() {
        return usage("--labelled is not for detectors; give --split test");
    }
    let why = "a detector is scored by its average precision";
    expect_no_translation(options, why)?;
    expect_no_search(options, why)?;
    if options.split.is_none() {
        return usage("a detector needs images with known objects; give --split test");
    }
    if !options.output.is_empty() && options.output.len() != options.model.len() {
        return usage("give one --output file for each --model");
    }
    let judged = judge_all(options)?;
    for (path, one) in options.output.iter().zip(&judged) {
        write_lines(path, &one.judged.lines)?;
    }
    output::print(&print(&judged, options)?)
}

/// The scores of the detectors, for a table.
///
/// # Errors
/// Files that are wrong.
pub fn scores(options: &Evaluate) -> Result<Vec<Scored>, Failure> {
    let judged = judge_all(options)?;
    let scores: Vec<Vec<OfImages<'_>>> = judged.iter().map(OfDetector::scores).collect();
    let all = judged.iter().zip(&scores).enumerate();
    let all = all.map(|(place, (one, own))| {
        let intervals = Intervals::of(own, options)?;
        Ok(Scored {
            columns: match one.nothing_to_find() {
                true => [AP, AP50, AP75]
                    .map(|name| (name, NOTHING.to_owned()))
                    .to_vec(),
                false => intervals.columns(own),
            },
            json: one.json(&intervals),
            right: None,
            comparisons: intervals::compared(place, &scores[0], own, options)?,
        })
    });
    all.collect()
}

const AP: &str = "AP";
const AP50: &str = "AP50";
const AP75: &str = "AP75";

/// What is said in place of an average precision of images without objects.
const NOTHING: &str = "nothing to find";

/// A detector, and how good it is.
struct OfDetector {
    name: String,
    labels: Vec<String>,
    images: usize,
    /// How many images and objects were left out.
    left_out: usize,
    judged: Judged,
}

fn judge_all(options: &Evaluate) -> Result<Vec<OfDetector>, Failure> {
    let split = match options.split {
        Some(Part::Valid) => Split::Valid,
        _ => Split::Test,
    };
    let compute = &options.compute;
    compute.run(None, |device| {
        let all = options.model.iter().map(|named| {
            let registry = Registry::default();
            let detector = registry.detector(&named.path, device)?;
            let (samples, filtered) = samples(&detector, &named.path, split)?;
            let count = [samples.len().to_string()];
            expect_same(options, Some(&*named.path), count, None)?;
            let (model, description) = (detector.model(), detector.description());
            let judged = judge(model, description, &samples, device, ranks::all())?;
            Ok(OfDetector {
                name: named.name.clone(),
                labels: description.labels.clone(),
                images: samples.len(),
                left_out: filtered.broken,
                judged,
            })
        });
        all.collect::<Result<Vec<_>, Failure>>()
    })
}

/// The part of the data in the recipe of the run folder, and what was left out of it; for a file alone the scenes that it says it learned
/// from.
fn samples(
    detector: &Detector,
    path: &Path,
    split: Split,
) -> Result<(Samples, FilterReport), Failure> {
    let description = detector.description();
    if let Some(scenes) = own_scenes(path, description.scenes.as_ref(), split)? {
        return Ok((Samples::Scenes(scenes), FilterReport::default()));
    }
    let (file, recipe) = read_recipe(path)?;
    ranks::expect_same_part(&recipe.data, split)?;
    let samples = Samples::part(&recipe, split, description)?;
    samples.ok_or_else(|| {
        Failure::Usage(format!(
            "--split: the recipe {} names no such images; set data.objects.test and test_objects in it",
            file.display()
        ))
    })
}

fn print(judged: &[OfDetector], options: &Evaluate) -> Result<String, Failure> {
    if options.json {
        let all = judged.iter().map(|one| {
            let mut found = one.json(&Intervals::of(&one.scores(), options)?);
            found["name"] = json!(one.name);
            Ok(found)
        });
        let all = json!({ "detectors": all.collect::<Result<Value, Failure>>()? });
        return Ok(serde_json::to_string_pretty(&all)? + "\n");
    }
    let digits = usize::from(options.digits).max(3);
    let mut text = String::new();
    for one in judged {
        // Writing to a string cannot fail.
        if options.score_only {
            let _ = match one.nothing_to_find() {
                true => writeln!(text, "nan"),
                false => writeln!(text, "{:.digits$}", one.judged.precision.ap),
            };
            continue;
        }
        if options.model.len() > 1 {
            let _ = write!(text, "{}: ", one.name);
        }
        text.push_str(&one.words(digits, &Intervals::of(&one.scores(), options)?));
    }
    Ok(text)
}

impl OfDetector {
    /// Whether no image has an object that must be found.
    fn nothing_to_find(&self) -> bool {
        self.judged.precision.classes.iter().all(Option::is_none)
    }

    /// The scores that have an interval.
    fn scores(&self) -> Vec<OfImages<'_>> {
        let (judged, unit) = (&self.judged, Unit::plain(3));
        let matches = &judged.matches;
        let mut scores = vec![
            of_images("average_precision", Some(AP), unit, matches.ap()),
            of_images("average_precision_50", Some(AP50), unit, matches.ap50()),
            of_images("average_precision_75", Some(AP75), unit, matches.ap75()),
        ];
        if let Some(overlaps) = judged.overlaps.clone() {
            scores.push(of_images("mean_iou", Some("mean IoU"), unit, overlaps));
        }
        scores
    }

    fn words(&self, digits: usize, intervals: &Intervals) -> String {
        let precision = &self.judged.precision;
        let (images, left_out) = (self.images, left_out(self.left_out));
        let mut text = format!("boxes of {images} images{left_out}: ");
        let within = |key: &str| intervals.words(key, digits, [" (", ")"]);
        // Writing to a string cannot fail.
        let _ = match self.nothing_to_find() {
            true => writeln!(text, "{NOTHING}"),
            false => writeln!(
                text,
                "AP {:.digits$}{}, AP50 {:.digits$}{}, AP75 {:.digits$}{}",
                precision.ap,
                within("average_precision"),
                precision.ap50,
                within("average_precision_50"),
                precision.ap75,
                within("average_precision_75"),
            ),
        };
        if let Some(iou) = self.judged.mean_iou {
            let within = within("mean_iou");
            let _ = writeln!(text, "  mean IoU of masks {iou:.digits$}{within}");
        }
        for (label, precision) in self.labels.iter().zip(&precision.classes) {
            if let Some(precision) = precision {
                let _ = writeln!(text, "  {}: AP {precision:.digits$}", visible(label));
            }
        }
        text
    }

    fn json(&self, intervals: &Intervals) -> Value {
        let precision = &self.judged.precision;
        let there = |score: f64| (!self.nothing_to_find()).then_some(score);
        let labels = output::keys(self.labels.iter().map(String::as_str));
        let classes = labels.into_iter().zip(&precision.classes);
        let classes = classes.map(|(label, precision)| (label, json!(precision)));
        json!({
            "images": self.images,
            "left_out": self.left_out,
            "loss": self.judged.loss,
            "average_precision": there(precision.ap),
            "average_precision_50": there(precision.ap50),
            "average_precision_75": there(precision.ap75),
            "classes": classes.collect::<serde_json::Map<String, Value>>(),
            "mean_iou": self.judged.mean_iou,
            "confidence_95": intervals.json(),
        })
    }
}
