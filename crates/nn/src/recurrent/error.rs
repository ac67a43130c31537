//! What can be wrong with a call of a recurrent module that takes attention along.

/// Why a call was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RecurrentError {
    /// A tensor or a size does not fit the module.
    #[error("`{field}` has shape {found:?}, expected {expected:?} ({meaning})")]
    Shape {
        /// The argument.
        field: &'static str,
        /// Its sizes.
        found: Vec<usize>,
        /// The sizes that fit.
        expected: Vec<usize>,
        /// The dimensions in words, such as `[batch, input]`.
        meaning: &'static str,
    },
    /// A module was given a source though it has nothing to read it with, or the other way round.
    #[error("{0}")]
    Source(&'static str),
    /// A size or a rate that no module can have.
    #[error("`{field}` is {found}, expected {expected}")]
    Value {
        /// The option.
        field: &'static str,
        /// What it is.
        found: f64,
        /// What it may be.
        expected: &'static str,
    },
}

/// Checks the shape of an argument.
pub(crate) fn check_shape<const D: usize>(
    field: &'static str,
    found: [usize; D],
    expected: [usize; D],
    meaning: &'static str,
) -> Result<(), RecurrentError> {
    match found == expected {
        true => Ok(()),
        false => Err(RecurrentError::Shape {
            field,
            found: found.to_vec(),
            expected: expected.to_vec(),
            meaning,
        }),
    }
}
