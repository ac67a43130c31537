//! Captioners, scored by BLEU, CIDEr-D, exact captions, and by where they looked.

use std::{fmt::Write as _, path::Path};

use burn::tensor::Device;
use regard_evaluate::{ExactMatch, Ratio};
use regard_train::{
    ImageCaptioner, Registry,
    captioner::{CaptionedImages, Judged},
    corpus::FilterReport,
    recipe::Split,
    tasks::Captioning,
};
use serde_json::{Value, json};

use super::{
    Scored, expect_no_translation, expect_same,
    intervals::{self, Intervals, OfImages, Unit, of_images},
    left_out, own_scenes, read_recipe,
};
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
    let judged = judge(options)?;
    let scores: Vec<Vec<OfImages<'_>>> = judged.iter().map(|(one, _)| of_judged(one)).collect();
    let all = judged.iter().zip(&scores).enumerate();
    let all = all.map(|(place, ((judged, left_out), own))| {
        let intervals = Intervals::of(own, options)?;
        Ok(Scored {
            columns: intervals.columns(own),
            json: json(judged, *left_out, &intervals),
            right: Some(judged.right.clone()),
            // Exact captions are compared one by one, as they are right or wrong.
            comparisons: intervals::compared(place, &scores[0][1..], &own[1..], options)?,
        })
    });
    all.collect()
}

/// The scores that have an interval.
fn of_judged(judged: &Judged) -> Vec<OfImages<'_>> {
    let exact = judged.right.iter().map(|&right| (f64::from(right), 1.0));
    let exact: Ratio = exact.collect();
    let (bleu, cider) = (judged.counts.bleu_4(), judged.counts.cider_d().clone());
    let mut scores = vec![
        of_images("exact", Some("exact"), Unit::PERCENT, exact),
        of_images("bleu_4", Some("BLEU-4"), Unit::plain(2), bleu),
        of_images("cider_d", Some("CIDEr-D"), Unit::plain(3), cider),
    ];
    scores.extend(intervals::looks(&judged.looks));
    scores
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
        let (images, filtered) = images(&captioner, &named.path, split)?;
        if filtered.empty > 0 && !options.quiet {
            output::warn(&format!(
                "{}: images without a caption are left out: {}",
                named.name, filtered.empty
            ));
        }
        let settings = options.search.over(captioner.settings());
        let count = [images.len().to_string()];
        expect_same(options, Some(&*named.path), count, Some(&settings))?;
        let judged = captioner.judge(&images, usize::MAX, &settings, ranks::all())?;
        expect_finite(&named.name, [judged.loss])?;
        if let Some(path) = options.output.get(index) {
            output::write_lines(path, judged.captions.iter().cloned())?;
        }
        all.push((judged, filtered.broken));
    }
    Ok(all)
}

fn print(judged: &[(Judged, usize)], options: &Evaluate) -> Result<String, Failure> {
    if options.json {
        let named = judged.iter().zip(&options.model);
        let named = named.map(|((judged, left_out), named)| {
            let intervals = Intervals::of(&of_judged(judged), options)?;
            let mut all = json(judged, *left_out, &intervals);
            all["name"] = json!(named.name);
            Ok(all)
        });
        let all = json!({ "captioners": named.collect::<Result<Value, Failure>>()? });
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
            false => {
                let intervals = Intervals::of(&of_judged(judged), options)?;
                writeln!(text, "{}", describe(judged, *left_out, &intervals))
            }
        };
    }
    Ok(text)
}

/// The part of the data in the recipe of the run folder, and what was left out of it; for a file alone the scenes that it says it learned
/// from.
fn images(
    captioner: &ImageCaptioner,
    path: &Path,
    split: Split,
) -> Result<(CaptionedImages, FilterReport), Failure> {
    let scenes = captioner.description().scenes.as_ref();
    if let Some(scenes) = own_scenes(path, scenes, split)? {
        return Ok((CaptionedImages::Scenes(scenes), FilterReport::default()));
    }
    let (file, recipe) = read_recipe(path)?;
    ranks::expect_same_part(&recipe.data, split)?;
    if let Some(part) = Captioning::part(&recipe, split)? {
        return Ok(part);
    }
    let part = match split {
        Split::Valid => "validation",
        _ => "test",
    };
    Err(CommandError::NoCaptions { recipe: file, part }.into())
}

fn describe(judged: &Judged, count: usize, intervals: &Intervals) -> String {
    let (captions, left_out) = (judged.captions.len(), left_out(count));
    let (ExactMatch { exact, lines }, share) = (judged.exact, 100.0 * judged.exact.share());
    let ([one, two, three, four], cider) = (judged.scores.bleu, judged.scores.cider_d);
    let of_exact = intervals.words("exact", 1, ["; ", ""]);
    let of_bleu = intervals.words("bleu_4", 2, [" (of BLEU-4: ", ")"]);
    let of_cider = intervals.words("cider_d", 3, [" (", ")"]);
    let mut text = format!(
        "{captions} images{left_out}: exact {share:.1} % ({exact} of {lines} lines{of_exact}), BLEU-1 to 4 {one:.2} {two:.2} \
         {three:.2} {four:.2}{of_bleu}, CIDEr-D {cider:.3}{of_cider}, loss {:.4}",
        judged.loss
    );
    if judged.looking.looks > 0 {
        let looked = intervals::looked(&judged.looking, intervals);
        let _ = write!(text, "\n{looked}");
    }
    if judged.looking_at_boxes.looks > 0 {
        let looked = intervals::looked_at_boxes(&judged.looking_at_boxes, intervals);
        let _ = write!(text, "\nits box: {looked}");
    }
    text
}

fn json(judged: &Judged, left_out: usize, intervals: &Intervals) -> Value {
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
        "confidence_95": intervals.json(),
    })
}
