//! Data sets of images, read into one form.
//!
//! | function | what it reads |
//! |---|---|
//! | [`class_folders`] | `root/class/*.png`, `.jpg`, `.jpeg`, `.webp`; classes sorted by name |
//! | [`mnist`] | MNIST's IDX files, plain or `.gz` |
//! | [`cifar10`], [`cifar100`] | CIFAR's binary batches |
//! | [`coco_captions`], [`coco_instances`] | COCO's JSON: captions; boxes, classes and masks |
//! | [`vqa`] | VQA version 2's JSON: questions and answers |
//! | [`Scene::example`](crate::scenes::Scene::example) | a scene drawn by this program |
//!
//! Each gives a [`Dataset`] of [`Example`]s: where the image is (a file, or pixels in memory), and what is known of it. Files are
//! decoded by [`Example::image`], on other threads by [`Loader`]; [`Pictures`] holds as many as memory may.
//!
//! ```no_run
//! use regard_images::data::{Loader, Loading, class_folders};
//! use regard_images::{Decoding, Normalize};
//! use std::sync::Arc;
//!
//! let cats = Arc::new(class_folders("animals/train".as_ref(), None)?);
//! let order: Vec<usize> = (0..cats.examples.len()).rev().collect();
//! let data = cats.clone();
//! let loader = Loader::start(order, &Loading::default(), move |i| {
//!     let example = &data.examples[i];
//!     let image = example.image(&Decoding::default())?.fitted(64, 64)?;
//!     Ok((Normalize::imagenet().apply(&image)?, example.label))
//! })?;
//! for example in loader {
//!     let (values, label) = example?;
//!     println!("{} values, class {label:?} of {:?}", values.len(), cats.classes);
//! }
//! # Ok::<(), regard_images::ImagesError>(())
//! ```

mod cifar;
mod coco;
mod folders;
mod json;
mod loader;
mod mnist;
mod pictures;
mod vqa;

use std::ops::Range;
use std::path::{Path, PathBuf};

pub use cifar::{cifar10, cifar100};
pub use coco::{coco_captions, coco_instances};
pub use folders::{class_folders, image_files, is_image};
pub use loader::{Loader, Loading};
pub use mnist::mnist;
pub use pictures::Pictures;
pub use vqa::vqa;

use crate::{Bounds, Decoding, Image, ImagesError, Region};

/// Examples, and the names of the classes that they mention by number.
#[derive(Debug, Default)]
pub struct Dataset {
    /// The examples, in the order of the files.
    pub examples: Vec<Example>,
    /// Names of classes: `examples[i].label` and `examples[i].objects[j].class` are indices into it.
    pub classes: Vec<String>,
    /// What was left out, and why; empty unless [`Broken::Skip`] was asked for.
    pub skipped: Vec<ImagesError>,
}

/// One image and what is known of it; what a data set does not have is empty.
#[derive(Clone, Debug)]
pub struct Example {
    /// Where the image is.
    pub source: Source,
    /// Its height and width, if a file states them.
    pub size: Option<[usize; 2]>,
    /// The class of the whole image.
    pub label: Option<usize>,
    /// Sentences about it.
    pub captions: Vec<Phrase>,
    /// Questions with answers.
    pub questions: Vec<Question>,
    /// What it shows, and where.
    pub objects: Vec<Object>,
}

/// Where an image is.
#[derive(Clone, Debug)]
pub enum Source {
    /// In a file.
    File(PathBuf),
    /// In memory.
    Pixels(Image),
}

/// A text, with the objects that its words speak of where they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Phrase {
    /// The text.
    pub text: String,
    /// Its words in order, without punctuation; empty if nothing is known of them.
    pub words: Vec<Word>,
}

/// A word of a [`Phrase`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// Its bytes in the text.
    pub bytes: Range<usize>,
    /// The object that it speaks of: an index into the objects of the example. `None` for words such as "a" and "above".
    pub object: Option<usize>,
}

impl Phrase {
    /// A text of whose words nothing is known.
    pub fn plain(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            words: vec![],
        }
    }

    /// The words and the objects that they speak of.
    pub fn words(&self) -> impl Iterator<Item = (&str, Option<usize>)> {
        let text = |word: &Word| self.text.get(word.bytes.clone()).unwrap_or("");
        self.words.iter().map(move |word| (text(word), word.object))
    }
}

/// A question about an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Its number in the data set.
    pub id: u64,
    /// Its text.
    pub phrase: Phrase,
    /// Its kind, such as `how many`, as the data set names it.
    pub kind: String,
    /// The answer, or that of most people who were asked.
    pub answer: String,
    /// All answers of people who were asked (ten in VQA); one equal to `answer` where it is known.
    pub answers: Vec<String>,
    /// What must be looked at for the answer: indices into the objects of the example. The object that is asked for comes first.
    pub objects: Vec<usize>,
}

/// One thing in an image.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    /// Its class.
    pub class: usize,
    /// Its box, inside the image.
    pub bounds: Bounds,
    /// Its pixels, if they are known.
    pub region: Option<Region>,
    /// Whether it stands for many things that are not told apart (COCO's `iscrowd`).
    pub crowd: bool,
}

/// What happens with an image that cannot be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Broken {
    /// It is an error.
    #[default]
    Error,
    /// It is counted and left out.
    Skip,
}

impl Broken {
    /// Its name in a configuration: `error` or `skip`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Skip => "skip",
        }
    }

    /// The choice of this name.
    ///
    /// # Errors
    /// [`ImagesError::Option`] for another name.
    pub fn named(name: &str) -> Result<Self, ImagesError> {
        match name {
            "error" => Ok(Self::Error),
            "skip" => Ok(Self::Skip),
            _ => Err(ImagesError::Option {
                option: "broken",
                given: format!("{name:?}"),
                expected: "\"error\" or \"skip\"".to_owned(),
            }),
        }
    }
}

impl Example {
    /// An example of which nothing is known yet.
    pub fn new(source: Source) -> Self {
        Self {
            source,
            size: None,
            label: None,
            captions: vec![],
            questions: vec![],
            objects: vec![],
        }
    }

    /// The image: read and decoded, or a copy of the pixels in memory.
    ///
    /// # Errors
    /// Those of [`Image::open`]; [`ImagesError::NoFile`] for a link that leads nowhere; [`ImagesError::Size`] if the file
    /// does not have the size that the data set states.
    pub fn image(&self, decoding: &Decoding) -> Result<Image, ImagesError> {
        let path = match &self.source {
            Source::Pixels(image) => {
                return Ok(match decoding.channels {
                    crate::Channels::Stored => image.clone(),
                    crate::Channels::Grey => image.clone().into_grey(),
                    crate::Channels::Colour => image.clone().into_colour(),
                });
            }
            Source::File(path) => path,
        };
        if !path.is_file() {
            return Err(ImagesError::NoFile {
                name: path.display().to_string(),
            });
        }
        let image = Image::open(path, decoding)?;
        let actual = [image.height(), image.width()];
        match self.size {
            Some(stated) if stated != actual => Err(ImagesError::Size {
                name: path.display().to_string(),
                actual,
                stated,
            }),
            _ => Ok(image),
        }
    }
}

/// An error about a field of a file.
fn field(
    path: &Path,
    field: impl Into<String>,
    given: impl Into<String>,
    expected: impl Into<String>,
) -> ImagesError {
    ImagesError::Field {
        path: path.to_owned(),
        field: field.into(),
        given: given.into(),
        expected: expected.into(),
    }
}
