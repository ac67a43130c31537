//! Layer norm (Ba, Kiros, Hinton 2016) and RMS norm (Zhang & Sennrich 2019), forward and backward.
//!
//! For a row `x [width]`, with weight `w [width]`, bias `b [width]` and means over the row:
//! ```text
//! layer  x̂ = (x - mean x) / √(mean (x - mean x)² + ε)     RMS  x̂ = x / √(mean x² + ε)
//! y = w ∘ x̂ + b
//!
//! backward, g = w ∘ ẏ and r the reciprocal of the root:
//! layer  ẋ = r (g - mean g - x̂ mean(g ∘ x̂))               RMS  ẋ = r (g - x̂ mean(g ∘ x̂))
//! ẇ = Σ_rows ẏ ∘ x̂        ḃ = Σ_rows ẏ
//! ```
//! ```text
//! row by row:   x --mean--> x - mean --sum of squares--> x̂ --> y      the row stays in the
//!               first-level cache from the first pass to the last: read once, written once
//! ```
//! Nothing is saved for the backward pass: it reads `x` and computes `x̂` again.
//! Sums over a row are taken in `f32` in blocks of 512 whose sums are added in `f64`, or all in `f64` where a block is beyond the
//! largest `f32`. The squares of numbers below 1.1e-19 lose precision, those of numbers below 2.6e-23 are 0. Where a
//! number is further from the mean of its row than the largest `f32`, it becomes NaN, and the others of its row 0. The variance is that
//! of the centred row, never `mean x² - mean² x`, which loses all precision where the mean is large. The sums
//! over rows are taken in `f64`, in a number of chunks that follows from the sizes, and the chunks are added in
//! order: the same bits on any number of threads.
//!
//! ```
//! use regard_kernels::norm::{Kind, Norm, forward};
//! let norm = Norm { kind: Kind::Layer, rows: 1, width: 2, weight: None, bias: Some(&[0.0, 5.0]), epsilon: 0.0 };
//! let mut y = [0.0; 2];
//! forward(&norm, &[1.0, 3.0], &mut y)?;
//! assert_eq!(y, [-1.0, 6.0]);
//! # Ok::<(), regard_kernels::KernelError>(())
//! ```

use std::mem::MaybeUninit;

use crate::error::{KernelError, check_length, check_value};
use crate::simd::{self, Kernel, Level, Simd, cleared, fresh, run};
use crate::threads::{RowsMut, for_each_chunk, rows};

#[cfg(test)]
mod tests;

/// The kind of norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Mean 0 and variance 1 (of the population).
    Layer,
    /// Mean square 1.
    RootMeanSquare,
}

/// Sizes and parameters of a norm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Norm<'a> {
    /// The kind of norm.
    pub kind: Kind,
    /// Rows, each normalised by itself.
    pub rows: usize,
    /// Numbers in a row.
    pub width: usize,
    /// `[width]`; ones if absent.
    pub weight: Option<&'a [f32]>,
    /// `[width]`; zeros if absent.
    pub bias: Option<&'a [f32]>,
    /// `ε`, added to the mean square; finite, at least 0. With 0, a row without variance gives NaN, and one whose squares are all too
    /// small for an `f32` gives infinities.
    pub epsilon: f64,
}

/// Where [`backward`] writes; every buffer is overwritten.
#[derive(Debug)]
pub struct Gradients<'a> {
    /// `[rows, width]`: of the output at first, of the input afterwards.
    pub input: &'a mut [f32],
    /// `[width]`, if wanted.
    pub weight: Option<&'a mut [f32]>,
    /// `[width]`, if wanted.
    pub bias: Option<&'a mut [f32]>,
}

/// Chunks of rows at most: each has its own sums for the parameters' gradients.
const CHUNKS: usize = 64;

const ROWS: &str = "[rows, width]";

impl Norm<'_> {
    fn check(&self, arguments: &[(&'static str, usize)]) -> Result<(), KernelError> {
        let width = [self.width];
        for (argument, parameter) in [("weight", self.weight), ("bias", self.bias)] {
            if let Some(parameter) = parameter {
                check_length(argument, "[width]", &width, parameter.len())?;
            }
        }
        for &(argument, length) in arguments {
            check_length(argument, ROWS, &[self.rows, self.width], length)?;
        }
        let epsilon = self.epsilon;
        let accepted = epsilon.is_finite() && epsilon >= 0.0;
        check_value(
            "epsilon",
            "a finite number of at least 0",
            epsilon,
            accepted,
        )
    }

    /// Rows in a chunk of work: a function of the sizes alone.
    fn chunk_rows(&self) -> usize {
        let worth_a_chunk = 4096 / self.width.max(1);
        self.rows.div_ceil(CHUNKS).max(worth_a_chunk).max(1)
    }

    fn nanoseconds(&self, of_number: f64) -> f64 {
        self.rows as f64 * self.width as f64 * of_number
    }

    /// Writes `x̂` of a row; returns `r`.
    #[inline(always)]
    fn normalise<S: Simd>(&self, s: S, row: &[f32], to: &mut [f32]) -> f32 {
        match self.kind {
            Kind::RootMeanSquare => {
                let factor = self.reciprocal_root(s, row);
                let splat = s.splat(factor);
                simd::zip_map(
                    s,
                    [row],
                    [to],
                    #[inline(always)]
                    |[x], [_]| [s.mul(x, splat)],
                );
                factor
            }
            Kind::Layer => {
                let sum = simd::sum(s, row);
                let mean = s.splat((sum / row.len() as f64) as f32);
                simd::zip_map(
                    s,
                    [row],
                    [&mut *to],
                    #[inline(always)]
                    |[x], [_]| [s.sub(x, mean)],
                );
                let factor = self.reciprocal_root(s, to);
                simd::scale(s, factor, to);
                factor
            }
        }
    }

    /// `1 / √(mean x² + ε)`
    #[inline(always)]
    fn reciprocal_root<S: Simd>(&self, s: S, row: &[f32]) -> f32 {
        let square = simd::sum_of_squares(s, row);
        (1.0 / (square / row.len() as f64 + self.epsilon).sqrt()) as f32
    }
}

/// Normalises each row of `input [rows, width]` into `output [rows, width]`.
///
/// # Errors
/// [`KernelError`] if a length does not fit the sizes, or `epsilon` is negative or not finite.
pub fn forward(norm: &Norm<'_>, input: &[f32], output: &mut [f32]) -> Result<(), KernelError> {
    forward_at(Level::current(), norm, input, fresh(output))
}

/// [`forward`] into memory that holds nothing yet: all of it is written, unless there is an error.
///
/// # Errors
/// As [`forward`].
pub fn forward_fresh(
    norm: &Norm<'_>,
    input: &[f32],
    output: &mut [MaybeUninit<f32>],
) -> Result<(), KernelError> {
    forward_at(Level::current(), norm, input, output)
}

fn forward_at(
    level: Level,
    norm: &Norm<'_>,
    input: &[f32],
    output: &mut [MaybeUninit<f32>],
) -> Result<(), KernelError> {
    norm.check(&[("input", input.len()), ("output", output.len())])?;
    if output.is_empty() {
        return Ok(());
    }
    let of_chunk = norm.chunk_rows() * norm.width;
    let (chunks, nanoseconds) = (output.len().div_ceil(of_chunk), norm.nanoseconds(0.25));
    for_each_chunk(
        rows(output, of_chunk),
        chunks,
        1,
        nanoseconds,
        &|chunk, output: RowsMut<MaybeUninit<f32>>| {
            let output = cleared(output.data);
            let input = &input[chunk * of_chunk..][..output.len()];
            run(
                level,
                Forward {
                    norm,
                    input,
                    output,
                },
            );
        },
    );
    Ok(())
}

struct Forward<'a> {
    norm: &'a Norm<'a>,
    input: &'a [f32],
    output: &'a mut [f32],
}

impl Kernel for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let Norm {
            width,
            weight,
            bias,
            ..
        } = *self.norm;
        for (row, to) in self
            .input
            .chunks_exact(width)
            .zip(self.output.chunks_exact_mut(width))
        {
            self.norm.normalise(s, row, to);
            match (weight, bias) {
                (Some(w), Some(b)) => simd::zip_map(
                    s,
                    [w, b],
                    [to],
                    #[inline(always)]
                    |[w, b], [x]| [s.fma(w, x, b)],
                ),
                (Some(w), None) => simd::zip_map(
                    s,
                    [w],
                    [to],
                    #[inline(always)]
                    |[w], [x]| [s.mul(w, x)],
                ),
                (None, Some(b)) => simd::zip_map(
                    s,
                    [b],
                    [to],
                    #[inline(always)]
                    |[b], [x]| [s.add(x, b)],
                ),
                (None, None) => {}
            }
        }
    }
}

/// Writes the gradients of a loss, from that of the output of [`forward`] on the same `input`, which `gradients.input` holds.
///
/// # Errors
/// [`KernelError`] if a length does not fit the sizes, or `epsilon` is negative or not finite.
pub fn backward(
    norm: &Norm<'_>,
    input: &[f32],
    gradients: &mut Gradients<'_>,
) -> Result<(), KernelError> {
    backward_at(Level::current(), norm, input, gradients)
}

fn backward_at(
    level: Level,
    norm: &Norm<'_>,
    input: &[f32],
    gradients: &mut Gradients<'_>,
) -> Result<(), KernelError> {
    norm.check(&[
        ("input", input.len()),
        ("gradients.input", gradients.input.len()),
    ])?;
    let width = norm.width;
    for (argument, parameter) in [
        ("gradients.weight", gradients.weight.as_deref()),
        ("gradients.bias", gradients.bias.as_deref()),
    ] {
        if let Some(parameter) = parameter {
            check_length(argument, "[width]", &[width], parameter.len())?;
        }
    }
    if input.is_empty() {
        for to in [&mut gradients.weight, &mut gradients.bias] {
            to.iter_mut().for_each(|to| to.fill(0.0));
        }
        return Ok(()); // a width beside no rows may be more than could be counted
    }
    let of_chunk = norm.chunk_rows() * width;
    let chunks = input.len().div_ceil(of_chunk);
    let mut parts = vec![0.0f64; chunks * 2 * width]; // [chunks, weight | bias]
    for_each_chunk(
        (
            rows(&mut *gradients.input, of_chunk),
            rows(&mut parts, 2 * width),
        ),
        chunks,
        1,
        norm.nanoseconds(0.5),
        &|chunk, (gradient, parts): (RowsMut<f32>, RowsMut<f64>)| {
            let gradient = gradient.data;
            let count = gradient.len();
            let (d_weight, d_bias) = parts.data.split_at_mut(width);
            let backward = Backward {
                norm,
                input: &input[chunk * of_chunk..][..count],
                gradient,
                d_weight,
                d_bias,
            };
            run(level, backward);
        },
    );
    for (first, to) in [(0, &mut gradients.weight), (width, &mut gradients.bias)] {
        for (column, to) in to.iter_mut().flat_map(|to| to.iter_mut()).enumerate() {
            let of_chunks = parts.iter().skip(first + column).step_by(2 * width);
            *to = of_chunks.sum::<f64>() as f32;
        }
    }
    Ok(())
}

/// The mean of `a ∘ b`, in `f64`.
#[cold]
fn mean_product(a: &[f32], b: &[f32]) -> f32 {
    let products = a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b));
    (products.sum::<f64>() / a.len() as f64) as f32
}

struct Backward<'a> {
    norm: &'a Norm<'a>,
    input: &'a [f32],
    /// Of the output at first, of the input afterwards.
    gradient: &'a mut [f32],
    /// The sums so far, added to.
    d_weight: &'a mut [f64],
    d_bias: &'a mut [f64],
}

impl Kernel for Backward<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let Norm {
            kind,
            width,
            weight,
            ..
        } = *self.norm;
        let mut normal = vec![0.0; width];
        let rows = self.input.chunks_exact(width);
        for (row, gradient) in rows.zip(self.gradient.chunks_exact_mut(width)) {
            let factor = s.splat(self.norm.normalise(s, row, &mut normal));
            let sums = self.d_weight.iter_mut().zip(&mut *self.d_bias);
            for ((weight, bias), (&d, &x)) in sums.zip(gradient.iter().zip(&normal)) {
                *weight += f64::from(d) * f64::from(x);
                *bias += f64::from(d);
            }
            if let Some(w) = weight {
                simd::zip_map(
                    s,
                    [w],
                    [&mut *gradient],
                    #[inline(always)]
                    |[w], [d]| [s.mul(d, w)],
                );
            }
            let mut along = simd::dot(s, gradient, &normal) / width as f32;
            if !along.is_finite() {
                along = mean_product(gradient, &normal);
            }
            let along = s.splat(along);
            let level = match kind {
                Kind::Layer => (simd::sum(s, gradient) / width as f64) as f32,
                Kind::RootMeanSquare => 0.0,
            };
            let level = s.splat(level);
            simd::zip_map(
                s,
                [&normal],
                [gradient],
                #[inline(always)]
                |[x], [g]| [s.mul(factor, s.fnma(x, along, s.sub(g, level)))],
            );
        }
    }
}
