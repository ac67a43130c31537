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
use regard_nn::{
    bridge::{OutputWeights, embed},
    initialize::Initializer,
};
use serde::{Deserialize, Serialize};

use crate::{error::ModelError, generator::Scored, vocabulary::Vocabularies};

/// Which tables are shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum Tie {
    /// None: source embedding, target embedding and output projection are separate.
    #[default]
    None,
    /// Target embedding and output projection (Press and Wolf 2017).
    Target,
    /// All three; needs a joint vocabulary.
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
    /// The vocabularies of the ids.
    #[module(skip)]
    pub vocabularies: Vocabularies,
}

/// The sizes of [`Tables`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TablesConfig {
    /// The vocabularies of the ids.
    pub vocabularies: Vocabularies,
    /// The size of one embedding.
    pub embedding: usize,
    /// The size of the output layer's input.
    pub readout: usize,
    /// Which tables are shared.
    pub tie: Tie,
}

impl TablesConfig {
    /// Tables of word vectors of `embedding` and an output layer that reads vectors of `readout`.
    pub fn new(vocabularies: &Vocabularies, [embedding, readout]: [usize; 2], tie: Tie) -> Self {
        Self {
            vocabularies: *vocabularies,
            embedding,
            readout,
            tie,
        }
    }

    /// Checks that the sizes allow the tie.
    ///
    /// # Errors
    /// A sentence that names both sizes.
    fn check(&self) -> Result<(), ModelError> {
        if self.tie != Tie::None && self.readout != self.embedding {
            return Err(ModelError(format!(
                "tied embeddings need the output layer to read vectors of the embedding's size; it reads {}, the embedding has {}",
                self.readout, self.embedding
            )));
        }
        let Vocabularies { source, target } = self.vocabularies;
        if self.tie == Tie::All && source != target {
            return Err(ModelError(format!(
                "tie = \"all\" needs a joint vocabulary; source has {} entries, target {}",
                source.size, target.size
            )));
        }
        Ok(())
    }

    /// Draws the tables: embeddings from `N(0, 0.1²)`, an output layer of its own from
    /// `U(-1/√readout, 1/√readout)`.
    ///
    /// # Errors
    /// Sizes that do not allow the tie.
    pub fn init(&self, initializer: &mut Initializer) -> Result<Tables, ModelError> {
        let output =
            |init: &mut Initializer| init.linear(self.readout, self.vocabularies.target.size, true);
        self.draw(0.1, output, initializer)
    }

    /// Draws the tables as Bahdanau 2014, App. B: weights from `N(0, 0.01²)`, biases 0.
    ///
    /// # Errors
    /// Sizes that do not allow the tie.
    pub fn as_in_paper(&self, initializer: &mut Initializer) -> Result<Tables, ModelError> {
        let output = |init: &mut Initializer| {
            init.normal_linear(self.readout, self.vocabularies.target.size, true, 0.01)
        };
        self.draw(0.01, output, initializer)
    }

    /// As [`TablesConfig::init`], but with embeddings from `N(0, 1/embedding)`, for models that multiply what they look up by
    /// `√embedding` (Vaswani 2017, section 3.4).
    ///
    /// # Errors
    /// Sizes that do not allow the tie.
    pub fn unit_variance(&self, initializer: &mut Initializer) -> Result<Tables, ModelError> {
        let output =
            |init: &mut Initializer| init.linear(self.readout, self.vocabularies.target.size, true);
        self.draw(1.0 / (self.embedding as f32).sqrt(), output, initializer)
    }

    fn draw(
        &self,
        deviation: f32,
        output: impl FnOnce(&mut Initializer) -> Linear,
        initializer: &mut Initializer,
    ) -> Result<Tables, ModelError> {
        self.check()?;
        let Vocabularies { source, target } = self.vocabularies;
        let table =
            |entries, init: &mut Initializer| init.embedding(entries, self.embedding, deviation);
        Ok(Tables {
            source: (self.tie != Tie::All).then(|| table(source.size, initializer)),
            target: table(target.size, initializer),
            output: (self.tie == Tie::None).then(|| output(initializer)),
            output_bias: (self.tie != Tie::None).then(|| initializer.zeros([target.size])),
            vocabularies: self.vocabularies,
        })
    }
}

impl Tables {
    /// `[time, batch]` source ids -> `[time, batch, embedding]`.
    pub fn embed_source(&self, ids: Tensor<2, Int>) -> Tensor<3> {
        embed(self.source.as_ref().unwrap_or(&self.target), ids)
    }

    /// `[time, batch]` target ids -> `[time, batch, embedding]`.
    pub fn embed_target(&self, ids: Tensor<2, Int>) -> Tensor<3> {
        embed(&self.target, ids)
    }

    /// The token that each row wrote last, `[rows]` -> `[rows, embedding]`.
    pub fn embed_previous(&self, previous: Tensor<1, Int>) -> Tensor<2> {
        self.embed_target(previous.unsqueeze_dim(0)).squeeze_dim(0)
    }

    /// `[rows, readout]` -> logits `[rows, target vocabulary]`.
    pub fn logits(&self, readout: Tensor<2>) -> Tensor<2> {
        self.output_weights().logits(readout)
    }

    /// The output layer, tied or not.
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

    /// The readouts `[time · batch, readout]` of all steps as the result of [`crate::Generator::forward`].
    pub fn scored(&self, readout: Tensor<2>, weights: Option<Tensor<3>>) -> Scored {
        Scored {
            readout,
            output: self.output_weights(),
            weights,
            padding: self.vocabularies.target.padding,
            draws: None,
        }
    }
}
