//! Sigmoid attention: `α_i = σ(s_i + b)`: each key gets its weight independently.
//!
//! Keys do not compete; a row need not sum to 1. With `b = -ln(keys)` a row sums to about 1 at the start (Ramapuram
//! 2024), which is what [`Sigmoid::default`] does: it counts the keys that the query may see, so that neither padding nor keys
//! that are still to come change a weight. Use it where several keys, or none, may matter at once; not where one answer is
//! wanted, as nothing makes keys exclude each other.
//!
//! Cost: one exponential a score, no reduction over the row.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::normalize::Sigmoid;
//!
//! let scores = Tensor::<4>::zeros([1, 1, 1, 3], &Device::flex());
//! let weights = Sigmoid::with_bias(0.0).forward(scores.clone(), None).weights;
//! assert_eq!(weights.into_data().into_vec::<f32>().unwrap(), [0.5; 3]);
//! let weights = Sigmoid::default().forward(scores, None).weights; // 1 / (1 + 3)
//! assert_eq!(weights.into_data().into_vec::<f32>().unwrap(), [0.25; 3]);
//! ```

use burn::{
    module::Module,
    tensor::{Bool, DType, Tensor},
};

use super::{NormalizeFunction, NormalizeOptions, Normalized};
use crate::{
    attention::{AttentionError, check_finite},
    bridge::{sigmoid, spread},
    precision::wide,
};

/// `σ(s_i + b)`.
#[derive(Module, Debug, Default)]
pub struct Sigmoid {
    #[module(skip)]
    bias: Option<f64>,
}

impl Sigmoid {
    /// With a fixed `b` in place of `-ln` of the keys that a query sees.
    pub fn with_bias(bias: f64) -> Self {
        Self { bias: Some(bias) }
    }

    /// Weights of scores `[batch, heads, queries, keys]`.
    pub fn forward(&self, scores: Tensor<4>, seen: Option<Tensor<4, Bool>>) -> Normalized {
        if scores.dims().contains(&0) {
            return Normalized::new(scores);
        }
        let [_, _, _, keys] = scores.dims();
        // An unseen score may be anything, NaN included, whose gradient would be NaN times 0.
        let shown = super::hide(scores, &seen);
        let shifted = match (self.bias, &seen) {
            (Some(bias), _) => shown + bias,
            (None, None) => shown - (keys as f64).ln(),
            (None, Some(seen)) => {
                let [batch, heads, queries, _] = seen.dims();
                let seen = spread(seen.clone(), [batch, heads, queries, keys]);
                let count = seen.int().sum_dim(3).clamp_min(1);
                let dtype = shown.dtype();
                shown - count.float().cast(wide(dtype)).log().cast(dtype)
            }
        };
        let weights = sigmoid(shifted);
        Normalized::new(super::hide(weights, &seen))
    }
}

impl NormalizeFunction for Sigmoid {
    fn name(&self) -> &'static str {
        "sigmoid"
    }

    fn normalize(&self, scores: Tensor<4>, options: NormalizeOptions<'_>) -> Normalized {
        self.forward(scores, options.seen)
    }

    fn check(&self, _heads: usize, dtype: DType) -> Result<(), AttentionError> {
        check_finite("sigmoid bias", self.bias.unwrap_or(0.0), dtype)
    }
}
