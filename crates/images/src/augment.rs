//! Random changes of training images that keep what they show.
//!
//! | option | what | source |
//! |---|---|---|
//! | `operations`, `strength`, `choices` | so many operations an image, each drawn from the choices | RandAugment, Cubuk 2020 |
//! | `padding` | zeros on each side, then a part of the former size from a random place | He 2015 |
//! | `flip` | mirrored with this probability | |
//! | `cutout` | a square at a random place becomes grey | DeVries and Taylor 2017 |
//!
//! They are applied in this order, and all are off by default. What is drawn depends on the generator alone, so that an image is
//! the same on every machine and any thread.
//!
//! ```
//! use regard_images::{Augment, Image, Random};
//!
//! let image = Image::filled(32, 32, &[200, 100, 50])?;
//! let augment = Augment { padding: 4, flip: 0.5, operations: 2, strength: 0.3, ..Augment::default() };
//! let changed = augment.apply(&image, &mut Random::new(1, 0))?;
//! assert_eq!((changed.height(), changed.width()), (32, 32));
//! assert_eq!(changed, augment.apply(&image, &mut Random::new(1, 0))?);
//! assert_eq!(Augment::default().apply(&image, &mut Random::new(1, 0))?, image);
//! # Ok::<(), regard_images::ImagesError>(())
//! ```

use crate::image::luma;
use crate::{Image, ImagesError, Random};

/// What is changed at random; by default nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Augment {
    /// Zeros on each side before a part of the former size is taken, in pixels. Default 0.
    pub padding: usize,
    /// Probability that the image is mirrored, from 0 to 1. Default 0.
    pub flip: f64,
    /// Operations an image, RandAugment's `N`. Default 0.
    pub operations: usize,
    /// How strong operations are, from 0 to 1: RandAugment's `M / 30`. Default 0.3.
    pub strength: f64,
    /// The operations that are drawn from. Default all of [`Operation::ALL`].
    pub choices: Vec<Operation>,
    /// Side of the square that becomes grey (128), in pixels; its centre is anywhere in the image. Default 0: none.
    pub cutout: usize,
}

impl Default for Augment {
    fn default() -> Self {
        Self {
            padding: 0,
            flip: 0.0,
            operations: 0,
            strength: 0.3,
            choices: Operation::ALL.to_vec(),
            cutout: 0,
        }
    }
}

/// One change of an image. Strengths are for `s` from 0 to 1; signs are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// None.
    Identity,
    /// Every value times `1 ± 0.9 s`.
    Brightness,
    /// Distances from the mean grey of the image times `1 ± 0.9 s`.
    Contrast,
    /// Distances from each pixel's grey times `1 ± 0.9 s`.
    Saturation,
    /// Each channel is stretched to 0 to 255.
    AutoContrast,
    /// Each channel's histogram is made even.
    Equalize,
    /// Only the upper `8 - 4 s` bits are kept.
    Posterize,
    /// Values of at least `255 (1 - s)` become 255 less the value.
    Solarize,
    /// Turned by `± 30 s` degrees.
    Rotate,
    /// Rows moved by `± 0.3 s` of their distance from the middle.
    ShearX,
    /// Columns moved by `± 0.3 s` of their distance from the middle.
    ShearY,
    /// Moved by `± 0.3 s` of the width.
    TranslateX,
    /// Moved by `± 0.3 s` of the height.
    TranslateY,
}

impl Operation {
    /// All operations.
    pub const ALL: [Self; 13] = [
        Self::Identity,
        Self::Brightness,
        Self::Contrast,
        Self::Saturation,
        Self::AutoContrast,
        Self::Equalize,
        Self::Posterize,
        Self::Solarize,
        Self::Rotate,
        Self::ShearX,
        Self::ShearY,
        Self::TranslateX,
        Self::TranslateY,
    ];

    /// Its name in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Identity => "identity",
            Self::Brightness => "brightness",
            Self::Contrast => "contrast",
            Self::Saturation => "saturation",
            Self::AutoContrast => "auto-contrast",
            Self::Equalize => "equalize",
            Self::Posterize => "posterize",
            Self::Solarize => "solarize",
            Self::Rotate => "rotate",
            Self::ShearX => "shear-x",
            Self::ShearY => "shear-y",
            Self::TranslateX => "translate-x",
            Self::TranslateY => "translate-y",
        }
    }

    /// The operation of this name.
    ///
    /// # Errors
    /// [`ImagesError::Option`], which lists the names.
    pub fn named(name: &str) -> Result<Self, ImagesError> {
        let found = Self::ALL
            .into_iter()
            .find(|operation| operation.name() == name);
        found.ok_or_else(|| ImagesError::Option {
            option: "an operation of augmentation",
            given: format!("{name:?}"),
            expected: format!("one of {}", Self::ALL.map(Self::name).join(", ")),
        })
    }

    /// The image after this operation with a strength from 0 to 1 (others are taken as the nearer of the two).
    pub fn apply(self, image: &Image, strength: f64, random: &mut Random) -> Image {
        let strength = if strength.is_nan() {
            0.0
        } else {
            strength.clamp(0.0, 1.0)
        };
        let mut signed = |largest: f64| {
            let size = largest * strength;
            if random.chance(0.5) { size } else { -size }
        };
        let (height, width) = (image.height() as f64, image.width() as f64);
        match self {
            Self::Identity => image.clone(),
            Self::Brightness => by_value(image, scaled(0.0, 1.0 + signed(0.9))),
            Self::Contrast => by_value(image, scaled(mean_grey(image), 1.0 + signed(0.9))),
            Self::Saturation => saturated(image, 1.0 + signed(0.9)),
            Self::AutoContrast => by_channel(image, stretched),
            Self::Equalize => by_channel(image, evened),
            Self::Posterize => {
                let dropped = (4.0 * strength).round() as u32;
                by_value(image, |value| value >> dropped << dropped)
            }
            Self::Solarize => {
                let threshold = 255.0 * (1.0 - strength);
                by_value(image, |value| {
                    if f64::from(value) >= threshold {
                        255 - value
                    } else {
                        value
                    }
                })
            }
            Self::Rotate => {
                let angle = signed(30.0_f64.to_radians());
                let (sine, cosine) = (libm::sin(angle), libm::cos(angle));
                moved(image, [[cosine, -sine, 0.0], [sine, cosine, 0.0]])
            }
            Self::ShearX => moved(image, [[1.0, signed(0.3), 0.0], [0.0, 1.0, 0.0]]),
            Self::ShearY => moved(image, [[1.0, 0.0, 0.0], [signed(0.3), 1.0, 0.0]]),
            Self::TranslateX => moved(image, [[1.0, 0.0, signed(0.3 * width)], [0.0, 1.0, 0.0]]),
            Self::TranslateY => moved(image, [[1.0, 0.0, 0.0], [0.0, 1.0, signed(0.3 * height)]]),
        }
    }
}

impl Augment {
    /// Checks the ranges.
    ///
    /// # Errors
    /// [`ImagesError::Option`].
    pub fn check(&self) -> Result<(), ImagesError> {
        for (option, value) in [("flip", self.flip), ("strength", self.strength)] {
            if !(0.0..=1.0).contains(&value) {
                return Err(ImagesError::Option {
                    option,
                    given: value.to_string(),
                    expected: "a number from 0 to 1".to_owned(),
                });
            }
        }
        if self.operations > 0 && self.choices.is_empty() {
            return Err(ImagesError::Option {
                option: "choices",
                given: "empty".to_owned(),
                expected: "at least one operation, or operations = 0".to_owned(),
            });
        }
        Ok(())
    }

    /// A changed image of the same size.
    ///
    /// # Errors
    /// Those of [`Augment::check`] and of [`Image::random_crop`].
    pub fn apply(&self, image: &Image, random: &mut Random) -> Result<Image, ImagesError> {
        self.check()?;
        let mut changed = image.clone();
        for _ in 0..self.operations {
            let operation = self.choices[random.below(self.choices.len())];
            changed = operation.apply(&changed, self.strength, random);
        }
        let (height, width) = (image.height(), image.width());
        if self.padding > 0 {
            changed = changed.random_crop(height, width, self.padding, random)?;
        }
        if self.flip > 0.0 && random.chance(self.flip) {
            changed = changed.flipped();
        }
        if self.cutout > 0 {
            let mut interval = |length: usize| {
                let start = random.below(length) as isize - (self.cutout / 2) as isize;
                let end = start.saturating_add_unsigned(self.cutout);
                start.max(0) as usize..end.clamp(0, length as isize) as usize
            };
            let (rows, columns) = (interval(height), interval(width));
            let channels = changed.channels();
            for y in rows {
                let start = y * width * channels;
                changed.pixels_mut()
                    [start + columns.start * channels..start + columns.end * channels]
                    .fill(128);
            }
        }
        Ok(changed)
    }
}

/// `middle + (value - middle) * factor`.
fn scaled(middle: f64, factor: f64) -> impl Fn(u8) -> u8 {
    move |value| byte(middle + (f64::from(value) - middle) * factor)
}

fn byte(value: f64) -> u8 {
    (value + 0.5).clamp(0.0, 255.0) as u8
}

fn mean_grey(image: &Image) -> f64 {
    let sum: u64 = match image.channels() {
        3 => image
            .pixels()
            .chunks_exact(3)
            .map(|pixel| u64::from(luma(pixel)))
            .sum(),
        _ => image.pixels().iter().map(|&value| u64::from(value)).sum(),
    };
    sum as f64 / (image.height() * image.width()) as f64
}

fn like(image: &Image, pixels: Vec<u8>) -> Image {
    Image::of(image.height(), image.width(), image.channels(), pixels)
}

fn by_value(image: &Image, change: impl Fn(u8) -> u8) -> Image {
    let table: [u8; 256] = std::array::from_fn(|value| change(value as u8));
    like(
        image,
        image
            .pixels()
            .iter()
            .map(|&value| table[usize::from(value)])
            .collect(),
    )
}

/// Changes each channel by a table that is made of its histogram.
fn by_channel(image: &Image, table: impl Fn(&[usize; 256]) -> [u8; 256]) -> Image {
    let channels = image.channels();
    let mut pixels = image.pixels().to_vec();
    for channel in 0..channels {
        let mut histogram = [0; 256];
        for &value in pixels[channel..].iter().step_by(channels) {
            histogram[usize::from(value)] += 1;
        }
        let table = table(&histogram);
        for value in pixels[channel..].iter_mut().step_by(channels) {
            *value = table[usize::from(*value)];
        }
    }
    like(image, pixels)
}

fn stretched(histogram: &[usize; 256]) -> [u8; 256] {
    let low = histogram.iter().position(|&count| count > 0).unwrap_or(0);
    let high = histogram
        .iter()
        .rposition(|&count| count > 0)
        .unwrap_or(255);
    std::array::from_fn(|value| {
        if high <= low {
            return value as u8;
        }
        ((value.clamp(low, high) - low) * 255 / (high - low)) as u8
    })
}

fn evened(histogram: &[usize; 256]) -> [u8; 256] {
    // As Pillow: the last value that occurs takes no part of the range.
    let last = histogram.iter().rposition(|&count| count > 0).unwrap_or(0);
    let step = histogram[..last].iter().sum::<usize>() / 255;
    let mut below = step / 2;
    std::array::from_fn(|value| {
        if step == 0 {
            return value as u8;
        }
        let level = (below / step).min(255);
        below += histogram[value];
        level as u8
    })
}

fn saturated(image: &Image, factor: f64) -> Image {
    if image.channels() == 1 {
        return image.clone();
    }
    let mut pixels = Vec::with_capacity(image.pixels().len());
    for pixel in image.pixels().chunks_exact(3) {
        let change = scaled(f64::from(luma(pixel)), factor);
        pixels.extend(pixel.iter().map(|&value| change(value)));
    }
    like(image, pixels)
}

/// Each pixel from the place that the matrix gives for its own, both relative to the middle; between pixels bilinear, outside 0.
fn moved(image: &Image, matrix: [[f64; 3]; 2]) -> Image {
    let (height, width, channels) = (image.height(), image.width(), image.channels());
    let middle = [(width as f64 - 1.0) / 2.0, (height as f64 - 1.0) / 2.0];
    let value = |y: f64, x: f64, channel: usize| {
        let inside = y >= 0.0 && x >= 0.0 && y < height as f64 && x < width as f64;
        if !inside {
            return 0.0;
        }
        f64::from(image.pixels()[(y as usize * width + x as usize) * channels + channel])
    };
    let mut pixels = Vec::with_capacity(image.pixels().len());
    for row in 0..height {
        for column in 0..width {
            let at = [column as f64 - middle[0], row as f64 - middle[1]];
            let [x, y] = [0, 1].map(|axis| {
                let [across, down, shift] = matrix[axis];
                across * at[0] + down * at[1] + shift + middle[axis]
            });
            let (left, top) = (x.floor(), y.floor());
            let (right, below) = (x - left, y - top);
            pixels.extend((0..channels).map(|channel| {
                let upper = value(top, left, channel) * (1.0 - right)
                    + value(top, left + 1.0, channel) * right;
                let lower = value(top + 1.0, left, channel) * (1.0 - right)
                    + value(top + 1.0, left + 1.0, channel) * right;
                byte(upper * (1.0 - below) + lower * below)
            }));
        }
    }
    like(image, pixels)
}
