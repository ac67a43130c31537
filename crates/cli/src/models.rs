//! Opening a model: a file, a run folder, or the one that is compiled into the command; and which names are those of pretrained ones.

use std::path::Path;

use burn::tensor::Device;
use regard_models::{AnyGenerator, pretrained::resolve};
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

/// The name of a pretrained model, if that is what `model` means: `hf:NAME`, a folder with a `config.json`, or a name in the local
/// cache that no file has.
pub fn pretrained(model: &Path) -> Option<String> {
    let name = model.to_str()?;
    let found = match model.exists() {
        true => model.join("config.json").is_file(),
        false => name.starts_with("hf:") || resolve(name).is_ok(),
    };
    found.then(|| name.to_owned())
}
