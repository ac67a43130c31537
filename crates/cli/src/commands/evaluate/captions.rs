//! Captioners, scored by BLEU, CIDEr-D, exact captions, and by where they looked.

use std::{fmt::Write as _, path::Path};

use burn::tensor::Device;
use regard_train::{
    ImageCaptioner, Registry,
    captioner::{CaptionedImages, Judged},
    recipe::Split,
    tasks::Captioning,
};
use serde_json::{Value, json};

use super::{Scored, expect_no_translation, expect_same, left_out, recipe_of};
use crate::{
    arguments::{Evaluate, Part},
    commands::pretrained::expect_finite,
    failure::{CommandError, Failure},
    output, ranks,
};

/// Whether one of the models is a captioner.
pub fn wanted(options: &Evaluate) -> bool {
    let registry = Registry::default();
    let mut models = options.model.iter();
    models.any(|named| registry.holds::<Captioning>(&named.path))
}

/// Scores the captioners that the options name.
///
/// # Errors
/// Options that contradict each other, files that are wrong.
pub fn run(options: &Evaluate) -> Result<(), Failure> {
    let usage = |message: &str| Err(Failure::Usage(message.to_owned()));
    let texts = options.source.is_some() || !options.references.is_empty();
    if texts || options.labelled.is_some() || !options.hypotheses.is_empty() {
        return usage(
            "a captioner is scored on the images of its recipe; give --split test in place of --source, --references, --hypotheses and --labelled",
        );
    }
    expect_no_translation(options, "a captioner is scored by its captions")?;
    if let Some(option) = options.search.of_source() {
        return Err(Failure::Usage(format!(
            "{option} is for models that translate; a captioner reads no lines: leave it out"
        )));
    }
    if !options.output.is_empty() && options.output.len() != options.model.len() {
        return usage("give one --output file for each --model");
    }
    output::print(&print(&judge(options)?, options)?)
}

/// The scores of the captioners, for a table.
///
/// # Errors
/// Files that are wrong.
pub fn scores(options: &Evaluate) -> Result<Vec<Scored>, Failure> {
    let all = judge(options)?.into_iter().map(|(judged, left_out)| {
        let percent = |share: f64| format!("{:.2} %", 100.0 * share);
        let mut columns = vec![
            ("exact", percent(judged.exact.share())),
            ("BLEU-4", format!("{:.2}", judged.scores.bleu[3])),
            ("CIDEr-D", format!("{:.3}", judged.scores.cider_d)),
        ];
        if judged.looking.looks > 0 {
            columns.push(("inside", percent(judged.looking.inside())));
            columns.push(("pointing", percent(judged.looking.pointing())));
        }
        Scored {
            columns,
            json: json(&judged, left_out),
            right: Some(judged.right),
        }
    });
    Ok(all.collect())
}

/// The captioners' captions, judged, each with the number of images that were left out.
fn judge(options: &Evaluate) -> Result<Vec<(Judged, usize)>, Failure> {
    options
        .compute
        .run(None, |device| judge_all(options, device))
}

fn judge_all(options: &Evaluate, device: &Device) -> Result<Vec<(Judged, usize)>, Failure> {
    let split = match options.split {
        Some(Part::Valid) => Split::Valid,
        _ => Split::Test,
    };
    let mut all = vec![];
    for (index, named) in options.model.iter().enumerate() {
        let captioner = Registry::default().captioner(&named.path, device)?;
        let (images, left_out) = images(&captioner, &named.path, split)?;
        let settings = options.search.over(captioner.settings());
        let count = [images.len().to_string()];
        expect_same(options, Some(&*named.path), count, Some(&settings))?;
        let judged = captioner.judge(&images, usize::MAX, &settings, ranks::all())?;
        expect_finite(&named.name, [judged.loss])?;
        if let Some(path) = options.output.get(index) {
            output::write_lines(path, judged.captions.iter().cloned())?;
        }
        all.push((judged, left_out));
    }
    Ok(all)
}

fn print(judged: &[(Judged, usize)], options: &Evaluate) -> Result<String, Failure> {
    if options.json {
        let named = judged.iter().zip(&options.model);
        let named = named.map(|((judged, left_out), named)| {
            let mut all = json(judged, *left_out);
            all["name"] = json!(named.name);
            all
        });
        let all = json!({ "captioners": named.collect::<Value>() });
        return Ok(serde_json::to_string_pretty(&all)? + "\n");
    }
    let mut text = String::new();
    for ((judged, left_out), named) in judged.iter().zip(&options.model) {
        if options.model.len() > 1 && !options.score_only {
            // Writing to a string cannot fail.
            let _ = write!(text, "{}: ", named.name);
        }
        let width = usize::from(options.digits);
        let _ = match options.score_only {
            true => writeln!(text, "{:.width$}", judged.scores.bleu[3]),
            false => writeln!(text, "{}", describe(judged, *left_out)),
        };
    }
    Ok(text)
}

/// The part of the data in the recipe of the run folder, and how many images were left out; for a file alone the scenes that it says it
/// learned from.
fn images(
    captioner: &ImageCaptioner,
    path: &Path,
    split: Split,
) -> Result<(CaptionedImages, usize), Failure> {
    let recipe = recipe_of(path)?;
    if recipe.is_file() {
        let read = Registry::default().load(&recipe, &[])?;
        if let Some((images, filtered)) = Captioning::part(&read, split)? {
            return Ok((images, filtered.broken));
        }
    } else if let Some((scenes, seed)) = &captioner.description().scenes {
        let scenes = CaptionedImages::Scenes(scenes.part(split, *seed));
        return Ok((scenes, 0));
    }
    let part = match split {
        Split::Valid => "validation",
        _ => "test",
    };
    Err(CommandError::NoCaptions { recipe, part }.into())
}

fn describe(judged: &Judged, count: usize) -> String {
    let (captions, left_out) = (judged.captions.len(), left_out(count));
    let mut text = format!(
        "{captions} images{left_out}: {}, {}, loss {:.4}",
        judged.exact, judged.scores, judged.loss
    );
    if judged.looking.looks > 0 {
        let _ = write!(text, "\n{}", judged.looking);
    }
    if judged.looking_at_boxes.looks > 0 {
        let boxes = &judged.looking_at_boxes;
        let [inside, pointing] = [boxes.inside(), boxes.pointing()].map(|share| 100.0 * share);
        let _ = write!(
            text,
            "\nits box: weight inside {inside:.1} %, pointing {pointing:.1} %"
        );
    }
    text
}

fn json(judged: &Judged, left_out: usize) -> Value {
    let looked = judged.looking.looks > 0;
    let boxed = judged.looking_at_boxes.looks > 0;
    json!({
        "images": judged.captions.len(),
        "left_out": left_out,
        "exact": judged.exact.share(),
        "bleu": judged.scores.bleu,
        "cider_d": judged.scores.cider_d,
        "loss": judged.loss,
        "looks": judged.looking.looks,
        "inside": looked.then(|| judged.looking.inside()),
        "pointing": looked.then(|| judged.looking.pointing()),
        "inside_box": boxed.then(|| judged.looking_at_boxes.inside()),
        "pointing_box": boxed.then(|| judged.looking_at_boxes.pointing()),
    })
}
