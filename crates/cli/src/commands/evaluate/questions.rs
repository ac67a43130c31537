//! Models that answer questions about images: accuracy by kind of question, and whether they looked at what was asked for.

use std::fmt::Write as _;

use burn::tensor::Device;
use regard_train::{
    Registry,
    tasks::{
        VisualQuestions,
        questions::{AnswerScores, Asked, Scores},
    },
};
use regard_view::label::visible;
use serde_json::{Value, json};

use super::{
    Scored, expect_no_search, expect_no_translation, expect_same, labels::of_recipe, left_out,
    write_lines,
};
use crate::{
    arguments::{Evaluate, Named},
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
    let all = judged.iter().map(|(named, scores, left_out)| {
        let percent = |share: f64| format!("{:.2} %", 100.0 * share);
        let mut columns = vec![("accuracy", percent(scores.all.accuracy()))];
        if scores.all.looking.looks > 0 {
            columns.push(("pointing", percent(scores.all.looking.pointing())));
        }
        Scored {
            columns,
            json: of_json(named, scores, *left_out),
            right: None,
        }
    });
    Ok(all.collect())
}

/// A model, how good its answers are, and how many images were left out.
type Judged<'a> = (&'a Named, AnswerScores, usize);

fn judge<'a>(options: &'a Evaluate, device: &Device) -> Result<Vec<Judged<'a>>, Failure> {
    let missing = |recipe, part| CommandError::NoQuestions { recipe, part };
    let (asked, left_out) = of_recipe(options, options.split, missing, |recipe, split| {
        Ok(Asked::read(recipe, split)?)
    })?;
    let mut all = vec![];
    for (index, named) in options.model.iter().enumerate() {
        let answerer = Registry::default().question_answerer(&named.path, device)?;
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
        all.push((named, judged.scores, left_out));
    }
    Ok(all)
}

fn print(judged: &[Judged<'_>], options: &Evaluate) -> Result<String, Failure> {
    if options.json {
        let all = judged.iter();
        let all = all.map(|(named, scores, left_out)| of_json(named, scores, *left_out));
        let all: Vec<_> = all.collect();
        return Ok(serde_json::to_string_pretty(&json!({ "question_answerers": all }))? + "\n");
    }
    let width = usize::from(options.digits);
    let text = judged.iter().map(|(named, scores, left_out)| {
        let share = 100.0 * scores.all.accuracy();
        match (options.score_only, judged.len()) {
            (true, _) => format!("{share:.width$}\n"),
            (false, 1) => of_text(scores, *left_out),
            (false, _) => format!("{}: {}", named.name, of_text(scores, *left_out)),
        }
    });
    Ok(text.collect())
}

fn of_text(AnswerScores { all, kinds }: &AnswerScores, count: usize) -> String {
    let (accuracy, questions) = (100.0 * all.accuracy(), all.questions);
    let left_out = left_out(count);
    let mut text = format!("accuracy {accuracy:.2} % of {questions} questions{left_out}\n");
    let boxes = |scores: &Scores| {
        let boxes = &scores.looking_at_boxes;
        let [inside, pointing] = [boxes.inside(), boxes.pointing()].map(|share| 100.0 * share);
        format!("weight inside {inside:.1} %, pointing {pointing:.1} %")
    };
    // Writing to a string cannot fail.
    for (kind, scores) in kinds {
        let (accuracy, questions) = (100.0 * scores.accuracy(), scores.questions);
        let kind = visible(kind);
        let _ = write!(text, "  {kind}: {accuracy:.2} % of {questions}");
        let _ = match scores.looking_at_boxes.looks {
            0 => writeln!(text),
            _ => writeln!(text, "; the object's box: {}", boxes(scores)),
        };
    }
    if all.looking.looks > 0 {
        let _ = writeln!(text, "  the last look: {}", all.looking);
        let _ = writeln!(text, "  its box: {}", boxes(all));
    }
    text
}

fn of_json(named: &Named, AnswerScores { all, kinds }: &AnswerScores, left_out: usize) -> Value {
    let kinds = kinds.iter().map(|(kind, of)| (kind.clone(), keys(of)));
    let mut found = keys(all);
    found["name"] = json!(named.name);
    found["left_out"] = json!(left_out);
    found["kinds"] = Value::Object(kinds.collect());
    found
}

fn keys(scores: &Scores) -> Value {
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
    })
}
