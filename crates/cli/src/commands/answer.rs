//! `regard answer`.

use std::path::Path;

use burn::tensor::Device;
use regard_models::pretrained::{Answer as Found, Answers, ContextWindows, Heads, sentence_around};
use regard_view::label::visible;
use serde_json::{Value, json};

use super::pretrained::{Encoder, characters, expect_finite, no_tokens, texts};
use crate::{
    arguments::Answer, failure::Failure, input, output::Output, pictures::Shown, progress::Counter,
};

/// Windows that are read together.
const BATCH: usize = 8;

/// Finds answers in a text.
///
/// # Errors
/// A model without a head for spans, a question without room for the context beside it.
pub fn run(options: &Answer) -> Result<(), Failure> {
    options.compute.run(None, |device| work(options, device))
}

fn work(options: &Answer, device: &Device) -> Result<(), Failure> {
    if options.questions.is_empty() && options.context == Path::new("-") {
        return Err(Failure::Usage(
            "standard input can be read once only: it is the context; give questions as arguments"
                .to_owned(),
        ));
    }
    let encoder = Encoder::open(
        &options.model.model,
        device,
        options.model.storage(),
        options.show.quiet,
    )?;
    let refused = || encoder.other_head("a head for spans of answers");
    if encoder.model.purpose() != Some(&Heads::Span) {
        return Err(refused());
    }
    let context = input::text(&options.context)?;
    if context.trim().is_empty() {
        return Err(input::no_text(&options.context));
    }
    let most = encoder.model.context();
    let most = options.window.map_or(most, |window| window.min(most));
    let overlap = options.stride.unwrap_or_else(|| 128.min(most / 2));
    let mut shown = Shown::new(&options.show, Some(&options.model.model))?;
    let mut out = Output::standard();
    let questions = texts(&options.questions)?;
    shown.expect_apart([&options.context], questions.len() > 1)?;
    if let Some(question) = questions.iter().find(|text| text.trim().is_empty()) {
        return Err(no_tokens(question));
    }
    let answer = |(line, question): (usize, &String)| -> Result<(), Failure> {
        let tokenizer = &encoder.opened.tokenizer;
        let windows = ContextWindows::new(tokenizer, question, &context, most, overlap)?;
        let mut answers = Answers::new(options.top, options.max_tokens);
        let count = windows.count();
        let counter = Counter::up_to(count, "windows", !options.show.quiet && count > BATCH);
        for first in (0..count).step_by(BATCH) {
            let batch: Vec<_> = (first..count.min(first + BATCH))
                .map(|number| windows.window(number))
                .collect();
            let states = encoder.batch(&batch)?;
            for ((number, window), states) in (first..).zip(&batch).zip(&states) {
                let spans = encoder.model.spans(states).ok_or_else(refused)?;
                let scores = spans.start.iter().chain(&spans.end).copied();
                expect_finite(&options.model.model, scores)?;
                answers.add(number, window, &spans);
            }
            counter.set(first + batch.len());
        }
        counter.finish();
        let trace = match shown.is_wanted() {
            false => None,
            true => {
                // The window of the best answer once more, looked at.
                let number = answers.best().first().map_or(0, |best| best.window);
                let window = windows.window(number);
                let (_, mut trace) = encoder.states(question, &window, true)?;
                if let (Some(trace), Some(best)) = (&mut trace, answers.best().first()) {
                    trace.target = context[best.range.clone()].to_owned();
                }
                trace
            }
        };
        let none = answers.no_answer().filter(|none| {
            let best = answers.best().first().map_or(0.0, |best| best.score);
            *none > options.no_answer * best
        });
        match options.show.json {
            true => {
                let found = answers.best().iter().map(|found| json(&context, found));
                let mut line = json!({
                    "line": line,
                    "question": question,
                    "answered": none.is_none() && !answers.best().is_empty(),
                    "no_answer": answers.no_answer(),
                    "answers": found.collect::<Vec<_>>(),
                    "windows": count,
                });
                if let Some(maps) = trace.as_ref().and_then(|trace| shown.json(trace)) {
                    line["maps"] = maps;
                }
                out.line(&line.to_string())?;
            }
            false => {
                if questions.len() > 1 {
                    out.line(&visible(question))?;
                }
                if let Some(none) = none {
                    out.line(&format!("no answer ({:.1} %)", 100.0 * none))?;
                }
                // Where there is none, the likeliest stretches are printed if several were asked for.
                let printed = match none {
                    Some(_) => options.top - 1,
                    None => options.top,
                };
                for found in answers.best().iter().take(printed) {
                    out.text(&text(&context, found))?;
                }
                if none.is_none() && answers.best().is_empty() {
                    out.line("no answer: the context has no tokens")?;
                }
            }
        }
        if let Some(trace) = &trace {
            shown.push(&mut out, line, trace)?;
        }
        out.flush()
    };
    match (1..).zip(&questions).try_for_each(answer) {
        Ok(()) => shown.write(),
        Err(error) => shown.end(error),
    }
}

/// An answer, and its sentence below it.
fn text(context: &str, found: &Found) -> String {
    let around = sentence_around(context, &found.range);
    let [start, end] = [found.range.start, found.range.end].map(|byte| characters(context, byte));
    let answer = &context[found.range.clone()];
    let before = &context[around.start..found.range.start];
    let after = &context[found.range.end..around.end];
    // On one line, however the text is wrapped.
    let sentence = format!("{before}[{answer}]{after}");
    let sentence: Vec<&str> = sentence.split_whitespace().collect();
    format!(
        "{} ({:.1} %), characters {start} to {end}\n  {}\n",
        visible(answer),
        100.0 * found.score,
        visible(&sentence.join(" ")),
    )
}

fn json(context: &str, found: &Found) -> Value {
    json!({
        "answer": &context[found.range.clone()],
        "score": found.score,
        "start": characters(context, found.range.start),
        "end": characters(context, found.range.end),
        "sentence": &context[sentence_around(context, &found.range)],
    })
}
