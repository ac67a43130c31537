//! An image in, a class out, and what the model looked at.

use std::borrow::Borrow;

use burn::tensor::{
    Device, Tensor, TensorData,
    activation::{log_sigmoid, softmax},
};
use regard_images::{Channels, Decoding, Filter, Image, Normalize, data::Pictures};
use regard_kernels::matmul::Storage;
use regard_models::{
    AnyImageClassifier, ImageSizes, RoleOf,
    gradient::{GradientError, WeightGradients, followable, log_probability, of_maps},
    image::{ImageLook, ImageMap, MapWeights, ResNetConfig, VisionTransformerConfig},
    pretrained::{
        self, ClassScores, Folder, ImageModel, ImagePreparation, PretrainedError, TextEncoder,
        Tokenizer,
    },
};
use regard_nn::{
    bridge::{matmul, sigmoid},
    dropout::DropoutRng,
    weights,
};
use regard_trace::{AttentionMap, Axis, Kind, Token, Tokens, Trace, TraceError};

use crate::{
    error::TrainError,
    image_encoder::ImageEncoder,
    model_file::ModelFileError,
    recipe::{Model, SceneSet},
    tasks::Describe,
};

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

impl Describe<AnyImageClassifier> for Description {
    fn model(&self) -> &Model {
        &self.model
    }

    fn sizes(&self) -> ImageSizes {
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
    /// Height and width that it is brought to; where images [keep their shapes](Resizing::keeps_shape) the most that they can be.
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
    /// It is stretched to this height and width; then the middle is cut out.
    Stretch([usize; 2], Filter),
    /// Its shorter side gets this length; then the middle is cut out.
    Shorter(usize, Filter),
    /// Its shorter side gets this length, or less if its longer one would be above the second; its shape is kept.
    Within(usize, usize, Filter),
    /// It is made as large as it can be within this height and width; its shape is kept.
    Inside([usize; 2], Filter),
}

impl Resizing {
    /// Whether images keep their shapes, so that each has a size of its own.
    pub fn keeps_shape(self) -> bool {
        matches!(self, Self::Within(..) | Self::Inside(..))
    }
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

    /// `[batch, channels, height, width]` of images that have its channels, and its size; where they
    /// [keep their shapes](Resizing::keeps_shape) all that of the first.
    ///
    /// # Panics
    /// If one has others.
    pub fn tensor(&self, images: &[impl Borrow<Image>], device: &Device) -> Tensor<4> {
        let of = |image: &Image| [image.height(), image.width()];
        let size = match images {
            [first, ..] if self.resizing.keeps_shape() => of(first.borrow()),
            _ => self.size,
        };
        let [height, width] = size;
        let channels = self.normalize.mean().len();
        let mut values = Vec::with_capacity(images.len() * channels * height * width);
        for image in images {
            let image = image.borrow();
            assert_eq!(of(image), size, "the size of an image");
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
            Resizing::Stretch(whole, filter) => image.resized_middle(whole, self.size, filter),
            Resizing::Shorter(side, filter) => {
                image.resized_middle(image.size_with_shorter(side), self.size, filter)
            }
            Resizing::Within(shorter, longer, filter) => {
                image.resize_within(shorter, longer, filter)
            }
            Resizing::Inside([height, width], filter) => image.resize_inside(height, width, filter),
        }
    }

    /// The image as a detector reads it: the whole of it, in the model's size, or in its [own shape](Resizing::keeps_shape).
    ///
    /// # Errors
    /// Those of [`Image::resize`].
    pub fn scale(&self, image: &Image) -> Result<Image, regard_images::ImagesError> {
        let [height, width] = self.size;
        let image = self.coloured(image);
        match self.resizing {
            Resizing::Within(shorter, longer, filter) => {
                image.resize_within(shorter, longer, filter)
            }
            Resizing::Inside([height, width], filter) => image.resize_inside(height, width, filter),
            Resizing::Stretch(_, filter) => image.resized(height, width, filter),
            Resizing::Cover | Resizing::Shorter(..) => image.resize(height, width),
        }
    }

    /// Checks that the images of a recipe have the channels and the size that the model reads.
    ///
    /// # Errors
    /// [`TrainError::ImageChannels`], [`TrainError::ImageSize`].
    pub(crate) fn expect_form(&self, Form { section, sizes }: Form) -> Result<(), TrainError> {
        let Some([channels, size @ ..]) = sizes else {
            return Ok(());
        };
        let expected = self.normalize.mean().len();
        if channels != expected {
            return Err(TrainError::ImageChannels {
                section,
                found: channels,
                expected,
            });
        }
        match self.resizing.keeps_shape() || size == self.size {
            true => Ok(()),
            false => Err(TrainError::ImageSize {
                section,
                found: size,
                expected: self.size,
            }),
        }
    }

    /// What others have trained with, for images of this size.
    pub(crate) fn pretrained(
        found: ImagePreparation,
        size: [usize; 2],
    ) -> Result<Self, regard_images::ImagesError> {
        let filter = match found.bicubic {
            true => Filter::Bicubic,
            false => Filter::Bilinear,
        };
        Ok(Self {
            size,
            normalize: Normalize::new(found.mean, found.deviation)?,
            resizing: match found.resizing {
                pretrained::Resizing::Stretch(size) => Resizing::Stretch(size, filter),
                pretrained::Resizing::Shorter(side) => Resizing::Shorter(side, filter),
                pretrained::Resizing::Within { shorter, longer } => {
                    Resizing::Within(shorter, longer, filter)
                }
                pretrained::Resizing::Inside(most) => Resizing::Inside(most, filter),
            },
        })
    }

    fn coloured(&self, image: &Image) -> Image {
        match self.normalize.mean().len() {
            1 => image.clone().into_grey(),
            _ => image.clone().into_colour(),
        }
    }
}

/// What the images of a part of a recipe's data are like.
pub(crate) struct Form {
    /// The section that names them.
    section: &'static str,
    /// Channels, height and width; `None` without images.
    sizes: Option<[usize; 3]>,
}

impl Form {
    /// Images which `section` names, all like the first one.
    pub(crate) fn of(section: &'static str, images: &Pictures) -> Self {
        let sizes = images.form();
        Self { section, sizes }
    }

    /// Scenes, which are drawn in colour.
    pub(crate) fn of_scenes(scenes: &SceneSet) -> Self {
        let config = scenes.config();
        Self {
            section: "data.scenes",
            sizes: Some([3, config.height, config.width]),
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
    /// Every map of the model has negative weights, for every image.
    #[error(
        "there is no map to show: weights of the affinity \"dot\" have signs and are no shares; expected another affinity, or no maps to be asked for"
    )]
    Signed,
    /// Gradients that cannot be computed.
    #[error(transparent)]
    Gradients(#[from] GradientError),
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

/// Most texts that are read together.
const TEXTS_AT_ONCE: usize = 64;

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
                prefix: marks.iter().map(|mark| Token::special(*mark)).collect(),
                rows,
                columns,
            };
            let heads = weights.dims()[1];
            let (queries, keys) = (axis(*grid), axis(*key_grid));
            let kind = Kind::SelfAttention;
            // Of a non-local block by dot product the weights may sum to anything; negative ones are refused.
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
    /// How the network's outputs become probabilities.
    class_scores: ClassScores,
    /// Classes that are texts: for each the vector of its text, times the scale of scores, `[size, classes]`. Then the network gives the
    /// vectors of images.
    texts: Option<Tensor<2>>,
}

/// A layer, and the gradients of its weights.
pub type LayerGradients = (usize, WeightGradients);

/// Images as a network read them, and what it looked at.
pub(crate) struct Seen {
    images: Vec<Image>,
    maps: Vec<ImageMap>,
}

/// The classification of one image.
#[derive(Debug, Clone)]
pub struct ClassifiedImage {
    /// The class of the highest probability.
    pub class: usize,
    /// The probability of every class; of a model of numbers ([`ClassScores::Numbers`]), these.
    pub probabilities: Vec<f32>,
}

impl ImageClassifier {
    /// A classifier from its parts.
    pub fn new(model: AnyImageClassifier, description: Description, device: &Device) -> Self {
        Self {
            model,
            description,
            device: device.clone(),
            class_scores: ClassScores::Softmax,
            texts: None,
        }
    }

    /// A classifier that others have trained: a folder of ViT, DeiT or ResNet, as the Hugging Face libraries store them.
    ///
    /// # Errors
    /// [`PretrainedError`]; means and deviations that no images have.
    pub fn pretrained(folder: &Folder, device: &Device) -> Result<Self, PretrainedError> {
        Self::of(folder, ImageModel::open(folder)?, device)
    }

    /// A classifier whose classes are texts: a folder of CLIP (Radford et al. 2021), and the names of the classes. Each name stands in
    /// place of the `{}` of the `prompt`, such as `a photo of {}`; the score of a class is the cosine of its text and the image, times
    /// the scale that the model has learned. The weights that read the texts are kept in `storage`, or as they are stored.
    ///
    /// # Errors
    /// [`PretrainedError`], also without labels, and for a text that is too long or has no tokens.
    pub fn zero_shot(
        folder: &Folder,
        labels: Vec<String>,
        prompt: &str,
        storage: Option<Storage>,
        device: &Device,
    ) -> Result<Self, PretrainedError> {
        let refused = |problem: String| PretrainedError::Malformed {
            path: folder.path().to_owned(),
            problem,
        };
        if labels.is_empty() {
            let problem = "its classes are texts, and none is given; expected at least one label";
            return Err(refused(problem.to_owned()));
        }
        let images = ImageEncoder::pretrained(folder, device)?;
        let texts = TextEncoder::open(folder, storage)?;
        let tokenizer = Tokenizer::open(folder.path())?;
        tokenizer.expect_most_rows(texts.vocabulary())?;
        let mut vectors = vec![];
        for labels in labels.chunks(TEXTS_AT_ONCE) {
            let encode = |label: &String| tokenizer.encode(&prompt.replace("{}", label), true);
            let encoded = labels.iter().map(encode).collect::<Result<Vec<_>, _>>()?;
            let inputs = encoded.iter().map(|encoded| pretrained::Input {
                ids: &encoded.ids,
                ..Default::default()
            });
            let states = texts.states(&inputs.collect::<Vec<_>>(), None);
            let states = states.map_err(PretrainedError::Input)?;
            for ((label, text), states) in labels.iter().zip(&encoded).zip(&states) {
                // The model's own, in the space of the images: files of sentence-transformers have no say in it.
                let mut vector = texts.vector(&text.ids, states).ok_or_else(|| {
                    let found = format!("the text of label {label:?} has no tokens");
                    refused(format!("{found}; expected at least one"))
                })?;
                pretrained::normalize(&mut vector);
                vectors.push(vector);
            }
        }
        Ok(images.classifier(labels, &vectors))
    }

    /// With texts as classes: the vectors of `texts`, of length 1.
    pub(crate) fn with_texts(
        mut self,
        labels: Vec<String>,
        texts: &[Vec<f32>],
        scale: f32,
    ) -> Self {
        let (count, size) = (texts.len(), texts.first().map_or(0, Vec::len));
        let texts = TensorData::new(texts.concat(), [count, size]);
        let texts = Tensor::<2>::from_data(texts, &self.device) * scale;
        self.texts = Some(texts.transpose());
        self.description.labels = labels;
        self
    }

    /// A network that was read from `folder`.
    pub(crate) fn of(
        folder: &Folder,
        found: ImageModel,
        device: &Device,
    ) -> Result<Self, PretrainedError> {
        let refused = |problem: String| PretrainedError::Malformed {
            path: folder.path().to_owned(),
            problem,
        };
        let role = match found.kind {
            "vit" => RoleOf::config::<VisionTransformerConfig>(),
            _ => RoleOf::config::<ResNetConfig>(),
        };
        let config = role.of(&*found.config);
        let model = config.build_without_values(&found.sizes, &found.arrays, device);
        let model = model.map_err(|error| refused(error.to_string()))?;
        let model = weights::apply(model, found.arrays);
        let model = model.map_err(|error| refused(error.to_string()))?;
        let preparation = Preparation::pretrained(found.preparation, found.sizes.size)
            .map_err(|error| refused(error.to_string()))?;
        let description = Description {
            model: Model {
                kind: found.kind,
                config: found.config,
            },
            labels: found.labels,
            preparation,
        };
        Ok(Self {
            class_scores: found.scores,
            ..Self::new(model, description, device)
        })
    }

    /// What the probabilities are: of one class among all, or of each class alone, or numbers.
    pub fn class_scores(&self) -> ClassScores {
        self.class_scores
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
        let outputs = self.outputs(images)?;
        Ok(outputs.map_or_else(Vec::new, |outputs| self.classified(outputs)))
    }

    /// The same, and for each image what the model looked at: its maps, layer by layer, over the image as the model read it. A model
    /// without attention has none; a map with negative weights, which are no shares, is left out.
    ///
    /// # Errors
    /// Those of [`Preparation::fit`]; numbers that are no weights; [`LookError::Signed`] if no image has a map left.
    pub fn look(&self, images: &[Image]) -> Result<Vec<(ClassifiedImage, Trace)>, LookError> {
        let (looked, maps) = self.looked(images)?;
        let mut traces = looked.iter().map(|(_, trace)| trace);
        match maps > 0 && traces.all(|trace| trace.maps.is_empty()) {
            true => Err(LookError::Signed),
            false => Ok(looked),
        }
    }

    /// The same, also where no map is left, and how many the model has.
    pub(crate) fn looked(
        &self,
        images: &[Image],
    ) -> Result<(Vec<(ClassifiedImage, Trace)>, usize), LookError> {
        let Some((outputs, seen)) = self.seen(images)? else {
            return Ok((vec![], 0));
        };
        let maps = seen.maps.len();
        let classified = self.classified(outputs);
        let label = |found: &ClassifiedImage| self.description.labels[found.class].as_str();
        let traces = self.traces(seen, classified.iter().map(label))?;
        Ok((classified.into_iter().zip(traces).collect(), maps))
    }

    /// The class of an image, and the gradients of its log probability with respect to each weight of attention, by layer: of the maps
    /// of its trace.
    ///
    /// # Errors
    /// Those of [`Preparation::fit`]; a model that is too large, gives no probabilities, or attends in other places than its maps show.
    pub fn gradients(&self, image: &Image) -> Result<(usize, Vec<LayerGradients>, f64), LookError> {
        if self.class_scores == ClassScores::Numbers {
            let what = "a model whose head gives no probabilities";
            return Err(GradientError::Unserved(what).into());
        }
        let image = [self.description.preparation.fit(image)?];
        let read = |device: &Device| self.description.preparation.tensor(&image, device);
        let look = self.model.look(read(&self.device));
        let pairs = look.maps.iter().enumerate();
        let pairs = pairs.filter_map(|(layer, map)| match &map.weights {
            MapWeights::Pairs { weights, .. } => {
                let [_, heads, queries, keys] = weights.dims();
                Some((layer, [heads, queries, keys]))
            }
            _ => None,
        });
        let (layers, shapes): (Vec<usize>, Vec<[usize; 3]>) = pairs.unzip();
        if shapes.len() < look.maps.len() || shapes.is_empty() {
            let what = match look.maps.is_empty() {
                true => "a model without attention",
                false => {
                    "factors of channels and positions, which this model has; expected one whose maps are of pairs of positions"
                }
            };
            return Err(GradientError::Unserved(what).into());
        }
        let class = self.classified(look.logits)[0].class;
        let device = self.device.clone().autodiff();
        let model = followable(&self.model);
        let texts = self.texts.as_ref();
        let texts = texts.map(|texts| Tensor::from_data(texts.to_data(), &device));
        let (log_probability, found) = of_maps(&model, &shapes, || {
            let outputs = model.forward(read(&device), &mut DropoutRng::none());
            let logits = scores(outputs, texts);
            match self.class_scores {
                ClassScores::Sigmoid => log_sigmoid(logits.narrow(1, class, 1)).sum(),
                _ => log_probability(logits, &[class as u32]),
            }
        })?;
        Ok((
            class,
            layers.into_iter().zip(found).collect(),
            log_probability,
        ))
    }

    /// What the network gives for images, `[images, outputs]`; `None` without images.
    pub(crate) fn outputs(
        &self,
        images: &[Image],
    ) -> Result<Option<Tensor<2>>, regard_images::ImagesError> {
        let fitted = self.fit(images)?;
        if fitted.is_empty() {
            return Ok(None);
        }
        let tensor = self.description.preparation.tensor(&fitted, &self.device);
        Ok(Some(self.model.forward(tensor, &mut DropoutRng::none())))
    }

    /// The same, and what it looked at.
    pub(crate) fn seen(
        &self,
        images: &[Image],
    ) -> Result<Option<(Tensor<2>, Seen)>, regard_images::ImagesError> {
        let images = self.fit(images)?;
        if images.is_empty() {
            return Ok(None);
        }
        let tensor = self.description.preparation.tensor(&images, &self.device);
        let ImageLook { logits, maps } = self.model.look(tensor);
        Ok(Some((logits, Seen { images, maps })))
    }

    /// What was looked at in each image, whose class is called as `labels` say; maps with negative weights are left out.
    pub(crate) fn traces<'a>(
        &self,
        Seen { images, maps }: Seen,
        labels: impl Iterator<Item = &'a str>,
    ) -> Result<Vec<Trace>, TraceError> {
        let numbers: Vec<(&ImageMap, Vec<f32>)> = maps.iter().map(numbers).collect();
        let count = images.len();
        let traced = images.into_iter().zip(labels).enumerate();
        let traced = traced.map(|(row, (image, label))| {
            let [height, width] = [image.height(), image.width()];
            let channels = image.channels();
            let image = regard_trace::Image::new(height, width, channels, image.into_pixels())?;
            let mut trace = Trace::new(self.description.model.kind, "", label).with_image(image);
            for (layer, (map, numbers)) in numbers.iter().enumerate() {
                let of_image = numbers.len() / count;
                let numbers = &numbers[row * of_image..][..of_image];
                trace = match attention_map(map, layer, label, numbers) {
                    Err(TraceError::Weight { value, .. }) if value.is_finite() => trace,
                    map => trace.with_map(map?),
                };
            }
            Ok(trace)
        });
        traced.collect()
    }

    fn fit(&self, images: &[Image]) -> Result<Vec<Image>, regard_images::ImagesError> {
        let preparation = &self.description.preparation;
        images.iter().map(|image| preparation.fit(image)).collect()
    }

    fn classified(&self, outputs: Tensor<2>) -> Vec<ClassifiedImage> {
        let logits = scores(outputs, self.texts.clone());
        let classes = self.description.labels.len();
        let probabilities = match self.class_scores {
            ClassScores::Softmax => softmax(logits, 1),
            ClassScores::Sigmoid => sigmoid(logits),
            ClassScores::Numbers => logits,
        };
        let probabilities: Vec<f32> = probabilities.into_data().iter::<f32>().collect();
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

/// The scores of classes, which may be `texts`.
fn scores(outputs: Tensor<2>, texts: Option<Tensor<2>>) -> Tensor<2> {
    match texts {
        None => outputs,
        Some(texts) => matmul(normalized(outputs), texts),
    }
}

/// Rows of length 1; a row of zeros stays one.
pub(crate) fn normalized(rows: Tensor<2>) -> Tensor<2> {
    let lengths = rows.clone().square().sum_dim(1).sqrt();
    rows / lengths.clamp_min(1e-12)
}
