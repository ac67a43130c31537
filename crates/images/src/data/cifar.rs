//! CIFAR's binary version (Krizhevsky 2009).
//!
//! ```text
//! record of CIFAR-10:   class, then 1,024 bytes each of red, green and blue, row by row
//! record of CIFAR-100:  coarse class, fine class, then the same
//! ```

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use super::{Dataset, Example, Source, field};
use crate::{Image, ImagesError};

const SIDE: usize = 32;
const PLANE: usize = SIDE * SIDE;

/// The images of these batches (`data_batch_1.bin`, ..., or `test_batch.bin`), with the classes of `batches.meta.txt` in
/// `folder`, or their usual names if there is no such file.
///
/// # Errors
/// [`ImagesError::Read`]; [`ImagesError::Field`] for a length that is not a number of records, and for a class above 9.
pub fn cifar10(folder: &Path, batches: &[&str]) -> Result<Dataset, ImagesError> {
    const NAMES: [&str; 10] = [
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    ];
    let classes = names(&folder.join("batches.meta.txt"), 10)?;
    let classes = classes.unwrap_or_else(|| NAMES.map(str::to_owned).to_vec());
    read(folder, batches, 1, classes)
}

/// The images of these batches (`train.bin` or `test.bin`) by their fine classes, which `fine_label_names.txt` in `folder` names;
/// they are numbers if there is no such file.
///
/// # Errors
/// As of [`cifar10`], for a class above 99.
pub fn cifar100(folder: &Path, batches: &[&str]) -> Result<Dataset, ImagesError> {
    let classes = names(&folder.join("fine_label_names.txt"), 100)?;
    let classes = classes.unwrap_or_else(|| (0..100).map(|class| class.to_string()).collect());
    read(folder, batches, 2, classes)
}

/// The lines of a file of names; `None` if there is none.
fn names(path: &Path, count: usize) -> Result<Option<Vec<String>>, ImagesError> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(1 << 16).read_to_string(&mut text));
    match read {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        read => read.map_err(ImagesError::read(path))?,
    };
    let names: Vec<String> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect();
    if names.len() != count {
        let given = names.len().to_string();
        return Err(field(
            path,
            "the number of names",
            given,
            format!("{count}, one a line"),
        ));
    }
    Ok(Some(names))
}

fn read(
    folder: &Path,
    batches: &[&str],
    labels: usize,
    classes: Vec<String>,
) -> Result<Dataset, ImagesError> {
    let length = labels + 3 * PLANE;
    let mut examples = vec![];
    for batch in batches {
        let path = folder.join(batch);
        let bytes = std::fs::read(&path).map_err(ImagesError::read(&path))?;
        if bytes.is_empty() || bytes.len() % length != 0 {
            let expected = format!("a multiple of {length}, one record an image; fetch it again");
            return Err(field(
                &path,
                "the length",
                format!("{} bytes", bytes.len()),
                expected,
            ));
        }
        for (i, record) in bytes.chunks_exact(length).enumerate() {
            let (label, planes) = (usize::from(record[labels - 1]), &record[labels..]);
            if label >= classes.len() {
                let expected = format!("a class from 0 to {}", classes.len() - 1);
                return Err(field(
                    &path,
                    format!("the class of record {i}"),
                    label.to_string(),
                    expected,
                ));
            }
            let pixels =
                (0..PLANE).flat_map(|at| [0, 1, 2].map(|plane| planes[plane * PLANE + at]));
            examples.push(Example {
                label: Some(label),
                ..Example::new(Source::Pixels(Image::of(SIDE, SIDE, 3, pixels.collect())))
            });
        }
    }
    Ok(Dataset {
        examples,
        classes,
        skipped: vec![],
    })
}
