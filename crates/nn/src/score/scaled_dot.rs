//! Scaled dot score: `score(s, h) = scale · sᵀ h`, usually with `scale = 1 / √d` (Vaswani 2017, section 3.2.1).
//!
//! If the parts of `s` and `h` are independent with variance 1, `sᵀ h` has variance `d`; divided by `√d` the
//! scores keep variance 1 and the softmax keeps its gradient. Use it by default in Transformers; between spaces
//! that were not trained together, add a projection ([`super::General`]).
//!
//! Cost: as [`super::Dot`].
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::score::ScaledDot;
//!
//! let ones = Tensor::<4>::ones([1, 1, 1, 16], &Device::flex());
//! assert_eq!(ScaledDot::default().forward(ones.clone(), ones.clone()).into_scalar::<f32>(), 4.0);
//! assert_eq!(ScaledDot::with_scale(0.5).forward(ones.clone(), ones).into_scalar::<f32>(), 8.0);
//! ```

use burn::{
    module::Module,
    tensor::{DType, Tensor},
};

use super::{Dot, KernelForm, ScoreFunction, Sizes};
use crate::{
    attention::{AttentionError, check_finite},
    normalize::Normalize,
};

/// `scale · sᵀ h`.
#[derive(Module, Debug, Default)]
pub struct ScaledDot {
    #[module(skip)]
    scale: Option<f64>,
}

impl ScaledDot {
    /// With a chosen scale in place of `1 / √d`.
    pub fn with_scale(scale: f64) -> Self {
        Self { scale: Some(scale) }
    }

    /// The scale for vectors of `size`.
    pub fn scale(&self, size: usize) -> f64 {
        self.scale.unwrap_or(1.0 / (size as f64).sqrt())
    }

    /// `query [batch, heads, queries, size]`, `keys [batch, heads, keys, size]` -> `[batch, heads, queries, keys]`.
    pub fn forward(&self, query: Tensor<4>, keys: Tensor<4>) -> Tensor<4> {
        let scale = self.scale(query.dims()[3]);
        Dot.forward(query * scale, keys)
    }
}

impl ScoreFunction for ScaledDot {
    fn name(&self) -> &'static str {
        "scaled dot"
    }

    fn sizes(&self) -> Sizes {
        Sizes::Equal
    }

    fn score(&self, query: Tensor<4>, keys: Tensor<4>) -> Tensor<4> {
        self.forward(query, keys)
    }

    fn check(&self, _normalize: &Normalize, dtype: DType) -> Result<(), AttentionError> {
        check_finite("scale", self.scale(1), dtype)
    }

    fn form(&self, query_size: usize) -> Option<KernelForm> {
        let scale = self.scale(query_size);
        Some(KernelForm::Dot { scale })
    }
}
