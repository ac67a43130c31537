//! Captions: a network reads an image as regions, and a recurrent decoder looks at them for every word that it writes.
//!
//! The last map of a [`backbone`](super::backbone) is read as regions `a_i [features]`, `i = 1..L`, one a cell, to which sines of row
//! and column may be added, so that the decoder can tell where a region is. `ā` is their mean, `E y` the vector of a word.
//!
//! Show, Attend and Tell (Xu et al. 2015):
//!
//! ```text
//! c_0 = tanh(f_c ā),  h_0 = tanh(f_h ā)
//! e_i = w tanh(W_a a_i + W_h h_{t-1} + b)
//! ẑ_t = β Σ_i α_i a_i                      α = softmax(e), or one drawn region (hard); β = σ(f_β h_{t-1})
//! h_t = LSTM([E y_{t-1}; ẑ_t], h_{t-1})
//! p   ∝ exp(L_o (E y_{t-1} + L_h h_t + L_z ẑ_t))
//! ```
//!
//! Bottom-up and top-down attention (Anderson et al. 2018), with the cells in place of detected objects; states begin as zeros:
//!
//! ```text
//! h¹_t = LSTM¹([h²_{t-1}; ā; E y_{t-1}], h¹_{t-1})
//! v̂_t  = Σ_i α_i a_i                       e_i = w tanh(W_a a_i + W_h h¹_t)
//! h²_t = LSTM²([v̂_t; h¹_t], h²_{t-1})
//! p    ∝ exp(W_p h²_t + b)
//! ```
//!
//! For a share of the words of training the output layer may not see `h_t` (`state_dropout`): they have to be read from what is looked
//! at, where the state would remember former looks.
//!
//! The doubly stochastic penalty asks that every region be looked at once: `λ Σ_i (1 - Σ_t α_ti)²` is added to `-log p(y)`. Its
//! opposite, `λ_e` times the entropy of the weights, asks for few regions a word.
//! Hard attention learns by reward ([`NormalizerConfig::HardReinforce`], [`Scored::reinforced`]); in the search it takes the region
//! of the highest probability.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_models::{
//!     ModelConfig, TargetBatch, Vocabulary,
//!     generate::{BeamConfig, caption},
//!     image::{CaptionerConfig, CaptionerSizes},
//! };
//! use regard_nn::dropout::DropoutRng;
//!
//! let (device, vocabulary) = (Device::flex(), Vocabulary::new(30));
//! let sizes = CaptionerSizes { channels: 3, size: [32, 32], vocabulary };
//! let model = CaptionerConfig::tiny().init(&sizes, 1, &device)?;
//! let images = Tensor::<4>::ones([2, 3, 32, 32], &device);
//! let target = TargetBatch::new(&[vec![5, 6], vec![7]], &vocabulary, &device);
//! let scored = model.forward(images.clone(), &target, &mut DropoutRng::none());
//! assert_eq!(scored.logits().dims(), [6, 30]); // [time · batch, vocabulary]
//! assert_eq!(scored.weights.unwrap().dims(), [2, 3, 16]); // [batch, time, regions]
//! assert_eq!(caption(&model, images, &BeamConfig::greedy()).len(), 2);
//! # Ok::<(), regard_models::ModelError>(())
//! ```

use burn::{
    module::Module,
    nn::{Embedding, Linear},
    tensor::{DType, Int, Tensor},
};
use regard_config::{Check, FRACTION, NOT_NEGATIVE, SIZE, config};
use regard_nn::{
    Attention,
    attention::Sampled,
    bridge::{self, OutputWeights, sigmoid, sum},
    dropout::{DropoutRng, dropout},
    initialize::Initializer,
    mask::PaddingMask,
    position::SinusoidalGrid,
    recurrent::{Lstm, LstmState},
    score::{Additive, Score},
};
use serde::{Deserialize, Serialize};

use super::{
    backbone::{Backbone, BackboneConfig},
    check_images,
};
use crate::{
    attention::{NormalizerConfig, SourceReader},
    batch::TargetBatch,
    error::ModelError,
    generator::{DecoderState, Output, Scored, expect_valid},
    recurrent::{Asked, ask, index, select_layers},
    role::{ModelConfig, Sizes},
    vocabulary::Vocabulary,
};

/// Which decoder writes the words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CaptionDecoderKind {
    /// One LSTM, whose state asks before the step (Xu et al. 2015).
    #[default]
    ShowAttendTell,
    /// Two LSTMs: the first asks, the second predicts (Anderson et al. 2018).
    TopDown,
}

config! {
    /// Captions: a convolution network reads an image as regions, an LSTM with attention over them writes (Show, Attend and Tell, Xu et
    /// al. 2015; bottom-up and top-down attention, Anderson et al. 2018).
    pub struct CaptionerConfig {
        /// The convolution network whose last map is read as regions.
        [table] backbone: BackboneConfig = BackboneConfig::default();
        /// "show-attend-tell" (one LSTM) or "top-down" (one LSTM asks, a second predicts).
        decoder: CaptionDecoderKind = CaptionDecoderKind::ShowAttendTell;
        /// Whether sines of row and column are added to the regions (not in the papers, whose networks see the image's border).
        positions: bool = true;
        /// Size of a word vector (m in the papers, there 512 and 1000).
        embedding: usize = 128, in SIZE;
        /// Units of each LSTM (n, there 1000).
        hidden: usize = 256, in SIZE;
        /// Size of the attention's hidden layer (there 512).
        attention_dimension: usize = 128, in SIZE;
        /// From scores to weights: "softmax" is soft attention, "hard-reinforce" the paper's hard attention.
        [choice] normalizer: NormalizerConfig = NormalizerConfig::Softmax;
        /// Weight of the doubly stochastic penalty, at least 0 (Xu et al.: 1); it spreads the looks over the whole image.
        penalty: f64 = 0.0, in NOT_NEGATIVE;
        /// Weight of the entropy of each word's looks, in nats, at least 0 (not in the papers); it sharpens soft attention.
        entropy: f64 = 0.0, in NOT_NEGATIVE;
        /// Share of the units of word vectors and of what the output layer reads that is set to zero in training, in [0, 1).
        dropout: f64 = 0.2, in FRACTION;
        /// Share of the words of training for which the output layer does not see the LSTM's state, in [0, 1) (not in the papers): such a
        /// word has to be read from the regions that are looked at, not from memory. Of decoder "show-attend-tell".
        state_dropout: f64 = 0.0, in FRACTION;
    }
    check CaptionerConfig::agree
}

/// The images that a captioner reads, and the words that it writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptionerSizes {
    /// Channels of an image: 1 or 3.
    pub channels: usize,
    /// Height and width of an image.
    pub size: [usize; 2],
    /// The vocabulary of the captions.
    pub vocabulary: Vocabulary,
}

impl CaptionerConfig {
    fn agree(&self, check: &mut Check) {
        let features = self.backbone.features();
        check.require(
            !self.positions || features.is_multiple_of(4),
            "positions",
            format!("true, with {features} features of a region"),
            "false, or a backbone of 4, 8, 12, ... features (channels · 2^(stages - 1)): rows and columns have as many sines as cosines",
        );
        let drawn = matches!(self.normalizer, NormalizerConfig::HardReinforce(_));
        check.require(
            self.decoder == CaptionDecoderKind::ShowAttendTell || self.state_dropout == 0.0,
            "state_dropout",
            self.state_dropout,
            "0.0 with decoder = \"top-down\", whose output layer sees nothing else",
        );
        for (key, weight) in [("penalty", self.penalty), ("entropy", self.entropy)] {
            let expected = "0.0 with hard-reinforce, which has terms of its own: a drawn region has no gradient";
            check.require(!drawn || weight == 0.0, key, weight, expected);
        }
    }

    /// A model of a few thousand weights, for tests and examples.
    pub fn tiny() -> Self {
        Self {
            backbone: BackboneConfig::tiny(),
            embedding: 8,
            hidden: 12,
            attention_dimension: 10,
            dropout: 0.0,
            ..Self::default()
        }
    }
}

impl ModelConfig for CaptionerConfig {
    type Role = Captioner;
    type Model = Captioner;

    fn layers(&self) -> usize {
        self.backbone.layers()
    }

    fn draw(
        &self,
        sizes: &CaptionerSizes,
        init: &mut Initializer,
    ) -> Result<Captioner, ModelError> {
        let (d, m, n) = (self.backbone.features(), self.embedding, self.hidden);
        let vocabulary = sizes.vocabulary;
        let mut score = Additive::new(n, d, self.attention_dimension, init);
        if self.decoder == CaptionDecoderKind::TopDown {
            score.key.bias = None; // as the authors' code has it
        }
        let attention = Attention::new(Score::Additive(score));
        let (decoder, readout) = match self.decoder {
            CaptionDecoderKind::ShowAttendTell => {
                let decoder = ShowAttendTell {
                    initial_cell: init.linear(d, n, true),
                    initial_hidden: init.linear(d, n, true),
                    gate: init.linear(n, 1, true),
                    lstm: Lstm::new(m + d, n, init),
                    readout_state: init.linear(n, m, true),
                    readout_context: init.linear(d, m, false),
                    state_dropout: self.state_dropout,
                };
                (CaptionDecoder::ShowAttendTell(decoder), m)
            }
            CaptionDecoderKind::TopDown => {
                let decoder = TopDown {
                    asking: Lstm::new(n + d + m, n, init),
                    writing: Lstm::new(d + n, n, init),
                };
                (CaptionDecoder::TopDown(decoder), n)
            }
        };
        Ok(Captioner {
            backbone: self.backbone.draw(sizes.channels, init),
            attention: attention.with_normalize(self.normalizer.init(1, n, init)),
            embedding: init.embedding(vocabulary.size, m, 0.1),
            decoder,
            output: init.linear(readout, vocabulary.size, true),
            config: self.clone(),
            vocabulary,
            grid: self.backbone.grid(sizes.size),
        })
    }
}

impl Sizes for CaptionerSizes {
    fn check(&self) -> Result<(), ModelError> {
        let Self {
            channels,
            size,
            vocabulary,
        } = *self;
        if vocabulary.size < 2 {
            return Err(ModelError(format!(
                "the number of tokens is {}; expected at least 2",
                vocabulary.size
            )));
        }
        check_images(channels, size)
    }
}

/// A model that writes captions (see the [module's page](self)).
#[derive(Module, Debug)]
pub struct Captioner {
    /// The network that reads the image.
    pub backbone: Backbone,
    /// Which regions a state asks for.
    pub attention: Attention,
    /// `E [vocabulary, m]`.
    pub embedding: Embedding,
    /// The decoder.
    pub decoder: CaptionDecoder,
    /// `L_o [m, vocabulary]` or `W_p [n, vocabulary]`, and a bias.
    pub output: Linear,
    #[module(skip)]
    config: CaptionerConfig,
    #[module(skip)]
    vocabulary: Vocabulary,
    #[module(skip)]
    grid: [usize; 2],
}

/// The decoder of a [`Captioner`].
#[derive(Module, Debug)]
pub enum CaptionDecoder {
    /// Of Xu et al.
    ShowAttendTell(ShowAttendTell),
    /// Of Anderson et al.
    TopDown(TopDown),
}

/// One LSTM, whose state asks before the step.
#[derive(Module, Debug)]
pub struct ShowAttendTell {
    /// `f_c [features, n]`.
    pub initial_cell: Linear,
    /// `f_h [features, n]`.
    pub initial_hidden: Linear,
    /// `f_β [n, 1]`.
    pub gate: Linear,
    /// Reads `[E y; ẑ]`.
    pub lstm: Lstm,
    /// `L_h [n, m]`.
    pub readout_state: Linear,
    /// `L_z [features, m]`.
    pub readout_context: Linear,
    #[module(skip)]
    state_dropout: f64,
}

/// Two LSTMs: the first asks, the second predicts.
#[derive(Module, Debug)]
pub struct TopDown {
    /// `LSTM¹`, reads `[h²; ā; E y]`.
    pub asking: Lstm,
    /// `LSTM²`, reads `[v̂; h¹]`.
    pub writing: Lstm,
}

/// The state that a captioner carries from word to word.
#[derive(Debug, Clone)]
pub struct CaptionState {
    /// Of the one LSTM, or of the first and the second.
    pub layers: Vec<LstmState>,
    /// `ā [rows, features]`.
    pub mean: Tensor<2>,
    /// The regions.
    pub regions: SourceReader,
}

impl DecoderState for CaptionState {
    fn select(self, rows: &[usize], same_sources: bool) -> Self {
        let index = index(rows, &self.mean.device());
        Self {
            layers: select_layers(self.layers, &index),
            mean: self.mean.select(0, index),
            regions: self.regions.select(rows, same_sources),
        }
    }
}

impl Captioner {
    /// The vocabulary of the captions.
    pub fn vocabulary(&self) -> Vocabulary {
        self.vocabulary
    }

    /// Rows and columns of the regions, which are counted row by row.
    pub fn grid(&self) -> [usize; 2] {
        self.grid
    }

    /// Whether the weights of a step sum to 1.
    pub fn is_normalized(&self) -> bool {
        self.config.normalizer.sums_to_one()
    }

    /// Reads `images [batch, channels, height, width]` into the decoder's first state.
    pub fn encode(&self, images: Tensor<4>) -> CaptionState {
        let device = images.device();
        let mut regions = self.backbone.regions(images); // [batch, L, features]
        let [batch, count, features] = regions.dims();
        if self.config.positions {
            let sines = expect_valid(SinusoidalGrid::of_cells(features));
            regions = regions + sines.table(self.grid, &device, DType::F32).unsqueeze();
        }
        let mean: Tensor<2> = regions.clone().mean_dim(1).squeeze_dim(1);
        let keep = PaddingMask::from_lengths(&vec![count; batch], count, &device);
        CaptionState {
            layers: match &self.decoder {
                CaptionDecoder::ShowAttendTell(decoder) => vec![LstmState {
                    hidden: bridge::apply(&decoder.initial_hidden, mean.clone()).tanh(),
                    cell: bridge::apply(&decoder.initial_cell, mean.clone()).tanh(),
                }],
                CaptionDecoder::TopDown(TopDown { asking, writing }) => [asking, writing]
                    .map(|lstm| lstm.zeros(batch, &device))
                    .into(),
            },
            mean,
            regions: SourceReader::new(&self.attention, regions, keep),
        }
    }

    /// Scores the captions `target` of `images [batch, channels, height, width]`, teacher-forced.
    pub fn forward(
        &self,
        images: Tensor<4>,
        target: &TargetBatch,
        noise: &mut DropoutRng,
    ) -> Scored {
        let mut state = self.encode(images);
        if self.is_penalized() {
            // Each region also has a vector of its own that is 1 at its number: what is read of these are the weights, with their
            // gradient, from the kernel that gives the weights without.
            let values = state.regions.memory.values;
            let [batch, count, _] = values.dims();
            let own = Tensor::<2>::eye(count, &values.device()).unsqueeze_dim::<3>(0);
            let own = own.repeat_dim(0, batch); // [batch, L, L]
            state.regions.memory.values = Tensor::cat(vec![values, own], 2);
        }
        let embedded = bridge::embed(&self.embedding, target.inputs.clone());
        let embedded = dropout(embedded, self.config.dropout, noise.batch_axis(1)); // [time, batch, m]
        let steps = embedded.iter_dim(0);
        let steps = steps.map(|x| self.advance(x.squeeze_dim(0), &mut state, noise));
        let (readouts, asked): (Vec<Tensor<2>>, Vec<Asked>) = steps.unzip();
        let readout = Tensor::cat(readouts, 0); // [time · batch, m or n]
        let weights = asked.iter().map(|step| step.weights.clone()).collect();
        let sampled = Sampled::all_steps(asked.iter().map(|step| step.sampled.clone()));
        Scored {
            readout: dropout(readout, self.config.dropout, noise),
            output: self.output_weights(),
            weights: Some(Tensor::stack(weights, 1)), // [batch, time, L]
            padding: self.vocabulary.padding,
            draws: self.config.normalizer.draws(sampled),
        }
    }

    /// One step of generation: the logits of the word after the `previous` one of each row (`[rows]`), and where it looked.
    pub fn step(
        &self,
        previous: Tensor<1, Int>,
        mut state: CaptionState,
    ) -> (Output, CaptionState) {
        let embedded = bridge::embed(&self.embedding, previous.unsqueeze_dim(0)); // [1, rows, m]
        let noise = &mut DropoutRng::none();
        let (readout, asked) = self.advance(embedded.squeeze_dim(0), &mut state, noise);
        let output = Output {
            logits: self.output_weights().logits(readout),
            weights: Some(asked.weights),
        };
        (output, state)
    }

    /// `λ Σ_i (1 - Σ_t α_ti)² - λ_e Σ_ti α_ti ln α_ti` of the captions `target`, whose `weights [batch, time, L]` [`Captioner::forward`]
    /// gave: summed over them and divided by their tokens, `[1]`, for a loss that is a mean over tokens. `None` where both `λ` are 0.
    /// Padding has no look.
    pub fn penalty(&self, weights: &Tensor<3>, target: &TargetBatch) -> Option<Tensor<1>> {
        if !self.is_penalized() || target.tokens == 0 {
            return None;
        }
        let [_, length, _] = weights.dims();
        let keep = PaddingMask::from_lengths(&target.lengths, length, &weights.device());
        let looks = keep.zero_padding(weights.clone());
        let missing = sum((looks.clone().sum_dim(1) - 1.0).powi_scalar(2));
        // The logarithm of a weight of 0, which the product takes to 0, stays finite.
        let spread = -sum(looks.clone() * (looks + 1e-9).log());
        let penalty = missing * self.config.penalty + spread * self.config.entropy;
        Some(penalty / target.tokens as f64)
    }

    /// Whether the weights of training need their gradient.
    fn is_penalized(&self) -> bool {
        self.config.penalty > 0.0 || self.config.entropy > 0.0
    }

    fn output_weights(&self) -> OutputWeights {
        OutputWeights {
            weight: self.output.weight.val(),
            is_table: false,
            bias: self.output.bias.as_ref().map(|bias| bias.val()),
        }
    }

    /// One step from `x [rows, m]`, the vectors of the words before: what the output layer reads, and where it looked.
    fn advance(
        &self,
        x: Tensor<2>,
        state: &mut CaptionState,
        noise: &mut DropoutRng,
    ) -> (Tensor<2>, Asked) {
        let attention = &self.attention;
        match &self.decoder {
            CaptionDecoder::ShowAttendTell(decoder) => decoder.advance(attention, x, state, noise),
            CaptionDecoder::TopDown(decoder) => decoder.advance(attention, x, state, noise),
        }
    }
}

/// What the state `hidden` asks of the regions; of regions with vectors of their own ([`Captioner::forward`]) the weights keep their
/// gradient.
fn look(
    attention: &Attention,
    hidden: &Tensor<2>,
    state: &mut CaptionState,
    noise: &mut DropoutRng,
) -> Asked {
    let mut asked = ask(attention, hidden, &mut state.regions, noise);
    let [_, features] = state.mean.dims();
    let [_, read] = asked.context.dims();
    if read > features {
        asked.weights = asked.context.clone().narrow(1, features, read - features);
        asked.context = asked.context.narrow(1, 0, features);
    }
    asked
}

/// The state of `lstm` after it has read `inputs`, side by side.
fn read(lstm: &Lstm, inputs: Vec<Tensor<2>>, state: &LstmState) -> LstmState {
    lstm.step(lstm.project(Tensor::cat(inputs, 1)), state.clone())
}

impl ShowAttendTell {
    fn advance(
        &self,
        attention: &Attention,
        x: Tensor<2>,
        state: &mut CaptionState,
        noise: &mut DropoutRng,
    ) -> (Tensor<2>, Asked) {
        let before = state.layers[0].clone();
        let asked = look(attention, &before.hidden, state, noise);
        let gate = sigmoid(bridge::apply(&self.gate, before.hidden.clone())); // [rows, 1]
        let context = asked.context.clone() * gate;
        let after = read(&self.lstm, vec![x.clone(), context.clone()], &before);
        let seen = Tensor::ones([x.dims()[0], 1], &x.device());
        let seen = dropout(seen, self.state_dropout, noise); // [rows, 1]
        let readout = x
            + bridge::apply(&self.readout_state, after.hidden.clone() * seen)
            + bridge::apply(&self.readout_context, context);
        state.layers = vec![after];
        (readout, asked)
    }
}

impl TopDown {
    fn advance(
        &self,
        attention: &Attention,
        x: Tensor<2>,
        state: &mut CaptionState,
        noise: &mut DropoutRng,
    ) -> (Tensor<2>, Asked) {
        let inputs = vec![state.layers[1].hidden.clone(), state.mean.clone(), x];
        let first = read(&self.asking, inputs, &state.layers[0]);
        let asked = look(attention, &first.hidden, state, noise);
        let inputs = vec![asked.context.clone(), first.hidden.clone()];
        let second = read(&self.writing, inputs, &state.layers[1]);
        let readout = second.hidden.clone();
        state.layers = vec![first, second];
        (readout, asked)
    }
}
