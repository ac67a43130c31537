//! Additive score: `score(s, h) = vᵀ tanh(W s + U h)` (Bahdanau 2014; "concat" in Luong 2015, where
//! `W [s; h]` is the same two matrices side by side). `U h` is computed once per source.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::{initialize::Initializer, score::Additive};
//!
//! let device = Device::flex();
//! let score = Additive::new(4, 6, 8, &mut Initializer::new(1, &device));
//! let keys = score.keys(Tensor::ones([2, 5, 6], &device)); // [batch, keys, attention size]
//! assert_eq!(score.forward(Tensor::ones([2, 3, 4], &device), keys).dims(), [2, 3, 5]);
//! ```

use burn::{
    module::{Module, Param},
    nn::Linear,
    tensor::Tensor,
};

use crate::initialize::Initializer;

/// `vᵀ tanh(W s + U h)`.
#[derive(Module, Debug)]
pub struct Additive {
    /// `W`, `[query size, attention size]`, no bias.
    pub query: Linear,
    /// `U`, `[annotation size, attention size]`, with the one bias inside the tanh.
    pub key: Linear,
    /// `v`, `[attention size]`.
    pub vector: Param<Tensor<1>>,
}

impl Additive {
    /// A score between queries of `query_size` and annotations of `annotation_size`, compared in
    /// `attention_size` dimensions.
    pub fn new(
        query_size: usize,
        annotation_size: usize,
        attention_size: usize,
        initializer: &mut Initializer,
    ) -> Self {
        let bound = 1.0 / (attention_size as f32).sqrt();
        Self {
            query: initializer.linear(query_size, attention_size, false),
            key: initializer.linear(annotation_size, attention_size, true),
            vector: initializer.uniform([attention_size], bound),
        }
    }

    /// The same, initialised as Bahdanau 2014, App. B: `W, U ~ N(0, 0.001²)`, `v = 0`.
    pub fn as_in_paper(
        query_size: usize,
        annotation_size: usize,
        attention_size: usize,
        initializer: &mut Initializer,
    ) -> Self {
        Self {
            query: initializer.normal_linear(query_size, attention_size, false, 0.001),
            key: initializer.normal_linear(annotation_size, attention_size, true, 0.001),
            vector: initializer.zeros([attention_size]),
        }
    }

    /// `U h` for every annotation: `[batch, keys, annotation size]` -> `[batch, keys, attention size]`.
    pub fn keys(&self, annotations: Tensor<3>) -> Tensor<3> {
        self.key.forward(annotations)
    }

    /// `query [batch, queries, query size]`, prepared `keys` -> `[batch, queries, keys]`.
    ///
    /// This plain form keeps `[batch, queries, keys, attention size]`; [`crate::Attention`] takes the
    /// fused one where there is one.
    pub fn forward(&self, query: Tensor<3>, keys: Tensor<3>) -> Tensor<3> {
        let query = self.query.forward(query).unsqueeze_dim::<4>(2); // [batch, queries, 1, size]
        let keys = keys.unsqueeze_dim::<4>(1); // [batch, 1, keys, size]
        let vector = self.vector.val().unsqueeze_dims::<4>(&[0, 1, 2]);
        ((query + keys).tanh() * vector).sum_dim(3).squeeze_dim(3)
    }
}
