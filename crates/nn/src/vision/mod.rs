//! Attention in vision: what to look at in an image, and where.
//!
//! | mechanism | looks at | module |
//! |---|---|---|
//! | squeeze-and-excitation | channels, by their mean | [`squeeze_excite`] |
//! | spatial attention | positions, by their neighbourhood | [`spatial`] |
//! | CBAM | channels, then positions | [`cbam`] |
//! | residual attention | channels and positions, through an hourglass | [`residual_attention`] |
//! | non-local block | all pairs of positions | [`non_local`] |
//! | axial attention | all positions of a column, then of a row | [`axial`] |
//! | region attention | the things a detector found, for captions and questions | [`region`] |
//! | patches and class token | the image as a sequence, for a transformer | [`patches`] |
//!
//! Maps are `[batch, channels, height, width]`, of any height and width from 1 on. Modules are built from a
//! configuration and a seeded [`Initializer`](crate::initialize::Initializer). Each has two methods:
//! `forward` returns the new map and can be used in any network; `attend` returns the same numbers and what
//! the module looked at. If something does not fit, a [`VisionError`] names the size and one that would
//! fit.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::{initialize::Initializer, vision::SqueezeExciteConfig};
//!
//! let mut initializer = Initializer::new(1, &Device::flex());
//! let error = SqueezeExciteConfig::new(20).init(&mut initializer).unwrap_err();
//! assert_eq!(
//!     error.to_string(),
//!     "`channels` is 20 and `reduction` is 16, which does not divide it; \
//!      the nearest `reduction` that does is 20"
//! );
//! ```

pub mod axial;
pub mod cbam;
mod convolution;
mod error;
mod excitation;
pub mod non_local;
pub mod patches;
pub mod region;
pub mod residual_attention;
pub mod spatial;
pub mod squeeze_excite;

pub use axial::{
    AxialAttended, AxialAttention, AxialAttentionConfig, AxisAttention, DistanceVectors,
};
pub use cbam::{Cbam, CbamAttended, CbamConfig, ChannelAttention};
pub use error::VisionError;
pub use excitation::Excitation;
pub use non_local::{Affinity, NonLocal, NonLocalAttended, NonLocalConfig};
pub use patches::{PatchEmbedding, PatchEmbeddingConfig};
pub use region::{
    AnswerHead, AnswerHeadConfig, CaptionAttention, CaptionAttentionConfig, GatedTanh,
    PreparedRegions, QuestionAttention, QuestionAttentionConfig, RegionAttended, Regions,
};
pub use residual_attention::{
    MaskActivation, MaskBranch, MaskBranchConfig, PreActivation, ResidualUnit, Scale,
};
pub use spatial::{SpatialAttention, SpatialAttentionConfig};
pub use squeeze_excite::{SqueezeExcite, SqueezeExciteConfig};

use burn::tensor::Tensor;
use error::check_map;

/// What a gate returns: the gated map, and the gate.
#[derive(Debug, Clone)]
pub struct Gated {
    /// The map after the gate: `[batch, channels, height, width]`.
    pub output: Tensor<4>,
    /// The factor of each number of the map; a size of 1 stands for all channels or positions.
    pub gate: Tensor<4>,
}

impl Gated {
    fn new(map: Tensor<4>, gate: Tensor<4>) -> Self {
        Self {
            output: map * gate.clone(),
            gate,
        }
    }
}

/// `[batch, channels, height, width]` -> `[batch, channels, positions]`.
fn per_channel(map: &Tensor<4>) -> Tensor<3> {
    let [batch, channels, height, width] = map.dims();
    map.clone().reshape([batch, channels, height * width])
}
