//! The share of lines that equal their reference.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{EvaluateError, lines};

/// How many lines equal their reference, letter by letter.
///
/// ```
/// use regard_evaluate::ExactMatch;
/// let exact = ExactMatch::of(&["c b a", "d"], &["c b a", "e d"])?;
/// assert_eq!(exact.share(), 0.5);
/// assert_eq!(exact.to_string(), "exact 50.0 % (1 of 2 lines)");
/// # Ok::<(), regard_evaluate::EvaluateError>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExactMatch {
    /// Lines that equal their reference.
    pub exact: usize,
    /// All lines.
    pub lines: usize,
}

impl ExactMatch {
    /// Counts the lines of `hypotheses` that equal the line with the same number in `reference`.
    ///
    /// # Errors
    /// [`EvaluateError::LineCounts`] if the two differ in their number of lines.
    pub fn of<H: AsRef<str>, R: AsRef<str>>(
        hypotheses: &[H],
        reference: &[R],
    ) -> Result<Self, EvaluateError> {
        lines::check_aligned(
            ("hypotheses", hypotheses.len()),
            ("reference", reference.len()),
        )?;
        let pairs = hypotheses.iter().zip(reference);
        Ok(Self {
            exact: pairs.filter(|(a, b)| a.as_ref() == b.as_ref()).count(),
            lines: hypotheses.len(),
        })
    }

    /// The share, from 0 to 1; 0 if there is no line.
    pub fn share(&self) -> f64 {
        self.exact as f64 / self.lines.max(1) as f64
    }
}

impl fmt::Display for ExactMatch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { exact, lines } = self;
        let percent = 100.0 * self.share();
        write!(formatter, "exact {percent:.1} % ({exact} of {lines} lines)")
    }
}
