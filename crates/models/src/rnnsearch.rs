//! RNNsearch: jointly learning to align and translate (Bahdanau, Cho, Bengio 2014, appendix A).
//!
//! Encoder: a bidirectional GRU, annotations `h_j = [→h_j; ←h_j] ∈ R^{2n}`. Decoder, step `i`:
//!
//! ```text
//! s_0  = tanh(W_s ←h_1)
//! e_ij = vᵀ tanh(W_a s_{i-1} + U_a h_j)          U_a h_j once per sentence
//! c_i  = Σ_j softmax(e_i)_j h_j
//! z, r = σ(W E y_{i-1} + U s_{i-1} + C c_i)
//! s̃    = tanh(W E y_{i-1} + U [r ∘ s_{i-1}] + C c_i)
//! s_i  = (1 - z) ∘ s_{i-1} + z ∘ s̃
//! t̃    = U_o s_{i-1} + V_o E y_{i-1} + C_o c_i ∈ R^{2l}
//! t_j  = max(t̃_{2j-1}, t̃_{2j})                    maxout
//! p    ∝ exp(W_o t)
//! ```
//!
//! Keys of the configuration choose another score, normaliser or mask in place of the additive score and the softmax
//! ([`crate::attention`]).
//!
//! Dropout acts on embeddings, annotations and the maxout layer's output (none in the paper).
//!
//! ```
//! use burn::tensor::Device;
//! use regard_models::{
//!     Generator, ModelConfig, RnnSearchConfig, SourceBatch, TargetBatch, Vocabularies,
//! };
//! use regard_nn::dropout::DropoutRng;
//!
//! let (device, vocabularies) = (Device::flex(), Vocabularies::new(20, 30));
//! let model = RnnSearchConfig::tiny().init(&vocabularies, 1, &device)?;
//! let source = SourceBatch::new(&[vec![5, 6, 7]], &vocabularies.source, &device);
//! let target = TargetBatch::new(&[vec![8, 9]], &vocabularies.target, &device);
//! let scored = model.forward(&source, &target, &mut DropoutRng::none());
//! assert_eq!(scored.logits().dims(), [3, 30]); // [time · batch, vocabulary]
//! assert_eq!(scored.weights.unwrap().dims(), [1, 3, 4]); // [batch, target, source]
//! # Ok::<(), regard_models::ModelError>(())
//! ```

use burn::{
    module::Module,
    nn::Linear,
    tensor::{Int, Tensor},
};
use regard_config::{Check, SIZE, config};
use regard_nn::{
    Attention,
    bridge::{
        self,
        sequence::{self, AdditiveFields, Unit},
    },
    dropout::{DropoutRng, dropout},
    initialize::Initializer,
    mask::Locality,
    recurrent::{Direction, Gru, Reset},
    score::{Additive, Score},
};
use serde::{Deserialize, Serialize};

use crate::{
    AnyGenerator,
    attention::{NormalizerConfig, ScoreConfig, SourceMaskConfig, SourceReader},
    batch::{SourceBatch, TargetBatch},
    error::ModelError,
    generator::{DecoderState, Generator, Output, Scored},
    recurrent::{Asked, Decoded, LayerDropout, ask, index, maxout},
    role::{GeneratorProperties, ModelConfig},
    tables::{Tables, TablesConfig, Tie},
    vocabulary::Vocabularies,
};

/// The initial values of parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Initialisation {
    /// As the paper says (App. B): recurrent matrices orthogonal, `W_a, U_a ~ N(0, 0.001²)`, `v = 0`, other weights
    /// `N(0, 0.01²)`, biases 0.
    Paper,
    /// `U(-1/√n, 1/√n)`, as deep-learning libraries do today.
    #[default]
    Default,
}

config! {
    /// RNNsearch: bidirectional GRU encoder, additive attention from the previous decoder state,
    /// maxout readout (Bahdanau, Cho and Bengio 2014, appendix A).
    pub struct RnnSearchConfig {
        /// Size of a word vector (m in the paper, there 620).
        embedding: usize = 256, in SIZE;
        /// Size of the decoder state and of each encoder direction (n, there 1000).
        hidden: usize = 256, in SIZE;
        /// Size of the alignment model's hidden layer (n', there 1000).
        attention_dimension: usize = 256, in SIZE;
        /// Size of the readout after maxout (l, there 500).
        maxout: usize = 256, in SIZE;
        /// Shared word vectors: "none", "target" (target embedding and output projection) or
        /// "all" (the source embedding too; needs a joint vocabulary).
        tie: Tie = Tie::None;
        /// Starting parameters: "paper" or "default".
        initialisation: Initialisation = Initialisation::Default;
        /// How well the decoder's state and an annotation match (in the paper "additive").
        [choice] score: ScoreConfig = ScoreConfig::Additive;
        /// From scores to weights (in the paper "softmax").
        [choice] normalizer: NormalizerConfig = NormalizerConfig::Softmax;
        /// What the decoder sees of the source.
        [choice] mask: SourceMaskConfig = SourceMaskConfig::None;
        /// Dropout.
        [table] dropout: LayerDropout = LayerDropout::default();
    }
    check RnnSearchConfig::agree
}

impl RnnSearchConfig {
    /// A model of a few thousand weights, for tests and examples.
    pub fn tiny() -> Self {
        Self {
            embedding: 8,
            hidden: 12,
            attention_dimension: 10,
            maxout: 8,
            dropout: LayerDropout::none(),
            ..Self::default()
        }
    }

    fn agree(&self, check: &mut Check) {
        let sizes = [self.hidden, 2 * self.hidden];
        self.score.expect_sizes(sizes, check);
    }
}

impl ModelConfig for RnnSearchConfig {
    type Role = AnyGenerator;
    type Model = RnnSearch;

    fn draw(
        &self,
        vocabularies: &Vocabularies,
        init: &mut Initializer,
    ) -> Result<RnnSearch, ModelError> {
        let (m, n, l) = (self.embedding, self.hidden, self.maxout);
        let paper = self.initialisation == Initialisation::Paper;
        let gru = |init: &mut Initializer| match paper {
            true => Gru::as_in_paper(m, n, Reset::BeforeProduct, init),
            false => Gru::new(m, n, Reset::BeforeProduct, init),
        };
        let linear = |inputs, outputs, bias, init: &mut Initializer| match paper {
            true => init.normal_linear(inputs, outputs, bias, 0.01),
            false => init.linear(inputs, outputs, bias),
        };
        let score = match (paper, &self.score) {
            (true, ScoreConfig::Additive) => {
                let score = Additive::as_in_paper(n, 2 * n, self.attention_dimension, init);
                Score::Additive(score)
            }
            (_, score) => score.init([n, 2 * n], self.attention_dimension, init),
        };
        let attention = Attention::new(score)
            .with_normalize(self.normalizer.init(1, n, init))
            .with_locality(self.mask.locality(), n, init);
        let tables = TablesConfig::new(vocabularies, [m, l], self.tie);
        Ok(RnnSearch {
            tables: match paper {
                true => tables.as_in_paper(init)?,
                false => tables.init(init)?,
            },
            encoder_forward: gru(init),
            encoder_backward: gru(init),
            initial: linear(n, n, true, init),
            attention,
            decoder: gru(init),
            decoder_context: linear(2 * n, 3 * n, false, init),
            readout_state: linear(n, 2 * l, true, init),
            readout_embedding: linear(m, 2 * l, false, init),
            readout_context: linear(2 * n, 2 * l, false, init),
            normalizer: self.normalizer.clone(),
            dropout: self.dropout.clone(),
        })
    }

    fn layers(&self) -> usize {
        1
    }

    fn properties(&self) -> GeneratorProperties {
        GeneratorProperties {
            needs_joint_vocabulary: self.tie == Tie::All,
            ..GeneratorProperties::default()
        }
    }
}

/// Bahdanau's encoder-decoder with attention.
#[derive(Module, Debug)]
pub struct RnnSearch {
    /// Embeddings and output layer.
    pub tables: Tables,
    /// `→h`
    pub encoder_forward: Gru,
    /// `←h`
    pub encoder_backward: Gru,
    /// `W_s [n, n]`
    pub initial: Linear,
    /// The alignment model.
    pub attention: Attention,
    /// `W`, `U` of the decoder.
    pub decoder: Gru,
    /// `C [2n, 3n]`
    pub decoder_context: Linear,
    /// `U_o [n, 2l]`, with the readout's bias.
    pub readout_state: Linear,
    /// `V_o [m, 2l]`
    pub readout_embedding: Linear,
    /// `C_o [2n, 2l]`
    pub readout_context: Linear,
    #[module(skip)]
    normalizer: NormalizerConfig,
    #[module(skip)]
    dropout: LayerDropout,
}

/// The state that the decoder carries from step to step.
#[derive(Debug, Clone)]
pub struct RnnSearchState {
    /// `s_{i-1} [rows, n]`
    pub hidden: Tensor<2>,
    /// The annotations.
    pub source: SourceReader,
}

impl DecoderState for RnnSearchState {
    fn select(self, rows: &[usize], same_sources: bool) -> Self {
        let index = index(rows, &self.hidden.device());
        Self {
            hidden: self.hidden.select(0, index),
            source: self.source.select(rows, same_sources),
        }
    }
}

impl Generator for RnnSearch {
    const NAME: &'static str = "RnnSearch";
    type State = RnnSearchState;

    fn vocabularies(&self) -> Vocabularies {
        self.tables.vocabularies
    }

    /// The annotations as memory, and `s_0`.
    fn encode(&self, source: &SourceBatch, noise: &mut DropoutRng) -> RnnSearchState {
        let [_, batch] = source.ids.dims();
        let device = source.ids.device();
        let embedded = self.tables.embed_source(source.ids.clone());
        let embedded = dropout(embedded, self.dropout.embedding, noise.batch_axis(1)); // [time, batch, m]
        let n = self.decoder.size();
        let start = || Tensor::zeros([batch, n], &device);
        let keep = (!source.keep.is_full()).then(|| source.keep.time_major());
        let forward = self.encoder_forward.sequence(
            self.encoder_forward.project(embedded.clone()),
            start(),
            keep.clone(),
            Direction::Forward,
        );
        let backward = self.encoder_backward.sequence(
            self.encoder_backward.project(embedded),
            start(),
            keep,
            Direction::Backward,
        ); // [time, batch, n]
        let first = backward.clone().narrow(0, 0, 1).squeeze_dim(0);
        let annotations = Tensor::cat(vec![forward, backward], 2).swap_dims(0, 1); // [batch, time, 2n]
        let annotations = dropout(annotations, self.dropout.annotation, noise);
        RnnSearchState {
            hidden: bridge::apply(&self.initial, first).tanh(),
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
        let decoded = self.decode(embedded.clone(), state, noise); // states before each step
        let readout = self.readout(
            decoded.hidden.flatten(0, 1),
            embedded.flatten(0, 1),
            decoded.contexts.flatten(0, 1),
        );
        let readout = dropout(readout, self.dropout.output, noise);
        let weights = decoded.weights.swap_dims(0, 1);
        Scored {
            draws: self.normalizer.draws(decoded.sampled),
            ..self.tables.scored(readout, Some(weights))
        }
    }

    fn step(
        &self,
        previous: Tensor<1, Int>,
        mut state: RnnSearchState,
        _observe: bool,
    ) -> (Output, RnnSearchState) {
        let embedded = self.tables.embed_previous(previous);
        let x = self.decoder.project(embedded.clone());
        let attention = self.normalizer.searching(&self.attention);
        let noise = &mut DropoutRng::none();
        let before = state.hidden.clone();
        let step = self.advance(&attention, x, &mut state, noise);
        let readout = self.readout(before, embedded, step.context);
        let output = Output {
            logits: self.tables.logits(readout),
            weights: Some(step.weights),
        };
        (output, state)
    }

    fn is_normalized(&self) -> bool {
        self.normalizer.is_normalized(&self.attention)
    }
}

impl RnnSearch {
    /// All steps of the decoder at once; embedded inputs are `[time, batch, m]`.
    fn decode(
        &self,
        embedded: Tensor<3>,
        state: RnnSearchState,
        noise: &mut DropoutRng,
    ) -> Decoded {
        let usual = self.normalizer == NormalizerConfig::Softmax
            && self.attention.locality() == Locality::Global;
        match &self.attention.score {
            Score::Additive(score) if usual && sequence::is_fused(&embedded) => {
                self.decode_fused(score, embedded, state)
            }
            _ => self.decode_plain(embedded, state, noise),
        }
    }

    fn decode_fused(
        &self,
        score: &Additive,
        embedded: Tensor<3>,
        state: RnnSearchState,
    ) -> Decoded {
        let [length, _, _] = embedded.dims();
        let n = self.decoder.size();
        let start = state.hidden.clone().unsqueeze_dim::<3>(0);
        let memory = state.source.memory;
        let keep = &memory.keep;
        let inputs = AdditiveFields {
            x_projection: self.decoder.project(embedded).into(),
            initial: state.hidden.into(),
            keys: memory.keys.into(),
            values: memory.values.into(),
            query_weight: score.query.weight.val().into(),
            score: score.vector.val().into(),
            recurrent: self.decoder.recurrent.val().into(),
            context_weight: self.decoder_context.weight.val().into(),
        };
        let keep = (!keep.is_full()).then(|| keep.tensor());
        let output = sequence::additive_decoder(Unit::ChoGru, inputs, keep, None);
        let both = output.output; // [time, batch, n + 2n]
        let mut previous = vec![start];
        if length > 1 {
            previous.push(both.clone().narrow(2, 0, n).narrow(0, 0, length - 1));
        }
        Decoded {
            hidden: Tensor::cat(previous, 0),
            contexts: both.narrow(2, n, 2 * n),
            weights: output.weights,
            sampled: None,
        }
    }

    /// The same by plain tensor operations, step by step: the reference for the fused operation.
    fn decode_plain(
        &self,
        embedded: Tensor<3>,
        mut state: RnnSearchState,
        noise: &mut DropoutRng,
    ) -> Decoded {
        let inputs = self.decoder.project(embedded); // [time, batch, 3n]
        let steps = inputs.iter_dim(0).map(|x| {
            let before = state.hidden.clone();
            let asked = self.advance(&self.attention, x.squeeze_dim(0), &mut state, noise);
            (before, asked)
        });
        Decoded::of(steps)
    }

    /// One step from `x [rows, 3n]` (projected).
    fn advance(
        &self,
        attention: &Attention,
        x: Tensor<2>,
        state: &mut RnnSearchState,
        noise: &mut DropoutRng,
    ) -> Asked {
        let asked = ask(attention, &state.hidden, &mut state.source, noise);
        let projected = bridge::apply(&self.decoder_context, asked.context.clone());
        state.hidden = self.decoder.step(x, state.hidden.clone(), Some(projected));
        asked
    }

    /// Maxout of `U_o s + V_o E y + C_o c`: `[rows, l]`.
    fn readout(&self, hidden: Tensor<2>, embedded: Tensor<2>, context: Tensor<2>) -> Tensor<2> {
        maxout(
            bridge::apply(&self.readout_state, hidden)
                + bridge::apply(&self.readout_embedding, embedded)
                + bridge::apply(&self.readout_context, context),
        )
    }
}

#[cfg(test)]
#[path = "rnnsearch_tests.rs"]
mod tests;
