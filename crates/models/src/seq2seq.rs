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
//! The encoder's GRU applies the reset gate before the product, as in the paper (its `z` is Bahdanau's `1 - z`).
//!
//! **Sutskever et al. 2014**, a stacked LSTM: the encoder's last states, layer by layer, are the
//! decoder's first; the source may be read reversed; `p = softmax(W_o h_t)`.
//!
//! ```
//! use burn::tensor::Device;
//! use regard_models::{
//!     Generator, ModelConfig, Seq2SeqConfig, SourceBatch, TargetBatch, Vocabularies,
//! };
//! use regard_nn::dropout::DropoutRng;
//!
//! let (device, vocabularies) = (Device::flex(), Vocabularies::new(16, 16));
//! let model = Seq2SeqConfig::tiny().init(&vocabularies, 1, &device)?;
//! let source = SourceBatch::new(&[vec![5, 6, 7]], &vocabularies.source, &device);
//! let target = TargetBatch::new(&[vec![8, 9]], &vocabularies.target, &device);
//! let scored = model.forward(&source, &target, &mut DropoutRng::none());
//! assert!(scored.weights.is_none()); // nothing was looked at
//! # Ok::<(), regard_models::ModelError>(())
//! ```

use burn::{
    module::Module,
    nn::Linear,
    tensor::{Int, Tensor},
};
use regard_config::{Check, LAYERS, SIZE, config};
use regard_nn::{
    bridge,
    dropout::{DropoutRng, dropout},
    initialize::Initializer,
    recurrent::{Direction, Gru, LstmStack, LstmState, Reset},
};
use serde::{Deserialize, Serialize};

use crate::{
    AnyGenerator,
    batch::{SourceBatch, TargetBatch},
    error::ModelError,
    generator::{DecoderState, Generator, Output, Scored, expect_valid},
    recurrent::{StackDropout, index, maxout, select_layers},
    role::{GeneratorProperties, ModelConfig},
    tables::{Tables, TablesConfig, Tie},
    vocabulary::Vocabularies,
};

/// The choice between the two baselines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cell {
    /// Cho's GRU: the summary of the source is an input of every step.
    #[default]
    GruContext,
    /// Sutskever's stacked LSTM: the decoder starts from the encoder's last state.
    Lstm,
}

config! {
    /// Encoder and decoder without attention, the baseline.
    pub struct Seq2SeqConfig {
        /// "gru-context" (Cho et al. 2014) or "lstm" (Sutskever, Vinyals and Le 2014).
        cell: Cell = Cell::GruContext;
        /// Size of a word vector.
        embedding: usize = 256, in SIZE;
        /// Size of a layer's state.
        hidden: usize = 256, in SIZE;
        /// Number of stacked layers; cell "gru-context" has one.
        layers: usize = 1, in LAYERS;
        /// Size of the readout after maxout; for cell "gru-context".
        maxout: usize = 256, in SIZE;
        /// Whether the encoder reads the source backwards.
        reverse_source: bool = false;
        /// Shared word vectors: "none", "target" or "all".
        tie: Tie = Tie::None;
        /// Dropout.
        [table] dropout: StackDropout = StackDropout::default();
    }
    check Seq2SeqConfig::agree
}

impl Seq2SeqConfig {
    /// An LSTM of a few thousand weights, for tests and examples.
    pub fn tiny() -> Self {
        Self {
            cell: Cell::Lstm,
            embedding: 8,
            hidden: 12,
            layers: 2,
            maxout: 8,
            reverse_source: true,
            tie: Tie::None,
            dropout: StackDropout::none(),
        }
    }

    fn agree(&self, check: &mut Check) {
        if self.cell == Cell::GruContext && self.layers > 1 {
            check.fail(
                "layers",
                format!("found {} with cell = \"gru-context\"", self.layers),
                "1, or cell = \"lstm\"",
            );
        }
        if self.cell == Cell::Lstm {
            let found = self.dropout.annotation;
            let expected = "0 with cell = \"lstm\", which has no annotations and no summary vector";
            check.within("dropout", |check| {
                check.require(found == 0.0, "annotation", found, expected);
            });
        }
    }
}

impl ModelConfig for Seq2SeqConfig {
    type Role = AnyGenerator;
    type Model = Seq2Seq;

    fn draw(
        &self,
        vocabularies: &Vocabularies,
        init: &mut Initializer,
    ) -> Result<Seq2Seq, ModelError> {
        let (m, n, l) = (self.embedding, self.hidden, self.maxout);
        let readout = match self.cell {
            Cell::GruContext => l,
            Cell::Lstm => n,
        };
        Ok(Seq2Seq {
            tables: TablesConfig::new(vocabularies, [m, readout], self.tie).init(init)?,
            gru: (self.cell == Cell::GruContext).then(|| GruPair {
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
                encoder: expect_valid(LstmStack::new(self.layers, m, n, init)),
                decoder: expect_valid(LstmStack::new(self.layers, m, n, init)),
            }),
            reading: match self.reverse_source {
                true => Direction::Backward,
                false => Direction::Forward,
            },
            dropout: self.dropout.clone(),
        })
    }

    fn layers(&self) -> usize {
        match self.cell {
            Cell::GruContext => 1,
            Cell::Lstm => self.layers,
        }
    }

    fn properties(&self) -> GeneratorProperties {
        GeneratorProperties {
            needs_joint_vocabulary: self.tie == Tie::All,
            ..GeneratorProperties::default()
        }
    }
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
    reading: Direction,
    #[module(skip)]
    dropout: StackDropout,
}

/// The state that the decoder carries from step to step.
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

impl DecoderState for Seq2SeqState {
    fn select(self, rows: &[usize], _same_sources: bool) -> Self {
        match self {
            Self::Gru { hidden, summary } => {
                let index = index(rows, &hidden.device());
                Self::Gru {
                    hidden: hidden.select(0, index.clone()),
                    summary: summary.select(0, index),
                }
            }
            Self::Lstm(layers) => {
                let device = layers[0].hidden.device();
                Self::Lstm(select_layers(layers, &index(rows, &device)))
            }
        }
    }
}

impl Generator for Seq2Seq {
    const NAME: &'static str = "Seq2Seq";
    type State = Seq2SeqState;

    fn vocabularies(&self) -> Vocabularies {
        self.tables.vocabularies
    }

    fn encode(&self, source: &SourceBatch, noise: &mut DropoutRng) -> Seq2SeqState {
        let [length, batch] = source.ids.dims();
        let device = source.ids.device();
        let embedded = self.tables.embed_source(source.ids.clone());
        let embedded = dropout(embedded, self.dropout.embedding, noise.batch_axis(1));
        let keep = (!source.keep.is_full()).then(|| source.keep.time_major());
        let reading = self.reading;
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
                let summary = bridge::apply(&gru.summary, last).tanh(); // [batch, n]
                let summary = dropout(summary, self.dropout.annotation, noise);
                Seq2SeqState::Gru {
                    hidden: bridge::apply(&gru.initial, summary.clone()).tanh(),
                    summary,
                }
            }
            Weights::Lstm(lstm) => {
                let dropout = self.dropout.layers;
                let (_, last) = expect_valid(
                    lstm.encoder
                        .sequence(embedded, None, keep, reading, dropout, noise),
                );
                Seq2SeqState::Lstm(last)
            }
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
                for x in x.iter_dim(0) {
                    hidden = gru
                        .decoder
                        .step(x.squeeze_dim(0), hidden, Some(context.clone()));
                    states.push(hidden.clone());
                }
                let summaries = summary.unsqueeze_dim::<3>(0).repeat_dim(0, states.len());
                gru.readout(
                    Tensor::stack::<3>(states, 0).flatten(0, 1),
                    embedded.flatten(0, 1),
                    summaries.flatten(0, 1),
                )
            }
            (Weights::Lstm(lstm), Seq2SeqState::Lstm(states)) => {
                let dropout = self.dropout.layers;
                let (top, _) = expect_valid(lstm.decoder.sequence(
                    embedded,
                    Some(states),
                    None,
                    Direction::Forward,
                    dropout,
                    noise,
                ));
                top.flatten(0, 1)
            }
            _ => unreachable!("the state comes from this model's own encoder"),
        };
        let readout = dropout(readout, self.dropout.output, noise);
        self.tables.scored(readout, None)
    }

    fn step(
        &self,
        previous: Tensor<1, Int>,
        state: Seq2SeqState,
        _observe: bool,
    ) -> (Output, Seq2SeqState) {
        let embedded = self.tables.embed_previous(previous);
        let (readout, state) = match (self.weights(), state) {
            (Weights::Gru(gru), Seq2SeqState::Gru { hidden, summary }) => {
                let x = gru.decoder.project(embedded.clone());
                let context = bridge::apply(&gru.decoder_context, summary.clone());
                let hidden = gru.decoder.step(x, hidden, Some(context));
                let readout = gru.readout(hidden.clone(), embedded, summary.clone());
                (readout, Seq2SeqState::Gru { hidden, summary })
            }
            (Weights::Lstm(lstm), Seq2SeqState::Lstm(states)) => {
                let (top, states) = expect_valid(lstm.decoder.step(embedded, states, &[]));
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
}

impl Seq2Seq {
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
        maxout(
            bridge::apply(&self.readout_state, hidden)
                + bridge::apply(&self.readout_embedding, embedded)
                + bridge::apply(&self.readout_context, summary),
        )
    }
}
