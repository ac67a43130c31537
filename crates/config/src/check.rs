//! Ranges, and keys that must agree with each other.

use std::fmt::{self, Display};

use crate::error::{ConfigError, Place};

/// The largest size that is accepted; a larger one is taken for a typing error.
pub const LARGEST_SIZE: usize = 1 << 20;

/// What a number must satisfy.
#[derive(Debug, Clone, Copy)]
pub struct Range<T> {
    /// Whether a number satisfies it.
    pub holds: fn(T) -> bool,
    /// The condition in words, printed after "expected" in an error.
    pub expected: &'static str,
}

/// A size: 1 to [`LARGEST_SIZE`].
pub const SIZE: Range<usize> = Range {
    holds: |value| (1..=LARGEST_SIZE).contains(&value),
    expected: "1 to 1048576",
};

/// A number of stacked layers: 1 to 1024.
pub const LAYERS: Range<usize> = Range {
    holds: |value| (1..=1024).contains(&value),
    expected: "1 to 1024",
};

/// A number of things or steps: at least 1.
pub const COUNT: Range<u64> = Range {
    holds: |value| value >= 1 && value <= i64::MAX as u64,
    expected: "at least 1",
};

/// A share below 1, such as a dropout rate: `[0, 1)`.
pub const FRACTION: Range<f64> = Range {
    holds: |value| (0.0..1.0).contains(&value),
    expected: "at least 0 and below 1",
};

/// A probability: `[0, 1]`.
pub const PROBABILITY: Range<f64> = Range {
    holds: |value| (0.0..=1.0).contains(&value),
    expected: "0 to 1",
};

/// A finite number above 0.
pub const POSITIVE: Range<f64> = Range {
    holds: |value| value > 0.0 && value.is_finite(),
    expected: "a number above 0",
};

/// A finite number of at least 0.
pub const NOT_NEGATIVE: Range<f64> = Range {
    holds: |value| value >= 0.0 && value.is_finite(),
    expected: "a number of at least 0",
};

/// The type of a key that holds a number: the number itself or an `Option` of it.
pub trait Bounded<T> {
    /// The number that has to be in range, if there is one.
    fn bounded(&self) -> Option<T>;
}

impl<T: Copy> Bounded<T> for T {
    fn bounded(&self) -> Option<T> {
        Some(*self)
    }
}

impl<T: Copy> Bounded<T> for Option<T> {
    fn bounded(&self) -> Option<T> {
        *self
    }
}

/// A key whose value does not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The key with its section.
    pub key: String,
    /// What was found.
    pub found: String,
    /// What was expected.
    pub expected: String,
}

impl Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {}; expected {}",
            self.key, self.found, self.expected
        )
    }
}

impl Problem {
    /// The problem as an error, with the place of the key.
    pub fn at(self, place: Place) -> ConfigError {
        ConfigError::Value {
            place,
            key: self.key,
            found: self.found,
            expected: self.expected,
        }
    }
}

/// Collects problems as they are found. The caller names a key as it is written in the table that is being checked.
#[derive(Debug, Default)]
pub struct Check {
    /// The table that is being checked, with a dot at its end.
    table: String,
    problems: Vec<Problem>,
}

impl Check {
    /// Reports that the value of `key` does not fit.
    pub fn fail(&mut self, key: &str, found: impl Into<String>, expected: impl Into<String>) {
        self.problems.push(Problem {
            key: format!("{}{key}", self.table),
            found: found.into(),
            expected: expected.into(),
        });
    }

    /// Reports a problem with `key` unless the condition `holds`.
    pub fn require(&mut self, holds: bool, key: &str, value: impl Display, expected: &str) {
        if !holds {
            self.fail(key, format!("found {value}"), expected);
        }
    }

    /// Checks that a number, if there is one, is in range.
    pub fn range<T: Copy + Display>(
        &mut self,
        key: &str,
        value: &impl Bounded<T>,
        range: Range<T>,
    ) {
        if let Some(value) = value.bounded() {
            self.require((range.holds)(value), key, value, range.expected);
        }
    }

    /// Runs `inside`, which names keys as they are written in the table at key `name`.
    pub fn within(&mut self, name: &str, inside: impl FnOnce(&mut Self)) {
        let outer = self.table.len();
        self.table.push_str(name);
        self.table.push('.');
        inside(self);
        self.table.truncate(outer);
    }

    /// How many problems were found.
    pub fn problems(&self) -> usize {
        self.problems.len()
    }

    /// The first problem, if there is one.
    pub fn into_first(self) -> Option<Problem> {
        self.problems.into_iter().next()
    }
}
