//! Cosine score: `score(s, h) = β · sᵀh / (‖s‖ ‖h‖)` (Graves, Wayne, Danihelka 2014, section 3.3.1).
//!
//! Only the angle counts. The cosine lies in `[-1, 1]`, so a softmax of it is nearly flat; the sharpening `β`
//! gives it contrast. In the Neural Turing Machine the controller computes `β_t`, here as `softplus(w·s_t + b)`
//! ([`Cosine::learned`]); a fixed `β` is [`Cosine::fixed`] (QK-norm with a scale is the same thing).
//!
//! Use it to address a memory by content, or where the lengths of vectors carry no meaning. Not where they do: the length
//! no longer affects the score.
//!
//! Cost: as [`super::Dot`], and one norm a vector; keys are normalised once per source.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::score::Cosine;
//!
//! let device = Device::flex();
//! let score = Cosine::fixed(2.0);
//! let query = Tensor::<4>::from_floats([[[[3., 0.]]]], &device);
//! let keys = score.keys(Tensor::<4>::from_floats([[[[9., 0.], [0., 4.], [-1., 0.]]]], &device));
//! assert_eq!(score.forward(query, keys).into_data().into_vec::<f32>().unwrap(), [2., 0., -2.]);
//! ```

use burn::{
    module::Module,
    nn::Linear,
    tensor::{DType, Tensor, activation},
};

use super::{Dot, KernelForm, ScoreFunction, Sizes};
use crate::{
    attention::{AttentionError, check_finite},
    bridge::apply,
    initialize::Initializer,
    normalize::Normalize,
    precision::wide,
    record::report,
};

/// Shorter vectors are treated as having this length (as in PyTorch's `cosine_similarity`).
const SHORTEST: f64 = 1e-8;

/// `β cos(s, h)`.
#[derive(Module, Debug)]
pub struct Cosine {
    /// From the query to `β` before the softplus, `[query size, 1]`; `None` for a fixed `β`.
    pub sharpening: Option<Linear>,
    #[module(skip)]
    fixed: f64,
}

impl Cosine {
    /// With the same `β` for every query.
    pub fn fixed(beta: f64) -> Self {
        Self {
            sharpening: None,
            fixed: beta,
        }
    }

    /// With `β = softplus(w·s + b)` from each query of `query_size`.
    pub fn learned(query_size: usize, initializer: &mut Initializer) -> Self {
        Self {
            sharpening: Some(initializer.linear(query_size, 1, true)),
            fixed: 1.0,
        }
    }

    /// `h / ‖h‖` for every annotation.
    pub fn keys<const D: usize>(&self, annotations: Tensor<D>) -> Tensor<D> {
        unit(annotations, SHORTEST)
    }

    /// `query [batch, heads, queries, size]`, prepared `keys` -> `[batch, heads, queries, keys]`.
    pub fn forward(&self, query: Tensor<4>, keys: Tensor<4>) -> Tensor<4> {
        Dot.forward(self.prepared_query(query), keys)
    }
}

impl ScoreFunction for Cosine {
    fn name(&self) -> &'static str {
        "cosine"
    }

    fn sizes(&self) -> Sizes {
        match &self.sharpening {
            None => Sizes::Equal,
            Some(sharpening) => {
                let [size, _] = sharpening.weight.dims();
                Sizes::Made {
                    query: size,
                    annotation: size,
                    key: size,
                }
            }
        }
    }

    fn prepared_keys(&self, annotations: &Tensor<4>) -> Option<Tensor<4>> {
        Some(self.keys(annotations.clone()))
    }

    fn score(&self, query: Tensor<4>, keys: Tensor<4>) -> Tensor<4> {
        self.forward(query, keys)
    }

    fn check(&self, _normalize: &Normalize, dtype: DType) -> Result<(), AttentionError> {
        check_finite("sharpening", self.fixed, dtype)
    }

    fn form(&self, _query_size: usize) -> Option<KernelForm> {
        Some(KernelForm::Dot { scale: 1.0 })
    }

    fn prepared_query(&self, query: Tensor<4>) -> Tensor<4> {
        match &self.sharpening {
            None => unit(query, SHORTEST) * self.fixed,
            Some(sharpening) => {
                let beta = activation::softplus(apply(sharpening, query.clone()), 1.0);
                unit(query, SHORTEST) * beta
            }
        }
    }
}

/// Each vector divided by its length, or by `shortest` if that is more; 0 stays 0, with a finite gradient, also in `f16`,
/// whose largest number is 65,504.
pub(crate) fn unit<const D: usize>(x: Tensor<D>, shortest: f64) -> Tensor<D> {
    let dtype = x.dtype();
    let shortest = dtype
        .finfo()
        .map_or(shortest, |info| shortest.max(16.0 / info.max));
    let x = x.cast(wide(dtype));
    let squared = x.clone().powi_scalar(2).sum_dim(D - 1);
    let length = squared.clamp_min(shortest * shortest).sqrt();
    report("lengths", || length.clone());
    (x / length).cast(dtype)
}
