//! Dot score: `score(s, h) = sᵀ h` (Luong 2015). No parameters; query and key have the same size.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::score::Dot;
//!
//! let device = Device::flex();
//! let query = Tensor::<3>::from_floats([[[10., 5., 10.]]], &device);
//! let keys = Tensor::<3>::from_floats([[[0., 1., 1.], [5., 0., 1.], [1., 1., 0.], [0., 5., 1.]]], &device);
//! let scores = Dot.forward(query, keys).into_data().into_vec::<f32>().unwrap();
//! assert_eq!(scores, [15., 60., 15., 35.]);
//! ```

use burn::{module::Module, tensor::Tensor};

/// `sᵀ h`.
#[derive(Module, Debug, Default)]
pub struct Dot;

impl Dot {
    /// `query [batch, queries, size]`, `keys [batch, keys, size]` -> `[batch, queries, keys]`.
    pub fn forward(&self, query: Tensor<3>, keys: Tensor<3>) -> Tensor<3> {
        query.matmul(keys.swap_dims(1, 2))
    }
}
