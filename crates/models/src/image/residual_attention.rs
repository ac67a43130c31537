//! The residual attention network (Wang et al. 2017): beside parts of the trunk runs an hourglass that says by how much each number
//! is amplified.
//!
//! ```text
//! module   x' = unit(x),  T = unit(unit(x')),  H = (1 + M(x')) T,  output unit(H)      without residual learning H = M(x') T
//! network  stem, then for each stage: a unit that widens (and from the second stage on halves), modules; three last units
//! class scores = W mean_{positions} relu(norm(x)) + b
//! ```
//! | depth | modules of the three stages |
//! |---|---|
//! | 56 | 1, 1, 1 |
//! | 92 | 1, 2, 3 |
//!
//! The mask `M` halves the map three times in the first stage, twice in the second, once in the third, then enlarges it again
//! ([`regard_nn::vision::residual_attention`]). Images of 64 pixels or more begin with a 7x7 convolution of stride 2 and a pooling
//! (the paper's ImageNet), smaller ones with a 3x3 convolution. Units normalise before they convolve (He et al. 2016).

use burn::{
    module::Module,
    nn::{BatchNorm, BatchNormConfig, Linear, conv::Conv2d},
    tensor::Tensor,
};
use regard_config::{Check, Range, config};
use regard_nn::{
    bridge::{batch_norm, convolve},
    dropout::DropoutRng,
    initialize::Initializer,
    vision::{MaskActivation, MaskBranch, MaskBranchConfig, ResidualUnit, VisionError},
};
use serde::{Deserialize, Serialize};

use super::{
    ImageClassifier, ImageLook, ImageMap, ImageSizes, MapWeights,
    resnet::{class_scores, convolution, halving_pool},
};
use crate::{
    AnyImageClassifier,
    role::ModelConfig,
    {error::ModelError, generator::expect_valid},
};

/// How many times fewer channels the middle of a unit has.
const REDUCTION: usize = 4;

/// Images with shorter sides are not made smaller by the stem.
const LARGE: usize = 64;

const WIDTH: Range<f64> = Range {
    holds: |value| (0.015625..=4.0).contains(&value),
    expected: "0.015625 to 4",
};

/// How scores become a mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MaskName {
    /// A sigmoid of each number.
    #[default]
    Mixed,
    /// Each position's numbers divided by their length.
    Channel,
    /// A sigmoid of each channel's numbers, normalised over positions.
    Spatial,
    /// No mask: the trunk alone, to be compared with.
    None,
}

impl MaskName {
    fn activation(self) -> Option<MaskActivation> {
        match self {
            Self::Mixed => Some(MaskActivation::Mixed),
            Self::Channel => Some(MaskActivation::Channel),
            Self::Spatial => Some(MaskActivation::Spatial),
            Self::None => None,
        }
    }
}

config! {
    /// Residual attention network: a classifier of images (Wang et al. 2017).
    pub struct ResidualAttentionConfig {
        /// 56 or 92: one attention module a stage, or 1, 2 and 3.
        depth: usize = 56;
        /// Factor of the channels of every layer; 1 for the paper's 256 to 2,048.
        width: f64 = 1.0, in WIDTH;
        /// How scores become a mask: "mixed", "channel" or "spatial"; "none" for the trunk alone.
        mask: MaskName = MaskName::Mixed;
        /// Whether the mask amplifies, (1 + M) T (attention residual learning), or only suppresses, M T.
        residual_learning: bool = true;
    }
    check ResidualAttentionConfig::agree
}

impl ResidualAttentionConfig {
    fn modules(&self) -> Option<[usize; 3]> {
        match self.depth {
            56 => Some([1, 1, 1]),
            92 => Some([1, 2, 3]),
            _ => None,
        }
    }

    fn agree(&self, check: &mut Check) {
        if self.modules().is_none() {
            check.fail("depth", format!("found {}", self.depth), "56 or 92");
        }
    }

    /// A network of a few thousand weights, for tests and examples.
    pub fn tiny() -> Self {
        Self {
            width: 0.015625,
            ..Self::default()
        }
    }
}

/// A residual attention network (see the [module's page](self)).
#[derive(Module, Debug)]
pub struct ResidualAttention {
    /// The first convolution.
    pub stem: Conv2d,
    /// Its batch norm.
    pub stem_norm: BatchNorm,
    /// Three stages.
    pub stages: Vec<AttentionStage>,
    /// After them.
    pub last: Vec<ResidualUnit>,
    /// Before the mean.
    pub norm: BatchNorm,
    /// Class scores.
    pub fc: Linear,
    #[module(skip)]
    residual_learning: bool,
}

/// A unit that changes the shape, and attention modules.
#[derive(Module, Debug)]
pub struct AttentionStage {
    /// Widens, and from the second stage on halves.
    pub unit: ResidualUnit,
    /// The modules.
    pub modules: Vec<AttentionModule>,
}

/// A part of the trunk and the mask beside it.
#[derive(Module, Debug)]
pub struct AttentionModule {
    /// Before both.
    pub before: ResidualUnit,
    /// `T`
    pub trunk: Vec<ResidualUnit>,
    /// `M`; without one the trunk stands alone.
    pub mask: Option<MaskBranch>,
    /// After their product.
    pub after: ResidualUnit,
}

impl AttentionModule {
    fn new(
        channels: usize,
        levels: usize,
        activation: Option<MaskActivation>,
        init: &mut Initializer,
    ) -> Result<Self, VisionError> {
        let mut unit = || ResidualUnit::new(channels, REDUCTION, init);
        let (before, trunk, after) = (unit()?, vec![unit()?, unit()?], unit()?);
        let mask = activation.map(|activation| {
            MaskBranchConfig::new(channels)
                .with_levels(levels)
                .with_reduction(REDUCTION)
                .with_activation(activation)
                .init(init)
        });
        Ok(Self {
            before,
            trunk,
            mask: mask.transpose()?,
            after,
        })
    }

    /// `x [batch, channels, height, width]`, in the same shape, and the mask, if there is one.
    fn forward(&self, x: Tensor<4>, residual_learning: bool) -> (Tensor<4>, Option<Tensor<4>>) {
        let run = |x, unit: &ResidualUnit| expect_valid(unit.forward(x));
        let x = run(x, &self.before);
        let trunk = self.trunk.iter().fold(x.clone(), run);
        let Some(mask) = &self.mask else {
            return (run(trunk, &self.after), None);
        };
        let gated = expect_valid(mask.attend(x, trunk.clone()));
        let product = match residual_learning {
            true => gated.output,
            false => gated.gate.clone() * trunk,
        };
        (run(product, &self.after), Some(gated.gate))
    }
}

impl ModelConfig for ResidualAttentionConfig {
    type Role = AnyImageClassifier;
    type Model = ResidualAttention;

    fn draw(
        &self,
        sizes: &ImageSizes,
        init: &mut Initializer,
    ) -> Result<ResidualAttention, ModelError> {
        let modules = self.modules();
        let modules =
            modules.ok_or_else(|| ModelError(format!("no network of depth {}", self.depth)))?;
        let refused = |error: VisionError| ModelError(error.to_string());
        // Channels of the first stage, a multiple of the reduction.
        let base = ((256.0 * self.width / 4.0).round() as usize).max(1) * REDUCTION;
        let first = base / REDUCTION;
        let large = sizes.size.iter().all(|&side| side >= LARGE);
        let stem = match large {
            true => convolution([sizes.channels, first], 7, 2, init),
            false => convolution([sizes.channels, first], 3, 1, init),
        };
        let mut inputs = first;
        let mut stages = vec![];
        for (stage, count) in modules.into_iter().enumerate() {
            let (outputs, stride) = (base << stage, if stage > 0 { 2 } else { 1 });
            let unit = ResidualUnit::changing([inputs, outputs], stride, REDUCTION, init);
            let modules = (0..count)
                .map(|_| AttentionModule::new(outputs, 3 - stage, self.mask.activation(), init))
                .collect::<Result<_, _>>();
            stages.push(AttentionStage {
                unit: unit.map_err(refused)?,
                modules: modules.map_err(refused)?,
            });
            inputs = outputs;
        }
        let outputs = base << 3;
        let last = (0..3).map(|index| {
            let (from, stride) = if index == 0 {
                (inputs, 2)
            } else {
                (outputs, 1)
            };
            ResidualUnit::changing([from, outputs], stride, REDUCTION, init)
        });
        let last = last.collect::<Result<_, _>>().map_err(refused)?;
        let norm = |channels| BatchNormConfig::new(channels).init(init.device());
        Ok(ResidualAttention {
            stem_norm: norm(first),
            norm: norm(outputs),
            stem,
            stages,
            last,
            fc: init.linear(outputs, sizes.classes, true),
            residual_learning: self.residual_learning,
        })
    }

    fn layers(&self) -> usize {
        self.depth
    }
}

impl ResidualAttention {
    fn run(&self, images: Tensor<4>) -> ImageLook {
        let mut x = batch_norm(&self.stem_norm, convolve(&self.stem, images), None, true);
        if self.stem.stride[0] > 1 {
            x = halving_pool(x);
        }
        let mut maps = vec![];
        for (stage, AttentionStage { unit, modules }) in self.stages.iter().enumerate() {
            x = expect_valid(unit.forward(x));
            for (index, module) in modules.iter().enumerate() {
                let (output, mask) = module.forward(x, self.residual_learning);
                x = output;
                maps.extend(mask.map(|mask| ImageMap {
                    place: format!("stage {}, module {}", stage + 1, index + 1),
                    weights: MapWeights::Numbers(mask),
                }));
            }
        }
        let run = |x, unit: &ResidualUnit| expect_valid(unit.forward(x));
        x = self.last.iter().fold(x, run);
        ImageLook {
            logits: class_scores(&self.fc, batch_norm(&self.norm, x, None, true)),
            maps,
        }
    }
}

impl ImageClassifier for ResidualAttention {
    fn forward(&self, images: Tensor<4>, _noise: &mut DropoutRng) -> Tensor<2> {
        self.run(images).logits
    }

    fn look(&self, images: Tensor<4>) -> ImageLook {
        self.run(images)
    }
}
