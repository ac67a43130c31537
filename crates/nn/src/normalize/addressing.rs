//! The addressing of the Neural Turing Machine (Graves, Wayne, Danihelka 2014, section 3.3): by content, then by
//! location.
//!
//! ```text
//! w_c = softmax(β cos(k, M_i))                    content: the score is crate::score::Cosine
//! w_g = g w_c + (1 - g) w_{t-1}                   interpolation, g = σ(..)
//! w~_i = Σ_j w_g(j) s(i - j mod N)                shift, s = softmax(..) over -R..=R, among the N seen keys
//! w_i  = w~_i^γ / Σ_j w~_j^γ                      sharpening, γ = 1 + softplus(..)
//! ```
//!
//! `g`, `s` and `γ` come from the query (the controller's output). The keys that a query may see stand in a circle, and `i` and
//! `j` count these alone: hidden keys, padding among them, have no influence. Before the first query all weight is on the first
//! key that it sees. The weights go on from query to query; step by step they pass through [`crate::Attended::carried`].
//!
//! Use it where a model must find entries by similarity and then move on from there (copying, sorting). For
//! translation, content alone is enough.
//!
//! Cost: as softmax, `2R + 1` shifts, queries one after the other; a mask is read back from the device.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::{initialize::Initializer, normalize::Addressing};
//!
//! let device = Device::flex();
//! let addressing = Addressing::new(4, 1, &mut Initializer::new(1, &device));
//! let scores = Tensor::<4>::zeros([2, 1, 3, 5], &device);
//! let query = Tensor::<4>::ones([2, 1, 3, 4], &device);
//! let weights = addressing.forward(scores, None, query, None).weights;
//! let sums = weights.sum_dim(3).into_data().into_vec::<f32>().unwrap();
//! assert!(sums.iter().all(|sum| (sum - 1.0).abs() < 1e-6));
//! ```

use burn::{
    module::Module,
    nn::Linear,
    tensor::{Bool, Int, Tensor, TensorData, activation},
};

use super::{NormalizeFunction, NormalizeOptions, Normalized, masked_softmax};
use crate::{
    bridge::{apply, spread},
    initialize::Initializer,
    precision::wide,
    record::report,
};

/// Interpolation, shift and sharpening after a softmax by content.
#[derive(Module, Debug)]
pub struct Addressing {
    /// Computes `g` before the sigmoid, `[query size, 1]`.
    pub gate: Linear,
    /// Computes `s` before the softmax, `[query size, 2R + 1]`: shifts `-R..=R`.
    pub shift: Linear,
    /// Computes `γ` before `1 + softplus`, `[query size, 1]`.
    pub sharpening: Linear,
}

impl Addressing {
    /// Addressing for queries of `query_size`, with shifts of up to `range` (`R`; paper: 1).
    pub fn new(query_size: usize, range: usize, initializer: &mut Initializer) -> Self {
        Self {
            gate: initializer.linear(query_size, 1, true),
            shift: initializer.linear(query_size, 2 * range + 1, true),
            sharpening: initializer.linear(query_size, 1, true),
        }
    }

    /// Weights of scores `[batch, heads, queries, keys]`, whose consecutive queries are
    /// `[batch, heads, queries, query size]`. `before` are the weights of the query before the first,
    /// `[batch, heads, 1, keys]`.
    pub fn forward(
        &self,
        scores: Tensor<4>,
        seen: Option<Tensor<4, Bool>>,
        query: Tensor<4>,
        before: Option<Tensor<4>>,
    ) -> Normalized {
        let [batch, heads, queries, keys] = scores.dims();
        if scores.dims().contains(&0) {
            return Normalized {
                carried: before,
                ..Normalized::new(scores)
            };
        }
        let content = masked_softmax(scores, seen.clone());
        report("content", || content.clone());
        let gate = activation::sigmoid(apply(&self.gate, query.clone()));
        let shift = activation::softmax(apply(&self.shift, query.clone()), 3);
        let sharpening = activation::softplus(apply(&self.sharpening, query), 1.0) + 1.0;
        let circle = seen
            .as_ref()
            .map(|seen| Circle::new(seen, [batch, heads, keys], shift.dims()[3]));
        let mut before = before.unwrap_or_else(|| match &circle {
            Some(circle) => circle.first.clone().cast(content.dtype()),
            None => {
                let none = Tensor::zeros_like(&content.clone().narrow(2, 0, 1));
                none.slice_fill([0..batch, 0..heads, 0..1, 0..1], 1.0)
            }
        });
        let mut rows = Vec::with_capacity(queries);
        for t in 0..queries {
            let at = |x: &Tensor<4>| x.clone().narrow(2, t, 1);
            let seen = super::seen_by(t, &seen);
            let gate = at(&gate);
            let mixed = gate.clone() * at(&content) + (gate.neg() + 1.0) * before;
            report("interpolated", || mixed.clone());
            let shifted = convolve(mixed, at(&shift), |weights, i, by| match &circle {
                Some(circle) => weights.gather(3, circle.at(t, i)),
                None => weights.roll_dim(by.rem_euclid(keys as i64), 3),
            });
            let shifted = super::hide(shifted, &seen);
            report("shifted", || shifted.clone());
            before = sharpen(shifted, at(&sharpening));
            rows.push(before.clone());
        }
        Normalized {
            carried: Some(before),
            ..Normalized::new(Tensor::cat(rows, 2))
        }
    }
}

/// `Σ_r s_r · weights(i - r)`, with the shares `s` of the shifts `-R..=R` and `moved(weights, R + r, r)` for `weights(i - r)`.
fn convolve(
    weights: Tensor<4>,
    shift: Tensor<4>,
    moved: impl Fn(Tensor<4>, usize, i64) -> Tensor<4>,
) -> Tensor<4> {
    let range = (shift.dims()[3] / 2) as i64;
    let shares = shift.split(1, 3).into_iter().zip(-range..).enumerate();
    let parts = shares.map(|(i, (share, by))| moved(weights.clone(), i, by) * share);
    parts.reduce(|sum, part| sum + part).unwrap_or(weights)
}

/// The keys that each query sees, in a circle.
struct Circle {
    /// For each shift `r` in `-R..=R` the key that is `r` places before a seen one: `[batch, heads, queries or 1, keys]`.
    /// A hidden key has itself.
    shifted: Vec<Tensor<4, Int>>,
    /// 1 at the first key that the first query sees, `[batch, heads, 1, keys]`.
    first: Tensor<4>,
}

impl Circle {
    /// Of `seen`, each of whose sizes may be 1, for so many shifts.
    fn new(seen: &Tensor<4, Bool>, [batch, heads, keys]: [usize; 3], shifts: usize) -> Self {
        let device = seen.device();
        let shape = [batch, heads, seen.dims()[2], keys];
        let seen: Vec<bool> = spread(seen.clone(), shape).into_data().iter().collect();
        let rows: Vec<Vec<usize>> = seen
            .chunks_exact(keys)
            .map(|row| (0..keys).filter(|&key| row[key]).collect())
            .collect();
        let range = (shifts / 2) as i64;
        let shifted = (-range..).take(shifts).map(|by| {
            let mut from: Vec<i64> = (0..rows.len()).flat_map(|_| 0..keys as i64).collect();
            for (from, seen) in from.chunks_exact_mut(keys).zip(&rows) {
                for (rank, &key) in seen.iter().enumerate() {
                    let neighbour = (rank as i64 - by).rem_euclid(seen.len() as i64);
                    from[key] = seen[neighbour as usize] as i64;
                }
            }
            Tensor::from_data(TensorData::new(from, shape), &device)
        });
        let mut first = vec![0.0f32; batch * heads * keys];
        let first_queries = rows.iter().step_by(shape[2]);
        for (first, seen) in first.chunks_exact_mut(keys).zip(first_queries) {
            first[seen.first().copied().unwrap_or(0)] = 1.0;
        }
        Self {
            shifted: shifted.collect(),
            first: Tensor::from_data(TensorData::new(first, [batch, heads, 1, keys]), &device),
        }
    }

    /// The keys from which query `t` takes weights at shift `i`, `[batch, heads, 1, keys]`.
    fn at(&self, t: usize, i: usize) -> Tensor<4, Int> {
        let keys = self.shifted[i].clone();
        match keys.dims()[2] {
            1 => keys,
            _ => keys.narrow(2, t, 1),
        }
    }
}

/// `w^γ / Σ w^γ`; a row of zeros stays zeros.
fn sharpen(weights: Tensor<4>, sharpening: Tensor<4>) -> Tensor<4> {
    // With the logarithm of an exact 0, the gradient would be 0 · ∞.
    let dtype = weights.dtype();
    let [weights, sharpening] = [weights, sharpening].map(|x| x.cast(wide(dtype)));
    let zero = weights.clone().lower_elem(1e-30);
    let logarithms = weights.clamp_min(1e-30).log() * sharpening;
    masked_softmax(logarithms, Some(zero.bool_not())).cast(dtype)
}

impl NormalizeFunction for Addressing {
    fn name(&self) -> &'static str {
        "NTM addressing"
    }

    fn normalize(&self, scores: Tensor<4>, options: NormalizeOptions<'_>) -> Normalized {
        self.forward(scores, options.seen, options.query.clone(), options.carried)
    }

    fn query_size(&self) -> Option<usize> {
        Some(self.gate.weight.dims()[0])
    }

    fn carries(&self) -> bool {
        true
    }
}
