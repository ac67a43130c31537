//! Forward: for each query the scores of four keys at a time, softmax over the kept keys, context.
//!
//! `q` and `v` are loaded once for four keys; the tanh, about 24 vector operations, is the whole
//! cost. Scores stand compactly (kept keys only) in a scratch row, so the softmax knows no mask.

use super::{CONTEXT, Input, WEIGHTS, row, row_mut};
use crate::error::KernelError;
use crate::simd::{self, Kernel, Level, Simd, run};
use crate::threads::{RowsMut, for_each_chunk, rows};

/// Computes `context [batch, queries, value_dim]` and `weights [batch, queries, keys]`.
///
/// Both are overwritten whole. The module's text has the formula.
///
/// # Errors
/// [`KernelError`] if a slice does not have the length its shape asks for, or a keep length exceeds
/// the number of keys.
pub fn forward(
    input: &Input<'_>,
    context: &mut [f32],
    weights: &mut [f32],
) -> Result<(), KernelError> {
    forward_at(Level::current(), input, context, weights)
}

pub(super) fn forward_at(
    level: Level,
    input: &Input<'_>,
    context: &mut [f32],
    weights: &mut [f32],
) -> Result<(), KernelError> {
    let shape = input.shape;
    input.check()?;
    shape.check("context", CONTEXT, context.len())?;
    shape.check("weights", WEIGHTS, weights.len())?;
    for_each_chunk(
        (
            rows(context, shape.queries * shape.value_dim),
            rows(weights, shape.queries * shape.keys),
        ),
        shape.batch,
        shape.chunk_rows(),
        shape.nanoseconds(0.25, 0.03),
        &|first, (context, weights): (RowsMut<f32>, RowsMut<f32>)| {
            let chunk = shape.chunk_rows().min(shape.batch - first);
            let (context, weights) = (context.data, weights.data);
            run(
                level,
                Forward {
                    input,
                    first,
                    chunk,
                    context,
                    weights,
                },
            );
        },
    );
    Ok(())
}

struct Forward<'a> {
    input: &'a Input<'a>,
    first: usize,
    chunk: usize,
    context: &'a mut [f32],
    weights: &'a mut [f32],
}

impl Kernel for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let Forward {
            input,
            first,
            chunk,
            context,
            weights,
        } = self;
        let super::Shape {
            queries,
            keys,
            dim,
            value_dim,
            ..
        } = input.shape;
        let mut kept = Vec::with_capacity(keys);
        let mut scores = vec![0.0; keys];
        for local in 0..chunk {
            let index = first + local;
            input.kept_keys(index, &mut kept);
            let key = row(input.key, index, keys * dim);
            let value = row(input.value, index, keys * value_dim);
            for i in local * queries..(local + 1) * queries {
                let query = row(input.query, first * queries + i, dim);
                let scores = &mut scores[..kept.len()];
                score_keys(s, query, input.v, key, &kept, scores);
                if let Some(bias) = input.bias {
                    let bias = row(bias, first * queries + i, keys);
                    for (score, &j) in scores.iter_mut().zip(&kept) {
                        *score += bias[j];
                    }
                }
                softmax(s, scores);
                let weights = row_mut(weights, i, keys);
                if kept.len() < keys {
                    weights.fill(0.0);
                }
                for (&weight, &j) in scores.iter().zip(&kept) {
                    weights[j] = weight;
                }
                weighted_sum(s, scores, value, &kept, row_mut(context, i, value_dim));
            }
        }
    }
}

/// `scores[n] = Σ_d v_d tanh(query_d + key[kept[n]]_d)`
#[inline(always)]
pub(crate) fn score_keys<S: Simd>(
    s: S,
    query: &[f32],
    v: &[f32],
    key: &[f32],
    kept: &[usize],
    scores: &mut [f32],
) {
    const GROUP: usize = 4;
    let dim = query.len();
    let mut groups = kept.chunks_exact(GROUP);
    let mut outputs = scores.chunks_exact_mut(GROUP);
    for (group, output) in (&mut groups).zip(&mut outputs) {
        let of_group = score_group::<S, GROUP>(
            s,
            query,
            v,
            std::array::from_fn(|n| row(key, group[n], dim)),
        );
        output.copy_from_slice(&of_group);
    }
    for (&j, output) in groups.remainder().iter().zip(outputs.into_remainder()) {
        *output = score_group(s, query, v, [row(key, j, dim)])[0];
    }
}

#[inline(always)]
fn score_group<S: Simd, const N: usize>(
    s: S,
    query: &[f32],
    v: &[f32],
    keys: [&[f32]; N],
) -> [f32; N] {
    let dim = query.len();
    let v = &v[..dim];
    let keys = keys.map(|key| &key[..dim]);
    let mut sums = [s.zero(); N];
    let whole = dim / S::LANES * S::LANES;
    let mut at = 0;
    while at < whole {
        let (q, v) = (s.load(&query[at..]), s.load(&v[at..]));
        for n in 0..N {
            let t = simd::tanh(s, s.add(q, s.load(&keys[n][at..])));
            sums[n] = s.fma(v, t, sums[n]);
        }
        at += S::LANES;
    }
    if at < dim {
        let (q, v) = (s.load_partial(&query[at..]), s.load_partial(&v[at..]));
        for n in 0..N {
            let t = simd::tanh(s, s.add(q, s.load_partial(&keys[n][at..])));
            sums[n] = s.fma(v, t, sums[n]);
        }
    }
    sums.map(|sum| s.reduce_add(sum))
}

/// Softmax in place; all zeros if every score is `-∞`.
#[inline(always)]
pub(crate) fn softmax<S: Simd>(s: S, scores: &mut [f32]) {
    let largest = simd::max(s, scores);
    if largest == f32::NEG_INFINITY && scores.iter().all(|score| !score.is_nan()) {
        scores.fill(0.0);
        return;
    }
    let shift = s.splat(largest);
    simd::zip_map(s, [], [&mut *scores], |[], [x]| {
        [simd::exp(s, s.sub(x, shift))]
    });
    let total: f32 = scores.iter().sum();
    simd::scale(s, 1.0 / total, scores);
}

/// `out = Σ_n weights[n] value[kept[n]]`
#[inline(always)]
pub(crate) fn weighted_sum<S: Simd>(
    s: S,
    weights: &[f32],
    value: &[f32],
    kept: &[usize],
    out: &mut [f32],
) {
    const WIDE: usize = 4;
    let width = out.len();
    let mut at = 0;
    while at + WIDE * S::LANES <= width {
        let mut sums = [s.zero(); WIDE];
        for (&weight, &j) in weights.iter().zip(kept) {
            let from = &row(value, j, width)[at..at + WIDE * S::LANES];
            let weight = s.splat(weight);
            for (k, sum) in sums.iter_mut().enumerate() {
                *sum = s.fma(weight, s.load(&from[k * S::LANES..]), *sum);
            }
        }
        for (k, sum) in sums.into_iter().enumerate() {
            s.store(&mut out[at + k * S::LANES..], sum);
        }
        at += WIDE * S::LANES;
    }
    while at < width {
        let mut sum = s.zero();
        for (&weight, &j) in weights.iter().zip(kept) {
            sum = s.fma(s.splat(weight), s.load_at(row(value, j, width), at), sum);
        }
        s.store_at(out, at, sum);
        at += S::LANES;
    }
}
