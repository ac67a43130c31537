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
//! Dropout acts on embeddings, annotations and the maxout layer's output (none in the paper).
//!
//! ```
//! use burn::tensor::Device;
//! use regard_models::{RnnSearchConfig, SourceBatch, TargetBatch};
//! use regard_nn::dropout::Noise;
//!
//! let device = Device::flex();
//! let config = RnnSearchConfig { source_vocabulary: 20, target_vocabulary: 30, ..RnnSearchConfig::tiny() };
//! let model = config.init(1, &device);
//! let source = SourceBatch::new(&[vec![5, 6, 7]], &device);
//! let target = TargetBatch::new(&[vec![8, 9]], &device);
//! let scored = model.forward(&source, &target, &mut Noise::none());
//! assert_eq!(scored.logits().dims(), [3, 30]); // [time · batch, vocabulary]
//! assert_eq!(scored.weights.unwrap().dims(), [1, 3, 4]); // [batch, target, source]
//! ```

use burn::{
    module::Module,
    nn::Linear,
    tensor::{Device, Int, Tensor},
};
use regard_nn::{
    Attention, Memory,
    bridge::{
        self,
        sequence::{self, AdditiveGruInput},
    },
    dropout::{Noise, dropout},
    initialize::Initializer,
    recurrent::{Direction, Gru, Reset},
    score::{Additive, Score},
};
use serde::{Deserialize, Serialize};

use crate::{
    SourceBatch, TargetBatch,
    model::{Output, Scored, read, sure},
    tables::{Tables, TablesConfig, Tie},
};

/// Sizes and choices of [`RnnSearch`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RnnSearchConfig {
    /// Entries of the source vocabulary.
    pub source_vocabulary: usize,
    /// Entries of the target vocabulary.
    pub target_vocabulary: usize,
    /// `m`: the size of an embedding (paper: 620).
    pub embedding: usize,
    /// `n`: the units of each encoder direction and of the decoder (paper: 1000).
    pub hidden: usize,
    /// The size in which states and annotations are compared (paper: 1000).
    pub attention: usize,
    /// `l`: the size of the maxout layer (paper: 500).
    pub maxout: usize,
    /// Which tables are shared.
    pub tie: Tie,
    /// Dropout on embeddings.
    pub embedding_dropout: f64,
    /// Dropout on annotations.
    pub annotation_dropout: f64,
    /// Dropout on the maxout layer's output.
    pub output_dropout: f64,
    /// The paper's initialisation (App. B): recurrent matrices orthogonal, `W_a, U_a ~ N(0, 0.001²)`,
    /// `v = 0`, other weights `N(0, 0.01²)`, biases 0. Otherwise `U(-1/√n, 1/√n)`.
    pub paper_initialisation: bool,
}

impl RnnSearchConfig {
    /// A model of a few thousand weights, for tests and examples.
    pub fn tiny() -> Self {
        Self {
            source_vocabulary: 16,
            target_vocabulary: 16,
            embedding: 8,
            hidden: 12,
            attention: 10,
            maxout: 8,
            tie: Tie::None,
            embedding_dropout: 0.0,
            annotation_dropout: 0.0,
            output_dropout: 0.0,
            paper_initialisation: false,
        }
    }

    /// The sizes of the embedding tables and the output layer.
    pub fn tables(&self) -> TablesConfig {
        TablesConfig {
            source_vocabulary: self.source_vocabulary,
            target_vocabulary: self.target_vocabulary,
            embedding: self.embedding,
            readout: self.maxout,
            tie: self.tie,
        }
    }

    /// Draws a model from `seed`.
    pub fn init(&self, seed: u64, device: &Device) -> RnnSearch {
        let mut initializer = Initializer::new(seed, device);
        let init = &mut initializer;
        let (m, n, l) = (self.embedding, self.hidden, self.maxout);
        let paper = self.paper_initialisation;
        let gru = |init: &mut Initializer| match paper {
            true => Gru::as_in_paper(m, n, Reset::BeforeProduct, init),
            false => Gru::new(m, n, Reset::BeforeProduct, init),
        };
        let linear = |inputs, outputs, bias, init: &mut Initializer| match paper {
            true => init.normal_linear(inputs, outputs, bias, 0.01),
            false => init.linear(inputs, outputs, bias),
        };
        let score = match paper {
            true => Additive::as_in_paper(n, 2 * n, self.attention, init),
            false => Additive::new(n, 2 * n, self.attention, init),
        };
        RnnSearch {
            tables: match paper {
                true => self.tables().as_in_paper(init),
                false => self.tables().init(init),
            },
            encoder_forward: gru(init),
            encoder_backward: gru(init),
            initial: linear(n, n, true, init),
            attention: Attention::new(Score::Additive(score)),
            decoder: gru(init),
            decoder_context: linear(2 * n, 3 * n, false, init),
            readout_state: linear(n, 2 * l, true, init),
            readout_embedding: linear(m, 2 * l, false, init),
            readout_context: linear(2 * n, 2 * l, false, init),
            dropouts: Dropouts {
                embedding: self.embedding_dropout,
                annotation: self.annotation_dropout,
                output: self.output_dropout,
            },
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Dropouts {
    embedding: f64,
    annotation: f64,
    output: f64,
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
    dropouts: Dropouts,
}

/// What the decoder carries from step to step.
#[derive(Debug, Clone)]
pub struct RnnSearchState {
    /// `s_{i-1} [rows, n]`
    pub hidden: Tensor<2>,
    /// The annotations.
    pub memory: Memory,
}

impl RnnSearch {
    /// Encodes a batch: the annotations as memory, and `s_0`.
    pub fn encode(&self, source: &SourceBatch, noise: &mut Noise) -> RnnSearchState {
        let [length, batch] = source.ids.dims();
        let device = source.ids.device();
        let embedded = self.tables.embed_source(source.ids.clone());
        let embedded = dropout(embedded, self.dropouts.embedding, noise); // [time, batch, m]
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
        let first = backward.clone().narrow(0, 0, length.min(1)).squeeze_dim(0);
        let annotations = Tensor::cat(vec![forward, backward], 2).swap_dims(0, 1); // [batch, time, 2n]
        let annotations = dropout(annotations, self.dropouts.annotation, noise);
        RnnSearchState {
            hidden: bridge::apply(&self.initial, first).tanh(),
            memory: sure(self.attention.memory(annotations, source.keep.clone())),
        }
    }

    /// Scores `target` given `source`, teacher-forced.
    pub fn forward(&self, source: &SourceBatch, target: &TargetBatch, noise: &mut Noise) -> Scored {
        let [length, batch] = target.inputs.dims();
        let state = self.encode(source, noise);
        let embedded = self.tables.embed_target(target.inputs.clone());
        let embedded = dropout(embedded, self.dropouts.embedding, noise); // [time, batch, m]
        let decoded = self.decode(embedded.clone(), state); // states before each step
        let rows = length * batch;
        let readout = self.readout(
            decoded.previous.reshape([rows as i64, -1]),
            embedded.reshape([rows as i64, -1]),
            decoded.contexts.reshape([rows as i64, -1]),
        );
        let readout = dropout(readout, self.dropouts.output, noise);
        let weights = decoded.weights.swap_dims(0, 1);
        self.tables.scored(readout, Some(weights))
    }

    /// All steps of the decoder at once; embedded inputs are `[time, batch, m]`.
    fn decode(&self, embedded: Tensor<3>, state: RnnSearchState) -> Decoded {
        match &self.attention.score {
            Score::Additive(score) if sequence::is_fused(&embedded) => {
                self.decode_fused(score, embedded, state)
            }
            _ => self.decode_plain(embedded, state),
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
        let keep = &state.memory.keep;
        let output = sequence::additive_gru_decoder(AdditiveGruInput {
            x_projection: self.decoder.project(embedded),
            initial: state.hidden,
            keep_source: (!keep.is_full()).then(|| keep.tensor()),
            keys: state.memory.keys,
            values: state.memory.values,
            query_weight: score.query.weight.val(),
            score: score.vector.val(),
            recurrent: self.decoder.recurrent.val(),
            context_weight: self.decoder_context.weight.val(),
            keep: None,
        });
        let both = output.states_and_contexts; // [time, batch, n + 2n]
        let mut previous = vec![start];
        if length > 1 {
            previous.push(both.clone().narrow(2, 0, n).narrow(0, 0, length - 1));
        }
        Decoded {
            previous: Tensor::cat(previous, 0),
            contexts: both.narrow(2, n, 2 * n),
            weights: output.weights,
        }
    }

    /// The same by plain tensor operations, step by step: the definition.
    fn decode_plain(&self, embedded: Tensor<3>, state: RnnSearchState) -> Decoded {
        let [length, _, _] = embedded.dims();
        let inputs = self.decoder.project(embedded); // [time, batch, 3n]
        let mut hidden = state.hidden;
        let (mut previous, mut contexts, mut weights) = (vec![], vec![], vec![]);
        for t in 0..length {
            let x = inputs.clone().narrow(0, t, 1).squeeze_dim(0);
            previous.push(hidden.clone());
            let step = self.advance(x, hidden, &state.memory);
            hidden = step.hidden;
            contexts.push(step.context);
            weights.push(step.weights);
        }
        Decoded {
            previous: Tensor::stack(previous, 0),
            contexts: Tensor::stack(contexts, 0),
            weights: Tensor::stack(weights, 0),
        }
    }

    /// One step: `x [rows, 3n]` (projected), `hidden [rows, n]`.
    fn advance(&self, x: Tensor<2>, hidden: Tensor<2>, memory: &Memory) -> Advanced {
        let query = hidden.clone().unsqueeze_dim::<3>(1); // [rows, 1, n]
        let attended = read(&self.attention, query, memory, 0);
        let context: Tensor<2> = attended.context.squeeze_dim(1);
        let projected = bridge::apply(&self.decoder_context, context.clone());
        Advanced {
            hidden: self.decoder.step(x, hidden, Some(projected)),
            context,
            weights: attended.weights.squeeze_dim(1),
        }
    }

    /// Maxout of `U_o s + V_o E y + C_o c`: `[rows, l]`.
    fn readout(&self, hidden: Tensor<2>, embedded: Tensor<2>, context: Tensor<2>) -> Tensor<2> {
        let pre = bridge::apply(&self.readout_state, hidden)
            + bridge::apply(&self.readout_embedding, embedded)
            + bridge::apply(&self.readout_context, context);
        let [rows, double] = pre.dims();
        pre.reshape([rows, double / 2, 2]).max_dim(2).squeeze_dim(2)
    }

    /// One step of generation: the logits of the next token given the `previous` one (`[rows]`), the
    /// weights, and the next state.
    pub fn step(
        &self,
        previous: Tensor<1, Int>,
        state: RnnSearchState,
    ) -> (Output, RnnSearchState) {
        let embedded: Tensor<2> = self
            .tables
            .embed_target(previous.unsqueeze_dim::<2>(0))
            .squeeze_dim(0);
        let x = self.decoder.project(embedded.clone());
        let step = self.advance(x, state.hidden.clone(), &state.memory);
        let readout = self.readout(state.hidden, embedded, step.context);
        let output = Output {
            logits: self.tables.logits(readout),
            weights: Some(step.weights),
        };
        let state = RnnSearchState {
            hidden: step.hidden,
            memory: state.memory,
        };
        (output, state)
    }
}

struct Decoded {
    previous: Tensor<3>, // [time, batch, n]: s_{i-1}
    contexts: Tensor<3>, // [time, batch, 2n]
    weights: Tensor<3>,  // [time, batch, source]
}

struct Advanced {
    hidden: Tensor<2>,
    context: Tensor<2>,
    weights: Tensor<2>,
}

#[cfg(test)]
#[path = "rnnsearch_tests.rs"]
mod tests;
