//! The role of models that find objects: a set of predictions for each image, each a class, a box and, if the model has them, a
//! mask.

use burn::{module::Module, tensor::Tensor};
use regard_nn::dropout::DropoutRng;
use serde::{Deserialize, Serialize};

use super::check_images;
use crate::{error::ModelError, role::Sizes};

/// The images that a detector reads, and its number of classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DetectorSizes {
    /// Channels of an image: 1 or 3.
    pub channels: usize,
    /// Height and width of an image.
    pub size: [usize; 2],
    /// The number of classes, without that of no object.
    pub classes: usize,
}

impl Sizes for DetectorSizes {
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

/// A model that finds objects in images.
pub trait Detector: Module + Sync + 'static {
    /// What is found in `images [batch, channels, height, width]`.
    fn forward(&self, images: Tensor<4>, noise: &mut DropoutRng) -> Detected;

    /// The same without dropout, and all that the model looked at.
    fn look(&self, images: Tensor<4>) -> DetectorLook;

    /// Whether it gives objects masks.
    fn has_masks(&self) -> bool;

    /// The masks of some predictions `[image, query]` of `found`, before the sigmoid, for images of this height and width:
    /// `[chosen, height, width]`. `None` if the model has none.
    ///
    /// # Panics
    /// If nothing is chosen, or there is no such prediction.
    fn masks(&self, found: &Detected, chosen: &[[usize; 2]], size: [usize; 2])
    -> Option<Tensor<3>>;
}

/// What a detector finds.
#[derive(Debug, Clone)]
pub struct Detected {
    /// The predictions after each layer of the decoder; the last ones are those that count. At least one.
    pub layers: Vec<Predicted>,
    /// The states of the queries after the last layer, `[batch, queries, d]`.
    pub queries: Tensor<3>,
    /// The image as the encoder reads it, `[batch, cells, d]`.
    pub cells: Tensor<3>,
    /// The image as the encoder gives it, `[batch, cells, d]`.
    pub memory: Tensor<3>,
    /// The maps of the backbone, from the largest to the one that the encoder reads.
    pub maps: Vec<Tensor<4>>,
}

impl Detected {
    /// The predictions that count.
    ///
    /// # Panics
    /// If there are none.
    pub fn last(&self) -> &Predicted {
        let last = self.layers.last();
        last.expect("a detector predicts after at least one layer")
    }
}

/// A set of predictions for each image.
#[derive(Debug, Clone)]
pub struct Predicted {
    /// Scores of the classes and, last, of no object, before the softmax: `[batch, queries, classes + 1]`.
    pub logits: Tensor<3>,
    /// Centre and size as shares of the image's width and height, `[batch, queries, 4]`.
    pub boxes: Tensor<3>,
}

/// What a detector finds, and what it looked at.
#[derive(Debug, Clone)]
pub struct DetectorLook {
    /// What it finds.
    pub found: Detected,
    /// What each cell read from every cell, for each layer of the encoder: `[batch, heads, cells, cells]`.
    pub encoder: Vec<Tensor<4>>,
    /// What each query read from every query, for each layer of the decoder: `[batch, heads, queries, queries]`.
    pub decoder: Vec<Tensor<4>>,
    /// What each query read from every cell, for each layer of the decoder: `[batch, heads, queries, cells]`.
    pub cross: Vec<Tensor<4>>,
    /// Rows and columns of the cells.
    pub grid: [usize; 2],
}
