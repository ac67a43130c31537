//! From word vectors to one vector of a sentence.

use burn::{module::Module, tensor::Tensor};
use regard_nn::{
    bridge,
    dropout::DropoutRng,
    mask::PaddingMask,
    recurrent::{AttentivePooling, Direction},
};

pub use crate::recurrent::LstmEncoder;
pub(super) use crate::recurrent::check_halves;
use crate::{classifier::ClassifierMap, generator::expect_valid, lstmn::LstmnEncoder};

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

/// The output of an encoder for a batch.
pub(super) struct Pooled {
    /// One vector a sentence, `[batch, n]`.
    pub(super) vector: Tensor<2>,
    /// A term to add to the loss, `[1]`.
    pub(super) penalty: Option<Tensor<1>>,
    pub(super) maps: Vec<ClassifierMap>,
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
        let states = |lstm: &LstmEncoder, x, noise: &mut DropoutRng| {
            let real = (!keep.is_full()).then(|| keep.time_major());
            let both = [Direction::Forward, Direction::Backward];
            lstm.sequence(x, real, both, between, noise).0
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
            Self::Lstm(encoder) => plain(mean(states(encoder, x, noise), keep)),
            Self::SelfAttentive(encoder) => {
                let states = states(&encoder.lstm, x, noise).swap_dims(0, 1);
                let pooled = expect_valid(encoder.pooling.forward_with(states, keep, noise));
                let [batch, hops, size] = pooled.context.dims();
                let redundancy = || AttentivePooling::redundancy(pooled.weights.clone());
                let penalty = encoder.penalty;
                Pooled {
                    vector: pooled.context.clone().reshape([batch, hops * size]),
                    penalty: (penalty > 0.0).then(|| bridge::mean(redundancy()) * penalty),
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
pub(super) fn mean(states: Tensor<3>, keep: &PaddingMask) -> Tensor<2> {
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
