//! Captioners, scored by BLEU, CIDEr-D, exact captions, and by where they looked.

use std::{fmt::Write as _, path::Path};

use burn::tensor::Device;
use regard_train::{
    ImageCaptioner, Registry,
    captioner::{CaptionedImages, Judged},
    model_file,
    recipe::Split,
    tasks::Captioning,
};
use serde_json::json;

use crate::{
    arguments::{Evaluate, Part},
    failure::{CommandError, Failure},
    output::{self, Output},
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
    if options.by_length || options.gold.is_some() || options.bootstrap.is_some() {
        return usage("--by-length, --gold and --bootstrap are for translations");
    }
    if !options.output.is_empty() && options.output.len() != options.model.len() {
        return usage("give one --output file for each --model");
    }
    let compute = &options.compute;
    let text = compute.run(None, |device| judge(options, device))?;
    output::print(&text)
}

fn judge(options: &Evaluate, device: &Device) -> Result<String, Failure> {
    let split = match options.split {
        Some(Part::Valid) => Split::Valid,
        _ => Split::Test,
    };
    let (mut text, mut all) = (String::new(), vec![]);
    for (index, named) in options.model.iter().enumerate() {
        let captioner = Registry::default().captioner(&named.path, device)?;
        let images = images(&captioner, &named.path, split)?;
        let settings = options.search.over(captioner.settings());
        let judged = captioner.judge(&images, usize::MAX, &settings)?;
        if let Some(path) = options.output.get(index) {
            let mut output = Output::file(path)?;
            for caption in &judged.captions {
                output.line(caption)?;
            }
            output.flush()?;
        }
        if options.model.len() > 1 && !options.score_only {
            // Writing to a string cannot fail.
            let _ = write!(text, "{}: ", named.name);
        }
        let width = usize::from(options.digits);
        let _ = match options.score_only {
            true => writeln!(text, "{:.width$}", judged.scores.bleu[3]),
            false => writeln!(text, "{}", describe(&judged)),
        };
        all.push(json(&named.name, &judged));
    }
    match options.json {
        true => Ok(serde_json::to_string_pretty(&json!({ "captioners": all }))? + "\n"),
        false => Ok(text),
    }
}

/// The part of the data in the recipe of the run folder; for a file alone the scenes that it says it learned from.
fn images(
    captioner: &ImageCaptioner,
    path: &Path,
    split: Split,
) -> Result<CaptionedImages, Failure> {
    let recipe = model_file::locate(path)?.with_file_name("recipe.toml");
    if recipe.is_file() {
        let read = Registry::default().load(&recipe, &[])?;
        if let Some((images, _)) = Captioning.part(&read, split)? {
            return Ok(images);
        }
    } else if let Some((scenes, seed)) = &captioner.description().scenes {
        return Ok(CaptionedImages::Scenes(scenes.part(split, *seed)));
    }
    let part = match split {
        Split::Valid => "validation",
        _ => "test",
    };
    Err(CommandError::NoCaptions { recipe, part }.into())
}

fn describe(judged: &Judged) -> String {
    let captions = judged.captions.len();
    let mut text = format!(
        "{captions} images: {}, {}, loss {:.4}",
        judged.exact, judged.scores, judged.loss
    );
    if judged.looking.looks > 0 {
        let _ = write!(text, "\n{}", judged.looking);
    }
    text
}

fn json(name: &str, judged: &Judged) -> serde_json::Value {
    let looked = judged.looking.looks > 0;
    json!({
        "name": name,
        "images": judged.captions.len(),
        "exact": judged.exact.share(),
        "bleu": judged.scores.bleu,
        "cider_d": judged.scores.cider_d,
        "loss": judged.loss,
        "looks": judged.looking.looks,
        "inside": looked.then(|| judged.looking.inside()),
        "pointing": looked.then(|| judged.looking.pointing()),
    })
}
