//! Maps at another height and width by bilinear interpolation. Forward and backward.
//!
//! For maps `x [maps, height, width]` and `y [maps, output height, output width]`, place `t` of an axis of `y` reads `x` at
//! ```text
//! s = t (size - 1) / (output - 1)              corners aligned: the first and the last place of x and y are the same
//! s = max((t + 1/2) size / output - 1/2, 0)    else: the borders of the map are the same
//! ```
//! between the places `⌊s⌋` and `⌊s⌋ + 1` (the last one, at most), whose shares are `1 - w` and `w = s - ⌊s⌋`; along both axes:
//! ```text
//! y[t, u] = Σ over the four places (a, b) of share[t, a] share[u, b] x[a, b]        ẋ[a, b] = Σ over t, u of share[t, a] share[u, b] ẏ[t, u]
//! ```
//! A place whose share is 0 has no influence, even where its number is infinite or NaN.
//!
//! ```
//! use regard_kernels::resize::Resize;
//! let resize = Resize { maps: 1, size: [1, 2], output: [1, 3], align_corners: true };
//! let mut y = [0.0; 3];
//! resize.forward(&[1.0, 5.0], &mut y)?;
//! assert_eq!(y, [1.0, 3.0, 5.0]);
//! # Ok::<(), regard_kernels::KernelError>(())
//! ```

use crate::error::{KernelError, check_length, check_value, product};
use crate::threads::{RowsMut, for_each_chunk, rows};

#[cfg(test)]
#[path = "resize_tests.rs"]
mod tests;

/// A change of the size of maps. Pairs are height, then width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resize {
    /// Maps: batch · channels.
    pub maps: usize,
    /// Height and width of a map of `x`.
    pub size: [usize; 2],
    /// Height and width of a map of `y`.
    pub output: [usize; 2],
    /// Whether the first and the last place of an axis stay where they are.
    pub align_corners: bool,
}

/// The two places of `x` that a place of `y` reads along one axis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Between {
    /// The first.
    pub low: usize,
    /// The second, which is the first at the end of the axis.
    pub high: usize,
    /// The share of the second.
    pub share: f64,
}

impl Between {
    /// The shares of both places.
    fn shares(&self) -> [f32; 2] {
        let share = self.share as f32;
        [1.0 - share, share]
    }
}

impl Resize {
    /// What each place of `y` reads along axis `a`: 0 the height, 1 the width. Sizes are at least 1.
    pub fn places(&self, a: usize) -> Vec<Between> {
        let (size, output) = (self.size[a], self.output[a]);
        let place = |t: usize| {
            let s = match self.align_corners {
                true => t as f64 * ((size - 1) as f64 / (output - 1).max(1) as f64),
                false => (t as f64 + 0.5) * (size as f64 / output as f64) - 0.5,
            };
            let low = (s.max(0.0) as usize).min(size - 1);
            Between {
                low,
                high: (low + 1).min(size - 1),
                share: (s - low as f64).max(0.0),
            }
        };
        (0..output).map(place).collect()
    }

    fn check(&self, x: (&'static str, usize), y: (&'static str, usize)) -> Result<(), KernelError> {
        for size in self.size.into_iter().chain(self.output) {
            check_value("size", "at least 1", size as f64, size > 0)?;
        }
        let [[height, width], [out_height, out_width]] = [self.size, self.output];
        product("x", "[maps, height, width]", &[self.maps, height, width])?;
        let shape = "[maps, output height, output width]";
        product("y", shape, &[self.maps, out_height, out_width])?;
        check_length(y.0, shape, &[self.maps, out_height, out_width], y.1)?;
        check_length(
            x.0,
            "[maps, height, width]",
            &[self.maps, height, width],
            x.1,
        )
    }

    /// Nanoseconds of a pass on one thread, roughly.
    fn nanoseconds(&self) -> f64 {
        let numbers = |[height, width]: [usize; 2]| height as f64 * width as f64;
        self.maps as f64 * (2.0 * numbers(self.output) + numbers(self.size))
    }

    /// Writes `y [maps, output height, output width]` for `x [maps, height, width]`.
    ///
    /// # Errors
    /// A size of 0, or a length that does not fit the sizes.
    pub fn forward(&self, x: &[f32], y: &mut [f32]) -> Result<(), KernelError> {
        self.check(("x", x.len()), ("y", y.len()))?;
        if y.is_empty() {
            return Ok(()); // no maps, of a size that may be more than could be counted
        }
        let [[height, width], [out_height, out_width]] = [self.size, self.output];
        let (of_x, of_y) = (height * width, out_height * out_width);
        let (lines, columns) = (self.places(0), self.places(1));
        let resize = |first: usize, part: RowsMut<f32>| {
            let map = &x[first * of_x..][..of_x];
            for (y, line) in part.data.chunks_exact_mut(out_width).zip(&lines) {
                let low = &map[line.low * width..][..width];
                let high = &map[line.high * width..][..width];
                let line_shares = line.shares();
                for (y, column) in y.iter_mut().zip(&columns) {
                    let part = |number: f32, across: f32, down: f32| match across * down == 0.0 {
                        true => -0.0, // changes no sum, whatever the number is
                        false => number * across * down,
                    };
                    let between = |line: &[f32], share: f32| {
                        let [first, second] = column.shares();
                        [
                            part(line[column.low], first, share),
                            part(line[column.high], second, share),
                        ]
                    };
                    let [first, second] = line_shares;
                    let [[a, b], [c, d]] = [between(low, first), between(high, second)];
                    *y = a + b + c + d;
                }
            }
        };
        for_each_chunk(rows(y, of_y), self.maps, 1, self.nanoseconds(), &resize);
        Ok(())
    }

    /// Writes the gradient `d_x [maps, height, width]` of a loss from its gradient `d_y [maps, output height, output width]`.
    ///
    /// # Errors
    /// A size of 0, or a length that does not fit the sizes.
    pub fn backward(&self, d_y: &[f32], d_x: &mut [f32]) -> Result<(), KernelError> {
        self.check(("d_x", d_x.len()), ("d_y", d_y.len()))?;
        if d_x.is_empty() {
            return Ok(());
        }
        let [[height, width], [out_height, out_width]] = [self.size, self.output];
        let (of_x, of_y) = (height * width, out_height * out_width);
        let (lines, columns) = (self.places(0), self.places(1));
        let resize = |first: usize, part: RowsMut<f32>| {
            part.data.fill(0.0);
            let d_y = d_y[first * of_y..][..of_y].chunks_exact(out_width);
            for (d_y, line) in d_y.zip(&lines) {
                for (&d, column) in d_y.iter().zip(&columns) {
                    for (line, down) in [line.low, line.high].into_iter().zip(line.shares()) {
                        let to = &mut part.data[line * width..][..width];
                        let places = [column.low, column.high].into_iter();
                        for (at, across) in places.zip(column.shares()) {
                            if across * down != 0.0 {
                                to[at] += d * across * down;
                            }
                        }
                    }
                }
            }
        };
        for_each_chunk(rows(d_x, of_x), self.maps, 1, self.nanoseconds(), &resize);
        Ok(())
    }
}
