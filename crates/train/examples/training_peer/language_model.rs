//! A causal language model of Transformer layers: the long-text row.
//!
//! ```text
//! x_t = dropout(√d E w_t + PE(t))      layers: causal self-attention, feed-forward      p_{t+1} ∝ exp(E s_t + b)
//! ```

use burn::{
    module::Module,
    tensor::{Device, Tensor},
};
use regard_models::{
    TargetBatch, Vocabularies,
    tables::{Tables, TablesConfig, Tie},
};
use regard_nn::{
    AttentionError,
    bridge::{CrossEntropy, output_cross_entropy_mean},
    dropout::{DropoutRng, dropout},
    initialize::Initializer,
    position::Sinusoidal,
    transformer::{Stack, StackConfig, StackOptions},
};
use serde::Deserialize;

use crate::Failure;

/// Sizes and choices of [`LanguageModel`].
#[derive(Debug, Clone, Deserialize)]
pub struct LanguageModelConfig {
    /// Entries of the vocabulary.
    pub vocabulary: usize,
    layers: usize,
    layer: StackConfig,
    embedding_dropout: f64,
}

/// Causal layers, with one table for input and output.
#[derive(Module, Debug)]
pub struct LanguageModel {
    tables: Tables,
    stack: Stack,
    sinusoidal: Sinusoidal,
    #[module(skip)]
    embedding_dropout: f64,
}

impl LanguageModelConfig {
    /// Draws a model from `seed`.
    ///
    /// # Errors
    /// Sizes that do not fit together.
    pub fn init(&self, seed: u64, device: &Device) -> Result<LanguageModel, Failure> {
        let mut initializer = Initializer::new(seed, device);
        let size = self.layer.d_model;
        let tables = TablesConfig {
            vocabularies: Vocabularies::new(self.vocabulary, self.vocabulary),
            embedding: size,
            readout: size,
            tie: Tie::All,
        };
        Ok(LanguageModel {
            tables: tables.unit_variance(&mut initializer)?,
            stack: self.layer.decoder_only(self.layers, &mut initializer)?,
            sinusoidal: Sinusoidal::new(size)?,
            embedding_dropout: self.embedding_dropout,
        })
    }
}

impl LanguageModel {
    /// The mean loss of a token of `text` given those before it.
    ///
    /// # Errors
    /// As [`Stack::forward`].
    pub fn loss(
        &self,
        text: TargetBatch,
        smoothing: f64,
        noise: &mut DropoutRng,
    ) -> Result<CrossEntropy, AttentionError> {
        let embedded: Tensor<3> = self.tables.embed_target(text.inputs.swap_dims(0, 1));
        let scale = (embedded.dims()[2] as f64).sqrt();
        let x = self.sinusoidal.forward(embedded * scale, 0)?;
        let x = dropout(x, self.embedding_dropout, noise);
        let states = self
            .stack
            .forward(x, None, &StackOptions::default(), noise)?
            .states;
        Ok(output_cross_entropy_mean(
            states.swap_dims(0, 1).flatten(0, 1),
            self.tables.output_weights(),
            text.outputs,
            self.tables.vocabularies.target.padding as usize,
            smoothing as f32,
        ))
    }
}
