//! What models are trained for: a file a task.
//!
//! A [`Task`] says what a recipe must name, reads the data, makes models, gives the loss of a batch, judges a model, and says
//! what a model file holds beside the weights. The [learner](crate::learner) and the [registry](crate::Registry) know nothing
//! else of it, so that a program can add its own.

pub mod classification;
pub mod translation;

use std::fmt::Debug;

use burn::{
    module::Module,
    tensor::{Device, Tensor},
};
use regard_config::{Check, Config};
use regard_models::ModelError;
use regard_nn::weights::Arrays;

pub use classification::Classification;
pub use translation::Translation;

use crate::{
    corpus::{Batches, FilterReport},
    error::TrainError,
    learner::events::Quality,
    model_file::{Header, Metadata, ModelFileError},
    recipe::Recipe,
    tokenizer::TokenizerPair,
};

/// A kind of data, a kind of model, and how the one is judged on the other.
pub trait Task: Debug + Send + Sync + 'static {
    /// What a model of this task is, in messages.
    const MODEL: &'static str;

    /// What it does, in messages: after a name.
    const DOES: &'static str;

    /// What is trained.
    type Model: Module;

    /// What a model file holds beside the weights.
    type Description: Clone + Debug;

    /// What is trained on.
    type Data;

    /// Fills an example of a recipe with what this task needs of it.
    fn example(&self, recipe: &mut Recipe);

    /// Checks what this task needs of a recipe, whose every range holds.
    fn check(&self, recipe: &Recipe, check: &mut Check);

    /// Reads the data. What was learned from it before (tokenizers, labels) is taken from the `former` description, if there
    /// is one.
    ///
    /// # Errors
    /// Data that is wrong.
    fn load(
        &self,
        recipe: &Recipe,
        former: Option<Self::Description>,
    ) -> Result<(Self::Data, Self::Description), TrainError>;

    /// Draws a model.
    ///
    /// # Errors
    /// Sizes that do not go together.
    fn init(
        &self,
        description: &Self::Description,
        seed: u64,
        device: &Device,
    ) -> Result<Self::Model, ModelError>;

    /// A model for the weights `arrays` of a file, which will be given to it: no weight needs to be drawn, and no size of the
    /// description, which came with the file, is to be believed unless the arrays bear it out.
    ///
    /// # Errors
    /// Sizes that do not go together, or that no model of these weights has.
    fn without_values(
        &self,
        description: &Self::Description,
        arrays: &Arrays,
        device: &Device,
    ) -> Result<Self::Model, ModelError>;

    /// The description as the metadata of a file.
    fn metadata(&self, description: &Self::Description) -> Metadata;

    /// The description from the metadata of the file called `name`, whose `header` is read already.
    ///
    /// # Errors
    /// What is missing, does not parse or does not go together.
    fn describe(
        &self,
        header: Header,
        metadata: &Metadata,
        name: &str,
    ) -> Result<Self::Description, ModelFileError>;

    /// What there is to train on.
    fn contents<'a>(
        &self,
        data: &'a Self::Data,
        description: &'a Self::Description,
    ) -> Contents<'a>;

    /// The loss of the training examples at `rows`; everything random follows from the seed and the
    /// number of the update.
    fn loss(&self, data: &Self::Data, model: &Self::Model, update: &Update<'_>) -> BatchLoss;

    /// Judges `model`, which lives on `device` without autodiff; nothing without validation data.
    ///
    /// # Errors
    /// A model that cannot be judged.
    fn validate(
        &self,
        data: &Self::Data,
        description: &Self::Description,
        model: &Self::Model,
        recipe: &Recipe,
        device: &Device,
    ) -> Result<Option<Verdict>, TrainError>;
}

/// A task for models that `C` describes.
pub trait TaskFor<C: Config>: Task {
    /// The task.
    fn of() -> Self;
}

/// What a task has to train on.
pub struct Contents<'a> {
    /// What one example is called, in the plural.
    pub examples: &'static str,
    /// Text to ids and back.
    pub tokenizers: &'a TokenizerPair,
    /// The training examples by length.
    pub batches: &'a Batches,
    /// What became of the corpus.
    pub filtered: &'a FilterReport,
    /// Examples of the validation set.
    pub validation: usize,
}

/// One update.
pub struct Update<'a> {
    /// What the run is made by.
    pub recipe: &'a Recipe,
    /// The training examples.
    pub rows: &'a [usize],
    /// The update's number, counted from 1.
    pub step: u64,
    /// With autodiff.
    pub training: &'a Device,
    /// The same device without.
    pub device: &'a Device,
    /// What the update before left in [`BatchLoss::baseline`].
    pub baseline: Option<f32>,
}

/// The loss of a batch.
pub struct BatchLoss {
    /// What is minimised, `[1]`.
    pub loss: Tensor<1>,
    /// The sum of the negative log-likelihoods, nats.
    pub negative_log_likelihood: f64,
    /// What the mean is over: target tokens, or sentences.
    pub predictions: usize,
    /// Tokens that were processed, for the speed.
    pub tokens: usize,
    /// The running mean of the reward, where a model learns by reward; saved with the run.
    pub baseline: Option<f32>,
}

/// How a model did.
pub struct Verdict {
    /// Nats per prediction.
    pub loss: f64,
    /// BLEU or accuracy.
    pub quality: Quality,
    /// What it made of the validation set, line by line.
    pub lines: Vec<String>,
}
