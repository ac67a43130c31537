//! Coverage (See, Liu & Manning 2017, section 2.3; Tu et al. 2016): the attention of earlier steps enters
//! the score, so that a decoder can move on to other positions.
//!
//! ```text
//! c_t      = Σ_{t' < t} a_{t'}                                       the coverage vector, 0 at first
//! e_ti     = vᵀ tanh(W_h h_i + W_s s_t + w_c c_ti + b)
//! covloss_t = Σ_i min(a_ti, c_ti)                                    at most 1
//! ```
//!
//! The loss, times a weight (paper: 1), is added to that of the words. **Use it** against repetition,
//! especially in summaries; the paper adds it for a short last phase of training, as a model trained with
//! it from the start learned worse. Not where a source position must be attended to many times. Cost: one
//! more `[batch, positions, a]` per step.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::{initialize::Initializer, recurrent::Coverage};
//!
//! let device = Device::flex();
//! let seen = Tensor::<2>::from_floats([[0.7, 0.3, 0.0]], &device); // looked at so far
//! let now = Tensor::<2>::from_floats([[0.5, 0.1, 0.4]], &device);
//! let loss: f32 = Coverage::loss(now, seen).into_scalar();
//! assert!((loss - 0.6).abs() < 1e-6);
//! # let _ = Coverage::new(4, &mut Initializer::new(1, &device));
//! ```

use burn::{
    module::{Module, Param},
    tensor::Tensor,
};

use super::check_shape;
use crate::{AttentionError, Memory, initialize::Initializer, precision::check_weights};

/// `w_c`: the term that coverage adds inside the additive score.
#[derive(Module, Debug)]
pub struct Coverage {
    /// `w_c`, `[attention size]`.
    pub weight: Param<Tensor<1>>,
}

impl Coverage {
    /// Coverage for an additive score that compares in `attention_size` dimensions.
    pub fn new(attention_size: usize, initializer: &mut Initializer) -> Self {
        let bound = 1.0 / (attention_size.max(1) as f32).sqrt();
        Self {
            weight: initializer.uniform([attention_size], bound),
        }
    }

    /// `memory` with `w_c c_i` added to the key of position `i`; `seen [batch, positions]` is the coverage
    /// vector `c`.
    ///
    /// # Errors
    /// A coverage vector of another batch or length, or keys of another size or precision than `w_c`.
    pub fn apply(&self, memory: &Memory, seen: Tensor<2>) -> Result<Memory, AttentionError> {
        let [batch, positions, size] = memory.keys.dims();
        check_shape(
            "seen",
            seen.dims(),
            [batch, positions],
            "[batch, positions]",
        )?;
        let meaning = "[attention size], as the keys of the memory have";
        check_shape("weight", self.weight.dims(), [size], meaning)?;
        check_weights("memory.keys", memory.keys.dtype(), self)?;
        check_weights("seen", seen.dtype(), self)?;
        let shift = seen.unsqueeze_dim::<3>(2) * self.weight.val().unsqueeze_dims::<3>(&[0, 1]);
        Ok(Memory {
            keys: memory.keys.clone() + shift, // [batch, positions, a]
            ..memory.clone()
        })
    }

    /// `Σ_i min(a_i, c_i)` of each sentence, `[batch]`, for the `weights` of a step and the coverage
    /// vector `seen` before it, both `[batch, positions]`.
    ///
    /// # Panics
    /// If the shapes differ.
    pub fn loss(weights: Tensor<2>, seen: Tensor<2>) -> Tensor<1> {
        weights.min_pair(seen).sum_dim(1).squeeze_dim(1)
    }
}
