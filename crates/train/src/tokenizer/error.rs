//! What can go wrong with a tokenizer.

use std::path::PathBuf;

use regard_models::text::LibraryError;

/// An error of learning, reading or writing a tokenizer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The asked-for vocabulary cannot hold the reserved tokens and the 256 bytes.
    #[error(
        "vocabulary size {size} is too small: the reserved tokens and the 256 bytes need \
         {minimum}; ask for at least {minimum}"
    )]
    VocabularyTooSmall {
        /// The size that was asked for.
        size: usize,
        /// The smallest size that works.
        minimum: usize,
    },
    /// The asked-for vocabulary is beyond what a saved tokenizer may hold.
    #[error("vocabulary size {size} is too large: at most {maximum} tokens are supported")]
    VocabularyTooLarge {
        /// The size that was asked for.
        size: usize,
        /// The largest size that works.
        maximum: usize,
    },
    /// There was no text to learn from.
    #[error("no text to learn a vocabulary from: every line was empty")]
    NoText,
    /// The file could not be read.
    #[error("{path}: cannot read the tokenizer: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file could not be written; a former file of that name is untouched.
    #[error(
        "{path}: cannot write the tokenizer: {source}; a former file is unchanged",
        path = path.display()
    )]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The bytes are not a tokenizer, or are one that cannot be used.
    #[error("{origin}: not a usable tokenizer: {problem}", origin = origin_name(.path))]
    Malformed {
        /// The file, when the bytes came from one.
        path: Option<PathBuf>,
        /// What was found and what was expected.
        problem: String,
    },
    /// The tokenizer could not encode or decode a text, which happens only if its `tokenizer.json` is damaged.
    #[error("the tokenizer fails: {message}; its tokenizer.json may be damaged")]
    Failed {
        /// What went wrong.
        message: String,
    },
    /// The library that learns the merges refused the text.
    #[error("the byte-pair trainer failed: {message}")]
    Trainer {
        /// What the library said.
        message: String,
    },
}

impl From<LibraryError> for TokenizerError {
    fn from(error: LibraryError) -> Self {
        match error {
            LibraryError::Malformed(problem) => Self::malformed(problem),
            LibraryError::Failed(message) => Self::Failed { message },
        }
    }
}

impl TokenizerError {
    pub(super) fn malformed(problem: impl Into<String>) -> Self {
        Self::Malformed {
            path: None,
            problem: problem.into(),
        }
    }

    pub(super) fn in_file(self, file: &std::path::Path) -> Self {
        match self {
            Self::Malformed { problem, .. } => Self::Malformed {
                path: Some(file.to_owned()),
                problem,
            },
            other => other,
        }
    }
}

fn origin_name(path: &Option<PathBuf>) -> String {
    match path {
        Some(path) => path.display().to_string(),
        None => "tokenizer bytes".to_owned(),
    }
}
