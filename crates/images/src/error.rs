//! What can go wrong with images and with files about them.

use std::io;
use std::path::PathBuf;

/// Every failure of this crate. Messages name the file, the field or the option, what was expected, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImagesError {
    /// A file or folder cannot be opened or read.
    #[error("{}: cannot read: {source}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// What the operating system answered.
        #[source]
        source: io::Error,
    },
    /// A file cannot be written.
    #[error("{}: cannot write: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the operating system answered.
        #[source]
        source: io::Error,
    },
    /// What a data set names is no file.
    #[error(
        "{name}: no file (a folder, a pipe, or a link that leads nowhere?); expected a PNG, JPEG or WebP file"
    )]
    NoFile {
        /// Its path.
        name: String,
    },
    /// The first bytes are those of no image format that is known.
    #[error("{name}: not an image; expected a PNG, JPEG or WebP file")]
    NotAnImage {
        /// The file.
        name: String,
    },
    /// An image of a format that is not read.
    #[error("{name}: images of the format {format} are not read; convert it to PNG, JPEG or WebP")]
    Format {
        /// The file.
        name: String,
        /// Its format.
        format: String,
    },
    /// The file ends before its image does.
    #[error("{name}: the image is truncated: the file ends before its pixels do; fetch it again")]
    Truncated {
        /// The file.
        name: String,
    },
    /// The content contradicts the format.
    #[error("{name}: the image is damaged: {reason}; fetch it again, or convert it anew")]
    Damaged {
        /// The file.
        name: String,
        /// What the decoder said.
        reason: String,
    },
    /// The header states more pixels than allowed.
    #[error("{name}: {width} x {height} pixels, more than the {limit} allowed; make it smaller")]
    TooManyPixels {
        /// The file, or what was asked for.
        name: String,
        /// Pixels across.
        width: u64,
        /// Pixels down.
        height: u64,
        /// The most pixels allowed.
        limit: u64,
    },
    /// The file is longer than an image with the allowed pixels can be.
    #[error(
        "{name}: {bytes} bytes or more, too long for an image of at most {limit} pixels; make it smaller"
    )]
    TooLong {
        /// The file.
        name: String,
        /// Its bytes, at least.
        bytes: u64,
        /// The most pixels allowed.
        limit: u64,
    },
    /// Pixels that do not fill the shape they are given with, or a shape without pixels.
    #[error(
        "{given} values for an image [height {height}, width {width}, channels {channels}]; expected height * width * channels values, sizes of at least 1, and 1 or 3 channels"
    )]
    Shape {
        /// Values given.
        given: usize,
        /// Rows.
        height: usize,
        /// Columns.
        width: usize,
        /// Channels.
        channels: usize,
    },
    /// The image does not have the size that the annotations state.
    #[error(
        "{name}: {} x {} pixels (width x height), but its annotations say {} x {}; the file does not belong to them",
        actual[1], actual[0], stated[1], stated[0]
    )]
    Size {
        /// The file.
        name: String,
        /// Height and width of the image.
        actual: [usize; 2],
        /// Height and width in the annotations.
        stated: [usize; 2],
    },
    /// An option has a value outside its range.
    #[error("{option} cannot be {given}; expected {expected}")]
    Option {
        /// The option.
        option: &'static str,
        /// What was given.
        given: String,
        /// What would be accepted.
        expected: String,
    },
    /// A folder or a file without what it is read for.
    #[error("{}: holds no {what}; expected {expected}", path.display())]
    Empty {
        /// The folder or file.
        path: PathBuf,
        /// What it lacks.
        what: &'static str,
        /// What would be accepted.
        expected: String,
    },
    /// A field of a file about images has a value that cannot be right.
    #[error("{}: {field} is {given}; expected {expected}", path.display())]
    Field {
        /// The file.
        path: PathBuf,
        /// The field, with its place in the file.
        field: String,
        /// Its value.
        given: String,
        /// What would be accepted.
        expected: String,
    },
    /// A file of JSON cannot be read as what it should be.
    #[error("{}: {reason}; expected {expected}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What the reader said, with field, line and column.
        reason: String,
        /// What would be accepted.
        expected: &'static str,
    },
    /// A loading thread could not be started, or its work panicked.
    #[error(
        "loading failed: {reason}; this is a defect of the function that loads, or of the machine"
    )]
    Thread {
        /// What happened.
        reason: String,
    },
}

impl ImagesError {
    /// Whether it is about one image that could be left out: it is no file, or its file may not be read, is no image, damaged, cut short,
    /// too large, or of another size than stated.
    pub fn is_broken_image(&self) -> bool {
        match self {
            Self::NoFile { .. }
            | Self::NotAnImage { .. }
            | Self::Format { .. }
            | Self::Truncated { .. }
            | Self::Damaged { .. }
            | Self::TooManyPixels { .. }
            | Self::TooLong { .. }
            | Self::Size { .. } => true,
            Self::Read { source, .. } => source.kind() == io::ErrorKind::PermissionDenied,
            _ => false,
        }
    }

    pub(crate) fn read(path: &std::path::Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Read { path, source }
    }
}
