//! A tokenizer as a file: JSON that is checked before it is used.

use std::borrow::Cow;
use std::collections::HashSet;
use std::path::Path;

use regard_models::{Vocabulary, text::MAXIMUM_VOCABULARY_SIZE};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::TokenizerError;
use super::hugging_face::SpecialTokens;
use super::subword::{Model, SPECIAL_TOKENS, SubwordTokenizer};
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
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    vocabulary: Cow<'a, [String]>,
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    merges: Cow<'a, [(u32, u32)]>,
    /// For a tokenizer of the Hugging Face library: its own file, and which of its tokens are marks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tokenizer: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    marks: Option<Vocabulary>,
}

#[derive(Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Bytes,
    Words,
    #[serde(rename = "hugging-face")]
    HuggingFace,
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

    /// Writes [`to_bytes`](Self::to_bytes) to a temporary file in the same folder and renames it to
    /// `path`, so that a full disk leaves a former file whole.
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

    /// Reads a `tokenizer.json` of the Hugging Face library.
    ///
    /// # Errors
    /// [`TokenizerError::Read`], or those of [`from_hugging_face`](Self::from_hugging_face) naming the file.
    pub fn load_hugging_face(
        path: impl AsRef<Path>,
        special: &SpecialTokens<'_>,
        lowercase: bool,
    ) -> Result<Self, TokenizerError> {
        let path = path.as_ref();
        Self::from_hugging_face(&read_whole(path)?, special, lowercase)
            .map_err(|error| error.in_file(path))
    }

    pub(super) fn stored(&self) -> Stored<'_> {
        let stored = Stored {
            format: Cow::Borrowed(FORMAT),
            version: VERSION,
            kind: Kind::Words,
            lowercase: self.lowercase,
            vocabulary: Cow::Borrowed(&self.vocabulary),
            merges: Cow::Borrowed(&[]),
            tokenizer: None,
            marks: None,
        };
        match &self.model {
            Model::Words { .. } => stored,
            Model::Bytes { merges, .. } => Stored {
                kind: Kind::Bytes,
                merges: Cow::Borrowed(merges),
                ..stored
            },
            Model::HuggingFace(file) => Stored {
                kind: Kind::HuggingFace,
                vocabulary: Cow::Borrowed(&[]),
                tokenizer: Some(file.document()),
                marks: Some(self.marks),
                ..stored
            },
        }
    }

    pub(super) fn from_stored(stored: Stored<'_>) -> Result<Self, TokenizerError> {
        if stored.format != FORMAT || stored.version != VERSION {
            return Err(TokenizerError::malformed(format!(
                "expected format {FORMAT:?} version {VERSION}, found {:?} version {}",
                stored.format, stored.version
            )));
        }
        if stored.kind == Kind::HuggingFace {
            let (Some(document), Some(marks)) = (stored.tokenizer, stored.marks) else {
                return Err(TokenizerError::malformed(
                    "a tokenizer of the Hugging Face library needs `tokenizer` and `marks`",
                ));
            };
            return Self::from_document(document, marks, stored.lowercase);
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
            _ if !stored.merges.is_empty() => Err(TokenizerError::malformed(
                "a word-level tokenizer has no merges, but the file lists some",
            )),
            _ => {
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
