//! The image that a model looked at: 8-bit pixels.
//!
//! ```text
//! pixels: u8 [height, width, channels]      channels: 1 (grey) or 3 (red, green, blue)
//! ```
//!
//! A map whose keys are cells ([`Axis::Image`](crate::Axis::Image)) or boxes ([`Axis::Regions`](crate::Axis::Regions)) can be
//! drawn over it. Cells divide the whole image evenly, whether or not the grid divides its sides.
//!
//! ```
//! use regard_trace::{Image, Trace};
//!
//! let image = Image::new(1, 2, 3, vec![255, 0, 0, 0, 0, 255])?;
//! assert_eq!(image.rgb(0, 1), Some([0, 0, 255]));
//! let trace = Trace::new("captioner", "red-blue.png", "red and blue").with_image(image);
//! assert!(Image::new(1, 2, 3, vec![255]).unwrap_err().to_string().contains("1 values"));
//! # Ok::<(), regard_trace::TraceError>(())
//! ```

use std::fmt;
use std::sync::Arc;

use crate::TraceError;

/// The most pixels of an image or of a mask: 2^26, 8,192 x 8,192.
pub const MAX_PIXELS: usize = 1 << 26;

/// 8-bit pixels `[height, width, channels]`, of 1 or 3 channels and at least one pixel. Cloning shares them.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Image {
    height: usize,
    width: usize,
    channels: usize,
    pixels: Arc<[u8]>,
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (height, width, channels) = (self.height, self.width, self.channels);
        write!(f, "Image [{height}, {width}, {channels}]")
    }
}

impl Image {
    /// An image of these pixels, `[height, width, channels]`, row-major.
    ///
    /// # Errors
    /// [`TraceError::Image`] if they do not fill the shape, a side is 0, there are not 1 or 3 channels, or there are more
    /// than [`MAX_PIXELS`] pixels.
    pub fn new(
        height: usize,
        width: usize,
        channels: usize,
        pixels: impl Into<Arc<[u8]>>,
    ) -> Result<Self, TraceError> {
        let pixels = pixels.into();
        let size = height.checked_mul(width).filter(|&n| n <= MAX_PIXELS);
        let fits = size.and_then(|n| n.checked_mul(channels)) == Some(pixels.len());
        if !fits || pixels.is_empty() || !matches!(channels, 1 | 3) {
            return Err(TraceError::Image {
                height,
                width,
                channels,
                found: pixels.len(),
            });
        }
        Ok(Self {
            height,
            width,
            channels,
            pixels,
        })
    }

    /// Rows, at least 1.
    pub fn height(&self) -> usize {
        self.height
    }

    /// Columns, at least 1.
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

    /// Red, green and blue of the pixel in row `y` and column `x`, counted from 0; `None` outside the image.
    pub fn rgb(&self, y: usize, x: usize) -> Option<[u8; 3]> {
        if y >= self.height || x >= self.width {
            return None;
        }
        let start = (y * self.width + x) * self.channels;
        Some(match self.channels {
            1 => [self.pixels[start]; 3],
            _ => [0, 1, 2].map(|channel| self.pixels[start + channel]),
        })
    }
}
