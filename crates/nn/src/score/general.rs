//! General score: `score(s, h) = sᵀ W h` (Luong 2015). `W h` is computed once per source.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::{initialize::Initializer, score::General};
//!
//! let device = Device::flex();
//! let score = General::new(4, 6, &mut Initializer::new(1, &device));
//! let keys = score.keys(Tensor::ones([2, 5, 6], &device)); // [batch, keys, query size]
//! assert_eq!(score.forward(Tensor::ones([2, 3, 4], &device), keys).dims(), [2, 3, 5]);
//! ```

use burn::{module::Module, nn::Linear, tensor::Tensor};

use crate::initialize::Initializer;

/// `sᵀ W h`.
#[derive(Module, Debug)]
pub struct General {
    /// `Wᵀ`, `[annotation size, query size]`, no bias.
    pub key: Linear,
}

impl General {
    /// A score between queries of `query_size` and annotations of `annotation_size`.
    pub fn new(query_size: usize, annotation_size: usize, initializer: &mut Initializer) -> Self {
        Self {
            key: initializer.linear(annotation_size, query_size, false),
        }
    }

    /// `W h` for every annotation: `[batch, keys, annotation size]` -> `[batch, keys, query size]`.
    pub fn keys(&self, annotations: Tensor<3>) -> Tensor<3> {
        self.key.forward(annotations)
    }

    /// `query [batch, queries, query size]`, prepared `keys` -> `[batch, queries, keys]`.
    pub fn forward(&self, query: Tensor<3>, keys: Tensor<3>) -> Tensor<3> {
        query.matmul(keys.swap_dims(1, 2))
    }
}
