//! Softmax over what may be seen: `α_i = e^{s_i} / Σ_{j seen} e^{s_j}`, and 0 elsewhere.
//!
//! Every seen key gets some weight; only differences of scores count. A row in which nothing may be seen gives
//! weights 0 and gradient 0, never NaN. Use it unless there is a reason not to; it cannot say "nothing here matters", for which see
//! [`super::Sink`], nor give exact zeros, for which see [`super::Sparsemax`].
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
    tensor::{Bool, Tensor},
};

use super::Normalized;

/// What stands for the score of a key that is not seen: no seen score is lower, whatever it is, and it is finite, so
/// that no `inf - inf` can arise.
pub(super) const UNSEEN: f32 = f32::MIN;

/// `e^{s_i} / Σ_j e^{s_j}` over the seen keys.
#[derive(Module, Debug, Default)]
pub struct Softmax;

impl Softmax {
    /// Weights and `lse` of scores `[batch, heads, queries, keys]`.
    pub fn forward(&self, scores: Tensor<4>, seen: Option<Tensor<4, Bool>>) -> Normalized {
        let parts = Parts::new(scores, seen, None);
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
}

impl<const D: usize> Parts<D> {
    /// `sink` is one more score in the denominator, broadcast against `[.., 1]`.
    pub(super) fn new(
        scores: Tensor<D>,
        seen: Option<Tensor<D, Bool>>,
        sink: Option<Tensor<D>>,
    ) -> Self {
        let unseen = seen.map(|seen| seen.bool_not().expand(scores.dims()));
        let scores = match &unseen {
            None => scores,
            Some(unseen) => scores.mask_fill(unseen.clone(), UNSEEN),
        };
        let mut maximum = scores.clone().detach().max_dim(D - 1);
        if let Some(sink) = &sink {
            let sink = sink.clone().detach().expand(maximum.dims());
            maximum = maximum.max_pair(sink);
        }
        let mut exponentials = (scores - maximum.clone()).exp();
        if let Some(unseen) = unseen {
            exponentials = exponentials.mask_fill(unseen, 0.0);
        }
        let mut sum = exponentials.clone().sum_dim(D - 1);
        if let Some(sink) = sink {
            sum = sum + (sink - maximum.clone()).exp();
        }
        Self {
            exponentials,
            sum,
            maximum,
        }
    }

    /// `[.., keys]`.
    pub(super) fn weights(self) -> Tensor<D> {
        let empty = self.sum.clone().equal_elem(0.0);
        self.exponentials / self.sum.mask_fill(empty, 1.0)
    }

    /// `[.., 1]`; -∞ where nothing is seen.
    pub(super) fn lse(&self) -> Tensor<D> {
        self.sum.clone().log() + self.maximum.clone()
    }
}
