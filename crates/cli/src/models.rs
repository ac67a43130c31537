//! Opening a model: a file, a run folder, or the one that is compiled into the command.

use std::path::Path;

use burn::tensor::Device;
use regard_models::TranslationModel;
use regard_train::model_file::{self, Description, ModelFileError};

/// What the embedded model is called.
pub const EMBEDDED_NAME: &str = "multi30k-en-de";

const EMBEDDED: &[u8] = include_bytes!("../models/multi30k-en-de/model.safetensors");

/// Opens the model at `path`, or the embedded one if there is no path.
///
/// # Errors
/// Whatever is wrong with the file.
pub fn open(
    path: Option<&Path>,
    device: &Device,
) -> Result<(TranslationModel, Description), ModelFileError> {
    match path {
        Some(path) => model_file::open(path, device),
        None => model_file::from_bytes(EMBEDDED, "the embedded model", device),
    }
}
