//! Why a position mechanism refused its configuration or its input.

/// What was wrong, by the name of the field or argument.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PositionError {
    /// A field of a configuration is outside its range.
    #[error("`{field}` is {found}, expected {expected}")]
    Value {
        /// The field.
        field: &'static str,
        /// Its value.
        found: String,
        /// What would have been accepted.
        expected: String,
    },
    /// A tensor has another shape than the mechanism was made for.
    #[error("`{argument}` has shape {found:?}, expected {expected}")]
    Shape {
        /// The argument.
        argument: &'static str,
        /// Its shape.
        found: Vec<usize>,
        /// What would have been accepted, in words and numbers.
        expected: String,
    },
    /// A learned table was asked for a position that it has no vector for.
    #[error(
        "`x` reaches position {last}, but `positions` is {positions}: cut the text, or make the \
         table with more positions and train it"
    )]
    Beyond {
        /// The last position asked for.
        last: usize,
        /// How many positions the table has.
        positions: usize,
    },
}

impl PositionError {
    pub(super) fn value(
        field: &'static str,
        found: impl ToString,
        expected: impl ToString,
    ) -> Self {
        Self::Value {
            field,
            found: found.to_string(),
            expected: expected.to_string(),
        }
    }
}

/// Checks that the last dimension of `x` is `size`.
pub(super) fn expect_last(
    argument: &'static str,
    found: &[usize],
    size: usize,
) -> Result<(), PositionError> {
    if found.last() == Some(&size) {
        return Ok(());
    }
    let free = vec!["_"; found.len().saturating_sub(1)].join(", ");
    Err(PositionError::Shape {
        argument,
        found: found.to_vec(),
        expected: format!("[{free}, {size}]"),
    })
}
