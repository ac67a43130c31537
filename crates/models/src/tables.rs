//! Embedding tables and the output layer, tied or not.
//!
//! `E y` looks a token up; `logits = t W_o + b`. With [`Tie::Target`] `W_o` is the transposed target
//! table (Press & Wolf 2017); with [`Tie::All`] source, target and output share one table, which needs
//! a joint vocabulary.

use burn::{
    module::{Module, Param},
    nn::{Embedding, Linear},
    tensor::{Int, Tensor},
};
use regard_nn::{bridge::OutputWeights, initialize::Initializer};
use serde::{Deserialize, Serialize};

use crate::Scored;

/// Which tables are one and the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum Tie {
    /// Three tables.
    #[default]
    None,
    /// Target embedding and output layer share one.
    Target,
    /// Source embedding, target embedding and output layer share one.
    All,
}

/// Source table, target table and output layer.
#[derive(Module, Debug)]
pub struct Tables {
    /// `[source vocabulary, embedding]`; absent when everything is tied.
    pub source: Option<Embedding>,
    /// `[target vocabulary, embedding]`.
    pub target: Embedding,
    /// `W_o [readout, target vocabulary]`; absent when tied.
    pub output: Option<Linear>,
    /// The output bias of a tied output layer, `[target vocabulary]`.
    pub output_bias: Option<Param<Tensor<1>>>,
}

/// The sizes of [`Tables`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TablesConfig {
    /// Entries of the source vocabulary.
    pub source_vocabulary: usize,
    /// Entries of the target vocabulary.
    pub target_vocabulary: usize,
    /// The size of one embedding.
    pub embedding: usize,
    /// The size of what the output layer reads.
    pub readout: usize,
    /// Which tables are shared.
    pub tie: Tie,
}

impl TablesConfig {
    /// Checks that the sizes allow the tie.
    ///
    /// # Errors
    /// A sentence that names both sizes.
    pub fn check(&self) -> Result<(), String> {
        if self.tie != Tie::None && self.readout != self.embedding {
            return Err(format!(
                "tied embeddings need the output layer to read vectors of the embedding's size; it reads {}, the embedding has {}",
                self.readout, self.embedding
            ));
        }
        if self.tie == Tie::All && self.source_vocabulary != self.target_vocabulary {
            return Err(format!(
                "tie = \"all\" needs a joint vocabulary; source has {} entries, target {}",
                self.source_vocabulary, self.target_vocabulary
            ));
        }
        Ok(())
    }

    /// Draws the tables: embeddings from `N(0, 0.1²)`, an output layer of its own from
    /// `U(-1/√readout, 1/√readout)`.
    pub fn init(&self, initializer: &mut Initializer) -> Tables {
        let output =
            |init: &mut Initializer| init.linear(self.readout, self.target_vocabulary, true);
        self.draw(0.1, output, initializer)
    }

    /// Draws the tables as Bahdanau 2014, App. B: weights from `N(0, 0.01²)`, biases 0.
    pub fn as_in_paper(&self, initializer: &mut Initializer) -> Tables {
        let output = |init: &mut Initializer| {
            init.normal_linear(self.readout, self.target_vocabulary, true, 0.01)
        };
        self.draw(0.01, output, initializer)
    }

    /// As [`TablesConfig::init`], but with embeddings from `N(0, 1/embedding)`, for models that multiply what they look up by
    /// `√embedding` (Vaswani 2017, section 3.4).
    pub fn unit_variance(&self, initializer: &mut Initializer) -> Tables {
        let output =
            |init: &mut Initializer| init.linear(self.readout, self.target_vocabulary, true);
        self.draw(1.0 / (self.embedding as f32).sqrt(), output, initializer)
    }

    fn draw(
        &self,
        deviation: f32,
        output: impl FnOnce(&mut Initializer) -> Linear,
        initializer: &mut Initializer,
    ) -> Tables {
        let table =
            |entries, init: &mut Initializer| init.embedding(entries, self.embedding, deviation);
        Tables {
            source: (self.tie != Tie::All).then(|| table(self.source_vocabulary, initializer)),
            target: table(self.target_vocabulary, initializer),
            output: (self.tie == Tie::None).then(|| output(initializer)),
            output_bias: (self.tie != Tie::None)
                .then(|| initializer.zeros([self.target_vocabulary])),
        }
    }
}

impl Tables {
    /// `[time, batch]` source ids -> `[time, batch, embedding]`.
    pub fn embed_source(&self, ids: Tensor<2, Int>) -> Tensor<3> {
        self.source.as_ref().unwrap_or(&self.target).forward(ids)
    }

    /// `[time, batch]` target ids -> `[time, batch, embedding]`.
    pub fn embed_target(&self, ids: Tensor<2, Int>) -> Tensor<3> {
        self.target.forward(ids)
    }

    /// `[rows, readout]` -> logits `[rows, target vocabulary]`.
    pub fn logits(&self, readout: Tensor<2>) -> Tensor<2> {
        self.output_weights().logits(readout)
    }

    /// The output layer, be it tied or not.
    pub fn output_weights(&self) -> OutputWeights {
        match &self.output {
            Some(output) => OutputWeights {
                weight: output.weight.val(),
                is_table: false,
                bias: output.bias.as_ref().map(Param::val),
            },
            None => OutputWeights {
                weight: self.target.weight.val(),
                is_table: true,
                bias: self.output_bias.as_ref().map(Param::val),
            },
        }
    }

    /// The readouts `[time · batch, readout]` of all steps as what [`crate::TranslationModel::forward`] gives.
    pub(crate) fn scored(&self, readout: Tensor<2>, weights: Option<Tensor<3>>) -> Scored {
        Scored {
            readout,
            output: self.output_weights(),
            weights,
        }
    }
}
