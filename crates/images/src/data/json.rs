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
    let mut reader = serde_json::Deserializer::from_reader(BufReader::new(file));
    let damaged = |reason: String| ImagesError::Json {
        path: path.to_owned(),
        reason,
        expected,
    };
    let content = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let field = error.path().to_string();
        let error = error.into_inner();
        if error.is_io() {
            return ImagesError::Read {
                path: path.to_owned(),
                source: error.into(),
            };
        }
        // The reader writes "." for the whole file and "?" for a place that it cannot name.
        damaged(match field.as_str() {
            "." | "?" => error.to_string(),
            field => format!("{field}: {error}"),
        })
    })?;
    reader.end().map_err(|error| damaged(error.to_string()))?;
    Ok(content)
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
