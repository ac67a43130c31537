//! Opening a model: a file, a run folder, or the one that is compiled into the command.

use std::path::Path;

use burn::tensor::Device;
use regard_models::TranslationModel;
use regard_train::model_file::{self, Description, ModelFileError};

use crate::failure::{CommandError, Failure};

/// What the embedded model is called.
pub const EMBEDDED_NAME: &str = "multi30k-en-de";

#[cfg(embedded_model)]
const EMBEDDED: Option<&[u8]> = Some(include_bytes!(env!("REGARD_EMBEDDED_MODEL")));
#[cfg(not(embedded_model))]
const EMBEDDED: Option<&[u8]> = None;

/// Opens the model at `path`, or the embedded one if there is no path.
///
/// # Errors
/// Whatever is wrong with the file, or a build without a model.
pub fn open(
    path: Option<&Path>,
    device: &Device,
) -> Result<(TranslationModel, Description), Failure> {
    let opened: Result<_, ModelFileError> = match (path, EMBEDDED) {
        (Some(path), _) => model_file::open(path, device),
        (None, Some(bytes)) => model_file::from_bytes(bytes, "the embedded model", device),
        (None, None) => return Err(CommandError::NoEmbeddedModel.into()),
    };
    Ok(opened?)
}
