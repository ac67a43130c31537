//! `[data.questions]`: questions about images with the answers of people, as VQA has them.

use std::path::PathBuf;

use regard_config::{Check, SIZE, config};
use regard_images::{
    ImagesError,
    data::{self, Broken, Dataset},
};

use super::{
    OnBroken, Split,
    images::{MEMORY, SIDE},
};

config! {
    /// Questions about images with the answers of people: files of VQA version 2, over the images of COCO.
    pub struct QuestionData {
        /// Training questions.
        [table] train: Option<QuestionFiles> = None;
        /// Validation questions.
        [table] valid: Option<QuestionFiles> = None;
        /// Test questions with their answers, for `regard evaluate` and `compare`; training only looks whether they are in order and their
        /// images are there.
        [table] test: Option<QuestionFiles> = None;
        /// Height and width that images are brought to.
        size: usize = 64, in SIDE;
        /// Answers that are given at least so often in training are those that a model can give.
        min_answers: usize = 9, in SIZE;
        /// What happens with an image that cannot be read: an "error", or "skip": it is counted and left out.
        broken: OnBroken = OnBroken::Error;
        /// Mebibytes of decoded images of each part that stay in memory; the others are read again whenever they are needed.
        memory: usize = 4096, in MEMORY;
    }
    check QuestionData::agree
}

config! {
    /// The files of a part.
    pub struct QuestionFiles {
        /// The folder of the images.
        images: Option<PathBuf> = None, example "\"data/coco/train2014\"";
        /// The questions, JSON.
        questions: Option<PathBuf> = None, example "\"data/vqa/v2_OpenEnded_mscoco_train2014_questions.json\"";
        /// The answers of people, JSON.
        annotations: Option<PathBuf> = None, example "\"data/vqa/v2_mscoco_train2014_annotations.json\"";
    }
    check QuestionFiles::agree
}

impl QuestionFiles {
    fn agree(&self, check: &mut Check) {
        let files = [
            ("images", &self.images, "the folder of the images"),
            ("questions", &self.questions, "a JSON file of questions"),
            (
                "annotations",
                &self.annotations,
                "a JSON file of their answers",
            ),
        ];
        for (key, file, expected) in files {
            if file.is_none() {
                check.fail(key, "missing", expected);
            }
        }
    }

    /// The images with their questions; no image is opened. `None` if a file is not named.
    ///
    /// # Errors
    /// Those of [`data::vqa`].
    pub fn read(&self, broken: Broken) -> Option<Result<Dataset, ImagesError>> {
        let (images, questions) = self.images.as_ref().zip(self.questions.as_ref())?;
        let annotations = self.annotations.as_ref()?;
        Some(data::vqa(questions, Some(annotations), images, broken))
    }
}

impl QuestionData {
    fn agree(&self, check: &mut Check) {
        if self.train.is_none() {
            check.fail(
                "train",
                "missing",
                "a section with images, questions and annotations",
            );
        }
    }

    /// The files of a part, if the recipe names them.
    pub fn files(&self, split: Split) -> Option<&QuestionFiles> {
        match split {
            Split::Train => self.train.as_ref(),
            Split::Valid => self.valid.as_ref(),
            Split::Test => self.test.as_ref(),
        }
    }
}
