//! CBAM, the convolutional block attention module: first *what* to look at, then *where*
//! (Woo et al. 2018).
//!
//! Channel attention weights the channels by their mean and their maximum, each processed by the same two
//! layers; [spatial attention](super::spatial) then weights the positions of the result:
//!
//! `M_c = σ(W_1 ReLU(W_0 mean_{h,w}(F)) + W_1 ReLU(W_0 max_{h,w}(F)))`, `F' = M_c ∘ F`,
//! `F'' = M_s(F') ∘ F'`
//!
//! | tensor | shape |
//! |---|---|
//! | map `F`, output `F''` | `[batch, channels, height, width]` |
//! | channel gate `M_c` | `[batch, channels, 1, 1]` |
//! | spatial gate `M_s` | `[batch, 1, height, width]` |
//! | `W_0`, `W_1` | `[channels / r, channels]`, `[channels, channels / r]`; r = 16 |
//!
//! **Use it** as [`SqueezeExcite`](super::SqueezeExcite), where a little more cost is acceptable and the
//! position matters too. **Do not use it** where long-range relations matter, nor where the maximum is
//! noise, as it follows single outliers.
//!
//! **Cost**: `2 · channels² / r + 2 k²` weights; time of three passes over the map; memory of two maps
//! in training, as both gated maps are kept for the gradient.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::{initialize::Initializer, vision::CbamConfig};
//!
//! let device = Device::flex();
//! let layer = CbamConfig::new(32).init(&mut Initializer::new(1, &device))?;
//! let attended = layer.attend(Tensor::<4>::ones([2, 32, 9, 6], &device))?;
//! assert_eq!(attended.output.dims(), [2, 32, 9, 6]);
//! assert_eq!(attended.channel_gate.dims(), [2, 32, 1, 1]);
//! assert_eq!(attended.spatial_gate.dims(), [2, 1, 9, 6]);
//! # Ok::<(), regard_nn::vision::VisionError>(())
//! ```
//!
//! Source: S. Woo, J. Park, J.-Y. Lee, I. S. Kweon, *CBAM: Convolutional Block Attention Module*,
//! arXiv:1807.06521.

use burn::{config::Config, module::Module, tensor::Tensor};

use super::{
    Gated, SpatialAttention, SpatialAttentionConfig, VisionError, check_map,
    error::check_precision, excitation::Excitation, per_channel,
};
use crate::{bridge::sigmoid, initialize::Initializer};

/// How a [`Cbam`] is built.
#[derive(Config, Debug, PartialEq, Eq)]
pub struct CbamConfig {
    /// Channels of the map.
    pub channels: usize,
    /// `r`: how many times fewer hidden units than channels there are. It divides the channels.
    #[config(default = 16)]
    pub reduction: usize,
    /// Whether the two layers of the channel attention have a bias (the paper's formula has none).
    #[config(default = false)]
    pub bias: bool,
    /// `k`: height and width of the spatial convolution's window, odd.
    #[config(default = 7)]
    pub kernel: usize,
}

impl CbamConfig {
    /// The module, with weights from `U(-1/√inputs, 1/√inputs)`.
    ///
    /// # Errors
    /// A size of 0, a reduction that does not divide the channels, or a window of even size.
    pub fn init(&self, initializer: &mut Initializer) -> Result<Cbam, VisionError> {
        Ok(Cbam {
            channel: ChannelAttention {
                excitation: Excitation::new(self.channels, self.reduction, self.bias, initializer)?,
            },
            spatial: SpatialAttentionConfig::new()
                .with_kernel(self.kernel)
                .init(initializer)?,
        })
    }
}

/// Channel attention of CBAM: [`SqueezeExcite`](super::SqueezeExcite) that also uses the maximum. Part of
/// a [`Cbam`], and usable alone.
#[derive(Module, Debug)]
pub struct ChannelAttention {
    /// `W_1 ReLU(W_0 ·)`, shared by mean and maximum.
    pub excitation: Excitation,
}

impl ChannelAttention {
    /// `map [batch, channels, height, width]` with its channels weighted, and the gate
    /// `[batch, channels, 1, 1]`.
    ///
    /// # Errors
    /// A map of other channels or another precision, or with a size of 0.
    pub fn attend(&self, map: Tensor<4>) -> Result<Gated, VisionError> {
        check_map("map", map.dims(), self.excitation.channels())?;
        check_precision("map", map.dtype(), self)?;
        let values = per_channel(&map); // [batch, channels, positions]
        let mean = values.clone().mean_dim(2).squeeze_dim::<2>(2);
        let maximum = values.max_dim(2).squeeze_dim::<2>(2);
        let score = self.excitation.forward(mean) + self.excitation.forward(maximum);
        Ok(Gated::new(map, sigmoid(score).unsqueeze_dims::<4>(&[2, 3])))
    }
}

/// What [`Cbam`] returns.
#[derive(Debug, Clone)]
pub struct CbamAttended {
    /// The map with channels and positions weighted: `[batch, channels, height, width]`.
    pub output: Tensor<4>,
    /// The weight of each channel, between 0 and 1: `[batch, channels, 1, 1]`.
    pub channel_gate: Tensor<4>,
    /// The weight of each position, between 0 and 1: `[batch, 1, height, width]`.
    pub spatial_gate: Tensor<4>,
}

/// Channel attention, then spatial attention (see the [module's page](self)).
#[derive(Module, Debug)]
pub struct Cbam {
    /// Channel attention: what to look at.
    pub channel: ChannelAttention,
    /// Spatial attention: where to look.
    pub spatial: SpatialAttention,
}

impl Cbam {
    /// `map [batch, channels, height, width]` with its channels and then its positions weighted.
    ///
    /// # Errors
    /// A map of other channels or another precision, or with a size of 0.
    pub fn forward(&self, map: Tensor<4>) -> Result<Tensor<4>, VisionError> {
        Ok(self.attend(map)?.output)
    }

    /// The same, and both gates.
    ///
    /// # Errors
    /// A map of other channels or another precision, or with a size of 0.
    pub fn attend(&self, map: Tensor<4>) -> Result<CbamAttended, VisionError> {
        let what = self.channel.attend(map)?;
        let place = self.spatial.attend(what.output)?;
        Ok(CbamAttended {
            output: place.output,
            channel_gate: what.gate,
            spatial_gate: place.gate,
        })
    }
}
