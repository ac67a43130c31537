//! A trained model as one file: weights as safetensors, and in its metadata everything else that is needed to use it.
//!
//! | metadata key | content, JSON |
//! |---|---|
//! | `regard.model` | the architecture: `kind`, `sizes` (of vocabularies), `config` (the keys of the recipe's `[model]`) |
//! | `regard.tokenizers` | the tokenizers of source and target |
//! | `regard.translate`, `regard.languages` | of a model that translates: the recipe's `[translate]`, source and target language |
//! | `regard.labels` | of a classifier: the labels, in the order of the classes, and the most tokens of a sentence |
//! | `regard.text` | of a language model: whether its texts are parts of a file or lines |
//! | `regard.images` | of a classifier of images and of a detector: the labels, mean and deviation of each channel; of a detector also the drawn scenes that it learned from with their seed, if it did |
//! | `regard.captions` | of a captioner: mean and deviation of each channel, and the drawn scenes that it learned from with their seed, if it did |
//! | `regard.questions` | of a model that answers questions about images: the same, the answers, and the most words of a question |
//! | `regard.familiarity` | statistics that detect unfamiliar sentences ([`Familiarity`](crate::familiarity::Familiarity)); may be missing |
//!
//! Files of former versions are read too: see [`regard_models::former`].
//!
//! A run folder can be given in place of a file: its `model.safetensors` is read, or while training
//! goes on its `best.safetensors`.

use std::{
    collections::HashMap,
    fmt::Display,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use regard_config::{Check, ConfigError, Kind, Place};
use regard_images::ImagesError;
use regard_models::{ModelError, Vocabulary, former};
use regard_nn::weights::{self, Arrays, Storage, WeightsError};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    files::{self, FileError},
    learner::checkpoint::PROGRESS,
    recipe::Model,
    tokenizer::{SubwordTokenizer, TokenizerError, TokenizerPair},
};

/// The most bytes that are read of what has no size of its own, such as a pipe.
const LARGEST: u64 = 8 << 30;

const MODEL: &str = "regard.model";
/// The metadata key under which former versions described a classifier.
const FORMER_CLASSIFIER: &str = "regard.classifier";
const TOKENIZERS: &str = "regard.tokenizers";

/// The metadata of a file.
pub type Metadata = HashMap<String, String>;

/// The description of a file's model, without the weights.
#[derive(Debug)]
pub struct Header {
    /// Architecture and configuration.
    pub model: Model,
    /// The sizes of vocabularies or classes, as the task stores them.
    pub sizes: Value,
}

/// Why a model could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum ModelFileError {
    /// The file could not be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A folder without a model in it.
    #[error("{}: holds neither model.safetensors nor best.safetensors; expected the folder of a `regard train` run or a model file", .0.display())]
    NoModel(PathBuf),
    /// What is no regular file has more bytes than are read of such.
    #[error("{}: more than {most} bytes, the most that are read of what is no regular file, such as a pipe; write them to a file", path.display())]
    TooLarge {
        /// The pipe or device.
        path: PathBuf,
        /// The most bytes.
        most: u64,
    },
    /// The state of training in place of a model.
    #[error(
        "{0}: a checkpoint, from which `regard train --resume` goes on; expected the run folder that it is in, or the model.safetensors or best.safetensors there"
    )]
    Checkpoint(String),
    /// The safetensors container or its weights are wrong.
    #[error("{name}: {source}")]
    Weights {
        /// The file.
        name: String,
        /// What is wrong.
        source: WeightsError,
    },
    /// A safetensors file of another program.
    #[error("{name}: the metadata has no `{key}`; expected a model file of `regard train`")]
    Foreign {
        /// The file.
        name: String,
        /// The key that is missing.
        key: &'static str,
    },
    /// An architecture that this program does not know.
    #[error("{name}: holds a model of kind {kind:?}, which this program does not know")]
    Kind {
        /// The file.
        name: String,
        /// The architecture.
        kind: String,
    },
    /// A model of another task.
    #[error("{name}: holds {found}; expected {expected}")]
    OtherTask {
        /// The file.
        name: String,
        /// What it holds.
        found: &'static str,
        /// What was wanted.
        expected: &'static str,
    },
    /// Labels and classes disagree.
    #[error("{name}: there are {labels} labels for {classes} classes")]
    Labels {
        /// The file.
        name: String,
        /// Labels of the file.
        labels: usize,
        /// Classes of the model.
        classes: usize,
    },
    /// Means and deviations that no images have.
    #[error("{name}: metadata `{key}`: {source}")]
    Images {
        /// The file.
        name: String,
        /// The key.
        key: &'static str,
        /// What is wrong.
        source: Box<ImagesError>,
    },
    /// The means of colours and the model disagree.
    #[error(
        "{name}: metadata `{key}` has the means of {found} channels; expected those of {expected}, which the model reads"
    )]
    Channels {
        /// The file.
        name: String,
        /// The key.
        key: &'static str,
        /// Channels of the metadata.
        found: usize,
        /// Channels of the model.
        expected: usize,
    },
    /// A metadata entry that does not parse.
    #[error("{name}: metadata `{key}`: {source}")]
    Metadata {
        /// The file.
        name: String,
        /// The key.
        key: &'static str,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// Settings that no recipe may have.
    #[error(transparent)]
    Settings(Box<ConfigError>),
    /// Familiarity statistics that cannot be those of any text.
    #[error(
        "{name}: metadata `regard.familiarity`: {problem}; measure it again with `regard model --familiarity`"
    )]
    Familiarity {
        /// The file.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// Tokenizers that do not parse.
    #[error("{name}: metadata `regard.tokenizers`: {source}")]
    Tokenizers {
        /// The file.
        name: String,
        /// What is wrong.
        source: TokenizerError,
    },
    /// Sizes that no model can have.
    #[error("{name}: {source}")]
    Model {
        /// The file.
        name: String,
        /// What is wrong.
        source: ModelError,
    },
    /// Tokenizers and tables disagree.
    #[error("{name}: the {side} tokenizer has {tokenizer}, the model's table {table}")]
    Vocabulary {
        /// The file.
        name: String,
        /// "source" or "target".
        side: &'static str,
        /// The tokenizer's vocabulary.
        tokenizer: Vocabulary,
        /// The table's vocabulary.
        table: Vocabulary,
    },
}

impl Header {
    /// Reads the metadata of the file called `name`; `kind` finds the configuration of an architecture.
    ///
    /// # Errors
    /// An entry that is missing or does not parse, or an architecture that is not known.
    pub(crate) fn read<'a>(
        metadata: &Metadata,
        name: &str,
        kind: impl FnOnce(&str) -> Option<&'a Kind>,
    ) -> Result<Self, ModelFileError> {
        let key = match metadata.contains_key(FORMER_CLASSIFIER) {
            true => FORMER_CLASSIFIER,
            false => MODEL,
        };
        let wrong = |source| ModelFileError::Metadata {
            name: name.to_owned(),
            key,
            source,
        };
        let value: Value = json_entry(metadata, key, name)?;
        let described = match key {
            FORMER_CLASSIFIER => former::classifier(&value),
            _ => former::generator(&value),
        };
        let described = match described {
            Some(described) => described,
            None => serde_json::from_value(value).map_err(wrong)?,
        };
        let Some(kind) = kind(&described.kind) else {
            return Err(ModelFileError::Kind {
                name: name.to_owned(),
                kind: described.kind,
            });
        };
        Ok(Self {
            model: Model {
                kind: kind.name,
                config: (kind.from_json)(described.config).map_err(wrong)?,
            },
            sizes: described.sizes,
        })
    }

    /// The sizes, as the task stored them.
    ///
    /// # Errors
    /// An entry that does not parse as the sizes of the task.
    pub fn sizes<T: DeserializeOwned>(&self, name: &str) -> Result<T, ModelFileError> {
        serde_json::from_value(self.sizes.clone()).map_err(|source| ModelFileError::Metadata {
            name: name.to_owned(),
            key: MODEL,
            source,
        })
    }

    /// The header as an entry of the metadata.
    pub fn entry(model: &Model, sizes: &impl Serialize) -> (String, String) {
        let config = model.config.values().expect("it was read as TOML or JSON");
        let header = json!({ "kind": model.kind, "sizes": sizes, "config": config });
        (MODEL.to_owned(), header.to_string())
    }
}

fn text_entry<'a>(
    metadata: &'a Metadata,
    key: &'static str,
    name: &str,
) -> Result<&'a String, ModelFileError> {
    metadata.get(key).ok_or_else(|| ModelFileError::Foreign {
        name: name.to_owned(),
        key,
    })
}

/// An entry of the metadata of the file called `name` that is JSON.
///
/// # Errors
/// An entry that is missing or does not parse.
pub fn json_entry<T: DeserializeOwned>(
    metadata: &Metadata,
    key: &'static str,
    name: &str,
) -> Result<T, ModelFileError> {
    let text = text_entry(metadata, key, name)?;
    serde_json::from_str(text).map_err(|source| ModelFileError::Metadata {
        name: name.to_owned(),
        key,
        source,
    })
}

/// The tokenizers in the metadata of the file called `name`.
///
/// # Errors
/// Tokenizers that are missing or do not parse.
pub fn tokenizers(metadata: &Metadata, name: &str) -> Result<TokenizerPair, ModelFileError> {
    let text = text_entry(metadata, TOKENIZERS, name)?;
    TokenizerPair::from_bytes(text.as_bytes()).map_err(|source| ModelFileError::Tokenizers {
        name: name.to_owned(),
        source,
    })
}

/// The same, or `None` for a model that reads no text.
///
/// # Errors
/// Tokenizers that do not parse.
pub fn tokenizers_if_any(
    metadata: &Metadata,
    name: &str,
) -> Result<Option<TokenizerPair>, ModelFileError> {
    match metadata.contains_key(TOKENIZERS) {
        true => tokenizers(metadata, name).map(Some),
        false => Ok(None),
    }
}

/// Refuses a checkpoint, whose `metadata` tell it from a model's file.
///
/// # Errors
/// [`ModelFileError::Checkpoint`], with the file's `name`.
pub(crate) fn expect_model(metadata: &Metadata, name: &str) -> Result<(), ModelFileError> {
    match metadata.contains_key(PROGRESS) {
        true => Err(ModelFileError::Checkpoint(name.to_owned())),
        false => Ok(()),
    }
}

/// Refuses settings of the file called `name` if the `check` of them found a problem.
///
/// # Errors
/// [`ModelFileError::Settings`] with the first one.
pub(crate) fn expect_no_problem(check: Check, name: &str) -> Result<(), ModelFileError> {
    let Some(problem) = check.into_first() else {
        return Ok(());
    };
    let name = name.to_owned();
    let problem = problem.at(Place::Name { name });
    Err(ModelFileError::Settings(Box::new(problem)))
}

/// Checks that the tokenizer of one side fits the model's table.
///
/// # Errors
/// Both sizes and marks, if they differ.
pub fn expect_table(
    side: &'static str,
    tokenizer: &SubwordTokenizer,
    table: Vocabulary,
    name: &str,
) -> Result<(), ModelFileError> {
    let tokenizer = tokenizer.vocabulary();
    match tokenizer == table {
        true => Ok(()),
        false => Err(ModelFileError::Vocabulary {
            name: name.to_owned(),
            side,
            tokenizer,
            table,
        }),
    }
}

/// An entry of the metadata as it is written: plain data as JSON.
pub fn entry<T: Serialize>(key: &str, value: &T) -> (String, String) {
    let json = serde_json::to_string(value).expect("plain data serialises");
    (key.to_owned(), json)
}

/// The tokenizers as an entry of the metadata.
pub fn tokenizers_entry(tokenizers: &TokenizerPair) -> (String, String) {
    let json = String::from_utf8(tokenizers.to_bytes()).expect("JSON is UTF-8");
    (TOKENIZERS.to_owned(), json)
}

/// The arrays and the metadata of a model file or a checkpoint.
///
/// # Errors
/// A file that cannot be read, or is not a complete safetensors file of weights; a pipe without end.
pub(crate) fn read(path: &Path) -> Result<(Arrays, Metadata), ModelFileError> {
    let found = open(path, |file, size| weights::read(file, size));
    // Other programs store what is no weight here, such as counters; that the file is theirs says more. A pipe is not read twice.
    if let Err(ModelFileError::Weights { name, .. }) = &found
        && path.is_file()
        && let Ok(metadata) = metadata(path)
        && !metadata.contains_key(MODEL)
        && !metadata.contains_key(FORMER_CLASSIFIER)
    {
        return Err(ModelFileError::Foreign {
            name: name.clone(),
            key: MODEL,
        });
    }
    found
}

/// The metadata alone.
///
/// # Errors
/// Those of [`read`] that concern the header.
pub(crate) fn metadata(path: &Path) -> Result<Metadata, ModelFileError> {
    open(path, |file, size| weights::metadata(file, size))
}

fn open<T>(
    path: &Path,
    read: impl FnOnce(&mut dyn Read, u64) -> Result<T, WeightsError>,
) -> Result<T, ModelFileError> {
    let refused = |source| FileError::new(path, "read", source);
    let mut file = File::open(path).map_err(refused)?;
    let about = file.metadata().map_err(refused)?;
    let result = match about.is_file() {
        true => read(&mut file, about.len()),
        false => {
            // The size of a pipe is not known. What does not begin as such a file does is not read to its end.
            let mut bytes = vec![];
            let take = |most, bytes: &mut Vec<u8>| {
                let read = (&file).take(most).read_to_end(bytes);
                read.map_err(refused)
            };
            take(9, &mut bytes)?;
            if weights::is_beginning(&bytes) {
                take(LARGEST, &mut bytes)?;
            }
            if bytes.len() as u64 > LARGEST {
                return Err(ModelFileError::TooLarge {
                    path: path.to_owned(),
                    most: LARGEST,
                });
            }
            read(&mut bytes.as_slice(), bytes.len() as u64)
        }
    };
    result.map_err(|source| wrong_weights(path.display(), source))
}

/// Writes a model file or a checkpoint, whole or not at all.
///
/// # Errors
/// A full disk, above all.
pub(crate) fn write(
    path: &Path,
    arrays: &Arrays,
    metadata: Metadata,
) -> Result<(), ModelFileError> {
    let bytes = weights::to_bytes(arrays, metadata, Storage::F32);
    let bytes = bytes.map_err(|source| wrong_weights(path.display(), source))?;
    Ok(files::write_atomically(path, &bytes)?)
}

pub(crate) fn wrong_weights(name: impl Display, source: WeightsError) -> ModelFileError {
    let name = name.to_string();
    ModelFileError::Weights { name, source }
}

/// The model file that `path` means: itself, or the finished or best model of a run folder.
///
/// # Errors
/// A folder without a model.
pub fn locate(path: &Path) -> Result<PathBuf, ModelFileError> {
    if !path.is_dir() {
        return Ok(path.to_owned());
    }
    ["model.safetensors", "best.safetensors"]
        .map(|name| path.join(name))
        .into_iter()
        .find(|file| file.is_file())
        .ok_or_else(|| ModelFileError::NoModel(path.to_owned()))
}
