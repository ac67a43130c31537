//! From word vectors to one vector of a sentence.

use burn::{module::Module, tensor::Tensor};
use regard_config::Check;
use regard_nn::{
    dropout::DropoutRng,
    initialize::Initializer,
    mask::PaddingMask,
    recurrent::{AttentivePooling, Direction, LstmStack},
};

use crate::{classifier::ClassifierMap, generator::expect_valid, lstmn::LstmnEncoder};

/// An LSTM in one direction or both.
#[derive(Module, Debug)]
pub struct LstmEncoder {
    /// Forward, then backward.
    pub directions: Vec<LstmStack>,
}

/// An LSTM in both directions with attentive pooling.
#[derive(Module, Debug)]
pub struct SelfAttentiveEncoder {
    /// The annotations.
    pub lstm: LstmEncoder,
    /// The attentive pooling of the annotations.
    pub pooling: AttentivePooling,
    /// The weight of the penalty `‖A Aᵀ - I‖²` in the loss.
    #[module(skip)]
    pub penalty: f64,
    /// Whether a hop's weights sum to 1.
    #[module(skip)]
    pub is_normalized: bool,
}

/// From word vectors to annotations.
#[derive(Module, Debug)]
pub enum SentenceEncoder {
    /// A tape searched by attention; the mean of its states.
    Lstmn(LstmnEncoder),
    /// An LSTM; the mean of its states.
    Lstm(LstmEncoder),
    /// An LSTM in both directions, pooled by attention.
    SelfAttentive(SelfAttentiveEncoder),
}

/// Checks that two directions can share `hidden` units.
pub(super) fn check_halves(hidden: usize, check: &mut Check) {
    let expected = "an even number: each direction has half of the units";
    check.require(hidden.is_multiple_of(2), "hidden", hidden, expected);
}

/// The output of an encoder for a batch.
pub(super) struct Pooled {
    /// One vector a sentence, `[batch, n]`.
    pub(super) vector: Tensor<2>,
    /// A term to add to the loss, `[1]`.
    pub(super) penalty: Option<Tensor<1>>,
    pub(super) maps: Vec<ClassifierMap>,
}

impl LstmEncoder {
    /// Layers of `hidden` units for word vectors of `embedding`, in 1 or 2 `directions`, which share the units.
    pub(super) fn new(
        directions: usize,
        [embedding, hidden, layers]: [usize; 3],
        init: &mut Initializer,
    ) -> Self {
        let units = hidden / directions;
        let stack = |_| expect_valid(LstmStack::new(layers, embedding, units, init));
        Self {
            directions: (0..directions).map(stack).collect(),
        }
    }

    /// The top states of every direction, `[time, batch, n]`.
    fn forward(
        &self,
        x: Tensor<3>,
        keep: &PaddingMask,
        dropout_probability: f64,
        noise: &mut DropoutRng,
    ) -> Tensor<3> {
        let mask = (!keep.is_full()).then(|| keep.time_major());
        let states = self
            .directions
            .iter()
            .zip([Direction::Forward, Direction::Backward])
            .map(|(stack, direction)| {
                let (states, _) = expect_valid(stack.sequence(
                    x.clone(),
                    None,
                    mask.clone(),
                    direction,
                    dropout_probability,
                    noise,
                ));
                states
            })
            .collect();
        Tensor::cat(states, 2)
    }
}

impl SentenceEncoder {
    /// Reads `x [time, batch, embedding]`; `between` is the dropout between layers.
    pub(super) fn forward(
        &self,
        x: Tensor<3>,
        keep: &PaddingMask,
        between: f64,
        noise: &mut DropoutRng,
    ) -> Pooled {
        let plain = |vector| Pooled {
            vector,
            penalty: None,
            maps: vec![],
        };
        match self {
            Self::Lstmn(encoder) => {
                let read = encoder.forward(x, keep, between, noise);
                let map = |weights: Tensor<3>| ClassifierMap {
                    name: "lstmn.tape",
                    by_words: true,
                    weights: weights.unsqueeze_dim(1),
                    is_normalized: true,
                };
                Pooled {
                    maps: read.weights.into_iter().map(map).collect(),
                    ..plain(mean(read.hidden, keep))
                }
            }
            Self::Lstm(encoder) => plain(mean(encoder.forward(x, keep, between, noise), keep)),
            Self::SelfAttentive(encoder) => {
                let states = encoder.lstm.forward(x, keep, between, noise);
                let states = states.swap_dims(0, 1);
                let pooled = expect_valid(encoder.pooling.forward_with(states, keep, noise));
                let [batch, hops, size] = pooled.context.dims();
                let redundancy = || AttentivePooling::redundancy(pooled.weights.clone());
                let penalty = encoder.penalty;
                Pooled {
                    vector: pooled.context.clone().reshape([batch, hops * size]),
                    penalty: (penalty > 0.0).then(|| redundancy().mean() * penalty),
                    maps: vec![ClassifierMap {
                        name: "pooling",
                        by_words: false,
                        weights: pooled.weights.clone().unsqueeze_dim(2),
                        is_normalized: encoder.is_normalized,
                    }],
                }
            }
        }
    }
}

/// The mean over real steps of `states [time, batch, n]`: `[batch, n]`.
fn mean(states: Tensor<3>, keep: &PaddingMask) -> Tensor<2> {
    let [_, batch, _] = states.dims();
    let device = states.device();
    let shares: Vec<f32> = keep
        .lengths()
        .iter()
        .map(|&length| 1.0 / length.max(1) as f32)
        .collect();
    let shares = Tensor::<1>::from_floats(shares.as_slice(), &device).reshape([batch, 1]);
    let states = keep.zero_padding(states.swap_dims(0, 1)); // [batch, time, n]
    states.sum_dim(1).squeeze_dim::<2>(1) * shares
}
