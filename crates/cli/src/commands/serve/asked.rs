//! Models as the viewer asks them.

use std::fmt::Display;

use regard_images::{Decoding, Image};
use regard_kernels::stack::{ChangedHead, HeadChange};
use regard_models::pretrained::Heads;
use regard_serve::{Ablation, Alternative, Change, Input, InputKind, Model, Seen};
use regard_train::{ImageCaptioner, ImageClassifier, QuestionAnswerer, Translator};

use super::pretrained::{Opened, TextModel, input_of};
use crate::failure::Failure;

/// Alternatives that the page lists.
const LISTED: usize = 8;

/// Why there is no answer, for the person at the page.
fn sentence(error: impl Display) -> String {
    error.to_string()
}

fn failed(failure: Failure) -> String {
    match failure {
        Failure::Usage(message) | Failure::Interrupted(message) => message,
        Failure::Error(error) => sentence(error),
        Failure::ClosedPipe => "the output was closed".to_owned(),
    }
}

/// The best of `all`, largest first.
fn best_of(all: impl Iterator<Item = (String, f64)>) -> Vec<Alternative> {
    let mut all: Vec<Alternative> = all
        .map(|(text, probability)| Alternative { text, probability })
        .collect();
    all.sort_by(|a, b| b.probability.total_cmp(&a.probability));
    all.truncate(LISTED);
    all
}

/// An answer of which there are several, the best first.
fn answered(trace: regard_trace::Trace, alternatives: Vec<Alternative>) -> Seen {
    let output = alternatives
        .first()
        .map_or(String::new(), |best| best.text.clone());
    Seen {
        alternatives,
        ..Seen::new(trace, output)
    }
}

fn image(bytes: &[u8], decoding: &Decoding) -> Result<Image, String> {
    Image::decode(bytes, "the image", decoding).map_err(sentence)
}

/// A model with its name.
pub struct Named<M> {
    name: String,
    model: M,
}

impl<M> Named<M> {
    pub fn new(name: &str, model: M) -> Self {
        let name = name.to_owned();
        Self { name, model }
    }
}

/// Translates a text.
pub type Translations = Named<Translator>;

impl Model for Translations {
    fn name(&self) -> &str {
        &self.name
    }

    fn input(&self) -> InputKind {
        InputKind::Text
    }

    fn changes_heads(&self) -> bool {
        false
    }

    fn look(&mut self, input: &Input, _: &Ablation) -> Result<Seen, String> {
        let settings = self.model.settings().clone();
        let found = self.model.translate(&[input.text.as_str()], &settings);
        let found = found.map_err(sentence)?.into_iter().next();
        let n_best = found.map_or(vec![], |found| found.n_best);
        let trace = n_best.first().map(|best| best.trace.clone());
        let trace = trace.ok_or("there is no translation; type some words")?;
        let all = n_best
            .into_iter()
            .map(|one| (one.text, one.log_probability.exp()));
        // In the order of the search, whose length penalty may prefer a less likely one.
        let all = all.map(|(text, probability)| Alternative { text, probability });
        Ok(answered(trace, all.collect()))
    }
}

/// Answers a question about an image.
pub type Questions = Named<QuestionAnswerer>;

impl Model for Questions {
    fn name(&self) -> &str {
        &self.name
    }

    fn input(&self) -> InputKind {
        InputKind::ImageAndQuestion
    }

    fn changes_heads(&self) -> bool {
        false
    }

    fn look(&mut self, input: &Input, _: &Ablation) -> Result<Seen, String> {
        let description = self.model.description();
        let image = image(&input.image, &description.preparation.decoding())?;
        let found = self
            .model
            .ask(&[image], &[(0, &input.text)])
            .map_err(sentence)?;
        let (found, trace) = found.into_iter().next().ok_or("ask a question")?;
        let answers = description.answers.iter().cloned();
        let scores = found.scores.iter().map(|&score| f64::from(score));
        Ok(answered(trace, best_of(answers.zip(scores))))
    }
}

/// Describes an image.
pub type Captions = Named<ImageCaptioner>;

impl Model for Captions {
    fn name(&self) -> &str {
        &self.name
    }

    fn input(&self) -> InputKind {
        InputKind::Image
    }

    fn changes_heads(&self) -> bool {
        false
    }

    fn look(&mut self, input: &Input, _: &Ablation) -> Result<Seen, String> {
        let image = image(
            &input.image,
            &self.model.description().preparation.decoding(),
        )?;
        let settings = self.model.settings().clone();
        let found = self.model.caption(&[image], &settings).map_err(sentence)?;
        let n_best = found.into_iter().next().unwrap_or_default();
        let trace = n_best.first().map(|best| best.trace.clone());
        let trace = trace.ok_or("the model has no caption for this image")?;
        let all = n_best.into_iter().map(|one| Alternative {
            text: one.text,
            probability: one.log_probability.exp(),
        });
        Ok(answered(trace, all.collect()))
    }
}

/// Gives an image a class.
pub type Images = Named<ImageClassifier>;

impl Model for Images {
    fn name(&self) -> &str {
        &self.name
    }

    fn input(&self) -> InputKind {
        InputKind::Image
    }

    fn changes_heads(&self) -> bool {
        false
    }

    fn look(&mut self, input: &Input, _: &Ablation) -> Result<Seen, String> {
        let description = self.model.description();
        let image = image(&input.image, &description.preparation.decoding())?;
        let found = self.model.look(&[image]).map_err(sentence)?;
        let (found, trace) = found.into_iter().next().ok_or("choose an image")?;
        let labels = description.labels.iter().cloned();
        let scores = found.probabilities.iter().map(|&p| f64::from(p));
        Ok(answered(trace, best_of(labels.zip(scores))))
    }
}

/// Reads a text, and says what may come next, or stand at its masked word.
pub struct Texts {
    name: String,
    opened: Opened,
    model: TextModel,
}

impl Texts {
    pub fn new(name: &str, opened: Opened, model: TextModel) -> Self {
        let name = name.to_owned();
        Self {
            name,
            opened,
            model,
        }
    }

    /// What the model looks at, and what it says.
    fn seen(&self, text: &str) -> Result<Seen, Failure> {
        let special = self.opened.tokenizer.special();
        let mask = special
            .mask
            .and_then(|id| self.opened.tokenizer.token(id).map(|token| (id, token)));
        let text = match &mask {
            Some((_, token)) => text.replace("[MASK]", token).replace("<mask>", token),
            None => text.to_owned(),
        };
        let encoded = self.opened.tokenizer.encode(&text, true)?;
        if encoded.ids.is_empty() {
            return Err(Failure::Usage(
                "the text has no tokens; type some words".to_owned(),
            ));
        }
        let trace = self.opened.look(&self.model, &text, &encoded)?;
        let likely: Vec<(u32, f64)> = match &self.model {
            TextModel::Reads(model) => {
                let place =
                    mask.and_then(|(id, _)| encoded.ids.iter().position(|&token| token == id));
                let filled = match (place, model.purpose()) {
                    (Some(place), Some(Heads::MaskedTokens)) => {
                        let states = model.states(&[input_of(&encoded)], None)?;
                        let size = model.size();
                        model.likeliest(&states[0][place * size..][..size], LISTED)
                    }
                    _ => None,
                };
                filled.unwrap_or_default()
            }
            model => {
                let last = encoded.ids.len() - 1;
                let mut likely = vec![];
                self.opened
                    .causal(model)?
                    .predict(&encoded.ids, last, &mut |_, logits| {
                        likely = probabilities(logits);
                    })?;
                likely
            }
        };
        let words = likely.into_iter().map(|(id, probability)| {
            let word = self.opened.tokenizer.decode(&[id], false)?;
            Ok((word, probability))
        });
        let words: Vec<(String, f64)> = words.collect::<Result<_, Failure>>()?;
        Ok(answered(trace, best_of(words.into_iter())))
    }
}

/// The likeliest tokens with their probabilities.
fn probabilities(logits: &[f32]) -> Vec<(u32, f64)> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exponentials = logits.iter().map(|x| f64::from(x - largest).exp());
    let sum: f64 = exponentials.clone().sum();
    let mut all: Vec<(u32, f64)> = (0..).zip(exponentials.map(|x| x / sum)).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all.truncate(LISTED);
    all
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

    fn look(&mut self, input: &Input, ablation: &Ablation) -> Result<Seen, String> {
        let changed = ablation.heads.iter().map(|one| ChangedHead {
            layer: one.layer,
            cross: false,
            head: one.head,
            change: match one.change {
                Change::Off => HeadChange::Off,
                Change::Uniform => HeadChange::Uniform,
            },
        });
        let changed: Vec<ChangedHead> = changed.collect();
        if let Some(stack) = self.model.stack_mut() {
            stack.change_heads(changed).map_err(sentence)?;
        }
        self.seen(&input.text).map_err(failed)
    }
}
