//! Why attention could not be computed: which field was wrong, and how.

/// A bad shape, a bad value, or a combination without meaning. Nothing has been computed when one of
/// these is returned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AttentionError {
    /// A tensor has another shape than the others ask for.
    #[error("`{field}` has shape {found:?}, expected {expected}: {advice}")]
    Shape {
        /// The tensor.
        field: &'static str,
        /// Its shape.
        found: Vec<usize>,
        /// The shape that fits the other tensors, with its numbers.
        expected: String,
        /// What to do.
        advice: &'static str,
    },
    /// A setting is outside its range.
    #[error("`{field}` is {found}, expected {expected}: {advice}")]
    Value {
        /// The setting.
        field: &'static str,
        /// The value found.
        found: String,
        /// What would have been accepted.
        expected: String,
        /// What to do.
        advice: &'static str,
    },
    /// Two settings that contradict each other.
    #[error("`{field}` is {found}, which cannot be combined with {with}: {advice}")]
    Combination {
        /// One setting.
        field: &'static str,
        /// Its value.
        found: String,
        /// The other setting and its value.
        with: String,
        /// What to do.
        advice: &'static str,
    },
}

impl AttentionError {
    pub(crate) fn shape(
        field: &'static str,
        found: &[usize],
        expected: impl Into<String>,
        advice: &'static str,
    ) -> Self {
        Self::Shape {
            field,
            found: found.to_vec(),
            expected: expected.into(),
            advice,
        }
    }

    pub(crate) fn value(
        field: &'static str,
        found: impl ToString,
        expected: impl Into<String>,
        advice: &'static str,
    ) -> Self {
        Self::Value {
            field,
            found: found.to_string(),
            expected: expected.into(),
            advice,
        }
    }

    pub(crate) fn combination(
        field: &'static str,
        found: impl ToString,
        with: impl Into<String>,
        advice: &'static str,
    ) -> Self {
        Self::Combination {
            field,
            found: found.to_string(),
            with: with.into(),
            advice,
        }
    }
}
