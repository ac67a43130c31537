//! Softmax over what may be seen: `α_i = e^{s_i} / Σ_{j seen} e^{s_j}`, and 0 elsewhere.
//!
//! Every seen key gets some weight; only differences of scores count. A row in which nothing may be seen gives
//! weights 0 and gradient 0, never NaN. Use it unless there is a reason not to; it cannot give all keys a small weight, for
//! which see [`super::Sink`], nor give exact zeros, for which see [`super::Sparsemax`].
//!
//! Cost: one exponential a score.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::normalize::masked_softmax;
//!
//! let device = Device::flex();
//! let scores = Tensor::<3>::from_floats([[[2.0, 1.0, 0.1]]], &device);
//! let weights = masked_softmax(scores, None).into_data().into_vec::<f32>().unwrap();
//! assert!((weights[0] - 0.659_001_14).abs() < 1e-6);
//! assert!((weights[2] - 0.098_565_89).abs() < 1e-6);
//! ```

use burn::{
    module::Module,
    tensor::{Bool, DType, Tensor},
};

use super::{NormalizeFunction, NormalizeOptions, Normalized};
use crate::{
    bridge::{exp, zeros_of},
    record::report,
};

/// The lowest number of a precision: no visible score is below it, and it is finite, so that no `inf - inf` can arise.
pub(super) fn lowest(dtype: DType) -> f64 {
    dtype.finfo().map_or(f64::MIN, |info| info.min)
}

/// `e^{s_i} / Σ_j e^{s_j}` over the seen keys.
#[derive(Module, Debug, Default)]
pub struct Softmax;

impl Softmax {
    /// Weights and `lse` of scores `[batch, heads, queries, keys]`.
    pub fn forward(&self, scores: Tensor<4>, seen: Option<Tensor<4, Bool>>) -> Normalized {
        let parts = Parts::new(scores, seen, None).reported();
        let lse = parts.lse();
        Normalized {
            lse: Some(lse.squeeze_dim(3)),
            ..Normalized::new(parts.weights())
        }
    }
}

/// Softmax over the last dimension where `seen` is true (`seen` broadcasts against the scores).
pub fn masked_softmax<const D: usize>(
    scores: Tensor<D>,
    seen: Option<Tensor<D, Bool>>,
) -> Tensor<D> {
    Parts::new(scores, seen, None).weights()
}

/// Numerator and denominator of a softmax.
pub(super) struct Parts<const D: usize> {
    exponentials: Tensor<D>,
    sum: Tensor<D>,
    maximum: Tensor<D>,
    unseen: Option<Tensor<D, Bool>>,
}

impl<const D: usize> Parts<D> {
    /// `sink` is one more score in the denominator, broadcast against `[.., 1]`.
    pub(super) fn new(
        scores: Tensor<D>,
        seen: Option<Tensor<D, Bool>>,
        sink: Option<Tensor<D>>,
    ) -> Self {
        let mut row = scores.dims();
        row[D - 1] = 1;
        if scores.dims().contains(&0) {
            // Sums of nothing are 0; Burn has no maximum of nothing.
            let zeros = zeros_of(
                Tensor::zeros(row, (&scores.device(), scores.dtype())),
                &scores,
            );
            let (sum, maximum) = match sink {
                None => (zeros.clone(), zeros),
                Some(sink) => (zeros.clone() + 1.0, zeros + sink),
            };
            return Self {
                exponentials: scores,
                sum,
                maximum,
                unseen: None,
            };
        }
        let unseen = seen.map(|seen| seen.bool_not().expand(scores.dims()));
        let scores = match &unseen {
            None => scores,
            Some(unseen) => {
                let lowest = lowest(scores.dtype());
                scores.mask_fill(unseen.clone(), lowest)
            }
        };
        let mut maximum = scores.clone().detach().max_dim(D - 1);
        if let Some(sink) = &sink {
            let sink = sink.clone().detach().expand(maximum.dims());
            maximum = maximum.max_pair(sink);
        }
        let mut exponentials = exp(scores - maximum.clone());
        if let Some(unseen) = &unseen {
            exponentials = exponentials.mask_fill(unseen.clone(), 0.0);
        }
        let mut sum = exponentials.clone().sum_dim(D - 1);
        if let Some(sink) = sink {
            sum = sum + exp(sink - maximum.clone());
        }
        Self {
            exponentials,
            sum,
            maximum,
            unseen,
        }
    }

    /// Reports the steps, for normalisers whose own steps these are.
    pub(super) fn reported(self) -> Self {
        report("exponentials", || self.exponentials.clone());
        self
    }

    /// `[.., keys]`.
    pub(super) fn weights(self) -> Tensor<D> {
        let empty = self.sum.clone().equal_elem(0.0);
        let weights = self.exponentials / self.sum.mask_fill(empty, 1.0);
        match self.unseen {
            // 0 even where a visible score is NaN.
            Some(unseen) => weights.mask_fill(unseen, 0.0),
            None => weights,
        }
    }

    /// `[.., 1]`; -∞ where nothing is seen.
    pub(super) fn lse(&self) -> Tensor<D> {
        self.sum.clone().log() + self.maximum.clone()
    }
}

impl NormalizeFunction for Softmax {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn normalize(&self, scores: Tensor<4>, options: NormalizeOptions<'_>) -> Normalized {
        self.forward(scores, options.seen)
    }
}
