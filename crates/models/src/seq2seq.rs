//! Encoder-decoders without attention: the baseline that shows what attention is for.
//!
//! **Cho et al. 2014**, a GRU whose decoder sees the summary `c` at every step:
//!
//! ```text
//! c    = tanh(V h_S)                  h_S the encoder's last state
//! s_0  = tanh(V' c)
//! z, r = σ(W E y_{t-1} + U s_{t-1} + C c)
//! s̃    = tanh(W E y_{t-1} + r ∘ (U s_{t-1} + C c)),  s_t = z ∘ s_{t-1} + (1 - z) ∘ s̃
//! t    = maxout(O_s s_t + O_y E y_{t-1} + O_c c),    p ∝ exp(W_o t)
//! ```
//!
//! The encoder's GRU resets before the product, as in the paper (its `z` is Bahdanau's `1 - z`).
//!
//! **Sutskever et al. 2014**, a stacked LSTM: the encoder's last states, layer by layer, are the
//! decoder's first; the source may be read reversed; `p = softmax(W_o h_t)`.
//!
//! ```
//! use burn::tensor::Device;
//! use regard_models::{Seq2SeqConfig, SourceBatch, TargetBatch};
//! use regard_nn::dropout::Noise;
//!
//! let device = Device::flex();
//! let model = Seq2SeqConfig::tiny().init(1, &device);
//! let source = SourceBatch::new(&[vec![5, 6, 7]], &device);
//! let target = TargetBatch::new(&[vec![8, 9]], &device);
//! let scored = model.forward(&source, &target, &mut Noise::none());
//! assert!(scored.weights.is_none()); // nothing was looked at
//! ```

use burn::{
    module::Module,
    nn::Linear,
    tensor::{Device, Int, Tensor},
};
use regard_nn::{
    bridge,
    dropout::{Noise, dropout},
    initialize::Initializer,
    recurrent::{Direction, Gru, LstmStack, LstmState, Reset},
};
use serde::{Deserialize, Serialize};

use crate::{
    SourceBatch, TargetBatch,
    model::{Output, Scored, sure},
    tables::{Tables, TablesConfig, Tie},
};

/// Which of the two baselines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cell {
    /// Cho 2014: GRU, the context at every step.
    Gru,
    /// Sutskever 2014: stacked LSTM, last state.
    Lstm,
}

/// Sizes and choices of [`Seq2Seq`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Seq2SeqConfig {
    /// Entries of the source vocabulary.
    pub source_vocabulary: usize,
    /// Entries of the target vocabulary.
    pub target_vocabulary: usize,
    /// The size of an embedding (Cho: 100, Sutskever: 1000).
    pub embedding: usize,
    /// The units of one layer (both: 1000).
    pub hidden: usize,
    /// Layers of the LSTM (Sutskever: 4); the GRU has one.
    pub layers: usize,
    /// The size of the GRU's maxout layer (Cho: 500).
    pub maxout: usize,
    /// GRU or LSTM.
    pub cell: Cell,
    /// Whether the source is read from its end.
    pub reverse_source: bool,
    /// Which tables are shared.
    pub tie: Tie,
    /// Dropout on embeddings.
    pub embedding_dropout: f64,
    /// Dropout between layers.
    pub layer_dropout: f64,
    /// Dropout before the output layer.
    pub output_dropout: f64,
}

impl Seq2SeqConfig {
    /// A model of a few thousand weights, for tests and examples.
    pub fn tiny() -> Self {
        Self {
            source_vocabulary: 16,
            target_vocabulary: 16,
            embedding: 8,
            hidden: 12,
            layers: 2,
            maxout: 8,
            cell: Cell::Lstm,
            reverse_source: true,
            tie: Tie::None,
            embedding_dropout: 0.0,
            layer_dropout: 0.0,
            output_dropout: 0.0,
        }
    }

    /// The sizes of the embedding tables and the output layer.
    pub fn tables(&self) -> TablesConfig {
        TablesConfig {
            source_vocabulary: self.source_vocabulary,
            target_vocabulary: self.target_vocabulary,
            embedding: self.embedding,
            readout: match self.cell {
                Cell::Gru => self.maxout,
                Cell::Lstm => self.hidden,
            },
            tie: self.tie,
        }
    }

    /// Draws a model from `seed`.
    pub fn init(&self, seed: u64, device: &Device) -> Seq2Seq {
        let mut initializer = Initializer::new(seed, device);
        let init = &mut initializer;
        let (m, n, l) = (self.embedding, self.hidden, self.maxout);
        Seq2Seq {
            tables: self.tables().init(init),
            gru: (self.cell == Cell::Gru).then(|| GruPair {
                encoder: Gru::new(m, n, Reset::BeforeProduct, init),
                summary: init.linear(n, n, true),
                initial: init.linear(n, n, true),
                decoder: Gru::new(m, n, Reset::AfterProduct, init),
                decoder_context: init.linear(n, 3 * n, false),
                readout_state: init.linear(n, 2 * l, true),
                readout_embedding: init.linear(m, 2 * l, false),
                readout_context: init.linear(n, 2 * l, false),
            }),
            lstm: (self.cell == Cell::Lstm).then(|| LstmPair {
                encoder: sure(LstmStack::new(self.layers, m, n, init)),
                decoder: sure(LstmStack::new(self.layers, m, n, init)),
            }),
            choices: Choices {
                reading: match self.reverse_source {
                    true => Direction::Backward,
                    false => Direction::Forward,
                },
                embedding_dropout: self.embedding_dropout,
                layer_dropout: self.layer_dropout,
                output_dropout: self.output_dropout,
            },
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Choices {
    reading: Direction,
    embedding_dropout: f64,
    layer_dropout: f64,
    output_dropout: f64,
}

/// The weights of Cho's model.
#[derive(Module, Debug)]
pub struct GruPair {
    /// The encoder.
    pub encoder: Gru,
    /// `V [n, n]`
    pub summary: Linear,
    /// `V' [n, n]`
    pub initial: Linear,
    /// `W`, `U` of the decoder.
    pub decoder: Gru,
    /// `C [n, 3n]`
    pub decoder_context: Linear,
    /// `O_s [n, 2l]`, with the readout's bias.
    pub readout_state: Linear,
    /// `O_y [m, 2l]`
    pub readout_embedding: Linear,
    /// `O_c [n, 2l]`
    pub readout_context: Linear,
}

/// The weights of Sutskever's model.
#[derive(Module, Debug)]
pub struct LstmPair {
    /// The encoder.
    pub encoder: LstmStack,
    /// The decoder.
    pub decoder: LstmStack,
}

/// An encoder-decoder without attention.
#[derive(Module, Debug)]
pub struct Seq2Seq {
    /// Embeddings and output layer.
    pub tables: Tables,
    /// Cho's weights.
    pub gru: Option<GruPair>,
    /// Sutskever's weights.
    pub lstm: Option<LstmPair>,
    #[module(skip)]
    choices: Choices,
}

/// What the decoder carries from step to step.
#[derive(Debug, Clone)]
pub enum Seq2SeqState {
    /// Cho's model.
    Gru {
        /// `s_{t-1} [rows, n]`
        hidden: Tensor<2>,
        /// `c [rows, n]`
        summary: Tensor<2>,
    },
    /// Sutskever's: one state per layer.
    Lstm(Vec<LstmState>),
}

impl Seq2Seq {
    /// Encodes a batch into the decoder's first state.
    pub fn encode(&self, source: &SourceBatch, noise: &mut Noise) -> Seq2SeqState {
        let [length, batch] = source.ids.dims();
        let device = source.ids.device();
        let embedded = self.tables.embed_source(source.ids.clone());
        let embedded = dropout(embedded, self.choices.embedding_dropout, noise);
        let keep = (!source.keep.is_full()).then(|| source.keep.time_major());
        let reading = self.choices.reading;
        match self.weights() {
            Weights::Gru(gru) => {
                let start = Tensor::zeros([batch, gru.encoder.size()], &device);
                let x = gru.encoder.project(embedded);
                let states = gru.encoder.sequence(x, start, keep, reading);
                let last = match reading {
                    Direction::Forward => length.saturating_sub(1),
                    Direction::Backward => 0,
                };
                let last = states.narrow(0, last, 1).squeeze_dim(0);
                let summary = bridge::apply(&gru.summary, last).tanh();
                Seq2SeqState::Gru {
                    hidden: bridge::apply(&gru.initial, summary.clone()).tanh(),
                    summary,
                }
            }
            Weights::Lstm(lstm) => {
                let dropout = self.choices.layer_dropout;
                let (_, last) = sure(
                    lstm.encoder
                        .sequence(embedded, None, keep, reading, dropout, noise),
                );
                Seq2SeqState::Lstm(last)
            }
        }
    }

    /// Scores `target` given `source`, teacher-forced.
    pub fn forward(&self, source: &SourceBatch, target: &TargetBatch, noise: &mut Noise) -> Scored {
        let [length, batch] = target.inputs.dims();
        let state = self.encode(source, noise);
        let embedded = self.tables.embed_target(target.inputs.clone());
        let embedded = dropout(embedded, self.choices.embedding_dropout, noise); // [time, batch, m]
        let rows = length * batch;
        let readout = match (self.weights(), state) {
            (
                Weights::Gru(gru),
                Seq2SeqState::Gru {
                    mut hidden,
                    summary,
                },
            ) => {
                let x = gru.decoder.project(embedded.clone());
                let context = bridge::apply(&gru.decoder_context, summary.clone()); // [batch, 3n]
                let mut states = vec![];
                for t in 0..length {
                    let x = x.clone().narrow(0, t, 1).squeeze_dim(0);
                    hidden = gru.decoder.step(x, hidden, Some(context.clone()));
                    states.push(hidden.clone());
                }
                let summaries = summary.unsqueeze_dim::<3>(0).repeat_dim(0, length);
                gru.readout(
                    Tensor::stack::<3>(states, 0).reshape([rows as i64, -1]),
                    embedded.reshape([rows as i64, -1]),
                    summaries.reshape([rows as i64, -1]),
                )
            }
            (Weights::Lstm(lstm), Seq2SeqState::Lstm(states)) => {
                let dropout = self.choices.layer_dropout;
                let (top, _) = sure(lstm.decoder.sequence(
                    embedded,
                    Some(states),
                    None,
                    Direction::Forward,
                    dropout,
                    noise,
                ));
                top.reshape([rows as i64, -1])
            }
            _ => unreachable!("the state comes from this model's own encoder"),
        };
        let readout = dropout(readout, self.choices.output_dropout, noise);
        self.tables.scored(readout, None)
    }

    /// One step of generation: the logits of the next token given the `previous` one (`[rows]`), and
    /// the next state.
    pub fn step(&self, previous: Tensor<1, Int>, state: Seq2SeqState) -> (Output, Seq2SeqState) {
        let embedded: Tensor<2> = self
            .tables
            .embed_target(previous.unsqueeze_dim::<2>(0))
            .squeeze_dim(0);
        let (readout, state) = match (self.weights(), state) {
            (Weights::Gru(gru), Seq2SeqState::Gru { hidden, summary }) => {
                let x = gru.decoder.project(embedded.clone());
                let context = bridge::apply(&gru.decoder_context, summary.clone());
                let hidden = gru.decoder.step(x, hidden, Some(context));
                let readout = gru.readout(hidden.clone(), embedded, summary.clone());
                (readout, Seq2SeqState::Gru { hidden, summary })
            }
            (Weights::Lstm(lstm), Seq2SeqState::Lstm(states)) => {
                let (top, states) = sure(lstm.decoder.step(embedded, states, &[]));
                (top, Seq2SeqState::Lstm(states))
            }
            _ => unreachable!("the state comes from this model's own encoder"),
        };
        let output = Output {
            logits: self.tables.logits(readout),
            weights: None,
        };
        (output, state)
    }

    fn weights(&self) -> Weights<'_> {
        match (&self.gru, &self.lstm) {
            (Some(gru), _) => Weights::Gru(gru),
            (None, Some(lstm)) => Weights::Lstm(lstm),
            (None, None) => unreachable!("the configuration draws one of the two"),
        }
    }
}

enum Weights<'a> {
    Gru(&'a GruPair),
    Lstm(&'a LstmPair),
}

impl GruPair {
    /// Maxout of `O_s s + O_y E y + O_c c`: `[rows, l]`.
    fn readout(&self, hidden: Tensor<2>, embedded: Tensor<2>, summary: Tensor<2>) -> Tensor<2> {
        let pre = bridge::apply(&self.readout_state, hidden)
            + bridge::apply(&self.readout_embedding, embedded)
            + bridge::apply(&self.readout_context, summary);
        let [rows, double] = pre.dims();
        pre.reshape([rows, double / 2, 2]).max_dim(2).squeeze_dim(2)
    }
}
