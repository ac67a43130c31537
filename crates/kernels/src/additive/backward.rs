//! The backward pass: gradients of the scores from the saved weights, then one sweep over the terms
//! that feeds `d_query`, `d_key` and `d_v` together.
//!
//! ```text
//! one batch row:   e^{2k} of the kept keys      once
//!   16 queries:    d_scores                     a dot product of d_context and value for each pair
//!                  d_value                      each key's row in registers, over the queries
//!                  d_query, d_v, sums of keys   see `sweep.rs`
//!                  d_key from the sums          once
//! ```
//!
//! Each batch row owns its part of `d_query`, `d_key`, `d_value`, `d_bias`. `d_v` is shared: every
//! chunk of batch rows sums its own, and the chunks are added in order at the end.

use super::forward::weighted_sum;
use super::operands::{Keys, Room};
use super::{CONTEXT, Input, KEY, QUERY, QUERY_BLOCK, Shape, VALUE, WEIGHTS, row, row_mut};
use crate::error::{KernelError, check_length};
use crate::simd::{self, Buffer, Kernel, Level, Simd, run};
use crate::threads::{RowsMut, for_each_chunk, rows};

/// Where [`backward`] writes the gradients.
#[derive(Debug)]
pub struct Gradients<'a> {
    /// `[batch, queries, dim]`
    pub query: &'a mut [f32],
    /// `[batch, keys, dim]`; zeros at keys that are not kept.
    pub key: &'a mut [f32],
    /// `[dim]`, or `[heads, dim]`: as [`Input::v`].
    pub v: &'a mut [f32],
    /// `[batch, keys, value_dim]`; zeros at keys that are not kept.
    pub value: &'a mut [f32],
    /// `[batch, queries, keys]`, if wanted; zeros at keys that are not kept.
    pub bias: Option<&'a mut [f32]>,
    /// Adds to what is in `key`, `v` and `value` instead of overwriting it: the gradients of a
    /// whole decoder, step by step, without a temporary. `query` and `bias` belong to one step and
    /// are always overwritten.
    pub accumulate: bool,
}

/// Computes the gradients of a loss from its gradients with respect to the context
/// (`d_context [batch, queries, value_dim]`) and, if given, the weights
/// (`d_weights [batch, queries, keys]`). `weights` are the ones that
/// [`forward`](super::forward) returned for the same `input`.
///
/// # Errors
/// [`KernelError`] if a slice does not have the length its shape asks for, or a keep length exceeds
/// the number of keys.
pub fn backward(
    input: &Input<'_>,
    weights: &[f32],
    d_context: &[f32],
    d_weights: Option<&[f32]>,
    gradients: &mut Gradients<'_>,
) -> Result<(), KernelError> {
    backward_at(
        Level::current(),
        input,
        weights,
        d_context,
        d_weights,
        gradients,
    )
}

pub(super) fn backward_at(
    level: Level,
    input: &Input<'_>,
    weights: &[f32],
    d_context: &[f32],
    d_weights: Option<&[f32]>,
    gradients: &mut Gradients<'_>,
) -> Result<(), KernelError> {
    let shape = input.shape;
    input.check()?;
    shape.check("weights", WEIGHTS, weights.len())?;
    shape.check("d_context", CONTEXT, d_context.len())?;
    if let Some(d_weights) = d_weights {
        shape.check("d_weights", WEIGHTS, d_weights.len())?;
    }
    shape.check("gradients.query", QUERY, gradients.query.len())?;
    shape.check("gradients.key", KEY, gradients.key.len())?;
    let heads = input.heads();
    let sizes = [heads, shape.dim];
    check_length(
        "gradients.v",
        "[dim] or [heads, dim], as `v`",
        &sizes,
        gradients.v.len(),
    )?;
    shape.check("gradients.value", VALUE, gradients.value.len())?;
    if let Some(bias) = &gradients.bias {
        shape.check("gradients.bias", WEIGHTS, bias.len())?;
    }

    if !gradients.accumulate {
        gradients.v.fill(0.0);
    }
    // Nothing else to write: what is beside a size of 0 may be more than could be counted.
    let of_bias = gradients.bias.as_ref().map_or(0, |bias| bias.len());
    if gradients.query.len() + gradients.key.len() + gradients.value.len() + of_bias == 0 {
        return Ok(());
    }

    let Shape {
        batch,
        queries,
        keys,
        dim,
        value_dim,
    } = shape;
    let chunk_rows = shape.chunk_rows();
    let accumulate = gradients.accumulate;
    let chunks = batch.div_ceil(chunk_rows);
    let mut v_parts = vec![0.0; chunks * heads * dim];
    let of_chunk = |width| chunk_rows * width;
    let outputs = (
        rows(&mut *gradients.query, of_chunk(queries * dim)),
        rows(&mut *gradients.key, of_chunk(keys * dim)),
        rows(&mut *gradients.value, of_chunk(keys * value_dim)),
        gradients
            .bias
            .as_deref_mut()
            .map(|bias| rows(bias, of_chunk(queries * keys))),
        rows(&mut v_parts, heads * dim),
    );
    type Outputs<'a> = (
        RowsMut<'a, f32>,
        RowsMut<'a, f32>,
        RowsMut<'a, f32>,
        Option<RowsMut<'a, f32>>,
        RowsMut<'a, f32>,
    );
    for_each_chunk(
        outputs,
        chunks,
        1,
        shape.nanoseconds(0.08, 0.1),
        &|index, (query, key, value, bias, v): Outputs<'_>| {
            let first = index * chunk_rows;
            run(
                level,
                Backward {
                    input,
                    weights,
                    d_context,
                    d_weights,
                    first,
                    chunk: chunk_rows.min(batch - first),
                    accumulate,
                    query: query.data,
                    key: key.data,
                    v: v.data,
                    value: value.data,
                    bias: bias.map(|bias| bias.data),
                },
            );
        },
    );
    if dim > 0 {
        for part in v_parts.chunks_exact(heads * dim) {
            for (total, x) in gradients.v.iter_mut().zip(part) {
                *total += x;
            }
        }
    }
    Ok(())
}

struct Backward<'a> {
    input: &'a Input<'a>,
    weights: &'a [f32],
    d_context: &'a [f32],
    d_weights: Option<&'a [f32]>,
    first: usize,
    chunk: usize,
    accumulate: bool,
    query: &'a mut [f32],
    key: &'a mut [f32],
    v: &'a mut [f32],
    value: &'a mut [f32],
    bias: Option<&'a mut [f32]>,
}

impl Kernel for Backward<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(mut self, s: S) {
        let input = self.input;
        let Shape {
            queries,
            keys,
            dim,
            value_dim,
            ..
        } = input.shape;
        let block = queries.min(QUERY_BLOCK);
        let mut kept = Vec::with_capacity(keys);
        let mut d_scores = vec![0.0; block * keys];
        let mut of_key = vec![0.0; block];
        let in_order: Vec<usize> = (0..block).collect();
        let mut factors = Keys::new(s, input.score_vector(self.first).1, 1, keys);
        let mut room = Room::new(block, dim);
        let mut sums = Buffer::new(factors.sums());
        for local in 0..self.chunk {
            let index = self.first + local;
            input.kept_keys(index, &mut kept);
            let key = row(input.key, index, keys * dim);
            let value = row(input.value, index, keys * value_dim);
            let d_value = row_mut(self.value, local, keys * value_dim);
            if !self.accumulate {
                d_value.fill(0.0);
            }
            let (head, v) = input.score_vector(index);
            if input.heads() > 1 {
                factors.score_by(s, v);
            }
            factors.read(s, 0, key, &kept);
            sums.fill(0.0);
            let (mut from, mut count) = (0, 0);
            while from + count < queries {
                from += count;
                let at = index * queries + from; // among all queries
                let most = block.min(queries - from);
                count = factors.alike(s, 0, &input.query[at * dim..][..most * dim], most);
                let d_context = &self.d_context[at * value_dim..][..count * value_dim];
                let d_scores = &mut d_scores[..count * kept.len()];
                for i in 0..count {
                    let weights = row(self.weights, at + i, keys);
                    let d_weights = self.d_weights.map(|d| row(d, at + i, keys));
                    let d_scores = row_mut(d_scores, i, kept.len());
                    score_gradients(
                        s,
                        weights,
                        row(d_context, i, value_dim),
                        d_weights,
                        value,
                        &kept,
                        d_scores,
                    );
                    if let Some(bias) = &mut self.bias {
                        let bias = row_mut(bias, local * queries + from + i, keys);
                        bias.fill(0.0);
                        for (&d_score, &j) in d_scores.iter().zip(&kept) {
                            bias[j] = d_score;
                        }
                    }
                }
                for &j in &kept {
                    let of_key = &mut of_key[..count];
                    for (i, weight) in of_key.iter_mut().enumerate() {
                        *weight = self.weights[(at + i) * keys + j];
                    }
                    let d_value = row_mut(d_value, j, value_dim);
                    weighted_sum(s, of_key, d_context, &in_order, true, d_value);
                }
                let query = &input.query[at * dim..][..count * dim];
                let to = local * queries + from;
                let d_query = &mut self.query[to * dim..][..count * dim];
                factors.beside(s, 0, query, key, &kept, &mut room).sweep(
                    s,
                    d_scores,
                    d_query,
                    &mut sums,
                    row_mut(self.v, head, dim),
                );
            }
            let d_key = row_mut(self.key, local, keys * dim);
            factors.write_gradient(s, &sums, &kept, self.accumulate, d_key);
        }
    }
}

/// `ė_j = w_j (a_j - Σ_l w_l a_l)` with `a_j = ċ · value_j + ẇ_j`, over the kept keys of one query.
#[inline(always)]
fn score_gradients<S: Simd>(
    s: S,
    weights: &[f32],
    d_context: &[f32],
    d_weights: Option<&[f32]>,
    value: &[f32],
    kept: &[usize],
    d_scores: &mut [f32],
) {
    let mut expected = 0.0;
    for (d_score, &j) in d_scores.iter_mut().zip(kept) {
        *d_score = simd::dot(s, d_context, row(value, j, d_context.len()));
        if let Some(d_weights) = d_weights {
            *d_score += d_weights[j];
        }
        expected += weights[j] * *d_score;
    }
    for (d_score, &j) in d_scores.iter_mut().zip(kept) {
        *d_score = weights[j] * (*d_score - expected);
    }
}
