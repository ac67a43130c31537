//! `[data.captions]`: images of files with captions of their own.

use std::path::{Path, PathBuf};

use regard_config::{Check, Range, config};
use regard_images::data::Broken;

use super::{OnBroken, Split, images::MEMORY};

const SIDE: Range<usize> = Range {
    holds: |pixels| (8..=2048).contains(&pixels),
    expected: "8 to 2048",
};

config! {
    /// Images with captions: COCO's files of captions, each with the folder of its images. Captions are put in lower
    /// case, without punctuation.
    pub struct CaptionData {
        /// Training captions: COCO's JSON.
        train: Option<PathBuf> = None, example "\"coco/annotations/captions_train2014.json\"";
        /// The folder of their images.
        train_images: Option<PathBuf> = None, example "\"coco/train2014\"";
        /// Validation captions.
        valid: Option<PathBuf> = None, example "\"coco/annotations/captions_val2014.json\"";
        /// The folder of their images.
        valid_images: Option<PathBuf> = None, example "\"coco/val2014\"";
        /// Test captions.
        test: Option<PathBuf> = None, example "\"coco/annotations/captions_val2014.json\"";
        /// The folder of their images.
        test_images: Option<PathBuf> = None, example "\"coco/val2014\"";
        /// Height and width that images are brought to, by size and by cropping.
        size: usize = 128, in SIDE;
        /// What happens with an image that cannot be read: an "error", or "skip": it is counted and left out.
        broken: OnBroken = OnBroken::Error;
        /// Mebibytes of decoded images of each part that stay in memory; the others are read again whenever they are needed.
        memory: usize = 4096, in MEMORY;
    }
    check CaptionData::agree
}

impl CaptionData {
    fn agree(&self, check: &mut Check) {
        for (key, captions, images) in [
            ("train_images", &self.train, &self.train_images),
            ("valid_images", &self.valid, &self.valid_images),
            ("test_images", &self.test, &self.test_images),
        ] {
            if captions.is_some() != images.is_some() {
                let expected = "a file of captions and the folder of its images, or neither";
                check.fail(key, "one of the two is missing", expected);
            }
        }
    }

    /// The captions and the images of a part, if the recipe names them.
    pub fn paths(&self, split: Split) -> Option<(&Path, &Path)> {
        let (captions, images) = match split {
            Split::Train => (&self.train, &self.train_images),
            Split::Valid => (&self.valid, &self.valid_images),
            Split::Test => (&self.test, &self.test_images),
        };
        captions.as_deref().zip(images.as_deref())
    }

    /// What happens with broken images.
    pub fn broken(&self) -> Broken {
        self.broken.policy()
    }
}
