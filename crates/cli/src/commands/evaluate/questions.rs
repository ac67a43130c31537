//! Models that answer questions about images: accuracy by kind of question, and whether they looked at what was asked for.

use std::fmt::Write as _;

use burn::tensor::Device;
use regard_evaluate::Looking;
use regard_train::{
    QuestionAnswerer, Registry,
    recipe::Split,
    tasks::{
        VisualQuestions,
        questions::{Asked, Judged, Scores},
    },
};
use regard_view::label::visible;
use serde_json::{Value, json};

use super::{
    Scored, expect_no_search, expect_no_translation, expect_same,
    intervals::{self, Intervals, OfImages, Unit, of_images},
    labels::of_recipe,
    left_out, own_scenes, write_lines,
};
use crate::{
    arguments::{Evaluate, Named, Part},
    commands::pretrained::expect_finite,
    failure::{CommandError, Failure},
    output, ranks,
};

/// Whether a model of the options answers questions about images.
pub fn wanted(options: &Evaluate) -> bool {
    let registry = Registry::default();
    let mut models = options.model.iter();
    models.any(|named| registry.holds::<VisualQuestions>(&named.path))
}

/// Asks the models of the options the questions of a part of the recipe, and prints how good their answers are.
///
/// # Errors
/// Options that lack something, files that are wrong.
pub fn run(options: &Evaluate) -> Result<(), Failure> {
    let usage = |message: &str| Err(Failure::Usage(message.to_owned()));
    if options.split.is_none() || options.labelled.is_some() {
        return usage(
            "a model that answers questions about images is scored on those of its recipe; give --split test",
        );
    }
    let why = "this model answers questions about images";
    expect_no_translation(options, why)?;
    expect_no_search(options, why)?;
    if !options.output.is_empty() && options.output.len() != options.model.len() {
        return usage("give one --output file for each --model");
    }
    let judged = options.compute.run(None, |device| judge(options, device))?;
    output::print(&print(&judged, options)?)
}

/// The scores of the models, for a table.
///
/// # Errors
/// Files that are wrong.
pub fn scores(options: &Evaluate) -> Result<Vec<Scored>, Failure> {
    let judged = options.compute.run(None, |device| judge(options, device))?;
    let scores: Vec<Vec<OfImages<'_>>> = judged.iter().map(|one| of_all(&one.judged)).collect();
    let all = judged.iter().zip(&scores).enumerate();
    let all = all.map(|(place, (one, own))| {
        Ok(Scored {
            columns: Intervals::of(own, options)?.columns(own),
            json: one.json(options)?,
            right: None,
            comparisons: intervals::compared(place, &scores[0], own, options)?,
        })
    });
    all.collect()
}

/// A model, and how good its answers are.
struct OfModel<'a> {
    named: &'a Named,
    judged: Judged,
    /// How many images were left out.
    left_out: usize,
}

/// The scores of all questions that have an interval.
fn of_all(judged: &Judged) -> Vec<OfImages<'static>> {
    let images: Vec<Scores> = judged.images.iter().map(|image| image.all).collect();
    of_scores(&images)
}

/// The same of the questions of a kind.
fn of_kind(judged: &Judged, kind: &str) -> Vec<OfImages<'static>> {
    let images = judged.images.iter();
    let images = images.map(|image| image.kinds.get(kind).copied().unwrap_or_default());
    of_scores(&images.collect::<Vec<Scores>>())
}

fn of_scores(images: &[Scores]) -> Vec<OfImages<'static>> {
    let looks = images.iter().map(|of| [of.looking, of.looking_at_boxes]);
    let looks: Vec<[Looking; 2]> = looks.collect();
    let accuracy = Scores::accuracy_of(images);
    let mut scores = vec![of_images(
        "accuracy",
        Some("accuracy"),
        Unit::PERCENT,
        accuracy,
    )];
    scores.extend(intervals::looks(&looks));
    scores
}

fn judge<'a>(options: &'a Evaluate, device: &Device) -> Result<Vec<OfModel<'a>>, Failure> {
    let registry = Registry::default();
    let models = options.model.iter();
    let models = models.map(|named| registry.question_answerer(&named.path, device));
    let models: Vec<QuestionAnswerer> = models.collect::<Result<_, _>>()?;
    let (asked, left_out) = asked(options, &models[0])?;
    let mut all = vec![];
    for (index, (named, answerer)) in options.model.iter().zip(&models).enumerate() {
        let count = [asked.len().to_string()];
        expect_same(options, Some(&*named.path), count, None)?;
        let judged = asked.judge(
            answerer.description(),
            answerer.model(),
            device,
            ranks::all(),
        )?;
        expect_finite(&named.name, [judged.loss])?;
        if let Some(path) = options.output.get(index) {
            write_lines(path, &judged.lines)?;
        }
        all.push(OfModel {
            named,
            judged,
            left_out,
        });
    }
    Ok(all)
}

/// The part of the data in the recipe of the first model's run folder, and how many images were left out of it; for a file alone the
/// scenes that it says it learned from.
fn asked(options: &Evaluate, first: &QuestionAnswerer) -> Result<(Asked, usize), Failure> {
    let split = match options.split {
        Some(Part::Valid) => Split::Valid,
        _ => Split::Test,
    };
    let scenes = first.description().scenes.as_ref();
    if let Some(scenes) = own_scenes(&options.model[0].path, scenes, split)? {
        return Ok((Asked::Scenes(scenes), 0));
    }
    let missing = |recipe, part| CommandError::NoQuestions { recipe, part };
    of_recipe(options, options.split, missing, |recipe, split| {
        ranks::expect_same_part(&recipe.data, split)?;
        Ok(Asked::read(recipe, split)?)
    })
}

fn print(judged: &[OfModel<'_>], options: &Evaluate) -> Result<String, Failure> {
    if options.json {
        let all = judged.iter().map(|one| one.json(options));
        let all = all.collect::<Result<Value, Failure>>()?;
        return Ok(serde_json::to_string_pretty(&json!({ "question_answerers": all }))? + "\n");
    }
    let width = usize::from(options.digits);
    let text = judged.iter().map(|one| {
        let share = 100.0 * one.judged.scores.all.accuracy();
        Ok(match (options.score_only, judged.len()) {
            (true, _) => format!("{share:.width$}\n"),
            (false, 1) => one.text(options)?,
            (false, _) => format!("{}: {}", one.named.name, one.text(options)?),
        })
    });
    text.collect()
}

impl OfModel<'_> {
    fn text(&self, options: &Evaluate) -> Result<String, Failure> {
        let scores = &self.judged.scores;
        let all = Intervals::of(&of_all(&self.judged), options)?;
        let left_out = left_out(self.left_out);
        let mut text = format!(
            "accuracy {} questions{left_out}\n",
            accuracy(&scores.all, &all)
        );
        // Writing to a string cannot fail.
        for (kind, scores) in &scores.kinds {
            let own = Intervals::of(&of_kind(&self.judged, kind), options)?;
            let _ = write!(text, "  {}: {}", visible(kind), accuracy(scores, &own));
            let boxes = &scores.looking_at_boxes;
            let _ = match boxes.looks {
                0 => writeln!(text),
                _ => {
                    let looked = intervals::looked_at_boxes(boxes, &own);
                    writeln!(text, "; the object's box: {looked}")
                }
            };
        }
        if scores.all.looking.looks > 0 {
            let looked = intervals::looked(&scores.all.looking, &all);
            let _ = writeln!(text, "  the last look: {looked}");
            let looked = intervals::looked_at_boxes(&scores.all.looking_at_boxes, &all);
            let _ = writeln!(text, "  its box: {looked}");
        }
        Ok(text)
    }

    fn json(&self, options: &Evaluate) -> Result<Value, Failure> {
        let scores = &self.judged.scores;
        let kinds = scores.kinds.iter().map(|(kind, scores)| {
            let own = Intervals::of(&of_kind(&self.judged, kind), options)?;
            Ok((kind.clone(), keys(scores, &own)))
        });
        let kinds = kinds.collect::<Result<serde_json::Map<String, Value>, Failure>>()?;
        let all = Intervals::of(&of_all(&self.judged), options)?;
        let mut found = keys(&scores.all, &all);
        found["name"] = json!(self.named.name);
        found["left_out"] = json!(self.left_out);
        found["kinds"] = Value::Object(kinds);
        Ok(found)
    }
}

/// "95.20 % (95 % interval 94.10 to 96.30) of 800".
fn accuracy(scores: &Scores, intervals: &Intervals) -> String {
    let (accuracy, questions) = (100.0 * scores.accuracy(), scores.questions);
    let interval = intervals.words("accuracy", 2, [" (", ")"]);
    format!("{accuracy:.2} %{interval} of {questions}")
}

fn keys(scores: &Scores, intervals: &Intervals) -> Value {
    let (looking, boxes) = (&scores.looking, &scores.looking_at_boxes);
    json!({
        "accuracy": scores.accuracy(),
        "questions": scores.questions,
        "looking": (looking.looks > 0).then(|| json!({
            "looks": looking.looks,
            "pointing": looking.pointing(),
            "inside": looking.inside(),
            "pointing_box": boxes.pointing(),
            "inside_box": boxes.inside(),
        })),
        "confidence_95": intervals.json(),
    })
}
