//! Batch norm (Ioffe & Szegedy 2015) with what follows it in a residual network: sum and ReLU. Forward and backward.
//!
//! For `x [batch, channels, positions]`, with weight `w` and bias `b` of a channel, mean and variance over its `N = batch ·
//! positions` numbers, or those of a trained network:
//! ```text
//! x̂ = (x - mean) / √(variance + ε)        y = a(w x̂ + b + residual)        a: ReLU, or nothing
//!
//! backward, g = ẏ where a passes it, 0 elsewhere, and r the reciprocal of the root:
//! ẇ = Σ g x̂    ḃ = Σ g    residual' = g    ẋ = w r (g - ḃ / N - x̂ ẇ / N), or w r g where the moments are given
//! ```
//! ```text
//! channel by channel:   x --sum--> mean --squares--> variance --> y        the channel's numbers are in the second-level
//!                                                                          cache from the first pass to the last
//! ```
//! Kept for the backward pass: `x`, `y` (if there is a ReLU of a sum with a residual) and two numbers a channel. Sums are taken in `f32`
//! in blocks of 512 whose sums are added in `f64`, or all in `f64` where a block of a map is beyond the largest `f32`, in the order of the
//! batch: the same bits on any number of threads. A variance is an `f32`: that of a channel whose numbers are 1.8e19 and more from their
//! mean is infinite, and `x̂` is 0; squares of differences below 1.1e-19 lose precision, those below 2.6e-23 are 0.
//!
//! ```
//! use regard_kernels::batch_norm::BatchNorm;
//! let norm = BatchNorm { batch: 2, channels: 1, positions: 1, weight: &[1.0], bias: &[0.5], epsilon: 0.0, relu: true };
//! let mut y = [0.0; 2];
//! let moments = norm.train(&[1.0, 3.0], None, &mut y)?;
//! assert_eq!((moments.mean[0], moments.variance[0]), (2.0, 1.0));
//! assert_eq!(y, [0.0, 1.5]);
//! # Ok::<(), regard_kernels::KernelError>(())
//! ```

use std::mem::MaybeUninit;

use crate::error::{KernelError, check_length, check_value};
use crate::simd::{self, Kernel, Level, Simd, cleared, fresh, run};
use crate::threads::map_each;

#[cfg(test)]
mod tests;

/// Of one number of a pass on one thread.
const NANOSECONDS: f64 = 0.5;
/// Numbers that are added up in `f32`.
const BLOCK: usize = 512;

const MAPS: &str = "[batch, channels, positions]";

/// Sizes and parameters of a batch norm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchNorm<'a> {
    /// Maps in the batch.
    pub batch: usize,
    /// Channels, each normalised by itself.
    pub channels: usize,
    /// Numbers of a channel's map: height · width.
    pub positions: usize,
    /// `w [channels]`
    pub weight: &'a [f32],
    /// `b [channels]`
    pub bias: &'a [f32],
    /// `ε`, added to the variance; finite, at least 0.
    pub epsilon: f64,
    /// Whether numbers below 0 become 0.
    pub relu: bool,
}

/// Mean and variance (of the population) of each channel.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Moments {
    /// `[channels]`
    pub mean: Vec<f32>,
    /// `[channels]`
    pub variance: Vec<f32>,
}

/// What [`BatchNorm::backward`] reads.
#[derive(Debug, Clone, Copy)]
pub struct Saved<'a> {
    /// The input, `[batch, channels, positions]`.
    pub x: &'a [f32],
    /// The output in the same shape. Without a ReLU it is not read; without a residual it may be empty, and what the ReLU passed follows
    /// from `x`.
    pub y: &'a [f32],
    /// The moments of the forward pass.
    pub moments: &'a Moments,
    /// Whether they are those of `x`, through which gradients flow too, or given ones.
    pub of_batch: bool,
}

/// Where [`BatchNorm::backward`] writes; every buffer is overwritten.
#[derive(Debug)]
pub struct Gradients<'a> {
    /// `[batch, channels, positions]`: the gradient of the output, in whose place that of the input is written.
    pub input: &'a mut [f32],
    /// That of the residual, in the same shape, if there is one.
    pub residual: Option<&'a mut [f32]>,
    /// `[channels]`
    pub weight: &'a mut [f32],
    /// `[channels]`
    pub bias: &'a mut [f32],
}

impl BatchNorm<'_> {
    fn check(&self, arguments: &[(&'static str, usize)]) -> Result<(), KernelError> {
        for (argument, parameter) in [("weight", self.weight), ("bias", self.bias)] {
            check_length(argument, "[channels]", &[self.channels], parameter.len())?;
        }
        let sizes = [self.batch, self.channels, self.positions];
        for &(argument, length) in arguments {
            check_length(argument, MAPS, &sizes, length)?;
        }
        let epsilon = self.epsilon;
        let accepted = epsilon.is_finite() && epsilon >= 0.0;
        let expected = "a finite number of at least 0";
        check_value("epsilon", expected, epsilon, accepted)
    }

    /// The same without maps of nothing, which may be more than could be counted.
    fn counted(&self) -> Self {
        Self {
            batch: if self.positions == 0 { 0 } else { self.batch },
            ..*self
        }
    }

    fn check_moments(&self, moments: &Moments) -> Result<(), KernelError> {
        for (argument, of_channels) in [
            ("moments.mean", &moments.mean),
            ("moments.variance", &moments.variance),
        ] {
            check_length(argument, "[channels]", &[self.channels], of_channels.len())?;
        }
        Ok(())
    }

    /// Normalises by the moments of `x`, and returns them: `y` for `x` and `residual`, each `[batch, channels, positions]`.
    ///
    /// # Errors
    /// [`KernelError`] if a length does not fit the sizes, or `epsilon` is negative or not finite.
    pub fn train(
        &self,
        x: &[f32],
        residual: Option<&[f32]>,
        y: &mut [f32],
    ) -> Result<Moments, KernelError> {
        self.train_fresh(x, residual, fresh(y))
    }

    /// [`Self::train`] into memory that holds nothing yet: all of it is written, unless there is an error.
    ///
    /// # Errors
    /// As [`Self::train`].
    pub fn train_fresh(
        &self,
        x: &[f32],
        residual: Option<&[f32]>,
        y: &mut [MaybeUninit<f32>],
    ) -> Result<Moments, KernelError> {
        self.forward_on(Level::current(), x, residual, None, y)
    }

    /// Normalises by given moments: `y` for `x` and `residual`, each `[batch, channels, positions]`.
    ///
    /// # Errors
    /// [`KernelError`] if a length does not fit the sizes, or `epsilon` is negative or not finite.
    pub fn infer(
        &self,
        moments: &Moments,
        x: &[f32],
        residual: Option<&[f32]>,
        y: &mut [f32],
    ) -> Result<(), KernelError> {
        self.infer_fresh(moments, x, residual, fresh(y))
    }

    /// [`Self::infer`] into memory that holds nothing yet: all of it is written, unless there is an error.
    ///
    /// # Errors
    /// As [`Self::infer`].
    pub fn infer_fresh(
        &self,
        moments: &Moments,
        x: &[f32],
        residual: Option<&[f32]>,
        y: &mut [MaybeUninit<f32>],
    ) -> Result<(), KernelError> {
        self.check_moments(moments)?;
        self.forward_on(Level::current(), x, residual, Some(moments), y)?;
        Ok(())
    }

    fn forward_on(
        &self,
        level: Level,
        x: &[f32],
        residual: Option<&[f32]>,
        given: Option<&Moments>,
        y: &mut [MaybeUninit<f32>],
    ) -> Result<Moments, KernelError> {
        let mut lengths = vec![("x", x.len()), ("y", y.len())];
        lengths.extend(residual.map(|residual| ("residual", residual.len())));
        self.check(&lengths)?;
        let norm = &self.counted();
        let of_channel = |channel: usize, y: Vec<&mut [MaybeUninit<f32>]>| {
            let forward = Forward {
                norm,
                channel,
                x,
                residual,
                given: given.map(|all| [all.mean[channel], all.variance[channel]]),
                y,
            };
            run(level, forward)
        };
        let moments = norm.each_channel(norm.cut(y), of_channel);
        let (mean, variance) = moments
            .into_iter()
            .map(|[mean, variance]| (mean, variance))
            .unzip();
        Ok(Moments { mean, variance })
    }

    /// Writes the gradients of a loss, from that of the output, which `gradients.input` holds.
    ///
    /// # Errors
    /// [`KernelError`] if a length does not fit the sizes, or `epsilon` is negative or not finite.
    pub fn backward(
        &self,
        saved: &Saved<'_>,
        gradients: &mut Gradients<'_>,
    ) -> Result<(), KernelError> {
        self.backward_on(Level::current(), saved, gradients)
    }

    fn backward_on(
        &self,
        level: Level,
        saved: &Saved<'_>,
        gradients: &mut Gradients<'_>,
    ) -> Result<(), KernelError> {
        let mut lengths = vec![
            ("saved.x", saved.x.len()),
            ("gradients.input", gradients.input.len()),
        ];
        if self.relu && (gradients.residual.is_some() || !saved.y.is_empty()) {
            lengths.push(("saved.y", saved.y.len()));
        }
        if let Some(residual) = &gradients.residual {
            lengths.push(("gradients.residual", residual.len()));
        }
        self.check(&lengths)?;
        self.check_moments(saved.moments)?;
        for (argument, found) in [
            ("gradients.weight", gradients.weight.len()),
            ("gradients.bias", gradients.bias.len()),
        ] {
            check_length(argument, "[channels]", &[self.channels], found)?;
        }
        let norm = &self.counted();
        let d = norm.cut(gradients.input);
        let d_residual = match &mut gradients.residual {
            Some(residual) => norm.cut(residual),
            None => (0..self.channels).map(|_| vec![]).collect(),
        };
        let maps = d.into_iter().zip(d_residual).collect();
        let of_channel = |channel: usize, (d, d_residual): (Vec<_>, Vec<_>)| {
            let backward = Backward {
                norm,
                channel,
                saved,
                d,
                d_residual,
            };
            run(level, backward)
        };
        let sums = norm.each_channel(maps, of_channel);
        let parameters = gradients.weight.iter_mut().zip(gradients.bias.iter_mut());
        for ((weight, bias), sums) in parameters.zip(sums) {
            [*weight, *bias] = sums;
        }
        Ok(())
    }

    /// The maps of each channel.
    fn cut<'a, T>(&self, maps: &'a mut [T]) -> Vec<Vec<&'a mut [T]>> {
        let of_channel = || Vec::with_capacity(self.batch);
        let mut channels: Vec<Vec<&mut [T]>> = (0..self.channels).map(|_| of_channel()).collect();
        if self.positions > 0 {
            for (at, map) in maps.chunks_exact_mut(self.positions).enumerate() {
                channels[at % self.channels].push(map);
            }
        }
        channels
    }

    /// `work` for every channel and its maps.
    fn each_channel<T: Send, R: Send>(
        &self,
        maps: Vec<T>,
        work: impl Fn(usize, T) -> R + Sync,
    ) -> Vec<R> {
        let numbers = self.batch as f64 * self.channels as f64 * self.positions as f64;
        map_each(maps, numbers * NANOSECONDS, &work)
    }

    /// Map `n` of a channel.
    fn map<'a>(&self, maps: &'a [f32], n: usize, channel: usize) -> &'a [f32] {
        &maps[(n * self.channels + channel) * self.positions..][..self.positions]
    }

    /// `r` for a variance.
    fn reciprocal_root(&self, variance: f32) -> f32 {
        (1.0 / (f64::from(variance) + self.epsilon).sqrt()) as f32
    }
}

struct Forward<'a, 'b> {
    norm: &'a BatchNorm<'a>,
    channel: usize,
    x: &'a [f32],
    residual: Option<&'a [f32]>,
    /// Mean and variance.
    given: Option<[f32; 2]>,
    y: Vec<&'b mut [MaybeUninit<f32>]>,
}

impl Kernel for Forward<'_, '_> {
    type Output = [f32; 2];

    #[inline(always)]
    fn call<S: Simd>(self, s: S) -> [f32; 2] {
        let Self { norm, channel, .. } = self;
        let maps = || (0..norm.batch).map(|n| norm.map(self.x, n, channel));
        let [mean, variance] = self.given.unwrap_or_else(
            #[inline(always)]
            || {
                let count = (norm.batch * norm.positions).max(1) as f64;
                let mut sum = 0.0;
                for map in maps() {
                    sum += simd::sum(s, map);
                }
                let mean = (sum / count) as f32;
                let mut squares = 0.0;
                for map in maps() {
                    squares += sum_of_squares(s, map, mean);
                }
                [mean, (squares / count) as f32]
            },
        );
        let factor = norm.weight[channel] * norm.reciprocal_root(variance);
        let [mean_of, factor, bias] = [s.splat(mean), s.splat(factor), s.splat(norm.bias[channel])];
        // Without a ReLU nothing is below the floor.
        let floor = s.splat(if norm.relu { 0.0 } else { f32::NEG_INFINITY });
        for (n, (x, y)) in maps().zip(self.y).enumerate() {
            let y = cleared(y);
            match self.residual {
                Some(residual) => simd::zip_map(
                    s,
                    [x, norm.map(residual, n, channel)],
                    [y],
                    #[inline(always)]
                    |[x, residual], [_]| {
                        let sum = s.add(s.fma(s.sub(x, mean_of), factor, bias), residual);
                        [s.max(floor, sum)]
                    },
                ),
                None => simd::zip_map(
                    s,
                    [x],
                    [y],
                    #[inline(always)]
                    |[x], [_]| [s.max(floor, s.fma(s.sub(x, mean_of), factor, bias))],
                ),
            }
        }
        [mean, variance]
    }
}

/// `Σ (x - mean)²`
#[inline(always)]
fn sum_of_squares<S: Simd>(s: S, x: &[f32], mean: f32) -> f64 {
    let [sum] = sums(
        s,
        x.len(),
        #[inline(always)]
        |at, count| {
            let difference = s.sub(load(s, x, at, count), load(s, &[mean; 16], 0, count));
            [[difference; 2]]
        },
    );
    sum
}

/// `count` numbers from `at` on, zeros in the lanes beyond.
#[inline(always)]
fn load<S: Simd>(s: S, from: &[f32], at: usize, count: usize) -> S::V {
    match count == S::LANES {
        true => s.load(&from[at..]),
        false => s.load_partial(&from[at..at + count]),
    }
}

/// Sums over `length` numbers of the products of two that `f(at, count)` gives for a vector of `count` of them, in blocks of `f32` added
/// in `f64`; all in `f64` where a block is beyond the largest `f32`.
#[inline(always)]
fn sums<S: Simd, const N: usize>(
    s: S,
    length: usize,
    f: impl Fn(usize, usize) -> [[S::V; 2]; N],
) -> [f64; N] {
    let mut totals = [0.0; N];
    for first in (0..length).step_by(BLOCK) {
        let end = (first + BLOCK).min(length);
        // Two chains of sums; which one a vector goes to is known when this is compiled, so that both stay in registers.
        let (mut even, mut odd) = ([s.zero(); N], [s.zero(); N]);
        let mut at = first;
        while at < end {
            for sums in [&mut even, &mut odd] {
                if at < end {
                    let of = f(at, S::LANES.min(end - at));
                    for (sum, [a, b]) in sums.iter_mut().zip(of) {
                        *sum = s.add(*sum, s.mul(a, b));
                    }
                    at += S::LANES;
                }
            }
        }
        for (n, total) in totals.iter_mut().enumerate() {
            *total += f64::from(s.reduce_add(s.add(even[n], odd[n])));
        }
    }
    if totals.iter().all(|total| total.is_finite()) {
        return totals;
    }
    let mut totals = [0.0; N];
    for at in (0..length).step_by(S::LANES) {
        for (total, factors) in totals.iter_mut().zip(f(at, S::LANES.min(length - at))) {
            let mut lanes = [[0.0; 16]; 2];
            for (lanes, factor) in lanes.iter_mut().zip(factors) {
                s.store(lanes, factor);
            }
            let [a, b] = lanes.map(|lanes| lanes.map(f64::from));
            *total += a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        }
    }
    totals
}

/// What a ReLU passes: a number of the output above 0, `(of - mean) factor + bias`. `of` is one of the output, where that was kept (with a
/// mean and a bias of 0 and a factor of 1), or one of the input, which is read anyway.
struct Gate<S: Simd> {
    relu: bool,
    mean: S::V,
    factor: S::V,
    bias: S::V,
}

impl<S: Simd> Gate<S> {
    /// `d` where the ReLU passes, or there is none.
    #[inline(always)]
    fn pass(&self, s: S, d: S::V, of: S::V) -> S::V {
        let y = s.fma(s.sub(of, self.mean), self.factor, self.bias);
        match self.relu {
            // Below the least number above 0; NaN is not, and keeps its gradient.
            true => s.select(s.greater(s.splat(f32::from_bits(1)), y), s.zero(), d),
            false => d,
        }
    }
}

struct Backward<'a, 'b> {
    norm: &'a BatchNorm<'a>,
    channel: usize,
    saved: &'a Saved<'a>,
    /// `ẏ`, then `ẋ`.
    d: Vec<&'b mut [f32]>,
    d_residual: Vec<&'b mut [f32]>,
}

impl Kernel for Backward<'_, '_> {
    /// `[ẇ, ḃ]`
    type Output = [f32; 2];

    #[inline(always)]
    fn call<S: Simd>(self, s: S) -> [f32; 2] {
        let Self {
            norm,
            channel,
            saved,
            ..
        } = self;
        let moments = saved.moments;
        let (mean, root) = (
            moments.mean[channel],
            norm.reciprocal_root(moments.variance[channel]),
        );
        let of_output = norm.relu && !saved.y.is_empty();
        let [of_mean, of_factor, of_bias] = match of_output {
            true => [0.0, 1.0, 0.0],
            false => [mean, norm.weight[channel] * root, norm.bias[channel]],
        };
        let gate = Gate {
            relu: norm.relu,
            mean: s.splat(of_mean),
            factor: s.splat(of_factor),
            bias: s.splat(of_bias),
        };
        // `x` of a map, and what the gate reads.
        let read = |n: usize| {
            let of = if of_output { saved.y } else { saved.x };
            (norm.map(saved.x, n, channel), norm.map(of, n, channel))
        };
        let (mut along, mut level) = (0.0, 0.0);
        for (n, d) in self.d.iter().enumerate() {
            let (x, of) = read(n);
            let [of_map, sum] = sums(
                s,
                x.len(),
                #[inline(always)]
                |at, count| {
                    let g = gate.pass(s, load(s, d, at, count), load(s, of, at, count));
                    let x = s.sub(load(s, x, at, count), s.splat(mean));
                    [[g, x], [g, s.splat(1.0)]]
                },
            );
            along += of_map;
            level += sum;
        }
        let d_weight = along * f64::from(root);
        let count = (norm.batch * norm.positions).max(1) as f64;
        let factor = f64::from(norm.weight[channel]) * f64::from(root);
        let (slope, shift) = match saved.of_batch {
            true => (
                -factor * d_weight * f64::from(root) / count,
                -factor * level / count,
            ),
            false => (0.0, 0.0),
        };
        let (mean, factor) = (s.splat(mean), s.splat(factor as f32));
        let (slope, shift) = (s.splat(slope as f32), s.splat(shift as f32));
        let mut d_residual = self.d_residual.into_iter();
        for (n, d) in self.d.into_iter().enumerate() {
            let (x, of) = read(n);
            if let Some(d_residual) = d_residual.next() {
                simd::zip_map(
                    s,
                    [d, of],
                    [d_residual],
                    #[inline(always)]
                    |[d, of], [_]| [gate.pass(s, d, of)],
                );
            }
            simd::zip_map(
                s,
                [of, x],
                [d],
                #[inline(always)]
                |[of, x], [d]| {
                    let of_sums = s.fma(s.sub(x, mean), slope, shift);
                    [s.fma(gate.pass(s, d, of), factor, of_sums)]
                },
            );
        }
        [d_weight as f32, level as f32]
    }
}
