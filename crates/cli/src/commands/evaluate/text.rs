//! Language models, scored on a text: perplexity in windows, and teacher forcing beside free running.

use std::{path::Path, time::Instant};

use regard_evaluate::{ByPosition, Conditioning, EvaluateError, NextToken};
use regard_models::scoring::{self, CausalModel, Window, Windows};
use regard_train::opened::Opened;
use regard_view::{
    chart::{Chart, Point, Series, stacked},
    label::columns,
};
use serde_json::{Value, json};

use super::{expect_no_resampling, expect_no_search, expect_no_translation};
use crate::{
    arguments::{Evaluate, OfText},
    commands::pretrained,
    failure::Failure,
    input,
    output::{self, Output},
    pictures::write_drawing,
    progress::Counter,
    ranks,
};

/// The most tokens of a window that is not asked for.
const CONTEXT: usize = 1024;
/// Prompts that are continued together.
const BATCH: usize = 16;

/// Scores a language model on the text at `path`.
///
/// # Errors
/// Options that contradict the model or the text, files that are wrong.
pub fn run(options: &Evaluate, path: &Path) -> Result<(), Failure> {
    let usage = |message: &str| Err(Failure::Usage(message.to_owned()));
    let [named] = options.model.as_slice() else {
        return usage("--text scores one --model");
    };
    let why = "a language model is scored by its perplexity";
    expect_no_translation(options, why)?;
    expect_no_resampling(options, why)?;
    expect_no_search(options, why)?;
    if options.lengths.grouped() {
        return usage(
            "--buckets and --least-sentences are for scores by length; give --by-length and a --source",
        );
    }
    if options.lengths.drawing.any() && options.language.free_running.is_none() {
        return usage("a picture shows loss and accuracy by position; give --free-running too");
    }
    options.compute.run(None, |device| {
        let opened = pretrained::find(&named.path.to_string_lossy(), options.quiet)?;
        let storage = options.language.stored.storage();
        let model = pretrained::model_on(device, &opened, storage, options.quiet)?;
        let model = opened.causal(&model)?;
        let text = input::text(path)?;
        if text.trim().is_empty() {
            return Err(input::no_text(path));
        }
        let OfText {
            context,
            stride,
            free_running,
            prompts,
            prompt_tokens,
            ..
        } = &options.language;
        let asked = [
            ranks::option("--context", *context),
            ranks::option("--stride", *stride),
            ranks::option("--free-running", *free_running),
            ranks::option("--prompts", *prompts),
            ranks::option("--prompt-tokens", *prompt_tokens),
            ranks::option("--weights", options.language.stored.typed()),
        ]
        .join("\n");
        ranks::expect_same([opened.path.clone()], [&text], &asked)?;
        match options.language.free_running {
            None => windows(options, &opened, model, &parts(&opened, &text)?, path),
            Some(length) => {
                let encoded = opened.tokenizer.encode(&text, true)?;
                running(options, model, &encoded.ids, length, path)
            }
        }
    })
}

/// A text that is scored by itself.
struct Part {
    ids: Vec<u32>,
    /// Of the tokens that are scored.
    bytes: usize,
}

/// The file as one text, or its lines for a model that was trained on lines.
fn parts(opened: &Opened, text: &str) -> Result<Vec<Part>, Failure> {
    let encode = |text: &str| opened.tokenizer.encode(text, true);
    if !opened.reads_lines {
        let encoded = encode(text)?;
        // A text's first token is not scored, unless the tokenizer puts one before it.
        let before = match encoded.texts.first() {
            Some(Some(_)) => encoded.offsets[0].end,
            _ => 0,
        };
        return Ok(vec![Part {
            ids: encoded.ids,
            bytes: text.len() - before,
        }]);
    }
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let end = &opened.tokenizer.special().eos;
    let part = |line: &str| {
        let mut ids = encode(line)?.ids;
        ids.extend(end.first());
        Ok(Part {
            ids,
            bytes: line.len() + 1,
        })
    };
    lines.map(part).collect()
}

/// A text of too few tokens.
fn short(path: &Path, tokens: usize, expected: usize) -> Failure {
    let name = input::name(path);
    Failure::Usage(format!(
        "{name} has {tokens} tokens; expected at least {expected}: give a longer text"
    ))
}

/// A sum of losses that stops at the first that is no number.
struct Checked(Result<(), EvaluateError>);

impl Checked {
    fn add(&mut self, add: impl FnOnce() -> Result<(), EvaluateError>) {
        if self.0.is_ok() {
            self.0 = add();
        }
    }
}

fn windows(
    options: &Evaluate,
    opened: &Opened,
    model: &dyn CausalModel,
    parts: &[Part],
    path: &Path,
) -> Result<(), Failure> {
    let OfText {
        context, stride, ..
    } = options.language;
    let most = model.context();
    let usual = opened.trained_on.unwrap_or(CONTEXT);
    let context = context.unwrap_or_else(|| most.min(usual));
    let stride = stride.unwrap_or_else(|| (context / 2).max(1));
    if context > most {
        return Err(Failure::Usage(format!(
            "--context {context}: the model reads at most {most} tokens; give at most {most}, or leave it out"
        )));
    }
    if stride > context {
        return Err(Failure::Usage(format!(
            "--stride {stride}: expected at most the context, {context}, or tokens would be left out"
        )));
    }
    let tokens = parts.iter().map(|part| part.ids.len()).sum();
    if parts.iter().all(|part| part.ids.len() < 2) {
        return Err(short(path, tokens, 2));
    }
    let is_unknown = |id: &&u32| Some(**id) == opened.tokenizer.special().unk;
    let unknown: usize = parts
        .iter()
        .map(|part| part.ids.iter().filter(is_unknown).count())
        .sum();
    if unknown > 0 && !options.quiet {
        output::warn(&format!(
            "{unknown} of {tokens} tokens stand for text that is not in the vocabulary: bits per byte cannot be compared with another model's"
        ));
    }
    let mut score = NextToken::new(Conditioning::TeacherForced);
    let mut checked = Checked(Ok(()));
    let counter = Counter::up_to(tokens, "tokens", !options.quiet);
    let begun = Instant::now();
    let windows = Windows { context, stride };
    let mut all: Vec<(&Part, Window)> = vec![];
    for part in parts {
        all.extend(windows.of(part.ids.len()).map(|window| (part, window)));
    }
    let predictions = ranks::all().spread(&all, |_, own| -> Result<_, Failure> {
        let mut done = 0;
        let score = |(part, window): &(&Part, Window)| -> Result<_, Failure> {
            let mut found: Vec<(f64, bool)> = vec![];
            window.score(model, &part.ids, |_, of| found.push((of.loss, of.correct)))?;
            done += found.len();
            counter.set(done * ranks::all().count());
            Ok(found)
        };
        own.iter().map(score).collect()
    })?;
    for (loss, correct) in predictions.into_iter().flatten() {
        checked.add(|| score.add(loss, correct));
    }
    checked.0?;
    let seconds = begun.elapsed().as_secs_f64();
    counter.finish();
    let bytes = parts.iter().map(|part| part.bytes as u64).sum();
    let perplexity = score.perplexity();
    let scored = perplexity.tokens();
    let speed = scored as f64 / seconds.max(1e-9);
    let none = || EvaluateError::Empty {
        name: input::name(path),
    };
    let value = perplexity.value().ok_or_else(none)?;
    let bits = score.bits_per_byte(bytes).ok_or_else(none)?;
    let accuracy = score.accuracy().ok_or_else(none)?;
    if options.json {
        let all = json!({
            "perplexity": value,
            "loss": perplexity.mean(),
            "bits_per_token": perplexity.bits(),
            "bits_per_byte": bits,
            "accuracy": accuracy,
            "tokens": scored,
            "bytes": bytes,
            "context": context,
            "stride": stride,
            "unknown_tokens": unknown,
            "conditioning": perplexity.conditioning().name(),
            "tokens_per_second": speed,
        });
        return output::print(&format!("{all:#}\n"));
    }
    if options.score_only {
        let digits = usize::from(options.digits);
        return output::print(&format!("{value:.digits$}\n"));
    }
    let mut out = Output::standard();
    out.line(&perplexity.to_string())?;
    out.line(&format!("{bits:.4} bits per byte ({bytes} bytes)"))?;
    out.line(&format!("{:.2} % of next tokens right", 100.0 * accuracy))?;
    let least = (context - stride).max(1);
    if parts.len() > 1 {
        out.line(&format!("{} lines, each by itself", parts.len()))?;
    }
    out.line(&format!(
        "context {context}, stride {stride}: at least {least} tokens before each, but at the beginning"
    ))?;
    out.flush()?;
    if !options.quiet {
        output::say(&format!(
            "{scored} tokens in {seconds:.2} s ({speed:.0} a second)"
        ));
    }
    Ok(())
}

/// A prediction: where, its loss, and whether it was right.
type At = (usize, f64, bool);

fn running(
    options: &Evaluate,
    model: &dyn CausalModel,
    ids: &[u32],
    length: usize,
    path: &Path,
) -> Result<(), Failure> {
    let prompt = options.language.prompt_tokens.unwrap_or(32);
    let most = model.context();
    let part = prompt.saturating_add(length);
    if part - 1 > most {
        return Err(Failure::Usage(format!(
            "a prompt of {prompt} tokens and {length} after it: the model reads at most {most} tokens; give a smaller --free-running or --prompt-tokens"
        )));
    }
    if ids.len() < part {
        return Err(short(path, ids.len(), part));
    }
    // Evenly spaced, and without overlap.
    let count = options.language.prompts.unwrap_or(64).min(ids.len() / part);
    let last = ids.len() - part;
    let texts: Vec<&[u32]> = (0..count)
        .map(|number| {
            let start = last * number / (count - 1).max(1);
            &ids[start..start + part]
        })
        .collect();
    let mut forced = ByPosition::new(Conditioning::TeacherForced, length);
    let mut free = ByPosition::new(Conditioning::FreeRunning, length);
    let mut checked = Checked(Ok(()));
    let counter = Counter::up_to(2 * count, "texts", !options.quiet);
    let batches: Vec<&[&[u32]]> = texts.chunks(BATCH).collect();
    let found = ranks::all().spread(&batches, |_, own| -> Result<_, Failure> {
        let mut done = 0;
        let score = |texts: &&[&[u32]]| -> Result<[Vec<At>; 2], Failure> {
            let (mut forced, mut free) = (vec![], vec![]);
            for text in *texts {
                scoring::teacher_forced(model, text, prompt, |at, found| {
                    forced.push((at, found.loss, found.correct));
                })?;
            }
            scoring::free_running(model, texts, prompt, |_, at, found| {
                free.push((at, found.loss, found.correct));
            })?;
            done += texts.len();
            counter.set(2 * done * ranks::all().count());
            Ok([forced, free])
        };
        own.iter().map(score).collect()
    })?;
    for [teacher_forced, free_running] in found {
        for (at, loss, correct) in teacher_forced {
            checked.add(|| forced.add(at, loss, correct));
        }
        for (at, loss, correct) in free_running {
            checked.add(|| free.add(at, loss, correct));
        }
    }
    counter.finish();
    checked.0?;
    let title = format!("{count} prompts of {prompt} tokens, {length} tokens after each");
    let table = table(&title, &forced, &free);
    match options.json {
        true => {
            let positions: Vec<Value> = (0..length)
                .map(|at| json!({"teacher_forced": of(&forced, at), "free_running": of(&free, at)}))
                .collect();
            let all = json!({
                "prompts": count,
                "prompt_tokens": prompt,
                "positions": positions,
            });
            output::print(&format!("{all:#}\n"))?;
        }
        false => output::print(&table)?,
    }
    let picture = stacked(&charts(&forced, &free));
    write_drawing(&options.lengths.drawing, &title, &picture, &table)
}

fn of(scores: &ByPosition, at: usize) -> Value {
    let score = scores.positions()[at];
    json!({"loss": score.perplexity().mean(), "accuracy": score.accuracy()})
}

/// Loss and accuracy of both, for groups of positions that double.
fn table(title: &str, forced: &ByPosition, free: &ByPosition) -> String {
    let header = [
        "position",
        "loss: teacher-forced",
        "free-running",
        "accuracy: teacher-forced",
        "free-running",
    ];
    let header: Vec<String> = header.map(str::to_owned).to_vec();
    let all = std::iter::once(("all".to_owned(), 0..forced.positions().len()));
    let groups = forced.groups().into_iter().map(|group| {
        let name = match group.len() {
            1 => group.end.to_string(),
            _ => format!("{} to {}", group.start + 1, group.end),
        };
        (name, group)
    });
    let rows = groups.chain(all).map(|(name, group)| {
        let both = [forced, free].map(|scores| scores.over(group.clone()));
        let number =
            |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |x| format!("{x:.3}"));
        let losses = both.map(|score| number(score.perplexity().mean()));
        let shares = both.map(|score| number(score.accuracy()));
        [vec![name], losses.to_vec(), shares.to_vec()].concat()
    });
    let rows: Vec<Vec<String>> = std::iter::once(header).chain(rows).collect();
    format!("{title}\n{}", columns(&rows))
}

/// Loss and accuracy by position.
fn charts(forced: &ByPosition, free: &ByPosition) -> [Chart; 2] {
    type Value = fn(&NextToken) -> Option<f64>;
    let values: [(&str, Value); 2] = [
        ("loss", |score| score.perplexity().mean()),
        ("accuracy", NextToken::accuracy),
    ];
    values.map(|(name, value)| {
        let title = format!("{name} of the true token, by position");
        let chart = Chart::new(title, "tokens after the prompt", name).y_from_zero();
        [forced, free].into_iter().fold(chart, |chart, scores| {
            let points = (1..).zip(scores.positions()).map(|(at, score)| {
                let at = f64::from(at);
                Point::new(at, value(score).unwrap_or(f64::NAN))
            });
            chart.with(Series::new(scores.conditioning().name(), points.collect()))
        })
    })
}
