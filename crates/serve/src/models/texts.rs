//! Models that read a text, as the viewer asks them.

use std::ops::ControlFlow;

use burn::tensor::Device;
use regard_kernels::{
    Kind as Storage, loss,
    stack::{ChangedHead, QueryObserver},
};
use regard_models::{
    generate::{Prompt, Recorder, SampleConfig, SearchTree, sample},
    gradient::{OutputGradients, of_text_model},
    pretrained::{EncoderOutput, Encoding, Heads, TextEncoder},
};
use regard_trace::Kind;
use regard_train::opened::{Opened, TextModel, input_of};

use super::{LISTED, Told, answered, best_of, generation, kind_of, no_query, products, sentence};
use crate::{
    Ablation, Continuation, Gradients, Input, InputKind, Model, QueryKeys, QueryPlace, Seen,
};

/// What a model read, its own continuation included.
struct Reading {
    text: String,
    encoded: Encoding,
    /// How many of its tokens were given, not written.
    given: usize,
    tree: Option<SearchTree>,
    written: String,
}

/// Reads a text, and says what may come next, or stand at its masked word; a causal model writes on if it is asked to.
pub struct Texts {
    name: String,
    opened: Opened,
    model: TextModel,
}

impl Texts {
    /// Of a folder or run that was opened.
    pub fn new(name: &str, opened: Opened, model: TextModel) -> Self {
        let name = name.to_owned();
        Self {
            name,
            opened,
            model,
        }
    }

    /// What the model reads: the text with its own token for a masked word, and what it writes on.
    fn read(&self, input: &Input) -> Result<Reading, Told> {
        let text = &input.text;
        let special = self.opened.tokenizer.special();
        let mask = special.mask.and_then(|id| self.opened.tokenizer.token(id));
        let text = match &mask {
            Some(token) => text.replace("[MASK]", token).replace("<mask>", token),
            None => text.to_owned(),
        };
        let encoded = self.opened.tokenizer.encode(&text, true)?;
        if encoded.ids.is_empty() {
            return Err("the text has no tokens; type some words".into());
        }
        let mut reading = Reading {
            text,
            given: encoded.ids.len(),
            encoded,
            tree: None,
            written: String::new(),
        };
        if input.continuation.tokens > 0 && self.writes() {
            self.write(&mut reading, &input.continuation)?;
        }
        Ok(reading)
    }

    fn writes(&self) -> bool {
        !matches!(self.model, TextModel::Reads(_))
    }

    /// Writes on, greedily or drawn.
    fn write(&self, reading: &mut Reading, wanted: &Continuation) -> Result<(), Told> {
        let tokenizer = &self.opened.tokenizer;
        let ids = &mut reading.encoded.ids;
        let stop = tokenizer.special().eos.clone();
        // An encoder's tokenizer ends a text; here it goes on.
        if ids.len() > 1 && ids.last().is_some_and(|id| stop.contains(id)) {
            ids.pop();
        }
        reading.given = ids.len();
        let model = self.opened.causal(&self.model)?;
        let config = SampleConfig {
            temperature: wanted.temperature,
            seed: wanted.seed,
            limit: wanted.tokens.min(model.context().saturating_sub(ids.len())),
            stop,
            ..SampleConfig::default()
        };
        let stepper = model.read(&[&ids[..ids.len() - 1]], Storage::F32)?;
        let mut recorder = Recorder::new(stepper);
        let prompt = Prompt {
            tokens: ids.clone(),
            stream: 0,
        };
        let each = |_, _| ControlFlow::Continue(());
        let found = sample(&mut recorder, &[prompt], &config, each)?;
        for one in found {
            reading.tree = Some(recorder.tree(0, &[one.with_end()], LISTED));
            reading.written = tokenizer.decode(&one.tokens, true)?;
            ids.extend(one.tokens);
        }
        Ok(())
    }

    /// Changes these heads, and no others.
    fn change(&mut self, ablation: &Ablation) -> Result<(), String> {
        let changed = ablation.heads.iter().map(|one| {
            kind_of(&one.map, &[Kind::SelfAttention])?;
            Ok(ChangedHead {
                layer: one.layer,
                cross: false,
                head: one.head,
                change: (&one.change).into(),
            })
        });
        let changed = changed.collect::<Result<Vec<ChangedHead>, String>>()?;
        match self.model.stack_mut() {
            Some(stack) => stack.change_heads(changed).map_err(sentence),
            None => Ok(()),
        }
    }

    /// What the model looks at, and what it says.
    fn seen(&self, input: &Input) -> Result<Seen, Told> {
        let Reading {
            text,
            encoded,
            tree,
            written,
            ..
        } = self.read(input)?;
        let mut trace = self.opened.look(&self.model, &text, &encoded)?;
        if let Some(tree) = tree {
            trace.target.clone_from(&written);
            let text = |id| (self.opened.tokenizer.decode(&[id], false)).map_err(sentence);
            let generation = generation(tree, vec![trace.clone()], text)?;
            let first = generation.proposals.iter();
            let first = first.filter(|one| one.parent.is_none());
            let next = first.map(|one| (one.text.clone(), one.probability));
            return Ok(Seen {
                alternatives: best_of(next),
                generation: Some(generation),
                ..Seen::new(trace, written)
            });
        }
        if let TextModel::Reads(model) = &self.model
            && let Some(Heads::Classes(labels)) = model.purpose()
        {
            let scores = classes(model, &encoded)?.into_iter().map(f64::from);
            return Ok(answered(trace, best_of(labels.iter().cloned().zip(scores))));
        }
        let likely = match &self.model {
            TextModel::Reads(model) => match self.masked(&encoded) {
                Some(place) => filled(model, &encoded, place)?,
                None => vec![],
            },
            _ => self.next(&encoded.ids)?,
        };
        let words = likely.into_iter().map(|(id, probability)| {
            let word = self.opened.tokenizer.decode(&[id], false)?;
            Ok((word, probability))
        });
        let words: Vec<(String, f64)> = words.collect::<Result<_, Told>>()?;
        Ok(answered(trace, best_of(words.into_iter())))
    }

    /// The likeliest tokens after `ids`.
    fn next(&self, ids: &[u32]) -> Result<Vec<(u32, f64)>, Told> {
        let mut likely = vec![];
        let model = self.opened.causal(&self.model)?;
        model.predict(ids, ids.len() - 1, &mut |_, logits| {
            likely = probabilities(logits);
        })?;
        Ok(likely)
    }

    /// The place of the first mask.
    fn masked(&self, encoded: &Encoding) -> Option<usize> {
        let mask = self.opened.tokenizer.special().mask?;
        encoded.ids.iter().position(|&token| token == mask)
    }

    /// The gradients of the next token, of what was written, of the word for the mask or of the class.
    fn gradients_of(&self, input: &Input) -> Result<(String, OutputGradients), Told> {
        let Reading {
            encoded,
            given,
            written,
            ..
        } = self.read(input)?;
        let (ids, device) = (&encoded.ids, Device::flex());
        let none = || {
            let message = "this text has no output whose probability could be followed: write [MASK] in the place of a word, or ask a model \
                           that writes or that gives a class";
            Told::from(message)
        };
        let TextModel::Reads(model) = &self.model else {
            let mut wanted: Vec<(usize, u32)> =
                (given..ids.len()).map(|at| (at - 1, ids[at])).collect();
            let mut output = written;
            if wanted.is_empty() {
                let next = self.next(ids)?.first().ok_or_else(none)?.0;
                wanted.push((ids.len() - 1, next));
                output = self.opened.tokenizer.decode(&[next], false)?;
            }
            let found = match &self.model {
                TextModel::Writes(model) => model.gradients(ids, &wanted, &device)?,
                TextModel::Plain(model) => of_text_model(model.model(), ids, &wanted, &device)?,
                TextModel::Reads(_) => return Err(none()),
            };
            return Ok((output, found));
        };
        let (output, chosen) = match (model.purpose(), self.masked(&encoded)) {
            (Some(Heads::Classes(labels)), _) => {
                let scores = classes(model, &encoded)?;
                let all = scores.iter().zip(labels).enumerate();
                let best = all.max_by(|(_, (a, _)), (_, (b, _))| a.total_cmp(b));
                let (class, (_, label)) = best.ok_or_else(none)?;
                (label.clone(), EncoderOutput::Class(class))
            }
            (_, Some(place)) => {
                let likely = filled(model, &encoded, place)?;
                let token = likely.first().ok_or_else(none)?.0;
                let word = self.opened.tokenizer.decode(&[token], false)?;
                (word, EncoderOutput::Token { place, token })
            }
            _ => return Err(none()),
        };
        Ok((
            output,
            model.gradients(input_of(&encoded), chosen, &device)?,
        ))
    }
}

/// The scores of the classes of a text.
fn classes(model: &TextEncoder, encoded: &Encoding) -> Result<Vec<f32>, Told> {
    let states = model.states(&[input_of(encoded)], None)?;
    Ok(model.classes(&states[0]).unwrap_or_default())
}

/// The likeliest tokens in the place of a masked one; none from a model that fills no masks.
fn filled(model: &TextEncoder, encoded: &Encoding, place: usize) -> Result<Vec<(u32, f64)>, Told> {
    let states = model.states(&[input_of(encoded)], None)?;
    let size = model.size();
    let likely = model.likeliest(&states[0][place * size..][..size], LISTED);
    Ok(likely.unwrap_or_default())
}

/// The likeliest tokens with their probabilities, from `logits [vocabulary]`.
fn probabilities(logits: &mut [f32]) -> Vec<(u32, f64)> {
    let classes = logits.len();
    loss::log_softmax(logits, classes);
    let mut all: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all.truncate(LISTED);
    all.into_iter()
        .map(|(id, logarithm)| (id, f64::from(logarithm).exp()))
        .collect()
}

impl Model for Texts {
    fn name(&self) -> &str {
        &self.name
    }

    fn input(&self) -> InputKind {
        InputKind::Text
    }

    fn changes_heads(&self) -> bool {
        self.model.stack().is_some()
    }

    fn continues(&self) -> bool {
        self.writes()
    }

    fn look(&mut self, input: &Input, ablation: &Ablation) -> Result<Seen, String> {
        self.change(ablation)?;
        self.seen(input).map_err(sentence)
    }

    fn shows_queries(&self) -> bool {
        self.model.stack().is_some()
    }

    fn query(
        &mut self,
        input: &Input,
        ablation: &Ablation,
        place: &QueryPlace,
    ) -> Result<QueryKeys, String> {
        kind_of(&place.map, &[Kind::SelfAttention])?;
        self.change(ablation)?;
        let encoded = self.read(input).map_err(sentence)?.encoded;
        let mut observer = QueryObserver::new(place.layer, false, place.head, place.query);
        let read = self.model.observe(&encoded, &mut observer);
        read.map_err(sentence)?;
        observer.found().ok_or_else(no_query)
    }

    fn gradients(&mut self, input: &Input, _rank: usize) -> Result<Gradients, String> {
        self.change(&Ablation::default())?;
        let (output, found) = self.gradients_of(input).map_err(sentence)?;
        Ok(products(output, found, Kind::SelfAttention))
    }
}
