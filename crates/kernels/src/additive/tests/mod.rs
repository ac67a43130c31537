//! Compares with the reference in `f64`; the error of the naive `f32` loops sets the bound.

mod definition;
mod properties;

use super::{backward::backward_at, forward::forward_at, *};
use crate::reference::{Additive, AdditiveGradients};
use crate::simd::Level;
use crate::testing::{assert_close, difference, on_every_pool, probe, random, unless_miri, wide};

/// Everything that one problem needs, owned.
struct Problem {
    shape: Shape,
    query: Vec<f32>,
    key: Vec<f32>,
    v: Vec<f32>,
    value: Vec<f32>,
    bias: Option<Vec<f32>>,
    d_context: Vec<f32>,
    d_weights: Option<Vec<f32>>,
    lengths: Option<Vec<u32>>,
    mask: Option<Vec<u8>>,
}

/// The values that [`assert_close`] can compare: `-∞` becomes a number far below all others.
fn bounded<T: crate::reference::Real>(lse: Vec<T>) -> Vec<T> {
    let floor = T::of(-1e4);
    lse.into_iter()
        .map(|x| if x < floor { floor } else { x })
        .collect()
}

impl Problem {
    fn new([batch, queries, keys, dim, value_dim]: [usize; 5]) -> Self {
        let shape = Shape {
            batch,
            queries,
            keys,
            dim,
            value_dim,
        };
        Problem {
            shape,
            query: random(1, batch * queries * dim, 2.0),
            key: random(2, batch * keys * dim, 2.0),
            v: random(3, dim, 1.0),
            value: random(4, batch * keys * value_dim, 1.0),
            bias: None,
            d_context: random(5, batch * queries * value_dim, 1.0),
            d_weights: None,
            lengths: None,
            mask: None,
        }
    }

    fn with_lengths(mut self) -> Self {
        let keys = self.shape.keys as u32;
        self.lengths = Some(
            (0..self.shape.batch as u32)
                .map(|b| b * 7 % (keys + 1))
                .collect(),
        );
        self
    }

    fn with_mask(mut self) -> Self {
        let count = self.shape.batch * self.shape.keys;
        let mut mask: Vec<u8> = (0..count).map(|i| u8::from(i * 5 % 7 > 2)).collect();
        mask[..self.shape.keys].fill(0);
        self.mask = Some(mask);
        self
    }

    /// A score vector for each of `heads`, which divide the batch.
    fn with_heads(mut self, heads: usize) -> Self {
        self.v = random(3, heads * self.shape.dim, 1.0);
        self
    }

    fn with_bias(mut self) -> Self {
        let count = self.shape.batch * self.shape.queries * self.shape.keys;
        self.bias = Some(random(6, count, 1.0));
        self.d_weights = Some(random(7, count, 1.0));
        self
    }

    fn keep(&self) -> PaddingMask<'_> {
        match (&self.lengths, &self.mask) {
            (Some(lengths), _) => PaddingMask::Lengths(lengths),
            (None, Some(mask)) => PaddingMask::Mask(mask),
            (None, None) => PaddingMask::All,
        }
    }

    fn kept(&self, row: usize, key: usize) -> bool {
        match self.keep() {
            PaddingMask::All => true,
            PaddingMask::Lengths(lengths) => key < lengths[row] as usize,
            PaddingMask::Mask(mask) => mask[row * self.shape.keys + key] != 0,
        }
    }

    /// Puts NaN and infinities wherever nothing may be seen.
    fn poison(&mut self) {
        let Shape {
            batch,
            keys,
            dim,
            value_dim,
            ..
        } = self.shape;
        for b in 0..batch {
            for j in 0..keys {
                if !self.kept(b, j) {
                    row_mut(&mut self.key, b * keys + j, dim).fill(f32::NAN);
                    row_mut(&mut self.value, b * keys + j, value_dim).fill(f32::INFINITY);
                }
            }
        }
    }

    fn input(&self) -> Input<'_> {
        Input {
            shape: self.shape,
            query: &self.query,
            key: &self.key,
            v: &self.v,
            value: &self.value,
            keep: self.keep(),
            bias: self.bias.as_deref(),
        }
    }

    /// Context, weights, and the gradients of query, key, v, value, bias; all buffers start as NaN.
    fn run(&self, level: Level) -> Vec<Vec<f32>> {
        let input = self.input();
        let nan = |like: &[f32]| vec![f32::NAN; like.len()];
        let Shape {
            batch,
            queries,
            keys,
            ..
        } = self.shape;
        let mut context = nan(&self.d_context);
        let mut weights = vec![f32::NAN; batch * queries * keys];
        let mut lse = vec![f32::NAN; batch * queries];
        forward_at(level, &input, &mut context, &mut weights, Some(&mut lse)).unwrap();
        let (mut query, mut key) = (nan(&self.query), nan(&self.key));
        let (mut v, mut value, mut bias) = (nan(&self.v), nan(&self.value), nan(&weights));
        let mut gradients = Gradients {
            query: &mut query,
            key: &mut key,
            v: &mut v,
            value: &mut value,
            bias: Some(&mut bias),
            accumulate: false,
        };
        let d_weights = self.d_weights.as_deref();
        backward_at(
            level,
            &input,
            &weights,
            &self.d_context,
            d_weights,
            &mut gradients,
        )
        .unwrap();
        vec![context, weights, query, key, v, value, bias, bounded(lse)]
    }

    /// The same by the reference, in the order of [`Self::run`].
    fn reference<T: crate::reference::Real>(&self) -> Vec<Vec<T>> {
        let cast = |x: &[f32]| -> Vec<T> { x.iter().map(|&x| T::of(f64::from(x))).collect() };
        let (query, key, v, value) = (
            cast(&self.query),
            cast(&self.key),
            cast(&self.v),
            cast(&self.value),
        );
        let bias = self.bias.as_deref().map(cast);
        let kept = |row, key| self.kept(row, key);
        let problem = Additive {
            shape: self.shape,
            query: &query,
            key: &key,
            v: &v,
            value: &value,
            kept: &kept,
            bias: bias.as_deref(),
        };
        let (context, weights) = problem.forward();
        let lse = bounded(problem.lse());
        let d_weights = self.d_weights.as_deref().map(cast);
        let AdditiveGradients {
            query,
            key,
            v,
            value,
            bias,
        } = problem.backward(&cast(&self.d_context), d_weights.as_deref());
        vec![context, weights, query, key, v, value, bias, lse]
    }
}

const NAMES: [&str; 8] = [
    "context", "weights", "d_query", "d_key", "d_v", "d_value", "d_bias", "lse",
];

/// Checks one problem on every level; returns the number of comparisons.
fn check(mut problem: Problem) -> usize {
    problem.poison();
    let (naive, truth) = (problem.reference::<f32>(), problem.reference::<f64>());
    for &level in Level::available() {
        let fast = problem.run(level);
        for (i, name) in NAMES.iter().enumerate() {
            let factor = if i < 2 || i == 7 { 2.0 } else { 3.0 };
            let name = format!("{name} {:?} {level:?}", problem.shape);
            assert_close(&name, &fast[i], &naive[i], &truth[i], factor);
        }
    }
    NAMES.len() * Level::available().len()
}
