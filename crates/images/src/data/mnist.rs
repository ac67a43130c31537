//! IDX files: those of MNIST and of the data sets with its form.
//!
//! ```text
//! images: 0x00000803, count, rows, columns (u32, big-endian), then one byte a pixel
//! labels: 0x00000801, count, then one byte a label
//! ```

use std::fs::File;
use std::io::Read;
use std::path::Path;

use flate2::read::MultiGzDecoder;

use super::{Dataset, Example, Source, field};
use crate::image::MAX_PIXELS;
use crate::{Image, ImagesError};

/// The most bytes of one file: MNIST has 47 MB.
const MAX_BYTES: u64 = 1 << 32;

/// Grey images and their labels, from a pair of IDX files; a file that starts as gzip does is unpacked. The classes are the
/// numbers from 0 to the largest label, at least to 9.
///
/// Sizes in a header are compared with the length of what follows before anything is made of that size.
///
/// # Errors
/// [`ImagesError::Read`] (also for damaged gzip data); [`ImagesError::Field`] for another magic number, sizes of 0, a length other
/// than stated, and another number of labels than of images.
pub fn mnist(images: &Path, labels: &Path) -> Result<Dataset, ImagesError> {
    let ([rows, columns], pixels) = {
        let ([_, rows, columns], bytes) = idx(images, 0x0803, ["images", "rows", "columns"])?;
        ([rows as usize, columns as usize], bytes)
    };
    let ([_], labelled) = idx(labels, 0x0801, ["labels"])?;
    let count = pixels.len() / (rows * columns);
    if labelled.len() != count {
        let expected = format!("{count}, the number of images in {}", images.display());
        return Err(field(
            labels,
            "the number of labels",
            labelled.len().to_string(),
            expected,
        ));
    }
    let classes = labelled
        .iter()
        .max()
        .map_or(0, |&largest| usize::from(largest) + 1)
        .max(10);
    let example = |(pixels, &label): (&[u8], &u8)| Example {
        label: Some(label.into()),
        ..Example::new(Source::Pixels(Image::of(rows, columns, 1, pixels.to_vec())))
    };
    Ok(Dataset {
        examples: pixels
            .chunks_exact(rows * columns)
            .zip(&labelled)
            .map(example)
            .collect(),
        classes: (0..classes).map(|class| class.to_string()).collect(),
        skipped: vec![],
    })
}

/// The sizes of an IDX file, of these names, and its bytes: exactly as many as the sizes say, and at least one.
fn idx<const N: usize>(
    path: &Path,
    magic: u32,
    names: [&str; N],
) -> Result<([u32; N], Vec<u8>), ImagesError> {
    let mut file: Box<dyn Read> = Box::new(File::open(path).map_err(ImagesError::read(path))?);
    let mut start = vec![];
    file.by_ref()
        .take(2)
        .read_to_end(&mut start)
        .map_err(ImagesError::read(path))?;
    let packed = start == [0x1f, 0x8b];
    let mut file = std::io::Cursor::new(start).chain(file);
    let mut file: Box<dyn Read> = if packed {
        Box::new(MultiGzDecoder::new(std::io::BufReader::new(file)))
    } else {
        Box::new(&mut file)
    };

    let mut header = vec![];
    let length = 4 + 4 * N;
    file.by_ref()
        .take(length as u64)
        .read_to_end(&mut header)
        .map_err(ImagesError::read(path))?;
    if header.len() < length {
        let given = format!("{} bytes long", header.len());
        return Err(field(
            path,
            "the header",
            given,
            format!("an IDX header of {length} bytes"),
        ));
    }
    let number = |i: usize| {
        let bytes = [0, 1, 2, 3].map(|byte| header[4 * i + byte]);
        u32::from_be_bytes(bytes)
    };
    if number(0) != magic {
        let given = format!("{:#010x}", number(0));
        let expected = format!(
            "{magic:#010x}: an IDX file of {}, perhaps in gzip",
            names[0]
        );
        return Err(field(path, "the magic number", given, expected));
    }
    let sizes: [u32; N] = std::array::from_fn(|i| number(i + 1));
    for (name, &size) in names.iter().zip(&sizes) {
        if size == 0 {
            return Err(field(
                path,
                format!("the number of {name}"),
                "0",
                "at least 1",
            ));
        }
    }
    let one = sizes[1..]
        .iter()
        .map(|&size| u64::from(size))
        .product::<u64>();
    let stated = one
        .checked_mul(sizes[0].into())
        .filter(|&stated| stated <= MAX_BYTES);
    let (Some(stated), true) = (stated, one <= MAX_PIXELS) else {
        let given = sizes.map(|size| size.to_string()).join(" x ");
        let expected = format!("at most {MAX_BYTES} bytes, images of at most {MAX_PIXELS} pixels");
        return Err(field(path, "the size", given, expected));
    };
    // Grows with what is there, not with what the header says.
    let mut bytes = vec![];
    file.take(stated + 1)
        .read_to_end(&mut bytes)
        .map_err(ImagesError::read(path))?;
    if bytes.len() as u64 != stated {
        let given = if (bytes.len() as u64) < stated {
            bytes.len().to_string()
        } else {
            "more".to_owned()
        };
        let expected = format!("{stated}, as {} in its header say", names.join(", "));
        return Err(field(
            path,
            "the number of bytes behind the header",
            given,
            expected,
        ));
    }
    Ok((sizes, bytes))
}
