//! Pooling of maps: the largest number, or the mean, of each window. Forward and backward.
//!
//! For maps `x [maps, height, width]`, windows of `kernel` numbers, `stride` apart, from `padding` outside of the map on; numbers
//! outside are left out of a window:
//! ```text
//! largest   y = max over the window of x        ẋ = ẏ at the first place of the largest number
//! mean      y = mean over the window of x       ẋ = ẏ / (numbers of the window) at each of them
//! ```
//! A window that holds a NaN gives NaN. The backward pass looks for the largest number again, so that nothing but `x` is kept.
//!
//! ```
//! use regard_kernels::pool::{Kind, Pool, Windows};
//! let windows = Windows { kind: Kind::Max, kernel: [2, 2], stride: [1, 1], padding: [0, 0], ceil: false };
//! let pool = Pool { windows, maps: 1, size: [2, 3] };
//! let mut y = [0.0; 2];
//! pool.forward(&[1.0, 5.0, 3.0, 4.0, 2.0, 6.0], &mut y)?;
//! assert_eq!(y, [5.0, 6.0]);
//! # Ok::<(), regard_kernels::KernelError>(())
//! ```

use std::ops::Range;

use crate::error::{KernelError, check_length, check_value, product};
use crate::threads::{RowsMut, for_each_chunk, rows};

#[cfg(test)]
mod tests;

/// What a window becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Its largest number.
    Max,
    /// The mean of its numbers inside the map.
    Mean,
}

/// Windows of a pooling. Pairs are height, then width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// What a window becomes.
    pub kind: Kind,
    /// Size of a window.
    pub kernel: [usize; 2],
    /// Steps from a window to the next.
    pub stride: [usize; 2],
    /// Places outside of the map at which the first window starts; at most half of the kernel.
    pub padding: [usize; 2],
    /// Whether there is a last window for what the others leave over. It starts inside the map.
    pub ceil: bool,
}

/// A pooling of maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pool {
    /// The windows of a map.
    pub windows: Windows,
    /// Maps: batch · channels.
    pub maps: usize,
    /// Height and width of a map.
    pub size: [usize; 2],
}

impl Pool {
    /// Height and width of an output map.
    ///
    /// # Errors
    /// A kernel or stride of 0, padding of more than half of the kernel, a window larger than the padded map (unless `ceil`).
    pub fn output_size(&self) -> Result<[usize; 2], KernelError> {
        let mut size = [0; 2];
        let Windows { ceil, .. } = self.windows;
        for (a, size) in size.iter_mut().enumerate() {
            let [kernel, stride, padding] = self.axis(a);
            check_value("kernel", "at least 1", kernel as f64, kernel > 0)?;
            check_value("stride", "at least 1", stride as f64, stride > 0)?;
            let expected = "at most half of the kernel";
            check_value("padding", expected, padding as f64, padding <= kernel / 2)?;
            check_value("size", "at least 1", self.size[a] as f64, self.size[a] > 0)?;
            let too_large = KernelError::TooLarge {
                argument: "pool",
                shape: "padding and window",
            };
            let padded = self.size[a].checked_add(2 * padding).ok_or(too_large)?;
            let expected = "a window no larger than the padded map";
            let fits = kernel <= padded || ceil;
            check_value("kernel", expected, kernel as f64, fits)?;
            let left = padded.saturating_sub(kernel);
            *size = 1 + match ceil {
                // The last window starts inside the map, or before it.
                true => left
                    .div_ceil(stride)
                    .min((self.size[a] + padding - 1) / stride),
                false => left / stride,
            };
        }
        let [height, width] = self.size;
        product("x", "[maps, height, width]", &[self.maps, height, width])?;
        Ok(size)
    }

    /// Kernel, stride and padding along axis `a`.
    fn axis(&self, a: usize) -> [usize; 3] {
        let windows = &self.windows;
        [windows.kernel[a], windows.stride[a], windows.padding[a]]
    }

    /// The places of window `t` along axis `a`.
    fn window(&self, a: usize, t: usize) -> Range<usize> {
        let [kernel, stride, padding] = self.axis(a);
        let start = t * stride;
        let end = start.saturating_add(kernel).saturating_sub(padding);
        start.saturating_sub(padding)..end.min(self.size[a])
    }

    fn check(
        &self,
        x: (&'static str, usize),
        y: (&'static str, usize),
    ) -> Result<[usize; 2], KernelError> {
        let output = self.output_size()?;
        let shape = "[maps, height, width]";
        check_length(x.0, shape, &[self.maps, self.size[0], self.size[1]], x.1)?;
        let shape = "[maps, output height, output width]";
        check_length(y.0, shape, &[self.maps, output[0], output[1]], y.1)?;
        Ok(output)
    }

    /// Nanoseconds of a pass on one thread, roughly.
    fn nanoseconds(&self, output: [usize; 2]) -> f64 {
        let of_axis = |a: usize| {
            let windows = output[a] as f64 * self.windows.kernel[a].min(self.size[a]) as f64;
            windows.max(self.size[a] as f64)
        };
        self.maps as f64 * of_axis(0) * of_axis(1)
    }

    /// Writes `y [maps, output height, output width]` for `x [maps, height, width]`.
    ///
    /// # Errors
    /// [`KernelError`] as [`Self::output_size`], or if a length does not fit the sizes.
    pub fn forward(&self, x: &[f32], y: &mut [f32]) -> Result<(), KernelError> {
        let output @ [_, out_width] = self.check(("x", x.len()), ("y", y.len()))?;
        if y.is_empty() {
            return Ok(()); // no maps, of a size that may be more than could be counted
        }
        let (of_y, of_x) = (output[0] * output[1], self.size[0] * self.size[1]);
        let nanoseconds = self.nanoseconds(output);
        for_each_chunk(
            rows(y, of_y),
            self.maps,
            1,
            nanoseconds,
            &|first, part: RowsMut<f32>| {
                let map = &x[first * of_x..][..of_x];
                for (t, line) in part.data.chunks_exact_mut(out_width).enumerate() {
                    let lines = self.window(0, t);
                    for (u, to) in line.iter_mut().enumerate() {
                        *to = self.pool(map, lines.clone(), self.window(1, u));
                    }
                }
            },
        );
        Ok(())
    }

    /// The result of one window.
    fn pool(&self, map: &[f32], lines: Range<usize>, columns: Range<usize>) -> f32 {
        match self.windows.kind {
            Kind::Max => map[self.largest(map, lines, columns)],
            Kind::Mean => {
                let count = (lines.len() * columns.len()) as f32;
                let of_line = |line: usize| &map[line * self.size[1]..][columns.clone()];
                let sums = lines.map(|line| of_line(line).iter().sum::<f32>());
                sums.sum::<f32>() / count
            }
        }
    }

    /// Where the largest number of a window is; the first NaN, if there is one.
    fn largest(&self, map: &[f32], lines: Range<usize>, columns: Range<usize>) -> usize {
        let mut best = lines.start * self.size[1] + columns.start;
        for line in lines {
            let start = line * self.size[1];
            for at in start + columns.start..start + columns.end {
                let larger = map[at] > map[best] || map[at].is_nan() && !map[best].is_nan();
                best = if larger { at } else { best };
            }
        }
        best
    }

    /// Writes the gradient `d_x [maps, height, width]` of a loss from its gradient `d_y [maps, output height, output width]`. `x` is
    /// read for the largest numbers only; of a mean it may be empty.
    ///
    /// # Errors
    /// [`KernelError`] as [`Self::output_size`], or if a length does not fit the sizes.
    pub fn backward(&self, x: &[f32], d_y: &[f32], d_x: &mut [f32]) -> Result<(), KernelError> {
        let output @ [_, out_width] = self.check(("d_x", d_x.len()), ("d_y", d_y.len()))?;
        if self.windows.kind == Kind::Max {
            self.check(("x", x.len()), ("d_y", d_y.len()))?;
        }
        if d_x.is_empty() {
            return Ok(());
        }
        let (of_y, of_x) = (output[0] * output[1], self.size[0] * self.size[1]);
        let nanoseconds = self.nanoseconds(output);
        for_each_chunk(
            rows(d_x, of_x),
            self.maps,
            1,
            nanoseconds,
            &|first, part: RowsMut<f32>| {
                let to = part.data;
                to.fill(0.0);
                let d_y = d_y[first * of_y..][..of_y].chunks_exact(out_width);
                for (t, line) in d_y.enumerate() {
                    let lines = self.window(0, t);
                    for (u, &d) in line.iter().enumerate() {
                        let columns = self.window(1, u);
                        match self.windows.kind {
                            Kind::Max => {
                                let map = &x[first * of_x..][..of_x];
                                to[self.largest(map, lines.clone(), columns)] += d;
                            }
                            Kind::Mean => {
                                let d = d / (lines.len() * columns.len()) as f32;
                                for line in lines.clone() {
                                    let line = &mut to[line * self.size[1]..][columns.clone()];
                                    line.iter_mut().for_each(|to| *to += d);
                                }
                            }
                        }
                    }
                }
            },
        );
        Ok(())
    }
}
