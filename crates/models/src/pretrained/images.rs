//! Classifiers of images that others have trained: ViT (Dosovitskiy et al. 2020), DeiT (Touvron et al. 2020) and ResNet (He et al.
//! 2015), read into the networks that are trained here, so that they are run and looked at like those. Training does not begin with them:
//! [`Trainable`](super::Trainable) has models of texts alone.
//!
//! | `model_type` | here | told apart |
//! |---|---|---|
//! | `vit` | [`VisionTransformer`](crate::image::vit::VisionTransformer) | |
//! | `deit` | the same | a distillation token, with scores of its own or read by none; token and position are added up |
//! | `resnet` | [`ResNet`](crate::image::resnet::ResNet) | blocks of two 3x3 or of 1x1, 3x3, 1x1 convolutions |
//!
//! How pixels become numbers stands in `processor_config.json`, or else in `preprocessor_config.json`: size, filter, what is cut out, means and
//! deviations. What is left out, and what a size of one number means, depends on the class of image processors that the file names, or else on
//! the model's (`Processor`).

use std::path::Path;

use regard_config::AnyConfig;
use regard_nn::weights::Arrays;
use serde_json::Value;

use super::{
    classify::ClassScores, config::Config, detr, error::PretrainedError, families::FAMILIES,
    folder::Folder, json::settings, resnet, vit,
};
use crate::image::ImageSizes;

/// The values of `model_type`.
const KINDS: [&str; 3] = ["vit", "deit", "resnet"];

const PREPROCESSOR: &str = "preprocessor_config.json";
/// The file that is read before it, and its key, of a model of images and texts that transformers 5 has saved.
const PROCESSOR: [&str; 2] = ["processor_config.json", "image_processor"];

/// A classifier of images as it is read from a folder.
#[derive(Debug)]
pub struct ImageModel {
    /// The name of its architecture here: `vit` or `resnet`.
    pub kind: &'static str,
    /// A [`VisionTransformerConfig`](crate::image::VisionTransformerConfig) or a [`ResNetConfig`](crate::image::ResNetConfig).
    pub config: Box<dyn AnyConfig>,
    /// Images and number of classes.
    pub sizes: ImageSizes,
    /// The names of the classes.
    pub labels: Vec<String>,
    /// What the outputs are.
    pub scores: ClassScores,
    /// The weights, by their names here.
    pub arrays: Arrays,
    /// How pixels become numbers.
    pub preparation: ImagePreparation,
}

/// How an image is brought to a size and becomes numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct ImagePreparation {
    /// What is done to get the size.
    pub resizing: Resizing,
    /// Whether it is resized by bicubic interpolation, in place of bilinear.
    pub bicubic: bool,
    /// The mean of each channel, of pixels from 0 to 1.
    pub mean: Vec<f32>,
    /// The deviation of each channel.
    pub deviation: Vec<f32>,
}

/// How an image gets its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resizing {
    /// It is stretched to this height and width, and the middle is cut out.
    Stretch([usize; 2]),
    /// Its shorter side gets this length, and the middle is cut out.
    Shorter(usize),
    /// Its shorter side gets this length, or less if its longer one would be above the other length.
    Within {
        /// The length of the shorter side.
        shorter: usize,
        /// The most that the longer one has.
        longer: usize,
    },
    /// It is made as large as it can be within this height and width, in its shape.
    Inside([usize; 2]),
}

/// Whether a folder has a classifier of images.
pub fn holds_images(folder: &Folder) -> bool {
    let kind = folder.config().text("model_type");
    kind.is_ok_and(|kind| KINDS.contains(&kind))
}

/// What is wrong with the model of images in a `folder` where one of texts is wanted, and what to do; `None` for another model.
pub(super) fn no_text(folder: &Path, model_type: &str) -> Result<Option<String>, PretrainedError> {
    let (what, command) = match model_type {
        detr::KIND => ("a detector of objects in images", "detect"),
        kind if KINDS.contains(&kind) => ("a classifier of images", "classify"),
        _ => return unknown(folder, model_type),
    };
    Ok(Some(format!(
        "{what} (model_type {model_type:?}), which reads no text and has no tokenizer; use `regard {command}` with it, or a model of images and texts (CLIP)"
    )))
}

/// The same for a `model_type` that is not known here, which is one of images where these have a preprocessor and texts no tokenizer.
fn unknown(folder: &Path, model_type: &str) -> Result<Option<String>, PretrainedError> {
    let [name, key] = PROCESSOR;
    let preprocessor = settings(&folder.join(PREPROCESSOR))?;
    // A preprocessor of sounds has neither of the two.
    let keys = ["image_processor_type", "image_mean"];
    let of_images = keys.iter().any(|key| preprocessor.contains_key(*key))
        || settings(&folder.join(name))?.contains_key(key);
    let of_texts = folder.join("tokenizer_config.json").exists()
        || FAMILIES.iter().any(|family| family.name == model_type);
    Ok((of_images && !of_texts).then(|| {
        format!(
            "a model of images whose model_type {model_type:?} is not known; expected one of {} (`regard classify`), {} (`regard detect`) or clip (images and texts)",
            KINDS.join(", "),
            detr::KIND
        )
    }))
}

impl ImageModel {
    /// Reads a folder.
    ///
    /// # Errors
    /// [`PretrainedError`]: another `model_type`, a network that has no form here, weights that are missing, left over or misshapen.
    pub fn open(folder: &Folder) -> Result<Self, PretrainedError> {
        let config = folder.config();
        let kind = config.one_of("model_type", &KINDS)?;
        let labels = config.labels()?;
        let processor = processor(folder)?;
        match kind {
            0 => vit::classifier(folder, &processor, labels, vit::VIT),
            1 => vit::classifier(folder, &processor, labels, vit::DEIT),
            _ => resnet::classifier(folder, &processor, labels),
        }
    }
}

/// What a class of image processors does where a file says nothing (transformers 5.24).
struct Processor {
    /// Its name, before `ImageProcessor` or `FeatureExtractor`.
    names: &'static [&'static str],
    /// The `model_type` that has it where a file names no class.
    model: &'static str,
    /// Whether a `size` of one number is height and width (`default_to_square`); if not, it is the length of the shorter side.
    square: bool,
    /// `do_pad`
    pads: bool,
    /// `size`, as one number.
    size: usize,
    /// `crop_size`, if the middle is cut out.
    crop: Option<usize>,
    /// `crop_pct`: what is left of the shorter side of small images, if these are cut out of larger ones.
    share: Option<f64>,
    /// `resample`
    filter: usize,
    /// `image_mean` and `image_std`
    numbers: [[f64; 3]; 2],
}

const VIT: Processor = Processor {
    names: &["ViT"],
    model: "vit",
    square: true,
    pads: false,
    size: 224,
    crop: None,
    share: None,
    filter: 2,
    numbers: [[0.5; 3]; 2],
};

const DETR: Processor = Processor {
    names: &["Detr"],
    model: "detr",
    square: false,
    pads: true,
    size: 800,
    numbers: [[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]],
    ..VIT
};

/// That of detectors.
static DETECTORS: [Processor; 1] = [DETR];

/// The length of the longer side that it allows where a file says nothing.
const LONGER: usize = 1333;

/// Those of classifiers, and of models of images and texts.
static PROCESSORS: [Processor; 5] = [
    VIT,
    Processor {
        names: &["DeiT"],
        model: "deit",
        size: 256,
        crop: Some(224),
        filter: 3,
        ..VIT
    },
    Processor {
        names: &["ConvNext"],
        model: "resnet",
        square: false,
        size: LARGE,
        share: Some(0.875),
        filter: 3,
        ..VIT
    },
    Processor {
        names: &["CLIP", "Bit"],
        model: "clip",
        square: false,
        crop: Some(224),
        filter: 3,
        numbers: [
            [0.48145466, 0.4578275, 0.40821073],
            [0.26862954, 0.26130258, 0.27577711],
        ],
        ..VIT
    },
    Processor {
        names: &["Beit"],
        model: "beit",
        filter: 3,
        ..VIT
    },
];

/// Images of this size and above are not cut out of larger ones by ConvNext's class.
const LARGE: usize = 384;

impl Processor {
    /// The class among the `known` ones that a preprocessor's `config` names, or else that of the model in the `folder`.
    fn of(
        folder: &Folder,
        config: &Config,
        known: &'static [Self],
    ) -> Result<&'static Self, PretrainedError> {
        const KEYS: [&str; 2] = ["image_processor_type", "feature_extractor_type"];
        let Some(key) = KEYS.into_iter().find(|key| config.has(key)) else {
            let model = folder.config();
            let kind = model.text("model_type")?;
            let found = known.iter().find(|class| class.model == kind);
            return found.ok_or_else(|| model.refuse("model_type", "a model that reads images"));
        };
        let named = config.text(key)?;
        let ends = ["ImageProcessor", "FeatureExtractor"];
        let name = ends.into_iter().find_map(|end| named.split_once(end));
        let found = name.and_then(|(name, _)| {
            let mut all = known.iter();
            all.find(|class| class.names.contains(&name))
        });
        found.ok_or_else(|| {
            let names = known.iter().flat_map(|class| class.names);
            let names: Vec<String> = names.map(|name| format!("{name}{}", ends[0])).collect();
            config.refuse(key, format!("one of {}", names.join(", ")))
        })
    }
}

impl ImagePreparation {
    /// Reads the configuration of the preprocessor in a folder, and the size of the images that it gives.
    pub(super) fn of(
        folder: &Folder,
        config: &Config,
        channels: usize,
    ) -> Result<(Self, [usize; 2]), PretrainedError> {
        let class = Processor::of(folder, config, &PROCESSORS)?;
        if config.flag_or("use_square_size", false)? {
            return Err(config.refuse("use_square_size", "false, and size"));
        }
        let crop = match config.flag_or("do_center_crop", class.crop.is_some())? {
            false => None,
            true => match Side::of(config, "crop_size", true, class.crop)? {
                Side::Both(size) => Some(size),
                Side::Shorter(..) | Side::Most(_) => {
                    return Err(config.refuse("crop_size", "height and width"));
                }
            },
        };
        if crop.is_some() {
            // The middle of an image as it is would be another one than that of the resized image.
            expect_resizing(config)?;
        }
        // A size that the file leaves out is the class'.
        let square = match config.has("size") {
            true => config.flag_or("default_to_square", class.square)?,
            false => class.square,
        };
        let found = Side::of(config, "size", square, Some(class.size))?;
        let (resizing, size) = match (found, class.share, crop) {
            (Side::Both(_), Some(_), _) => {
                return Err(config.refuse("size", "shortest_edge, for this class"));
            }
            (Side::Most(_), ..) | (Side::Shorter(_, Some(_)), None, _) => {
                let expected = "height and width, or shortest_edge alone";
                return Err(config.refuse("size", expected));
            }
            (Side::Both(to), None, crop) => (Resizing::Stretch(to), crop.unwrap_or(to)),
            (Side::Shorter(side, _), Some(_), crop) if side >= LARGE => {
                (Resizing::Stretch([side; 2]), crop.unwrap_or([side; 2]))
            }
            (Side::Shorter(side, _), Some(_), Some(crop)) if crop != [side; 2] => {
                let expected = format!("that of size ({side}), to which this class cuts images");
                return Err(config.refuse("crop_size", expected));
            }
            (Side::Shorter(side, _), Some(share), _) => {
                let share = config.positive_or("crop_pct", share)?;
                let larger = (side as f64 / share) as usize;
                (Resizing::Shorter(larger), [side; 2])
            }
            (Side::Shorter(side, None), None, Some(crop)) => (Resizing::Shorter(side), crop),
            (Side::Shorter(_, None), None, None) => {
                let expected = "true, with crop_size: images of one size";
                return Err(config.refuse("do_center_crop", expected));
            }
        };
        Self::resized(config, class, channels, resizing, size)
    }

    /// The same for a detector, which reads the whole image in its shape; the size is the largest of its images.
    pub(super) fn of_detector(
        folder: &Folder,
        config: &Config,
        channels: usize,
    ) -> Result<(Self, [usize; 2]), PretrainedError> {
        let class = Processor::of(folder, config, &DETECTORS)?;
        expect_resizing(config)?;
        let (resizing, size) = match Side::of(config, "size", class.square, Some(class.size))? {
            Side::Both(size) => (Resizing::Stretch(size), size),
            Side::Most(size) => (Resizing::Inside(size), size),
            Side::Shorter(shorter, longer) => {
                let longer = match (longer, config.value("size")) {
                    (Some(longer), _) => longer,
                    (None, None) => LONGER,
                    (None, Some(Value::Object(_))) => {
                        let expected = "shortest_edge with longest_edge";
                        return Err(config.refuse("size", expected));
                    }
                    (None, Some(_)) => config.size_or("max_size", LONGER)?,
                };
                (Resizing::Within { shorter, longer }, [longer; 2])
            }
        };
        Self::resized(config, class, channels, resizing, size)
    }

    /// The rest of a preprocessor's keys.
    fn resized(
        config: &Config,
        class: &Processor,
        channels: usize,
        resizing: Resizing,
        size: [usize; 2],
    ) -> Result<(Self, [usize; 2]), PretrainedError> {
        let filter = config.count_or("resample", class.filter)?;
        if !matches!(filter, 2 | 3) {
            return Err(config.refuse("resample", "2 (bilinear) or 3 (bicubic)"));
        }
        // Stretching to the model's size changes no image that has this size, and without it (and nothing cut out) the model reads no
        // other.
        let only_stretches = matches!(resizing, Resizing::Stretch(to) if to == size);
        if !only_stretches {
            expect_resizing(config)?;
        }
        // The first name is that of older detectors.
        let pads = config.flag_or("pad_and_return_pixel_mask", class.pads)?;
        if config.flag_or("do_pad", pads)? && config.has("pad_size") {
            return Err(config.refuse("pad_size", "null, or do_pad = false"));
        }
        if !config.flag_or("do_rescale", true)? {
            return Err(config.refuse("do_rescale", "true"));
        }
        let usual = 1.0 / 255.0;
        let factor = config.positive_or("rescale_factor", usual)?;
        if (factor / usual - 1.0).abs() > 1e-3 {
            return Err(config.refuse("rescale_factor", "1 / 255"));
        }
        let normalized = config.flag_or("do_normalize", true)?;
        let numbers = |key: &str, usual: [f64; 3], none: f64| {
            let found = match normalized {
                true => config.floats_or(key, usual.to_vec())?,
                false => vec![none; channels],
            };
            match found.len() == channels {
                true => Ok(found.into_iter().map(|number| number as f32).collect()),
                false => {
                    Err(config.refuse(key, format!("{channels} numbers, one for each channel")))
                }
            }
        };
        let [mean, deviation] = class.numbers;
        let preparation = Self {
            resizing,
            bicubic: filter == 3,
            mean: numbers("image_mean", mean, 0.0)?,
            deviation: numbers("image_std", deviation, 1.0)?,
        };
        Ok((preparation, size))
    }
}

/// Refuses a preprocessor that leaves images in their own sizes, for networks that read these.
pub(super) fn expect_resizing(config: &Config) -> Result<(), PretrainedError> {
    match config.flag_or("do_resize", true)? {
        true => Ok(()),
        false => Err(config.refuse("do_resize", "true")),
    }
}

/// How a folder says that images become numbers.
pub(super) fn processor(folder: &Folder) -> Result<Config, PretrainedError> {
    let file = |name: &str| folder.path().join(name);
    let [name, key] = PROCESSOR;
    if file(name).exists() {
        let config = Config::read_file(file(name))?;
        if let Some(section) = config.section(key)? {
            return Ok(section);
        }
        if !file(PREPROCESSOR).exists() {
            return Err(config.refuse(key, "an object"));
        }
    }
    Config::read_file(file(PREPROCESSOR))
}

/// The channels of the images that a network reads.
pub(super) fn channels(config: &Config) -> Result<usize, PretrainedError> {
    let channels = config.size_or("num_channels", 3)?;
    match channels {
        1 | 3 => Ok(channels),
        _ => Err(config.refuse("num_channels", "1 (grey) or 3 (red, green, blue)")),
    }
}

/// A size as a preprocessor names it.
enum Side {
    /// The length of the shorter side, and the most that the longer one has.
    Shorter(usize, Option<usize>),
    /// Height and width.
    Both([usize; 2]),
    /// The most that height and width have.
    Most([usize; 2]),
}

impl Side {
    /// The size that a `key` names, or else the `usual` one; one number is both sides of a `square`, or the length of the shorter one.
    fn of(
        config: &Config,
        key: &str,
        square: bool,
        usual: Option<usize>,
    ) -> Result<Self, PretrainedError> {
        let one = |side: usize| match square {
            true => Self::Both([side; 2]),
            false => Self::Shorter(side, None),
        };
        match (config.value(key), usual) {
            (None, Some(usual)) => return Ok(one(usual)),
            (Some(Value::Number(_)), _) => return Ok(one(config.size(key)?)),
            (Some(Value::Array(_)), _) => {
                return match config.sizes(key)?[..] {
                    [height, width] => Ok(Self::Both([height, width])),
                    _ => Err(config.refuse(key, "height and width")),
                };
            }
            _ => {}
        }
        let Some(section) = config.section(key)? else {
            return Err(config.refuse(key, "a size in pixels"));
        };
        let fields = config.value(key).and_then(Value::as_object);
        let fields = fields.into_iter().flatten();
        let keys = fields.filter(|(_, value)| !value.is_null());
        let mut keys: Vec<&str> = keys.map(|(key, _)| key.as_str()).collect();
        keys.sort_unstable();
        match keys[..] {
            ["height", "width"] => {
                let size = [section.size("height")?, section.size("width")?];
                Ok(Self::Both(size))
            }
            ["max_height", "max_width"] => {
                let most = [section.size("max_height")?, section.size("max_width")?];
                Ok(Self::Most(most))
            }
            ["shortest_edge"] => Ok(Self::Shorter(section.size("shortest_edge")?, None)),
            ["longest_edge", "shortest_edge"] => {
                let shorter = section.size("shortest_edge")?;
                Ok(Self::Shorter(shorter, Some(section.size("longest_edge")?)))
            }
            _ => {
                let expected = "height and width, or shortest_edge (of a detector with longest_edge, or max_height and max_width)";
                Err(config.refuse(key, expected))
            }
        }
    }
}
