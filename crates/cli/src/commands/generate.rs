//! `regard generate`.

use std::{
    io::{self, IsTerminal},
    ops::ControlFlow,
    time::Instant,
};

use burn::tensor::Device;
use regard_kernels::Kind;
use regard_models::{
    Stepper, Vocabulary,
    generate::{BeamConfig, LengthLimit, Prompt, SampleConfig, SampleEnd, beam_search, sample},
    pretrained::{ChatTemplate, Encoding, InputError, Look, Message, Searching, WritingRules},
    scoring::CausalModel,
};
use regard_trace::Trace;
use regard_train::opened::{Opened, TextModel};
use serde_json::json;

use super::pretrained::{self, find, texts};
use crate::{
    arguments::Generate,
    failure::Failure,
    output::{self, Output},
    pictures::Shown,
    progress::Counter,
};

/// Writes on from prompts.
///
/// # Errors
/// A model that cannot be read, a prompt that is too long.
pub fn run(options: &Generate) -> Result<(), Failure> {
    options.compute.run(None, |device| work(options, device))
}

/// A prompt and what became of it.
struct Text {
    prompt: String,
    ids: Vec<u32>,
    /// The most tokens after the prompt.
    limit: usize,
    /// The text after the prompt, as far as it is certain.
    written: String,
    /// Text that may be the beginning of a stop text.
    held: String,
    ended: &'static str,
}

fn work(options: &Generate, device: &Device) -> Result<(), Failure> {
    let started = Instant::now();
    given(options, SampleConfig::default())
        .check()
        .map_err(|error| Failure::Usage(error.to_string()))?;
    if options.stop.iter().any(String::is_empty) {
        let message = "--stop: found an empty text, which ends every text at once; give one that is to end it";
        return Err(Failure::Usage(message.to_owned()));
    }
    let shown = Shown::new(&options.show, Some(&options.model.model))?;
    let looking = shown.is_wanted();
    if options.slide && looking {
        let message = "--slide forgets the beginning of a text, of which a picture needs all; leave one of them out";
        return Err(Failure::Usage(message.to_owned()));
    }
    let opened = find(&options.model.model, options.show.quiet)?;
    if opened.is_seq2seq()? {
        return Err(opened
            .other("a model that writes on from a prompt; this one reads a text and writes another, which `regard translate` does")
            .into());
    }
    let (usual, ignored) = opened.sampling()?;
    pretrained::warn_of_ignored(&opened.name, &ignored, options.show.quiet);
    let storage = options.model.storage();
    let model = pretrained::model_on(device, &opened, storage, options.show.quiet)?;
    let writer = opened.causal(&model)?;
    if looking && !model.attends() {
        return Err(opened
            .other("a model that attends, of which there are pictures")
            .into());
    }
    if model.stack().is_none() && options.cache.kind() != Kind::F32 {
        let message = "--cache is for models whose attention has a kernel, which keep keys and values; leave it out";
        return Err(Failure::Usage(message.to_owned()));
    }
    let loaded = started.elapsed().as_secs_f64();
    let mut all = prompts(options, &opened)?;
    let context = writer.context();
    for (number, text) in (1..).zip(&mut all) {
        let length = text.ids.len();
        // A token is written at least.
        InputError::expect_room(number, &text.prompt, length, context, 1)?;
        if !options.slide {
            text.limit = text.limit.min(context - length);
        }
        if looking {
            model.expect_room(&Look::new(length))?;
        }
    }
    if looking && let Some(text) = all.first() {
        // One token shows which layers and heads there are.
        let first = seen(&opened, &model, "", &text.ids[..1])?;
        shown.expect_choice(&first)?;
    }
    let config = SampleConfig {
        limit: options.max_tokens,
        stop: opened.tokenizer.special().eos.clone(),
        ..given(options, usual)
    };
    let begun = Instant::now();
    let before: Vec<&[u32]> = all
        .iter()
        .map(|text| text.ids.split_last().map_or(&[][..], |(_, before)| before))
        .collect();
    let prompt_tokens: usize = before.iter().map(|before| before.len()).sum();
    let counter = Counter::up_to(prompt_tokens, "tokens read", !options.show.quiet);
    let mut told = |done| counter.set(done);
    let mut steps = Sliding::new(writer, &before, options.cache.kind(), &mut told)?;
    counter.finish();
    let read = begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    let tokens = match options.beam {
        Some(width) => search(options, &mut all, writer, &config, width, &opened)?,
        None => draw(options, &mut all, &mut steps, &config, &opened)?,
    };
    let wrote = begun.elapsed().as_secs_f64();
    finish(options, &opened, &model, &all, shown)?;
    if !options.show.quiet {
        let full = |text: &&Text| text.ended == "limit" && text.limit < options.max_tokens;
        let ended = all.iter().filter(full).count();
        if ended > 0 {
            output::warn(&format!(
                "{ended} of {} ended at the model's context of {context} tokens; --slide goes on",
                output::counted(all.len(), "texts")
            ));
        }
        output::say(&format!(
            "opened in {loaded:.2} s; {prompt_tokens} tokens read in {read:.2} s ({:.0} a second); {tokens} written in {wrote:.2} s ({:.1} a second)",
            prompt_tokens as f64 / read.max(1e-9),
            tokens as f64 / wrote.max(1e-9)
        ));
    }
    Ok(())
}

/// `usual` with what the options say.
fn given(options: &Generate, usual: SampleConfig) -> SampleConfig {
    SampleConfig {
        temperature: options.temperature.unwrap_or(usual.temperature),
        top_k: options.top_k.unwrap_or(usual.top_k),
        top_p: options.top_p.unwrap_or(usual.top_p),
        min_p: options.min_p.unwrap_or(usual.min_p),
        repetition_penalty: options
            .repetition_penalty
            .unwrap_or(usual.repetition_penalty),
        seed: options.seed,
        ..usual
    }
}

/// The prompts as tokens.
fn prompts(options: &Generate, opened: &Opened) -> Result<Vec<Text>, Failure> {
    let template = match options.chat {
        true => Some(ChatTemplate::open(opened.folder()?.path())?),
        false => None,
    };
    let mut all = vec![];
    for prompt in texts(&options.prompts)? {
        let ids = match &template {
            Some(template) => {
                let system = options
                    .system
                    .iter()
                    .map(|text| Message::new("system", text));
                let user = Message::new("user", &prompt);
                let messages: Vec<Message> = system.chain([user]).collect();
                let text = template.render(&messages, true)?;
                opened.started(opened.tokenizer.encode(&text, false)?.ids)?
            }
            None => opened.prompt(&prompt)?,
        };
        all.push(Text {
            prompt,
            ids,
            limit: options.max_tokens,
            written: String::new(),
            held: String::new(),
            ended: "limit",
        });
    }
    Ok(all)
}

/// Draws token by token, printing the text of a single prompt as it comes; gives the number of tokens.
fn draw(
    options: &Generate,
    all: &mut [Text],
    steps: &mut dyn Stepper,
    config: &SampleConfig,
    opened: &Opened,
) -> Result<usize, Failure> {
    let prompts: Vec<Prompt> = (0..)
        .zip(all.iter())
        .map(|(stream, text)| Prompt {
            tokens: text.ids.clone(),
            stream,
        })
        .collect();
    let streams: Result<Vec<_>, _> = all
        .iter()
        .map(|text| opened.tokenizer.stream(&text.ids, true))
        .collect();
    let mut streams = streams?;
    let mut shown = (all.len() == 1 && !options.show.json).then(Output::standard);
    if let Some(out) = shown.as_mut().filter(|_| !options.chat) {
        print(out, &all[0].prompt)?;
    }
    let mut failed = None;
    let mut tokens = 0;
    let mut written = vec![0; all.len()];
    let each = |row: usize, id: u32| {
        tokens += 1;
        written[row] += 1;
        let text = &mut all[row];
        let added = match streams[row].push(id) {
            Ok(added) => added,
            Err(error) => {
                failed = Some(Failure::Error(Box::new(error)));
                return ControlFlow::Break(());
            }
        };
        let (certain, stopped) = text.add(&added, &options.stop);
        if let Some(out) = &mut shown
            && let Err(error) = print(out, &certain)
        {
            failed = Some(error);
            return ControlFlow::Break(());
        }
        if stopped {
            text.ended = "stop";
        }
        // Where the model's context ends, a text ends by itself.
        match stopped || written[row] == text.limit {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    };
    let sampled = sample(steps, &prompts, config, each)?;
    if let Some(failure) = failed {
        return Err(failure);
    }
    for ((text, sampled), stream) in all.iter_mut().zip(sampled).zip(streams) {
        text.ids.extend(&sampled.tokens);
        if matches!(sampled.end, SampleEnd::Stop(_)) {
            text.ended = "end";
        }
        if text.ended != "stop" {
            let rest = text.finish(&stream.finish()?);
            if let Some(out) = &mut shown {
                print(out, &rest)?;
            }
        }
    }
    if let Some(out) = &mut shown {
        print(out, "\n")?;
    }
    Ok(tokens)
}

/// Prints text as it comes.
fn print(out: &mut Output, text: &str) -> Result<(), Failure> {
    out.text(&without_controls(text, io::stdout().is_terminal()))?;
    out.flush()
}

/// A text without the control characters that would confuse a terminal, if it goes to one.
fn without_controls(text: &str, to_terminal: bool) -> String {
    let safe = |c: char| match c {
        c if to_terminal && c.is_control() && c != '\n' && c != '\t' => '\u{fffd}',
        c => c,
    };
    text.chars().map(safe).collect()
}

impl Text {
    /// Adds text; gives what is certain of it, and whether a stop text has come.
    fn add(&mut self, added: &str, stops: &[String]) -> (String, bool) {
        self.held += added;
        let found = stops.iter().filter_map(|stop| self.held.find(stop)).min();
        if let Some(at) = found {
            let certain = self.held[..at].to_owned();
            self.held.clear();
            self.written += &certain;
            return (certain, true);
        }
        // What could be the beginning of a stop text waits.
        let begins = |at: &usize| stops.iter().any(|stop| stop.starts_with(&self.held[*at..]));
        let mut starts = self.held.char_indices().map(|(at, _)| at);
        let end = starts.find(begins).unwrap_or(self.held.len());
        let rest = self.held.split_off(end);
        let certain = std::mem::replace(&mut self.held, rest);
        self.written += &certain;
        (certain, false)
    }

    /// Adds the last of a text to what waits; gives both.
    fn finish(&mut self, last: &str) -> String {
        let rest = std::mem::take(&mut self.held) + last;
        self.written += &rest;
        rest
    }
}

/// Steps of a model whose context may be full: then each text that fills it is read again from the middle of the context.
struct Sliding<'a> {
    model: &'a dyn CausalModel,
    cache: Kind,
    /// What each row has read since it was last read again.
    read: Vec<Vec<u32>>,
    steps: Box<dyn Stepper + 'a>,
}

impl<'a> Sliding<'a> {
    fn new(
        model: &'a dyn CausalModel,
        texts: &[&[u32]],
        cache: Kind,
        told: &mut dyn FnMut(usize),
    ) -> Result<Self, InputError> {
        Ok(Self {
            model,
            cache,
            read: texts.iter().map(|text| text.to_vec()).collect(),
            steps: model.read_telling(texts, cache, told)?,
        })
    }
}

impl Stepper for Sliding<'_> {
    fn vocabulary(&self) -> Vocabulary {
        self.steps.vocabulary()
    }

    fn step(&mut self, previous: &[u32], logits: &mut Vec<f32>) -> Option<Vec<f32>> {
        let context = self.model.context();
        if self.read.iter().any(|read| read.len() >= context) {
            for read in self.read.iter_mut().filter(|read| read.len() >= context) {
                read.drain(..read.len() - context / 2);
            }
            let texts: Vec<&[u32]> = self.read.iter().map(Vec::as_slice).collect();
            let again = self.model.read(&texts, self.cache);
            self.steps = again.unwrap_or_else(|error| unreachable!("it was read before: {error}"));
        }
        for (read, &id) in self.read.iter_mut().zip(previous) {
            read.push(id);
        }
        self.steps.step(previous, logits)
    }

    fn select(&mut self, rows: &[usize], same_sources: bool) {
        self.read = rows.iter().map(|&row| self.read[row].clone()).collect();
        self.steps.select(rows, same_sources);
    }
}

/// Beam search of each prompt; gives the number of tokens. What is found ends before the first stop text.
fn search(
    options: &Generate,
    all: &mut [Text],
    model: &dyn CausalModel,
    config: &SampleConfig,
    width: usize,
    opened: &Opened,
) -> Result<usize, Failure> {
    let mut tokens = 0;
    for text in all.iter_mut() {
        let Some((&last, before)) = text.ids.split_last() else {
            continue;
        };
        let steps = model.read(&[before], options.cache.kind())?;
        let penalty = config.repetition_penalty;
        let rules = WritingRules {
            repetition_penalty: Some(penalty).filter(|&penalty| penalty != 1.0),
            penalizes_logits: width == 1,
            ..WritingRules::default()
        };
        let mut searching = Searching::new(steps, before, last, &config.stop, rules);
        let beam = BeamConfig {
            size: width,
            n_best: 1,
            limit: LengthLimit {
                factor: 0.0,
                constant: text.limit,
                most: text.limit,
            },
            ..BeamConfig::default()
        };
        // There is no source.
        let found = beam_search(&mut searching, &[0], &beam);
        let Some(best) = found.into_iter().flatten().next() else {
            continue;
        };
        text.ended = if best.finished { "end" } else { "limit" };
        let mut stream = opened.tokenizer.stream(&text.ids, true)?;
        for id in best.tokens {
            tokens += 1;
            text.ids.push(id);
            if text.add(&stream.push(id)?, &options.stop).1 {
                text.ended = "stop";
                break;
            }
        }
        if text.ended != "stop" {
            text.finish(&stream.finish()?);
        }
    }
    Ok(tokens)
}

/// What the model looks at while it reads `ids`.
fn seen(opened: &Opened, model: &TextModel, text: &str, ids: &[u32]) -> Result<Trace, Failure> {
    let encoded = Encoding {
        ids: ids.to_vec(),
        ..Encoding::default()
    };
    Ok(opened.look(model, text, &encoded)?)
}

/// Prints what was not printed yet, and writes pictures.
fn finish(
    options: &Generate,
    opened: &Opened,
    model: &TextModel,
    all: &[Text],
    mut shown: Shown,
) -> Result<(), Failure> {
    let mut out = Output::standard();
    let printed = all.len() == 1 && options.beam.is_none();
    let mut failed = None;
    for (line, text) in (1..).zip(all) {
        if !options.show.json && !printed {
            let prompt = if options.chat { "" } else { &text.prompt };
            print(&mut out, &format!("{prompt}{}\n", text.written))?;
        }
        let mut trace = None;
        if shown.is_wanted() {
            match seen(opened, model, &text.prompt, &text.ids) {
                Ok(seen) => trace = Some(seen),
                // What was written is printed all the same.
                Err(error) => failed = Some(error),
            }
        }
        if options.show.json {
            let mut line = json!({
                "prompt": text.prompt,
                "text": text.written,
                "tokens": text.ids.len(),
                "ended": text.ended,
            });
            if let Some(maps) = trace.as_ref().and_then(|trace| shown.json(trace)) {
                line["maps"] = maps;
            }
            out.line(&line.to_string())?;
        }
        if let Some(trace) = &trace {
            shown.push(&mut out, line, trace)?;
        }
    }
    out.flush()?;
    match failed {
        None => shown.write(),
        Some(error) => shown.end(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_no_control_characters() {
        let written = "a\tb\u{1b}[31m\u{9b}c\n";
        assert_eq!(without_controls(written, false), written);
        assert_eq!(
            without_controls(written, true),
            "a\tb\u{fffd}[31m\u{fffd}c\n"
        );
    }
}
