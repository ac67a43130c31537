//! What a session needs to know of the task it trains for; the loop over updates is the same for all.

use std::collections::HashMap;

use burn::{
    module::Module,
    tensor::{Device, Tensor},
};

use super::{TrainError, events::Quality};
use crate::{
    corpus::{Batches, FilterReport},
    recipe::Recipe,
    tokenizer::TokenizerPair,
};

/// A kind of data, a kind of model, and how the one is judged on the other.
pub(super) trait Task: Sized {
    /// What is trained.
    type Model: Module;

    /// Reads the data and learns the tokenizers.
    fn start(recipe: &Recipe) -> Result<Self, TrainError>;

    /// Reads the data; tokenizers and whatever else was learned before comes from the `metadata` of the
    /// checkpoint called `name`.
    fn resume(
        recipe: &Recipe,
        metadata: &HashMap<String, String>,
        name: &str,
    ) -> Result<Self, TrainError>;

    /// Draws a model.
    fn init(&self, seed: u64, device: &Device) -> Result<Self::Model, TrainError>;

    /// What a model file says beside the weights.
    fn metadata(&self) -> HashMap<String, String>;

    /// What there is to train on.
    fn contents(&self) -> Contents<'_>;

    /// The loss of the training examples at `rows`; everything random follows from the seed and the
    /// number of the update.
    fn loss(&self, model: &Self::Model, update: &Update<'_>) -> BatchLoss;

    /// Judges `model`, which lives on `device` without autodiff; nothing without validation data.
    fn validate(
        &self,
        model: &Self::Model,
        recipe: &Recipe,
        device: &Device,
    ) -> Result<Option<Verdict>, TrainError>;
}

/// What a task has to train on.
pub(super) struct Contents<'a> {
    /// The architecture's name.
    pub(super) model: &'static str,
    /// What one example is called, in the plural.
    pub(super) examples: &'static str,
    pub(super) tokenizers: &'a TokenizerPair,
    pub(super) batches: &'a Batches,
    /// What became of the corpus.
    pub(super) filtered: &'a FilterReport,
    /// Examples of the validation set.
    pub(super) validation: usize,
}

/// One update.
pub(super) struct Update<'a> {
    pub(super) recipe: &'a Recipe,
    /// The training examples.
    pub(super) rows: &'a [usize],
    /// The update's number, counted from 1.
    pub(super) step: u64,
    /// With autodiff.
    pub(super) training: &'a Device,
    /// The same device without.
    pub(super) device: &'a Device,
}

/// The loss of a batch.
pub(super) struct BatchLoss {
    /// What is minimised, `[1]`.
    pub(super) loss: Tensor<1>,
    /// The sum of the negative log-likelihoods, nats.
    pub(super) negative_log_likelihood: f64,
    /// What the mean is over: target tokens, or sentences.
    pub(super) predictions: usize,
    /// Tokens that were processed, for the speed.
    pub(super) tokens: usize,
}

/// How a model did.
pub(super) struct Verdict {
    /// Nats per prediction.
    pub(super) loss: f64,
    /// BLEU or accuracy.
    pub(super) quality: Quality,
    /// What it made of the validation set, line by line.
    pub(super) lines: Vec<String>,
}
