//! Classifiers of images that others have trained: ViT (Dosovitskiy et al. 2020), DeiT (Touvron et al. 2020) and ResNet (He et al.
//! 2015), read into the networks that are trained here, so that they are looked at and trained on like those.
//!
//! | `model_type` | here | told apart |
//! |---|---|---|
//! | `vit` | [`VisionTransformer`](crate::image::vit::VisionTransformer) | |
//! | `deit` | the same | a distillation token with scores of its own; token and position are added up |
//! | `resnet` | [`ResNet`](crate::image::resnet::ResNet) | blocks of two 3x3 or of 1x1, 3x3, 1x1 convolutions |
//!
//! How pixels become numbers stands in `preprocessor_config.json`, or in `processor_config.json`: size, filter, what is cut out, means and
//! deviations.

use regard_config::AnyConfig;
use regard_nn::weights::Arrays;

use super::{config::Config, error::PretrainedError, folder::Folder, resnet, vit};
use crate::image::ImageSizes;

/// The values of `model_type`.
const KINDS: [&str; 3] = ["vit", "deit", "resnet"];

const PREPROCESSOR: &str = "preprocessor_config.json";
/// The file, and its key, of a model of images and texts that transformers 5 has saved.
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
    /// It is stretched to the size.
    Stretch,
    /// Its shorter side gets this length, and the middle is cut out.
    Shorter(usize),
    /// Its shorter side gets this length, or less if its longer one would be above the other length.
    Within {
        /// The length of the shorter side.
        shorter: usize,
        /// The most that the longer one has.
        longer: usize,
    },
}

/// Whether a folder has a classifier of images.
pub fn holds_images(folder: &Folder) -> bool {
    let kind = folder.config().text("model_type");
    kind.is_ok_and(|kind| KINDS.contains(&kind))
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

impl ImagePreparation {
    /// Reads the configuration of a preprocessor, and the size of the images that it gives.
    pub(super) fn of(
        config: &Config,
        channels: usize,
    ) -> Result<(Self, [usize; 2]), PretrainedError> {
        let (shorter, stretched) = size(config, "size")?;
        let crop = match config.flag_or("do_center_crop", config.has("crop_size"))? {
            true => size(config, "crop_size")?.1,
            false => None,
        };
        // ConvNext's preprocessor, which ResNet has too: small sizes are cut out of the middle of a larger image.
        let share = config.positive_or("crop_pct", 0.875)?;
        let (resizing, size) = match (shorter, stretched, crop) {
            (Some(shorter), _, Some(crop)) => (Resizing::Shorter(shorter), crop),
            (Some(shorter), _, None) if shorter < 384 => {
                let larger = (shorter as f64 / share) as usize;
                (Resizing::Shorter(larger), [shorter; 2])
            }
            (Some(shorter), _, None) => (Resizing::Stretch, [shorter; 2]),
            (None, Some([height, width]), Some(crop)) if height == width => {
                (Resizing::Shorter(height), crop)
            }
            (None, Some(size), None) => (Resizing::Stretch, size),
            _ => return Err(config.refuse("size", "a size, or that of the shorter side")),
        };
        Self::resized(config, channels, resizing, size)
    }

    /// The same for a detector, which reads the whole image in its shape; the size is the largest of its images.
    pub(super) fn of_detector(
        config: &Config,
        channels: usize,
    ) -> Result<(Self, [usize; 2]), PretrainedError> {
        let (section, keys) = match config.section("size") {
            Ok(Some(section)) => (section, ["shortest_edge", "longest_edge"]),
            _ => (config.clone(), ["size", "max_size"]),
        };
        let (resizing, size) = match section.has("height") {
            true => {
                let size = [section.size("height")?, section.size("width")?];
                (Resizing::Stretch, size)
            }
            false => {
                let shorter = section.size_or(keys[0], 800)?;
                let longer = section.size_or(keys[1], config.size_or("max_size", 1333)?)?;
                (Resizing::Within { shorter, longer }, [longer; 2])
            }
        };
        Self::resized(config, channels, resizing, size)
    }

    /// The rest of a preprocessor's keys.
    fn resized(
        config: &Config,
        channels: usize,
        resizing: Resizing,
        size: [usize; 2],
    ) -> Result<(Self, [usize; 2]), PretrainedError> {
        let filter = config.count_or("resample", 2)?;
        if !matches!(filter, 2 | 3) {
            return Err(config.refuse("resample", "2 (bilinear) or 3 (bicubic)"));
        }
        let usual = 1.0 / 255.0;
        let factor = config.positive_or("rescale_factor", usual)?;
        if (factor / usual - 1.0).abs() > 1e-3 || !config.flag_or("do_rescale", true)? {
            return Err(config.refuse("rescale_factor", "1 / 255, with do_rescale"));
        }
        let normalized = config.flag_or("do_normalize", true)?;
        let numbers = |key: &str, default: f64| {
            let found = match normalized {
                true => config.floats(key)?,
                false => vec![default; channels],
            };
            match found.len() == channels {
                true => Ok(found.into_iter().map(|number| number as f32).collect()),
                false => {
                    Err(config.refuse(key, format!("{channels} numbers, one for each channel")))
                }
            }
        };
        let preparation = Self {
            resizing,
            bicubic: filter == 3,
            mean: numbers("image_mean", 0.0)?,
            deviation: numbers("image_std", 1.0)?,
        };
        Ok((preparation, size))
    }
}

/// How a folder says that images become numbers.
pub(super) fn processor(folder: &Folder) -> Result<Config, PretrainedError> {
    let file = |name: &str| folder.path().join(name);
    let [name, key] = PROCESSOR;
    if !file(PREPROCESSOR).exists() && file(name).exists() {
        let config = Config::read_file(file(name))?;
        let section = config.section(key)?;
        return section.ok_or_else(|| config.refuse(key, "an object"));
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

/// The length of the shorter side, or height and width, that a key names.
fn size(
    config: &Config,
    key: &str,
) -> Result<(Option<usize>, Option<[usize; 2]>), PretrainedError> {
    if config.value(key).is_some_and(serde_json::Value::is_u64) {
        return Ok((None, Some([config.size(key)?; 2])));
    }
    let Some(section) = config.section(key)? else {
        return Err(config.refuse(key, "a size in pixels"));
    };
    match section.has("shortest_edge") {
        true => Ok((Some(section.size("shortest_edge")?), None)),
        false => Ok((
            None,
            Some([section.size("height")?, section.size("width")?]),
        )),
    }
}
