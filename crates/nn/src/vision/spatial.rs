//! Spatial attention: each position is weighted by a gate that depends on its channels and its
//! neighbours (Woo et al. 2018, the second half of [CBAM](super::cbam)).
//!
//! The map is squeezed to two numbers per position, the mean and the maximum over the channels; one
//! convolution with a large window turns them into a gate between 0 and 1 for each position:
//!
//! `M_s = σ(f^{k×k}([mean_c(F); max_c(F)]))`, `F' = M_s ∘ F`
//!
//! | tensor | shape |
//! |---|---|
//! | map `F`, output `F'` | `[batch, channels, height, width]` |
//! | gate `M_s` | `[batch, 1, height, width]` |
//! | `f` | `[1, 2, k, k]`, no bias, zeros around the map; k = 7, and odd |
//!
//! The authors' code has a batch normalisation between convolution and σ that the paper does not
//! mention; this is the paper's form.
//!
//! **Use it** when *where* matters, alone or after [`ChannelAttention`](super::ChannelAttention), and
//! when a readable map over the image is wanted: the gate is such a map. **Do not use it** to relate
//! positions that are more than `k` apart, which [`NonLocal`](super::NonLocal) can do.
//!
//! **Cost**: `2 k²` weights, whatever the channels; time of one pass over the map and `2 k²` products a
//! position; memory of three planes an image.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::{initialize::Initializer, vision::SpatialAttentionConfig};
//!
//! let device = Device::flex();
//! let layer = SpatialAttentionConfig::new().init(&mut Initializer::new(1, &device))?;
//! let attended = layer.attend(Tensor::<4>::ones([2, 5, 9, 6], &device))?;
//! assert_eq!(attended.output.dims(), [2, 5, 9, 6]);
//! assert_eq!(attended.gate.dims(), [2, 1, 9, 6]);
//! # Ok::<(), regard_nn::vision::VisionError>(())
//! ```
//!
//! Source: S. Woo, J. Park, J.-Y. Lee, I. S. Kweon, *CBAM: Convolutional Block Attention Module*,
//! arXiv:1807.06521, section 3.

use burn::{config::Config, module::Module, nn::conv::Conv2d, tensor::Tensor};

use super::{
    Gated, VisionError,
    convolution::convolution,
    error::{Extent, check_odd, check_precision, check_shape},
};
use crate::{
    bridge::{convolve, sigmoid},
    initialize::Initializer,
    record::report,
};

/// How a [`SpatialAttention`] is built.
#[derive(Config, Debug, PartialEq, Eq)]
pub struct SpatialAttentionConfig {
    /// `k`: height and width of the convolution's window, odd.
    #[config(default = 7)]
    pub kernel: usize,
}

impl SpatialAttentionConfig {
    /// The module, with weights from `U(-1/√(2 k²), 1/√(2 k²))`.
    ///
    /// # Errors
    /// A window of even size or of size 0.
    pub fn init(&self, initializer: &mut Initializer) -> Result<SpatialAttention, VisionError> {
        check_odd("kernel", self.kernel)?;
        Ok(SpatialAttention {
            convolution: convolution(2, 1, self.kernel, initializer),
        })
    }
}

/// Spatial attention (see the [module's page](self)).
#[derive(Module, Debug)]
pub struct SpatialAttention {
    /// `f`, from the mean and the maximum over the channels, in this order, to the score.
    pub convolution: Conv2d,
}

impl SpatialAttention {
    /// `map [batch, channels, height, width]` with its positions weighted.
    ///
    /// # Errors
    /// A map of another precision, or with a size of 0.
    pub fn forward(&self, map: Tensor<4>) -> Result<Tensor<4>, VisionError> {
        Ok(self.attend(map)?.output)
    }

    /// The same, and the gate `[batch, 1, height, width]`.
    ///
    /// # Errors
    /// A map of another precision, or with a size of 0.
    pub fn attend(&self, map: Tensor<4>) -> Result<Gated, VisionError> {
        let expected = ["batch", "channels", "height", "width"].map(Extent::Any);
        check_shape("map", &map.dims(), &expected)?;
        check_precision("map", map.dtype(), self)?;
        let summary = vec![map.clone().mean_dim(1), map.clone().max_dim(1)];
        let summary = Tensor::cat(summary, 1);
        report("summary", || summary.clone());
        let gate = sigmoid(convolve(&self.convolution, summary));
        Ok(Gated::new(map, gate))
    }
}
