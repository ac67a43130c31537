//! L2 score: `score(s, h) = -scale · ‖s - h‖²`, usually with `scale = 1 / √d` (Kim, Papamakarios, Mnih 2021).
//!
//! Near vectors match. Unlike a dot score the softmax of it is a Gaussian kernel: weights depend on where the
//! vectors are, not on where the origin is. (Kim 2021 use it because self-attention is then Lipschitz when query
//! and key share their projection.)
//!
//! Use it where vectors are points in a space (memories, prototypes, Lipschitz bounds). Not where a kernel should
//! serve the call.
//!
//! Cost: as [`super::Dot`], and one norm a vector: `-‖s‖² + 2 sᵀh - ‖h‖²`. The keys' norms are computed in each call.
//! The expanded form loses precision where `‖s - h‖` is far smaller than `‖s‖`.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::score::Distance;
//!
//! let device = Device::flex();
//! let query = Tensor::<4>::from_floats([[[[1., 2.]]]], &device);
//! let keys = Tensor::<4>::from_floats([[[[1., 2.], [4., 6.]]]], &device);
//! let scores = Distance::with_scale(1.0).forward(query, keys);
//! assert_eq!(scores.into_data().into_vec::<f32>().unwrap(), [0., -25.]);
//! ```

use burn::{
    module::Module,
    tensor::{DType, Tensor},
};

use super::{Dot, ScoreFunction, Sizes};
use crate::{
    attention::{AttentionError, check_finite},
    normalize::Normalize,
    precision::wide,
};

/// `-scale · ‖s - h‖²`.
#[derive(Module, Debug, Default)]
pub struct Distance {
    #[module(skip)]
    scale: Option<f64>,
}

impl Distance {
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
        // A small difference of squares, which are large: in half precision it would be lost, or ∞ - ∞.
        let dtype = query.dtype();
        let [query, keys] = [query, keys].map(|x| x.cast(wide(dtype)));
        let squared = |x: &Tensor<4>| x.clone().powi_scalar(2).sum_dim(3);
        let of_query = squared(&query); // [batch, heads, queries, 1]
        let of_keys = squared(&keys).swap_dims(2, 3); // [batch, heads, 1, keys]
        ((Dot.forward(query, keys) * 2.0 - of_query - of_keys) * scale).cast(dtype)
    }
}

impl ScoreFunction for Distance {
    fn name(&self) -> &'static str {
        "L2 distance"
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
}
