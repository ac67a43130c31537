//! The forward pass: scores of a block of queries, softmax over the kept keys, context.
//!
//! ```text
//! one batch row:   e^{2k} of the kept keys      once
//!   16 queries:    e^{2q}                       17 KB at dim 256: stays in the first-level cache
//!                  scores                       2 queries x 2 keys at a time, see `scores.rs`
//!     each query:  bias, softmax, context       scores are compact (kept keys only), so the
//!                                               softmax needs no mask
//! ```

use super::operands::{Keys, Room};
use super::scores::softmax;
use super::{CONTEXT, Input, QUERY_BLOCK, WEIGHTS, row, row_mut};
use crate::error::{KernelError, check_length};
use crate::simd::{Kernel, Level, Simd, run};
use crate::threads::{RowsMut, for_each_chunk, rows};

/// Computes `context [batch, queries, value_dim]` and `weights [batch, queries, keys]`.
///
/// Both are completely overwritten. The formula is in the text of the module.
///
/// # Errors
/// [`KernelError`] if a slice does not have the length its shape asks for, or a keep length exceeds
/// the number of keys.
pub fn forward(
    input: &Input<'_>,
    context: &mut [f32],
    weights: &mut [f32],
) -> Result<(), KernelError> {
    forward_at(Level::current(), input, context, weights, None)
}

/// [`forward`], with the `lse [batch, queries]` of the scores as well: `ln Σ_j e^{e_ij}` over the kept keys,
/// `-∞` where there is none. With it, two passes over different keys of the same queries can be merged.
///
/// ```
/// use regard_kernels::additive::{Input, PaddingMask, Shape, forward_with_lse};
///
/// let input = Input {
///     shape: Shape { batch: 1, queries: 1, keys: 2, dim: 1, value_dim: 1 },
///     query: &[0.0],
///     key: &[0.0, 0.0],
///     v: &[1.0],
///     value: &[1.0, 3.0],
///     keep: PaddingMask::All,
///     bias: None,
/// };
/// let (mut context, mut weights, mut lse) = ([0.0], [0.0; 2], [0.0]);
/// forward_with_lse(&input, &mut context, &mut weights, &mut lse)?;
/// assert_eq!((context, lse), ([2.0], [2.0f32.ln()]));
/// # Ok::<(), regard_kernels::KernelError>(())
/// ```
///
/// # Errors
/// As [`forward`]; and if `lse` does not have `batch · queries` numbers.
pub fn forward_with_lse(
    input: &Input<'_>,
    context: &mut [f32],
    weights: &mut [f32],
    lse: &mut [f32],
) -> Result<(), KernelError> {
    forward_at(Level::current(), input, context, weights, Some(lse))
}

pub(super) fn forward_at(
    level: Level,
    input: &Input<'_>,
    context: &mut [f32],
    weights: &mut [f32],
    lse: Option<&mut [f32]>,
) -> Result<(), KernelError> {
    let shape = input.shape;
    input.check()?;
    shape.check("context", CONTEXT, context.len())?;
    shape.check("weights", WEIGHTS, weights.len())?;
    if let Some(lse) = &lse {
        let sizes = [shape.batch, shape.queries];
        check_length("lse", "[batch, queries]", &sizes, lse.len())?;
    }
    // Nothing to write: what is beside a size of 0 may be more than could be counted.
    if context.is_empty() && weights.is_empty() && lse.as_ref().is_none_or(|lse| lse.is_empty()) {
        return Ok(());
    }
    type Outputs<'a> = (RowsMut<'a, f32>, RowsMut<'a, f32>, Option<RowsMut<'a, f32>>);
    for_each_chunk(
        (
            rows(context, shape.queries * shape.value_dim),
            rows(weights, shape.queries * shape.keys),
            lse.map(|lse| rows(lse, shape.queries)),
        ),
        shape.batch,
        shape.chunk_rows(),
        shape.nanoseconds(0.045, 0.03),
        &|first, (context, weights, lse): Outputs<'_>| {
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
                    lse: lse.map(|lse| lse.data),
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
    lse: Option<&'a mut [f32]>,
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
            mut lse,
        } = self;
        let super::Shape {
            queries,
            keys,
            dim,
            value_dim,
            ..
        } = input.shape;
        let block = queries.min(QUERY_BLOCK);
        let mut kept = Vec::with_capacity(keys);
        let mut scores = vec![0.0; block * keys];
        let mut factors = Keys::new(s, input.score_vector(first).1, 1, keys);
        let mut room = Room::new(block, dim);
        for local in 0..chunk {
            let index = first + local;
            input.kept_keys(index, &mut kept);
            let key = row(input.key, index, keys * dim);
            let value = row(input.value, index, keys * value_dim);
            if input.heads() > 1 {
                factors.score_by(s, input.score_vector(index).1);
            }
            factors.read(s, 0, key, &kept);
            let (mut from, mut count) = (0, 0);
            while from + count < queries {
                from += count;
                let at = index * queries + from; // among all queries
                let most = block.min(queries - from);
                count = factors.alike(s, 0, &input.query[at * dim..][..most * dim], most);
                let scores = &mut scores[..count * kept.len()];
                factors
                    .beside(
                        s,
                        0,
                        &input.query[at * dim..][..count * dim],
                        key,
                        &kept,
                        &mut room,
                    )
                    .scores(s, count, scores);
                for i in 0..count {
                    let scores = row_mut(scores, i, kept.len());
                    if let Some(bias) = input.bias {
                        let bias = row(bias, at + i, keys);
                        for (score, &j) in scores.iter_mut().zip(&kept) {
                            *score += bias[j];
                        }
                    }
                    let (largest, total) = softmax(s, scores);
                    let to = local * queries + from + i;
                    if let Some(lse) = &mut lse {
                        lse[to] = (f64::from(largest) + f64::from(total).ln()) as f32;
                    }
                    let weights = row_mut(weights, to, keys);
                    if kept.len() < keys {
                        weights.fill(0.0);
                    }
                    for (&weight, &j) in scores.iter().zip(&kept) {
                        weights[j] = weight;
                    }
                    let context = row_mut(context, to, value_dim);
                    weighted_sum(s, scores, value, &kept, false, context);
                }
            }
        }
    }
}

/// `out = Σ_n weights[n] value[kept[n]]`, or added to `out`.
#[inline(always)]
pub(crate) fn weighted_sum<S: Simd>(
    s: S,
    weights: &[f32],
    value: &[f32],
    kept: &[usize],
    add: bool,
    out: &mut [f32],
) {
    const WIDE: usize = 4;
    let width = out.len();
    let mut at = 0;
    while at + WIDE * S::LANES <= width {
        let mut sums = [s.zero(); WIDE];
        if add {
            for (k, sum) in sums.iter_mut().enumerate() {
                *sum = s.load(&out[at + k * S::LANES..]);
            }
        }
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
        let mut sum = if add { s.load_at(out, at) } else { s.zero() };
        for (&weight, &j) in weights.iter().zip(kept) {
            sum = s.fma(s.splat(weight), s.load_at(row(value, j, width), at), sum);
        }
        s.store_at(out, at, sum);
        at += S::LANES;
    }
}
