//! Images and maps as pixels of a given size.

use regard_trace::Image;

use super::{Grid, Overlay};
use crate::colour::{Ramp, Rgb};

/// How opaque colours of weights lie over an image: for a weight of 0, and for the largest.
const OPACITY: (f32, f32) = (0.42, 0.66);

/// The colour of a weight, a share of the largest, and how opaque it is.
pub(super) fn laid(ramp: Ramp, share: f32) -> (Rgb, f32) {
    let share = if share > 0.0 { share.min(1.0) } else { 0.0 };
    let opacity = OPACITY.0 + (OPACITY.1 - OPACITY.0) * share;
    (ramp.at(share), opacity)
}

/// What is left of the colours of an image below a map.
pub(crate) const SATURATION: f32 = 0.25;

/// A pixel of an image below a map, as SVG's `feColorMatrix` of the type `saturate` makes it.
pub(super) fn pale(Rgb(red, green, blue): Rgb) -> Rgb {
    let luma = 0.213 * f32::from(red) + 0.715 * f32::from(green) + 0.072 * f32::from(blue);
    let luma = luma.round() as u8;
    Rgb(red, green, blue).mix(Rgb(luma, luma, luma), 1.0 - SATURATION)
}

/// The image in `rows x columns` pixels, `[rows, columns]`: each the mean of the pixels that it covers, or the one that it lies in.
pub(crate) fn resized(image: &Image, rows: usize, columns: usize) -> Vec<Rgb> {
    let covered = |index: usize, count: usize, of: usize| {
        let start = index * of / count;
        start..((index + 1) * of / count).max(start + 1)
    };
    let mut pixels = Vec::with_capacity(rows * columns);
    for row in 0..rows {
        for column in 0..columns {
            let mut sums = [0u64; 3];
            let mut count = 0;
            for y in covered(row, rows, image.height()) {
                for x in covered(column, columns, image.width()) {
                    let colour = image.rgb(y, x).unwrap_or_default();
                    for (sum, value) in sums.iter_mut().zip(colour) {
                        *sum += u64::from(value);
                    }
                    count += 1;
                }
            }
            let [red, green, blue] = sums.map(|sum| ((sum + count / 2) / count.max(1)) as u8);
            pixels.push(Rgb(red, green, blue));
        }
    }
    pixels
}

impl Grid {
    /// The weight at a place, each coordinate from 0 to 1.
    pub(super) fn at(&self, y: f64, x: f64, overlay: Overlay) -> f32 {
        let value = |row: usize, column: usize| self.values[row * self.columns + column];
        let cell = |place: f64, count: usize| ((place * count as f64) as usize).min(count - 1);
        if overlay == Overlay::ByCell {
            return value(cell(y, self.rows), cell(x, self.columns));
        }
        // Centres of cells lie at (i + 1/2) / count.
        let between = |place: f64, count: usize| {
            let place = (place * count as f64 - 0.5).clamp(0.0, (count - 1) as f64);
            let low = place as usize;
            (low, (low + 1).min(count - 1), (place - low as f64) as f32)
        };
        let (top, bottom, down) = between(y, self.rows);
        let (left, right, across) = between(x, self.columns);
        let mix = |a: f32, b: f32, part: f32| a * (1.0 - part) + b * part;
        mix(
            mix(value(top, left), value(top, right), across),
            mix(value(bottom, left), value(bottom, right), across),
            down,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_enlarged_by_pixels_and_reduced_by_means() {
        let image = Image::new(1, 2, 1, vec![10, 21]).expect("valid");
        let large: Vec<u8> = resized(&image, 2, 4).iter().map(|c| c.0).collect();
        assert_eq!(large, [10, 10, 21, 21, 10, 10, 21, 21]);
        assert_eq!(resized(&image, 1, 1), [Rgb(16, 16, 16)]);
    }

    #[test]
    fn a_map_is_its_cells_at_their_centres_and_between_them_a_mixture() {
        let grid = Grid {
            rows: 1,
            columns: 2,
            values: vec![0.25, 0.75],
        };
        let smooth = |x| grid.at(0.9, x, Overlay::Bilinear);
        assert_eq!(
            [0.0, 0.25, 0.5, 0.75, 1.0].map(smooth),
            [0.25, 0.25, 0.5, 0.75, 0.75]
        );
        let by_cell = |x| grid.at(0.0, x, Overlay::ByCell);
        assert_eq!([0.0, 0.49, 0.5, 1.0].map(by_cell), [0.25, 0.25, 0.75, 0.75]);
    }
}
