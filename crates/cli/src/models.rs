//! Opening a model: a file, a run folder, or the one that is compiled into the command.

use std::path::Path;

use burn::tensor::Device;
use regard_models::AnyGenerator;
use regard_train::{
    Registry, model_file::ModelFileError, tasks::Translation, translator::Description,
};

/// The name of the embedded model.
pub const EMBEDDED_NAME: &str = "multi30k-en-de";

/// The name of its file in errors.
const EMBEDDED_FILE: &str = "the embedded model";

const EMBEDDED: &[u8] = include_bytes!("../models/multi30k-en-de/model.safetensors");

/// Opens the model at `path`, or the embedded one if there is no path.
///
/// # Errors
/// Whatever is wrong with the file.
pub fn open(
    path: Option<&Path>,
    device: &Device,
) -> Result<(AnyGenerator, Description), ModelFileError> {
    let registry = Registry::default();
    match path {
        Some(path) => registry.open::<Translation>(path, device),
        None => registry.from_bytes::<Translation>(EMBEDDED, EMBEDDED_FILE, device),
    }
}
