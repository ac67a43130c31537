//! Residual networks (He et al. 2015), with attention where the papers put it.
//!
//! ```text
//! x_0 = stem(image)
//! x_i = ReLU(skip(x_{i-1}) + gate(branch(x_{i-1})))        branch: convolutions with batch norm, ReLU between them
//! class scores = W mean_{positions} x_n + b                skip: the identity, or a 1x1 convolution where the shape changes
//! ```
//! | depth | stem | stages | block |
//! |---|---|---|---|
//! | 20, 32, 44, 56, 110 | 3x3 of 16 channels | 3 of 16, 32, 64 channels, for images of some 32 pixels | two 3x3 |
//! | 18, 34 | 7x7 of 64 channels, stride 2, and a pooling | 4 of 64 to 512 channels, for images of some 224 pixels | two 3x3 |
//! | 50, 101 | the same | 4 of 256 to 2,048 channels | 1x1, 3x3 and 1x1 |
//!
//! The skip connection of a small network whose shape changes is a projection (the paper's option B), not zeros (A). The strides are
//! where torchvision has them, in the 3x3 convolution; the weights have names of their own, and published folders are read by
//! `pretrained/resnet.rs`. A gate weights the branch before the sum (Hu 2017, Woo 2018); attention between positions stands before the
//! last block of the stage before the last (Wang 2018).

use burn::{
    module::Module,
    nn::{BatchNorm, BatchNormConfig, Linear, PaddingConfig2d, conv::Conv2d},
    tensor::{Tensor, activation::relu},
};
use regard_config::{Check, Range, config};
use regard_nn::{
    bridge::{self, PoolKind, Windows, batch_norm, convolve, pool},
    dropout::DropoutRng,
    initialize::Initializer,
};

use super::{
    ImageClassifier, ImageLook, ImageMap, ImageSizes, MapAttentionConfig, MapWeights,
    map_attention::{Between, Gate},
};
use crate::{AnyImageClassifier, error::ModelError, role::ModelConfig};

const WIDTH: Range<f64> = Range {
    holds: |value| (0.03125..=16.0).contains(&value),
    expected: "0.03125 to 16",
};

config! {
    /// Residual network: a classifier of images (He et al. 2015).
    pub struct ResNetConfig {
        /// Layers with weights: 20, 32, 44, 56, 110 for images of some 32 pixels; 18, 34, 50, 101 for some 224.
        depth: usize = 20;
        /// Factor of the channels of every layer.
        width: f64 = 1.0, in WIDTH;
        /// Attention.
        [choice] attention: MapAttentionConfig = MapAttentionConfig::None;
    }
    check ResNetConfig::agree
}

/// What a depth means.
pub(crate) struct Shape {
    /// Blocks of each stage.
    pub(crate) blocks: &'static [usize],
    /// Channels of the first stage, inside of its blocks.
    pub(crate) channels: usize,
    /// How many times more channels a block gives than it has inside; 1 for blocks of two convolutions.
    pub(crate) expansion: usize,
}

impl Shape {
    fn of(depth: usize) -> Option<Self> {
        let (blocks, channels, expansion): (&[usize], _, _) = match depth {
            20 => (&[3; 3], 16, 1),
            32 => (&[5; 3], 16, 1),
            44 => (&[7; 3], 16, 1),
            56 => (&[9; 3], 16, 1),
            110 => (&[18; 3], 16, 1),
            18 => (&[2; 4], 64, 1),
            34 => (&[3, 4, 6, 3], 64, 1),
            50 => (&[3, 4, 6, 3], 64, 4),
            101 => (&[3, 4, 23, 3], 64, 4),
            _ => return None,
        };
        Some(Self {
            blocks,
            channels,
            expansion,
        })
    }

    /// That of a network for large images, of four stages.
    pub(crate) fn of_large(depth: usize) -> Option<Self> {
        Self::of(depth).filter(|shape| shape.blocks.len() == 4)
    }
}

impl ResNetConfig {
    fn shape(&self) -> Option<Shape> {
        let shape = Shape::of(self.depth)?;
        let channels = (shape.channels as f64 * self.width).round() as usize;
        Some(Shape {
            channels: channels.max(1),
            ..shape
        })
    }

    fn agree(&self, check: &mut Check) {
        if self.shape().is_none() {
            let expected =
                "20, 32, 44, 56 or 110 (small images), or 18, 34, 50 or 101 (large images)";
            check.fail("depth", format!("found {}", self.depth), expected);
        }
    }

    /// A network of a few thousand weights, for tests and examples.
    pub fn tiny() -> Self {
        Self {
            width: 0.25,
            ..Self::default()
        }
    }
}

/// A residual network (see the [module's page](self)).
#[derive(Module, Debug)]
pub struct ResNet {
    /// The first convolution.
    pub conv1: Conv2d,
    /// Its batch norm.
    pub bn1: BatchNorm,
    /// Stages of blocks.
    pub stages: Vec<Vec<Block>>,
    /// Attention before the last block of the stage before the last.
    pub between: Option<Between>,
    /// Class scores.
    pub fc: Linear,
}

/// A convolution and its batch norm.
#[derive(Module, Debug)]
pub struct Normed {
    /// `[outputs, inputs, kernel, kernel]`, no bias.
    pub conv: Conv2d,
    /// Scale, shift and running statistics of each channel.
    pub norm: BatchNorm,
}

/// A branch and its skip connection.
#[derive(Module, Debug)]
pub struct Block {
    /// Convolutions, ReLU after all but the last.
    pub branch: Vec<Normed>,
    /// The projection of the skip connection, where the shape changes.
    pub skip: Option<Normed>,
    /// Weights the branch before the sum.
    pub gate: Option<Gate>,
}

/// A square window of odd size with zeros around the map, no bias; weights from `N(0, 2 / (outputs · kernel²))` (He et al. 2015).
pub(super) fn convolution(
    [inputs, outputs]: [usize; 2],
    kernel: usize,
    stride: usize,
    init: &mut Initializer,
) -> Conv2d {
    let fan = (outputs * kernel * kernel) as f32;
    let around = kernel / 2;
    Conv2d {
        weight: init.normal([outputs, inputs, kernel, kernel], (2.0 / fan).sqrt()),
        bias: None,
        stride: [stride; 2],
        kernel_size: [kernel; 2],
        dilation: [1; 2],
        groups: 1,
        padding: PaddingConfig2d::Explicit(around, around, around, around),
    }
}

/// The largest of every 3x3 cells, every second one: the pooling after the stem of networks for large images.
pub(super) fn halving_pool(x: Tensor<4>) -> Tensor<4> {
    let windows = Windows {
        kind: PoolKind::Max,
        kernel: [3, 3],
        stride: [2, 2],
        padding: [1, 1],
        ceil: false,
    };
    pool(windows, x)
}

/// `W mean_{positions} x + b` of `x [batch, channels, height, width]`: `[batch, classes]`.
pub(super) fn class_scores(layer: &Linear, x: Tensor<4>) -> Tensor<2> {
    let [batch, channels, height, width] = x.dims();
    let mean = x.reshape([batch, channels, height * width]).mean_dim(2);
    bridge::apply(layer, mean.squeeze_dim::<2>(2))
}

impl Normed {
    pub(super) fn new(
        channels: [usize; 2],
        kernel: usize,
        stride: usize,
        init: &mut Initializer,
    ) -> Self {
        Self {
            conv: convolution(channels, kernel, stride, init),
            norm: BatchNormConfig::new(channels[1]).init(init.device()),
        }
    }

    pub(super) fn forward(
        &self,
        x: Tensor<4>,
        residual: Option<Tensor<4>>,
        relu: bool,
    ) -> Tensor<4> {
        batch_norm(&self.norm, convolve(&self.conv, x), residual, relu)
    }
}

impl Block {
    /// Two 3x3 convolutions, the first of this stride.
    pub(super) fn basic(
        [inputs, outputs]: [usize; 2],
        stride: usize,
        init: &mut Initializer,
    ) -> Self {
        let branch = vec![
            Normed::new([inputs, outputs], 3, stride, init),
            Normed::new([outputs, outputs], 3, 1, init),
        ];
        Self::new(branch, [inputs, outputs], stride, init)
    }

    /// A 3x3 convolution of this stride between two 1x1.
    pub(super) fn bottleneck(
        [inputs, inside, outputs]: [usize; 3],
        stride: usize,
        init: &mut Initializer,
    ) -> Self {
        let branch = vec![
            Normed::new([inputs, inside], 1, 1, init),
            Normed::new([inside, inside], 3, stride, init),
            Normed::new([inside, outputs], 1, 1, init),
        ];
        Self::new(branch, [inputs, outputs], stride, init)
    }

    /// The same, whose 3x3 convolutions read every second cell of a window twice as large.
    pub(super) fn dilated(mut self) -> Self {
        let wide = self
            .branch
            .iter_mut()
            .filter(|part| part.conv.kernel_size == [3; 2]);
        for Normed { conv, .. } in wide {
            conv.dilation = [2; 2];
            conv.padding = PaddingConfig2d::Explicit(2, 2, 2, 2);
        }
        self
    }

    /// A branch, with a projection beside it if it changes the shape.
    fn new(
        branch: Vec<Normed>,
        [inputs, outputs]: [usize; 2],
        stride: usize,
        init: &mut Initializer,
    ) -> Self {
        let changes = stride > 1 || inputs != outputs;
        Self {
            branch,
            skip: changes.then(|| Normed::new([inputs, outputs], 1, stride, init)),
            gate: None,
        }
    }

    /// `x [batch, inputs, height, width]` -> `[batch, outputs, height', width']`, and the weights of the gate.
    pub(super) fn forward(&self, x: Tensor<4>) -> (Tensor<4>, Vec<MapWeights>) {
        let skip = match &self.skip {
            Some(projection) => projection.forward(x.clone(), None, false),
            None => x.clone(),
        };
        let Some((last, first)) = self.branch.split_last() else {
            return (skip, vec![]);
        };
        let inner = first.iter().fold(x, |x, conv| conv.forward(x, None, true));
        match &self.gate {
            None => (last.forward(inner, Some(skip), true), vec![]),
            Some(gate) => {
                let (gated, weights) = gate.attend(last.forward(inner, None, false));
                (relu(gated + skip), weights)
            }
        }
    }
}

impl ModelConfig for ResNetConfig {
    type Role = AnyImageClassifier;
    type Model = ResNet;

    fn draw(&self, sizes: &ImageSizes, init: &mut Initializer) -> Result<ResNet, ModelError> {
        let shape = self.shape();
        let Shape {
            blocks,
            channels,
            expansion,
        } = shape.ok_or_else(|| ModelError(format!("no network of depth {}", self.depth)))?;
        let large = blocks.len() == 4;
        let conv1 = match large {
            true => convolution([sizes.channels, channels], 7, 2, init),
            false => convolution([sizes.channels, channels], 3, 1, init),
        };
        let mut between = None;
        let mut size = sizes
            .size
            .map(|side| if large { side.div_ceil(4) } else { side });
        let mut inputs = channels;
        let mut stages = vec![];
        for (stage, &count) in blocks.iter().enumerate() {
            let inside = channels << stage;
            let outputs = inside * expansion;
            let mut of_stage = vec![];
            for block in 0..count {
                let stride = if stage > 0 && block == 0 { 2 } else { 1 };
                size = size.map(|side| side.div_ceil(stride));
                if stage + 2 == blocks.len() && block + 1 == count {
                    between = self.attention.between(inputs, size, init)?;
                }
                let mut block = match expansion {
                    1 => Block::basic([inputs, outputs], stride, init),
                    _ => Block::bottleneck([inputs, inside, outputs], stride, init),
                };
                block.gate = self.attention.gate(outputs, init)?;
                of_stage.push(block);
                inputs = outputs;
            }
            stages.push(of_stage);
        }
        Ok(ResNet {
            conv1,
            bn1: BatchNormConfig::new(channels).init(init.device()),
            stages,
            between,
            fc: init.linear(inputs, sizes.classes, true),
        })
    }

    fn layers(&self) -> usize {
        self.depth
    }
}

impl ResNet {
    /// Class scores, and what was looked at if `observe`.
    fn run(&self, images: Tensor<4>, observe: bool) -> ImageLook {
        let mut x = batch_norm(&self.bn1, convolve(&self.conv1, images), None, true);
        if self.conv1.stride[0] > 1 {
            x = halving_pool(x);
        }
        let mut maps = vec![];
        for (stage, blocks) in self.stages.iter().enumerate() {
            for (index, block) in blocks.iter().enumerate() {
                let place = format!("stage {}, block {}", stage + 1, index + 1);
                if let (Some(between), true) = (
                    &self.between,
                    index + 1 == blocks.len() && stage + 2 == self.stages.len(),
                ) {
                    let weights = match observe {
                        true => {
                            let (read, weights) = between.attend(x);
                            x = read;
                            weights
                        }
                        false => {
                            x = between.forward(x);
                            vec![]
                        }
                    };
                    maps.extend(weights.into_iter().map(|weights| ImageMap {
                        place: format!("before {place}"),
                        weights,
                    }));
                }
                let (output, weights) = block.forward(x);
                x = output;
                maps.extend(weights.into_iter().map(|weights| ImageMap {
                    place: place.clone(),
                    weights,
                }));
            }
        }
        ImageLook {
            logits: class_scores(&self.fc, x),
            maps,
        }
    }
}

impl ImageClassifier for ResNet {
    fn forward(&self, images: Tensor<4>, _noise: &mut DropoutRng) -> Tensor<2> {
        self.run(images, false).logits
    }

    fn look(&self, images: Tensor<4>) -> ImageLook {
        self.run(images, true)
    }
}
