//! A residual network without class scores: an image becomes a grid of vectors, which attention reads as regions.
//!
//! ```text
//! image [batch, channels, height, width]
//!   -> 3x3 of stride 2 -> stages of residual blocks, each after the first of stride 2 and twice the channels
//!   -> map [batch, features, ⌈height / 2^stages⌉, ⌈width / 2^stages⌉]
//! ```
//! Blocks are those of [`resnet`](super::resnet).

use burn::{module::Module, tensor::Tensor};
use regard_config::{Range, config};
use regard_nn::initialize::Initializer;

use super::resnet::{Block, Normed};

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
    }
}

/// A residual network without class scores (see the [module's page](self)).
#[derive(Module, Debug)]
pub struct Backbone {
    /// The first convolution, of stride 2.
    pub stem: Normed,
    /// Stages of blocks.
    pub stages: Vec<Vec<Block>>,
}

impl BackboneConfig {
    /// Channels of the map.
    pub fn features(&self) -> usize {
        self.channels << (self.stages - 1)
    }

    /// Rows and columns of the map of images of this size.
    pub fn grid(&self, size: [usize; 2]) -> [usize; 2] {
        let halved = |side: usize| (0..self.stages).fold(side, |side, _| side.div_ceil(2));
        size.map(halved)
    }

    /// Layers with weights of their own.
    pub fn layers(&self) -> usize {
        1 + self.stages * self.blocks
    }

    /// Draws a network for images of `channels`.
    pub fn draw(&self, channels: usize, init: &mut Initializer) -> Backbone {
        let mut inputs = self.channels;
        let stem = Normed::new([channels, inputs], 3, 2, init);
        let stages = (0..self.stages).map(|stage| {
            let outputs = self.channels << stage;
            let blocks = (0..self.blocks).map(|block| {
                let stride = if stage > 0 && block == 0 { 2 } else { 1 };
                let block = Block::basic([inputs, outputs], stride, init);
                inputs = outputs;
                block
            });
            blocks.collect()
        });
        Backbone {
            stages: stages.collect(),
            stem,
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
        let x = self.stem.forward(images, None, true);
        let blocks = self.stages.iter().flatten();
        blocks.fold(x, |x, block| block.forward(x).0)
    }

    /// The map after each stage, from the largest to the one that [`Backbone::forward`] gives.
    pub fn maps(&self, images: Tensor<4>) -> Vec<Tensor<4>> {
        let mut x = self.stem.forward(images, None, true);
        let stages = self.stages.iter().map(|blocks| {
            x = blocks.iter().fold(x.clone(), |x, block| block.forward(x).0);
            x.clone()
        });
        stages.collect()
    }

    /// The same map as regions, row by row: `[batch, rows · columns, features]`.
    pub fn regions(&self, images: Tensor<4>) -> Tensor<3> {
        self.forward(images).flatten::<3>(2, 3).swap_dims(1, 2)
    }
}
