//! An image in, a class out, and what the model looked at.

use burn::tensor::{Device, Tensor, TensorData, activation::softmax};
use regard_images::{Channels, Decoding, Image, Normalize};
use regard_models::{AnyImageClassifier, ImageSizes, image::ImageMap};
use regard_nn::dropout::DropoutRng;

use crate::recipe::Model;

/// The content of an image classifier's file apart from the weights.
#[derive(Debug, Clone)]
pub struct Description {
    /// The architecture.
    pub model: Model,
    /// The name of each class.
    pub labels: Vec<String>,
    /// How an image becomes numbers.
    pub preparation: Preparation,
}

impl Description {
    /// The sizes of images and classes.
    pub fn sizes(&self) -> ImageSizes {
        ImageSizes {
            channels: self.preparation.normalize.mean().len(),
            size: self.preparation.size,
            classes: self.labels.len(),
        }
    }
}

/// How an image becomes numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Preparation {
    /// Height and width that it is brought to.
    pub size: [usize; 2],
    /// Mean and deviation of each channel.
    pub normalize: Normalize,
}

impl Preparation {
    /// How files are decoded for it.
    pub fn decoding(&self) -> Decoding {
        Decoding {
            channels: match self.normalize.mean().len() {
                1 => Channels::Grey,
                _ => Channels::Colour,
            },
            ..Decoding::default()
        }
    }

    /// `[batch, channels, height, width]` of images that have its size and channels.
    ///
    /// # Panics
    /// If one has others.
    pub fn tensor(&self, images: &[Image], device: &Device) -> Tensor<4> {
        let [height, width] = self.size;
        let channels = self.normalize.mean().len();
        let mut values = Vec::with_capacity(images.len() * channels * height * width);
        for image in images {
            assert_eq!(
                [image.height(), image.width()],
                self.size,
                "the size of an image"
            );
            let appended = self.normalize.append(image, &mut values);
            appended.expect("the channels are those of the normalisation");
        }
        let shape = [images.len(), channels, height, width];
        Tensor::from_data(TensorData::new(values, shape), device)
    }

    /// The image as the model reads it: in the middle, in its size.
    ///
    /// # Errors
    /// Those of [`Image::fitted`].
    pub fn fit(&self, image: &Image) -> Result<Image, regard_images::ImagesError> {
        let [height, width] = self.size;
        let image = match self.normalize.mean().len() {
            1 => image.clone().into_grey(),
            _ => image.clone().into_colour(),
        };
        match [image.height(), image.width()] == self.size {
            true => Ok(image),
            false => image.fitted(height, width),
        }
    }
}

/// An image classifier with its classes, ready for use.
#[derive(Debug)]
pub struct ImageClassifier {
    model: AnyImageClassifier,
    description: Description,
    device: Device,
}

/// The classification of one image.
#[derive(Debug, Clone)]
pub struct ClassifiedImage {
    /// The class of the highest probability.
    pub class: usize,
    /// The probability of every class.
    pub probabilities: Vec<f32>,
}

impl ImageClassifier {
    /// A classifier from its parts.
    pub fn new(model: AnyImageClassifier, description: Description, device: &Device) -> Self {
        Self {
            model,
            description,
            device: device.clone(),
        }
    }

    /// Architecture, classes, preparation.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// The model.
    pub fn model(&self) -> &AnyImageClassifier {
        &self.model
    }

    /// Classifies images, which are brought to the model's size first.
    ///
    /// # Errors
    /// Those of [`Preparation::fit`].
    pub fn classify(
        &self,
        images: &[Image],
    ) -> Result<Vec<ClassifiedImage>, regard_images::ImagesError> {
        let fitted = self.fit(images)?;
        if fitted.is_empty() {
            return Ok(vec![]);
        }
        let tensor = self.description.preparation.tensor(&fitted, &self.device);
        let logits = self.model.forward(tensor, &mut DropoutRng::none());
        Ok(self.classified(logits))
    }

    /// The same, and what the model looked at, layer by layer: the maps of all images together.
    ///
    /// # Errors
    /// Those of [`Preparation::fit`].
    pub fn look(
        &self,
        images: &[Image],
    ) -> Result<(Vec<ClassifiedImage>, Vec<ImageMap>), regard_images::ImagesError> {
        let fitted = self.fit(images)?;
        if fitted.is_empty() {
            return Ok((vec![], vec![]));
        }
        let tensor = self.description.preparation.tensor(&fitted, &self.device);
        let look = self.model.look(tensor);
        Ok((self.classified(look.logits), look.maps))
    }

    fn fit(&self, images: &[Image]) -> Result<Vec<Image>, regard_images::ImagesError> {
        let preparation = &self.description.preparation;
        images.iter().map(|image| preparation.fit(image)).collect()
    }

    fn classified(&self, logits: Tensor<2>) -> Vec<ClassifiedImage> {
        let classes = self.description.labels.len();
        let probabilities = softmax(logits, 1).into_data();
        let probabilities: Vec<f32> = probabilities.iter::<f32>().collect();
        let of_image = |probabilities: &[f32]| {
            let best = (0..classes).max_by(|&a, &b| {
                let order = probabilities[a].total_cmp(&probabilities[b]);
                // Of equal ones the first.
                order.then(b.cmp(&a))
            });
            ClassifiedImage {
                class: best.unwrap_or_default(),
                probabilities: probabilities.to_vec(),
            }
        };
        probabilities.chunks_exact(classes).map(of_image).collect()
    }
}
