//! The role of models that give a sentence a label.

use burn::{module::Module, tensor::Tensor};
use regard_nn::dropout::DropoutRng;
use serde::{Deserialize, Serialize};

use crate::{batch::SourceBatch, error::ModelError, role::Sizes, vocabulary::Vocabulary};

/// The vocabulary of a classifier, and its number of classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassifierSizes {
    /// The vocabulary of the sentences.
    pub vocabulary: Vocabulary,
    /// The number of classes.
    pub classes: usize,
}

impl Sizes for ClassifierSizes {
    fn check(&self) -> Result<(), ModelError> {
        match self.classes {
            found @ (0 | 1) => Err(ModelError(format!(
                "the number of classes is {found}; expected at least 2"
            ))),
            _ => Ok(()),
        }
    }
}

/// A model that gives a sentence a label.
pub trait Classifier: Module + Sync + 'static {
    /// The vocabulary of its sentences.
    fn vocabulary(&self) -> Vocabulary;

    /// Whether its batches have a mark of start before each sentence ([`SourceBatch::with_start`]).
    fn reads_start(&self) -> bool {
        false
    }

    /// Classifies a batch.
    fn forward(&self, source: &SourceBatch, noise: &mut DropoutRng) -> Classified;

    /// Every weight of every head while it reads a batch, layer by layer; `None` for models whose [`Classified::maps`] have them.
    fn look(&self, _source: &SourceBatch) -> Option<Vec<ClassifierMap>> {
        None
    }
}

/// The output of a classifier for a batch.
#[derive(Debug, Clone)]
pub struct Classified {
    /// `[batch, classes]`.
    pub logits: Tensor<2>,
    /// A term to add to the loss, `[1]`.
    pub penalty: Option<Tensor<1>>,
    /// Attention maps, layer by layer.
    pub maps: Vec<ClassifierMap>,
}

/// An attention map of a classifier.
#[derive(Debug, Clone)]
pub struct ClassifierMap {
    /// Its name in a picture.
    pub name: &'static str,
    /// Whether the queries are the words of the sentence; if not, there is a single query, for the label.
    pub by_words: bool,
    /// `[batch, heads, queries, words]`.
    pub weights: Tensor<4>,
    /// Whether a row sums to 1.
    pub is_normalized: bool,
}
