//! Layer norm and RMS norm as modules.
//!
//! `y = w ∘ (x - mean x) / √(var x + ε) + b` (Ba, Kiros, Hinton 2016), or without mean and bias,
//! `y = w ∘ x / √(mean x² + ε)` (Zhang & Sennrich 2019), over the last dimension.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::{initialize::Initializer, transformer::NormConfig};
//!
//! let norm = NormConfig::Layer { epsilon: 0.0 }.init(2, &mut Initializer::new(1, &Device::flex()))?;
//! let y = norm.forward(Tensor::<2>::from_floats([[1.0, 3.0]], &Device::flex()));
//! assert_eq!(y.into_data().try_into_vec::<f32>().unwrap(), [-1.0, 1.0]);
//! # Ok::<(), regard_nn::AttentionError>(())
//! ```

use burn::{
    module::{Module, Param},
    tensor::Tensor,
};
use serde::{Deserialize, Serialize};

use crate::{
    attention::AttentionError,
    bridge::{self, NormKind},
    initialize::Initializer,
};

/// The kind of norm.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum NormConfig {
    /// Mean 0 and variance 1, then weight and bias.
    Layer {
        /// `ε`, added to the variance (PyTorch: 1e-5).
        epsilon: f64,
    },
    /// Mean square 1, then weight.
    Rms {
        /// `ε`, added to the mean square (Llama: 1e-5).
        epsilon: f64,
    },
}

/// Where norms are placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NormPlace {
    /// Before each block, and once after the last layer.
    #[default]
    Pre,
    /// After each residual sum (the paper).
    Post,
    /// Before each block, before its residual sum, and once after the last layer (Gemma 2 and 3).
    Both,
    /// Attention and feed-forward share one norm, `x ← x + attention(norm(x)) + feed_forward(norm(x))`; one more after the
    /// last layer (GPT-J, Phi).
    Parallel,
}

impl Default for NormConfig {
    fn default() -> Self {
        Self::Layer { epsilon: 1e-5 }
    }
}

impl NormConfig {
    /// A norm over `size` features; weights start at 1, biases at 0.
    ///
    /// # Errors
    /// If `size` is 0, or `ε` is negative or not finite.
    pub fn init(&self, size: usize, initializer: &mut Initializer) -> Result<Norm, AttentionError> {
        let (Self::Layer { epsilon } | Self::Rms { epsilon }) = *self;
        if !epsilon.is_finite() || epsilon < 0.0 {
            return Err(AttentionError::value(
                "norm.epsilon",
                epsilon,
                "a finite number of at least 0",
                "PyTorch has 1e-5",
            ));
        }
        if size == 0 {
            return Err(AttentionError::value(
                "norm.size",
                0,
                "at least 1",
                "it counts features",
            ));
        }
        let bias = matches!(self, Self::Layer { .. }).then(|| initializer.zeros([size]));
        Ok(Norm {
            weight: initializer.constant([size], 1.0),
            bias,
            epsilon,
        })
    }
}

/// Layer norm, or RMS norm (which has no bias).
#[derive(Module, Debug)]
pub struct Norm {
    /// `w [size]`
    pub weight: Param<Tensor<1>>,
    /// `b [size]`, for layer norm.
    pub bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    epsilon: f64,
}

impl Norm {
    /// `x [.., size]`, normalised over its last dimension.
    ///
    /// # Panics
    /// If the last dimension is not `size`.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let bias = self.bias.as_ref().map(Param::val);
        let kind = match bias {
            Some(_) => NormKind::Layer,
            None => NormKind::RootMeanSquare,
        };
        bridge::norm(kind, x, self.weight.val(), bias, self.epsilon)
    }

    /// How many features are normalised.
    pub fn size(&self) -> usize {
        self.weight.dims()[0]
    }

    /// `ε`
    pub fn epsilon(&self) -> f64 {
        self.epsilon
    }
}
