//! Convolution of maps (LeCun et al. 1989), forward and backward, without a copy of every window.
//!
//! For `x [batch, inputs, height, width]`, weights `w [outputs, inputs / groups, kernel height, kernel width]`, in each group of
//! channels, with stride `s`, dilation `d` and padding `p` along each axis and zeros outside of the map:
//! ```text
//! y[n, o, t, u] = b[o] + Σ_{c, j, i} w[o, c, j, i] x[n, c, s t + d j - p, s u + d i - p]
//!
//! ẋ[n, c, a, b] = Σ over the o, j, i, t, u that read it of w[o, c, j, i] ẏ[n, o, t, u]
//! ẇ[o, c, j, i] = Σ_{n, t, u} ẏ[n, o, t, u] x[n, c, s t + d j - p, s u + d i - p]          ḃ[o] = Σ_{n, t, u} ẏ[n, o, t, u]
//! ```
//! ```text
//! x of an image, some rows      copied once with zeros around it:       product, weights spread, positions in the lanes:
//! [channels, height, width] --> tap (c, j, i) of all outputs is a  --> sums [outputs, positions] in the cache --> y
//!                               run of numbers at a fixed offset
//! ```
//! The sums are `y` itself where a task has all rows of the maps and these fill whole vectors. Under kernels of three rows without a
//! stride, rows are computed in pairs, with four products for each column of the kernel in place of six (`pairs.rs`).
//! The copy is as large as the rows that a task reads, not nine times that (`geometry.rs`); the micro-kernels are in `tile.rs`. The
//! gradient of `x` is a correlation of the same kind, one for each residue of the stride. That of `w` sums over positions, with
//! outputs in the lanes; images are summed in groups whose number follows from the sizes. So all results have the same bits on
//! any number of threads, and `y` and `ẋ` in any batch.
//!
//! ```
//! use regard_kernels::convolution::Convolution;
//!
//! // The mean of each window of 2 x 2 in a map of 2 x 3.
//! let convolution = Convolution { kernel: [2, 2], ..Convolution::new(1, [1, 1], [2, 3]) };
//! let mut y = [0.0; 2];
//! convolution.forward(&[1.0, 2.0, 3.0, 5.0, 6.0, 7.0], &[0.25; 4], None, &mut y)?;
//! assert_eq!(y, [3.5, 4.5]);
//! # Ok::<(), regard_kernels::KernelError>(())
//! ```

mod geometry;
mod input;
mod pairs;
mod tile;
mod weight;

use std::mem::MaybeUninit;

use crate::error::{KernelError, check_length, check_value, product};
use crate::simd::{Level, fresh, run};
use crate::sum::Sum;
use crate::threads::{RowsMut, for_each_chunk, rows};
use input::Correlation;

#[cfg(test)]
mod tests;

/// Sizes and options of a convolution. Pairs are height, then width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Convolution {
    /// Maps in the batch.
    pub batch: usize,
    /// Channels of the input.
    pub inputs: usize,
    /// Channels of the output.
    pub outputs: usize,
    /// Size of an input map.
    pub size: [usize; 2],
    /// Size of the window, at least 1.
    pub kernel: [usize; 2],
    /// Steps from a window to the next, at least 1.
    pub stride: [usize; 2],
    /// Zeros on each side.
    pub padding: [usize; 2],
    /// Steps from a tap of the window to the next, at least 1.
    pub dilation: [usize; 2],
    /// Groups of channels, which see only each other; they divide both numbers of channels.
    pub groups: usize,
}

const INPUT: &str = "[batch, inputs, height, width]";
const OUTPUT: &str = "[batch, outputs, output height, output width]";
const WEIGHT: &str = "[outputs, inputs / groups, kernel height, kernel width]";

/// The gradients of the parameters; every buffer is overwritten.
#[derive(Debug)]
pub struct Gradients<'a> {
    /// `[outputs, inputs / groups, kernel height, kernel width]`
    pub weight: &'a mut [f32],
    /// `[outputs]`, if there is a bias.
    pub bias: Option<&'a mut [f32]>,
}

impl Convolution {
    /// Windows of one number, next to each other, for `channels` of input and output and maps of `size`.
    pub fn new(batch: usize, channels: [usize; 2], size: [usize; 2]) -> Self {
        Self {
            batch,
            inputs: channels[0],
            outputs: channels[1],
            size,
            kernel: [1, 1],
            stride: [1, 1],
            padding: [0, 0],
            dilation: [1, 1],
            groups: 1,
        }
    }

    /// Height and width of an output map: `⌊(size + 2 padding - dilation (kernel - 1) - 1) / stride⌋ + 1`.
    ///
    /// # Errors
    /// A kernel, stride, dilation or number of groups of 0; a window larger than the padded map; groups that do not divide the
    /// channels; sizes whose product cannot be addressed.
    pub fn output_size(&self) -> Result<[usize; 2], KernelError> {
        let mut size = [0; 2];
        for (a, size) in size.iter_mut().enumerate() {
            for (argument, value) in [
                ("kernel", self.kernel[a]),
                ("stride", self.stride[a]),
                ("dilation", self.dilation[a]),
            ] {
                check_value(argument, "at least 1", value as f64, value > 0)?;
            }
            let too_large = KernelError::TooLarge {
                argument: "convolution",
                shape: "padding and window",
            };
            let padded = self.padding[a]
                .checked_mul(2)
                .and_then(|both| both.checked_add(self.size[a]))
                .filter(|&padded| padded <= isize::MAX as usize / 2)
                .ok_or(too_large.clone())?;
            let window = (self.kernel[a] - 1)
                .checked_mul(self.dilation[a])
                .and_then(|reach| reach.checked_add(1))
                .ok_or(too_large)?;
            let expected = "a window (dilation · (kernel - 1) + 1) no larger than the padded map";
            check_value("kernel", expected, self.kernel[a] as f64, window <= padded)?;
            *size = (padded - window) / self.stride[a] + 1;
        }
        let groups = self.groups;
        for (argument, channels) in [("inputs", self.inputs), ("outputs", self.outputs)] {
            let divides = groups > 0 && channels.is_multiple_of(groups);
            let expected = "a multiple of the number of groups, which is at least 1";
            check_value(argument, expected, channels as f64, divides)?;
        }
        let [height, width] = self.size;
        product("input", INPUT, &[self.batch, self.inputs, height, width])?;
        product(
            "output",
            OUTPUT,
            &[self.batch, self.outputs, size[0], size[1]],
        )?;
        Ok(size)
    }

    /// `[outputs, inputs / groups, kernel height, kernel width]`
    fn weight_shape(&self) -> [usize; 4] {
        let [height, width] = self.kernel;
        [self.outputs, self.inputs / self.groups, height, width]
    }

    fn check_input(&self, argument: &'static str, length: usize) -> Result<(), KernelError> {
        let [height, width] = self.size;
        check_length(
            argument,
            INPUT,
            &[self.batch, self.inputs, height, width],
            length,
        )
    }

    fn check_weight(&self, argument: &'static str, length: usize) -> Result<(), KernelError> {
        check_length(argument, WEIGHT, &self.weight_shape(), length)
    }

    fn check_output(
        &self,
        argument: &'static str,
        [height, width]: [usize; 2],
        length: usize,
    ) -> Result<(), KernelError> {
        check_length(
            argument,
            OUTPUT,
            &[self.batch, self.outputs, height, width],
            length,
        )
    }

    /// The same convolution for outputs of `size`, with what does not matter made small: the stride to a second window that is not
    /// there, the window of channels that are not there.
    fn settled(&self, size: [usize; 2], weight: &[f32]) -> Self {
        let stride = |a| match size[a] {
            1 => 1,
            _ => self.stride[a],
        };
        Self {
            stride: [0, 1].map(stride),
            kernel: match weight.is_empty() {
                true => [0, 0],
                false => self.kernel,
            },
            ..*self
        }
    }

    /// Multiply-adds of one pass, as a rough number.
    fn products(&self, [height, width]: [usize; 2]) -> f64 {
        let of_output = self.weight_shape()[1..].iter().product::<usize>();
        (self.batch * self.outputs) as f64 * (height * width) as f64 * of_output as f64
    }

    /// Writes `y [batch, outputs, output height, output width]` for `x [batch, inputs, height, width]`, `weight [outputs,
    /// inputs / groups, kernel height, kernel width]` and `bias [outputs]`.
    ///
    /// # Errors
    /// [`KernelError`] as [`Self::output_size`], or if a slice does not have its shape's length.
    pub fn forward(
        &self,
        x: &[f32],
        weight: &[f32],
        bias: Option<&[f32]>,
        y: &mut [f32],
    ) -> Result<(), KernelError> {
        self.forward_fresh(x, weight, bias, fresh(y))
    }

    /// [`Self::forward`] into memory that holds nothing yet: all of it is written, unless there is an error.
    ///
    /// # Errors
    /// As [`Self::forward`].
    pub fn forward_fresh(
        &self,
        x: &[f32],
        weight: &[f32],
        bias: Option<&[f32]>,
        y: &mut [MaybeUninit<f32>],
    ) -> Result<(), KernelError> {
        self.forward_on(Level::current(), x, weight, bias, y)
    }

    fn forward_on(
        &self,
        level: Level,
        x: &[f32],
        weight: &[f32],
        bias: Option<&[f32]>,
        y: &mut [MaybeUninit<f32>],
    ) -> Result<(), KernelError> {
        let size = self.output_size()?;
        self.check_input("x", x.len())?;
        self.check_weight("weight", weight.len())?;
        self.check_output("y", size, y.len())?;
        if let Some(bias) = bias {
            check_length("bias", "[outputs]", &[self.outputs], bias.len())?;
        }
        if !y.is_empty() {
            let c = self.settled(size, weight);
            Correlation::forward(&c, size, weight, bias).run(level, x, y);
        }
        Ok(())
    }

    /// Writes the gradient `d_x [batch, inputs, height, width]` of a loss from its gradient `d_y [batch, outputs, output height,
    /// output width]`.
    ///
    /// # Errors
    /// [`KernelError`] as [`Self::output_size`], or if a slice does not have its shape's length.
    pub fn backward_input(
        &self,
        weight: &[f32],
        d_y: &[f32],
        d_x: &mut [f32],
    ) -> Result<(), KernelError> {
        self.backward_input_fresh(weight, d_y, fresh(d_x))
    }

    /// [`Self::backward_input`] into memory that holds nothing yet: all of it is written, unless there is an error.
    ///
    /// # Errors
    /// As [`Self::backward_input`].
    pub fn backward_input_fresh(
        &self,
        weight: &[f32],
        d_y: &[f32],
        d_x: &mut [MaybeUninit<f32>],
    ) -> Result<(), KernelError> {
        self.backward_input_on(Level::current(), weight, d_y, d_x)
    }

    fn backward_input_on(
        &self,
        level: Level,
        weight: &[f32],
        d_y: &[f32],
        d_x: &mut [MaybeUninit<f32>],
    ) -> Result<(), KernelError> {
        let size = self.output_size()?;
        self.check_weight("weight", weight.len())?;
        self.check_output("d_y", size, d_y.len())?;
        self.check_input("d_x", d_x.len())?;
        if !d_x.is_empty() {
            let c = self.settled(size, weight);
            Correlation::backward(&c, size, weight).run(level, d_y, d_x);
        }
        Ok(())
    }

    /// Writes the gradients of the parameters, from `x [batch, inputs, height, width]` and the gradient `d_y [batch, outputs,
    /// output height, output width]` of a loss.
    ///
    /// # Errors
    /// [`KernelError`] as [`Self::output_size`], or if a slice does not have its shape's length.
    pub fn backward_weight(
        &self,
        x: &[f32],
        d_y: &[f32],
        gradients: &mut Gradients<'_>,
    ) -> Result<(), KernelError> {
        self.backward_weight_on(Level::current(), x, d_y, gradients)
    }

    fn backward_weight_on(
        &self,
        level: Level,
        x: &[f32],
        d_y: &[f32],
        gradients: &mut Gradients<'_>,
    ) -> Result<(), KernelError> {
        let size = self.output_size()?;
        self.check_input("x", x.len())?;
        self.check_output("d_y", size, d_y.len())?;
        self.check_weight("gradients.weight", gradients.weight.len())?;
        if let Some(bias) = gradients.bias.as_deref_mut() {
            check_length("gradients.bias", "[outputs]", &[self.outputs], bias.len())?;
            self.backward_bias(level, size, d_y, bias);
        }
        let c = self.settled(size, gradients.weight);
        weight::backward(&c, level, size, x, d_y, gradients.weight);
        Ok(())
    }

    /// `ḃ`
    fn backward_bias(&self, level: Level, size: [usize; 2], d_y: &[f32], bias: &mut [f32]) {
        // Without an image the others may be more than could be counted.
        let positions = size[0].saturating_mul(size[1]);
        let nanoseconds = d_y.len() as f64 * 0.1;
        let sum = |channel: usize| {
            let maps = d_y.chunks_exact(positions.max(1)).skip(channel);
            let maps = maps.step_by(self.outputs.max(1));
            maps.map(|map| run(level, Sum(map))).sum::<f64>() as f32
        };
        for_each_chunk(
            rows(bias, 1),
            self.outputs,
            1,
            nanoseconds,
            &|channel, to: RowsMut<f32>| to.data[0] = sum(channel),
        );
    }
}
