//! No normaliser: the weights are the scores where a key is seen, 0 elsewhere.
//!
//! For scores that are weights already ([`crate::score::GaussianWindow`]), and for linear attention without a
//! softmax. A row may sum to anything, and weights may be negative. Not with an unbounded score in a deep model: nothing
//! limits the size of the context.
//!
//! Cost: none beside the mask.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::normalize::Identity;
//!
//! let scores = Tensor::<4>::from_floats([[[[2.0, -1.0]]]], &Device::flex());
//! let weights = Identity.forward(scores, None).weights;
//! assert_eq!(weights.into_data().into_vec::<f32>().unwrap(), [2.0, -1.0]);
//! ```

use burn::{
    module::Module,
    tensor::{Bool, Tensor},
};

use super::{NormalizeFunction, NormalizeOptions, Normalized};

/// `s_i`.
#[derive(Module, Debug, Default)]
pub struct Identity;

impl Identity {
    /// Weights of scores `[batch, heads, queries, keys]`.
    pub fn forward(&self, scores: Tensor<4>, seen: Option<Tensor<4, Bool>>) -> Normalized {
        Normalized::new(super::hide(scores, &seen))
    }
}

impl NormalizeFunction for Identity {
    fn name(&self) -> &'static str {
        "identity"
    }

    fn normalize(&self, scores: Tensor<4>, options: NormalizeOptions<'_>) -> Normalized {
        self.forward(scores, options.seen)
    }
}
