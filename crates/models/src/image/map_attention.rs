//! Attention inside a convolution network, as a key of its configuration.
//!
//! | choice | where | what it weights |
//! |---|---|---|
//! | `se` | every block, before the sum | channels, by their mean (Hu 2017) |
//! | `spatial` | every block, before the sum | positions, by their neighbourhood (Woo 2018) |
//! | `cbam` | every block, before the sum | channels, then positions (Woo 2018) |
//! | `non-local` | before the last block of the stage before the last | pairs of positions (Wang 2018) |
//! | `axial` | the same | pairs in a column, then in a row (Ho 2019, Wang 2020) |
//! | `self` | the same | pairs of positions, many heads, learned positions (Vaswani 2017) |

use burn::{
    module::{Module, Param},
    tensor::Tensor,
};
use regard_config::{SIZE, choice, config};
use regard_nn::{
    AttentionOptions, Observe,
    bridge::transposed,
    heads::{MultiHead, MultiHeadConfig},
    initialize::Initializer,
    vision::{
        Affinity, AxialAttention, AxialAttentionConfig, Cbam, CbamConfig, NonLocal, NonLocalConfig,
        SpatialAttention, SpatialAttentionConfig, SqueezeExcite, SqueezeExciteConfig, VisionError,
    },
};
use serde::{Deserialize, Serialize};

use super::MapWeights;
use crate::{error::ModelError, generator::expect_valid};

/// How well two positions match in a non-local block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AffinityName {
    /// `e^{x_i x_j}`
    Gaussian,
    /// `e^{θ(x_i) φ(x_j)}`
    #[default]
    EmbeddedGaussian,
    /// `θ(x_i) φ(x_j)`
    Dot,
    /// `ReLU(w [θ(x_i); φ(x_j)])`
    Concatenation,
}

config! {
    /// Keys of "se" and "cbam".
    pub struct ReductionConfig {
        /// How many times fewer hidden units than channels there are; a divisor of the channels.
        reduction: usize = 16, in SIZE;
    }
}

config! {
    /// Keys of "non-local".
    pub struct NonLocalChoice {
        /// How well two positions match: "gaussian", "embedded-gaussian", "dot" or "concatenation".
        affinity: AffinityName = AffinityName::EmbeddedGaussian;
    }
}

config! {
    /// Keys of "axial" and "self".
    pub struct HeadsConfig {
        /// Heads, a divisor of the channels.
        heads: usize = 4, in SIZE;
    }
}

choice! {
    /// Attention of a residual network.
    pub enum MapAttentionConfig {
        /// None.
        "none" => None,
        /// Squeeze-and-excitation: a factor for each channel, in every block (Hu 2017).
        "se" => SqueezeExcite(ReductionConfig),
        /// A factor for each channel, then for each position, in every block (Woo 2018).
        "cbam" => Cbam(ReductionConfig),
        /// A factor for each position, in every block (Woo 2018).
        "spatial" => Spatial,
        /// Every position reads every other, in one place (Wang 2018).
        "non-local" => NonLocal(NonLocalChoice),
        /// Every position reads its column, then its row, in one place (Wang 2020).
        "axial" => Axial(HeadsConfig),
        /// Self-attention with many heads and learned positions, in one place (Vaswani 2017).
        "self" => SelfAttention(HeadsConfig),
    }
}

impl MapAttentionConfig {
    /// The gate of a block whose output has `channels`, if there is one in every block.
    pub(super) fn gate(
        &self,
        channels: usize,
        init: &mut Initializer,
    ) -> Result<Option<Gate>, ModelError> {
        let gate = match self {
            Self::SqueezeExcite(ReductionConfig { reduction }) => Gate::SqueezeExcite(
                SqueezeExciteConfig::new(channels)
                    .with_reduction(*reduction)
                    .init(init)
                    .map_err(refused)?,
            ),
            Self::Cbam(ReductionConfig { reduction }) => Gate::Cbam(
                CbamConfig::new(channels)
                    .with_reduction(*reduction)
                    .init(init)
                    .map_err(refused)?,
            ),
            Self::Spatial => {
                Gate::Spatial(SpatialAttentionConfig::new().init(init).map_err(refused)?)
            }
            _ => return Ok(None),
        };
        Ok(Some(gate))
    }

    /// The block between two others on maps of `channels` and `size`, if there is one.
    pub(super) fn between(
        &self,
        channels: usize,
        size: [usize; 2],
        init: &mut Initializer,
    ) -> Result<Option<Between>, ModelError> {
        let between = match self {
            Self::NonLocal(NonLocalChoice { affinity }) => {
                let affinity = match affinity {
                    AffinityName::Gaussian => Affinity::Gaussian,
                    AffinityName::EmbeddedGaussian => Affinity::EmbeddedGaussian,
                    AffinityName::Dot => Affinity::Dot,
                    AffinityName::Concatenation => Affinity::Concatenation,
                };
                let config = NonLocalConfig::new(channels).with_affinity(affinity);
                Between::NonLocal(config.init(init).map_err(refused)?)
            }
            Self::Axial(HeadsConfig { heads }) => {
                let config = AxialAttentionConfig::new(channels)
                    .with_heads(*heads)
                    .with_span(Some(size[0].max(size[1])));
                Between::Axial(config.init(init).map_err(refused)?)
            }
            Self::SelfAttention(HeadsConfig { heads }) => {
                let heads = MultiHeadConfig::new(channels, *heads).init(init);
                Between::SelfAttention(MapSelfAttention {
                    heads: heads.map_err(|error| ModelError(error.to_string()))?,
                    positions: init.normal([size[0] * size[1], channels], 0.02),
                })
            }
            _ => return Ok(None),
        };
        Ok(Some(between))
    }
}

fn refused(error: VisionError) -> ModelError {
    ModelError(error.to_string())
}

/// Factors of channels or positions.
#[derive(Module, Debug)]
pub enum Gate {
    /// A factor for each channel.
    SqueezeExcite(SqueezeExcite),
    /// A factor for each channel, then for each position.
    Cbam(Cbam),
    /// A factor for each position.
    Spatial(SpatialAttention),
}

impl Gate {
    /// `map [batch, channels, height, width]` times its factors, and the factors.
    pub(super) fn attend(&self, map: Tensor<4>) -> (Tensor<4>, Vec<MapWeights>) {
        let of_channels = |gate: Tensor<4>| MapWeights::Channels(gate.squeeze_dims(&[2, 3]));
        let of_positions = |gate: Tensor<4>| MapWeights::Positions(gate.squeeze_dim(1));
        match self {
            Self::SqueezeExcite(gate) => {
                let gated = expect_valid(gate.attend(map));
                (gated.output, vec![of_channels(gated.gate)])
            }
            Self::Spatial(gate) => {
                let gated = expect_valid(gate.attend(map));
                (gated.output, vec![of_positions(gated.gate)])
            }
            Self::Cbam(gate) => {
                let gated = expect_valid(gate.attend(map));
                let weights = vec![
                    of_channels(gated.channel_gate),
                    of_positions(gated.spatial_gate),
                ];
                (gated.output, weights)
            }
        }
    }
}

/// Attention between two blocks, with its residual sum.
#[derive(Module, Debug)]
pub enum Between {
    /// Every position reads every other.
    NonLocal(NonLocal),
    /// Every position reads its column, then its row.
    Axial(AxialAttention),
    /// Every position reads every other, with many heads and learned positions.
    SelfAttention(MapSelfAttention),
}

impl Between {
    /// `map [batch, channels, height, width]` with what it reads added.
    pub(super) fn forward(&self, map: Tensor<4>) -> Tensor<4> {
        match self {
            Self::NonLocal(block) => expect_valid(block.forward(map)),
            Self::Axial(block) => map.clone() + expect_valid(block.forward(map)),
            Self::SelfAttention(block) => block.run(map, Observe::Nothing).0,
        }
    }

    /// The same, and how much every position read of every other.
    pub(super) fn attend(&self, map: Tensor<4>) -> (Tensor<4>, Vec<MapWeights>) {
        let [_, _, height, width] = map.dims();
        let pairs = |weights: Tensor<4>| MapWeights::Pairs {
            weights,
            marks: vec![],
            grid: [height, width],
            key_grid: [height, width],
        };
        match self {
            Self::NonLocal(block) => {
                let attended = expect_valid(block.attend(map));
                (
                    attended.output,
                    vec![pairs(attended.weights.unsqueeze_dim(1))],
                )
            }
            Self::Axial(block) => {
                let attended = expect_valid(block.attend(map.clone()));
                let weights = through_corners(attended.column_weights, attended.row_weights);
                (map + attended.output, vec![pairs(weights)])
            }
            Self::SelfAttention(block) => {
                let (output, weights) = block.run(map, Observe::Weights);
                (output, weights.map(pairs).into_iter().collect())
            }
        }
    }
}

/// How much of every position reaches every other in axial attention, by the way through the corner between them: from `(r', c')` along
/// its column to `(r, c')`, then along the row to `(r, c)`, head by head.
///
/// `column [batch, width, heads, height, height]`, `row [batch, height, heads, width, width]` -> `[batch, heads, positions, positions]`,
/// whose rows sum to 1.
fn through_corners(column: Tensor<5>, row: Tensor<5>) -> Tensor<4> {
    let [batch, width, heads, height, _] = column.dims();
    let row = row.permute([0, 2, 1, 3, 4]); // [batch, heads, r, c, c']
    let column = column.permute([0, 2, 3, 4, 1]); // [batch, heads, r, r', c']
    let both: Tensor<6> = row.unsqueeze_dim::<6>(4) * column.unsqueeze_dim::<6>(3); // [batch, heads, r, c, r', c']
    both.reshape([batch, heads, height * width, height * width])
}

/// Self-attention over the positions of a map, with its residual sum.
#[derive(Module, Debug)]
pub struct MapSelfAttention {
    /// Queries, keys, values and output of all heads.
    pub heads: MultiHead,
    /// `[height · width, channels]`, added to what the heads read.
    pub positions: Param<Tensor<2>>,
}

impl MapSelfAttention {
    fn run(&self, map: Tensor<4>, observe: Observe) -> (Tensor<4>, Option<Tensor<4>>) {
        let [batch, channels, height, width] = map.dims();
        let tokens = map.clone().reshape([batch, channels, height * width]);
        let tokens = transposed(tokens, 1); // [batch, positions, channels]
        let x = tokens + self.positions.val().unsqueeze_dim(0);
        let read = expect_valid(self.heads.forward(x, AttentionOptions::new(observe)));
        let output = transposed(read.output, 1);
        let output = output.reshape([batch, channels, height, width]);
        (map + output, read.attended.weights)
    }
}
