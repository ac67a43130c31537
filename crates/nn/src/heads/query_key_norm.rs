//! Query-key normalisation: queries and keys of every head are normalised to one length before they are
//! compared, so that scores cannot grow without bound and saturate the softmax.
//!
//! - [`QueryKeyNormKind::Rms`]: `q ∘ g_q / rms(q)`, `k ∘ g_k / rms(k)`, `rms(x) = √(mean x² + ε)`, with
//!   trained gains `g_q, g_k [d]` shared by the heads, then the usual `1 / √d` (Dehghani et al. 2023 with
//!   layer norm; RMS in Gemma 3 and Qwen 3).
//! - [`QueryKeyNormKind::L2`]: `score = g · q̂ᵀ k̂`, `x̂ = x / ‖x‖`, a cosine with one trained scale `g` in
//!   place of `1 / √d`; `g` starts at `log₂(L² - L)` for texts of about `L` tokens (Henry et al. 2020,
//!   section 3.1).
//!
//! Both come before rotary positions, which change no length.
//!
//! - **When**: large learning rates, deep or wide models, low precision: wherever logits drift
//!   upwards in training. **When not**: to load a model trained without.
//! - **Cost**: one pass over queries and keys; `2 d` parameters, or one.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::{heads::{QueryKeyNorm, QueryKeyNormKind}, initialize::Initializer};
//!
//! let device = Device::flex();
//! let norm = QueryKeyNorm::new(QueryKeyNormKind::L2 { length: 2 }, 2, &mut Initializer::new(1, &device))?;
//! let x = Tensor::<4>::from_floats([[[[3.0, 4.0]]]], &device);
//! let (query, key) = (norm.query(x.clone()), norm.key(x));
//! // g = log₂(2² - 2) = 1
//! assert_eq!(query.into_data().into_vec::<f32>().unwrap(), [0.6, 0.8]);
//! assert_eq!(key.into_data().into_vec::<f32>().unwrap(), [0.6, 0.8]);
//! # Ok::<(), regard_nn::AttentionError>(())
//! ```

use burn::{
    module::{Module, Param},
    tensor::Tensor,
};
use serde::{Deserialize, Serialize};

use crate::{
    attention::AttentionError,
    bridge::{NormKind, norm},
    initialize::Initializer,
    score::cosine::unit,
};

/// Shorter vectors are treated as having this length, so that 0 stays 0.
const SHORTEST: f64 = 1e-12;

/// The kind of normalisation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueryKeyNormKind {
    /// By the root mean square, with a gain for each feature.
    Rms {
        /// `ε` (Qwen 3: 1e-6).
        epsilon: f64,
    },
    /// By the length, with one scale.
    L2 {
        /// `L`, in tokens: the length of a long text of the training set (the paper takes the 97.5th
        /// percentile).
        length: usize,
    },
}

/// Normalises queries and keys to one length.
#[derive(Module, Debug)]
pub enum QueryKeyNorm {
    /// By the root mean square.
    Rms(RmsQueryKeyNorm),
    /// By the length.
    L2(L2QueryKeyNorm),
}

/// `q ∘ g_q / rms(q)`, `k ∘ g_k / rms(k)`.
#[derive(Module, Debug)]
pub struct RmsQueryKeyNorm {
    /// `g_q`, `[d]`.
    pub query: Param<Tensor<1>>,
    /// `g_k`, `[d]`.
    pub key: Param<Tensor<1>>,
    #[module(skip)]
    pub(super) epsilon: f64,
}

/// `g q / ‖q‖`, `k / ‖k‖`.
#[derive(Module, Debug)]
pub struct L2QueryKeyNorm {
    /// `g`, `[1]`.
    pub scale: Param<Tensor<1>>,
}

impl RmsQueryKeyNorm {
    /// `ε`
    pub fn epsilon(&self) -> f64 {
        self.epsilon
    }
}

impl QueryKeyNorm {
    /// A normalisation for heads of `size`; gains start at 1.
    ///
    /// # Errors
    /// If `epsilon` is not above 0, or `length` is below 2 (which leaves no scale).
    pub fn new(
        kind: QueryKeyNormKind,
        size: usize,
        initializer: &mut Initializer,
    ) -> Result<Self, AttentionError> {
        match kind {
            QueryKeyNormKind::Rms { epsilon } => {
                if !epsilon.is_finite() || epsilon <= 0.0 {
                    return Err(AttentionError::value(
                        "query_key_norm.epsilon",
                        epsilon,
                        "a finite number above 0",
                        "Qwen 3 has 1e-6",
                    ));
                }
                Ok(Self::Rms(RmsQueryKeyNorm {
                    query: initializer.constant([size], 1.0),
                    key: initializer.constant([size], 1.0),
                    epsilon,
                }))
            }
            QueryKeyNormKind::L2 { length } => {
                if length < 2 {
                    return Err(AttentionError::value(
                        "query_key_norm.length",
                        length,
                        "at least 2",
                        "the scale starts at log2(length² - length)",
                    ));
                }
                let length = length as f64;
                let scale = (length * length - length).log2() as f32;
                Ok(Self::L2(L2QueryKeyNorm {
                    scale: initializer.constant([1], scale),
                }))
            }
        }
    }

    /// `query [batch, heads, queries, d]` normalised, of the same shape.
    pub fn query(&self, query: Tensor<4>) -> Tensor<4> {
        match self {
            Self::Rms(norm) => rms(query, &norm.query, norm.epsilon),
            Self::L2(norm) => unit(query, SHORTEST) * norm.scale.val().unsqueeze::<4>(),
        }
    }

    /// `key [batch, heads, keys, d]` normalised, of the same shape.
    pub fn key(&self, key: Tensor<4>) -> Tensor<4> {
        match self {
            Self::Rms(norm) => rms(key, &norm.key, norm.epsilon),
            Self::L2(_) => unit(key, SHORTEST),
        }
    }
}

fn rms(x: Tensor<4>, gain: &Param<Tensor<1>>, epsilon: f64) -> Tensor<4> {
    norm(NormKind::RootMeanSquare, x, gain.val(), None, epsilon)
}
