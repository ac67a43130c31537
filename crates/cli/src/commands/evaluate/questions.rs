//! Models that answer questions about images: accuracy by kind of question, and whether they looked at what was asked for.

use std::fmt::Write as _;

use burn::tensor::Device;
use regard_train::{
    Registry,
    tasks::{
        VisualQuestions,
        questions::{AnswerScores, Asked},
    },
};
use serde_json::json;

use super::labels::of_recipe;
use crate::{
    arguments::{Evaluate, Named},
    failure::Failure,
    output::{self, Output},
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
    if options.by_length {
        return usage("--by-length scores translations; this model answers questions about images");
    }
    if !options.output.is_empty() && options.output.len() != options.model.len() {
        return usage("give one --output file for each --model");
    }
    let judged = options.compute.run(None, |device| judge(options, device))?;
    output::print(&print(&judged, options)?)
}

fn judge<'a>(
    options: &'a Evaluate,
    device: &Device,
) -> Result<Vec<(&'a Named, AnswerScores)>, Failure> {
    let (asked, _) = of_recipe(options, options.split, |recipe, split| {
        Ok(Asked::read(recipe, split)?)
    })?;
    let mut all = vec![];
    for (index, named) in options.model.iter().enumerate() {
        let answerer = Registry::default().question_answerer(&named.path, device)?;
        let judged = asked.judge(answerer.description(), answerer.model(), device);
        if let Some(path) = options.output.get(index) {
            let mut output = Output::file(path)?;
            for line in &judged.lines {
                output.line(line)?;
            }
            output.flush()?;
        }
        all.push((named, judged.scores));
    }
    Ok(all)
}

fn print(judged: &[(&Named, AnswerScores)], options: &Evaluate) -> Result<String, Failure> {
    if options.json {
        let all = judged.iter().map(|(named, scores)| of_json(named, scores));
        let all: Vec<_> = all.collect();
        return Ok(serde_json::to_string_pretty(&json!({ "question_answerers": all }))? + "\n");
    }
    let width = usize::from(options.digits);
    let text = judged.iter().map(|(named, scores)| {
        let share = 100.0 * scores.accuracy();
        match (options.score_only, judged.len()) {
            (true, _) => format!("{share:.width$}\n"),
            (false, 1) => of_text(scores),
            (false, _) => format!("{}: {}", named.name, of_text(scores)),
        }
    });
    Ok(text.collect())
}

fn of_text(scores: &AnswerScores) -> String {
    let (accuracy, questions) = (100.0 * scores.accuracy(), scores.questions());
    let mut text = format!("accuracy {accuracy:.2} % of {questions} questions\n");
    for (kind, accuracy, questions) in scores.kinds() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {kind}: {:.2} % of {questions}", 100.0 * accuracy);
    }
    if scores.looking().looks > 0 {
        let _ = writeln!(text, "  the last look: {}", scores.looking());
    }
    text
}

fn of_json(named: &Named, scores: &AnswerScores) -> serde_json::Value {
    let kinds = scores.kinds().map(|(kind, accuracy, questions)| {
        let about = json!({ "accuracy": accuracy, "questions": questions });
        (kind.to_owned(), about)
    });
    let looking = scores.looking();
    json!({
        "name": named.name,
        "accuracy": scores.accuracy(),
        "questions": scores.questions(),
        "kinds": kinds.collect::<serde_json::Map<_, _>>(),
        "looking": (looking.looks > 0).then(|| json!({
            "looks": looking.looks,
            "pointing": looking.pointing(),
            "inside": looking.inside(),
        })),
    })
}
