//! Recurrent language models (Mikolov et al. 2010, Zaremba et al. 2014, Cheng et al. 2016).
//!
//! ```text
//! h_t = LSTM(E w_t)  or  LSTMN(E w_t)
//! p_t ∝ exp(W_o h_t + b)
//! ```

use burn::{
    module::{Module, Param},
    nn::{Embedding, Linear},
    tensor::{Device, Int, Tensor},
};
use regard_config::{Check, FRACTION, LAYERS, SIZE, config};
use regard_nn::{
    bridge::{OutputWeights, embed},
    dropout::{DropoutRng, dropout},
    initialize::Initializer,
    mask::PaddingMask,
    recurrent::{Direction, LstmStack, LstmState, Tape},
};

use super::transformer::output_weights;
use crate::{
    AnyTextModel,
    error::ModelError,
    generator::{DecoderState, Output, Scored, expect_valid},
    lstmn::LstmnEncoder,
    recurrent::{index, select_layers},
    role::{ModelConfig, TextProperties},
    text_model::{Objective, TextModel},
    vocabulary::Vocabulary,
};

config! {
    /// Shares of units set to zero in training, by place, of a recurrent language model.
    pub struct LmDropout {
        /// On word vectors, in [0, 1).
        embedding: f64 = 0.0, in FRACTION;
        /// Between stacked layers, in [0, 1); not on recurrent connections.
        layers: f64 = 0.0, in FRACTION;
        /// On what the output layer reads, in [0, 1).
        output: f64 = 0.0, in FRACTION;
    }
}

config! {
    /// LSTM language model: the baseline without attention.
    pub struct LstmLmConfig {
        /// Size of a word vector.
        embedding: usize = 256, in SIZE;
        /// Size of a layer's state.
        hidden: usize = 256, in SIZE;
        /// Number of stacked layers.
        layers: usize = 2, in LAYERS;
        /// Tokens of a training text.
        context: usize = 256, in SIZE;
        /// Whether the output layer shares the word vectors; hidden is then as large as they are.
        tie: bool = false;
        /// Dropout.
        [table] dropout: LmDropout = LmDropout::default();
    }
    check LstmLmConfig::agree
}

config! {
    /// Long short-term memory-network as a language model: it reads token by token and searches everything read so far by attention
    /// (Cheng, Dong and Lapata 2016, section 5.1).
    pub struct LstmnLmConfig {
        /// Size of a word vector (there 300).
        embedding: usize = 256, in SIZE;
        /// Size of a layer's state (there 300).
        hidden: usize = 256, in SIZE;
        /// Number of stacked layers (there 1, 2 and 3).
        layers: usize = 1, in LAYERS;
        /// Size in which a token and the states read so far are compared.
        attention_dimension: usize = 128, in SIZE;
        /// Tokens of a training text.
        context: usize = 256, in SIZE;
        /// Whether the output layer shares the word vectors; hidden is then as large as they are.
        tie: bool = false;
        /// Dropout.
        [table] dropout: LmDropout = LmDropout::default();
    }
    check LstmnLmConfig::agree
}

fn tied(tie: bool, hidden: usize, embedding: usize, check: &mut Check) {
    let expected = format!("model.embedding ({embedding}), as tie = true shares its vectors");
    check.require(!tie || hidden == embedding, "hidden", hidden, &expected);
}

impl LstmLmConfig {
    /// A model of a few hundred weights, for tests and examples.
    pub fn tiny() -> Self {
        Self {
            embedding: 8,
            hidden: 6,
            layers: 2,
            context: 16,
            ..Self::default()
        }
    }

    fn agree(&self, check: &mut Check) {
        tied(self.tie, self.hidden, self.embedding, check);
    }
}

impl LstmnLmConfig {
    /// A model of a few hundred weights, for tests and examples.
    pub fn tiny() -> Self {
        Self {
            embedding: 8,
            hidden: 6,
            layers: 2,
            attention_dimension: 5,
            context: 16,
            ..Self::default()
        }
    }

    fn agree(&self, check: &mut Check) {
        tied(self.tie, self.hidden, self.embedding, check);
    }
}

/// Embeddings and output layer around a recurrent network.
#[derive(Module, Debug)]
pub struct AroundLm {
    /// `E [vocabulary, embedding]`
    pub tokens: Embedding,
    /// `W_o, b`; absent when tied.
    pub output: Option<Linear>,
    /// The bias of a tied output layer, `[vocabulary]`.
    pub output_bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    vocabulary: Vocabulary,
    #[module(skip)]
    dropout: LmDropout,
}

impl AroundLm {
    fn draw(
        vocabulary: &Vocabulary,
        [embedding, hidden]: [usize; 2],
        tie: bool,
        dropout: &LmDropout,
        init: &mut Initializer,
    ) -> Self {
        Self {
            tokens: init.embedding(vocabulary.size, embedding, 0.1),
            output: (!tie).then(|| init.linear(hidden, vocabulary.size, true)),
            output_bias: tie.then(|| init.zeros([vocabulary.size])),
            vocabulary: *vocabulary,
            dropout: dropout.clone(),
        }
    }

    /// `ids [time, batch]` -> `[time, batch, embedding]`.
    fn embed(&self, ids: Tensor<2, Int>, noise: &mut DropoutRng) -> Tensor<3> {
        dropout(
            embed(&self.tokens, ids),
            self.dropout.embedding,
            noise.batch_axis(1),
        )
    }

    /// The token that each row read last, `[rows]` -> `[rows, embedding]`.
    fn embed_step(&self, ids: Tensor<1, Int>) -> Tensor<2> {
        let embedded = embed(&self.tokens, ids.unsqueeze_dim(0));
        embedded.squeeze_dim(0)
    }

    fn output_weights(&self) -> OutputWeights {
        output_weights(&self.output, &self.tokens, self.output_bias.as_ref())
    }

    /// `states [time, batch, n]` as readouts.
    fn scored(&self, states: Tensor<3>, noise: &mut DropoutRng) -> Scored {
        let readout = dropout(states, self.dropout.output, noise.batch_axis(1));
        Scored {
            readout: readout.flatten(0, 1), // [time · batch, n]
            output: self.output_weights(),
            weights: None,
            padding: self.vocabulary.padding,
            draws: None,
        }
    }

    fn output(&self, hidden: Tensor<2>) -> Output {
        Output {
            logits: self.output_weights().logits(hidden),
            weights: None,
        }
    }
}

/// An LSTM language model.
#[derive(Module, Debug)]
pub struct LstmLm {
    /// Embeddings and output layer.
    pub around: AroundLm,
    /// The layers.
    pub lstm: LstmStack,
}

impl ModelConfig for LstmLmConfig {
    type Role = AnyTextModel;
    type Model = LstmLm;

    fn draw(&self, vocabulary: &Vocabulary, init: &mut Initializer) -> Result<LstmLm, ModelError> {
        let sizes = [self.embedding, self.hidden];
        let lstm = LstmStack::new(self.layers, self.embedding, self.hidden, init);
        Ok(LstmLm {
            around: AroundLm::draw(vocabulary, sizes, self.tie, &self.dropout, init),
            lstm: lstm.map_err(|error| ModelError(error.to_string()))?,
        })
    }

    fn layers(&self) -> usize {
        self.layers
    }

    fn properties(&self) -> TextProperties {
        TextProperties {
            objective: Objective::Causal,
            context: self.context,
        }
    }
}

impl TextModel for LstmLm {
    type State = Vec<LstmState>;

    fn vocabulary(&self) -> Vocabulary {
        self.around.vocabulary
    }

    fn forward(&self, ids: Tensor<2, Int>, keep: &PaddingMask, noise: &mut DropoutRng) -> Scored {
        let x = self.around.embed(ids, noise);
        let real = (!keep.is_full()).then(|| keep.time_major());
        let between = self.around.dropout.layers;
        let forward = Direction::Forward;
        let read = self.lstm.sequence(x, None, real, forward, between, noise);
        let (states, _) = expect_valid(read);
        self.around.scored(states, noise)
    }

    fn begin(&self, rows: usize, device: &Device) -> Option<Vec<LstmState>> {
        Some(self.lstm.zeros(rows, device))
    }

    fn step(&self, ids: Tensor<1, Int>, state: Vec<LstmState>) -> (Output, Vec<LstmState>) {
        let stepped = self.lstm.step(self.around.embed_step(ids), state, &[]);
        let (top, state) = expect_valid(stepped);
        (self.around.output(top), state)
    }

    fn read(&self, ids: Tensor<2, Int>, state: Vec<LstmState>) -> Vec<LstmState> {
        let noise = &mut DropoutRng::none();
        let x = self.around.embed(ids, noise);
        let forward = Direction::Forward;
        let read = self
            .lstm
            .sequence(x, Some(state), None, forward, 0.0, noise);
        expect_valid(read).1
    }
}

impl DecoderState for Vec<LstmState> {
    fn select(self, rows: &[usize], _same_sources: bool) -> Self {
        match self.first() {
            Some(first) => {
                let index = index(rows, &first.hidden.device());
                select_layers(self, &index)
            }
            None => self,
        }
    }
}

/// An LSTMN language model.
#[derive(Module, Debug)]
pub struct LstmnLm {
    /// Embeddings and output layer.
    pub around: AroundLm,
    /// The layers.
    pub lstmn: LstmnEncoder,
}

impl ModelConfig for LstmnLmConfig {
    type Role = AnyTextModel;
    type Model = LstmnLm;

    fn draw(&self, vocabulary: &Vocabulary, init: &mut Initializer) -> Result<LstmnLm, ModelError> {
        let (embedding, n, a) = (self.embedding, self.hidden, self.attention_dimension);
        Ok(LstmnLm {
            around: AroundLm::draw(vocabulary, [embedding, n], self.tie, &self.dropout, init),
            lstmn: LstmnEncoder::new(self.layers, embedding, n, a, init),
        })
    }

    fn layers(&self) -> usize {
        self.layers
    }

    fn properties(&self) -> TextProperties {
        TextProperties {
            objective: Objective::Causal,
            context: self.context,
        }
    }
}

impl TextModel for LstmnLm {
    type State = LstmnLmState;

    fn vocabulary(&self) -> Vocabulary {
        self.around.vocabulary
    }

    fn forward(&self, ids: Tensor<2, Int>, keep: &PaddingMask, noise: &mut DropoutRng) -> Scored {
        let x = self.around.embed(ids, noise);
        let read = self
            .lstmn
            .forward(x, keep, self.around.dropout.layers, noise);
        self.around.scored(read.hidden, noise)
    }

    fn look(&self, ids: Tensor<2, Int>, keep: &PaddingMask) -> Vec<Tensor<4>> {
        let noise = &mut DropoutRng::none();
        let x = self.around.embed(ids, noise);
        let read = self.lstmn.forward(x, keep, 0.0, noise);
        let weights = read.weights.into_iter();
        weights.map(|weights| weights.unsqueeze_dim(1)).collect()
    }

    fn begin(&self, rows: usize, device: &Device) -> Option<LstmnLmState> {
        let tapes = self.lstmn.layers.iter();
        Some(LstmnLmState {
            tapes: tapes.map(|layer| layer.tape(rows, device)).collect(),
        })
    }

    fn step(&self, ids: Tensor<1, Int>, state: LstmnLmState) -> (Output, LstmnLmState) {
        let (top, tapes) = self.lstmn.step(self.around.embed_step(ids), state.tapes);
        (self.around.output(top), LstmnLmState { tapes })
    }

    fn read(&self, ids: Tensor<2, Int>, state: LstmnLmState) -> LstmnLmState {
        let tapes = ids.iter_dim(0).fold(state.tapes, |tapes, ids| {
            let x = self.around.embed_step(ids.squeeze_dim(0));
            self.lstmn.step(x, tapes).1
        });
        LstmnLmState { tapes }
    }
}

/// The tapes of all layers, bottom first.
#[derive(Debug, Clone)]
pub struct LstmnLmState {
    tapes: Vec<Tape>,
}

impl DecoderState for LstmnLmState {
    fn select(self, rows: &[usize], _same_sources: bool) -> Self {
        let Some(first) = self.tapes.first() else {
            return self;
        };
        let index = index(rows, &first.last().hidden.device());
        let tapes = self.tapes.into_iter();
        Self {
            tapes: tapes.map(|tape| tape.select(index.clone())).collect(),
        }
    }
}
