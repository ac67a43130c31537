//! The Transformer itself.

use burn::{
    module::Module,
    tensor::{Int, Tensor},
};
use regard_nn::{
    Observe,
    bridge::transposed,
    dropout::{DropoutRng, dropout},
    mask::{Mask, PaddingMask},
    position::{Learned, Sinusoidal},
    transformer::{Stack, StackCache, StackOptions, StackOutput},
};

use super::packed::PackedTransformer;
use crate::{
    batch::{SourceBatch, TargetBatch},
    generator::{AttentionMaps, DecoderState, Generator, Output, Packed, Scored, expect_valid},
    tables::Tables,
    vocabulary::Vocabularies,
};

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
    pub encoder: Stack,
    /// The decoder.
    pub decoder: Stack,
    pub(super) sinusoidal: Option<Sinusoidal>,
    #[module(skip)]
    pub(super) embedding_dropout: f64,
    #[module(skip)]
    pub(super) normalized: bool,
}

/// The state that the decoder carries from step to step.
#[derive(Debug, Clone)]
pub struct TransformerState {
    pub(super) cache: StackCache,
    pub(super) keep: PaddingMask,
}

impl Generator for Transformer {
    const NAME: &'static str = "Transformer";
    type State = TransformerState;

    fn vocabularies(&self) -> Vocabularies {
        self.tables.vocabularies
    }

    fn forward(
        &self,
        source: &SourceBatch,
        target: &TargetBatch,
        noise: &mut DropoutRng,
    ) -> Scored {
        let encoded = self.read(source, Observe::Nothing, noise).states;
        let decoded = self.write(encoded, source, target, Observe::Nothing, noise);
        self.tables.scored(time_major(decoded.states), None)
    }

    fn encode(&self, source: &SourceBatch, noise: &mut DropoutRng) -> TransformerState {
        let encoded = self.read(source, Observe::Nothing, noise).states;
        TransformerState {
            cache: expect_valid(self.decoder.cache(Some(encoded))),
            keep: source.keep.clone(),
        }
    }

    /// The weights are those on the source, the mean over the heads of the last layer.
    fn step(
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
        let options = StackOptions::new(observe).source_mask(padding(&state.keep));
        let mut decoded = expect_valid(self.decoder.forward_cached(x, &mut state.cache, &options));
        let weights = decoded.cross.pop().and_then(|last| last.weights); // [rows, heads, 1, source]
        let output = Output {
            logits: self.tables.logits(decoded.states.squeeze_dim(1)),
            weights: weights.map(|weights| weights.mean_dim(1).squeeze_dim::<3>(1).squeeze_dim(1)),
        };
        (output, state)
    }

    fn look(&self, source: &SourceBatch, target: &TargetBatch) -> Option<AttentionMaps> {
        let noise = &mut DropoutRng::none();
        let encoded = self.read(source, Observe::Weights, noise);
        let decoded = self.write(encoded.states, source, target, Observe::Weights, noise);
        let weights = |attended: Vec<regard_nn::Attended>| {
            let weights = attended.into_iter().filter_map(|attended| attended.weights);
            weights.collect()
        };
        Some(AttentionMaps {
            encoder: weights(encoded.own),
            decoder: weights(decoded.own),
            cross: weights(decoded.cross),
        })
    }

    fn is_normalized(&self) -> bool {
        self.normalized
    }

    fn pack(&self) -> Option<Box<dyn Packed>> {
        PackedTransformer::of(self).map(|packed| Box::new(packed) as _)
    }
}

impl Transformer {
    fn read(&self, source: &SourceBatch, observe: Observe, noise: &mut DropoutRng) -> StackOutput {
        let x = self.embed_source(source, noise);
        let options = StackOptions::new(observe).mask(padding(&source.keep));
        expect_valid(self.encoder.forward(x, None, &options, noise))
    }

    fn write(
        &self,
        encoded: Tensor<3>,
        source: &SourceBatch,
        target: &TargetBatch,
        observe: Observe,
        noise: &mut DropoutRng,
    ) -> StackOutput {
        let y = self.embed_target(target, noise);
        let options = StackOptions::new(observe).source_mask(padding(&source.keep));
        expect_valid(self.decoder.forward(y, Some(encoded), &options, noise))
    }

    /// What enters the encoder, `[batch, time, d]`.
    pub(super) fn embed_source(&self, source: &SourceBatch, noise: &mut DropoutRng) -> Tensor<3> {
        let embedded = self.tables.embed_source(source.ids.clone().swap_dims(0, 1));
        self.place(embedded, &self.source_positions, 0, noise)
    }

    /// What enters the decoder, `[batch, time, d]`.
    pub(super) fn embed_target(&self, target: &TargetBatch, noise: &mut DropoutRng) -> Tensor<3> {
        let inputs = target.inputs.clone().swap_dims(0, 1);
        let embedded = self.tables.embed_target(inputs);
        self.place(embedded, &self.target_positions, 0, noise)
    }

    /// `√d E w + PE` of one token for each row, all at `position`: `[rows, d]`.
    pub(super) fn embed_step(&self, previous: Tensor<1, Int>, position: usize) -> Tensor<2> {
        let embedded = self.tables.embed_target(previous.unsqueeze_dim::<2>(1)); // [rows, 1, d]
        let noise = &mut DropoutRng::none();
        self.place(embedded, &self.target_positions, position, noise)
            .squeeze_dim(1)
    }

    /// The encoder's states `[batch, time, d]`.
    pub(super) fn states(&self, source: &SourceBatch) -> Tensor<3> {
        self.read(source, Observe::Nothing, &mut DropoutRng::none())
            .states
    }

    /// `dropout(√d x + PE)` of `embedded [batch, length, d]`, the first of which stands at position `first`.
    fn place(
        &self,
        embedded: Tensor<3>,
        learned: &Option<Learned>,
        first: usize,
        noise: &mut DropoutRng,
    ) -> Tensor<3> {
        let size = embedded.dims()[2];
        let mut x = embedded * (size as f64).sqrt();
        if let Some(sinusoidal) = &self.sinusoidal {
            x = expect_valid(sinusoidal.forward(x, first));
        }
        if let Some(learned) = learned {
            x = expect_valid(learned.forward(x, first));
        }
        dropout(x, self.embedding_dropout, noise)
    }
}

impl DecoderState for TransformerState {
    fn select(mut self, rows: &[usize], same_sources: bool) -> Self {
        self.cache = self.cache.select(rows, same_sources);
        if !same_sources {
            self.keep = self.keep.select(rows);
        }
        self
    }
}

/// Hides the padding of `keep`, if there is any.
fn padding(keep: &PaddingMask) -> Mask {
    match keep.is_full() {
        true => Mask::all(),
        false => Mask::padding(keep.clone()),
    }
}

/// `[batch, time, d]` -> `[time · batch, d]`, time-major.
fn time_major(states: Tensor<3>) -> Tensor<2> {
    transposed(states, 0).flatten(0, 1)
}
