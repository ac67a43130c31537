//! What can be wrong with a model that others have trained.

use std::{
    io,
    path::{Path, PathBuf},
};

use regard_nn::weights::WeightsError;

use super::language_model::InputError;

/// Why a model cannot be found, opened or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PretrainedError {
    /// No model has this name.
    #[error("{name}: no model of this name: {problem}")]
    NotFound {
        /// What was asked for.
        name: String,
        /// Where it was looked for, and what can be done.
        problem: String,
    },
    /// A model could not be downloaded.
    #[error("{name}: cannot download {file}: {problem}")]
    Download {
        /// The model.
        name: String,
        /// The file, or what else was asked for.
        file: String,
        /// Why, and what can be done.
        problem: String,
    },
    /// A file could not be read.
    #[error("{path}: cannot read: {source}", path = .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file or folder is not what it should be.
    #[error("{path}: {problem}", path = .path.display())]
    Malformed {
        /// The file or folder.
        path: PathBuf,
        /// What was found, what was expected, and what can be done.
        problem: String,
    },
    /// A key of a configuration is missing or has a value that no model can have.
    #[error("{path}: {key}: found {found}; expected {expected}", path = .path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// The key, with those of the sections around it: `rope_scaling.factor`.
        key: String,
        /// What was found.
        found: String,
        /// What was expected.
        expected: String,
    },
    /// A text that the model cannot read.
    #[error("{0}")]
    Input(InputError),
    /// The weights cannot be read, or are not those of the model.
    #[error("{path}: {source}", path = .path.display())]
    Weights {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: WeightsError,
    },
}

impl PretrainedError {
    pub(super) fn malformed(path: &Path, problem: impl Into<String>) -> Self {
        Self::Malformed {
            path: path.to_owned(),
            problem: problem.into(),
        }
    }

    pub(super) fn weights(path: &Path) -> impl FnOnce(WeightsError) -> Self {
        let path = path.to_owned();
        |source| Self::Weights { path, source }
    }

    pub(super) fn read(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        |source| Self::Read { path, source }
    }
}
