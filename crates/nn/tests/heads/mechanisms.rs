//! Layers to test: every mechanism that acts inside one, with shared and separate heads, of awkward
//! sizes.

use crate::support::{device, values};
use burn::tensor::{Tensor, TensorData};
use regard_nn::{
    AttentionOptions, Observe,
    heads::{Gate, MultiHead, MultiHeadConfig, ProjectionLayout, QueryKeyNormKind},
    initialize::Initializer,
    mask::Mask,
    position::{Layout, PositionConfig, RelativeBucketsConfig, RotaryConfig, Scaling},
    weights,
};

pub fn drawn<const D: usize>(name: &str, shape: [usize; D], scale: f32) -> Tensor<D> {
    let data = TensorData::new(values(name, shape.iter().product(), scale), shape);
    Tensor::from_data(data, &device())
}

pub fn init(config: &MultiHeadConfig) -> MultiHead {
    config.init(&mut Initializer::new(3, &device())).unwrap()
}

/// A layer whose weights all differ from their initial values (identity, gain 1).
pub fn shaken(config: &MultiHeadConfig) -> MultiHead {
    let layer = init(config);
    let mut arrays = weights::collect(&layer);
    for (name, array) in &mut arrays {
        let noise = values(name, array.values.len(), 0.25);
        array
            .values
            .iter_mut()
            .zip(noise)
            .for_each(|(value, noise)| *value += noise);
    }
    weights::apply(layer, arrays).unwrap()
}

pub fn distance<const D: usize>(a: &Tensor<D>, b: &Tensor<D>) -> f32 {
    (a.clone() - b.clone()).abs().max().into_scalar()
}

pub fn largest<const D: usize>(a: &Tensor<D>) -> f32 {
    a.clone().abs().max().into_scalar()
}

/// Two computations of the same numbers in f32: sums of up to some hundred terms in another order.
pub fn close<const D: usize>(a: &Tensor<D>, b: &Tensor<D>) -> bool {
    distance(a, b) <= 64.0 * f32::EPSILON * largest(b).max(1.0)
}

/// Every mechanism that acts inside a layer, on heads of an even size.
pub fn mechanisms(
    heads: usize,
    groups: usize,
    head_size: usize,
) -> Vec<(&'static str, MultiHeadConfig)> {
    let plain = MultiHeadConfig {
        head_size: Some(head_size),
        ..MultiHeadConfig::grouped_query(10, heads, groups)
    };
    let at = |position| MultiHeadConfig {
        position,
        ..plain.clone()
    };
    let rotary = RotaryConfig::new(head_size / 2 * 2);
    let buckets = RelativeBucketsConfig {
        buckets: 6,
        max_distance: 12,
        bidirectional: false,
    };
    vec![
        ("plain", plain.clone()),
        (
            "fused",
            MultiHeadConfig {
                projection: ProjectionLayout::Fused,
                input_bias: true,
                ..plain.clone()
            },
        ),
        ("rotary", at(PositionConfig::Rotary(rotary))),
        (
            "interleaved",
            at(PositionConfig::Rotary(RotaryConfig {
                layout: Layout::Interleaved,
                scaling: Scaling::Linear { factor: 2.0 },
                ..rotary
            })),
        ),
        ("alibi", at(PositionConfig::Alibi)),
        ("buckets", at(PositionConfig::Buckets(buckets))),
        (
            "relative",
            at(PositionConfig::Relative {
                max_distance: 3,
                values: true,
            }),
        ),
        (
            "relative keys",
            at(PositionConfig::Relative {
                max_distance: 3,
                values: false,
            }),
        ),
        (
            "rms",
            MultiHeadConfig {
                query_key_norm: Some(QueryKeyNormKind::Rms { epsilon: 1e-6 }),
                ..at(PositionConfig::Rotary(rotary))
            },
        ),
        (
            "l2",
            MultiHeadConfig {
                query_key_norm: Some(QueryKeyNormKind::L2 { length: 8 }),
                ..plain.clone()
            },
        ),
        (
            "talking",
            MultiHeadConfig {
                talking_heads: true,
                ..at(PositionConfig::Alibi)
            },
        ),
        (
            "headwise",
            MultiHeadConfig {
                gate: Some(Gate::Headwise),
                ..plain.clone()
            },
        ),
        (
            "elementwise",
            MultiHeadConfig {
                gate: Some(Gate::Elementwise),
                ..plain
            },
        ),
    ]
}

/// Every mechanism, groups of 1, 2 and 8, awkward sizes.
pub fn all() -> Vec<(String, MultiHeadConfig)> {
    [
        (8, 8, 4),
        (8, 4, 6),
        (8, 1, 2),
        (1, 1, 40),
        (1, 1, 59),
        (1, 1, 64),
        (2, 1, 111),
    ]
    .into_iter()
    .flat_map(|(heads, groups, size)| {
        mechanisms(heads, groups, size)
            .into_iter()
            .map(move |(name, config)| (format!("{name} {heads}/{groups} of {size}"), config))
    })
    .collect()
}

/// Causal self-attention that reports nothing.
pub fn causal<'a>() -> AttentionOptions<'a> {
    AttentionOptions::new(Observe::Nothing).mask(Mask::causal())
}
