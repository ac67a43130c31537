//! The blocks of the backward pass, each a function of its own so that its registers are its own.
//!
//! ```text
//! WeightKernel    P  [keys, queries] = e^(K Q - lse)        queries in the lanes
//! GradientKernel  dS [keys, queries] = P ∘ (V dO - δ)       queries in the lanes
//! SpreadKernel    dV [keys, dims]   += P dO, dK += dS Q     dims in the lanes
//! ```

use std::ops::Range;

use crate::{
    mask::TILE_KEYS,
    prefetch::Prefetch,
    simd::{Kernel, Simd, axpy, exp2},
};

use super::{
    super::{
        micro::product,
        panel::{VECTORS, width},
        plan::Segment,
        stored::Rows,
    },
    split::Target,
};

/// Computes the weights of the keys of a segment.
pub(super) struct WeightBlock<'a> {
    /// `[dim, width]`
    pub(super) query: &'a [f32],
    pub(super) dim: usize,
    pub(super) key: Rows,
    pub(super) segment: &'a Segment,
    /// How products become powers of 2: base, factor and `-log₂` of the sum. With `None` the products themselves are
    /// written.
    pub(super) scores: Option<(&'a [f32], f32, &'a [f32])>,
    /// `[keys rounded up to 16, width]`
    pub(super) weights: &'a mut [f32],
    pub(super) prefetch: &'a mut Prefetch,
}

/// Writes weights, `R` keys at a time; hidden ones are 0.
pub(super) struct WeightKernel<'a, const R: usize, const V: usize>(pub(super) WeightBlock<'a>);

impl<const R: usize, const V: usize> Kernel for WeightKernel<'_, R, V> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let block = self.0;
        let (width, segment) = (width::<S>(), block.segment);
        let offset = segment.first * S::LANES;
        let scores = block.scores.map(
            // Without this attribute the closure would be compiled without the vector instructions.
            #[inline(always)]
            |(base, factor, minus_log)| {
                (
                    vectors::<S, V>(s, base, offset),
                    s.splat(factor),
                    vectors::<S, V>(s, minus_log, offset),
                )
            },
        );
        assert!(block.query.len() >= block.dim * width && offset + V * S::LANES <= width);
        assert!(block.weights.len() >= segment.keys.next_multiple_of(R) * width);
        for row in (0..segment.keys).step_by(R) {
            block.prefetch.some(s);
            let last = segment.keys - row - 1;
            let key: [*const f32; R] =
                std::array::from_fn(|r| block.key.from(row + r.min(last)).start);
            // SAFETY: the panel has `dim` lines; the keys are rows of `dim` numbers of a checked view.
            let mut acc = unsafe {
                let query = block.query.as_ptr().add(offset);
                product::<S, R, V>(s, block.dim, query, width, key, 1)
            };
            if let Some((base, factor, minus_log)) = scores {
                for line in &mut acc {
                    for (v, x) in line.iter_mut().enumerate() {
                        *x = log_weight(s, *x, base[v], factor, minus_log[v]);
                    }
                }
                if let Some(bits) = &segment.bits {
                    select(s, segment, bits, row, &mut acc, f32::NEG_INFINITY);
                }
                for x in acc.iter_mut().flatten() {
                    *x = exp2(s, *x);
                }
            }
            for (r, line) in acc.iter().enumerate() {
                for (v, &x) in line.iter().enumerate() {
                    s.store(
                        &mut block.weights[(row + r) * width + offset + v * S::LANES..],
                        x,
                    );
                }
            }
        }
    }
}

/// The logarithm of a weight to base 2, from a score. It is capped at 0, a weight of 1: large products may differ a little
/// from those of the forward pass, which may multiply pairs of `bfloat16`.
#[inline(always)]
pub(in crate::dot) fn log_weight<S: Simd>(
    s: S,
    score: S::V,
    base: S::V,
    factor: S::V,
    minus_log: S::V,
) -> S::V {
    let x = s.fma(s.sub(score, base), factor, minus_log);
    s.min(s.zero(), x) // NaN stays
}

/// Computes the score gradients of the keys of a segment.
pub(super) struct GradientBlock<'a> {
    /// `[value_dim, width]`
    pub(super) d_output: &'a [f32],
    pub(super) value_dim: usize,
    pub(super) value: Rows,
    pub(super) segment: &'a Segment,
    /// `-δ`. With `None` the products themselves are written.
    pub(super) minus_delta: Option<&'a [f32]>,
    /// `[keys rounded up to 16, width]`
    pub(super) weights: &'a [f32],
    /// `[keys rounded up to 16, width]`
    pub(super) gradients: &'a mut [f32],
    pub(super) prefetch: &'a mut Prefetch,
}

/// Writes score gradients, `R` keys at a time; those of hidden keys are 0.
pub(super) struct GradientKernel<'a, const R: usize, const V: usize>(pub(super) GradientBlock<'a>);

impl<const R: usize, const V: usize> Kernel for GradientKernel<'_, R, V> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let block = self.0;
        let (width, segment) = (width::<S>(), block.segment);
        let offset = segment.first * S::LANES;
        let minus_delta = block.minus_delta.map(|x| vectors::<S, V>(s, x, offset));
        assert!(block.d_output.len() >= block.value_dim * width && offset + V * S::LANES <= width);
        assert!(block.weights.len() >= segment.keys.next_multiple_of(R) * width);
        assert!(block.gradients.len() >= segment.keys.next_multiple_of(R) * width);
        for row in (0..segment.keys).step_by(R) {
            block.prefetch.some(s);
            let last = segment.keys - row - 1;
            let value: [*const f32; R] =
                std::array::from_fn(|r| block.value.from(row + r.min(last)).start);
            // SAFETY: the panel has `value_dim` lines; the values are rows of as many numbers of a checked
            // view.
            let mut acc = unsafe {
                let d_output = block.d_output.as_ptr().add(offset);
                product::<S, R, V>(s, block.value_dim, d_output, width, value, 1)
            };
            if let Some(minus_delta) = minus_delta {
                for (r, line) in acc.iter_mut().enumerate() {
                    for (v, x) in line.iter_mut().enumerate() {
                        let weight = &block.weights[(row + r) * width + offset + v * S::LANES..];
                        *x = s.mul(s.add(*x, minus_delta[v]), s.load(weight));
                    }
                }
                if let Some(bits) = &segment.bits {
                    select(s, segment, bits, row, &mut acc, 0.0); // a hidden value may be NaN
                }
            }
            for (r, line) in acc.iter().enumerate() {
                for (v, &x) in line.iter().enumerate() {
                    s.store(
                        &mut block.gradients[(row + r) * width + offset + v * S::LANES..],
                        x,
                    );
                }
            }
        }
    }
}

/// `V` vectors from `offset` on.
#[inline(always)]
fn vectors<S: Simd, const V: usize>(s: S, from: &[f32], offset: usize) -> [S::V; V] {
    let mut vectors = [s.zero(); V];
    for (v, x) in vectors.iter_mut().enumerate() {
        *x = s.load(&from[offset + v * S::LANES..]);
    }
    vectors
}

/// Writes `hidden` to the places of queries that do not see the keys from `row` on.
#[inline(always)]
fn select<S: Simd, const R: usize, const V: usize>(
    s: S,
    segment: &Segment,
    bits: &[[u16; TILE_KEYS]; VECTORS],
    row: usize,
    block: &mut [[S::V; V]; R],
    hidden: f32,
) {
    for (r, line) in block.iter_mut().enumerate() {
        for (v, x) in line.iter_mut().enumerate() {
            let bits = bits[segment.first + v][row + r];
            *x = s.select(bits.into(), *x, s.splat(hidden));
        }
    }
}

/// Adds rows of queries to rows of keys, with weights or score gradients as factors.
pub(super) struct Spread<'a> {
    /// `[keys, width]`
    pub(super) scalars: &'a [f32],
    /// `[width, dim]`, dims rounded up to whole vectors.
    pub(super) rows: &'a [f32],
    pub(super) dim: usize,
    /// The rows of the keys.
    pub(super) to: Target,
    pub(super) keys: usize,
    /// The queries of the panel that are read.
    pub(super) queries: Range<usize>,
}

pub(super) struct SpreadKernel<'a>(pub(super) Spread<'a>);

impl Kernel for SpreadKernel<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        if S::LANES == 16 {
            self.0.vectors::<S, 8>(s);
        } else {
            self.0.vectors::<S, 4>(s);
        }
    }
}

impl Spread<'_> {
    /// All dims, up to 3 vectors at a time, and so that 4 are taken as 2 and 2, not as 3 and 1.
    #[inline(always)]
    fn vectors<S: Simd, const R: usize>(&self, s: S) {
        let total = self.dim.div_ceil(S::LANES);
        let mut vector = 0;
        while vector < total {
            vector += match total - vector {
                1 => self.keys::<S, R, 1>(s, vector),
                2 | 4 => self.keys::<S, R, 2>(s, vector),
                _ => self.keys::<S, R, 3>(s, vector),
            };
        }
    }

    /// `V` vectors of dims of all keys. Returns `V`.
    #[inline(always)]
    fn keys<S: Simd, const R: usize, const V: usize>(&self, s: S, vector: usize) -> usize {
        let width = width::<S>();
        let stride = self.dim.next_multiple_of(S::LANES);
        let (first, depth) = (self.queries.start, self.queries.len());
        let column = vector * S::LANES;
        assert!(self.scalars.len() >= self.keys * width && first + depth <= width);
        assert!(self.rows.len() >= width * stride && column + V * S::LANES <= stride);
        for key in (0..self.keys).step_by(R) {
            let keys = R.min(self.keys - key);
            let scalars: [*const f32; R] = std::array::from_fn(|r| {
                self.scalars
                    .as_ptr()
                    .wrapping_add((key + r.min(keys - 1)) * width + first)
            });
            // SAFETY: lines `first..first + depth` and `V` vectors from `column` on lie inside the rows, and
            // as many numbers inside each line of the tile: asserted above.
            let acc = unsafe {
                let rows = self.rows.as_ptr().add(first * stride + column);
                product::<S, R, V>(s, depth, rows, stride, scalars, 1)
            };
            for (r, line) in acc.iter().enumerate().take(keys) {
                // SAFETY: one of the rows of the keys; the task alone has it.
                let to = unsafe { self.to.from(key + r).row(self.dim) };
                for (v, &x) in line.iter().enumerate() {
                    let at = column + v * S::LANES;
                    let sum = s.add(s.load_at(to, at), x);
                    s.store_at(to, at, sum);
                }
            }
        }
        V
    }

    /// The same, reading only the queries that see a key of these segments.
    #[inline(always)]
    pub(super) fn careful<S: Simd>(&self, s: S, segments: &[Segment]) {
        let stride = self.dim.next_multiple_of(S::LANES);
        let mut key = 0;
        for segment in segments {
            for j in 0..segment.keys {
                // SAFETY: one of the rows of the keys; the task alone has it.
                let to = unsafe { self.to.from(key).row(self.dim) };
                for query in self.queries.clone() {
                    let (v, lane) = (query / S::LANES, query % S::LANES);
                    if segment
                        .bits
                        .as_ref()
                        .is_none_or(|bits| bits[v][j] >> lane & 1 == 1)
                    {
                        let factor = self.scalars[key * width::<S>() + query];
                        axpy(s, factor, &self.rows[query * stride..][..self.dim], to);
                    }
                }
                key += 1;
            }
        }
    }
}
