//! One folder for each class.

use std::path::{Path, PathBuf};

use super::{Dataset, Example, Source};
use crate::ImagesError;

const ENDINGS: [&str; 4] = ["jpeg", "jpg", "png", "webp"];

/// The images of `root/class/*.png`, `.jpg`, `.jpeg` or `.webp`, by class, then by name. Other files, and those whose name starts
/// with a dot, are not looked at. No file is opened.
///
/// The classes are the folders, sorted by name; with `classes`, such as those that a model was trained on, their order is taken,
/// each folder must be one of them, and a class may lack its folder.
///
/// # Errors
/// [`ImagesError::Read`]; [`ImagesError::Empty`] for a root without folders and for a class without images;
/// [`ImagesError::Field`] for a folder that is not one of `classes`, or a name that is not UTF-8.
pub fn class_folders(root: &Path, classes: Option<&[String]>) -> Result<Dataset, ImagesError> {
    let folders: Vec<PathBuf> = entries(root)?
        .into_iter()
        .filter(|path| path.is_dir())
        .collect();
    if folders.is_empty() {
        return Err(ImagesError::Empty {
            path: root.to_owned(),
            what: "folder",
            expected: "one folder with images for each class".to_owned(),
        });
    }
    let names = folders.iter().map(|folder| {
        let name = folder.file_name().and_then(|name| name.to_str());
        name.map(str::to_owned).ok_or_else(|| {
            super::field(
                folder,
                "the folder's name",
                "not UTF-8",
                "the name of a class in UTF-8",
            )
        })
    });
    let names: Vec<String> = names.collect::<Result<_, _>>()?;
    let classes = classes.unwrap_or(&names).to_vec();
    let mut dataset = Dataset::default();
    for (folder, name) in folders.iter().zip(&names) {
        let label = classes
            .iter()
            .position(|class| class == name)
            .ok_or_else(|| {
                let expected = format!("one of the classes {}", classes.join(", "));
                super::field(folder, "the folder's name", format!("{name:?}"), expected)
            })?;
        let before = dataset.examples.len();
        for path in entries(folder)?.into_iter().filter(|path| is_image(path)) {
            dataset.examples.push(Example {
                label: Some(label),
                ..Example::new(Source::File(path))
            });
        }
        if dataset.examples.len() == before {
            return Err(ImagesError::Empty {
                path: folder.clone(),
                what: "image",
                expected:
                    "PNG, JPEG or WebP files of the class; remove the folder if there are none"
                        .to_owned(),
            });
        }
    }
    dataset.classes = classes;
    Ok(dataset)
}

/// The PNG, JPEG and WebP files in a folder, sorted by name, as [`class_folders`] looks for them in the folder of a class.
///
/// # Errors
/// [`ImagesError::Read`]; [`ImagesError::Empty`] if there is none.
pub fn image_files(folder: &Path) -> Result<Vec<PathBuf>, ImagesError> {
    let mut files = entries(folder)?;
    files.retain(|path| is_image(path));
    match files.is_empty() {
        false => Ok(files),
        true => Err(ImagesError::Empty {
            path: folder.to_owned(),
            what: "image",
            expected: "PNG, JPEG or WebP files".to_owned(),
        }),
    }
}

/// Whether its ending is that of an image which is read from a folder: PNG, JPEG or WebP. No file is opened.
pub fn is_image(path: &Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str());
    ending.is_some_and(|ending| ENDINGS.contains(&ending.to_ascii_lowercase().as_str()))
}

/// What is in a folder, sorted by name, without hidden entries.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, ImagesError> {
    let mut paths = vec![];
    for entry in std::fs::read_dir(folder).map_err(ImagesError::read(folder))? {
        let entry = entry.map_err(ImagesError::read(folder))?;
        if !entry.file_name().as_encoded_bytes().starts_with(b".") {
            paths.push(entry.path());
        }
    }
    paths.sort_unstable();
    Ok(paths)
}
