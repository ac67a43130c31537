//! Additive attention (Bahdanau, Cho, Bengio 2014), forward and backward, in one pass.
//!
//! ```text
//! e_ij = Σ_d v_d tanh(q_id + k_jd) + bias_ij      scores     [batch, queries, keys]
//! w_i  = softmax over the kept keys j of e_ij     weights    [batch, queries, keys]
//! c_i  = Σ_j w_ij value_j                         context    [batch, queries, value_dim]
//! ```
//! `query [batch, queries, dim]` and `key [batch, keys, dim]` are already projected (`W s` and
//! `U h`); `v [dim]` is the score vector; `value [batch, keys, value_dim]`. A key that is not kept
//! is never read, so whatever is stored there (NaN included) has no influence. A query with no kept key gets
//! weights, context and gradients of zero, and an `lse` of `-∞`.
//!
//! Several heads are several problems: `batch = sentences · heads`, the head innermost, and `v [heads, dim]`
//! instead of one vector for all. [`forward_with_lse`] also gives `lse_i = ln Σ_j e^{e_ij}`.
//!
//! Backward, from the saved weights and the gradients `ċ` of the context and `ẇ` of the weights:
//! ```text
//! a_ij   = ċ_i · value_j + ẇ_ij                   ė_ij = w_ij (a_ij - Σ_l w_il a_il) = d_bias
//! d_v    = Σ ė_ij t_ij,  t_ij = tanh(q_i + k_j)   d_value_j = Σ_i w_ij ċ_i
//! d_query_i = v ∘ Σ_j ė_ij (1 - t_ij²)            d_key_j   = v ∘ Σ_i ė_ij (1 - t_ij²)
//! ```
//! The `[batch, queries, keys, dim]` tensor of `t` never exists: it is computed again in the
//! backward pass, which is cheaper than writing and reading it.
//!
//! Work is split over batch rows only, in chunks that do not depend on the number of threads.
//!
//! `tanh(q + k) = 1 - 2 / (1 + e^{2q} e^{2k})`: the exponentials are taken of the `(queries + keys) · dim`
//! inputs only, and four terms share one division. The absolute precision is that of a direct tanh.
//!
//! ```
//! use regard_kernels::additive::{Input, PaddingMask, Shape, forward};
//!
//! let shape = Shape { batch: 1, queries: 1, keys: 3, dim: 2, value_dim: 1 };
//! let input = Input {
//!     shape,
//!     query: &[0.0, 0.0],
//!     key: &[1.0, 1.0, 1.0, 1.0, 9.0, 9.0],
//!     v: &[1.0, 1.0],
//!     value: &[10.0, 20.0, f32::NAN],
//!     keep: PaddingMask::Lengths(&[2]),
//!     bias: None,
//! };
//! let (mut context, mut weights) = ([0.0; 1], [0.0; 3]);
//! forward(&input, &mut context, &mut weights)?;
//! assert_eq!(weights, [0.5, 0.5, 0.0]);
//! assert_eq!(context, [15.0]);
//! # Ok::<(), regard_kernels::KernelError>(())
//! ```

mod backward;
mod forward;
mod operands;
mod scores;
mod sweep;

#[cfg(test)]
mod tests;

pub use backward::{Gradients, backward};
pub(crate) use forward::weighted_sum;
pub use forward::{forward, forward_with_lse};
pub(crate) use operands::{Keys, Room};
pub(crate) use scores::softmax;

use crate::error::{KernelError, check_length, product};

/// The sizes of one additive attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Independent problems: sentences, or the heads of each.
    pub batch: usize,
    /// Queries in each.
    pub queries: usize,
    /// Keys (and values) in each.
    pub keys: usize,
    /// Width of the projected queries and keys, and of `v`.
    pub dim: usize,
    /// Width of a value and of the context.
    pub value_dim: usize,
}

/// Which keys a batch row may see. The same for all of its queries.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PaddingMask<'a> {
    /// All of them.
    All,
    /// `[batch]`: the first so many keys of each row.
    Lengths(&'a [u32]),
    /// `[batch, keys]`: 1 (any number but 0) where the key may be seen, 0 where it may not.
    Mask(&'a [u8]),
}

/// The inputs of [`forward`] and [`backward`]. All slices are contiguous, last dimension innermost.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// Sizes.
    pub shape: Shape,
    /// `[batch, queries, dim]`, projected.
    pub query: &'a [f32],
    /// `[batch, keys, dim]`, projected.
    pub key: &'a [f32],
    /// `[dim]`, the score vector; or `[heads, dim]`, of which problem `b` takes number `b mod heads`.
    pub v: &'a [f32],
    /// `[batch, keys, value_dim]`.
    pub value: &'a [f32],
    /// Keys that may be seen.
    pub keep: PaddingMask<'a>,
    /// `[batch, queries, keys]`, added to the scores before the softmax; `-∞` hides a key from one query.
    pub bias: Option<&'a [f32]>,
}

/// Queries that are computed together: their exponentials stay in the first-level cache.
const QUERY_BLOCK: usize = 16;

const QUERY: &str = "[batch, queries, dim]";
const KEY: &str = "[batch, keys, dim]";
const VALUE: &str = "[batch, keys, value_dim]";
const CONTEXT: &str = "[batch, queries, value_dim]";
const WEIGHTS: &str = "[batch, queries, keys]";

impl Shape {
    fn check(
        &self,
        argument: &'static str,
        shape: &'static str,
        found: usize,
    ) -> Result<(), KernelError> {
        let sizes: &[usize] = match shape {
            QUERY => &[self.batch, self.queries, self.dim],
            KEY => &[self.batch, self.keys, self.dim],
            VALUE => &[self.batch, self.keys, self.value_dim],
            CONTEXT => &[self.batch, self.queries, self.value_dim],
            _ => &[self.batch, self.queries, self.keys],
        };
        check_length(argument, shape, sizes, found)
    }

    /// A rough estimate of the time on one thread, to choose between the pool and the calling thread.
    fn nanoseconds(&self, of_tanh: f64, of_product: f64) -> f64 {
        (self.batch * self.queries * self.keys) as f64
            * (self.dim as f64 * of_tanh + self.value_dim as f64 * of_product)
    }

    /// Batch rows in a chunk of work: a function of the sizes alone.
    fn chunk_rows(&self) -> usize {
        self.batch.div_ceil(32).max(1)
    }
}

impl Input<'_> {
    fn check(&self) -> Result<(), KernelError> {
        let shape = &self.shape;
        shape.check("query", QUERY, self.query.len())?;
        shape.check("key", KEY, self.key.len())?;
        self.check_v()?;
        shape.check("value", VALUE, self.value.len())?;
        if let Some(bias) = self.bias {
            shape.check("bias", WEIGHTS, bias.len())?;
        }
        product(
            "weights",
            WEIGHTS,
            &[shape.batch, shape.queries, shape.keys],
        )?;
        match self.keep {
            PaddingMask::All => Ok(()),
            PaddingMask::Mask(mask) => check_length(
                "keep",
                "[batch, keys]",
                &[shape.batch, shape.keys],
                mask.len(),
            ),
            PaddingMask::Lengths(lengths) => {
                check_length("keep", "[batch]", &[shape.batch], lengths.len())?;
                match lengths
                    .iter()
                    .position(|&length| length as usize > shape.keys)
                {
                    None => Ok(()),
                    Some(position) => Err(KernelError::Entry {
                        argument: "keep",
                        position,
                        expected: format!("a length of at most {} keys", shape.keys),
                        found: lengths[position].to_string(),
                    }),
                }
            }
        }
    }

    /// Checks that `v` holds whole score vectors, in a number that divides the number of problems.
    fn check_v(&self) -> Result<(), KernelError> {
        let heads = self.heads();
        if self.v.len() == heads * self.shape.dim && self.shape.batch.is_multiple_of(heads) {
            return Ok(());
        }
        Err(KernelError::Length {
            argument: "v",
            shape: "[dim], or [heads, dim] with a number of heads that divides the batch",
            expected: self.shape.dim,
            found: self.v.len(),
        })
    }

    /// The number of score vectors.
    fn heads(&self) -> usize {
        self.v.len().checked_div(self.shape.dim).unwrap_or(1).max(1)
    }

    /// The score vector of batch row `index`, and its number.
    fn score_vector(&self, index: usize) -> (usize, &[f32]) {
        let head = index % self.heads();
        (head, row(self.v, head, self.shape.dim))
    }

    /// Fills `kept` with the keys that batch row `row` may see, in order.
    fn kept_keys(&self, row: usize, kept: &mut Vec<usize>) {
        let keys = self.shape.keys;
        kept.clear();
        match self.keep {
            PaddingMask::All => kept.extend(0..keys),
            PaddingMask::Lengths(lengths) => kept.extend(0..lengths[row] as usize),
            PaddingMask::Mask(mask) => {
                let mask = &mask[row * keys..(row + 1) * keys];
                kept.extend((0..keys).filter(|&key| mask[key] != 0));
            }
        }
    }
}

/// Row `index` of a matrix with rows of `width`.
#[inline(always)]
fn row(matrix: &[f32], index: usize, width: usize) -> &[f32] {
    &matrix[index * width..(index + 1) * width]
}

/// As [`row`], to write.
#[inline(always)]
fn row_mut(matrix: &mut [f32], index: usize, width: usize) -> &mut [f32] {
    &mut matrix[index * width..(index + 1) * width]
}
