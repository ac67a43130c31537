//! A residual network without class scores: an image becomes a grid of vectors, which attention reads as regions.
//!
//! ```text
//! image [batch, channels, height, width]
//!   -> 3x3 of stride 2 -> stages of residual blocks, each after the first of stride 2 and twice the channels
//!   -> map [batch, features, ⌈height / 2^stages⌉, ⌈width / 2^stages⌉]
//! ```
//! Blocks are those of [`resnet`](super::resnet). With `depth` it is the network of that depth for large images without its class scores: a
//! 7x7 convolution of stride 2, a pooling, and four stages of blocks, whose last map is 32 times smaller than the image.

use burn::{module::Module, tensor::Tensor};
use regard_config::{Check, Range, config};
use regard_nn::{initialize::Initializer, recurrent::positions};

use super::resnet::{Block, Normed, Shape, halving_pool};

const STAGES: Range<usize> = Range {
    holds: |stages| (1..=6).contains(&stages),
    expected: "1 to 6",
};

const BLOCKS: Range<usize> = Range {
    holds: |blocks| (1..=64).contains(&blocks),
    expected: "1 to 64",
};

const CHANNELS: Range<usize> = Range {
    holds: |channels| (1..=1024).contains(&channels),
    expected: "1 to 1024",
};

config! {
    /// The convolution network whose last map is read as regions.
    pub struct BackboneConfig {
        /// Channels of the first stage; each stage has twice as many as the one before.
        channels: usize = 32, in CHANNELS;
        /// Stages; the map is 2^stages times smaller than the image on each side.
        stages: usize = 3, in STAGES;
        /// Residual blocks of a stage.
        blocks: usize = 1, in BLOCKS;
        /// In place of stages and blocks: 18, 34, 50 or 101, the depth of a residual network for large images; 64 channels in the paper.
        depth: Option<usize> = None, example "50";
        /// Whether the last stage reads windows twice as large in place of a stride (DETR's DC5); for depth 50 and 101.
        dilation: bool = false;
    }
    check BackboneConfig::agree
}

/// A residual network without class scores (see the [module's page](self)).
#[derive(Module, Debug)]
pub struct Backbone {
    /// The first convolution, of stride 2.
    pub stem: Normed,
    /// Stages of blocks.
    pub stages: Vec<Vec<Block>>,
    /// Whether a pooling follows the first convolution.
    #[module(skip)]
    pools: bool,
}

impl BackboneConfig {
    fn agree(&self, check: &mut Check) {
        let Some(depth) = self.depth else {
            check.require(!self.dilation, "dilation", true, "false without depth");
            return;
        };
        match Shape::of_large(depth) {
            None => check.fail("depth", format!("found {depth}"), "18, 34, 50 or 101"),
            Some(shape) => check.require(
                !self.dilation || shape.expansion > 1,
                "dilation",
                true,
                "false, or depth 50 or 101",
            ),
        }
    }

    /// The shape of a network of a depth.
    fn shape(&self) -> Option<Shape> {
        self.depth.and_then(Shape::of_large)
    }

    /// Channels of the map after each stage, from the largest map to the smallest.
    pub fn map_channels(&self) -> Vec<usize> {
        let (stages, expansion) = match self.shape() {
            Some(shape) => (shape.blocks.len(), shape.expansion),
            None => (self.stages, 1),
        };
        (0..stages)
            .map(|stage| (self.channels << stage) * expansion)
            .collect()
    }

    /// Channels of the map.
    pub fn features(&self) -> usize {
        self.map_channels().pop().unwrap_or(self.channels)
    }

    /// Rows and columns of the map of images of this size.
    pub fn grid(&self, size: [usize; 2]) -> [usize; 2] {
        let halvings = match self.shape() {
            Some(shape) => 1 + shape.blocks.len() - usize::from(self.dilation),
            None => self.stages,
        };
        let halved = |side: usize| (0..halvings).fold(side, |side, _| side.div_ceil(2));
        size.map(halved)
    }

    /// Layers with weights of their own.
    pub fn layers(&self) -> usize {
        let blocks = match self.shape() {
            Some(shape) => shape.blocks.iter().sum(),
            None => self.stages * self.blocks,
        };
        1 + blocks
    }

    /// Draws a network for images of `channels`.
    pub fn draw(&self, channels: usize, init: &mut Initializer) -> Backbone {
        let mut inputs = self.channels;
        let shape = self.shape();
        let stem = match &shape {
            Some(_) => Normed::new([channels, inputs], 7, 2, init),
            None => Normed::new([channels, inputs], 3, 2, init),
        };
        let stages = self.map_channels().into_iter().enumerate();
        let stages = stages.map(|(stage, outputs)| {
            let (blocks, expansion) = match &shape {
                Some(shape) => (shape.blocks[stage], shape.expansion),
                None => (self.blocks, 1),
            };
            let dilated = self.dilation && stage == 3;
            let blocks = (0..blocks).map(|block| {
                let stride = if stage > 0 && block == 0 && !dilated {
                    2
                } else {
                    1
                };
                let drawn = match expansion {
                    1 => Block::basic([inputs, outputs], stride, init),
                    _ => Block::bottleneck([inputs, outputs / expansion, outputs], stride, init),
                };
                inputs = outputs;
                // The first block still reads the cells of the stage before.
                match dilated && block > 0 {
                    true => drawn.dilated(),
                    false => drawn,
                }
            });
            blocks.collect()
        });
        Backbone {
            stages: stages.collect(),
            stem,
            pools: shape.is_some(),
        }
    }

    /// A network of a few thousand weights, for tests and examples.
    pub fn tiny() -> Self {
        Self {
            channels: 4,
            ..Self::default()
        }
    }
}

impl Backbone {
    /// `images [batch, channels, height, width]` -> `[batch, features, rows, columns]`.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<4> {
        let x = self.first(images);
        let blocks = self.stages.iter().flatten();
        blocks.fold(x, |x, block| block.forward(x).0)
    }

    /// What the first stage reads.
    fn first(&self, images: Tensor<4>) -> Tensor<4> {
        let x = self.stem.forward(images, None, true);
        if self.pools { halving_pool(x) } else { x }
    }

    /// The map after each stage, from the largest to the one that [`Backbone::forward`] gives.
    pub fn maps(&self, images: Tensor<4>) -> Vec<Tensor<4>> {
        let mut x = self.first(images);
        let stages = self.stages.iter().map(|blocks| {
            x = blocks.iter().fold(x.clone(), |x, block| block.forward(x).0);
            x.clone()
        });
        stages.collect()
    }

    /// The same map as regions, row by row: `[batch, rows · columns, features]`.
    pub fn regions(&self, images: Tensor<4>) -> Tensor<3> {
        positions(self.forward(images))
    }
}
