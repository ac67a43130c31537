//! Google's neural machine translation system (Wu et al. 2016, section 3).
//!
//! Deep stacks of LSTMs with residual connections. The first encoder layer reads in both directions, the others
//! forward. The query comes from the *bottom* decoder layer, and every decoder layer reads the context, so that
//! only the bottom layer waits for attention and the layers above run over the whole sentence:
//!
//! ```text
//! encoder   x¹_j = [→LSTM(E x)_j; ←LSTM(E x)_j],  x²_j = LSTM(x¹)_j,  xˡ_j = LSTM(xˡ⁻¹)_j + xˡ⁻¹_j   l ≥ 3
//! attention α_t  = softmax_j vᵀ tanh(W_a y¹_{t-1} + U_a x^L_j),  a_t = Σ_j α_tj x^L_j
//! decoder   y¹_t = LSTM([E y_{t-1}; a_t]),  y²_t = LSTM([y¹_t; a_t]),  yˡ_t = LSTM([yˡ⁻¹_t; a_t]) + yˡ⁻¹_t
//! p_t = softmax(W_o y^L_t)
//! ```
//!
//! Every decoder layer starts from the last state of the encoder layer with its number, the bottom one from that of
//! the backward direction, which has read the first word last. (The paper does not say how decoders start; neither
//! does its authors' later program.) Dropout acts on the embeddings, on the input of each layer, on the annotations
//! `x^L` and on the input of the output layer, but not on residual connections.
//!
//! The beam of the paper ranks by `log P / lp + cp`: [`BeamConfig::rank`](crate::generate::BeamConfig::rank).
//!
//! ```
//! use burn::tensor::Device;
//! use regard_models::{
//!     Generator, GeneratorConfig, GnmtConfig, SourceBatch, TargetBatch, Vocabularies,
//! };
//! use regard_nn::dropout::DropoutRng;
//!
//! let (device, vocabularies) = (Device::flex(), Vocabularies::new(16, 16));
//! let model = GnmtConfig::tiny().init(&vocabularies, 1, &device)?;
//! let source = SourceBatch::new(&[vec![5, 6, 7]], &vocabularies.source, &device);
//! let target = TargetBatch::new(&[vec![8, 9]], &vocabularies.target, &device);
//! let scored = model.forward(&source, &target, &mut DropoutRng::none());
//! assert_eq!(scored.logits().dims(), [3, 16]); // [time · batch, vocabulary]
//! assert_eq!(scored.weights.unwrap().dims(), [1, 3, 4]); // [batch, target, source]
//! # Ok::<(), regard_models::ModelError>(())
//! ```

use burn::{
    module::{Module, Param},
    tensor::{Int, Tensor},
};
use regard_config::{Check, LAYERS, SIZE, config};
use regard_nn::{
    Attention,
    bridge::{
        self,
        sequence::{self, AdditiveFields, Unit},
    },
    dropout::{DropoutRng, dropout},
    initialize::Initializer,
    mask::Locality,
    recurrent::{Direction, Lstm, LstmState},
    score::{Additive, Score},
};

use crate::{
    attention::{NormalizerConfig, ScoreConfig, SourceMaskConfig, SourceReader},
    batch::{SourceBatch, TargetBatch},
    error::ModelError,
    generator::{DecoderState, Generator, GeneratorConfig, Output, Scored},
    recurrent::{Decoded, StackDropout, ask, index, select_layers},
    tables::{Tables, TablesConfig, Tie},
    vocabulary::Vocabularies,
};

/// The lowest layer with a residual connection, counted from 1.
const FIRST_RESIDUAL: usize = 3;

config! {
    /// GNMT: deep stacks of LSTMs with residual connections, additive attention asked by the bottom
    /// decoder layer and read by all of them (Wu et al. 2016, section 3).
    pub struct GnmtConfig {
        /// Size of a word vector (there 1024).
        embedding: usize = 256, in SIZE;
        /// Size of a layer's state, and of each direction of the first encoder layer (there 1024).
        hidden: usize = 256, in SIZE;
        /// Number of layers of the encoder and of the decoder, at least 2 (there 8).
        layers: usize = 8, in LAYERS;
        /// Size of the alignment model's hidden layer (there 1024).
        attention_dimension: usize = 256, in SIZE;
        /// Shared word vectors: "none", "target" or "all".
        tie: Tie = Tie::None;
        /// How well the bottom layer's state and an annotation match (in the paper "additive").
        [choice] score: ScoreConfig = ScoreConfig::Additive;
        /// From scores to weights (in the paper "softmax").
        [choice] normalizer: NormalizerConfig = NormalizerConfig::Softmax;
        /// What the decoder sees of the source.
        [choice] mask: SourceMaskConfig = SourceMaskConfig::None;
        /// Dropout.
        [table] dropout: StackDropout = StackDropout::default();
    }
    check GnmtConfig::agree
}

impl GnmtConfig {
    /// A model of a few thousand weights, for tests and examples.
    pub fn tiny() -> Self {
        Self {
            embedding: 8,
            hidden: 12,
            layers: 3,
            attention_dimension: 10,
            dropout: StackDropout::none(),
            ..Self::default()
        }
    }

    fn agree(&self, check: &mut Check) {
        let expected = "at least 2: one that reads both ways and one above it";
        check.require(self.layers > 1, "layers", self.layers, expected);
    }
}

impl GeneratorConfig for GnmtConfig {
    type Model = Gnmt;

    fn draw(
        &self,
        vocabularies: &Vocabularies,
        init: &mut Initializer,
    ) -> Result<Gnmt, ModelError> {
        let (m, n) = (self.embedding, self.hidden);
        // The second encoder layer reads both directions of the first.
        let below = |layer: usize| if layer == 2 { 2 * n } else { n };
        let attention = |init: &mut Initializer| {
            let score = self.score.init([n, n], self.attention_dimension, init);
            Attention::new(score)
                .with_normalize(self.normalizer.init(1, n, init))
                .with_locality(self.mask.locality(), n, init)
        };
        Ok(Gnmt {
            tables: TablesConfig::new(vocabularies, [m, n], self.tie).init(init)?,
            encoder_forward: Lstm::new(m, n, init),
            encoder_backward: Lstm::new(m, n, init),
            encoder: (2..=self.layers)
                .map(|layer| Lstm::new(below(layer), n, init))
                .collect(),
            attention: attention(init),
            decoder: (1..=self.layers)
                .map(|layer| Lstm::new(if layer == 1 { m } else { n } + n, n, init))
                .collect(),
            normalizer: self.normalizer.clone(),
            dropout: self.dropout.clone(),
        })
    }

    fn layers(&self) -> usize {
        self.layers
    }

    fn needs_joint_vocabulary(&self) -> bool {
        self.tie == Tie::All
    }
}

/// Google's encoder-decoder with attention.
#[derive(Module, Debug)]
pub struct Gnmt {
    /// Embeddings and output layer.
    pub tables: Tables,
    /// The first encoder layer, from the first word to the last.
    pub encoder_forward: Lstm,
    /// The first encoder layer, from the last word to the first.
    pub encoder_backward: Lstm,
    /// The encoder layers from the second on.
    pub encoder: Vec<Lstm>,
    /// The alignment model.
    pub attention: Attention,
    /// The decoder, bottom layer first; rows of the input weights in the order `[y; a]`.
    pub decoder: Vec<Lstm>,
    #[module(skip)]
    normalizer: NormalizerConfig,
    #[module(skip)]
    dropout: StackDropout,
}

/// The state that the decoder carries from step to step.
#[derive(Debug, Clone)]
pub struct GnmtState {
    /// One state a layer, bottom first.
    pub layers: Vec<LstmState>,
    /// The annotations.
    pub source: SourceReader,
}

impl DecoderState for GnmtState {
    fn select(self, rows: &[usize], same_sources: bool) -> Self {
        let index = index(rows, &self.source.memory.values.device());
        Self {
            layers: select_layers(self.layers, &index),
            source: self.source.select(rows, same_sources),
        }
    }
}

impl Generator for Gnmt {
    const NAME: &'static str = "Gnmt";
    type State = GnmtState;

    fn vocabularies(&self) -> Vocabularies {
        self.tables.vocabularies
    }

    /// The annotations as memory, and the encoder's last states.
    fn encode(&self, source: &SourceBatch, noise: &mut DropoutRng) -> GnmtState {
        let [_, batch] = source.ids.dims();
        let device = source.ids.device();
        let embedded = self.tables.embed_source(source.ids.clone());
        let embedded = dropout(embedded, self.dropout.embedding, noise.batch_axis(1)); // [time, batch, m]
        let keep = (!source.keep.is_full()).then(|| source.keep.time_major());
        let run = |lstm: &Lstm, x: Tensor<3>, direction| {
            let start = LstmState::zeros(batch, lstm.size(), &device);
            lstm.sequence(lstm.project(x), start, keep.clone(), direction)
        };
        let (forward, _) = run(&self.encoder_forward, embedded.clone(), Direction::Forward);
        let (backward, first) = run(&self.encoder_backward, embedded, Direction::Backward);
        let mut below = Tensor::cat(vec![forward, backward], 2); // [time, batch, 2n]
        let mut layers = vec![first];
        for (lstm, layer) in self.encoder.iter().zip(2..) {
            let x = dropout(below.clone(), self.dropout.layers, noise.batch_axis(1));
            let (hidden, last) = run(lstm, x, Direction::Forward);
            below = residual(layer, hidden, below); // [time, batch, n]
            layers.push(last);
        }
        let annotations =
            dropout(below, self.dropout.annotation, noise.batch_axis(1)).swap_dims(0, 1);
        GnmtState {
            layers,
            source: SourceReader::new(&self.attention, annotations, source.keep.clone()),
        }
    }

    fn forward(
        &self,
        source: &SourceBatch,
        target: &TargetBatch,
        noise: &mut DropoutRng,
    ) -> Scored {
        let state = self.encode(source, noise);
        let embedded = self.tables.embed_target(target.inputs.clone());
        let embedded = dropout(embedded, self.dropout.embedding, noise.batch_axis(1)); // [time, batch, m]
        let mut layers = state.layers.into_iter();
        let Some(first) = layers.next() else {
            unreachable!("a decoder has at least two layers")
        };
        let bottom = self.attend(embedded, first, state.source, noise);
        let top = self.above(bottom.hidden, bottom.contexts, layers, noise);
        let readout = dropout(top, self.dropout.output, noise.batch_axis(1));
        let weights = bottom.weights.swap_dims(0, 1);
        Scored {
            draws: self.normalizer.draws(bottom.sampled),
            ..self.tables.scored(readout.flatten(0, 1), Some(weights))
        }
    }

    fn step(
        &self,
        previous: Tensor<1, Int>,
        mut state: GnmtState,
        _observe: bool,
    ) -> (Output, GnmtState) {
        let mut below = self.tables.embed_previous(previous);
        let attention = self.normalizer.searching(&self.attention);
        let (source, noise) = (&mut state.source, &mut DropoutRng::none());
        let asked = ask(&attention, &state.layers[0].hidden, source, noise);
        let mut layers = Vec::with_capacity(state.layers.len());
        for (at, state) in state.layers.into_iter().enumerate() {
            let state = self.layer_step(at, below.clone(), asked.context.clone(), state);
            below = residual(at + 1, state.hidden.clone(), below);
            layers.push(state);
        }
        let output = Output {
            logits: self.tables.logits(below),
            weights: Some(asked.weights),
        };
        let source = state.source;
        (output, GnmtState { layers, source })
    }

    fn is_normalized(&self) -> bool {
        self.normalizer.is_normalized(&self.attention)
    }
}

impl Gnmt {
    /// All steps of the bottom layer, whose states are the queries; embedded inputs are `[time, batch, m]`.
    fn attend(
        &self,
        embedded: Tensor<3>,
        state: LstmState,
        source: SourceReader,
        noise: &mut DropoutRng,
    ) -> Decoded {
        let usual = self.normalizer == NormalizerConfig::Softmax
            && self.attention.locality() == Locality::Global;
        match &self.attention.score {
            Score::Additive(score) if usual && sequence::is_fused(&embedded) => {
                self.attend_fused(score, embedded, state, source)
            }
            _ => self.attend_plain(embedded, state, source, noise),
        }
    }

    fn attend_fused(
        &self,
        score: &Additive,
        embedded: Tensor<3>,
        state: LstmState,
        source: SourceReader,
    ) -> Decoded {
        let [_, _, m] = embedded.dims();
        let lstm = &self.decoder[0];
        let n = lstm.size();
        let weight = lstm.input.weight.val(); // [m + n, 4n]
        let bias = lstm.input.bias.as_ref().map(Param::val);
        let projected = bridge::linear(embedded, weight.clone().narrow(0, 0, m), bias);
        let memory = source.memory;
        let keep = &memory.keep;
        let inputs = AdditiveFields {
            x_projection: projected.into(),
            initial: state.joined().into(),
            keys: memory.keys.into(),
            values: memory.values.into(),
            query_weight: score.query.weight.val().into(),
            score: score.vector.val().into(),
            recurrent: lstm.recurrent.val().into(),
            context_weight: weight.narrow(0, m, n).into(),
        };
        let keep = (!keep.is_full()).then(|| keep.tensor());
        let output = sequence::additive_decoder(Unit::Lstm, inputs, keep, None);
        let all = output.output; // [time, batch, n + n + n], the cells in the middle
        Decoded {
            hidden: all.clone().narrow(2, 0, n),
            contexts: all.narrow(2, 2 * n, n),
            weights: output.weights,
            sampled: None,
        }
    }

    /// The same by plain tensor operations, step by step: the reference for the fused operation.
    fn attend_plain(
        &self,
        embedded: Tensor<3>,
        mut state: LstmState,
        mut source: SourceReader,
        noise: &mut DropoutRng,
    ) -> Decoded {
        let steps = embedded.iter_dim(0).map(|x| {
            let asked = ask(&self.attention, &state.hidden, &mut source, noise);
            let context = asked.context.clone();
            state = self.layer_step(0, x.squeeze_dim(0), context, state.clone());
            (state.hidden.clone(), asked)
        });
        Decoded::of(steps)
    }

    /// The layers above the bottom one: `hidden` and `contexts` are `[time, batch, n]`; so is the top layer's output.
    fn above(
        &self,
        hidden: Tensor<3>,
        contexts: Tensor<3>,
        states: impl Iterator<Item = LstmState>,
        noise: &mut DropoutRng,
    ) -> Tensor<3> {
        let mut below = hidden;
        for ((lstm, layer), state) in self.decoder[1..].iter().zip(2..).zip(states) {
            let x = Tensor::cat(vec![below.clone(), contexts.clone()], 2);
            let x = dropout(x, self.dropout.layers, noise.batch_axis(1));
            let (hidden, _) = lstm.sequence(lstm.project(x), state, None, Direction::Forward);
            below = residual(layer, hidden, below);
        }
        below
    }

    /// One step of decoder layer `at`, counted from 0.
    fn layer_step(
        &self,
        at: usize,
        below: Tensor<2>,
        context: Tensor<2>,
        state: LstmState,
    ) -> LstmState {
        let lstm = &self.decoder[at];
        lstm.step(lstm.project(Tensor::cat(vec![below, context], 1)), state)
    }
}

/// The output of layer `layer`, counted from 1, to the layer above.
fn residual<const D: usize>(layer: usize, hidden: Tensor<D>, below: Tensor<D>) -> Tensor<D> {
    match layer >= FIRST_RESIDUAL {
        true => hidden + below,
        false => hidden,
    }
}

#[cfg(test)]
#[path = "gnmt_tests.rs"]
mod tests;
