//! The mechanisms that the tests of attention use: every score, every normaliser, every attention
//! made of them.

use burn::tensor::{Tensor, TensorData};
use proptest::prelude::*;
use regard_nn::{
    Attended, Attention, AttentionOptions,
    initialize::Initializer,
    normalize::{Addressing, Estimator, Form, HardSample, Monotonic, Normalize, Sigmoid, Sink},
    score::{
        Additive, Cosine, Distance, GaussianWindow, General, Location, ScaledGeneral, Score,
        WeightNormAdditive,
    },
};

use crate::support::{device, numbers, values};

pub const SIZE: usize = 4;

pub fn drawn(name: &str, shape: [usize; 4], scale: f32) -> Tensor<4> {
    let values = values(name, shape.iter().product(), scale);
    Tensor::from_data(TensorData::new(values, shape), &device())
}

/// Every score, for queries and keys of [`SIZE`].
pub fn scores() -> Vec<Score> {
    let init = &mut Initializer::new(5, &device());
    vec![
        Score::dot(),
        Score::scaled_dot(),
        Score::General(General::new(SIZE, SIZE, init)),
        Score::ScaledGeneral(ScaledGeneral::new(SIZE, SIZE, init)),
        Score::Additive(Additive::new(SIZE, SIZE, 3, init)),
        Score::WeightNormAdditive(WeightNormAdditive::new(SIZE, SIZE, 3, init)),
        Score::Cosine(Cosine::fixed(2.0)),
        Score::Cosine(Cosine::learned(SIZE, init)),
        Score::Distance(Distance::default()),
        Score::Location(Location::new(SIZE, 9, init)),
        Score::GaussianWindow(GaussianWindow::new(SIZE, 2, init)),
    ]
}

/// Every normaliser, for `heads`.
pub fn normalisers(heads: usize) -> Vec<Normalize> {
    let init = &mut Initializer::new(6, &device());
    vec![
        Normalize::softmax(),
        Normalize::Sink(Sink::learned(heads, init)),
        Normalize::Sink(Sink::fixed(0.0)),
        Normalize::sparsemax(),
        Normalize::entmax15(),
        Normalize::Sigmoid(Sigmoid::default()),
        Normalize::hardmax(),
        Normalize::HardSample(HardSample::new(Estimator::StraightThrough)),
        Normalize::HardSample(HardSample::new(Estimator::Gumbel { temperature: 0.7 })),
        Normalize::HardSample(HardSample::new(Estimator::Reinforce { soften: false })),
        Normalize::Monotonic(Monotonic::new(Form::Parallel)),
        Normalize::Monotonic(Monotonic::new(Form::Recursive)),
        Normalize::Monotonic(Monotonic::new(Form::Hard)),
        Normalize::Addressing(Addressing::new(SIZE, 1, init)),
        Normalize::identity(),
    ]
}

/// Whether the two cannot be combined.
pub fn is_impossible(score: &Score, normalize: &Normalize) -> bool {
    matches!(score, Score::GaussianWindow(_)) && !matches!(normalize, Normalize::Identity(_))
}

/// Every score with every normaliser with which it can be combined.
pub fn mechanisms(heads: usize) -> Vec<Attention> {
    let mut all = vec![];
    for score in scores() {
        for normalize in normalisers(heads) {
            if !is_impossible(&score, &normalize) {
                all.push(Attention::new(score.clone()).with_normalize(normalize));
            }
        }
    }
    assert_eq!(all.len(), 10 * 15 + 1);
    all
}

pub fn named(attention: &Attention) -> String {
    format!("{} {}", attention.score.name(), attention.normalize.name())
}

pub fn same_bits(a: &Tensor<4>, b: &Tensor<4>) -> bool {
    let bits = |x: &Tensor<4>| -> Vec<u32> { numbers(x).into_iter().map(f32::to_bits).collect() };
    bits(a) == bits(b)
}

pub fn attend(attention: &Attention, x: &[Tensor<4>; 3], call: AttentionOptions<'_>) -> Attended {
    let [query, key, value] = x.clone();
    attention.forward_with(query, key, value, call).unwrap()
}

pub fn inputs(heads: usize, key_heads: usize, queries: usize, keys: usize) -> [Tensor<4>; 3] {
    [
        drawn("query", [2, heads, queries, SIZE], 2.0),
        drawn("key", [2, key_heads, keys, SIZE], 2.0),
        drawn("value", [2, key_heads, keys, 3], 2.0),
    ]
}

/// Any finite score, all magnitudes equally likely; often numbers that stand for "hidden" in other
/// people's code.
pub fn magnitude() -> impl Strategy<Value = f32> {
    let usual = [-1e9, -1e4, -1e10, -1e30, f32::MIN, f32::MAX, 1e20, 0.0];
    prop_oneof![
        1 => prop::sample::select(usual.to_vec()),
        1 => (any::<bool>(), -60.0f32..127.9).prop_map(|(negative, exponent)| {
            let size = exponent.exp2();
            if negative { -size } else { size }
        }),
    ]
}
