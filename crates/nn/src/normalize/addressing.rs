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
//! `j` count these alone: hidden keys, padding among them, have no influence. Before the first query that sees a key, all weight is on
//! the first key that it sees; a query that sees nothing is passed over. The weights go on from query to query; step by step they pass
//! through [`crate::Attended::carried`].
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
    tensor::{Bool, Device, Int, Tensor, TensorData, activation},
};

use super::{NormalizeFunction, NormalizeOptions, Normalized, masked_softmax};
use crate::{
    bridge::{apply, sigmoid, spread},
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
    /// `[batch, heads, queries, query size]`. `before` are the weights of the last query that saw a key,
    /// `[batch, heads, 1, keys]`; zeros, or `None`, where none has.
    pub fn forward(
        &self,
        scores: Tensor<4>,
        seen: Option<Tensor<4, Bool>>,
        query: Tensor<4>,
        before: Option<Tensor<4>>,
    ) -> Normalized {
        let [_, _, queries, _] = scores.dims();
        if scores.dims().contains(&0) {
            return Normalized {
                carried: before,
                ..Normalized::new(scores)
            };
        }
        let content = masked_softmax(scores, seen.clone());
        report("content", || content.clone());
        let gate = sigmoid(apply(&self.gate, query.clone()));
        let shift = activation::softmax(apply(&self.shift, query.clone()), 3);
        let sharpening = activation::softplus(apply(&self.sharpening, query), 1.0) + 1.0;
        // Zeros where no query has seen a key yet.
        let mut before = before.unwrap_or_else(|| content.clone().narrow(2, 0, 1).zeros_like());
        let mut rows = Vec::with_capacity(queries);
        let (mut circle, mut start) = (None, None);
        for t in 0..queries {
            let at = |x: &Tensor<4>| x.clone().narrow(2, t, 1);
            let (gate, content, shift) = (at(&gate), at(&content), at(&shift));
            let seen_now = super::seen_by(t, &seen);
            if let Some(seen_now) = &seen_now
                && (t == 0 || seen.as_ref().is_some_and(|seen| seen.dims()[2] > 1))
            {
                circle = Some(Circle::new(seen_now, content.dims()));
                start = None;
            }
            let unbegun = before.clone().sum_dim(3).equal_elem(0.0);
            let unbegun = spread(unbegun, content.dims());
            let start = start.get_or_insert_with(|| first(&content, &circle));
            let previous = before.clone().mask_where(unbegun, start.clone());
            let mixed = gate.clone() * content + (gate.neg() + 1.0) * previous;
            report("interpolated", || mixed.clone());
            let shifted = super::hide(convolve(mixed, shift, &circle), &seen_now);
            report("shifted", || shifted.clone());
            let weights = sharpen(shifted, at(&sharpening));
            rows.push(weights.clone());
            before = super::carry_on(before, weights, &seen_now);
        }
        Normalized {
            carried: Some(before),
            ..Normalized::new(Tensor::cat(rows, 2))
        }
    }
}

/// All weight on the first key that is seen, in the shape of `content [batch, heads, 1, keys]`.
fn first(content: &Tensor<4>, circle: &Option<Circle>) -> Tensor<4> {
    let shape @ [_, _, _, keys] = content.dims();
    let mut weights = vec![0.0f32; shape.iter().product()];
    for (row, weights) in weights.chunks_exact_mut(keys).enumerate() {
        let seen = circle.as_ref().map(|circle| &circle.rows[row]);
        let first = seen.and_then(|seen| seen.first().copied());
        weights[first.unwrap_or(0)] = 1.0;
    }
    Tensor::<4>::from_data(TensorData::new(weights, shape), &content.device()).cast(content.dtype())
}

/// `Σ_r s_r · weights(i - r)` around the circle, with the shares `s` of the shifts `-R..=R`.
fn convolve(weights: Tensor<4>, shift: Tensor<4>, circle: &Option<Circle>) -> Tensor<4> {
    let [_, _, _, keys] = weights.dims();
    let range = (shift.dims()[3] / 2) as i64;
    let parts = shift
        .split(1, 3)
        .into_iter()
        .zip(-range..)
        .map(|(share, by)| {
            let weights = weights.clone();
            let moved = match circle {
                None => weights.roll_dim(by.rem_euclid(keys as i64), 3),
                Some(circle) => weights.gather(3, circle.before(by)),
            };
            moved * share
        });
    parts.reduce(|sum, part| sum + part).unwrap_or(weights)
}

/// The keys that one query sees, in a circle.
struct Circle {
    /// Of each batch element and head, in order.
    rows: Vec<Vec<usize>>,
    /// `[batch, heads, 1, keys]`
    shape: [usize; 4],
    device: Device,
}

impl Circle {
    /// Of `seen`, each of whose sizes may be 1, for weights of `shape [batch, heads, 1, keys]`.
    fn new(seen: &Tensor<4, Bool>, shape: [usize; 4]) -> Self {
        let device = seen.device();
        let seen: Vec<bool> = spread(seen.clone(), shape).into_data().iter().collect();
        let of_row = |row: &[bool]| (0..row.len()).filter(|&key| row[key]).collect();
        Self {
            rows: seen.chunks_exact(shape[3]).map(of_row).collect(),
            shape,
            device,
        }
    }

    /// For each seen key the one that is `by` places before it; for a hidden key itself.
    fn before(&self, by: i64) -> Tensor<4, Int> {
        let keys = self.shape[3];
        let mut from: Vec<i64> = self.rows.iter().flat_map(|_| 0..keys as i64).collect();
        for (from, seen) in from.chunks_exact_mut(keys).zip(&self.rows) {
            for (rank, &key) in seen.iter().enumerate() {
                let place = (rank as i64 - by).rem_euclid(seen.len() as i64);
                from[key] = seen[place as usize] as i64;
            }
        }
        Tensor::from_data(TensorData::new(from, self.shape), &self.device)
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
