//! `regard ask`.

use std::path::Path;

use burn::tensor::Device;
use regard_images::{Image, data::image_files};
use regard_trace::Trace;
use regard_train::{Answered, QuestionAnswerer, question_answerer::words};
use regard_view::label::visible;
use serde_json::{Value, json};

use crate::{
    arguments::Ask,
    failure::{CommandError, Failure},
    models,
    output::{self, Output},
    pictures::Shown,
};

/// Answers questions about an image, or about each image of a folder.
///
/// # Errors
/// A model or an image that is wrong, a picture that cannot be written.
pub fn run(options: &Ask) -> Result<(), Failure> {
    options.compute.run(None, |device| work(options, device))
}

fn work(options: &Ask, device: &Device) -> Result<(), Failure> {
    if let Some(question) = options.questions.iter().find(|text| words(text).is_empty()) {
        return Err(Failure::Usage(format!(
            "a question without words: {question:?}; give one, such as \"What is it?\""
        )));
    }
    let answerer = models::question_answerer(options.model.as_deref(), device)?;
    let mut shown = Shown::new(&options.show, options.model.as_ref())?;
    let files = match options.image.is_dir() {
        true => image_files(&options.image)?,
        false => vec![options.image.clone()],
    };
    shown.expect_apart(&files, files.len() * options.questions.len() > 1)?;
    if !options.show.quiet {
        warn_of_words(&answerer, &options.questions);
    }
    let mut out = Output::standard();
    let decoding = answerer.description().preparation.decoding();
    let questions: Vec<(usize, &str)> = options
        .questions
        .iter()
        .map(|text| (0, text.as_str()))
        .collect();
    let mut line = 0;
    for file in &files {
        let image = match Image::open(file, &decoding) {
            Ok(image) => image,
            Err(error) => return shown.end(error),
        };
        for ((_, question), (answered, trace)) in
            questions.iter().zip(answerer.ask(&[image], &questions)?)
        {
            line += 1;
            if answered.scores.iter().any(|score| !score.is_finite()) {
                let model = models::name(options.model.as_deref());
                return Err(CommandError::NotFinite { model }.into());
            }
            let found = Found {
                file,
                several: files.len() > 1,
                question,
                best: best_first(&answerer, &answered, options.top),
            };
            match options.show.json {
                true => out.line(&found.json(&answerer, shown.json(&trace)).to_string())?,
                false => found.print(&mut out)?,
            }
            if shown.is_wanted() {
                shown.push(&mut out, line, &named(trace, &found))?;
            }
        }
        out.flush()?;
    }
    shown.write()
}

/// Names words that are not read, and those that the model has not learned.
fn warn_of_words(answerer: &QuestionAnswerer, questions: &[String]) {
    let description = answerer.description();
    for (question, number) in questions.iter().zip(1..) {
        if let Some(length) = description.encode(question).cut_from {
            output::warn(&format!(
                "question {number} has {length} words; only the first {} are read",
                description.max_tokens
            ));
        }
        let unknown = description.unknown_words(question);
        if !unknown.is_empty() {
            let words: Vec<String> = unknown
                .iter()
                .map(|word| format!("{:?}", visible(word)))
                .collect();
            let words = words.join(", ");
            output::warn(&format!(
                "the model has not learned {words} of {:?}; its answer may mean nothing",
                visible(question)
            ));
        }
    }
}

/// The trace of an answer, with the file before the question where there are several.
fn named(trace: Trace, found: &Found<'_>) -> Trace {
    match found.several {
        true => Trace {
            source: format!("{}: {}", found.file.display(), found.question),
            ..trace
        },
        false => trace,
    }
}

/// The answers with the highest probabilities, the highest first; of equal ones the first of the model.
fn best_first(answerer: &QuestionAnswerer, answered: &Answered, top: usize) -> Vec<(String, f32)> {
    let answers = answerer.description().answers.iter().cloned();
    let mut all: Vec<(String, f32)> = answers.zip(answered.scores.iter().copied()).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all.truncate(top);
    all
}

/// Answers to a question about an image.
struct Found<'a> {
    file: &'a Path,
    /// Whether there are other images.
    several: bool,
    question: &'a str,
    best: Vec<(String, f32)>,
}

impl Found<'_> {
    fn print(&self, out: &mut Output) -> Result<(), Failure> {
        for (rank, (answer, score)) in self.best.iter().enumerate() {
            let answer = format!("{} ({:.1} %)", visible(answer), 100.0 * score);
            let line = match (rank, self.several) {
                (0, false) => format!("{answer}: {}", visible(self.question)),
                (0, true) => {
                    let file = self.file.display().to_string();
                    format!("{answer}: {}: {}", visible(&file), visible(self.question))
                }
                _ => format!("  {answer}"),
            };
            out.line(&line)?;
        }
        Ok(())
    }

    fn json(&self, answerer: &QuestionAnswerer, maps: Option<Value>) -> Value {
        let answers = self
            .best
            .iter()
            .map(|(answer, score)| json!({"answer": answer, "probability": score}));
        let mut line = json!({
            "image": self.file.display().to_string(),
            "question": self.question,
            "answer": self.best.first().map(|best| &best.0),
            "answers": answers.collect::<Vec<_>>(),
            "unknown_words": answerer.description().unknown_words(self.question),
        });
        if let Some(maps) = maps {
            line["maps"] = maps;
        }
        line
    }
}
