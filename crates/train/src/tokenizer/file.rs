//! A tokenizer as a file: JSON that is checked before it is believed.

use std::borrow::Cow;
use std::collections::HashSet;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::error::TokenizerError;
use super::subword::{MAXIMUM_VOCABULARY_SIZE, Model, SPECIAL_TOKENS, SubwordTokenizer};
use crate::files::write_atomically;

const FORMAT: &str = "regard-tokenizer";
const VERSION: u32 = 1;
/// Files beyond this size are refused unread.
const LARGEST_FILE: u64 = 256 << 20;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Stored<'a> {
    format: Cow<'a, str>,
    version: u32,
    kind: Kind,
    lowercase: bool,
    vocabulary: Cow<'a, [String]>,
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    merges: Cow<'a, [(u32, u32)]>,
}

#[derive(Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Bytes,
    Words,
}

impl SubwordTokenizer {
    /// The tokenizer as JSON: format, version, kind, vocabulary in the order of ids, merges in
    /// the order of their rank. Equal tokenizers give equal bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        to_json(&self.stored())
    }

    /// A tokenizer from the bytes of [`to_bytes`](Self::to_bytes).
    ///
    /// # Errors
    /// [`TokenizerError::Malformed`] for anything else: bytes that are not such JSON, a foreign
    /// version, reserved tokens out of place, a token twice, a byte missing, a merge that leads
    /// out of the vocabulary.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TokenizerError> {
        Self::from_stored(from_json(bytes)?)
    }

    /// Writes [`to_bytes`](Self::to_bytes) to `path` by way of a temporary file in the same
    /// folder, so that a full disk leaves a former file whole.
    ///
    /// # Errors
    /// [`TokenizerError::Write`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), TokenizerError> {
        write(path.as_ref(), &self.to_bytes())
    }

    /// Reads a file of [`save`](Self::save).
    ///
    /// # Errors
    /// [`TokenizerError::Read`], or [`TokenizerError::Malformed`] naming the file.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, TokenizerError> {
        let path = path.as_ref();
        Self::from_bytes(&read_whole(path)?).map_err(|error| error.in_file(path))
    }

    pub(super) fn stored(&self) -> Stored<'_> {
        let (kind, merges) = match &self.model {
            Model::Bytes { merges, .. } => (Kind::Bytes, merges.as_slice()),
            Model::Words { .. } => (Kind::Words, &[][..]),
        };
        Stored {
            format: Cow::Borrowed(FORMAT),
            version: VERSION,
            kind,
            lowercase: self.lowercase,
            vocabulary: Cow::Borrowed(&self.vocabulary),
            merges: Cow::Borrowed(merges),
        }
    }

    pub(super) fn from_stored(stored: Stored<'_>) -> Result<Self, TokenizerError> {
        if stored.format != FORMAT || stored.version != VERSION {
            return Err(TokenizerError::malformed(format!(
                "expected format {FORMAT:?} version {VERSION}, found {:?} version {}",
                stored.format, stored.version
            )));
        }
        let vocabulary = stored.vocabulary.into_owned();
        if vocabulary.len() > MAXIMUM_VOCABULARY_SIZE {
            return Err(TokenizerError::malformed(format!(
                "a vocabulary of {} tokens; at most {MAXIMUM_VOCABULARY_SIZE} are supported",
                vocabulary.len()
            )));
        }
        if !vocabulary
            .iter()
            .map(String::as_str)
            .take(4)
            .eq(SPECIAL_TOKENS)
        {
            return Err(TokenizerError::malformed(format!(
                "the vocabulary must start with {SPECIAL_TOKENS:?}"
            )));
        }
        let mut seen = HashSet::with_capacity(vocabulary.len());
        if let Some(twice) = vocabulary.iter().find(|token| !seen.insert(token.as_str())) {
            return Err(TokenizerError::malformed(format!(
                "token {twice:?} is twice in the vocabulary"
            )));
        }
        drop(seen);
        match stored.kind {
            Kind::Bytes => {
                Self::from_merges(vocabulary, stored.merges.into_owned(), stored.lowercase)
            }
            Kind::Words if !stored.merges.is_empty() => Err(TokenizerError::malformed(
                "a word-level tokenizer has no merges, but the file lists some",
            )),
            Kind::Words => {
                let split = vocabulary[SPECIAL_TOKENS.len()..]
                    .iter()
                    .find(|symbol| !symbol.split_whitespace().eq([symbol.as_str()]));
                match split {
                    Some(symbol) => Err(TokenizerError::malformed(format!(
                        "symbol {symbol:?} is empty or contains white space"
                    ))),
                    None => Self::from_words(vocabulary, stored.lowercase),
                }
            }
        }
    }
}

pub(super) fn to_json(value: &impl Serialize) -> Vec<u8> {
    // Maps with string keys and plain lists: JSON has a form for each of them.
    serde_json::to_vec(value).unwrap_or_default()
}

pub(super) fn from_json<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, TokenizerError> {
    serde_json::from_slice(bytes).map_err(|error| TokenizerError::malformed(error.to_string()))
}

pub(super) fn read_whole(path: &Path) -> Result<Vec<u8>, TokenizerError> {
    let failed = |source| TokenizerError::Read {
        path: path.to_owned(),
        source,
    };
    let size = std::fs::metadata(path).map_err(failed)?.len();
    if size > LARGEST_FILE {
        return Err(TokenizerError::malformed(format!(
            "{size} bytes is more than a tokenizer file may have ({LARGEST_FILE})"
        ))
        .in_file(path));
    }
    std::fs::read(path).map_err(failed)
}

pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<(), TokenizerError> {
    write_atomically(path, bytes).map_err(|error| TokenizerError::Write {
        path: error.path,
        source: error.source,
    })
}
