//! An image in, a class out, and what the model looked at.

use burn::tensor::{Device, Tensor, TensorData, activation::softmax};
use regard_images::{Channels, Decoding, Filter, Image, Normalize};
use regard_models::{
    AnyImageClassifier, AnyImageClassifierConfig, ImageSizes,
    image::{ImageMap, MapWeights, ResNetConfig, VisionTransformerConfig},
    pretrained::{self, Folder, ImageModel, ImagePreparation, PretrainedError},
};
use regard_nn::{dropout::DropoutRng, weights};
use regard_trace::{AttentionMap, Axis, Kind, Token, Tokens, Trace, TraceError};

use crate::{model_file::ModelFileError, recipe::Model};

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
    /// How an image gets its size.
    pub resizing: Resizing,
}

/// How an image gets its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Resizing {
    /// It is made as small as it can be while it covers the size; then the middle is cut out.
    #[default]
    Cover,
    /// It is stretched to the size.
    Stretch(Filter),
    /// Its shorter side gets this length; then the middle is cut out.
    Shorter(usize, Filter),
}

impl Preparation {
    /// Images of this size cover it ([`Resizing::Cover`]).
    pub fn new(size: [usize; 2], normalize: Normalize) -> Self {
        Self {
            size,
            normalize,
            resizing: Resizing::Cover,
        }
    }

    /// The preparation whose means and deviations stand under `key` in the metadata of the file called `name`.
    ///
    /// # Errors
    /// Numbers that no images have, or those of another number of `channels`.
    pub(crate) fn stored(
        key: &'static str,
        size: [usize; 2],
        channels: usize,
        [mean, deviation]: [Vec<f32>; 2],
        name: &str,
    ) -> Result<Self, ModelFileError> {
        let name = || name.to_owned();
        let normalize = Normalize::new(mean, deviation);
        let normalize = normalize.map_err(|source| ModelFileError::Images {
            name: name(),
            key,
            source: Box::new(source),
        })?;
        match normalize.mean().len() {
            found if found == channels => Ok(Self::new(size, normalize)),
            found => Err(ModelFileError::Channels {
                name: name(),
                key,
                found,
                expected: channels,
            }),
        }
    }

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

    /// The image as a classifier reads it: its middle, in the model's size.
    ///
    /// # Errors
    /// Those of [`Image::resized`].
    pub fn fit(&self, image: &Image) -> Result<Image, regard_images::ImagesError> {
        let [height, width] = self.size;
        let image = self.coloured(image);
        match self.resizing {
            Resizing::Cover if [image.height(), image.width()] == self.size => Ok(image),
            Resizing::Cover => image.fitted(height, width),
            Resizing::Stretch(filter) => image.resized(height, width, filter),
            Resizing::Shorter(side, filter) => image
                .resize_shorter(side, filter)?
                .centre_crop(height, width),
        }
    }

    /// The image as a detector reads it: the whole of it, in the model's size.
    ///
    /// # Errors
    /// Those of [`Image::resize`].
    pub fn scale(&self, image: &Image) -> Result<Image, regard_images::ImagesError> {
        let [height, width] = self.size;
        self.coloured(image).resize(height, width)
    }

    fn coloured(&self, image: &Image) -> Image {
        match self.normalize.mean().len() {
            1 => image.clone().into_grey(),
            _ => image.clone().into_colour(),
        }
    }
}

/// Why what a model looked at cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    /// An image cannot be brought to the model's size.
    #[error(transparent)]
    Image(#[from] regard_images::ImagesError),
    /// The model's numbers are no weights.
    #[error(transparent)]
    Weights(#[from] TraceError),
}

/// A map and the numbers of all its images.
fn numbers(map: &ImageMap) -> (&ImageMap, Vec<f32>) {
    let data = match &map.weights {
        MapWeights::Channels(gate) => gate.clone().into_data(),
        MapWeights::Positions(gate) => gate.clone().into_data(),
        MapWeights::Numbers(gate) => gate.clone().into_data(),
        MapWeights::Pairs { weights, .. } => weights.clone().into_data(),
    };
    (map, data.iter::<f32>().collect())
}

/// The tokens before the patches: that of the class, and that of distillation.
const MARKS: [&str; 2] = ["[CLS]", "[DIST]"];

/// The map of one image, whose class is called `label`.
fn attention_map(
    map: &ImageMap,
    layer: usize,
    label: &str,
    numbers: &[f32],
) -> Result<AttentionMap, TraceError> {
    let class = || Tokens::from(vec![Token::new(label)]);
    let gate = |keys: Axis, heads: usize| {
        let gate = AttentionMap::unnormalized(Kind::Other, class(), keys, heads, numbers.to_vec());
        Ok(gate?.named(map.place.as_str()).at_layer(layer))
    };
    match &map.weights {
        MapWeights::Channels(factors) => {
            let length = factors.dims()[1];
            gate(Axis::Positions { length }, 1)
        }
        MapWeights::Positions(factors) => {
            let [_, rows, columns] = factors.dims();
            gate(cells(rows, columns), 1)
        }
        // A head for each channel.
        MapWeights::Numbers(factors) => {
            let [_, channels, rows, columns] = factors.dims();
            gate(cells(rows, columns), channels)
        }
        MapWeights::Pairs {
            weights,
            marks,
            grid,
            key_grid,
        } => {
            let axis = |[rows, columns]: [usize; 2]| Axis::Image {
                prefix: MARKS
                    .iter()
                    .take(*marks)
                    .map(|mark| Token::special(*mark))
                    .collect(),
                rows,
                columns,
            };
            let heads = weights.dims()[1];
            let (queries, keys) = (axis(*grid), axis(*key_grid));
            let kind = Kind::SelfAttention;
            // Of a non-local block by dot product the weights may be negative or sum to anything.
            let of_pairs =
                AttentionMap::new(kind, queries.clone(), keys.clone(), heads, numbers.to_vec());
            let of_pairs = match of_pairs {
                Err(TraceError::RowSum { .. }) => {
                    AttentionMap::unnormalized(kind, queries, keys, heads, numbers.to_vec())
                }
                found => found,
            };
            Ok(of_pairs?.at_layer(layer))
        }
    }
}

pub(crate) fn cells(rows: usize, columns: usize) -> Axis {
    Axis::Image {
        prefix: Tokens::default(),
        rows,
        columns,
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

    /// A classifier that others have trained: a folder of ViT, DeiT or ResNet, as the Hugging Face libraries store them.
    ///
    /// # Errors
    /// [`PretrainedError`]; means and deviations that no images have.
    pub fn pretrained(folder: &Folder, device: &Device) -> Result<Self, PretrainedError> {
        let found = ImageModel::open(folder)?;
        let refused = |problem: String| PretrainedError::Malformed {
            path: folder.path().to_owned(),
            problem,
        };
        let config: Option<&dyn AnyImageClassifierConfig> = match found.kind {
            "vit" => found
                .config
                .downcast_ref()
                .map(|config: &VisionTransformerConfig| config as _),
            _ => found
                .config
                .downcast_ref()
                .map(|config: &ResNetConfig| config as _),
        };
        let config = config.expect("the configuration is that of its kind");
        let model = config.build_without_values(&found.sizes, &found.arrays, device);
        let model = model.map_err(|error| refused(error.to_string()))?;
        let model = weights::apply(model, found.arrays);
        let model = model.map_err(|error| refused(error.to_string()))?;
        let ImagePreparation {
            resizing,
            bicubic,
            mean,
            deviation,
        } = found.preparation;
        let filter = match bicubic {
            true => Filter::Bicubic,
            false => Filter::Bilinear,
        };
        let normalize = Normalize::new(mean, deviation);
        let preparation = Preparation {
            size: found.sizes.size,
            normalize: normalize.map_err(|error| refused(error.to_string()))?,
            resizing: match resizing {
                pretrained::Resizing::Stretch => Resizing::Stretch(filter),
                pretrained::Resizing::Shorter(side) => Resizing::Shorter(side, filter),
            },
        };
        let description = Description {
            model: Model {
                kind: found.kind,
                config: found.config,
            },
            labels: found.labels,
            preparation,
        };
        Ok(Self::new(model, description, device))
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

    /// The same, and for each image what the model looked at: its maps, layer by layer, over the image as the model read it. A model
    /// without attention has none.
    ///
    /// # Errors
    /// Those of [`Preparation::fit`]; numbers that are no weights.
    pub fn look(&self, images: &[Image]) -> Result<Vec<(ClassifiedImage, Trace)>, LookError> {
        let fitted = self.fit(images)?;
        if fitted.is_empty() {
            return Ok(vec![]);
        }
        let tensor = self.description.preparation.tensor(&fitted, &self.device);
        let look = self.model.look(tensor);
        let numbers: Vec<(&ImageMap, Vec<f32>)> = look.maps.iter().map(numbers).collect();
        let classified = self.classified(look.logits).into_iter().enumerate();
        let traced = classified.zip(fitted).map(|((row, found), image)| {
            let label = self.description.labels[found.class].as_str();
            let [height, width] = [image.height(), image.width()];
            let channels = image.channels();
            let image = regard_trace::Image::new(height, width, channels, image.into_pixels())?;
            let mut trace = Trace::new(self.description.model.kind, "", label).with_image(image);
            for (layer, (map, numbers)) in numbers.iter().enumerate() {
                let of_image = numbers.len() / images.len();
                let numbers = &numbers[row * of_image..][..of_image];
                trace = trace.with_map(attention_map(map, layer, label, numbers)?);
            }
            Ok((found, trace))
        });
        traced.collect()
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
