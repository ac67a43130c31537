//! The Transformer, encoder and decoder (Vaswani et al. 2017).
//!
//! ```text
//! x_t    = dropout(√d E w_t + PE(t))              E: one table for source, target and output if tied
//! memory = encoder(x)                             layers: self-attention, feed-forward
//! s      = decoder(y, memory)                     layers: causal self-attention, cross-attention, feed-forward
//! p_t    ∝ exp(W_o s_t)
//! ```
//!
//! Layers are those of [`regard_nn::transformer`], with norms before or after the blocks; positions are added to the embeddings
//! (sinusoidal, learned) or act in self-attention (rotary, relative, ALiBi). Generation keeps keys and values: a step costs what
//! one token costs, and gives the numbers of the whole target at once.
//!
//! ```
//! use burn::tensor::Device;
//! use regard_models::{SourceBatch, TargetBatch, TransformerConfig};
//! use regard_nn::dropout::Noise;
//!
//! let device = Device::flex();
//! let config = TransformerConfig { source_vocabulary: 20, target_vocabulary: 30, ..TransformerConfig::tiny() };
//! let model = config.init(1, &device)?;
//! let source = SourceBatch::new(&[vec![5, 6, 7]], &device);
//! let target = TargetBatch::new(&[vec![8, 9]], &device);
//! let scored = model.forward(&source, &target, &mut Noise::none());
//! assert_eq!(scored.logits().dims(), [3, 30]); // [time · batch, vocabulary]
//! let looks = model.look(&source, &target);
//! assert_eq!(looks.cross[0].dims(), [1, 2, 3, 4]); // of the first layer: [batch, heads, target, source]
//! # Ok::<(), regard_models::ModelError>(())
//! ```

use burn::{
    module::Module,
    tensor::{Device, Int, Tensor},
};
use regard_nn::{
    AttentionError, Call, Observe,
    dropout::{Noise, dropout},
    initialize::Initializer,
    mask::{Keep, Mask},
    position::{Learned, PositionConfig, Sinusoidal},
    transformer::{self, Decoder, DecoderCache, Encoder},
};
use serde::{Deserialize, Serialize};

use crate::{
    ModelError, SourceBatch, TargetBatch,
    model::{Output, Scored, sure},
    tables::{Tables, TablesConfig, Tie},
};

/// Where a token stands, said by its embedding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum EmbeddedPositions {
    /// Sines and cosines of the position (the paper).
    #[default]
    Sinusoidal,
    /// One trained vector for each position.
    Learned {
        /// How many: the longest sentence, in tokens.
        positions: usize,
    },
    /// Nothing: the layers have positions of their own.
    None,
}

/// Sizes and choices of [`Transformer`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TransformerConfig {
    /// Entries of the source vocabulary.
    pub source_vocabulary: usize,
    /// Entries of the target vocabulary.
    pub target_vocabulary: usize,
    /// Layers of the encoder.
    pub encoder_layers: usize,
    /// Layers of the decoder.
    pub decoder_layers: usize,
    /// Sizes and choices of every layer.
    pub layer: transformer::TransformerConfig,
    /// Positions of embeddings.
    pub positions: EmbeddedPositions,
    /// Which tables are shared.
    pub tie: Tie,
    /// Dropout on the sum of embedding and position.
    pub embedding_dropout: f64,
}

impl TransformerConfig {
    /// A model of a few thousand weights, for tests and examples.
    pub fn tiny() -> Self {
        let layer = transformer::TransformerConfig {
            feed_forward: 16,
            ..transformer::TransformerConfig::new(8, 2)
        };
        Self {
            source_vocabulary: 16,
            target_vocabulary: 16,
            encoder_layers: 2,
            decoder_layers: 2,
            layer,
            positions: EmbeddedPositions::Sinusoidal,
            tie: Tie::None,
            embedding_dropout: 0.0,
        }
    }

    /// The sizes of the embedding tables and the output layer.
    pub fn tables(&self) -> TablesConfig {
        TablesConfig {
            source_vocabulary: self.source_vocabulary,
            target_vocabulary: self.target_vocabulary,
            embedding: self.layer.model_size,
            readout: self.layer.model_size,
            tie: self.tie,
        }
    }

    /// Draws a model from `seed`.
    ///
    /// # Errors
    /// If a size is 0, heads do not divide, or choices do not go together.
    pub fn init(&self, seed: u64, device: &Device) -> Result<Transformer, ModelError> {
        let mut initializer = Initializer::new(seed, device);
        self.draw(&mut initializer)
            .map_err(|error| ModelError(error.to_string()))
    }

    /// The longest source or target, in tokens with its marks, if there is a longest.
    pub fn longest(&self) -> Option<usize> {
        match self.positions {
            EmbeddedPositions::Learned { positions } => Some(positions),
            _ => None,
        }
    }

    fn draw(&self, init: &mut Initializer) -> Result<Transformer, AttentionError> {
        let size = self.layer.model_size;
        let sinusoidal = match self.positions {
            EmbeddedPositions::Sinusoidal => Some(Sinusoidal::new(size)?),
            _ => None,
        };
        let mut learned = || match self.positions {
            EmbeddedPositions::Learned { positions } => {
                Learned::new(positions, size, init).map(Some)
            }
            _ => Ok(None),
        };
        Ok(Transformer {
            source_positions: learned()?,
            target_positions: learned()?,
            tables: self.tables().unit_variance(init),
            encoder: self.layer.encoder(self.encoder_layers, init)?,
            decoder: self.layer.decoder(self.decoder_layers, init)?,
            sinusoidal,
            embedding_dropout: self.embedding_dropout,
        })
    }

    /// Whether the positions can be the layers' own, or must be the embeddings'.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.encoder_layers == 0 || self.decoder_layers == 0 {
            return Err(format!(
                "encoder_layers is {} and decoder_layers {}; expected at least 1 of each",
                self.encoder_layers, self.decoder_layers
            ));
        }
        if !(0.0..1.0).contains(&self.embedding_dropout) {
            let found = self.embedding_dropout;
            return Err(format!(
                "embedding dropout is {found}; expected at least 0 and below 1"
            ));
        }
        let own = self.layer.position != PositionConfig::None;
        match (own, self.positions) {
            (false, EmbeddedPositions::None) => Err(
                "neither embeddings nor layers know positions; every sentence would be a set of words".to_owned(),
            ),
            _ => Ok(()),
        }
    }
}

/// Encoder and decoder of Transformer layers.
#[derive(Module, Debug)]
pub struct Transformer {
    /// Embeddings and output layer.
    pub tables: Tables,
    /// Trained positions of source tokens.
    pub source_positions: Option<Learned>,
    /// Trained positions of target tokens.
    pub target_positions: Option<Learned>,
    /// The encoder.
    pub encoder: Encoder,
    /// The decoder.
    pub decoder: Decoder,
    sinusoidal: Option<Sinusoidal>,
    #[module(skip)]
    embedding_dropout: f64,
}

/// What the decoder carries from step to step.
#[derive(Debug, Clone)]
pub struct TransformerState {
    pub(crate) cache: DecoderCache,
    pub(crate) keep: Keep,
}

/// Every weight of every head, by layer from the first: each `[batch, heads, queries, keys]`.
#[derive(Debug, Clone)]
pub struct Looks {
    /// The encoder's self-attention: source to source.
    pub encoder: Vec<Tensor<4>>,
    /// The decoder's self-attention: target to target.
    pub decoder: Vec<Tensor<4>>,
    /// Cross-attention: target to source.
    pub cross: Vec<Tensor<4>>,
}

impl Transformer {
    /// Scores `target` given `source`, teacher-forced.
    pub fn forward(&self, source: &SourceBatch, target: &TargetBatch, noise: &mut Noise) -> Scored {
        let encoded = self.read(source, Observe::Nothing, noise).states;
        let decoded = self.write(encoded, source, target, Observe::Nothing, noise);
        self.tables.scored(time_major(decoded.states), None)
    }

    /// What every head of every layer looks at while the model reads `source` and writes `target`.
    pub fn look(&self, source: &SourceBatch, target: &TargetBatch) -> Looks {
        let noise = &mut Noise::none();
        let encoded = self.read(source, Observe::Weights, noise);
        let decoded = self.write(encoded.states, source, target, Observe::Weights, noise);
        let weights = |attended: Vec<regard_nn::Attended>| {
            let weights = attended.into_iter().filter_map(|attended| attended.weights);
            weights.collect()
        };
        Looks {
            encoder: weights(encoded.attended),
            decoder: weights(decoded.own),
            cross: weights(decoded.cross),
        }
    }

    /// Encodes a batch into the decoder's first state.
    pub fn encode(&self, source: &SourceBatch, noise: &mut Noise) -> TransformerState {
        let encoded = self.read(source, Observe::Nothing, noise).states;
        TransformerState {
            cache: sure(self.decoder.cache(encoded)),
            keep: source.keep.clone(),
        }
    }

    /// One step of generation: the logits of the next token given the `previous` one (`[rows]`), and the next state. With
    /// `observe`, the weights on the source, the mean over the heads of the last layer.
    pub fn step(
        &self,
        previous: Tensor<1, Int>,
        mut state: TransformerState,
        observe: bool,
    ) -> (Output, TransformerState) {
        let x = self
            .embed_step(previous, state.cache.length())
            .unsqueeze_dim(1);
        let observe = match observe {
            true => Observe::Weights,
            false => Observe::Nothing,
        };
        let call = padded(&state.keep, observe);
        let mut decoded = sure(self.decoder.forward_cached(x, &mut state.cache, call));
        let weights = decoded.cross.pop().and_then(|last| last.weights); // [rows, heads, 1, source]
        let output = Output {
            logits: self.tables.logits(decoded.states.squeeze_dim(1)),
            weights: weights.map(|weights| weights.mean_dim(1).squeeze_dim::<3>(1).squeeze_dim(1)),
        };
        (output, state)
    }

    fn read(
        &self,
        source: &SourceBatch,
        observe: Observe,
        noise: &mut Noise,
    ) -> transformer::Encoded {
        let embedded = self.tables.embed_source(source.ids.clone().swap_dims(0, 1)); // [batch, time, d]
        let x = self.place(embedded, &self.source_positions, 0, noise);
        sure(
            self.encoder
                .forward(x, padded(&source.keep, observe), noise),
        )
    }

    fn write(
        &self,
        encoded: Tensor<3>,
        source: &SourceBatch,
        target: &TargetBatch,
        observe: Observe,
        noise: &mut Noise,
    ) -> transformer::Decoded {
        let embedded = self
            .tables
            .embed_target(target.inputs.clone().swap_dims(0, 1));
        let y = self.place(embedded, &self.target_positions, 0, noise);
        let call = padded(&source.keep, observe);
        sure(self.decoder.forward(y, encoded, call, noise))
    }

    /// `√d E w + PE` of one token for each row, which all stand at `position`: `[rows, d]`.
    pub(crate) fn embed_step(&self, previous: Tensor<1, Int>, position: usize) -> Tensor<2> {
        let embedded = self.tables.embed_target(previous.unsqueeze_dim::<2>(1)); // [rows, 1, d]
        let noise = &mut Noise::none();
        self.place(embedded, &self.target_positions, position, noise)
            .squeeze_dim(1)
    }

    /// The encoder's states `[batch, time, d]`.
    pub(crate) fn states(&self, source: &SourceBatch) -> Tensor<3> {
        self.read(source, Observe::Nothing, &mut Noise::none())
            .states
    }

    /// `dropout(√d x + PE)` of `embedded [batch, length, d]`, the first of which stands at position `first`.
    fn place(
        &self,
        embedded: Tensor<3>,
        learned: &Option<Learned>,
        first: usize,
        noise: &mut Noise,
    ) -> Tensor<3> {
        let size = embedded.dims()[2];
        let mut x = embedded * (size as f64).sqrt();
        if let Some(sinusoidal) = &self.sinusoidal {
            x = sure(sinusoidal.forward(x, first));
        }
        if let Some(learned) = learned {
            x = sure(learned.forward(x, first));
        }
        dropout(x, self.embedding_dropout, noise)
    }
}

impl TransformerState {
    /// The rows at `rows`; see [`crate::DecoderState::select`].
    pub(crate) fn select(mut self, rows: &[usize], same_sources: bool) -> Self {
        sure(self.cache.select(rows, same_sources));
        if !same_sources {
            self.keep = self.keep.select(rows);
        }
        self
    }
}

/// A call that hides the padding of `keep`.
fn padded(keep: &Keep, observe: Observe) -> Call<'static> {
    match keep.is_full() {
        true => Call::new(observe),
        false => Call::new(observe).mask(Mask::padding(keep.clone())),
    }
}

/// `[batch, time, d]` -> `[time · batch, d]`, time-major.
fn time_major(states: Tensor<3>) -> Tensor<2> {
    states.swap_dims(0, 1).flatten(0, 1)
}

#[cfg(test)]
#[path = "transformer_tests.rs"]
mod tests;
