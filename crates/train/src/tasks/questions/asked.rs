//! Images with their questions: read from files or drawn.

use std::borrow::Cow;

use rayon::prelude::*;
use regard_images::{
    Decoding, Image, ImagesError, Mask,
    data::{Dataset, Example, Phrase, Pictures, Question},
};

use super::super::Fingerprint;
use crate::{
    corpus::{CorpusError, FilterReport},
    error::TrainError,
    image_classifier::Form,
    question_answerer::words,
    recipe::{QuestionData, Recipe, SceneSet, Split},
};

/// The images of a part.
#[derive(Debug)]
pub enum Asked {
    /// Drawn when they are asked for.
    Scenes(SceneSet),
    /// Of files, of one size.
    Images {
        /// The images.
        images: Pictures,
        /// What is asked of each.
        questions: Vec<Vec<Question>>,
    },
}

/// An image with its questions.
#[derive(Debug, Clone)]
pub struct Shown {
    /// The image.
    pub image: Image,
    /// What is asked of it.
    pub questions: Vec<Question>,
    /// The pixels of each object that questions speak of, where they are known.
    pub masks: Vec<Mask>,
}

impl Asked {
    /// How many images there are.
    pub fn len(&self) -> usize {
        match self {
            Self::Scenes(set) => set.len(),
            Self::Images { images, .. } => images.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The image of this number, and its questions.
    ///
    /// # Errors
    /// An image that cannot be read any more.
    pub fn get(&self, index: usize) -> Result<Shown, ImagesError> {
        Ok(self.rows(&[index])?.swap_remove(0))
    }

    /// What the images are like.
    pub(super) fn form(&self) -> Form {
        match self {
            Self::Scenes(scenes) => Form::of_scenes(scenes),
            Self::Images { images, .. } => Form::of("data.questions", images),
        }
    }

    /// A hash of images, questions and answers.
    pub(super) fn fingerprint(&self) -> Result<u64, TrainError> {
        // Scenes follow from the recipe: the first ones tell others from them.
        let mut hash = Fingerprint::new();
        let mut add = |questions: &[Question], image: &[u8]| {
            for question in questions {
                hash.bytes(question.phrase.text.as_bytes());
            }
            for question in questions {
                hash.bytes(question.answers.join("\n").as_bytes());
            }
            hash.bytes(image);
        };
        match self {
            Asked::Scenes(set) => {
                for index in 0..set.len().min(16) {
                    let shown = drawn(set, index);
                    add(&shown.questions, shown.image.pixels());
                }
            }
            Asked::Images { images, questions } => {
                images.each(|index, image| add(&questions[index], image.pixels()))?;
            }
        }
        hash.list(1, [self.len() as u32].into_iter());
        Ok(hash.0)
    }

    pub(super) fn rows(&self, rows: &[usize]) -> Result<Vec<Shown>, ImagesError> {
        match self {
            Self::Scenes(set) => Ok(rows.par_iter().map(|&row| drawn(set, row)).collect()),
            Self::Images { images, questions } => {
                let shown = |(image, &row): (Cow<'_, Image>, &usize)| Shown {
                    image: image.into_owned(),
                    questions: questions[row].clone(),
                    masks: vec![],
                };
                Ok(images.all(rows)?.into_iter().zip(rows).map(shown).collect())
            }
        }
    }

    /// How many questions there are about the images of `rows`.
    pub(super) fn count(&self, rows: &[usize]) -> usize {
        let of = |&row: &usize| match self {
            Self::Scenes(set) => drawn(set, row).questions.len(),
            Self::Images { questions, .. } => questions[row].len(),
        };
        rows.par_iter().map(of).sum()
    }

    /// Reads a part of the data that a recipe names, and counts the images that were left out; `None` if it names none.
    ///
    /// # Errors
    /// Those of [`QuestionFiles::read`](crate::recipe::QuestionFiles::read) and of images; [`TrainError::NoImages`].
    pub fn read(recipe: &Recipe, split: Split) -> Result<Option<(Self, usize)>, TrainError> {
        let part = Self::part(recipe, split)?;
        Ok(part.map(|(part, filtered)| (part, filtered.broken)))
    }

    /// As [`Asked::read`], with the number of questions that were too long for training.
    pub(super) fn part(
        recipe: &Recipe,
        split: Split,
    ) -> Result<Option<(Self, FilterReport)>, TrainError> {
        let data = &recipe.data;
        if let Some(scenes) = &data.scenes {
            let part = Self::Scenes(scenes.part(split, recipe.training.seed));
            let filtered = FilterReport {
                kept: part.len(),
                ..FilterReport::default()
            };
            return Ok(Some((part, filtered)));
        }
        let settings = data.questions.as_ref().ok_or(TrainError::NoData)?;
        let broken = settings.broken.policy();
        let files = settings.files(split);
        let Some(dataset) = files.and_then(|files| files.read(broken)) else {
            return Ok(None);
        };
        let mut dataset = dataset?;
        let most = data.filter.max_tokens;
        let too_long = limit(&mut dataset.examples, most, split);
        if too_long > 0 && dataset.examples.is_empty() {
            let problem =
                format!("found {most}, but all {too_long} questions are longer; raise it");
            let field = "data.filter.max_tokens";
            return Err(CorpusError::Setting { field, problem }.into());
        }
        let (part, skipped) = decoded(dataset, settings)?;
        if part.is_empty() {
            return Err(TrainError::NoImages {
                key: match split {
                    Split::Train => "data.questions.train",
                    Split::Valid => "data.questions.valid",
                    Split::Test => "data.questions.test",
                },
                broken: skipped,
                expected: "images with questions, which can be read",
            });
        }
        let filtered = FilterReport {
            kept: part.len(),
            too_long,
            broken: skipped,
            ..FilterReport::default()
        };
        Ok(Some((part, filtered)))
    }
}

/// Limits questions to `most` words. Longer ones are left out for training, with images of which nothing else is asked, and their number
/// is given; of others the first words stay.
fn limit(examples: &mut Vec<Example>, most: usize, split: Split) -> usize {
    let stays = split != Split::Train;
    let mut left_out = 0;
    for example in examples.iter_mut() {
        example.questions.retain_mut(|question| {
            let all = words(&question.phrase.text);
            // The space after the last word that is read.
            let Some((end, _)) = all.match_indices(' ').nth(most.saturating_sub(1)) else {
                return true;
            };
            question.phrase = Phrase::plain(&all[..end]);
            left_out += usize::from(!stays);
            stays
        });
    }
    examples.retain(|example| !example.questions.is_empty());
    left_out
}

/// The images of a data set in the recipe's size, and the number of those that were left out.
fn decoded(dataset: Dataset, settings: &QuestionData) -> Result<(Asked, usize), TrainError> {
    let left_out = dataset.skipped.len();
    let examples = dataset.examples;
    let decoding = Decoding {
        channels: regard_images::Channels::Colour,
        ..Decoding::default()
    };
    let (count, size) = (examples.len(), settings.size);
    let (policy, memory) = (settings.broken.policy(), settings.memory);
    let (images, questions, broken) = super::super::decoded(count, policy, memory, move |index| {
        let example = &examples[index];
        let image = example.image(&decoding)?.fitted(size, size)?;
        Ok((image, example.questions.clone()))
    })?;
    Ok((Asked::Images { images, questions }, left_out + broken))
}

fn drawn(set: &SceneSet, index: usize) -> Shown {
    let scene = set.scene(index);
    let scene = scene.expect("the configuration of scenes was checked");
    Shown {
        image: scene.image,
        questions: scene.questions,
        masks: scene.masks,
    }
}
