//! Parts of an image with a name: a box, perhaps a score and a mask of pixels.
//!
//! ```text
//! box    x, y, width, height in pixels; (0, 0) is the upper left corner of the image
//! runs   lengths of runs of 0, 1, 0, 1, ... in columns from left to right, each from top to bottom (as COCO stores masks)
//! ```
//!
//! Regions are the keys of a model that reads features of boxes (Anderson 2018), and the queries of one that writes boxes
//! (object queries, Carion 2020).
//!
//! ```
//! use regard_trace::{Axis, Bounds, Mask, Region, Regions};
//!
//! let bounds = Bounds { x: 1.0, y: 0.0, width: 2.0, height: 2.0 };
//! let mask = Mask::new(2, 4, vec![2, 3, 3])?;
//! assert_eq!(mask.columns().nth(2), Some(vec![0..1]));
//! let square = Region::new("square", bounds)?.scored(0.98)?.masked(mask);
//! let axis = Axis::from(Regions::from(vec![square]));
//! assert_eq!(axis.labels(), ["square"]);
//! # Ok::<(), regard_trace::TraceError>(())
//! ```

use std::hash::{Hash, Hasher};
use std::ops::{Deref, Range};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::TraceError;
use crate::image::MAX_PIXELS;

/// A box: its upper left corner and its size, in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bounds {
    /// Left side.
    pub x: f32,
    /// Upper side.
    pub y: f32,
    /// Width.
    pub width: f32,
    /// Height.
    pub height: f32,
}

/// A part of an image. Its numbers are finite, and its sides not negative; it may reach beyond the image, as predicted boxes do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "StoredRegion")]
pub struct Region {
    label: String,
    #[serde(rename = "box")]
    bounds: Bounds,
    #[serde(skip_serializing_if = "Option::is_none")]
    score: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mask: Option<Mask>,
}

#[derive(Deserialize)]
struct StoredRegion {
    label: String,
    #[serde(rename = "box")]
    bounds: Bounds,
    score: Option<f32>,
    mask: Option<Mask>,
}

impl TryFrom<StoredRegion> for Region {
    type Error = TraceError;

    fn try_from(stored: StoredRegion) -> Result<Self, TraceError> {
        let region = Self::new(stored.label, stored.bounds)?;
        let region = match stored.score {
            Some(score) => region.scored(score)?,
            None => region,
        };
        Ok(Self {
            mask: stored.mask,
            ..region
        })
    }
}

// Its numbers are finite, so that each equals itself.
impl Eq for Region {}

impl Hash for Region {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Bounds {
            x,
            y,
            width,
            height,
        } = self.bounds;
        self.label.hash(state);
        for value in [x, y, width, height] {
            value.to_bits().hash(state);
        }
        self.score.map(f32::to_bits).hash(state);
        self.mask.hash(state);
    }
}

impl Region {
    /// A box with a name, such as the class of what is in it.
    ///
    /// # Errors
    /// [`TraceError::Region`] for a number that is NaN or infinite, or a negative width or height.
    pub fn new(label: impl Into<String>, bounds: Bounds) -> Result<Self, TraceError> {
        let label = label.into();
        let Bounds {
            x,
            y,
            width,
            height,
        } = bounds;
        let numbers = [("x", x), ("y", y), ("width", width), ("height", height)];
        for (field, value) in numbers {
            if !value.is_finite() || (value < 0.0 && matches!(field, "width" | "height")) {
                return Err(TraceError::Region {
                    label,
                    field,
                    value,
                });
            }
        }
        // The sum turns -0 into 0, so that equal boxes have equal bits.
        let bounds = Bounds {
            x: x + 0.0,
            y: y + 0.0,
            width: width + 0.0,
            height: height + 0.0,
        };
        Ok(Self {
            label,
            bounds,
            score: None,
            mask: None,
        })
    }

    /// The same region with the model's score for it.
    ///
    /// # Errors
    /// [`TraceError::Region`] for a score that is NaN or infinite.
    pub fn scored(self, score: f32) -> Result<Self, TraceError> {
        if !score.is_finite() {
            return Err(TraceError::Region {
                label: self.label,
                field: "score",
                value: score,
            });
        }
        Ok(Self {
            score: Some(score + 0.0),
            ..self
        })
    }

    /// The same region with the pixels that belong to it.
    pub fn masked(self, mask: Mask) -> Self {
        Self {
            mask: Some(mask),
            ..self
        }
    }

    /// Its name. It may hold anything, as [`Token::text`](crate::Token::text).
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Its box.
    pub fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// The model's score for it.
    pub fn score(&self) -> Option<f32> {
        self.score
    }

    /// The pixels that belong to it.
    pub fn mask(&self) -> Option<&Mask> {
        self.mask.as_ref()
    }
}

/// A bit for each pixel of an image, as lengths of runs (see the head of this module).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "StoredMask")]
pub struct Mask {
    height: usize,
    width: usize,
    runs: Vec<u32>,
}

#[derive(Deserialize)]
struct StoredMask {
    height: usize,
    width: usize,
    runs: Vec<u32>,
}

impl TryFrom<StoredMask> for Mask {
    type Error = TraceError;

    fn try_from(stored: StoredMask) -> Result<Self, TraceError> {
        Self::new(stored.height, stored.width, stored.runs)
    }
}

impl Mask {
    /// A mask of runs; the first is of pixels that are not set, and may be 0.
    ///
    /// # Errors
    /// [`TraceError::Mask`] unless the runs fill the size exactly, or for a size or a side of more than
    /// [`MAX_PIXELS`].
    pub fn new(height: usize, width: usize, runs: Vec<u32>) -> Result<Self, TraceError> {
        let found: u64 = runs.iter().map(|&run| u64::from(run)).sum();
        let size = height.checked_mul(width);
        // Beside a side of 0 the other could be any number.
        let size = size.filter(|&n| n.max(height).max(width) <= MAX_PIXELS);
        if size.map(|n| n as u64) != Some(found) {
            return Err(TraceError::Mask {
                height,
                width,
                found,
            });
        }
        Ok(Self {
            height,
            width,
            runs,
        })
    }

    /// Rows of its image.
    pub fn height(&self) -> usize {
        self.height
    }

    /// Columns of its image.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Lengths of runs, see the head of this module.
    pub fn runs(&self) -> &[u32] {
        &self.runs
    }

    /// The rows that are set in each column from left to right, as ranges from top to bottom that do not touch.
    pub fn columns(&self) -> impl Iterator<Item = Vec<Range<usize>>> {
        let mut runs = self.runs.iter().zip([false, true].into_iter().cycle());
        // What is left of the present run.
        let (mut left, mut set) = (0, false);
        (0..self.width).map(move |_| {
            let mut ranges: Vec<Range<usize>> = Vec::new();
            let mut row = 0;
            while row < self.height {
                if left == 0 {
                    match runs.next() {
                        Some((&run, is_set)) => (left, set) = (run as usize, is_set),
                        None => break,
                    }
                }
                let length = left.min(self.height - row);
                match ranges.last_mut() {
                    // A run of 0 pixels does not part its neighbours.
                    Some(last) if set && last.end == row => last.end += length,
                    _ if set && length > 0 => ranges.push(row..row + length),
                    _ => {}
                }
                row += length;
                left -= length;
            }
            ranges
        })
    }
}

/// Regions in order. Cloning shares the storage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "Vec<Region>", into = "Vec<Region>")]
pub struct Regions(Arc<[Region]>);

impl Deref for Regions {
    type Target = [Region];

    fn deref(&self) -> &[Region] {
        &self.0
    }
}

impl From<Vec<Region>> for Regions {
    fn from(regions: Vec<Region>) -> Self {
        Self(regions.into())
    }
}

impl From<Regions> for Vec<Region> {
    fn from(regions: Regions) -> Self {
        regions.to_vec()
    }
}

impl FromIterator<Region> for Regions {
    fn from_iter<I: IntoIterator<Item = Region>>(regions: I) -> Self {
        Self(regions.into_iter().collect())
    }
}
