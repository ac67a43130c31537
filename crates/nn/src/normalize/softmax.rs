//! Softmax over what may be seen: `α_i = e^{s_i} / Σ_{j seen} e^{s_j}`, and 0 elsewhere.
//!
//! A row in which nothing may be seen gives weights 0 and gradient 0, never NaN.
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

use burn::tensor::{Bool, Tensor};

/// A score so low that its exponential is 0, yet finite, so that no `inf - inf` can arise.
const UNSEEN: f32 = -1e30;

/// Weights `[batch, queries, keys]` from scores of the same shape. `seen` is true where a key may be
/// seen and broadcasts against the scores.
pub fn masked_softmax(scores: Tensor<3>, seen: Option<Tensor<3, Bool>>) -> Tensor<3> {
    let Some(seen) = seen else {
        return burn::tensor::activation::softmax(scores, 2);
    };
    let unseen = seen.bool_not().expand(scores.dims());
    let scores = scores.mask_fill(unseen.clone(), UNSEEN);
    let maximum = scores.clone().detach().max_dim(2);
    let exponentials = (scores - maximum).exp().mask_fill(unseen, 0.0);
    let sum = exponentials.clone().sum_dim(2);
    let empty = sum.clone().equal_elem(0.0);
    exponentials / sum.mask_fill(empty, 1.0)
}
