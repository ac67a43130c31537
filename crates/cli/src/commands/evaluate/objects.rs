//! Detectors, scored by COCO's average precision.

use std::fmt::Write as _;

use regard_train::{
    Registry,
    recipe::Split,
    tasks::{
        Detection,
        detection::{Judged, Samples, judge},
    },
};
use regard_view::label::visible;
use serde_json::{Value, json};

use super::{Scored, expect_no_search, expect_no_translation, expect_same, recipe_of, write_lines};
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

/// Scores the detectors that the options name, each on its recipe's part of the data.
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
    for (path, (_, _, _, judged)) in options.output.iter().zip(&judged) {
        write_lines(path, &judged.lines)?;
    }
    output::print(&print(&judged, options)?)
}

/// The scores of the detectors, for a table.
///
/// # Errors
/// Files that are wrong.
pub fn scores(options: &Evaluate) -> Result<Vec<Scored>, Failure> {
    let judged = judge_all(options)?.into_iter();
    let all = judged.map(|(_, labels, images, judged)| {
        let precision = &judged.precision;
        let mut columns = vec![
            ("AP", format!("{:.3}", precision.ap)),
            ("AP50", format!("{:.3}", precision.ap50)),
            ("AP75", format!("{:.3}", precision.ap75)),
        ];
        columns.extend(judged.mean_iou.map(|iou| ("mean IoU", format!("{iou:.3}"))));
        Scored {
            columns,
            json: json(&labels, images, &judged),
            right: None,
        }
    });
    Ok(all.collect())
}

/// The name of a detector, its labels, the number of images, and how good it is.
type OfDetector = (String, Vec<String>, usize, Judged);

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
            let recipe = recipe_of(&named.path)?;
            let name = recipe.display().to_string();
            let recipe = registry.load(&recipe, &[])?;
            let samples = Samples::read(&recipe, split, detector.description())?;
            let Some(samples) = samples else {
                return Err(Failure::Usage(format!(
                    "--split: the recipe {name} names no such images; set data.objects.test and test_objects in it"
                )));
            };
            expect_same(options, Some(&*named.path), [samples.len().to_string()])?;
            let (model, description) = (detector.model(), detector.description());
            let judged = judge(model, description, &samples, device, ranks::all())?;
            let labels = detector.description().labels.clone();
            Ok((named.name.clone(), labels, samples.len(), judged))
        });
        all.collect::<Result<Vec<_>, Failure>>()
    })
}

fn print(judged: &[OfDetector], options: &Evaluate) -> Result<String, Failure> {
    if options.json {
        let all = judged.iter().map(|(name, labels, images, judged)| {
            let mut found = json(labels, *images, judged);
            found["name"] = json!(name);
            found
        });
        let all = json!({ "detectors": all.collect::<Value>() });
        return Ok(serde_json::to_string_pretty(&all)? + "\n");
    }
    let digits = usize::from(options.digits).max(3);
    let mut text = String::new();
    for (name, labels, images, judged) in judged {
        if options.score_only {
            let _ = writeln!(text, "{:.digits$}", judged.precision.ap);
            continue;
        }
        if options.model.len() > 1 {
            let _ = write!(text, "{name}: ");
        }
        text.push_str(&words(labels, *images, judged, digits));
    }
    Ok(text)
}

fn words(labels: &[String], images: usize, judged: &Judged, digits: usize) -> String {
    let precision = &judged.precision;
    let mut text = format!(
        "boxes of {images} images: AP {:.digits$}, AP50 {:.digits$}, AP75 {:.digits$}\n",
        precision.ap, precision.ap50, precision.ap75
    );
    // Writing to a string cannot fail.
    if let Some(iou) = judged.mean_iou {
        let _ = writeln!(text, "  mean IoU of masks {iou:.digits$}");
    }
    for (label, precision) in labels.iter().zip(&precision.classes) {
        if let Some(precision) = precision {
            let _ = writeln!(text, "  {}: AP {precision:.digits$}", visible(label));
        }
    }
    text
}

fn json(labels: &[String], images: usize, judged: &Judged) -> Value {
    let precision = &judged.precision;
    let classes = labels.iter().zip(&precision.classes);
    let classes = classes.map(|(label, precision)| (label.clone(), json!(precision)));
    json!({
        "images": images,
        "loss": judged.loss,
        "average_precision": precision.ap,
        "average_precision_50": precision.ap50,
        "average_precision_75": precision.ap75,
        "classes": classes.collect::<serde_json::Map<String, Value>>(),
        "mean_iou": judged.mean_iou,
    })
}
