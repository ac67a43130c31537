//! Size and place of images, and the numbers that a network reads.
//!
//! ```text
//! resize      out[i] = Σ_j w_ij in[j] / Σ_j w_ij,   w_ij = f((j + 1/2 - (i + 1/2) s) / max(s, 1)),   s = in / out
//!             along each axis, so that every pixel is read when an image is made smaller (antialiased)
//! bilinear    f(x) = max(0, 1 - |x|)
//! bicubic     f(x) = 1.5 |x|³ - 2.5 x² + 1 up to 1, -0.5 |x|³ + 2.5 x² - 4 |x| + 2 up to 2, else 0
//! normalise   out[c, y, x] = (in[y, x, c] / 255 - mean[c]) / deviation[c]
//! ```
//!
//! [`Image::resize`] gives Pillow's pixels.
//!
//! ```
//! use regard_images::{Image, Normalize};
//!
//! let image = Image::new(2, 4, 1, vec![0, 100, 200, 100, 0, 100, 200, 100])?;
//! let fitted = image.fitted(2, 2)?; // the largest square in the middle, no larger or smaller here
//! assert_eq!(fitted.pixels(), [100, 200, 100, 200]);
//! let values = Normalize::new(vec![0.5], vec![0.5])?.apply(&fitted)?;
//! assert!((values[1] - 0.5686).abs() < 1e-4);
//! # Ok::<(), regard_images::ImagesError>(())
//! ```

use std::ops::Range;

use crate::image::{MAX_PIXELS, check_pixels};
use crate::{Image, ImagesError, Random};

/// The longest side of a resized image.
const MAX_SIDE: usize = 1 << 16;

/// Bits after the point of a weight of [`Image::resize`], as in Pillow: 32 less those of a pixel and of a sum's overshoot.
const WEIGHT_BITS: u32 = 22;

/// How the pixels between pixels are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Filter {
    /// From the two nearest.
    #[default]
    Bilinear,
    /// From the four nearest (Keys 1981, a = -1/2).
    Bicubic,
}

impl Filter {
    /// How far it reaches, in pixels of the larger of both images.
    fn support(self) -> f64 {
        match self {
            Self::Bilinear => 1.0,
            Self::Bicubic => 2.0,
        }
    }

    fn weight(self, distance: f64) -> f64 {
        const A: f64 = -0.5;
        let x = distance.abs();
        match self {
            Self::Bilinear => (1.0 - x).max(0.0),
            // In the order of Pillow's operations, for the same bits.
            Self::Bicubic if x < 1.0 => ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0,
            Self::Bicubic if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * A,
            Self::Bicubic => 0.0,
        }
    }
}

impl Image {
    /// The image in another size, bilinear: see [`Image::resized`].
    ///
    /// # Errors
    /// The same.
    pub fn resize(&self, height: usize, width: usize) -> Result<Self, ImagesError> {
        self.resized(height, width, Filter::Bilinear)
    }

    /// The image in another size, antialiased: the pixels of `Image.resize(size, filter)` of Pillow up to version 12, to the last bit.
    /// Version 13 resizes some images down before across, and as values are rounded in between, its pixels then
    /// differ by rounding.
    ///
    /// # Errors
    /// [`ImagesError::TooManyPixels`] above [`MAX_PIXELS`], [`ImagesError::Option`] for a side of 0 or above 65,536.
    pub fn resized(
        &self,
        height: usize,
        width: usize,
        filter: Filter,
    ) -> Result<Self, ImagesError> {
        self.resized_part([height, width], [0..height, 0..width], filter)
    }

    /// These rows and columns, at least one of each, of the image in another size; no others are computed.
    fn resized_part(
        &self,
        [height, width]: [usize; 2],
        [rows, columns]: [Range<usize>; 2],
        filter: Filter,
    ) -> Result<Self, ImagesError> {
        check_size("the size of a resized image", rows.len(), columns.len())?;
        let longest = rows.len().max(columns.len());
        if longest > MAX_SIDE {
            return Err(ImagesError::Option {
                option: "the side of a resized image",
                given: longest.to_string(),
                expected: format!("at most {MAX_SIDE} pixels"),
            });
        }
        let down =
            (height != self.height()).then(|| windows(self.height(), height, rows.clone(), filter));
        let read = down.as_deref().map_or(rows, read_by);
        check_pixels(
            "a resized image",
            columns.len() as u64,
            read.len() as u64,
            MAX_PIXELS,
        )?;
        let across = if width == self.width() {
            let (top, left) = (read.start as isize, columns.start as isize);
            self.crop(top, left, read.len(), columns.len())?
        } else {
            let windows = windows(self.width(), width, columns, filter);
            self.resized_across(read.clone(), &windows)
        };
        Ok(match down {
            Some(windows) => across.resized_down(read.start, &windows),
            None => across,
        })
    }

    fn resized_across(&self, rows: Range<usize>, windows: &[Window]) -> Self {
        let (channels, height) = (self.channels(), rows.len());
        let mut pixels = Vec::with_capacity(height * windows.len() * channels);
        for y in rows {
            let row = self.row(y);
            for Window { first, weights } in windows {
                for channel in 0..channels {
                    let values = row[first * channels + channel..].iter().step_by(channels);
                    let terms = values
                        .zip(weights)
                        .map(|(&value, &weight)| i32::from(value) * weight);
                    pixels.push(rounded(terms.sum()));
                }
            }
        }
        Self::of(height, windows.len(), channels, pixels)
    }

    /// Windows of rows, of which the first here is row `top` of the whole image.
    fn resized_down(&self, top: usize, windows: &[Window]) -> Self {
        let length = self.width() * self.channels();
        let mut pixels = Vec::with_capacity(windows.len() * length);
        let mut sums = vec![0; length];
        for Window { first, weights } in windows {
            sums.fill(0);
            for (y, &weight) in weights.iter().enumerate() {
                for (sum, &value) in sums.iter_mut().zip(self.row(first - top + y)) {
                    *sum += i32::from(value) * weight;
                }
            }
            pixels.extend(sums.iter().map(|&sum| rounded(sum)));
        }
        Self::of(windows.len(), self.width(), self.channels(), pixels)
    }

    /// The image with its shorter side of this length, its shape kept (the longer side rounded down, at least 1).
    ///
    /// # Errors
    /// Those of [`Image::resize`].
    pub fn resize_shorter(&self, side: usize, filter: Filter) -> Result<Self, ImagesError> {
        let [height, width] = self.size_with_shorter(side);
        self.resized(height, width, filter)
    }

    /// Height and width of the image with its shorter side of this length, as [`Image::resize_shorter`] gives it.
    pub fn size_with_shorter(&self, side: usize) -> [usize; 2] {
        let longer = |long: usize, short: usize| {
            let length = side as u128 * long as u128 / short as u128;
            usize::try_from(length).unwrap_or(usize::MAX).max(side)
        };
        if self.height() <= self.width() {
            [side, longer(self.width(), self.height())]
        } else {
            [longer(self.height(), self.width()), side]
        }
    }

    /// The middle, `part [height, width]`, of the image that is resized to `whole [height, width]`, with zeros around it where that is
    /// smaller, at the place where the image processors of transformers have it by torchvision: half of an odd difference is rounded
    /// down, above and to the left. Only what is left of the image is computed, so that no image is too narrow.
    ///
    /// # Errors
    /// Those of [`Image::resize`], by the size of the part.
    pub fn resized_middle(
        &self,
        whole: [usize; 2],
        part: [usize; 2],
        filter: Filter,
    ) -> Result<Self, ImagesError> {
        let [height, width] = part;
        check_size("the size of a crop", height, width)?;
        let kept = [0, 1].map(|axis| {
            let length = part[axis].min(whole[axis]);
            let start = (whole[axis] - length) / 2;
            start..start + length
        });
        let image = self.resized_part(whole, kept, filter)?;
        let [top, left] =
            [0, 1].map(|axis| -((part[axis].saturating_sub(whole[axis]) / 2) as isize));
        image.crop(top, left, height, width)
    }

    /// The image with its shorter side of the length `shorter`, or less if its longer side would be above `longer`; its shape is kept (the
    /// other side rounded down, at least 1). The sizes are those of DETR's image processor.
    ///
    /// # Errors
    /// Those of [`Image::resize`].
    pub fn resize_within(
        &self,
        shorter: usize,
        longer: usize,
        filter: Filter,
    ) -> Result<Self, ImagesError> {
        check_size("the sides of a resized image", shorter, longer)?;
        let sides = [self.height(), self.width()].map(|side| side as f64);
        let [low, high] = [sides[0].min(sides[1]), sides[0].max(sides[1])];
        let mut side = shorter as f64;
        let mut exact = side;
        if high / low * side > longer as f64 {
            exact = longer as f64 * low / high;
            side = exact.round_ties_even();
        }
        let size = match low == side {
            true => sides,
            false => sides.map(|of| {
                if of == low {
                    side
                } else {
                    (exact * of / low).floor()
                }
            }),
        };
        let [height, width] = size.map(|side| (side as usize).max(1));
        self.resized(height, width, filter)
    }

    /// The image in its shape, as large as it can be within this height and width (both sides rounded down, at least 1). The sizes are those
    /// of DETR's image processor for `max_height` and `max_width`.
    ///
    /// # Errors
    /// Those of [`Image::resize`].
    pub fn resize_inside(
        &self,
        height: usize,
        width: usize,
        filter: Filter,
    ) -> Result<Self, ImagesError> {
        check_size("the sides of a resized image", height, width)?;
        let sides = [self.height(), self.width()].map(|side| side as f64);
        let scale = (height as f64 / sides[0]).min(width as f64 / sides[1]);
        let [height, width] = sides.map(|side| ((side * scale) as usize).max(1));
        self.resized(height, width, filter)
    }

    /// The part of this size whose upper left pixel is at row `top` and column `left`; what lies outside the image is 0.
    ///
    /// # Errors
    /// [`ImagesError::TooManyPixels`] above [`MAX_PIXELS`], [`ImagesError::Option`] for a size of 0.
    pub fn crop(
        &self,
        top: isize,
        left: isize,
        height: usize,
        width: usize,
    ) -> Result<Self, ImagesError> {
        check_size("the size of a crop", height, width)?;
        let channels = self.channels();
        let mut pixels = vec![0; height * width * channels];
        // Columns of the crop that lie inside the image, and the first one's column there.
        let skipped = left.min(0).unsigned_abs().min(width);
        let from = left.max(0).unsigned_abs().min(self.width());
        let inside = (width - skipped).min(self.width() - from);
        for (y, row) in pixels.chunks_exact_mut(width * channels).enumerate() {
            let line = top
                .checked_add_unsigned(y)
                .and_then(|line| usize::try_from(line).ok());
            if let Some(line) = line.filter(|&line| line < self.height()) {
                row[skipped * channels..(skipped + inside) * channels]
                    .copy_from_slice(&self.row(line)[from * channels..(from + inside) * channels]);
            }
        }
        Ok(Self::of(height, width, channels, pixels))
    }

    /// The middle of the image, with zeros around it where it is smaller, at the place where torchvision has it: half of an odd
    /// difference is rounded to an even number.
    ///
    /// # Errors
    /// Those of [`Image::crop`].
    pub fn centre_crop(&self, height: usize, width: usize) -> Result<Self, ImagesError> {
        let start = |whole: usize, part: usize| match whole < part {
            true => -isize::try_from((part - whole) / 2).unwrap_or(isize::MAX),
            false => middle(whole, part).start as isize,
        };
        let (top, left) = (start(self.height(), height), start(self.width(), width));
        self.crop(top, left, height, width)
    }

    /// The largest part in the middle with this shape, in this size: the image is made as small (or as large) as it can be while
    /// it covers the size, then cropped. Only what is left of it is computed, so that no image is too narrow.
    ///
    /// # Errors
    /// Those of [`Image::resize`].
    pub fn fitted(&self, height: usize, width: usize) -> Result<Self, ImagesError> {
        check_size("the size of a fitted image", height, width)?;
        let [down, across] = [self.height() as u128, self.width() as u128];
        let [h, w] = [height as u128, width as u128];
        let length = |length: u128| usize::try_from(length).unwrap_or(usize::MAX);
        let covering = if h * across >= w * down {
            [height, length(across * h / down).max(width)]
        } else {
            [length(down * w / across).max(height), width]
        };
        let kept = [middle(covering[0], height), middle(covering[1], width)];
        self.resized_part(covering, kept, Filter::Bilinear)
    }

    /// A part of this size from a random place of the image with `padding` zeros on each side (He 2015).
    ///
    /// # Errors
    /// [`ImagesError::Option`] if the padded image is smaller than the part, and those of [`Image::crop`].
    pub fn random_crop(
        &self,
        height: usize,
        width: usize,
        padding: usize,
        random: &mut Random,
    ) -> Result<Self, ImagesError> {
        let mut place = |whole: usize, part: usize| {
            let room = padding
                .checked_mul(2)
                .and_then(|room| room.checked_add(whole));
            let room = room.and_then(|room| room.checked_sub(part)?.checked_add(1));
            let room = room.ok_or_else(|| ImagesError::Option {
                option: "the size of a random crop",
                given: format!("{width} x {height} of {self:?} with {padding} pixels around it"),
                expected: "a part that fits into the padded image".to_owned(),
            })?;
            Ok(random.below(room) as isize - padding as isize)
        };
        let (top, left) = (place(self.height(), height)?, place(self.width(), width)?);
        self.crop(top, left, height, width)
    }

    /// The image mirrored: left becomes right.
    pub fn flipped(&self) -> Self {
        let mut pixels = Vec::with_capacity(self.pixels().len());
        for y in 0..self.height() {
            for pixel in self.row(y).chunks_exact(self.channels()).rev() {
                pixels.extend_from_slice(pixel);
            }
        }
        Self::of(self.height(), self.width(), self.channels(), pixels)
    }
}

/// The `part` in the middle of a `whole` at least as long; half of an odd difference is rounded to an even number.
fn middle(whole: usize, part: usize) -> Range<usize> {
    let half = (whole - part) / 2;
    let start = half + (whole - part) % 2 * (half % 2);
    start..start + part
}

fn check_size(option: &'static str, height: usize, width: usize) -> Result<(), ImagesError> {
    if height == 0 || width == 0 {
        return Err(ImagesError::Option {
            option,
            given: format!("{width} x {height}"),
            expected: "at least one pixel each way".to_owned(),
        });
    }
    check_pixels(option, width as u64, height as u64, MAX_PIXELS)
}

/// The values that an output value reads, by Pillow's rules (`Resample.c`): which, and their weights in fixed point.
struct Window {
    first: usize,
    weights: Vec<i32>,
}

/// The windows of some of the `to` values that `from` values are resized to.
fn windows(from: usize, to: usize, some: Range<usize>, filter: Filter) -> Vec<Window> {
    let scale = from as f64 / to as f64;
    let pixel = scale.max(1.0);
    let support = filter.support() * pixel;
    let window = |i: usize| {
        let centre = (i as f64 + 0.5) * scale;
        let first = ((centre - support + 0.5).max(0.0) as usize).min(from - 1);
        let end = ((centre + support + 0.5) as usize).min(from);
        let weight = |j: usize| filter.weight((j as f64 - centre + 0.5) * (1.0 / pixel));
        let weights: Vec<f64> = (first..end).map(weight).collect();
        let sum: f64 = weights.iter().sum();
        let fixed = |weight: &f64| {
            let weight = if sum == 0.0 { *weight } else { weight / sum };
            (weight * f64::from(1 << WEIGHT_BITS) + 0.5_f64.copysign(weight)) as i32
        };
        Window {
            first,
            weights: weights.iter().map(fixed).collect(),
        }
    };
    some.map(window).collect()
}

/// The values that windows in their order read.
fn read_by(windows: &[Window]) -> Range<usize> {
    let first = windows.first().map_or(0, |window| window.first);
    let end = windows
        .last()
        .map_or(0, |window| window.first + window.weights.len());
    first..end
}

/// From fixed point to a pixel.
fn rounded(sum: i32) -> u8 {
    ((sum + (1 << (WEIGHT_BITS - 1))) >> WEIGHT_BITS).clamp(0, 255) as u8
}

/// Pixels to numbers: `(pixel / 255 - mean) / deviation`, by channel.
#[derive(Clone, Debug, PartialEq)]
pub struct Normalize {
    mean: Vec<f32>,
    deviation: Vec<f32>,
}

/// The sum and the sum of squares of the pixels of images, by channel.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sums {
    of_channels: Vec<[u64; 2]>,
    pixels: u64,
}

impl Sums {
    /// # Errors
    /// [`ImagesError::Option`] for an image with other channels than the ones before.
    pub(crate) fn add(&mut self, image: &Image) -> Result<(), ImagesError> {
        let mut own = vec![[0; 2]; image.channels()];
        for pixel in image.pixels().chunks_exact(own.len()) {
            for ([sum, squares], &value) in own.iter_mut().zip(pixel) {
                *sum += u64::from(value);
                *squares += u64::from(value).pow(2);
            }
        }
        let pixels = (image.height() * image.width()) as u64;
        self.join(&Self {
            of_channels: own,
            pixels,
        })
    }

    /// # Errors
    /// As [`add`](Self::add).
    pub(crate) fn join(&mut self, other: &Self) -> Result<(), ImagesError> {
        let channels = other.of_channels.len();
        if self.pixels == 0 {
            self.of_channels.resize(channels, [0; 2]);
        } else if channels != self.of_channels.len() {
            return Err(other_channels(channels, self.of_channels.len()));
        }
        self.pixels += other.pixels;
        for (sums, others) in self.of_channels.iter_mut().zip(&other.of_channels) {
            *sums = [sums[0] + others[0], sums[1] + others[1]];
        }
        Ok(())
    }

    /// # Errors
    /// [`ImagesError::Option`] if there was no image.
    pub(crate) fn normalize(&self) -> Result<Normalize, ImagesError> {
        let mean = |&[sum, _]: &[u64; 2]| sum as f64 / self.pixels as f64;
        let deviation = |both: &[u64; 2]| {
            let variance = both[1] as f64 / self.pixels as f64 - mean(both).powi(2);
            if variance <= 0.0 {
                255.0
            } else {
                variance.sqrt()
            }
        };
        let unit = |value: f64| (value / 255.0) as f32;
        let sums = self.of_channels.iter();
        Normalize::new(
            sums.clone().map(|both| unit(mean(both))).collect(),
            sums.map(|both| unit(deviation(both))).collect(),
        )
    }
}

impl Normalize {
    /// One mean and one deviation for each channel, of pixels from 0 to 1.
    ///
    /// # Errors
    /// [`ImagesError::Option`] unless there are 1 or 3 of each, all finite, the deviations above 0.
    pub fn new(mean: Vec<f32>, deviation: Vec<f32>) -> Result<Self, ImagesError> {
        let right = mean.len() == deviation.len()
            && matches!(mean.len(), 1 | 3)
            && mean.iter().all(|mean| mean.is_finite())
            && deviation
                .iter()
                .all(|&deviation| deviation > 0.0 && deviation.is_finite());
        if !right {
            return Err(ImagesError::Option {
                option: "mean and deviation",
                given: format!("{mean:?} and {deviation:?}"),
                expected: "one number for each of 1 or 3 channels, deviations above 0".to_owned(),
            });
        }
        Ok(Self { mean, deviation })
    }

    /// The means and deviations of ImageNet's colours, which most pretrained models take.
    pub fn imagenet() -> Self {
        Self {
            mean: vec![0.485, 0.456, 0.406],
            deviation: vec![0.229, 0.224, 0.225],
        }
    }

    /// From the mean and the deviation of all pixels of these images, by channel.
    ///
    /// # Errors
    /// [`ImagesError::Option`] if there is no image, or they differ in their channels. A channel without any deviation gets 1.
    pub fn of<'a>(images: impl IntoIterator<Item = &'a Image>) -> Result<Self, ImagesError> {
        let mut sums = Sums::default();
        for image in images {
            sums.add(image)?;
        }
        sums.normalize()
    }

    /// The mean of each channel, of pixels from 0 to 1.
    pub fn mean(&self) -> &[f32] {
        &self.mean
    }

    /// The deviation of each channel, of pixels from 0 to 1.
    pub fn deviation(&self) -> &[f32] {
        &self.deviation
    }

    /// The numbers of an image, `[channels, height, width]`.
    ///
    /// # Errors
    /// [`ImagesError::Option`] if the image has another number of channels.
    pub fn apply(&self, image: &Image) -> Result<Vec<f32>, ImagesError> {
        let mut values = Vec::with_capacity(image.pixels().len());
        self.append(image, &mut values)?;
        Ok(values)
    }

    /// As [`Normalize::apply`], behind the numbers that are there, so that a batch is filled image by image.
    ///
    /// # Errors
    /// As of [`Normalize::apply`]; nothing is appended then.
    pub fn append(&self, image: &Image, values: &mut Vec<f32>) -> Result<(), ImagesError> {
        if image.channels() != self.mean.len() {
            return Err(other_channels(image.channels(), self.mean.len()));
        }
        for (channel, (mean, deviation)) in self.mean.iter().zip(&self.deviation).enumerate() {
            let table: [f32; 256] =
                std::array::from_fn(|value| (value as f32 / 255.0 - mean) / deviation);
            let plane = image.pixels()[channel..].iter().step_by(image.channels());
            values.extend(plane.map(|&value| table[usize::from(value)]));
        }
        Ok(())
    }
}

fn other_channels(found: usize, expected: usize) -> ImagesError {
    ImagesError::Option {
        option: "the number of channels",
        given: found.to_string(),
        expected: format!("{expected}; Decoding::channels sets it"),
    }
}
