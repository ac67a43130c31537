//! Files of JSON and the images that they name.

use std::fs::File;
use std::io::BufReader;
use std::path::{Component, Path, PathBuf};

use serde::de::DeserializeOwned;

use super::{Broken, field};
use crate::ImagesError;

/// Reads a file as `T`; `expected` says what it should be.
pub(super) fn read<T: DeserializeOwned>(
    path: &Path,
    expected: &'static str,
) -> Result<T, ImagesError> {
    let file = File::open(path).map_err(ImagesError::read(path))?;
    serde_json::from_reader(BufReader::new(file)).map_err(|error| {
        if error.is_io() {
            return ImagesError::Read {
                path: path.to_owned(),
                source: error.into(),
            };
        }
        ImagesError::Json {
            path: path.to_owned(),
            reason: error.to_string(),
            expected,
        }
    })
}

/// The path of an image that the field `name` of the file `annotations` names; it must exist, inside `folder`.
pub(super) fn image_path(
    annotations: &Path,
    name: &str,
    folder: &Path,
    file: &str,
) -> Result<PathBuf, ImagesError> {
    let inside = !file.is_empty()
        && Path::new(file)
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
    if !inside {
        let expected = "the name of a file inside the folder of images";
        return Err(field(annotations, name, format!("{file:?}"), expected));
    }
    let path = folder.join(file);
    if !path.is_file() {
        let given = format!("{file:?}, which is missing");
        let expected = format!("a file in {}", folder.display());
        return Err(field(annotations, name, given, expected));
    }
    Ok(path)
}

/// The value, or nothing if it is broken and broken ones are to be skipped.
pub(super) fn unless_skipped<T>(
    result: Result<T, ImagesError>,
    broken: Broken,
    skipped: &mut Vec<ImagesError>,
) -> Result<Option<T>, ImagesError> {
    match (result, broken) {
        (Ok(value), _) => Ok(Some(value)),
        (Err(error), Broken::Error) => Err(error),
        (Err(error), Broken::Skip) => {
            skipped.push(error);
            Ok(None)
        }
    }
}
