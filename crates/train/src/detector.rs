//! An image in, its objects out, and what the model looked at for each.

use burn::tensor::{Device, Tensor, activation::softmax};
use regard_images::{Bounds, Image, ImagesError, Mask};
use regard_models::{
    AnyDetector, AnyModelConfig, DetectorSizes,
    gradient::{GradientError, followable, log_probability, of_maps},
    image::{Detected, Predicted},
    pretrained::{DetectorModel, Folder, PretrainedError},
};
use regard_nn::{dropout::DropoutRng, weights};
use regard_trace::{AttentionMap, Axis, Kind, Region, Regions, Token, Tokens, Trace, TraceError};

use crate::{
    image_classifier::{LayerGradients, LookError, Preparation},
    recipe::{Model, SceneData},
    tasks::Describe,
};

/// The longer side of the image in a trace is at most so many pixels.
const LARGEST_SHOWN: usize = 1024;

/// The content of a detector's file apart from the weights.
#[derive(Debug, Clone)]
pub struct Description {
    /// The architecture.
    pub model: Model,
    /// The name of each class.
    pub labels: Vec<String>,
    /// How an image becomes numbers.
    pub preparation: Preparation,
    /// The scenes that it learned from, if it did, and their seed. Files of former versions do not tell.
    pub scenes: Option<(SceneData, u64)>,
}

impl Describe<AnyDetector> for Description {
    fn model(&self) -> &Model {
        &self.model
    }

    fn sizes(&self) -> DetectorSizes {
        DetectorSizes {
            channels: self.preparation.normalize.mean().len(),
            size: self.preparation.size,
            classes: self.labels.len(),
        }
    }
}

/// What a query says of an image: its likeliest class, apart from no object, and its box.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Guess {
    /// The query.
    pub query: usize,
    /// The class.
    pub class: usize,
    /// Its probability.
    pub score: f32,
    /// Left, top, width and height of the box, as shares of the image, inside of it.
    pub bounds: [f32; 4],
}

impl Guess {
    /// What all queries say of each image.
    pub fn all(predicted: &Predicted) -> Vec<Vec<Self>> {
        let [_, queries, classes] = predicted.logits.dims();
        let numbers = |tensor: Tensor<3>| -> Vec<f32> {
            let data = tensor.into_data();
            data.iter::<f32>().collect()
        };
        let probabilities = numbers(softmax(predicted.logits.clone(), 2));
        let boxes = numbers(predicted.boxes.clone());
        let probabilities = probabilities.chunks_exact(queries * classes);
        let boxes = boxes.chunks_exact(queries * 4);
        let of_image = |(probabilities, boxes): (&[f32], &[f32])| {
            let of_query = |(query, (scores, bounds)): (usize, (&[f32], &[f32]))| {
                let scores = &scores[..classes - 1];
                // Of equal ones the first.
                let best = scores
                    .iter()
                    .enumerate()
                    .rev()
                    .max_by(|a, b| a.1.total_cmp(b.1));
                let (class, &score) = best.unwrap_or((0, &0.0));
                let side = |axis: usize| {
                    let half = bounds[axis + 2] / 2.0;
                    [bounds[axis] - half, bounds[axis] + half].map(|edge| edge.clamp(0.0, 1.0))
                };
                let ([left, right], [top, bottom]) = (side(0), side(1));
                Self {
                    query,
                    class,
                    score,
                    bounds: [left, top, right - left, bottom - top],
                }
            };
            let queries = probabilities
                .chunks_exact(classes)
                .zip(boxes.chunks_exact(4));
            queries.enumerate().map(of_query).collect()
        };
        probabilities.zip(boxes).map(of_image).collect()
    }
}

/// The masks of predictions, each of `height x width` pixels: those whose probability is at least a half; `None` of a model without
/// masks.
pub(crate) fn masks_of(
    model: &AnyDetector,
    found: &Detected,
    chosen: &[[usize; 2]],
    [height, width]: [usize; 2],
) -> Result<Option<Vec<Mask>>, ImagesError> {
    if chosen.is_empty() {
        return Ok(model.has_masks().then(Vec::new));
    }
    let Some(drawn) = model.masks(found, chosen, [height, width]) else {
        return Ok(None);
    };
    let drawn = drawn.into_data();
    let drawn: Vec<f32> = drawn.iter::<f32>().collect();
    let mask = |values: &[f32]| {
        let mut mask = Mask::new(height, width)?;
        for (place, _) in values
            .iter()
            .enumerate()
            .filter(|(_, value)| **value >= 0.0)
        {
            mask.set(place / width, place % width);
        }
        Ok(mask)
    };
    let masks: Result<Vec<Mask>, ImagesError> =
        drawn.chunks_exact(height * width).map(mask).collect();
    masks.map(Some)
}

/// The least probability of an object that is shown, where nobody gives another.
pub const LEAST_PROBABILITY: f32 = 0.7;

/// A detector with its classes, ready for use.
#[derive(Debug)]
pub struct Detector {
    model: AnyDetector,
    description: Description,
    device: Device,
}

/// An object that was found in an image.
#[derive(Debug, Clone, PartialEq)]
pub struct DetectedObject {
    /// The query that found it.
    pub query: usize,
    /// Its class.
    pub class: usize,
    /// The probability of its class.
    pub score: f32,
    /// Its box, in pixels of the image.
    pub bounds: Bounds,
    /// Its pixels in the image, of a model with masks if they were asked for.
    pub mask: Option<Mask>,
}

impl Detector {
    /// A detector from its parts.
    pub fn new(model: AnyDetector, description: Description, device: &Device) -> Self {
        Self {
            model,
            description,
            device: device.clone(),
        }
    }

    /// A detector that others have trained: a folder of DETR, as the Hugging Face libraries store it.
    ///
    /// # Errors
    /// [`PretrainedError`]; means and deviations that no images have.
    pub fn pretrained(folder: &Folder, device: &Device) -> Result<Self, PretrainedError> {
        let found = DetectorModel::open(folder)?;
        let refused = |problem: String| PretrainedError::Malformed {
            path: folder.path().to_owned(),
            problem,
        };
        let model = found
            .config
            .build_without_values(&found.sizes, &found.arrays, device);
        let model = model.map_err(|error| refused(error.to_string()))?;
        let model = weights::apply(model, found.arrays);
        let preparation = Preparation::pretrained(found.preparation, found.sizes.size);
        let description = Description {
            model: Model {
                kind: "detr",
                config: Box::new(found.config),
            },
            labels: found.labels,
            preparation: preparation.map_err(|error| refused(error.to_string()))?,
            scenes: None,
        };
        let model = model.map_err(|error| refused(error.to_string()))?;
        Ok(Self::new(model, description, device))
    }

    /// Architecture, classes, preparation.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// The model.
    pub fn model(&self) -> &AnyDetector {
        &self.model
    }

    /// Whether the model gives objects masks.
    pub fn has_masks(&self) -> bool {
        self.model.has_masks()
    }

    /// The objects in each image whose score is at least `threshold`, best first; with their pixels, if the model has masks and
    /// `masks` is true. Images are brought to the model's size first, boxes and masks are of the images as they are given.
    ///
    /// # Errors
    /// Those of [`Image::resize`].
    pub fn detect(
        &self,
        images: &[Image],
        threshold: f32,
        masks: bool,
    ) -> Result<Vec<Vec<DetectedObject>>, ImagesError> {
        let mut all = vec![];
        for images in self.together(images) {
            let read = self.read(images)?;
            let found = self.model.forward(read, &mut DropoutRng::none());
            all.extend(self.objects(&found, images, threshold, masks)?);
        }
        Ok(all)
    }

    /// Images that are read together: all, or each by itself if they keep their shapes.
    fn together<'a>(&self, images: &'a [Image]) -> std::slice::Chunks<'a, Image> {
        images.chunks(match self.description.preparation.resizing.keeps_shape() {
            true => 1,
            false => images.len().max(1),
        })
    }

    /// The same, and for each image what the model looked at: for each layer of the decoder where the queries of the found objects
    /// looked. Images of more than 1,024 pixels on a side are smaller in their traces, with their boxes and masks.
    ///
    /// # Errors
    /// Those of [`Image::resize`]; numbers that are no weights.
    pub fn look(
        &self,
        images: &[Image],
        threshold: f32,
        masks: bool,
    ) -> Result<Vec<(Vec<DetectedObject>, Trace)>, LookError> {
        let mut all = vec![];
        for images in self.together(images) {
            all.extend(self.look_together(images, threshold, masks)?);
        }
        Ok(all)
    }

    fn look_together(
        &self,
        images: &[Image],
        threshold: f32,
        masks: bool,
    ) -> Result<Vec<(Vec<DetectedObject>, Trace)>, LookError> {
        let look = self.model.look(self.read(images)?);
        let objects = self.objects(&look.found, images, threshold, masks)?;
        let shown: Vec<Image> = images.iter().map(shown).collect::<Result<_, _>>()?;
        let drawn = match shown
            .iter()
            .zip(images)
            .all(|(shown, image)| size(shown) == size(image))
        {
            true => objects.clone(),
            false => self.objects(&look.found, &shown, threshold, masks)?,
        };
        let [rows, columns] = look.grid;
        let weights = look
            .cross
            .iter()
            .map(|weights| -> (usize, usize, Vec<f32>) {
                let [_, heads, queries, _] = weights.dims();
                let data = weights.clone().into_data();
                (heads, queries, data.iter::<f32>().collect())
            });
        let weights: Vec<(usize, usize, Vec<f32>)> = weights.collect();
        let cells = rows * columns;
        let traced = objects.into_iter().zip(drawn).zip(shown).enumerate();
        let traced = traced.map(|(row, ((objects, drawn), image))| {
            let regions = drawn.iter().map(|object| self.region(object));
            let regions = regions.collect::<Result<Vec<Region>, TraceError>>()?;
            let names: Vec<&str> = regions.iter().map(Region::label).collect();
            let mut trace = Trace::new(self.description.model.kind, "", names.join(", "));
            let regions = Regions::from(regions);
            if !objects.is_empty() {
                for (layer, (heads, queries, weights)) in weights.iter().enumerate() {
                    let of_image = &weights[row * heads * queries * cells..];
                    let mut rows_of = Vec::with_capacity(heads * objects.len() * cells);
                    for head in 0..*heads {
                        for object in &objects {
                            let first = (head * queries + object.query) * cells;
                            rows_of.extend_from_slice(&of_image[first..first + cells]);
                        }
                    }
                    let queries = Axis::Regions {
                        regions: regions.clone(),
                    };
                    let keys = Axis::Image {
                        prefix: Tokens::from(Vec::<Token>::new()),
                        rows,
                        columns,
                    };
                    let map = AttentionMap::new(Kind::Cross, queries, keys, *heads, rows_of)?;
                    trace = trace.with_map(map.named("decoder.cross").at_layer(layer));
                }
            }
            let [height, width] = size(&image);
            let channels = image.channels();
            let image = regard_trace::Image::new(height, width, channels, image.into_pixels())?;
            Ok((objects, trace.with_image(image)))
        });
        traced.collect()
    }

    /// The objects in an image, as [`Detector::look`] has them, and the gradients of `Σ log p(class of an object)` with respect to each
    /// weight between their queries and the image, by layer: of the maps of its trace.
    ///
    /// # Errors
    /// Those of [`Image::resize`]; an image without objects; a model that is too large.
    pub fn gradients(
        &self,
        image: &Image,
        threshold: f32,
    ) -> Result<(Vec<DetectedObject>, Vec<LayerGradients>, f64), LookError> {
        let image = [image.clone()];
        let read = self.read(&image)?;
        let look = self.model.look(read.clone());
        let found = self.objects(&look.found, &image, threshold, false)?;
        let objects = found.into_iter().next().unwrap_or_default();
        if objects.is_empty() {
            let what = "an image in which the model finds no object";
            return Err(GradientError::Unserved(what).into());
        }
        let shape = |weights: &Tensor<4>| {
            let [_, heads, queries, keys] = weights.dims();
            [heads, queries, keys]
        };
        // A layer of the decoder has two.
        let decoder = look.decoder.iter().zip(&look.cross);
        let decoder = decoder.flat_map(|(own, cross)| [shape(own), shape(cross)]);
        let shapes: Vec<[usize; 3]> = look.encoder.iter().map(shape).chain(decoder).collect();
        let device = self.device.clone().autodiff();
        let model = followable(&self.model);
        let read = Tensor::<4>::from_data(read.into_data(), &device);
        let queries: Vec<i32> = objects.iter().map(|object| object.query as i32).collect();
        let classes: Vec<u32> = objects.iter().map(|object| object.class as u32).collect();
        let (log_probability, calls) = of_maps(&model, &shapes, || {
            let found = model.forward(read, &mut DropoutRng::none());
            let logits = found.last().logits.clone().squeeze_dim::<2>(0);
            let logits = logits.select(0, Tensor::from_ints(&queries[..], &device));
            log_probability(logits, &classes)
        })?;
        let cross = calls.into_iter().skip(look.encoder.len() + 1).step_by(2);
        let rows: Vec<usize> = objects.iter().map(|object| object.query).collect();
        let cross = cross.map(|call| call.of_queries(&rows)).enumerate();
        Ok((objects, cross.collect(), log_probability))
    }

    /// The images as the model reads them.
    fn read(&self, images: &[Image]) -> Result<Tensor<4>, ImagesError> {
        let preparation = &self.description.preparation;
        let scaled = images.iter().map(|image| preparation.scale(image));
        Ok(preparation.tensor(&scaled.collect::<Result<Vec<_>, _>>()?, &self.device))
    }

    fn objects(
        &self,
        found: &Detected,
        images: &[Image],
        threshold: f32,
        masks: bool,
    ) -> Result<Vec<Vec<DetectedObject>>, ImagesError> {
        let all = Guess::all(found.last()).into_iter().zip(images).enumerate();
        let of_image = |(row, (mut guesses, image)): (usize, (Vec<Guess>, &Image))| {
            guesses.retain(|guess| guess.score >= threshold);
            guesses.sort_by(|a, b| b.score.total_cmp(&a.score));
            let [height, width] = size(image);
            let of_guess = |guess: Guess| {
                let Guess {
                    query,
                    class,
                    score,
                    bounds: [x, y, across, down],
                } = guess;
                // One at a time: an image may be large.
                let mask = match masks {
                    true => masks_of(&self.model, found, &[[row, query]], size(image))?,
                    false => None,
                };
                Ok(DetectedObject {
                    query,
                    class,
                    score,
                    bounds: Bounds {
                        x: x * width as f32,
                        y: y * height as f32,
                        width: across * width as f32,
                        height: down * height as f32,
                    },
                    mask: mask.and_then(|masks| masks.into_iter().next()),
                })
            };
            guesses.into_iter().map(of_guess).collect()
        };
        all.map(of_image).collect()
    }

    fn region(&self, object: &DetectedObject) -> Result<Region, TraceError> {
        let Bounds {
            x,
            y,
            width,
            height,
        } = object.bounds;
        let bounds = regard_trace::Bounds {
            x,
            y,
            width,
            height,
        };
        let region = Region::new(self.description.labels[object.class].as_str(), bounds)?;
        let region = region.scored(object.score)?;
        Ok(match &object.mask {
            Some(mask) => region.masked(regard_trace::Mask::new(
                mask.height(),
                mask.width(),
                mask.runs(),
            )?),
            None => region,
        })
    }
}

fn size(image: &Image) -> [usize; 2] {
    [image.height(), image.width()]
}

/// The image as it stands in a trace.
fn shown(image: &Image) -> Result<Image, ImagesError> {
    let longer = image.height().max(image.width());
    if longer <= LARGEST_SHOWN {
        return Ok(image.clone());
    }
    let [height, width] = size(image).map(|side| (side * LARGEST_SHOWN / longer).max(1));
    image.resize(height, width)
}
