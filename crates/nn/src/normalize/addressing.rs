//! The addressing of the Neural Turing Machine (Graves, Wayne, Danihelka 2014, section 3.3): by content, then by
//! location.
//!
//! ```text
//! w_c = softmax(β cos(k, M_i))                    content: the score is crate::score::Cosine
//! w_g = g w_c + (1 - g) w_{t-1}                   interpolation, g = σ(..)
//! w~_i = Σ_j w_g(j) s(i - j mod N)                shift, s = softmax(..) over -R..=R
//! w_i  = w~_i^γ / Σ_j w~_j^γ                      sharpening, γ = 1 + softplus(..)
//! ```
//!
//! `g`, `s` and `γ` come from the query (the controller's output). Before the first query all weight is on the first
//! key. Each query continues from the weights of the one before it; in step-by-step calls they are passed on by
//! [`crate::Attended::carried`].
//!
//! Use it where a model must find entries by similarity and then move on from there (copying, sorting). For
//! translation, content alone is enough.
//!
//! Cost: as softmax, `2R + 1` shifts, queries one after the other.
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
    tensor::{Bool, Tensor, activation},
};

use super::{NormalizeFunction, NormalizeOptions, Normalized, masked_softmax};
use crate::{bridge::apply, initialize::Initializer, precision::wide, record::report};

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
        let options = (&scores.device(), scores.dtype());
        let content = masked_softmax(scores, seen.clone());
        report("content", || content.clone());
        let gate = activation::sigmoid(apply(&self.gate, query.clone()));
        let shift = activation::softmax(apply(&self.shift, query.clone()), 3);
        let sharpening = activation::softplus(apply(&self.sharpening, query), 1.0) + 1.0;
        let mut before = before.unwrap_or_else(|| {
            let first = Tensor::ones([batch, heads, 1, 1], options);
            match keys {
                1 => first,
                _ => {
                    let rest = Tensor::zeros([batch, heads, 1, keys - 1], options);
                    Tensor::cat(vec![first, rest], 3)
                }
            }
        });
        let mut rows = Vec::with_capacity(queries);
        for t in 0..queries {
            let at = |x: &Tensor<4>| x.clone().narrow(2, t, 1);
            let seen = super::seen_by(t, &seen);
            let gate = at(&gate);
            let mixed = gate.clone() * at(&content) + (gate.neg() + 1.0) * before;
            report("interpolated", || mixed.clone());
            let shifted = super::hide(convolve(mixed, at(&shift)), &seen);
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

/// `Σ_r shift_r · weights(i - r)`, with indices modulo the number of keys.
fn convolve(weights: Tensor<4>, shift: Tensor<4>) -> Tensor<4> {
    let (keys, shifts) = (weights.dims()[3], shift.dims()[3]);
    let range = shifts / 2;
    let mut sum: Option<Tensor<4>> = None;
    for (i, share) in shift.split(1, 3).into_iter().enumerate() {
        let by = (i as i64 - range as i64).rem_euclid(keys as i64);
        let moved = weights.clone().roll_dim(by, 3) * share;
        sum = Some(match sum {
            None => moved,
            Some(sum) => sum + moved,
        });
    }
    sum.unwrap_or(weights)
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
