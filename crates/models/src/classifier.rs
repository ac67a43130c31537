//! The role of whatever gives a sentence a label.

use burn::{
    module::Module,
    tensor::{Device, Tensor},
};
use regard_config::Config;
use regard_nn::{dropout::Noise, initialize::Initializer};
use serde::{Deserialize, Serialize};

use crate::{
    batch::SourceBatch,
    error::{ModelError, checked},
    vocabulary::Vocabulary,
};

/// What a classifier reads and what it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassifierSizes {
    /// What is read.
    pub vocabulary: Vocabulary,
    /// The number of classes.
    pub classes: usize,
}

/// Sizes and choices of a [`Classifier`].
pub trait ClassifierConfig: Config {
    /// What they describe.
    type Model: Classifier;

    /// Draws a model; every range holds, and there are at least 2 classes.
    fn draw(&self, sizes: &ClassifierSizes, initializer: &mut Initializer) -> Self::Model;

    /// Draws a model from `seed`.
    ///
    /// # Errors
    /// What [`Config::check`] finds; fewer than 2 classes.
    fn init(
        &self,
        sizes: &ClassifierSizes,
        seed: u64,
        device: &Device,
    ) -> Result<Self::Model, ModelError> {
        checked(self)?;
        if sizes.classes < 2 {
            let found = sizes.classes;
            return Err(ModelError(format!(
                "the number of classes is {found}; expected at least 2"
            )));
        }
        Ok(self.draw(sizes, &mut Initializer::new(seed, device)))
    }
}

/// A model that gives a sentence a label.
pub trait Classifier: Module + Sync + 'static {
    /// What it reads.
    fn vocabulary(&self) -> Vocabulary;

    /// Classifies a batch.
    fn forward(&self, source: &SourceBatch, noise: &mut Noise) -> Classified;
}

/// What a classifier says of a batch.
#[derive(Debug, Clone)]
pub struct Classified {
    /// `[batch, classes]`.
    pub logits: Tensor<2>,
    /// What is to be added to the loss, `[1]`.
    pub penalty: Option<Tensor<1>>,
    /// What was looked at, layer by layer.
    pub maps: Vec<ClassifierMap>,
}

/// What a classifier looked at.
#[derive(Debug, Clone)]
pub struct ClassifierMap {
    /// What a picture calls it.
    pub name: &'static str,
    /// Who asked: every word of the sentence, or else the verdict alone.
    pub by_words: bool,
    /// `[batch, heads, queries, words]`.
    pub weights: Tensor<4>,
}
