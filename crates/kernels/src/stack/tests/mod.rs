//! What the tests of stacks share: stacks of every kind, states, and comparisons.

mod definition;
mod global;
mod parts;
mod plain;
mod query;
mod refusals;
mod storage;
mod windows;

use half::bf16;

use super::*;
use crate::matmul::Storage;
use crate::norm::Kind as NormKind;
use crate::testing::{on_every_pool, random, unless_miri};
use crate::{dot, loss};

fn product(seed: u64, storage: Storage, inner: usize, columns: usize) -> Product {
    let mut product = Product::zeros(storage, inner, columns).unwrap();
    let bound = 1.5 / (inner as f32).sqrt();
    for column in 0..columns {
        let values = random(seed * 1000 + column as u64, inner, bound);
        product.set_column(column, &values).unwrap();
    }
    let bias = random(seed + 7, columns, 0.3);
    Product::of(product.matrix, Some(bias)).unwrap()
}

fn norm(seed: u64, kind: NormKind, width: usize) -> NormWeights {
    let weight = random(seed, width, 0.3).iter().map(|x| 1.0 + x).collect();
    let bias = (kind == NormKind::Layer).then(|| random(seed + 1, width, 0.2));
    NormWeights {
        kind,
        weight,
        bias,
        epsilon: 1e-5,
    }
}

/// What a test chooses.
#[derive(Clone, Copy)]
struct Choice {
    sizes: Sizes,
    storage: Storage,
    scale: Option<f32>,
    window: Option<usize>,
    rotary: bool,
    relative: bool,
    alibi: bool,
    query_key_norm: bool,
    cross: bool,
    /// Whether it may have global positions.
    global: bool,
    activation: Activation,
    gated: bool,
    parallel: bool,
    /// Norms before, inside, after.
    places: [bool; 3],
}

const PLAIN: Choice = Choice {
    sizes: Sizes {
        model: 8,
        heads: 4,
        key_value_heads: 2,
        head: 6,
        softcap: None,
        causal: true,
    },
    storage: Storage::F32,
    scale: None,
    window: None,
    rotary: false,
    relative: false,
    alibi: false,
    query_key_norm: false,
    cross: false,
    global: false,
    activation: Activation::Relu,
    gated: false,
    parallel: false,
    places: [true, false, false],
};

fn choices() -> Vec<Choice> {
    let [gelu, silu] = [Activation::Gelu, Activation::Silu];
    vec![
        PLAIN,
        Choice {
            activation: gelu,
            places: [false, false, true],
            sizes: Sizes {
                causal: false,
                ..PLAIN.sizes
            },
            ..PLAIN
        },
        Choice {
            rotary: true,
            query_key_norm: true,
            activation: silu,
            gated: true,
            window: Some(3),
            ..PLAIN
        },
        Choice {
            sizes: Sizes {
                softcap: Some(2.0),
                ..PLAIN.sizes
            },
            places: [true; 3],
            scale: Some(0.3),
            activation: Activation::GeluTanh,
            gated: true,
            rotary: true,
            ..PLAIN
        },
        Choice {
            parallel: true,
            rotary: true,
            activation: gelu,
            ..PLAIN
        },
        Choice {
            cross: true,
            activation: silu,
            gated: true,
            ..PLAIN
        },
        Choice {
            relative: true,
            scale: Some(1.0),
            cross: true,
            ..PLAIN
        },
        Choice {
            alibi: true,
            rotary: true,
            window: Some(4),
            ..PLAIN
        },
        Choice {
            alibi: true,
            relative: true,
            sizes: Sizes {
                causal: false,
                ..PLAIN.sizes
            },
            ..PLAIN
        },
        Choice {
            relative: true,
            window: Some(3),
            sizes: Sizes {
                causal: false,
                ..PLAIN.sizes
            },
            ..PLAIN
        },
    ]
}

const SOURCE: usize = 5;

fn stack(choice: &Choice) -> Stack {
    let Choice { sizes, storage, .. } = *choice;
    let (query, key) = sizes.widths();
    let model = sizes.model;
    let norms = |seed| {
        let [before, inside, after] = choice.places;
        let place = |there: bool, seed| there.then(|| norm(seed, NormKind::Layer, model));
        Norms {
            before: place(before, seed),
            inside: place(inside, seed + 2),
            after: place(after, seed + 4),
        }
    };
    let block = |layer: u64| {
        let seed = 100 * layer;
        let product = |at: u64, inner, columns| product(seed + at, storage, inner, columns);
        let of_head = |at: u64| {
            let rms = NormKind::RootMeanSquare;
            choice
                .query_key_norm
                .then(|| norm(seed + at, rms, sizes.head))
        };
        let inner = if choice.gated { 22 } else { 11 };
        Block {
            attention: SelfAttention {
                query_key_value: product(1, model, query + 2 * key),
                output: product(2, query, model),
                query_norm: of_head(30),
                key_norm: of_head(31),
                scale: choice.scale,
                // Every other block sees everything, as in Gemma 2.
                window: choice.window.filter(|_| layer.is_multiple_of(2)),
                rotation: choice.rotary.then_some(0),
                global: choice.global.then(|| GlobalAttention {
                    query: product(8, model, query),
                    key_value: product(9, model, 2 * key),
                }),
                norms: norms(seed + 40),
            },
            cross: choice.cross.then(|| CrossAttention {
                query: product(3, model, query),
                key_value: product(4, SOURCE, 2 * key),
                output: product(5, query, model),
                scale: choice.scale,
                norms: norms(seed + 50),
            }),
            feed_forward: FeedForward {
                inner: product(6, model, inner),
                activation: choice.activation,
                gated: choice.gated,
                outer: product(7, 11, model),
                norms: norms(seed + 60),
                parallel: choice.parallel,
            },
        }
    };
    let rotations = vec![Rotation {
        frequencies: vec![1.0, 0.1],
        factor: 1.1,
        interleaved: false,
        long: None,
    }];
    let rotations = if choice.rotary { rotations } else { vec![] };
    let last = norm(90, NormKind::Layer, model);
    let stack = Stack::new(sizes, (0..3).map(block).collect(), Some(last), rotations).unwrap();
    let stack = match choice.relative {
        // Distances from -4 to 2, so that some are beyond either end; in each block others.
        true => stack.with_relative(
            (0..3)
                .map(|block| RelativePositions {
                    values: random(91 + block, sizes.heads * 7, 2.0),
                    zero: 4,
                })
                .collect(),
        ),
        false => Ok(stack),
    };
    let stack = stack.unwrap();
    match choice.alibi {
        true => stack.with_alibi((1..=sizes.heads).map(|head| 0.5 / head as f32).collect()),
        false => Ok(stack),
    }
    .unwrap()
}

fn close(found: &[f32], truth: &[f64], bound: f64) {
    assert_eq!(found.len(), truth.len());
    for (found, truth) in found.iter().zip(truth) {
        let error = (f64::from(*found) - truth).abs();
        assert!(error <= bound * truth.abs().max(1.0), "{found} {truth}");
    }
}

#[track_caller]
fn same_bits(a: &[f32], b: &[f32]) {
    assert_eq!(a.len(), b.len());
    let other = a
        .iter()
        .zip(b)
        .position(|(a, b)| a.to_bits() != b.to_bits());
    assert_eq!(other, None, "the first number that differs");
}

const SOURCES: [usize; 2] = [4, 2];

/// The state that a choice needs: rows 0 and 1 read source 0 and 1.
fn begin(stack: &Stack, choice: &Choice, cache: Kind) -> State {
    match choice.cross {
        true => {
            let encoded = sources();
            stack
                .begin_with_sources(&encoded, 4, &SOURCES, cache)
                .unwrap()
        }
        false => stack.begin(2, cache),
    }
}

/// `[2, 4, SOURCE]`
fn sources() -> Vec<f32> {
    random(77, 2 * 4 * SOURCE, 1.0)
}

fn step(stack: &Stack, state: &mut State, x: &[f32]) -> Vec<f32> {
    let output = product(9, Storage::F32, 8, 9);
    let mut to = vec![f32::NAN; 3];
    let counts = vec![1; x.len() / 8];
    stack
        .last_outputs(state, x, &counts, &output, &mut to, None)
        .unwrap();
    loss::log_softmax(&mut to, 9);
    to
}
