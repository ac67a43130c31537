//! Dot score: `score(s, h) = sᵀ h` (Luong 2015, section 3.1).
//!
//! Two vectors match the better the more they point in the same direction and the longer they are. No parameters;
//! query and key have the same size. Use it where both come from spaces that are trained together; with large sizes
//! prefer [`super::ScaledDot`], as the spread of scores grows with `√d` and the softmax saturates.
//!
//! Cost: `Lq · Lk · d` multiplications, `Lq · Lk` numbers (none where a kernel serves).
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::score::Dot;
//!
//! let device = Device::flex();
//! let query = Tensor::<4>::from_floats([[[[10., 5., 10.]]]], &device);
//! let keys = Tensor::<4>::from_floats([[[[0., 1., 1.], [5., 0., 1.], [1., 1., 0.], [0., 5., 1.]]]], &device);
//! let scores = Dot.forward(query, keys).into_data().into_vec::<f32>().unwrap();
//! assert_eq!(scores, [15., 60., 15., 35.]);
//! ```

use burn::{module::Module, tensor::Tensor};

use super::{KernelForm, ScoreFunction, Sizes};
use crate::bridge::matmul;

/// `sᵀ h`.
#[derive(Module, Debug, Default)]
pub struct Dot;

impl Dot {
    /// `query [batch, heads, queries, size]`, `keys [batch, heads, keys, size]` -> `[batch, heads, queries, keys]`.
    pub fn forward(&self, query: Tensor<4>, keys: Tensor<4>) -> Tensor<4> {
        matmul(query, keys.swap_dims(2, 3))
    }
}

impl ScoreFunction for Dot {
    fn name(&self) -> &'static str {
        "dot"
    }

    fn sizes(&self) -> Sizes {
        Sizes::Equal
    }

    fn score(&self, query: Tensor<4>, keys: Tensor<4>) -> Tensor<4> {
        self.forward(query, keys)
    }

    fn form(&self, _query_size: usize) -> Option<KernelForm> {
        Some(KernelForm::Dot { scale: 1.0 })
    }
}
