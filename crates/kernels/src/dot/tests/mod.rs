//! The kernels against their definition.

mod definition;
mod extremes;
mod observe;
mod properties;
mod public;
mod together;

use super::{
    Observe, Pooled, Top, forward_at,
    observe::{observe_at, pool_at},
    pool, reference,
};
use crate::{
    Alignment, Attention, Blocks, Documents, Dropout, KernelError, Offsets, RelativeBias, View,
    ViewMut, Window,
    pool::Kind,
    simd::Level,
    testing::{assert_close, on_every_pool, random, unless_miri, wide},
};

/// Sizes of one call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) batch: usize,
    pub(super) heads: usize,
    pub(super) key_heads: usize,
    pub(super) queries: usize,
    pub(super) keys: usize,
    pub(super) dim: usize,
    pub(super) value_dim: usize,
}

impl Shape {
    pub(super) fn one_head(queries: usize, keys: usize, dim: usize, value_dim: usize) -> Self {
        Self {
            batch: 1,
            heads: 1,
            key_heads: 1,
            queries,
            keys,
            dim,
            value_dim,
        }
    }

    /// Shapes of query, key and value.
    pub(super) fn views(&self) -> [[usize; 4]; 3] {
        [
            [self.batch, self.heads, self.queries, self.dim],
            [self.batch, self.key_heads, self.keys, self.dim],
            [self.batch, self.key_heads, self.keys, self.value_dim],
        ]
    }

    pub(super) fn output(&self) -> [usize; 4] {
        [self.batch, self.heads, self.queries, self.value_dim]
    }

    /// Seeded query, key and value.
    pub(super) fn inputs(&self, scale: f32) -> [Vec<f32>; 3] {
        let mut seed = 0;
        self.views().map(|shape| {
            seed += 1;
            random(seed, shape.iter().product(), scale)
        })
    }
}

/// The data that the options of a shape borrow.
pub(super) struct Options {
    shape: Shape,
    bias: Vec<f32>,
    keep: Vec<u8>,
    padding: Vec<u8>,
    lengths: Vec<u32>,
    prefix: Vec<u32>,
    documents: [Vec<u32>; 2],
    table: Vec<u8>,
    relative: Vec<f32>,
    per_head: Vec<f32>,
}

/// The number of options that [`Options::set`] knows.
pub(super) const OPTIONS: usize = 18;

impl Options {
    pub(super) fn new(shape: Shape) -> Self {
        let plane = shape.queries * shape.keys;
        let blocks = shape.queries.div_ceil(32) * shape.keys.div_ceil(24);
        let documents = |length: usize, size: usize| {
            (0..shape.batch * length)
                .map(|i| (i % length / size) as u32)
                .collect()
        };
        Self {
            shape,
            bias: random(11, shape.heads * plane, 3.0),
            keep: (0..plane).map(|x| u8::from(x * 7919 % 11 > 4)).collect(),
            padding: (0..shape.batch * shape.keys)
                .map(|x| u8::from(x % 5 != 2))
                .collect(),
            lengths: (0..shape.batch)
                .map(|b| (shape.keys * 2 / 3 + b) as u32)
                .collect(),
            prefix: vec![(shape.keys / 4) as u32; shape.batch],
            documents: [documents(shape.queries, 20), documents(shape.keys, 23)],
            table: (0..blocks).map(|x| u8::from(x % 3 != 1)).collect(),
            // Shorter than the sequences.
            relative: random(13, shape.heads * 24, 2.0),
            per_head: (0..shape.heads)
                .map(|head| 0.25 / (head + 1) as f32)
                .collect(),
        }
    }

    /// Sets option number `option` and names it.
    pub(super) fn set<'a>(&'a self, option: usize, attention: &mut Attention<'a>) -> &'static str {
        let Shape {
            batch,
            heads,
            queries,
            keys,
            ..
        } = self.shape;
        let window = |left, right| Some(Window { left, right });
        match option {
            0 => (attention.scale = Some(0.3), "scale").1,
            1 => (attention.softcap = Some(2.0), "softcap").1,
            2 => (attention.causal = true, "causal").1,
            3 => (attention.alignment = Alignment::UpperLeft, "upper-left").1,
            4 => (attention.window = window(Some(19), None), "left window").1,
            5 => (attention.window = window(Some(7), Some(30)), "window").1,
            6 => (attention.prefix = Some(&self.prefix), "prefix").1,
            7 => (attention.lengths = Some(&self.lengths), "lengths").1,
            8 => {
                (
                    attention.keep = Some(View::heads_first(&self.keep, [1, 1, queries, keys])),
                    "keep",
                )
                    .1
            }
            9 => {
                (
                    attention.keep = Some(View::heads_first(&self.padding, [batch, 1, 1, keys])),
                    "padding",
                )
                    .1
            }
            10 => {
                let [query, key] = &self.documents;
                (
                    attention.documents = Some(Documents { query, key }),
                    "documents",
                )
                    .1
            }
            11 => {
                let shape = [1, 1, queries.div_ceil(32), keys.div_ceil(24)];
                let table = View::heads_first(&self.table, shape);
                (
                    attention.blocks = Some(Blocks {
                        query_size: 32,
                        key_size: 24,
                        table,
                    }),
                    "blocks",
                )
                    .1
            }
            12 => {
                let bias = View::heads_first(&self.bias, [1, heads, queries, keys]);
                (attention.bias = Some(bias), "bias").1
            }
            13 => {
                let bias = View::heads_first(&self.bias[..heads * keys], [1, heads, 1, keys]);
                (attention.bias = Some(bias), "key bias").1
            }
            14 => (attention.alibi = Some(&self.per_head), "alibi").1,
            15 => (attention.sink = Some(&self.per_head), "sink").1,
            16 => {
                (
                    attention.dropout = Some(Dropout {
                        probability: 0.3,
                        seed: 5,
                        first_batch: 0,
                    }),
                    "dropout",
                )
                    .1
            }
            17 => {
                let (values, zero) = (&self.relative[..], 9);
                (
                    attention.relative = Some(RelativeBias { values, zero }),
                    "relative",
                )
                    .1
            }
            _ => unreachable!("there are {OPTIONS} options"),
        }
    }
}

fn forward(
    level: Level,
    attention: &Attention,
    shape: Shape,
    inputs: &[Vec<f32>; 3],
) -> (Vec<f32>, Vec<f32>) {
    let [query, key, value] = shape.views();
    let rows = shape.batch * shape.heads * shape.queries;
    let mut output = vec![f32::NAN; rows * shape.value_dim];
    let mut lse = vec![f32::NAN; 3 * rows];
    forward_at(
        level,
        attention,
        View::heads_first(&inputs[0], query),
        View::heads_first(&inputs[1], key),
        View::heads_first(&inputs[2], value),
        ViewMut::heads_first(&mut output, shape.output()),
        Some(&mut lse),
    )
    .unwrap();
    (output, lse)
}

/// The `lse` of each row from its addends.
pub(super) fn sum_lse(lse: &[f32]) -> Vec<f64> {
    lse.chunks_exact(3)
        .map(|lse| lse.iter().copied().map(f64::from).sum())
        .collect()
}

/// Compares every level with the definition. Returns the number of comparisons.
fn check(name: &str, attention: &Attention, shape: Shape, inputs: &[Vec<f32>; 3]) -> usize {
    let [query, key, value] = &inputs.each_ref().map(|x| wide(x));
    let truth = reference::forward(attention, shape.views(), query, key, value);
    let [query, key, value] = inputs;
    let naive = reference::forward(attention, shape.views(), query, key, value);
    for &level in Level::available() {
        let name = format!("{name} {level:?} {shape:?}");
        let (output, lse) = forward(level, attention, shape, inputs);
        assert_close(
            &format!("{name}: output"),
            &output,
            &naive.output,
            &truth.output,
            2.0,
        );
        let lse = sum_lse(&lse);
        // -∞ must be -∞; everything else is compared.
        for (fast, truth) in lse.iter().zip(&truth.lse) {
            assert_eq!(
                *fast == f64::NEG_INFINITY,
                *truth == f64::NEG_INFINITY,
                "{name}: lse"
            );
        }
        let finite = |x: &[f64]| x.iter().map(|x| x.max(f64::MIN)).collect::<Vec<_>>();
        let truths = finite(&truth.lse);
        let largest = truth
            .lse
            .iter()
            .filter(|x| x.is_finite())
            .fold(0.0f64, |m, x| m.max(x.abs()));
        let rounding = largest * f64::from(f32::EPSILON);
        let worst = |x: &[f64]| {
            let errors = x.iter().zip(&truths).map(|(x, t)| (x - t).abs());
            errors.fold(0.0, f64::max)
        };
        let naive = worst(&finite(&wide(&naive.lse)));
        let bound = 2.0 * naive + rounding + 0.3 * f64::from(f32::EPSILON);
        let error = worst(&finite(&lse));
        assert!(
            error <= bound,
            "{name}: lse error {error:e} above {bound:e}"
        );
    }
    Level::available().len()
}
