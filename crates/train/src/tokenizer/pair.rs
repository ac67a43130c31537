//! The two tokenizers of a translation model: one for both languages, or one for each.

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::error::TokenizerError;
use super::file::{Stored, from_json, read_whole, to_json, write};
use super::subword::SubwordTokenizer;

/// The tokenizers of source and target, saved together in one file.
///
/// ```
/// use regard_train::tokenizer::TokenizerPair;
/// let (source, target) = (["a red shirt"], ["ein rotes Hemd"]);
/// let pair = TokenizerPair::learn(&source, &target, true, 270, false)?;
/// assert!(pair.is_joint());
/// let ids = pair.source().encode("a shirt")?;
/// assert_eq!(pair.target().decode(&ids)?, "a shirt");
/// # Ok::<(), regard_train::tokenizer::TokenizerError>(())
/// ```
#[derive(Debug, Clone)]
pub struct TokenizerPair {
    source: Arc<SubwordTokenizer>,
    target: Arc<SubwordTokenizer>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredPair<'a> {
    #[serde(borrow)]
    source: Stored<'a>,
    /// Absent when the source's tokenizer serves both sides.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    target: Option<Stored<'a>>,
}

impl TokenizerPair {
    /// Learns sub-words: with `joint` one vocabulary of `vocabulary_size` from both sides, else
    /// one of that size for each.
    ///
    /// # Errors
    /// Those of [`SubwordTokenizer::learn`].
    pub fn learn<S: AsRef<str> + Sync>(
        source: &[S],
        target: &[S],
        joint: bool,
        vocabulary_size: usize,
        lowercase: bool,
    ) -> Result<Self, TokenizerError> {
        let learn = |sides: &[&[S]]| {
            let lines = sides.iter().flat_map(|side| side.iter()).map(AsRef::as_ref);
            SubwordTokenizer::learn(lines, vocabulary_size, lowercase)
        };
        if joint {
            Ok(Self::joint(learn(&[source, target])?))
        } else {
            Ok(Self::separate(learn(&[source])?, learn(&[target])?))
        }
    }

    /// Takes the white-space-delimited symbols of both sides as one vocabulary.
    ///
    /// # Errors
    /// Those of [`SubwordTokenizer::learn_words`].
    pub fn learn_words<S: AsRef<str>>(
        source: &[S],
        target: &[S],
        lowercase: bool,
    ) -> Result<Self, TokenizerError> {
        let lines = source.iter().chain(target);
        Ok(Self::joint(SubwordTokenizer::learn_words(
            lines, lowercase,
        )?))
    }

    /// One tokenizer for both sides.
    pub fn joint(tokenizer: SubwordTokenizer) -> Self {
        let source = Arc::new(tokenizer);
        let target = Arc::clone(&source);
        Self { source, target }
    }

    /// One tokenizer for each side.
    pub fn separate(source: SubwordTokenizer, target: SubwordTokenizer) -> Self {
        Self {
            source: Arc::new(source),
            target: Arc::new(target),
        }
    }

    /// The source language's tokenizer.
    pub fn source(&self) -> &SubwordTokenizer {
        &self.source
    }

    /// The target language's tokenizer.
    pub fn target(&self) -> &SubwordTokenizer {
        &self.target
    }

    /// Whether one vocabulary serves both sides, so that their embeddings can be tied.
    pub fn is_joint(&self) -> bool {
        Arc::ptr_eq(&self.source, &self.target)
    }

    /// Both tokenizers as JSON; equal pairs give equal bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        to_json(&StoredPair {
            source: self.source.stored(),
            target: (!self.is_joint()).then(|| self.target.stored()),
        })
    }

    /// A pair from the bytes of [`to_bytes`](Self::to_bytes).
    ///
    /// # Errors
    /// [`TokenizerError::Malformed`], as for [`SubwordTokenizer::from_bytes`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TokenizerError> {
        let stored: StoredPair<'_> = from_json(bytes)?;
        let source = SubwordTokenizer::from_stored(stored.source)?;
        match stored.target {
            None => Ok(Self::joint(source)),
            Some(target) => Ok(Self::separate(
                source,
                SubwordTokenizer::from_stored(target)?,
            )),
        }
    }

    /// Writes both to one file, whole or not at all.
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
}
