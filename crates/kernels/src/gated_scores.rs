//! Scores of keys by a layer of gated hyperbolic tangents (Teney et al. 2018), forward and backward, in one pass.
//!
//! ```text
//! s_ij = Σ_d w_d t_ijd g_ijd,   t_ij = tanh(q_i + k_j),   g_ij = σ(q'_i + k'_j)      scores [batch, queries, keys]
//! ```
//! Rows of `query [batch, queries, 2 dim]` are `[q | q']`, those of `key [batch, keys, 2 dim]` are `[k | k']`, both projected; `w [dim]`
//! is the score vector. Backward, from the gradients `ṡ` of the scores:
//! ```text
//! d_w  = Σ ṡ_ij t_ij g_ij                       d_q_i  = Σ_j ṡ_ij w g_ij (1 - t_ij²)         d_k_j  = Σ_i of the same
//!                                               d_q'_i = Σ_j ṡ_ij w t_ij g_ij (1 - g_ij)     d_k'_j = Σ_i of the same
//! ```
//! The `[batch, queries, keys, dim]` tensors of `t` and `g` never exist: they are computed again in the backward pass. Work is split over
//! batch rows.
//!
//! ```
//! use regard_kernels::gated_scores::GatedScores;
//! let shape = GatedScores { batch: 1, queries: 1, keys: 2, dim: 1 };
//! let mut scores = [0.0; 2];
//! shape.forward(&[0.0, 0.0], &[100.0, 100.0, 100.0, 0.0], &[3.0], &mut scores)?;
//! assert_eq!(scores, [3.0, 1.5]);
//! # Ok::<(), regard_kernels::KernelError>(())
//! ```

use crate::error::{KernelError, check_length};
use crate::simd::{self, Kernel, Level, Simd, run};
use crate::threads::{for_each_chunk, rows};

#[cfg(test)]
mod tests;

/// The sizes of one problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatedScores {
    /// Independent problems.
    pub batch: usize,
    /// Queries in each.
    pub queries: usize,
    /// Keys in each.
    pub keys: usize,
    /// Hidden units.
    pub dim: usize,
}

/// What [`GatedScores::backward`] overwrites: the gradients of its inputs, each of its input's size.
#[derive(Debug)]
pub struct Gradients<'a> {
    /// `[batch, queries, 2 dim]`
    pub query: &'a mut [f32],
    /// `[batch, keys, 2 dim]`
    pub key: &'a mut [f32],
    /// `[dim]`
    pub vector: &'a mut [f32],
}

impl GatedScores {
    /// Overwrites `scores [batch, queries, keys]`.
    ///
    /// # Errors
    /// [`KernelError`] if a length does not fit the sizes.
    pub fn forward(
        &self,
        query: &[f32],
        key: &[f32],
        vector: &[f32],
        scores: &mut [f32],
    ) -> Result<(), KernelError> {
        self.forward_on(Level::current(), query, key, vector, scores)
    }

    fn forward_on(
        &self,
        level: Level,
        query: &[f32],
        key: &[f32],
        vector: &[f32],
        scores: &mut [f32],
    ) -> Result<(), KernelError> {
        self.check(query, key, vector, scores.len())?;
        if scores.is_empty() {
            return Ok(()); // of a batch that may be more than could be counted
        }
        let items = rows(scores, self.queries * self.keys);
        for_each_chunk(
            items,
            self.batch,
            1,
            self.nanoseconds(2.0),
            &|row, scores| {
                let [query, key] = self.of_row(row, query, key);
                let scores = scores.data;
                run(
                    level,
                    Forward {
                        dim: self.dim,
                        query,
                        key,
                        vector,
                        scores,
                    },
                );
            },
        );
        Ok(())
    }

    /// Overwrites `gradients` with those of the inputs, from `d_scores [batch, queries, keys]`.
    ///
    /// # Errors
    /// As [`GatedScores::forward`].
    pub fn backward(
        &self,
        query: &[f32],
        key: &[f32],
        vector: &[f32],
        d_scores: &[f32],
        gradients: Gradients<'_>,
    ) -> Result<(), KernelError> {
        self.backward_on(Level::current(), [query, key, vector, d_scores], gradients)
    }

    fn backward_on(
        &self,
        level: Level,
        [query, key, vector, d_scores]: [&[f32]; 4],
        gradients: Gradients<'_>,
    ) -> Result<(), KernelError> {
        self.check(query, key, vector, d_scores.len())?;
        self.check(
            gradients.query,
            gradients.key,
            gradients.vector,
            d_scores.len(),
        )?;
        let Self {
            queries, keys, dim, ..
        } = *self;
        gradients.vector.fill(0.0);
        // Nothing else to write: what is beside a size of 0 may be more than could be counted.
        if gradients.query.is_empty() && gradients.key.is_empty() {
            return Ok(());
        }
        let mut d_vectors = vec![0.0; self.batch * dim];
        let items = (
            rows(gradients.query, queries * 2 * dim),
            rows(gradients.key, keys * 2 * dim),
            rows(&mut d_vectors, dim),
        );
        for_each_chunk(
            items,
            self.batch,
            1,
            self.nanoseconds(4.0),
            &|row, items| {
                let (d_query, d_key, d_vector) = items;
                let [query, key] = self.of_row(row, query, key);
                d_query.data.fill(0.0);
                d_key.data.fill(0.0);
                run(
                    level,
                    Backward {
                        dim,
                        query,
                        key,
                        vector,
                        d_scores: &d_scores[row * queries * keys..][..queries * keys],
                        d_query: d_query.data,
                        d_key: d_key.data,
                        d_vector: d_vector.data,
                    },
                );
            },
        );
        for d_vector in d_vectors.chunks_exact(dim.max(1)) {
            for (sum, d) in gradients.vector.iter_mut().zip(d_vector) {
                *sum += d;
            }
        }
        Ok(())
    }

    fn check(
        &self,
        query: &[f32],
        key: &[f32],
        vector: &[f32],
        scores: usize,
    ) -> Result<(), KernelError> {
        let Self {
            batch,
            queries,
            keys,
            dim,
        } = *self;
        let both = dim.saturating_mul(2);
        check_length(
            "query",
            "[batch, queries, 2 dim]",
            &[batch, queries, both],
            query.len(),
        )?;
        check_length(
            "key",
            "[batch, keys, 2 dim]",
            &[batch, keys, both],
            key.len(),
        )?;
        check_length("vector", "[dim]", &[dim], vector.len())?;
        check_length(
            "scores",
            "[batch, queries, keys]",
            &[batch, queries, keys],
            scores,
        )
    }

    /// Queries and keys of a batch row.
    fn of_row<'a>(&self, row: usize, query: &'a [f32], key: &'a [f32]) -> [&'a [f32]; 2] {
        let cut = |all: &'a [f32], count: usize| {
            let size = count * 2 * self.dim;
            &all[row * size..][..size]
        };
        [cut(query, self.queries), cut(key, self.keys)]
    }

    fn nanoseconds(&self, of_unit: f64) -> f64 {
        (self.batch * self.queries * self.keys) as f64 * self.dim as f64 * of_unit
    }
}

/// One batch row.
struct Forward<'a> {
    dim: usize,
    query: &'a [f32],
    key: &'a [f32],
    vector: &'a [f32],
    scores: &'a mut [f32],
}

impl Kernel for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        // Without units no pair is met below.
        if self.dim == 0 {
            return self.scores.fill(0.0);
        }
        let dim = self.dim;
        let mut scores = self.scores.iter_mut();
        for query in self.query.chunks_exact(2 * dim) {
            for (key, score) in self.key.chunks_exact(2 * dim).zip(&mut scores) {
                let mut sum = s.zero();
                for at in (0..dim).step_by(S::LANES) {
                    let (t, g) = units(s, query, key, at);
                    sum = s.fma(s.mul(t, g), s.load_at(self.vector, at), sum);
                }
                *score = s.reduce_add(sum);
            }
        }
    }
}

/// `tanh(q + k)` and `σ(q' + k')` from place `at` of rows `[q | q']` and `[k | k']` on.
#[inline(always)]
fn units<S: Simd>(s: S, query: &[f32], key: &[f32], at: usize) -> (S::V, S::V) {
    let middle = query.len() / 2;
    let ((q, q_gate), (k, k_gate)) = (query.split_at(middle), key.split_at(middle));
    let value = s.add(s.load_at(q, at), s.load_at(k, at));
    let gate = s.add(s.load_at(q_gate, at), s.load_at(k_gate, at));
    (simd::tanh(s, value), simd::sigmoid(s, gate))
}

/// One batch row.
struct Backward<'a> {
    dim: usize,
    query: &'a [f32],
    key: &'a [f32],
    vector: &'a [f32],
    d_scores: &'a [f32],
    d_query: &'a mut [f32],
    d_key: &'a mut [f32],
    d_vector: &'a mut [f32],
}

impl Kernel for Backward<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let dim = self.dim.max(1);
        let one = s.splat(1.0);
        let mut d_scores = self.d_scores.iter();
        let queries = self.query.chunks_exact(2 * dim);
        for (query, d_query) in queries.zip(self.d_query.chunks_exact_mut(2 * dim)) {
            let (d_q, d_q_gate) = d_query.split_at_mut(dim);
            let keys = self.key.chunks_exact(2 * dim);
            let keys = keys.zip(self.d_key.chunks_exact_mut(2 * dim));
            for ((key, d_key), &d_score) in keys.zip(&mut d_scores) {
                let (d_k, d_k_gate) = d_key.split_at_mut(dim);
                let d_score = s.splat(d_score);
                let add = |to: &mut [f32], at, d| s.store_at(to, at, s.add(s.load_at(to, at), d));
                for at in (0..dim).step_by(S::LANES) {
                    let (t, g) = units(s, query, key, at);
                    let d_read = s.mul(d_score, s.mul(t, g));
                    add(self.d_vector, at, d_read);
                    let d_unit = s.mul(d_score, s.load_at(self.vector, at));
                    let d_value = s.mul(s.mul(d_unit, g), s.fnma(t, t, one));
                    let d_gate = s.mul(s.mul(d_unit, t), s.mul(g, s.sub(one, g)));
                    add(d_q, at, d_value);
                    add(d_k, at, d_value);
                    add(d_q_gate, at, d_gate);
                    add(d_k_gate, at, d_gate);
                }
            }
        }
    }
}
