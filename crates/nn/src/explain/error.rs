//! Why an example could not be computed.

use crate::{AttentionError, vision::VisionError};

/// What is wrong with an example, by the name of its field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExplainError {
    /// A value, shape or combination that does not fit.
    #[error(transparent)]
    Attention(#[from] AttentionError),
    /// The same of a module that reads images.
    #[error(transparent)]
    Vision(#[from] VisionError),
    /// A name that is not known.
    #[error("there is no {what} {name:?}")]
    Unknown {
        /// `mechanism`, `normaliser`, `preset` or `mask`.
        what: &'static str,
        /// The name as given.
        name: String,
        /// The names there are.
        known: Vec<&'static str>,
    },
    /// A parameter that the mechanism does not read.
    #[error("`{parameter}` is no parameter of {mechanism}, which has {}", taken.join(", "))]
    NotTaken {
        /// The parameter.
        parameter: &'static str,
        /// The mechanism, with its normaliser where that is not its own.
        mechanism: String,
        /// The parameters that it reads.
        taken: Vec<&'static str>,
    },
    /// A row of a matrix has another length than the first.
    #[error(
        "`{field}`: row {row} is of size {found}, expected {expected} as in row 1: give vectors of one size"
    )]
    Ragged {
        /// The matrix.
        field: &'static str,
        /// The row, counted from 1.
        row: usize,
        /// Its length.
        found: usize,
        /// The length of the first.
        expected: usize,
    },
    /// A mask's text that cannot be read.
    #[error("mask {text:?}: {reason}")]
    Mask {
        /// The text.
        text: String,
        /// What is wrong with it, and what to write.
        reason: String,
    },
}

impl ExplainError {
    pub(super) fn unknown(
        what: &'static str,
        name: &str,
        known: impl IntoIterator<Item = &'static str>,
    ) -> Self {
        Self::Unknown {
            what,
            name: name.to_owned(),
            known: known.into_iter().collect(),
        }
    }
}
