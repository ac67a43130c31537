//! Where objects are: boxes, masks of pixels, and the forms in which COCO stores masks.
//!
//! ```text
//! Bounds   x, y, width, height in pixels; (0, 0) is the upper left corner of the image
//! runs     lengths of runs of 0, 1, 0, 1, ... in columns from left to right, each from top to bottom
//! polygon  x1, y1, x2, y2, ... of its corners; several polygons are joined
//! ```
//!
//! Polygons become pixels by the rule of pycocotools, whose results they equal: the outline is followed in fifths of a pixel, and
//! in each column the pixels between two crossings at its middle are inside.
//!
//! ```
//! use regard_images::Region;
//!
//! let square = Region::Polygons(vec![vec![1.0, 1.0, 3.0, 1.0, 3.0, 3.0, 1.0, 3.0]]);
//! let mask = square.mask(4, 5)?;
//! assert_eq!(mask.area(), 4);
//! assert_eq!(mask.runs(), [5, 2, 2, 2, 9]);
//! let bounds = mask.bounds().expect("it has pixels");
//! assert_eq!((bounds.x, bounds.y, bounds.width, bounds.height), (1.0, 1.0, 2.0, 2.0));
//! # Ok::<(), regard_images::ImagesError>(())
//! ```

use crate::ImagesError;
use crate::image::{MAX_PIXELS, check_pixels};

/// The longest outline of a region, in pixels: it is followed step by step, and a few corners can state any length.
const MAX_OUTLINE: f64 = 16_777_216.0;

/// A box: its upper left corner and its size, in pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
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

impl Bounds {
    /// Centre and size as shares of an image's width and height: `[x, y, width, height]`, as DETR predicts them.
    pub fn relative(&self, height: usize, width: usize) -> [f32; 4] {
        let (h, w) = (height as f32, width as f32);
        [
            (self.x + self.width / 2.0) / w,
            (self.y + self.height / 2.0) / h,
            self.width / w,
            self.height / h,
        ]
    }

    /// Whether the centre of the pixel in `row` and `column` lies inside.
    pub fn covers(&self, row: usize, column: usize) -> bool {
        let (y, x) = (row as f32 + 0.5, column as f32 + 0.5);
        (self.x..self.x + self.width).contains(&x) && (self.y..self.y + self.height).contains(&y)
    }
}

/// A bit for each pixel, `[height, width]`.
#[derive(Clone, PartialEq, Eq)]
pub struct Mask {
    height: usize,
    width: usize,
    bits: Vec<u64>,
}

impl std::fmt::Debug for Mask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Mask [{}, {}], {} pixels set",
            self.height,
            self.width,
            self.area()
        )
    }
}

impl Mask {
    /// A mask without any pixel.
    ///
    /// # Errors
    /// [`ImagesError::TooManyPixels`] above [`MAX_PIXELS`].
    pub fn new(height: usize, width: usize) -> Result<Self, ImagesError> {
        check_pixels("a mask", width as u64, height as u64, MAX_PIXELS)?;
        Ok(Self {
            height,
            width,
            bits: vec![0; (height * width).div_ceil(64)],
        })
    }

    /// A mask of runs, see the head of this module.
    ///
    /// # Errors
    /// [`ImagesError::Option`] unless they fill the size exactly; [`ImagesError::TooManyPixels`].
    pub fn from_runs(height: usize, width: usize, runs: &[u32]) -> Result<Self, ImagesError> {
        let mut mask = Self::new(height, width)?;
        check_runs(height, width, runs).map_err(|(given, expected)| ImagesError::Option {
            option: "the sum of a mask's runs",
            given,
            expected,
        })?;
        let mut start = 0;
        for (i, &run) in runs.iter().enumerate() {
            if i % 2 == 1 {
                mask.set_columns(start..start + run as usize);
            }
            start += run as usize;
        }
        Ok(mask)
    }

    /// The runs of the mask; the first is of pixels that are not set, and may be 0.
    pub fn runs(&self) -> Vec<u32> {
        let mut runs = vec![];
        let (mut value, mut run) = (false, 0);
        for place in 0..self.height * self.width {
            if self.get(place % self.height, place / self.height) != value {
                runs.push(run);
                (value, run) = (!value, 0);
            }
            run += 1;
        }
        runs.push(run);
        runs
    }

    /// Rows.
    pub fn height(&self) -> usize {
        self.height
    }

    /// Columns.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Whether a pixel is set; pixels outside are not.
    pub fn get(&self, y: usize, x: usize) -> bool {
        if y >= self.height || x >= self.width {
            return false;
        }
        let place = y * self.width + x;
        self.bits[place / 64] >> (place % 64) & 1 == 1
    }

    /// Sets a pixel; nothing happens outside.
    pub fn set(&mut self, y: usize, x: usize) {
        if y < self.height && x < self.width {
            let place = y * self.width + x;
            self.bits[place / 64] |= 1 << (place % 64);
        }
    }

    /// Every pixel, row by row.
    pub fn iter(&self) -> impl Iterator<Item = bool> {
        (0..self.height * self.width).map(|place| self.bits[place / 64] >> (place % 64) & 1 == 1)
    }

    /// The number of pixels that are set.
    pub fn area(&self) -> usize {
        self.bits
            .iter()
            .map(|bits| bits.count_ones() as usize)
            .sum()
    }

    /// The smallest box with all pixels that are set; `None` if none is.
    pub fn bounds(&self) -> Option<Bounds> {
        let (mut top, mut left, mut bottom, mut right) = (usize::MAX, usize::MAX, 0, 0);
        for (place, _) in self.iter().enumerate().filter(|&(_, set)| set) {
            let (y, x) = (place / self.width, place % self.width);
            (top, bottom) = (top.min(y), bottom.max(y + 1));
            (left, right) = (left.min(x), right.max(x + 1));
        }
        (bottom > 0).then(|| Bounds {
            x: left as f32,
            y: top as f32,
            width: (right - left) as f32,
            height: (bottom - top) as f32,
        })
    }

    /// The mask in another size: each pixel is the one below its middle.
    ///
    /// # Errors
    /// [`ImagesError::TooManyPixels`] above [`MAX_PIXELS`].
    pub fn resized(&self, height: usize, width: usize) -> Result<Self, ImagesError> {
        let below = |place: usize, new: usize, old: usize| (2 * place + 1) * old / (2 * new);
        let at = |y, x| (below(y, height, self.height), below(x, width, self.width));
        Ok(self.moved_to(Self::new(height, width)?, at))
    }

    /// The mask mirrored: left becomes right.
    pub fn flipped(&self) -> Self {
        let empty = Self {
            bits: vec![0; self.bits.len()],
            ..*self
        };
        self.moved_to(empty, |y, x| (y, self.width - 1 - x))
    }

    /// `empty` with the pixels of this mask; `at` gives the row and column here of a row and column there.
    fn moved_to(&self, mut empty: Self, at: impl Fn(usize, usize) -> (usize, usize)) -> Self {
        for y in 0..empty.height {
            for x in 0..empty.width {
                let (row, column) = at(y, x);
                if self.get(row, column) {
                    empty.set(y, x);
                }
            }
        }
        empty
    }

    /// Sets pixels by their number in columns.
    fn set_columns(&mut self, places: std::ops::Range<usize>) {
        for place in places {
            self.set(place % self.height, place / self.height);
        }
    }
}

/// A mask as COCO stores it: small, and made into pixels when it is needed.
#[derive(Clone, Debug, PartialEq)]
pub enum Region {
    /// Corners of polygons.
    Polygons(Vec<Vec<f64>>),
    /// Lengths of runs.
    Runs(Vec<u32>),
    /// Every pixel.
    Pixels(Mask),
}

impl Region {
    /// The pixels in an image of this size.
    ///
    /// # Errors
    /// [`ImagesError::Option`] for corners more than a pixel outside the image, polygons of less than three corners and outlines of
    /// more than 2^24 pixels, for runs that do not fill it, and for a mask of another size; [`ImagesError::TooManyPixels`].
    pub fn mask(&self, height: usize, width: usize) -> Result<Mask, ImagesError> {
        let mut mask = Mask::new(height, width)?;
        self.check(height, width)
            .map_err(|(given, expected)| ImagesError::Option {
                option: "a mask",
                given,
                expected,
            })?;
        match self {
            Self::Pixels(pixels) => return Ok(pixels.clone()),
            Self::Runs(runs) => return Mask::from_runs(height, width, runs),
            Self::Polygons(polygons) => {
                for polygon in polygons {
                    for inside in crossings(polygon, height, width).chunks_exact(2) {
                        mask.set_columns(inside[0]..inside[1]);
                    }
                }
            }
        }
        Ok(mask)
    }

    /// What is wrong for an image of this size: what is given and what is expected.
    pub(crate) fn check(&self, height: usize, width: usize) -> Result<(), (String, String)> {
        match self {
            Self::Polygons(polygons) => {
                for polygon in polygons {
                    check_corners(polygon, height, width)?;
                }
                let length: f64 = polygons.iter().map(|polygon| outline(polygon)).sum();
                match length <= MAX_OUTLINE {
                    true => Ok(()),
                    false => Err((
                        format!("an outline of {length:.0} pixels"),
                        format!("at most {MAX_OUTLINE} pixels around all of its polygons"),
                    )),
                }
            }
            Self::Runs(runs) => check_runs(height, width, runs),
            Self::Pixels(mask) if (mask.height, mask.width) != (height, width) => Err((
                format!("{} x {} pixels", mask.width, mask.height),
                format!("the size of the image, {width} x {height}"),
            )),
            Self::Pixels(_) => Ok(()),
        }
    }

    /// Runs from the text in which pycocotools packs them: six bits a character from `0` on, the lowest five bits of a number
    /// first, the sixth says that more follow; from the fourth number on the difference to the second before it.
    pub(crate) fn unpack(text: &str) -> Result<Self, String> {
        let mut runs: Vec<i64> = vec![];
        let (mut number, mut shift) = (0_i64, 0_u32);
        for (i, character) in text.bytes().enumerate() {
            let bits = character.checked_sub(48).filter(|&bits| bits < 64);
            let bits = i64::from(bits.ok_or(format!("character {i} is not one of packed runs"))?);
            if shift > 30 {
                return Err(format!("the number at character {i} is too long"));
            }
            number |= (bits & 31) << shift;
            shift += 5;
            if bits & 32 != 0 {
                continue;
            }
            if bits & 16 != 0 {
                number |= -1 << shift;
            }
            if runs.len() > 2 {
                number += runs[runs.len() - 2];
            }
            if !(0..=i64::from(u32::MAX)).contains(&number) {
                return Err(format!(
                    "the run that ends at character {i} has length {number}"
                ));
            }
            runs.push(number);
            (number, shift) = (0, 0);
        }
        if shift > 0 {
            return Err("the last number has no end".to_owned());
        }
        Ok(Self::Runs(runs.into_iter().map(|run| run as u32).collect()))
    }
}

fn check_corners(polygon: &[f64], height: usize, width: usize) -> Result<(), (String, String)> {
    if polygon.len() < 6 || polygon.len() % 2 == 1 {
        return Err((
            format!("a polygon of {} numbers", polygon.len()),
            "x and y of at least three corners".to_owned(),
        ));
    }
    let outside = |(i, number): &(usize, &f64)| {
        let side = if i % 2 == 0 { width } else { height };
        !(-1.0..=side as f64 + 1.0).contains(*number)
    };
    match polygon.iter().enumerate().find(outside) {
        None => Ok(()),
        Some((i, number)) => Err((
            format!(
                "a corner with {} = {number}",
                if i % 2 == 0 { "x" } else { "y" }
            ),
            format!("corners inside the image of {width} x {height} pixels"),
        )),
    }
}

/// The length of a polygon's outline: of each side along its longer axis.
fn outline(polygon: &[f64]) -> f64 {
    let corners = polygon.chunks_exact(2);
    let next = corners.clone().cycle().skip(1);
    corners
        .zip(next)
        .map(|(from, to)| (to[0] - from[0]).abs().max((to[1] - from[1]).abs()))
        .sum()
}

fn check_runs(height: usize, width: usize, runs: &[u32]) -> Result<(), (String, String)> {
    let sum: u64 = runs.iter().map(|&run| u64::from(run)).sum();
    if Some(sum) == (height as u64).checked_mul(width as u64) {
        return Ok(());
    }
    Err((
        format!("{sum} pixels in {} runs", runs.len()),
        format!("runs that fill the image of {width} x {height} pixels"),
    ))
}

/// Where a polygon begins and ends in columns, as numbers of pixels in columns, sorted, an even number of them. The steps are those
/// of `rleFrPoly` in pycocotools, rounding included. The corners have been checked to be near the image, and the outline's length.
fn crossings(polygon: &[f64], height: usize, width: usize) -> Vec<usize> {
    const SCALE: f64 = 5.0;
    let corners: Vec<[i64; 2]> = polygon
        .chunks_exact(2)
        .map(|corner| [0, 1].map(|axis| (SCALE * corner[axis] + 0.5) as i64))
        .collect();
    let mut crossings = vec![];
    let mut last: Option<[i64; 2]> = None;
    let mut follow = |[x, y]: [i64; 2]| {
        let Some([x0, y0]) = last.replace([x, y]) else {
            return;
        };
        let column = ((if x < x0 { x } else { x - 1 }) as f64 + 0.5) / SCALE - 0.5;
        if x == x0 || column.floor() != column || column < 0.0 || column > width as f64 - 1.0 {
            return;
        }
        let row = (y.min(y0) as f64 + 0.5) / SCALE - 0.5;
        crossings.push(column as usize * height + row.clamp(0.0, height as f64).ceil() as usize);
    };
    for (i, &from) in corners.iter().enumerate() {
        let to = corners[(i + 1) % corners.len()];
        let steps = [0, 1].map(|axis| (to[axis] - from[axis]).abs());
        // Followed along its longer axis, always in the rising direction, so that both directions give the same points.
        let long = usize::from(steps[0] < steps[1]);
        let (low, high) = if from[long] > to[long] {
            (to, from)
        } else {
            (from, to)
        };
        let slope = (high[1 - long] - low[1 - long]) as f64 / steps[long].max(1) as f64;
        let point = |t: i64| {
            let mut point = [low[long] + t; 2];
            point[1 - long] = (low[1 - long] as f64 + slope * t as f64 + 0.5) as i64;
            point
        };
        if from[long] > to[long] {
            (0..=steps[long]).rev().map(point).for_each(&mut follow);
        } else {
            (0..=steps[long]).map(point).for_each(&mut follow);
        }
    }
    // A closed outline crosses each column an even number of times.
    if crossings.len() % 2 == 1 {
        crossings.push(height * width);
    }
    crossings.sort_unstable();
    crossings
}
