//! Backward: scores' gradients from the saved weights, then one sweep over `tanh` that feeds
//! `d_query`, `d_key` and `d_v` together.
//!
//! Each batch row owns its part of `d_query`, `d_key`, `d_value`, `d_bias`. `d_v` is shared: every
//! chunk of batch rows sums its own, and the chunks are added in order at the end.

use super::{CONTEXT, Input, KEY, QUERY, Shape, VALUE, WEIGHTS, row, row_mut};
use crate::error::{KernelError, check_length};
use crate::simd::{self, Kernel, Level, Simd, run};
use crate::threads::{RowsMut, for_each_chunk, rows};

/// Where [`backward`] writes the gradients.
#[derive(Debug)]
pub struct Gradients<'a> {
    /// `[batch, queries, dim]`
    pub query: &'a mut [f32],
    /// `[batch, keys, dim]`; zeros at keys that are not kept.
    pub key: &'a mut [f32],
    /// `[dim]`
    pub v: &'a mut [f32],
    /// `[batch, keys, value_dim]`; zeros at keys that are not kept.
    pub value: &'a mut [f32],
    /// `[batch, queries, keys]`, if wanted; zeros at keys that are not kept.
    pub bias: Option<&'a mut [f32]>,
    /// Adds to what stands in `key`, `v` and `value` instead of overwriting it: the gradients of a
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
    check_length("gradients.v", "[dim]", &[shape.dim], gradients.v.len())?;
    shape.check("gradients.value", VALUE, gradients.value.len())?;
    if let Some(bias) = &gradients.bias {
        shape.check("gradients.bias", WEIGHTS, bias.len())?;
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
    // One row of `d_v` for each batch row of the split; only the first of a chunk is used.
    let mut v_parts = vec![0.0; batch.div_ceil(chunk_rows) * dim];
    let outputs = (
        rows(&mut *gradients.query, queries * dim),
        rows(&mut *gradients.key, keys * dim),
        rows(&mut *gradients.value, keys * value_dim),
        gradients
            .bias
            .as_deref_mut()
            .map(|bias| rows(bias, queries * keys)),
        ChunkRows {
            data: &mut v_parts,
            width: dim,
            chunk_rows,
        },
    );
    type Outputs<'a> = (
        RowsMut<'a, f32>,
        RowsMut<'a, f32>,
        RowsMut<'a, f32>,
        Option<RowsMut<'a, f32>>,
        ChunkRows<'a>,
    );
    for_each_chunk(
        outputs,
        batch,
        chunk_rows,
        shape.nanoseconds(0.3, 0.1),
        &|first, (query, key, value, bias, v): Outputs<'_>| {
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
    if !accumulate {
        gradients.v.fill(0.0);
    }
    if dim > 0 {
        for part in v_parts.chunks_exact(dim) {
            for (total, x) in gradients.v.iter_mut().zip(part) {
                *total += x;
            }
        }
    }
    Ok(())
}

/// One row for each chunk of batch rows, cut along with them.
struct ChunkRows<'a> {
    data: &'a mut [f32],
    width: usize,
    chunk_rows: usize,
}

impl crate::threads::Rows for ChunkRows<'_> {
    fn split(self, rows: usize) -> (Self, Self) {
        let ChunkRows {
            data,
            width,
            chunk_rows,
        } = self;
        let (head, tail) = data.split_at_mut(rows / chunk_rows * width);
        (
            ChunkRows {
                data: head,
                width,
                chunk_rows,
            },
            ChunkRows {
                data: tail,
                width,
                chunk_rows,
            },
        )
    }
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
        let mut kept = Vec::with_capacity(keys);
        let mut d_scores = vec![0.0; keys];
        for local in 0..self.chunk {
            let index = self.first + local;
            input.kept_keys(index, &mut kept);
            let key = row(input.key, index, keys * dim);
            let value = row(input.value, index, keys * value_dim);
            let d_key = row_mut(self.key, local, keys * dim);
            let d_value = row_mut(self.value, local, keys * value_dim);
            let add = self.accumulate || queries != 1;
            if !self.accumulate {
                // A single query writes every kept key, so only the others need their zeros.
                let mut written = kept.iter().copied().filter(|_| queries == 1).peekable();
                for j in 0..keys {
                    if written.next_if_eq(&j).is_none() {
                        row_mut(d_key, j, dim).fill(0.0);
                        row_mut(d_value, j, value_dim).fill(0.0);
                    }
                }
            }
            for i in 0..queries {
                let at = index * queries + i;
                let weights = row(self.weights, at, keys);
                let d_context = row(self.d_context, at, value_dim);
                let d_scores = &mut d_scores[..kept.len()];

                let mut expected = 0.0;
                for (d_score, &j) in d_scores.iter_mut().zip(&kept) {
                    *d_score = simd::dot(s, d_context, row(value, j, value_dim));
                    if let Some(d_weights) = self.d_weights {
                        *d_score += d_weights[at * keys + j];
                    }
                    expected += weights[j] * *d_score;
                }
                for (d_score, &j) in d_scores.iter_mut().zip(&kept) {
                    *d_score = weights[j] * (*d_score - expected);
                }

                for &j in &kept {
                    let d_value = row_mut(d_value, j, value_dim);
                    let weight = s.splat(weights[j]);
                    if add {
                        simd::axpy(s, weights[j], d_context, d_value);
                    } else {
                        simd::zip_map(s, [d_context], [d_value], |[x], [_]| [s.mul(weight, x)]);
                    }
                }
                if let Some(bias) = &mut self.bias {
                    let bias = row_mut(bias, local * queries + i, keys);
                    bias.fill(0.0);
                    for (&d_score, &j) in d_scores.iter().zip(&kept) {
                        bias[j] = d_score;
                    }
                }
                let query = row(input.query, at, dim);
                let d_query = row_mut(self.query, local * queries + i, dim);
                let sweep = Sweep {
                    query,
                    v: input.v,
                    key,
                    kept: &kept,
                    d_scores,
                };
                if add {
                    sweep.run::<S, true>(s, d_query, d_key, self.v);
                } else {
                    sweep.run::<S, false>(s, d_query, d_key, self.v);
                }
            }
        }
    }
}

/// One query against its keys, a vector of dims at a time.
pub(crate) struct Sweep<'a> {
    pub(crate) query: &'a [f32],
    pub(crate) v: &'a [f32],
    pub(crate) key: &'a [f32],
    pub(crate) kept: &'a [usize],
    pub(crate) d_scores: &'a [f32],
}

impl Sweep<'_> {
    #[inline(always)]
    pub(crate) fn run<S: Simd, const ADD: bool>(
        &self,
        s: S,
        d_query: &mut [f32],
        d_key: &mut [f32],
        d_v: &mut [f32],
    ) {
        let dim = self.query.len();
        let whole = dim / S::LANES * S::LANES;
        let mut at = 0;
        while at < whole {
            let (q, v) = (s.load(&self.query[at..]), s.load(&self.v[at..]));
            let (mut slopes, mut values) = (s.zero(), s.zero());
            for (&d_score, &j) in self.d_scores.iter().zip(self.kept) {
                let from = j * dim + at;
                let t = simd::tanh(s, s.add(q, s.load(&self.key[from..])));
                let d = s.splat(d_score);
                let weighted = s.mul(d, t);
                let slope = s.fnma(weighted, t, d);
                values = s.add(values, weighted);
                slopes = s.add(slopes, slope);
                let to = &mut d_key[from..];
                let d_key = if ADD {
                    s.fma(v, slope, s.load(to))
                } else {
                    s.mul(v, slope)
                };
                s.store(to, d_key);
            }
            s.store(&mut d_query[at..], s.mul(v, slopes));
            let d_v = &mut d_v[at..];
            s.store(d_v, s.add(s.load(d_v), values));
            at += S::LANES;
        }
        if at < dim {
            let (q, v) = (
                s.load_partial(&self.query[at..]),
                s.load_partial(&self.v[at..]),
            );
            let (mut slopes, mut values) = (s.zero(), s.zero());
            for (&d_score, &j) in self.d_scores.iter().zip(self.kept) {
                let key = &row(self.key, j, dim)[at..];
                let t = simd::tanh(s, s.add(q, s.load_partial(key)));
                let d = s.splat(d_score);
                let weighted = s.mul(d, t);
                let slope = s.fnma(weighted, t, d);
                values = s.add(values, weighted);
                slopes = s.add(slopes, slope);
                let to = &mut row_mut(d_key, j, dim)[at..];
                let d_key = if ADD {
                    s.fma(v, slope, s.load_partial(to))
                } else {
                    s.mul(v, slope)
                };
                s.store_partial(to, d_key);
            }
            s.store_partial(&mut d_query[at..], s.mul(v, slopes));
            let d_v = &mut d_v[at..];
            s.store_partial(d_v, s.add(s.load_partial(d_v), values));
        }
    }
}
