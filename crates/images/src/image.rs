//! Images in memory, and their way in and out of files.
//!
//! ```text
//! pixels: u8 [height, width, channels]      channels: 1 (grey) or 3 (red, green, blue)
//! pixel (y, x), channel c: pixels[(y * width + x) * channels + c]
//! ```
//!
//! PNG, JPEG and WebP are read (of an animation the first frame) and brought to this form: turned upright by their EXIF
//! orientation, transparent pixels laid over white, 16 bits narrowed to 8 by rounding, palettes expanded. Colour profiles are not
//! applied. The size in the header is compared with a limit before anything is allocated by it.
//!
//! ```
//! use regard_images::{Channels, Decoding, Image};
//!
//! let image = Image::new(1, 2, 3, vec![255, 0, 0, 0, 0, 255])?;
//! let file = image.png()?;
//! assert_eq!(Image::decode(&file, "red-blue.png", &Decoding::default())?, image);
//! let grey = Image::decode(&file, "red-blue.png", &Decoding { channels: Channels::Grey, ..Decoding::default() })?;
//! assert_eq!(grey.pixels(), [76, 29]);
//! let error = Image::decode(b"no image", "notes.txt", &Decoding::default()).unwrap_err();
//! assert_eq!(error.to_string(), "notes.txt: not an image; expected a PNG, JPEG or WebP file");
//! # Ok::<(), regard_images::ImagesError>(())
//! ```

use std::fmt;
use std::fs::File;
use std::io::{self, Cursor, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use image::codecs::png::PngEncoder;
use image::{
    DynamicImage, ExtendedColorType, ImageDecoder, ImageEncoder, ImageError, ImageFormat,
    ImageReader, Limits,
};

use crate::ImagesError;

/// The most pixels of an image, where nothing else is said: 2^26, 8,192 x 8,192.
pub const MAX_PIXELS: u64 = 1 << 26;

/// 8-bit pixels `[height, width, channels]`, of 1 or 3 channels and at least one pixel.
#[derive(Clone, PartialEq, Eq)]
pub struct Image {
    height: usize,
    width: usize,
    channels: usize,
    pixels: Vec<u8>,
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Image [{}, {}, {}]",
            self.height, self.width, self.channels
        )
    }
}

/// The channels of a decoded image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Channels {
    /// 1 if the file is grey, else 3.
    Stored,
    /// 1: colours become their luma, `0.299 R + 0.587 G + 0.114 B`.
    Grey,
    /// 3: grey is widened.
    #[default]
    Colour,
}

/// The bytes by which a format is known, at most.
const LONGEST_MAGIC: u64 = 16;

/// How a file becomes an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoding {
    /// The channels. Default colour.
    pub channels: Channels,
    /// The most pixels, compared with the header. Default [`MAX_PIXELS`].
    pub max_pixels: u64,
}

impl Default for Decoding {
    fn default() -> Self {
        Self {
            channels: Channels::default(),
            max_pixels: MAX_PIXELS,
        }
    }
}

impl Image {
    /// An image of these pixels, `[height, width, channels]`.
    ///
    /// # Errors
    /// [`ImagesError::Shape`] if they do not fill the shape, a size is 0, or there are not 1 or 3 channels.
    pub fn new(
        height: usize,
        width: usize,
        channels: usize,
        pixels: Vec<u8>,
    ) -> Result<Self, ImagesError> {
        let size = height
            .checked_mul(width)
            .and_then(|n| n.checked_mul(channels));
        if size != Some(pixels.len()) || pixels.is_empty() || !matches!(channels, 1 | 3) {
            return Err(ImagesError::Shape {
                given: pixels.len(),
                height,
                width,
                channels,
            });
        }
        Ok(Self::of(height, width, channels, pixels))
    }

    /// As [`Image::new`], for shapes that are right by construction.
    pub(crate) fn of(height: usize, width: usize, channels: usize, pixels: Vec<u8>) -> Self {
        debug_assert_eq!(height * width * channels, pixels.len());
        Self {
            height,
            width,
            channels,
            pixels,
        }
    }

    /// An image of one colour, with as many channels as `colour` has values.
    ///
    /// # Errors
    /// [`ImagesError::TooManyPixels`] above [`MAX_PIXELS`]; [`ImagesError::Shape`] as of [`Image::new`].
    pub fn filled(height: usize, width: usize, colour: &[u8]) -> Result<Self, ImagesError> {
        check_pixels("an image", width as u64, height as u64, MAX_PIXELS)?;
        Self::new(height, width, colour.len(), colour.repeat(height * width))
    }

    /// Rows.
    pub fn height(&self) -> usize {
        self.height
    }

    /// Columns.
    pub fn width(&self) -> usize {
        self.width
    }

    /// 1 (grey) or 3 (red, green, blue).
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// All values, `[height, width, channels]`.
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// All values, `[height, width, channels]`.
    pub fn into_pixels(self) -> Vec<u8> {
        self.pixels
    }

    /// All values, `[height, width, channels]`, to be changed.
    pub fn pixels_mut(&mut self) -> &mut [u8] {
        &mut self.pixels
    }

    /// The values of one pixel; `None` outside the image.
    pub fn pixel(&self, y: usize, x: usize) -> Option<&[u8]> {
        if y >= self.height || x >= self.width {
            return None;
        }
        let start = (y * self.width + x) * self.channels;
        Some(&self.pixels[start..start + self.channels])
    }

    /// One row, `[width, channels]`; the caller keeps `y` below the height.
    pub(crate) fn row(&self, y: usize) -> &[u8] {
        let length = self.width * self.channels;
        &self.pixels[y * length..(y + 1) * length]
    }

    /// The image with one channel: `(19595 R + 38470 G + 7471 B + 2^15) / 2^16`, as Pillow has it.
    pub fn into_grey(mut self) -> Self {
        if self.channels == 3 {
            self.pixels = self.pixels.chunks_exact(3).map(luma).collect();
            self.channels = 1;
        }
        self
    }

    /// The image with three channels, of which grey fills each.
    pub fn into_colour(mut self) -> Self {
        if self.channels == 1 {
            self.pixels = self.pixels.iter().flat_map(|&value| [value; 3]).collect();
            self.channels = 3;
        }
        self
    }

    /// Reads a PNG, JPEG or WebP file.
    ///
    /// # Errors
    /// [`ImagesError::Read`], [`ImagesError::NoFile`] for a folder or a pipe, [`ImagesError::TooLong`], and those of [`Image::decode`].
    pub fn open(path: impl AsRef<Path>, decoding: &Decoding) -> Result<Self, ImagesError> {
        let path = path.as_ref();
        let name = path.display().to_string();
        // A pipe would be waited for.
        if !path.metadata().map_err(ImagesError::read(path))?.is_file() {
            return Err(ImagesError::NoFile { name });
        }
        // No format needs more than 8 bytes for a pixel; the rest is for metadata.
        let longest = decoding
            .max_pixels
            .saturating_mul(8)
            .saturating_add(1 << 24);
        let file = File::open(path).map_err(ImagesError::read(path))?;
        let mut bytes = Vec::new();
        let mut read = |most: u64| {
            let read = (&file).take(most).read_to_end(&mut bytes);
            read.map_err(ImagesError::read(path))?;
            // What is no image is not read to its end.
            format(&bytes, &name)
        };
        read(LONGEST_MAGIC)?;
        read(longest)?;
        if bytes.len() as u64 > longest {
            return Err(ImagesError::TooLong {
                name,
                bytes: bytes.len() as u64,
                limit: decoding.max_pixels,
            });
        }
        Self::decode(&bytes, &name, decoding)
    }

    /// Decodes the bytes of a PNG, JPEG or WebP file; `name` stands in the errors.
    ///
    /// # Errors
    /// [`ImagesError::NotAnImage`], [`ImagesError::Format`], [`ImagesError::TooManyPixels`], [`ImagesError::Truncated`],
    /// [`ImagesError::Damaged`].
    pub fn decode(bytes: &[u8], name: &str, decoding: &Decoding) -> Result<Self, ImagesError> {
        // The decoders are others' code that reads anybody's files: a panic of theirs is the damage of one image.
        let decoded = catch_unwind(AssertUnwindSafe(|| decode(bytes, name, decoding)));
        let image = decoded.unwrap_or_else(|_| {
            Err(ImagesError::Damaged {
                name: name.to_owned(),
                reason: "the decoder panicked".to_owned(),
            })
        })?;
        Ok(match decoding.channels {
            Channels::Stored => image,
            Channels::Grey => image.into_grey(),
            Channels::Colour => image.into_colour(),
        })
    }

    /// The image as a PNG file.
    ///
    /// # Errors
    /// [`ImagesError::Damaged`] if the encoder refuses it, such as an image of more than 2^32 pixels across.
    pub fn png(&self) -> Result<Vec<u8>, ImagesError> {
        let refused = |reason: String| ImagesError::Damaged {
            name: format!("{self:?}"),
            reason,
        };
        let side = |length: usize| u32::try_from(length).map_err(|e| refused(e.to_string()));
        let colour = match self.channels {
            1 => ExtendedColorType::L8,
            _ => ExtendedColorType::Rgb8,
        };
        let mut file = Vec::new();
        PngEncoder::new(&mut file)
            .write_image(&self.pixels, side(self.width)?, side(self.height)?, colour)
            .map_err(|e| refused(e.to_string()))?;
        Ok(file)
    }

    /// Writes the image as a PNG file, under a temporary name until it is complete: whatever goes wrong, a former file stays whole.
    ///
    /// # Errors
    /// [`ImagesError::Write`], and those of [`Image::png`].
    pub fn save_png(&self, path: impl AsRef<Path>) -> Result<(), ImagesError> {
        let path = path.as_ref();
        write_atomically(path, &self.png()?).map_err(|source| ImagesError::Write {
            path: path.to_owned(),
            source,
        })
    }
}

/// Writes to a temporary file in the same folder, which then takes the name, or is removed.
fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let mut builder = tempfile::Builder::new();
    builder.prefix(".regard-image-");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // The usual permissions of a new file; the system applies the umask to them.
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    let mut file = builder.tempfile_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

/// Pillow's grey of a colour.
pub(crate) fn luma(colour: &[u8]) -> u8 {
    let [r, g, b] = [0, 1, 2].map(|channel| u32::from(colour[channel]));
    ((19595 * r + 38470 * g + 7471 * b + (1 << 15)) >> 16) as u8
}

/// Refuses a size before it is allocated.
pub(crate) fn check_pixels(
    name: &str,
    width: u64,
    height: u64,
    limit: u64,
) -> Result<(), ImagesError> {
    if width
        .checked_mul(height)
        .is_some_and(|pixels| pixels <= limit)
    {
        return Ok(());
    }
    Err(ImagesError::TooManyPixels {
        name: name.to_owned(),
        width,
        height,
        limit,
    })
}

fn decode(bytes: &[u8], name: &str, decoding: &Decoding) -> Result<Image, ImagesError> {
    let failed = |error: ImageError| match error {
        ImageError::IoError(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
            ImagesError::Truncated {
                name: name.to_owned(),
            }
        }
        error => ImagesError::Damaged {
            name: name.to_owned(),
            reason: error.to_string(),
        },
    };
    let format = format(bytes, name)?;
    if let (ImageFormat::Png, Some([width, height])) = (format, png_size(bytes)) {
        check_pixels(name, width.into(), height.into(), decoding.max_pixels)?;
    }
    let complete = match format {
        ImageFormat::Jpeg => jpeg_ends(bytes),
        ImageFormat::WebP => webp_ends(bytes),
        _ => true,
    };
    if !complete {
        return Err(ImagesError::Truncated {
            name: name.to_owned(),
        });
    }

    let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
    let mut limits = Limits::no_limits();
    // At most 8 bytes for a pixel, twice, and what decoders need beside.
    limits.max_alloc = Some(
        decoding
            .max_pixels
            .saturating_mul(16)
            .saturating_add(1 << 24),
    );
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(failed)?;
    let (width, height) = decoder.dimensions();
    check_pixels(name, width.into(), height.into(), decoding.max_pixels)?;
    let orientation = decoder.orientation().map_err(failed)?;
    let mut image = DynamicImage::from_decoder(decoder).map_err(failed)?;
    image.apply_orientation(orientation);
    Ok(from_library(image))
}

/// The format of a file that begins with these bytes, if it is one that is read.
fn format(bytes: &[u8], name: &str) -> Result<ImageFormat, ImagesError> {
    match image::guess_format(bytes) {
        Ok(format @ (ImageFormat::Png | ImageFormat::Jpeg | ImageFormat::WebP)) => Ok(format),
        Ok(other) => Err(ImagesError::Format {
            name: name.to_owned(),
            format: other.to_mime_type().to_owned(),
        }),
        Err(_) => Err(ImagesError::NotAnImage {
            name: name.to_owned(),
        }),
    }
}

/// Width and height in the header of a PNG file, whose decoder makes room for a row before it tells them.
fn png_size(bytes: &[u8]) -> Option<[u32; 2]> {
    let side = |at: usize| Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    match bytes.get(12..16)? {
        b"IHDR" => Some([side(16)?, side(20)?]),
        _ => None,
    }
}

/// Whether the image data of a JPEG file are followed by the mark of their end: decoders fill what is missing with grey.
fn jpeg_ends(bytes: &[u8]) -> bool {
    // Segments up to the first scan, whose lengths are skipped: a preview inside one of them is an image of its own.
    let mut at = 2;
    while let Some(&[0xff, kind]) = bytes.get(at..at + 2) {
        if kind == 0xff {
            at += 1;
            continue;
        }
        let Some(&[high, low]) = bytes.get(at + 2..at + 4) else {
            return false;
        };
        at += 2 + usize::from(u16::from_be_bytes([high, low]));
        if kind == 0xda {
            break;
        }
    }
    bytes
        .get(at..)
        .is_some_and(|data| data.windows(2).any(|pair| pair == [0xff, 0xd9]))
}

/// Whether a WebP file has the bytes that its header states: decoders do not miss the last ones.
fn webp_ends(bytes: &[u8]) -> bool {
    let stated = bytes
        .get(4..8)
        .and_then(|size| size.try_into().ok())
        .map(u32::from_le_bytes);
    stated.is_some_and(|stated| bytes.len() as u64 >= 8 + u64::from(stated))
}

/// 8 bits, without transparency.
fn from_library(image: DynamicImage) -> Image {
    let (width, height) = (image.width() as usize, image.height() as usize);
    let color = image.color();
    let channels = if color.has_color() { 3 } else { 1 };
    let pixels = match (color.has_color(), color.has_alpha()) {
        (false, false) => image.into_luma8().into_raw(),
        (true, false) => image.into_rgb8().into_raw(),
        (false, true) => over_white(&image.into_luma_alpha8().into_raw(), 1),
        (true, true) => over_white(&image.into_rgba8().into_raw(), 3),
    };
    Image::of(height, width, channels, pixels)
}

/// Drops the last of `channels + 1` values, the opacity: `(colour * opacity + 255 * (255 - opacity)) / 255`, rounded.
fn over_white(pixels: &[u8], channels: usize) -> Vec<u8> {
    let mut opaque = Vec::with_capacity(pixels.len() / (channels + 1) * channels);
    for pixel in pixels.chunks_exact(channels + 1) {
        let opacity = u32::from(pixel[channels]);
        opaque.extend(pixel[..channels].iter().map(|&colour| {
            ((u32::from(colour) * opacity + 255 * (255 - opacity) + 127) / 255) as u8
        }));
    }
    opaque
}
