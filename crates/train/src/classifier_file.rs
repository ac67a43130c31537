//! A trained classifier as one file: weights as safetensors, and in its metadata everything else that
//! classification needs.
//!
//! | metadata key | content |
//! |---|---|
//! | `regard.classifier` | the architecture's sizes and choices, JSON |
//! | `regard.tokenizers` | the tokenizer, JSON |
//! | `regard.labels` | the labels, in the order of the classes, and the most tokens of a sentence, JSON |
//!
//! A run folder is as good as a file, as it is for a [translation model](crate::model_file).

use std::{collections::HashMap, path::Path};

use burn::tensor::Device;
use regard_models::{Classifier, ClassifierConfig};
use regard_nn::weights::{self, Arrays, Storage, WeightsError};
use serde::{Deserialize, Serialize};

use crate::{
    model_file::{
        self, ModelFileError, entry, expect_table, metadata_json, metadata_tokenizers, restore,
        tokenizers_entry,
    },
    tokenizer::TokenizerPair,
};

pub(crate) const CLASSIFIER: &str = "regard.classifier";
const LABELS: &str = "regard.labels";

/// Everything but the weights.
#[derive(Debug, Clone)]
pub struct Description {
    /// The architecture.
    pub model: ClassifierConfig,
    /// Text to ids; one tokenizer, on both sides.
    pub tokenizers: TokenizerPair,
    /// The name of each class.
    pub labels: Vec<String>,
    /// Most tokens of a sentence; a longer one is cut.
    pub max_tokens: usize,
}

#[derive(Serialize, Deserialize)]
struct Labels {
    labels: Vec<String>,
    max_tokens: usize,
}

impl Description {
    /// The metadata of a file of this classifier.
    pub fn metadata(&self) -> HashMap<String, String> {
        let labels = Labels {
            labels: self.labels.clone(),
            max_tokens: self.max_tokens,
        };
        HashMap::from([
            entry(CLASSIFIER, &self.model),
            tokenizers_entry(&self.tokenizers),
            entry(LABELS, &labels),
        ])
    }

    /// Reads the metadata of the file called `name`.
    ///
    /// # Errors
    /// A key that is missing or does not parse; a tokenizer or labels that do not fit the sizes.
    pub fn from_metadata(
        metadata: &HashMap<String, String>,
        name: &str,
    ) -> Result<Self, ModelFileError> {
        if metadata.contains_key(model_file::MODEL) {
            return Err(ModelFileError::OtherTask {
                name: name.to_owned(),
                found: "a model that translates",
                expected: "a classifier of sentences",
            });
        }
        let model: ClassifierConfig = metadata_json(metadata, CLASSIFIER, name)?;
        let tokenizers = metadata_tokenizers(metadata, name)?;
        let Labels { labels, max_tokens } = metadata_json(metadata, LABELS, name)?;
        expect_table("source", tokenizers.source(), model.vocabulary, name)?;
        if labels.len() != model.classes {
            return Err(ModelFileError::Labels {
                name: name.to_owned(),
                labels: labels.len(),
                classes: model.classes,
            });
        }
        Ok(Self {
            model,
            tokenizers,
            labels,
            max_tokens,
        })
    }
}

/// Whether the file or run folder at `path` holds a classifier; false for whatever else it is, which
/// opening it will say.
pub fn is_classifier(path: &Path) -> bool {
    let bytes = model_file::locate(path).and_then(|path| model_file::read(&path));
    bytes
        .ok()
        .and_then(|bytes| weights::metadata(&bytes).ok())
        .is_some_and(|metadata| metadata.contains_key(CLASSIFIER))
}

/// A classifier's file as bytes.
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

/// Reads a classifier's bytes; `name` stands for the file in errors.
///
/// # Errors
/// Whatever [`ModelFileError`] names.
pub fn from_bytes(
    bytes: &[u8],
    name: &str,
    device: &Device,
) -> Result<(Classifier, Description), ModelFileError> {
    restore(
        bytes,
        name,
        Description::from_metadata,
        |description, arrays| description.model.without_values(arrays, device),
    )
}

/// Opens a classifier's file or run folder.
///
/// # Errors
/// Whatever [`ModelFileError`] names.
pub fn open(path: &Path, device: &Device) -> Result<(Classifier, Description), ModelFileError> {
    let path = model_file::locate(path)?;
    let bytes = model_file::read(&path)?;
    from_bytes(&bytes, &path.display().to_string(), device)
}
