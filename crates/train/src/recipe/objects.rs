//! `[data.objects]`: images whose objects are known, in COCO's form.

use std::path::{Path, PathBuf};

use regard_config::{PROBABILITY, Range, config};
use regard_images::{
    Channels, Decoding, ImagesError,
    data::{Dataset, coco_instances},
};

use super::{OnBroken, Split, images::MEMORY};

const SIDE: Range<usize> = Range {
    holds: |pixels| (8..=2048).contains(&pixels),
    expected: "8 to 2048",
};

config! {
    /// Images and a file of their objects with classes, boxes and masks, in COCO's form (instances): for detectors.
    pub struct ObjectData {
        /// Folder of the training images.
        train: Option<PathBuf> = None, example "\"data/coco/train2017\"";
        /// Their objects.
        train_objects: Option<PathBuf> = None, example "\"data/coco/annotations/instances_train2017.json\"";
        /// Folder of the validation images.
        valid: Option<PathBuf> = None, example "\"data/coco/val2017\"";
        /// Their objects.
        valid_objects: Option<PathBuf> = None, example "\"data/coco/annotations/instances_val2017.json\"";
        /// Folder of the test images, for `regard evaluate` and `compare`; training only looks whether their objects are in order and they
        /// are there.
        test: Option<PathBuf> = None, example "\"data/coco/test2017\"";
        /// Their objects.
        test_objects: Option<PathBuf> = None, example "\"data/coco/annotations/instances_test2017.json\"";
        /// Height and width that images are brought to, with their boxes and masks; sides may change their ratio.
        size: usize = 64, in SIDE;
        /// Whether images are read as grey.
        grey: bool = false;
        /// What happens with an image or object that cannot be read: an "error", or "skip": it is counted and left out.
        broken: OnBroken = OnBroken::Error;
        /// Mebibytes of decoded images of each part that stay in memory; the others are read again whenever they are needed.
        memory: usize = 4096, in MEMORY;
        /// Probability that a training image is mirrored, with its boxes and masks; drawn anew for every update.
        flip: f64 = 0.0, in PROBABILITY;
    }
}

impl ObjectData {
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

    /// The folder of images and the file of objects of a part; `None` for what is not named.
    pub fn paths(&self, split: Split) -> [Option<&Path>; 2] {
        let paths = match split {
            Split::Train => [&self.train, &self.train_objects],
            Split::Valid => [&self.valid, &self.valid_objects],
            Split::Test => [&self.test, &self.test_objects],
        };
        paths.map(Option::as_deref)
    }

    /// What the files of a part say, if the recipe names them; the images are not decoded yet.
    ///
    /// # Errors
    /// Those of [`coco_instances`].
    pub fn read(&self, split: Split) -> Result<Option<Dataset>, ImagesError> {
        match self.paths(split) {
            [Some(images), Some(objects)] => {
                coco_instances(objects, images, self.broken.policy()).map(Some)
            }
            _ => Ok(None),
        }
    }
}
