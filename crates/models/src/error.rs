//! A configuration that no model can have.

use burn::{module::Module, tensor::Device};
use regard_config::{Check, Config};
use regard_nn::{initialize::Initializer, weights::Arrays};

/// The most weights of a model that is drawn: 4 GiB of them, and three times as much again while it is trained.
const MOST_WEIGHTS: usize = 1 << 30;

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

/// The model that `draw` makes from `seed`, unless it has more weights than can be held: they are counted before any is drawn.
pub(crate) fn drawn<M: Module>(
    draw: impl Fn(&mut Initializer) -> Result<M, ModelError>,
    seed: u64,
    device: &Device,
) -> Result<M, ModelError> {
    let weights = draw(&mut Initializer::deferred(device))?.num_params();
    match weights <= MOST_WEIGHTS {
        true => draw(&mut Initializer::new(seed, device)),
        false => Err(ModelError(format!(
            "its sizes make {weights} weights; expected at most {MOST_WEIGHTS}: choose a smaller vocabulary, or fewer or \
             smaller layers"
        ))),
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
