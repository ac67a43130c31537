//! Networks that read images: residual networks, with attention where the papers put it, and the vision Transformer.
//!
//! | model | module | attention |
//! |---|---|---|
//! | [`ResNet`](resnet::ResNet) | [`resnet`] | none, or over channels, positions, pairs of positions ([`map_attention`]) |
//! | [`ResidualAttention`](residual_attention::ResidualAttention) | [`residual_attention`] | a factor for each channel at each position (Wang 2017) |
//! | [`VisionTransformer`](vit::VisionTransformer) | [`vit`] | of every patch to every other (Dosovitskiy 2020) |
//! | [`Vqa`](vqa::Vqa) | [`vqa`] | of a question to the regions of an image (Anderson 2018, Yang 2016) |
//! | [`Detr`](detr::Detr) | [`detr`] | of cells to cells, of object queries to each other and to the cells (Carion 2020) |
//! | [`Captioner`] | [`captioner`] | of every word to the regions of an image (Xu 2015, Anderson 2018) |
//!
//! Models that read an image as regions share a [`backbone`].
//!
//! Images are `[batch, channels, height, width]`, normalised by their reader. The role of the first three is [`ImageClassifier`], of those
//! that answer questions [`QuestionAnswerer`], of DETR [`Detector`].

pub mod backbone;
pub mod captioner;
pub mod detector;
pub mod detr;
pub mod map_attention;
pub mod questions;
pub mod residual_attention;
pub mod resnet;
pub mod vit;
pub mod vqa;

use burn::{module::Module, tensor::Tensor};
use regard_nn::dropout::DropoutRng;
use serde::{Deserialize, Serialize};

use crate::{error::ModelError, role::Sizes};

pub use backbone::BackboneConfig;
pub use captioner::{Captioner, CaptionerConfig, CaptionerSizes};
pub use detector::{Detected, Detector, DetectorLook, DetectorSizes, Predicted};
pub use detr::DetrConfig;
pub use map_attention::MapAttentionConfig;
pub use questions::{
    QuestionAnswerer, QuestionBatch, QuestionLook, QuestionSizes, binary_cross_entropy,
    guided_attention,
};
pub use residual_attention::ResidualAttentionConfig;
pub use resnet::ResNetConfig;
pub use vit::VisionTransformerConfig;
pub use vqa::VqaConfig;

/// The images that a classifier reads, and its number of classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageSizes {
    /// Channels of an image: 1 or 3.
    pub channels: usize,
    /// Height and width of an image.
    pub size: [usize; 2],
    /// The number of classes; a single one is there or not.
    pub classes: usize,
}

/// More pixels on a side than any image that is trained on.
const LARGEST_SIDE: usize = 1 << 14;

impl Sizes for ImageSizes {
    fn check(&self) -> Result<(), ModelError> {
        check_images(self.channels, self.size)?;
        match self.classes {
            0 => Err(ModelError(
                "the number of classes is 0; expected at least 1".to_owned(),
            )),
            _ => Ok(()),
        }
    }
}

/// Checks the images that a model reads.
fn check_images(channels: usize, [height, width]: [usize; 2]) -> Result<(), ModelError> {
    let possible = |side: usize| (1..=LARGEST_SIDE).contains(&side);
    if !possible(height) || !possible(width) {
        return Err(ModelError(format!(
            "images of {height} x {width} pixels; expected 1 to {LARGEST_SIDE} on a side"
        )));
    }
    match channels {
        1 | 3 => Ok(()),
        _ => Err(ModelError(format!(
            "images of {channels} channels; expected 1 (grey) or 3 (red, green, blue)"
        ))),
    }
}

/// A model that gives an image a class.
pub trait ImageClassifier: Module + Sync + 'static {
    /// The scores of the classes, `[batch, classes]`, for `images [batch, channels, height, width]`.
    fn forward(&self, images: Tensor<4>, noise: &mut DropoutRng) -> Tensor<2>;

    /// The same without dropout, and all that the model looked at.
    fn look(&self, images: Tensor<4>) -> ImageLook;

    /// Whether its maps are those of a stack of Transformer blocks, one a block, so that heads can be changed and queries recorded by
    /// [`regard_nn::changed`].
    fn has_stack(&self) -> bool {
        false
    }
}

/// An image classifier's scores, and what it looked at.
#[derive(Debug, Clone)]
pub struct ImageLook {
    /// `[batch, classes]`
    pub logits: Tensor<2>,
    /// From the first layer to the last.
    pub maps: Vec<ImageMap>,
}

/// What one layer looked at.
#[derive(Debug, Clone)]
pub struct ImageMap {
    /// Its place in the network, such as `stage 2, block 3`.
    pub place: String,
    /// The weights.
    pub weights: MapWeights,
}

/// Weights over an image.
#[derive(Debug, Clone)]
pub enum MapWeights {
    /// The factor of each channel, `[batch, channels]`.
    Channels(Tensor<2>),
    /// The factor of each position, `[batch, rows, columns]`.
    Positions(Tensor<3>),
    /// The factor of each channel at each position, `[batch, channels, rows, columns]`.
    Numbers(Tensor<4>),
    /// How much each query reads from each key, `[batch, heads, queries, keys]`.
    Pairs {
        /// The weights.
        weights: Tensor<4>,
        /// Names of the tokens before the positions, in queries and keys alike, which belong to no position. `[CLS]` is the one whose
        /// state is read; where there is none, the states of all positions are.
        marks: Vec<&'static str>,
        /// Rows and columns of the queries.
        grid: [usize; 2],
        /// Rows and columns of the keys.
        key_grid: [usize; 2],
    },
}
