//! `[data.images]`: images with a class each, how they are read, and how they are changed at random.

use std::path::{Path, PathBuf};

use regard_config::{FRACTION, PROBABILITY, Range, config};
use regard_images::{
    Augment, Channels, Decoding, ImagesError, Operation,
    data::{self, Broken, Dataset},
};
use serde::{Deserialize, Serialize};

use super::Split;

const SHARE: Range<f64> = Range {
    holds: |share| share > 0.0 && share < 1.0,
    expected: "above 0 and below 1",
};

/// A square of the longest side has `MAX_PIXELS` of `regard-images`.
pub(super) const SIDE: Range<usize> = Range {
    holds: |pixels| (1..=8192).contains(&pixels),
    expected: "1 to 8192",
};

const PADDING: Range<usize> = Range {
    holds: |pixels| pixels <= 4096,
    expected: "0 to 4096",
};

pub(super) const MEMORY: Range<usize> = Range {
    holds: |mebibytes| mebibytes <= 1 << 24,
    expected: "0 to 16777216",
};

const OPERATIONS: Range<usize> = Range {
    holds: |count| count <= 64,
    expected: "0 to 64",
};

config! {
    /// Images with a class each, for image classifiers: a folder with a folder for each class, a folder with CIFAR's binary files, or
    /// MNIST's file of images (that of labels lies beside it).
    pub struct ImageData {
        /// Training images.
        train: Option<PathBuf> = None, example "\"data/cifar10/train\"";
        /// Validation images; if left out, a share of the training images.
        valid: Option<PathBuf> = None, example "\"data/cifar10/valid\"";
        /// The share of the training images of each class that is for validation, above 0 and below 1; where `valid` is left out.
        valid_share: f64 = 0.05, in SHARE;
        /// Test images, for `regard evaluate` and `compare`; training only looks whether their names and classes are in order.
        test: Option<PathBuf> = None, example "\"data/cifar10/test\"";
        /// Height and width that images are brought to, by size and by cropping; those of the first image if left out.
        size: Option<usize> = None, in SIDE, example "32";
        /// Whether images are read as grey.
        grey: bool = false;
        /// What happens with an image that cannot be read: an "error", or "skip": it is counted and left out.
        broken: OnBroken = OnBroken::Error;
        /// Mebibytes of decoded images of each part that stay in memory; the others are read again whenever they are needed.
        memory: usize = 4096, in MEMORY;
        /// Random changes of training images.
        [table] augment: AugmentConfig = AugmentConfig::default();
    }
}

config! {
    /// Random changes of training images, drawn anew for every update.
    pub struct AugmentConfig {
        /// Zeros on each side, before a part of the former size is cut out at a random place; in pixels.
        padding: usize = 0, in PADDING;
        /// Probability that an image is mirrored.
        flip: f64 = 0.0, in PROBABILITY;
        /// RandAugment (Cubuk et al. 2020): operations an image, such as turning or brightening.
        operations: usize = 0, in OPERATIONS;
        /// How strong those are, from 0 to 1.
        strength: f64 = 0.3, in PROBABILITY;
        /// Side of a grey square at a random place (DeVries and Taylor 2017), in pixels.
        cutout: usize = 0, in PADDING;
        /// Mixup (Zhang et al. 2018): two images are mixed by a share from Beta(mixup, mixup); 0 for none, often 0.2.
        mixup: f64 = 0.0, in FRACTION;
    }
}

/// What happens with an image that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnBroken {
    /// Training does not begin.
    #[default]
    Error,
    /// It is counted and left out.
    Skip,
}

impl AugmentConfig {
    /// The changes of one image.
    pub fn of_image(&self) -> Augment {
        Augment {
            padding: self.padding,
            flip: self.flip,
            operations: self.operations,
            strength: self.strength,
            choices: Operation::ALL.to_vec(),
            cutout: self.cutout,
        }
    }
}

impl OnBroken {
    /// The same, as readers of images have it.
    pub fn policy(self) -> Broken {
        match self {
            Self::Error => Broken::Error,
            Self::Skip => Broken::Skip,
        }
    }
}

impl ImageData {
    /// How files are decoded.
    pub fn decoding(&self) -> Decoding {
        Decoding {
            channels: match self.grey {
                true => Channels::Grey,
                false => Channels::Colour,
            },
            ..Decoding::default()
        }
    }

    /// What happens with broken images.
    pub fn broken(&self) -> Broken {
        self.broken.policy()
    }

    /// Whether validation and test are the same folder of CIFAR's files, in which both are the test batch.
    pub(crate) fn validates_on_test(&self) -> bool {
        let real = |path: &Option<PathBuf>| path.as_ref()?.canonicalize().ok();
        match (real(&self.valid), real(&self.test)) {
            (Some(valid), Some(test)) => {
                valid == test && (is_cifar10(&valid) || is_cifar100(&valid))
            }
            _ => false,
        }
    }

    /// The path of a part, if the recipe names one.
    pub fn path(&self, split: Split) -> Option<&Path> {
        let path = match split {
            Split::Train => &self.train,
            Split::Valid => &self.valid,
            Split::Test => &self.test,
        };
        path.as_deref()
    }
}

const TRAINING_BATCHES: [&str; 5] = [
    "data_batch_1.bin",
    "data_batch_2.bin",
    "data_batch_3.bin",
    "data_batch_4.bin",
    "data_batch_5.bin",
];
const TEST_BATCH: &str = "test_batch.bin";

fn is_cifar10(path: &Path) -> bool {
    let mut files = TRAINING_BATCHES.into_iter().chain([TEST_BATCH]);
    files.any(|file| path.join(file).is_file())
}

fn is_cifar100(path: &Path) -> bool {
    let mut files = ["train.bin", "test.bin"].into_iter();
    files.any(|file| path.join(file).is_file())
}

/// The names that the labels of a file of MNIST's images may have, beside it: in gzip or not, first as it is itself. `None` if its name
/// does not say.
pub fn idx_labels(images: &Path) -> Option<[PathBuf; 2]> {
    let name = images.file_name()?.to_string_lossy();
    let spellings = [
        ("images-idx3", "labels-idx1"),
        ("images.idx3", "labels.idx1"),
    ];
    let mut spellings = spellings.into_iter();
    let (spelled, labels) = spellings.find(|&(images, _)| name.contains(images))?;
    let own = name.replace(spelled, labels);
    let other = match own.strip_suffix(".gz") {
        Some(plain) => plain.to_owned(),
        None => format!("{own}.gz"),
    };
    Some([own, other].map(|name| images.with_file_name(name)))
}

/// The file of labels of a file of MNIST's images, as it is there.
fn labels_of(images: &Path) -> Result<PathBuf, ImagesError> {
    let Some([own, other]) = idx_labels(images) else {
        let name = images.file_name().unwrap_or_default().to_string_lossy();
        return Err(ImagesError::Field {
            path: images.to_owned(),
            field: "the name".to_owned(),
            given: format!("{name:?}"),
            expected: "one with images-idx3 or images.idx3, of whose labels that with labels-idx1 or labels.idx1 is"
                .to_owned(),
        });
    };
    Ok(match !own.is_file() && other.is_file() {
        true => other,
        false => own,
    })
}

/// The images at `path`, of the classes `known` if there are such, else of those that are found there: a folder of class folders, a
/// folder of CIFAR's binary files, or a file of MNIST's images. `test` says which of CIFAR's files are meant.
///
/// # Errors
/// Those of [`regard_images::data`]; [`ImagesError::Field`] for other classes, for training batches of CIFAR-10 without one of a lower
/// number (where no classes are known: a run goes on with those that it began with), and for a file whose name does not say where its
/// labels are.
pub fn read_images(
    path: &Path,
    test: bool,
    known: Option<&[String]>,
) -> Result<Dataset, ImagesError> {
    let holds = |file: &str| path.join(file).is_file();
    let dataset = if path.is_file() {
        data::mnist(path, &labels_of(path)?)?
    } else if is_cifar10(path) {
        let held = TRAINING_BATCHES.into_iter().filter(|file| holds(file));
        let held: Vec<&str> = held.collect();
        let last = TRAINING_BATCHES.into_iter().rposition(holds);
        // The first one, if there is none: the error names it.
        let expected = &TRAINING_BATCHES[..=last.unwrap_or(0)];
        let missing = expected.iter().filter(|file| !holds(file));
        let missing = missing.copied().collect::<Vec<_>>().join(", ");
        match test {
            true => data::cifar10(path, &[TEST_BATCH])?,
            false if held.is_empty() => data::cifar10(path, expected)?,
            false if known.is_none() && !missing.is_empty() => {
                return Err(ImagesError::Field {
                    path: path.to_owned(),
                    field: "the list of training batches".to_owned(),
                    given: format!("without {missing}"),
                    expected: "all from data_batch_1.bin to the last one that is there".to_owned(),
                });
            }
            false => data::cifar10(path, &held)?,
        }
    } else if is_cifar100(path) {
        let file = if test { "test.bin" } else { "train.bin" };
        data::cifar100(path, &[file])?
    } else {
        return data::class_folders(path, known);
    };
    match known {
        Some(known) if dataset.classes != known => Err(ImagesError::Field {
            path: path.to_owned(),
            field: "the list of classes".to_owned(),
            given: dataset.classes.join(", "),
            expected: known.join(", "),
        }),
        _ => Ok(dataset),
    }
}
