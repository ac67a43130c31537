//! Squeeze-and-excitation: each channel is weighted by a gate that depends on the whole map (Hu et al.
//! 2017).
//!
//! The map is squeezed to one number per channel, its mean; two small layers turn these numbers into a
//! gate between 0 and 1 for each channel; the channels are multiplied by their gates:
//!
//! `z_c = mean_{h,w} u_c`, `s = σ(W_2 ReLU(W_1 z))`, `x̃_c = s_c · u_c`
//!
//! | tensor | shape |
//! |---|---|
//! | map `u`, output `x̃` | `[batch, channels, height, width]` |
//! | gate `s` | `[batch, channels, 1, 1]` |
//! | `W_1`, `W_2` | `[channels / r, channels]`, `[channels, channels / r]`, no bias in the paper; r = 16 |
//!
//! **Use it** in any convolution network, after the last convolution of a block and before the residual
//! sum: it costs hardly any time. **Do not use it** to find *where* something is: the gate is the same at
//! every position ([`SpatialAttention`](super::SpatialAttention) and [`NonLocal`](super::NonLocal) look at
//! positions).
//!
//! **Cost**: `2 · channels² / r` weights; time and memory of one pass over the map.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::{initialize::Initializer, vision::SqueezeExciteConfig};
//!
//! let device = Device::flex();
//! let layer = SqueezeExciteConfig::new(32).init(&mut Initializer::new(1, &device))?;
//! let map = Tensor::<4>::ones([2, 32, 7, 7], &device);
//! assert_eq!(layer.forward(map.clone())?.dims(), [2, 32, 7, 7]);
//! assert_eq!(layer.attend(map)?.gate.dims(), [2, 32, 1, 1]); // what it looked at
//! # Ok::<(), regard_nn::vision::VisionError>(())
//! ```
//!
//! Source: J. Hu, L. Shen, S. Albanie, G. Sun, E. Wu, *Squeeze-and-Excitation Networks*, arXiv:1709.01507.

use burn::{config::Config, module::Module, tensor::Tensor};

use super::{
    Gated, VisionError, check_map, error::check_precision, excitation::Excitation, per_channel,
};
use crate::{bridge::sigmoid, initialize::Initializer};

/// How a [`SqueezeExcite`] is built.
#[derive(Config, Debug, PartialEq, Eq)]
pub struct SqueezeExciteConfig {
    /// Channels of the map.
    pub channels: usize,
    /// `r`: how many times fewer hidden units than channels there are. It divides the channels.
    #[config(default = 16)]
    pub reduction: usize,
    /// Whether both layers have a bias (the paper's formula has none, the authors' networks have one).
    #[config(default = false)]
    pub bias: bool,
}

impl SqueezeExciteConfig {
    /// The module, with weights from `U(-1/√inputs, 1/√inputs)`.
    ///
    /// # Errors
    /// A size of 0, or a reduction that does not divide the channels.
    pub fn init(&self, initializer: &mut Initializer) -> Result<SqueezeExcite, VisionError> {
        let excitation = Excitation::new(self.channels, self.reduction, self.bias, initializer)?;
        Ok(SqueezeExcite { excitation })
    }
}

/// Squeeze-and-excitation (see the [module's page](self)).
#[derive(Module, Debug)]
pub struct SqueezeExcite {
    /// `W_2 ReLU(W_1 z)`.
    pub excitation: Excitation,
}

impl SqueezeExcite {
    /// `map [batch, channels, height, width]` with its channels weighted.
    ///
    /// # Errors
    /// A map of other channels or another precision, or with a size of 0.
    pub fn forward(&self, map: Tensor<4>) -> Result<Tensor<4>, VisionError> {
        Ok(self.attend(map)?.output)
    }

    /// The same, and the gate `[batch, channels, 1, 1]`.
    ///
    /// # Errors
    /// A map of other channels or another precision, or with a size of 0.
    pub fn attend(&self, map: Tensor<4>) -> Result<Gated, VisionError> {
        check_map("map", map.dims(), self.excitation.channels())?;
        check_precision("map", map.dtype(), self)?;
        let mean = per_channel(&map).mean_dim(2).squeeze_dim::<2>(2); // [batch, channels]
        let gate = sigmoid(self.excitation.forward(mean)).unsqueeze_dims::<4>(&[2, 3]);
        Ok(Gated::new(map, gate))
    }
}
