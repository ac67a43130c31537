//! A trained model as one file: weights as safetensors, and in its metadata everything else that
//! translation needs (architecture, tokenizers, search settings).
//!
//! | metadata key | content |
//! |---|---|
//! | `regard.model` | the architecture's sizes and choices, JSON |
//! | `regard.tokenizers` | the tokenizers of source and target, JSON |
//! | `regard.translate` | the recipe's `[translate]` section, JSON |
//! | `regard.languages` | source and target language, JSON |
//! | `regard.familiarity` | what tells sentences that the model does not know ([`Familiarity`]), JSON; may be missing |
//!
//! A run folder is as good as a file: its `model.safetensors`, or while training goes on its
//! `best.safetensors`, is taken.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use burn::{module::Module, tensor::Device};
use regard_models::{ModelConfig, ModelError, TranslationModel};
use regard_nn::weights::{self, Arrays, Storage, WeightsError};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    classifier_file::CLASSIFIER,
    familiarity::Familiarity,
    files::{self, FileError},
    recipe::{RecipeError, Translation},
    tokenizer::{SubwordTokenizer, TokenizerError, TokenizerPair},
};

/// Files beyond this size are refused unread.
const LARGEST: u64 = 8 << 30;

pub(crate) const MODEL: &str = "regard.model";
const TOKENIZERS: &str = "regard.tokenizers";
const TRANSLATE: &str = "regard.translate";
const LANGUAGES: &str = "regard.languages";
const FAMILIARITY: &str = "regard.familiarity";

/// Source and target language, as short names such as `en` and `de`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Languages {
    /// Translated from.
    pub source: String,
    /// Translated to.
    pub target: String,
}

/// Everything but the weights.
#[derive(Debug, Clone)]
pub struct Description {
    /// The architecture.
    pub model: ModelConfig,
    /// Text to ids and back.
    pub tokenizers: TokenizerPair,
    /// Search settings used unless others are asked for.
    pub translate: Translation,
    /// Source and target.
    pub languages: Languages,
    /// What tells sentences that the model does not know, if it was measured.
    pub familiarity: Option<Familiarity>,
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
    /// The file is larger than any model.
    #[error("{}: {bytes} bytes is larger than any model this program writes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
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
    /// Search settings that no recipe may have.
    #[error(transparent)]
    Settings(Box<RecipeError>),
    /// Numbers that no training text and no translations have.
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
    #[error(
        "{name}: the {side} tokenizer has {tokenizer} tokens, the model's table {table} entries"
    )]
    Vocabulary {
        /// The file.
        name: String,
        /// "source" or "target".
        side: &'static str,
        /// Tokens of the tokenizer.
        tokenizer: usize,
        /// Entries of the table.
        table: usize,
    },
}

impl Description {
    /// The metadata of a file of this model.
    pub fn metadata(&self) -> HashMap<String, String> {
        let mut metadata = HashMap::from([
            entry(MODEL, &self.model),
            tokenizers_entry(&self.tokenizers),
            entry(TRANSLATE, &self.translate),
            entry(LANGUAGES, &self.languages),
        ]);
        metadata.extend(self.familiarity.as_ref().map(|of| entry(FAMILIARITY, of)));
        metadata
    }

    /// Reads the metadata of the file called `name`.
    ///
    /// # Errors
    /// A key that is missing or does not parse, or tokenizers that do not fit the tables.
    pub fn from_metadata(
        metadata: &HashMap<String, String>,
        name: &str,
    ) -> Result<Self, ModelFileError> {
        if metadata.contains_key(CLASSIFIER) {
            return Err(ModelFileError::OtherTask {
                name: name.to_owned(),
                found: "a classifier of sentences",
                expected: "a model that translates",
            });
        }
        let model: ModelConfig = metadata_json(metadata, MODEL, name)?;
        let tokenizers = metadata_tokenizers(metadata, name)?;
        let tables = model.tables();
        let (source, target) = (tables.source_vocabulary, tables.target_vocabulary);
        expect_table("source", tokenizers.source(), source, name)?;
        expect_table("target", tokenizers.target(), target, name)?;
        let translate: Translation = metadata_json(metadata, TRANSLATE, name)?;
        translate
            .check(name)
            .map_err(|error| ModelFileError::Settings(Box::new(error)))?;
        let familiarity: Option<Familiarity> = match metadata.contains_key(FAMILIARITY) {
            true => Some(metadata_json(metadata, FAMILIARITY, name)?),
            false => None,
        };
        let vocabulary = tokenizers.source().vocabulary_size();
        if let Some(problem) = familiarity.as_ref().and_then(|of| of.problem(vocabulary)) {
            return Err(ModelFileError::Familiarity {
                name: name.to_owned(),
                problem,
            });
        }
        Ok(Self {
            model,
            tokenizers,
            translate,
            languages: metadata_json(metadata, LANGUAGES, name)?,
            familiarity,
        })
    }
}

/// An entry of the metadata of the file called `name`.
pub(crate) fn metadata_text<'a>(
    metadata: &'a HashMap<String, String>,
    key: &'static str,
    name: &str,
) -> Result<&'a String, ModelFileError> {
    metadata.get(key).ok_or_else(|| ModelFileError::Foreign {
        name: name.to_owned(),
        key,
    })
}

/// An entry of the metadata that is JSON.
pub(crate) fn metadata_json<T: DeserializeOwned>(
    metadata: &HashMap<String, String>,
    key: &'static str,
    name: &str,
) -> Result<T, ModelFileError> {
    let text = metadata_text(metadata, key, name)?;
    let read = || {
        check_shares(&serde_json::from_str(text)?, None)?;
        serde_json::from_str(text)
    };
    read().map_err(|source| ModelFileError::Metadata {
        name: name.to_owned(),
        key,
        source,
    })
}

/// Checks that every number at or below a key of dropout is a share that can be dropped, as training goes on with them.
fn check_shares(value: &serde_json::Value, dropout: Option<&str>) -> serde_json::Result<()> {
    use serde::de::Error;
    match (value, dropout) {
        (serde_json::Value::Object(entries), _) => entries.iter().try_for_each(|(key, value)| {
            let of_dropout = key.contains("dropout").then_some(key.as_str());
            check_shares(value, of_dropout.or(dropout))
        }),
        (serde_json::Value::Number(share), Some(key))
            if !share
                .as_f64()
                .is_some_and(|share| (0.0..1.0).contains(&share)) =>
        {
            Err(serde_json::Error::custom(format!(
                "`{key}` is {share}, expected at least 0 and below 1"
            )))
        }
        _ => Ok(()),
    }
}

/// The tokenizers in the metadata of the file called `name`.
pub(crate) fn metadata_tokenizers(
    metadata: &HashMap<String, String>,
    name: &str,
) -> Result<TokenizerPair, ModelFileError> {
    let text = metadata_text(metadata, TOKENIZERS, name)?;
    TokenizerPair::from_bytes(text.as_bytes()).map_err(|source| ModelFileError::Tokenizers {
        name: name.to_owned(),
        source,
    })
}

/// Checks that the tokenizer of one side gives ids of a table of so many entries.
pub(crate) fn expect_table(
    side: &'static str,
    tokenizer: &SubwordTokenizer,
    table: usize,
    name: &str,
) -> Result<(), ModelFileError> {
    let tokenizer = tokenizer.vocabulary_size();
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
pub(crate) fn entry<T: Serialize>(key: &str, value: &T) -> (String, String) {
    let json = serde_json::to_string(value).expect("plain data serialises");
    (key.to_owned(), json)
}

/// The tokenizers as an entry of the metadata.
pub(crate) fn tokenizers_entry(tokenizers: &TokenizerPair) -> (String, String) {
    let json = String::from_utf8(tokenizers.to_bytes()).expect("JSON is UTF-8");
    (TOKENIZERS.to_owned(), json)
}

/// A model file as bytes.
///
/// # Errors
/// A weight's name that safetensors cannot hold.
pub fn to_bytes(
    arrays: &Arrays,
    description: &Description,
    storage: Storage,
) -> Result<Vec<u8>, WeightsError> {
    weights::to_bytes(arrays, description.metadata(), storage)
}

/// Reads a model file's bytes; `name` stands for the file in errors.
///
/// # Errors
/// Whatever [`ModelFileError`] names.
pub fn from_bytes(
    bytes: &[u8],
    name: &str,
    device: &Device,
) -> Result<(TranslationModel, Description), ModelFileError> {
    restore(
        bytes,
        name,
        Description::from_metadata,
        |description, arrays| description.model.without_values(arrays, device),
    )
}

/// Reads what the file called `name` describes, makes its model and gives it the file's weights: for every task.
///
/// # Errors
/// Whatever [`ModelFileError`] names.
pub(crate) fn restore<M: Module, D>(
    bytes: &[u8],
    name: &str,
    describe: impl FnOnce(&HashMap<String, String>, &str) -> Result<D, ModelFileError>,
    without_values: impl FnOnce(&D, &Arrays) -> Result<M, ModelError>,
) -> Result<(M, D), ModelFileError> {
    let in_file = |source| ModelFileError::Weights {
        name: name.to_owned(),
        source,
    };
    let (arrays, metadata) = weights::from_bytes(bytes).map_err(in_file)?;
    let description = describe(&metadata, name)?;
    let model = without_values(&description, &arrays).map_err(|source| ModelFileError::Model {
        name: name.to_owned(),
        source,
    })?;
    Ok((weights::apply(model, arrays).map_err(in_file)?, description))
}

/// Opens a model file or a run folder.
///
/// # Errors
/// Whatever [`ModelFileError`] names.
pub fn open(
    path: &Path,
    device: &Device,
) -> Result<(TranslationModel, Description), ModelFileError> {
    let path = locate(path)?;
    from_bytes(&read(&path)?, &path.display().to_string(), device)
}

/// The bytes of a model file.
///
/// # Errors
/// A file that cannot be read, or is larger than any model.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, ModelFileError> {
    let size = std::fs::metadata(path)
        .map_err(|source| FileError::new(path, "read", source))?
        .len();
    if size > LARGEST {
        return Err(ModelFileError::TooLarge {
            path: path.to_owned(),
            bytes: size,
        });
    }
    Ok(files::read(path)?)
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
