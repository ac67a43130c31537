//! What can be wrong with a configuration, and where.

use std::fmt;

/// Where in the input a key or value stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// In a file.
    File {
        /// The file's name.
        name: String,
        /// The line, counted from 1.
        line: usize,
        /// The column, counted from 1 in characters.
        column: usize,
    },
    /// In an override of the command line.
    Override {
        /// The override, `section.key=value`.
        text: String,
    },
    /// Left at its default in a file, or set by a program.
    Name {
        /// The file's name.
        name: String,
    },
    /// Set by a program.
    Program,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { name, line, column } => write!(f, "{name}:{line}:{column}"),
            Self::Override { text } => write!(f, "--set {text}"),
            Self::Name { name } => f.write_str(name),
            Self::Program => f.write_str("recipe"),
        }
    }
}

/// An error in a configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file is missing or may not be read.
    #[error("{name}: cannot read: {source}")]
    Read {
        /// The file.
        name: String,
        /// Why.
        source: std::io::Error,
    },
    /// The text is not TOML.
    #[error("{place}: not valid TOML: {message}")]
    Syntax {
        /// Where.
        place: Place,
        /// What the parser said.
        message: String,
    },
    /// There is no such key.
    #[error("{place}: unknown key {key}; {}", hint(.nearest, .known))]
    UnknownKey {
        /// Where.
        place: Place,
        /// The key with its section.
        key: String,
        /// What was probably meant: the key's true section or kind, or the closest known key.
        nearest: Option<String>,
        /// The keys known there.
        known: Vec<String>,
    },
    /// A value is not of the type that its key has.
    #[error("{place}: {key}: {problem}")]
    WrongType {
        /// Where.
        place: Place,
        /// The key with its section.
        key: String,
        /// What was found and what was expected.
        problem: String,
    },
    /// A value is out of range, missing, or contradicts another.
    #[error("{place}: {key}: {found}; expected {expected}")]
    Value {
        /// Where.
        place: Place,
        /// The key with its section.
        key: String,
        /// What was found.
        found: String,
        /// What was expected.
        expected: String,
    },
    /// An override is not of the form `section.key=value`.
    #[error("--set {text}: {problem}; expected section.key=value, such as training.epochs=10")]
    Override {
        /// The override.
        text: String,
        /// What is wrong with it.
        problem: String,
    },
    /// It cannot be written as TOML.
    #[error("cannot be written as TOML: {message}")]
    Write {
        /// What the writer said.
        message: String,
    },
}

fn hint(nearest: &Option<String>, known: &[String]) -> String {
    match nearest {
        Some(nearest) => format!("did you mean {nearest}?"),
        None => format!("known here: {}", known.join(", ")),
    }
}
