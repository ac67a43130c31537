//! Files that are read whole, up to a largest size.

use std::{fs::File, io::Read, path::Path};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::error::PretrainedError;

/// The largest file with settings: those of published models have less than 200 kB.
pub(super) const LARGEST_SETTINGS: u64 = 16 << 20;
/// The largest file of a tokenizer, and the largest list of weights.
pub(super) const LARGEST_LIST: u64 = 256 << 20;

/// The bytes of a file, which must be a regular file of at most `largest` bytes.
pub(super) fn bytes(path: &Path, largest: u64) -> Result<Vec<u8>, PretrainedError> {
    let mut bytes = vec![];
    let (file, size) = open(path)?;
    // The file may grow while it is read.
    let read = file.take(largest + 1).read_to_end(&mut bytes);
    read.map_err(PretrainedError::read(path))?;
    match bytes.len() as u64 <= largest {
        true => Ok(bytes),
        false => Err(PretrainedError::malformed(
            path,
            format!("{size} bytes; a file of this kind has at most {largest}"),
        )),
    }
}

/// The text of a file of at most `largest` bytes.
pub(super) fn text(path: &Path, largest: u64) -> Result<String, PretrainedError> {
    let bytes = bytes(path, largest)?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        PretrainedError::malformed(path, format!("no UTF-8 at byte {at}; expected text"))
    })
}

/// The content of a JSON file of at most `largest` bytes.
pub(super) fn json<T: DeserializeOwned>(path: &Path, largest: u64) -> Result<T, PretrainedError> {
    let bytes = bytes(path, largest)?;
    let problem = |error| PretrainedError::malformed(path, format!("unexpected JSON: {error}"));
    serde_json::from_slice(&bytes).map_err(problem)
}

/// The JSON object of a file with settings; empty where there is no such file.
pub(super) fn settings(path: &Path) -> Result<Map<String, Value>, PretrainedError> {
    match path.exists() {
        true => json(path, LARGEST_SETTINGS),
        false => Ok(Map::new()),
    }
}

/// A regular file and its size. Others, a pipe say, might never end.
pub(super) fn open(path: &Path) -> Result<(File, u64), PretrainedError> {
    let read = PretrainedError::read;
    if !path.metadata().map_err(read(path))?.is_file() {
        return Err(PretrainedError::malformed(path, "expected a file"));
    }
    let file = File::open(path).map_err(read(path))?;
    let size = file.metadata().map_err(read(path))?.len();
    Ok((file, size))
}
