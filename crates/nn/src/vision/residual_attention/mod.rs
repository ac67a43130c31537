//! Residual attention: a small network with a large field of view computes, for each channel and position, by how much
//! the output of the trunk is amplified, up to twice (Wang et al. 2017).
//!
//! The trunk `T` is any network. Beside it, the mask branch first halves the map repeatedly, so that each position sees
//! more of the image, and then enlarges it again to the size of the trunk's output. The mask never suppresses anything:
//! where it is 0, the output of the trunk is unchanged, so that many such modules can be stacked:
//!
//! `H = (1 + M(x)) ∘ T(x)`
//!
//! The mask branch of `n` levels, as in the authors' networks (`u` residual units at each place, paper 1):
//!
//! ```text
//! x ─ pool ─ u units ─┬─ pool ─ u units ─┬─ pool ─ 2u units ─ up ─ + ─ u units ─ up ─ + ─ u units ─ up ─ score ─ M
//!                     │                  └────── 1 unit ───────────┘                  │
//!                     └───────────────────────── 1 unit ──────────────────────────────┘
//! ```
//!
//! `pool` is the maximum over 3×3 with stride 2, with windows cut at the border; `up` is bilinear interpolation to the
//! size before the pooling, with aligned corners; `score` is normalisation, ReLU and 1×1 convolution, twice; the
//! [`MaskActivation`] turns it into a mask.
//!
//! | tensor | shape |
//! |---|---|
//! | map `x` | `[batch, channels, height, width]` |
//! | trunk `T`, mask `M`, output `H` | the same shape |
//!
//! **Use it** in deep convolution networks for images with clutter, one module for each resolution: levels 3, 2, 1 for
//! maps of 56, 28, 14. **Do not use it** on a tight budget: [`SqueezeExcite`](super::SqueezeExcite) has 84 times fewer
//! weights than a mask branch of 3 levels.
//!
//! **Cost**: with `C` channels and `n` levels, `2 u n + n - 1` residual units of `17 C² / 16` weights (reduction 4) and
//! `2 C²` for the score; the units work on maps of a quarter of the positions and less. In training all
//! maps are kept for the gradient.
//!
//! Batch normalisation uses the statistics of the batch on a device that records gradients and its running
//! statistics elsewhere, as Burn's does.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::{initialize::Initializer, vision::{MaskBranchConfig, ResidualUnit}};
//!
//! let device = Device::flex();
//! let mut initializer = Initializer::new(1, &device);
//! let trunk = ResidualUnit::new(8, 4, &mut initializer)?; // any network that keeps the shape
//! let mask = MaskBranchConfig::new(8).with_levels(2).init(&mut initializer)?;
//! let x = Tensor::<4>::ones([1, 8, 14, 11], &device);
//! let attended = mask.attend(x.clone(), trunk.forward(x)?)?;
//! assert_eq!(attended.output.dims(), [1, 8, 14, 11]);
//! assert_eq!(attended.gate.dims(), [1, 8, 14, 11]); // M
//! # Ok::<(), regard_nn::vision::VisionError>(())
//! ```
//!
//! Source: F. Wang, M. Jiang, C. Qian, S. Yang, C. Li, H. Zhang, X. Wang, X. Tang, *Residual Attention
//! Network for Image Classification*, arXiv:1704.06904; layout, pooling and interpolation from the authors'
//! `Attention-56` network definition (github.com/fwang91/residual-attention-network, `a80220a`).

mod activation;
mod unit;

pub use activation::MaskActivation;
pub use unit::{PreActivation, ResidualUnit};

use burn::{config::Config, module::Module, tensor::Tensor};

use super::{
    Gated, VisionError,
    convolution::max_pool,
    error::{Extent, check_map, check_positive, check_precision, check_shape},
};
use crate::{bridge::resize, initialize::Initializer, record::report};

/// How a [`MaskBranch`] is built.
#[derive(Config, Debug, PartialEq, Eq)]
pub struct MaskBranchConfig {
    /// Channels of map, trunk and mask.
    pub channels: usize,
    /// How often the map is halved. The paper: 3 for maps of 56 × 56, 2 for 28, 1 for 14.
    #[config(default = 3)]
    pub levels: usize,
    /// Residual units between two changes of size (the paper's `r`).
    #[config(default = 1)]
    pub units: usize,
    /// How many times fewer channels the middle of a unit has. It divides the channels.
    #[config(default = 4)]
    pub reduction: usize,
    /// How scores become a mask.
    #[config(default = "MaskActivation::Mixed")]
    pub activation: MaskActivation,
}

impl MaskBranchConfig {
    /// The module, with weights from `U(-1/√fan, 1/√fan)` and normalisations at scale 1, shift 0.
    ///
    /// # Errors
    /// A size of 0, or a reduction that does not divide the channels.
    pub fn init(&self, initializer: &mut Initializer) -> Result<MaskBranch, VisionError> {
        let Self {
            channels,
            levels,
            units,
            reduction,
            activation,
        } = *self;
        check_positive("levels", levels)?;
        check_positive("units", units)?;
        let unit =
            |initializer: &mut Initializer| ResidualUnit::new(channels, reduction, initializer);
        let chain = |length: usize, initializer: &mut Initializer| {
            (0..length)
                .map(|_| unit(initializer))
                .collect::<Result<Vec<_>, _>>()
        };
        let scales = (1..levels)
            .map(|_| {
                Ok(Scale {
                    down: chain(units, initializer)?,
                    skip: unit(initializer)?,
                    up: chain(units, initializer)?,
                })
            })
            .collect::<Result<_, VisionError>>()?;
        Ok(MaskBranch {
            scales,
            bottom: chain(2 * units, initializer)?,
            score: [(); 2].map(|()| PreActivation::new(channels, channels, 1, initializer)),
            activation,
        })
    }
}

/// The units at one size of the map, above the smallest.
#[derive(Module, Debug)]
pub struct Scale {
    /// On the way down, after the pooling.
    pub down: Vec<ResidualUnit>,
    /// The skip connection from the way down to the way up.
    pub skip: ResidualUnit,
    /// On the way up, after the sum with the skip.
    pub up: Vec<ResidualUnit>,
}

/// The mask branch (see the [module's page](self)).
#[derive(Module, Debug)]
pub struct MaskBranch {
    /// The sizes from the largest to the second smallest.
    pub scales: Vec<Scale>,
    /// At the smallest size.
    pub bottom: Vec<ResidualUnit>,
    /// From the last interpolation to the scores.
    pub score: [PreActivation; 2],
    #[module(skip)]
    activation: MaskActivation,
}

impl MaskBranch {
    /// The mask `M [batch, channels, height, width]` of `map` in the same shape.
    ///
    /// # Errors
    /// A map of other channels or another precision, or with a size of 0.
    pub fn forward(&self, map: Tensor<4>) -> Result<Tensor<4>, VisionError> {
        let [_, channels, _, _] = self.score[0].convolution.weight.dims();
        check_map("map", map.dims(), channels)?;
        check_precision("map", map.dtype(), self)?;
        let [_, _, height, width] = map.dims();
        let mut kept = Vec::with_capacity(self.scales.len());
        let mut current = map;
        for scale in &self.scales {
            current = run(&scale.down, max_pool(current, 3, 2))?;
            kept.push(current.clone());
        }
        current = max_pool(current, 3, 2);
        report("pooled", || current.clone());
        current = run(&self.bottom, current)?;
        report("bottom", || current.clone());
        for (scale, before) in self.scales.iter().zip(kept).rev() {
            let [_, _, height, width] = before.dims();
            let enlarged = resize(current, [height, width], true);
            current = run(&scale.up, enlarged + scale.skip.forward(before)?)?;
        }
        let [first, second] = &self.score;
        current = resize(current, [height, width], true);
        report("enlarged", || current.clone());
        let scores = second.forward(first.forward(current));
        report("scores", || scores.clone());
        Ok(self.activation.forward(scores))
    }

    /// `H = (1 + M(map)) ∘ trunk`, and `M` as the gate. `trunk` is the output of the trunk for `map`, in the same
    /// shape.
    ///
    /// # Errors
    /// A map of other channels or another precision, or with a size of 0; a trunk of another shape or precision.
    pub fn attend(&self, map: Tensor<4>, trunk: Tensor<4>) -> Result<Gated, VisionError> {
        let [batch, channels, height, width] = map.dims();
        let mask = self.forward(map)?;
        let expected = [
            Extent::Exactly("batch", batch),
            Extent::Exactly("channels", channels),
            Extent::Exactly("height", height),
            Extent::Exactly("width", width),
        ];
        check_shape("trunk", &trunk.dims(), &expected)?;
        check_precision("trunk", trunk.dtype(), self)?;
        Ok(Gated {
            output: (mask.clone() + 1.0) * trunk,
            gate: mask,
        })
    }
}

fn run(units: &[ResidualUnit], map: Tensor<4>) -> Result<Tensor<4>, VisionError> {
    units.iter().try_fold(map, |map, unit| unit.forward(map))
}
