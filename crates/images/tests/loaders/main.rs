//! Data sets: what their files say, what is wrong with files that lie, and loading on other threads.

mod classes;
mod damaged;
mod instances;
mod loading;
#[path = "../mutate/mod.rs"]
mod mutate;
mod texts;

use std::fs;
use std::path::{Path, PathBuf};

use regard_images::ImagesError;
use tempfile::TempDir;

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name)
}

/// A folder with files of these names; those of images have an image of 40 x 24 pixels.
fn folder(files: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in files {
        let path = folder.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::copy(golden("colour.png"), path).unwrap();
    }
    folder
}

fn write(path: &Path, bytes: impl AsRef<[u8]>) -> PathBuf {
    fs::write(path, bytes).unwrap();
    path.to_owned()
}

/// The error's text, which names these.
fn refused<T>(result: Result<T, ImagesError>, names: &[&str]) -> String {
    let text = match result {
        Ok(_) => panic!("no error that names {names:?}"),
        Err(error) => error.to_string(),
    };
    for name in names {
        assert!(text.contains(name), "{text:?} does not name {name:?}");
    }
    text
}
