//! General score: `score(s, h) = sᵀ W h` (Luong 2015, section 3.1). `W h` is computed once per source.
//!
//! A dot score between a query and keys that are projected to the query's space. Use it where decoder and encoder states
//! have different sizes or meanings; in Luong 2015 it is the best score for local attention. Not where queries and keys
//! are projected already, as in multi-head attention.
//!
//! [`ScaledGeneral`] multiplies by a learned number `g` (TensorFlow's "scaled Luong"): `g · sᵀ W h`, so that the
//! sharpness of the softmax is trained separately from `W`.
//!
//! Cost: `Lk · d_h · d_s` once per source, then as [`super::Dot`].
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::{initialize::Initializer, score::General};
//!
//! let device = Device::flex();
//! let score = General::new(4, 6, &mut Initializer::new(1, &device));
//! let keys = score.keys(Tensor::<4>::ones([2, 1, 5, 6], &device)); // [batch, heads, keys, query size]
//! assert_eq!(score.forward(Tensor::ones([2, 1, 3, 4], &device), keys).dims(), [2, 1, 3, 5]);
//! ```

use burn::{
    module::{Module, Param},
    nn::Linear,
    tensor::Tensor,
};

use super::{Dot, KernelForm, ScoreFunction, Sizes};
use crate::{bridge::apply, initialize::Initializer};

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

    /// `W h` for every annotation: `[.., annotation size]` -> `[.., query size]`.
    pub fn keys<const D: usize>(&self, annotations: Tensor<D>) -> Tensor<D> {
        apply(&self.key, annotations)
    }

    /// `query [batch, heads, queries, query size]`, prepared `keys` -> `[batch, heads, queries, keys]`.
    pub fn forward(&self, query: Tensor<4>, keys: Tensor<4>) -> Tensor<4> {
        Dot.forward(query, keys)
    }
}

/// `g · sᵀ W h` with a learned `g`.
#[derive(Module, Debug)]
pub struct ScaledGeneral {
    /// `Wᵀ`, `[annotation size, query size]`, no bias.
    pub key: Linear,
    /// `g`, `[1]`, 1 at the start.
    pub gain: Param<Tensor<1>>,
}

impl ScaledGeneral {
    /// A score between queries of `query_size` and annotations of `annotation_size`.
    pub fn new(query_size: usize, annotation_size: usize, initializer: &mut Initializer) -> Self {
        Self {
            key: initializer.linear(annotation_size, query_size, false),
            gain: initializer.constant([1], 1.0),
        }
    }

    /// `W h` for every annotation: `[.., annotation size]` -> `[.., query size]`.
    pub fn keys<const D: usize>(&self, annotations: Tensor<D>) -> Tensor<D> {
        apply(&self.key, annotations)
    }

    /// `query [batch, heads, queries, query size]`, prepared `keys` -> `[batch, heads, queries, keys]`.
    pub fn forward(&self, query: Tensor<4>, keys: Tensor<4>) -> Tensor<4> {
        Dot.forward(self.prepared_query(query), keys)
    }
}

/// The sizes of `W`.
fn sizes(key: &Linear) -> Sizes {
    let [annotation, size] = key.weight.dims();
    Sizes::Made {
        query: size,
        annotation,
        key: size,
    }
}

impl ScoreFunction for General {
    fn name(&self) -> &'static str {
        "general"
    }

    fn sizes(&self) -> Sizes {
        sizes(&self.key)
    }

    fn prepared_keys(&self, annotations: &Tensor<4>) -> Option<Tensor<4>> {
        Some(self.keys(annotations.clone()))
    }

    fn score(&self, query: Tensor<4>, keys: Tensor<4>) -> Tensor<4> {
        self.forward(query, keys)
    }

    fn form(&self, _query_size: usize) -> Option<KernelForm> {
        Some(KernelForm::Dot { scale: 1.0 })
    }
}

impl ScoreFunction for ScaledGeneral {
    fn name(&self) -> &'static str {
        "scaled general"
    }

    fn sizes(&self) -> Sizes {
        sizes(&self.key)
    }

    fn prepared_keys(&self, annotations: &Tensor<4>) -> Option<Tensor<4>> {
        Some(self.keys(annotations.clone()))
    }

    fn score(&self, query: Tensor<4>, keys: Tensor<4>) -> Tensor<4> {
        self.forward(query, keys)
    }

    fn form(&self, _query_size: usize) -> Option<KernelForm> {
        Some(KernelForm::Dot { scale: 1.0 })
    }

    fn prepared_query(&self, query: Tensor<4>) -> Tensor<4> {
        query * self.gain.val().unsqueeze::<4>()
    }
}
