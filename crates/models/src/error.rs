//! A configuration that no model can have.

use regard_config::{Check, Config};

/// A configuration that no model can have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("model: {0}")]
pub struct ModelError(pub String);

/// Checks every range of `config`, and what its keys must satisfy together.
pub(crate) fn checked(config: &impl Config) -> Result<(), ModelError> {
    let mut check = Check::default();
    config.check(&mut check);
    match check.into_first() {
        None => Ok(()),
        Some(problem) => Err(ModelError(problem.to_string())),
    }
}
