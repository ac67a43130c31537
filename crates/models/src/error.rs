//! A configuration that no model can have.

use regard_config::{Check, Config};
use regard_nn::weights::Arrays;

/// A configuration that no model can have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("model: {0}")]
pub struct ModelError(pub String);

/// Checks every range of `config`, and the conditions between its keys.
pub(crate) fn checked(config: &impl Config) -> Result<(), ModelError> {
    let mut check = Check::default();
    config.check(&mut check);
    match check.into_first() {
        None => Ok(()),
        Some(problem) => Err(ModelError(problem.to_string())),
    }
}

/// Checks that the weights of a file can be those of a model with this many layers: without this a damaged file could ask for
/// any amount of memory. Other sizes allocate nothing until weights of that size are found.
pub(crate) fn expect_layers(layers: usize, arrays: &Arrays) -> Result<(), ModelError> {
    let weights = arrays.len();
    match layers <= weights {
        true => Ok(()),
        false => Err(ModelError(format!(
            "layers is {layers}, but the file has {weights} weights in all; it is damaged"
        ))),
    }
}
