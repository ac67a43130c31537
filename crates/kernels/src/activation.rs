//! Activations of a feed-forward network, with a gate or without, with bias and dropout, in one pass; with gradients.
//!
//! For `x [rows, width]`, or with a gate rows of `2 width` numbers, a bias `b` of a row and dropout's factors `m` (see
//! [`pointwise`](crate::pointwise)):
//! ```text
//! plain   u = x + b          y = m ∘ φ(u)            u̇ = m ∘ ẏ ∘ φ'(u)                                   ẋ = u̇
//! gated   [g | v] = x + b    y = m ∘ φ(g) ∘ v        ġ = m ∘ ẏ ∘ v ∘ φ'(g),   v̇ = m ∘ ẏ ∘ φ(g)           ḃ = Σ_rows ẋ
//! ```
//! ```text
//! relu       φ = max(x, 0)
//! gelu       φ = x Φ(x)                           φ' = Φ(x) + x e^{-x²/2} / √(2π)     (Hendrycks & Gimpel 2016)
//! gelu-tanh  φ = x σ(2u), u = √(2/π)(x + a x³)    φ' = σ + x σ (1 - σ) 2 u'           a = 0.044715
//! silu       φ = x σ(x)                           φ' = σ + x σ (1 - σ)                (Elfwing 2017)
//! quick-gelu φ = x σ(c x)                         φ' = σ + x σ (1 - σ) c              c = 1.702 (Hendrycks & Gimpel 2016)
//! ```
//! The gates are those of Shazeer 2020. The backward pass computes `φ` again from `x`, which is all that is kept.
//!
//! ```
//! use regard_kernels::activation::{Activated, Activation};
//! let spec = Activated { activation: Activation::Silu, gated: true, rows: 1, width: 2, bias: None, dropout: None };
//! let (x, mut y) = ([0.0, 100.0, 5.0, 3.0], [0.0; 2]); // g = [0, 100], v = [5, 3]
//! spec.forward(&x, &mut y)?;
//! assert_eq!(y, [0.0, 300.0]);
//! # Ok::<(), regard_kernels::KernelError>(())
//! ```

use std::{f32::consts::LOG2_E, mem::MaybeUninit};

use crate::error::{KernelError, check_length};
use crate::pointwise::{ColumnSums, DropoutMask, add_chunks, chunk_rows};
use crate::simd::{self, Kernel, Level, Simd, cleared, fresh, run};
use crate::threads::{RowsMut, for_each_chunk, rows};

#[cfg(test)]
pub(crate) mod tests;

/// Numbers whose dropout factors are hashed at once.
const BLOCK: usize = 256;
/// Numbers of a chunk of work.
const CHUNK: usize = 8192;

/// The activation between the products of a feed-forward network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `max(x, 0)`
    Relu,
    /// `x Φ(x)`, with the distribution function of the normal distribution.
    Gelu,
    /// `x (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2`
    GeluTanh,
    /// `x σ(x)`
    Silu,
    /// `x σ(1.702 x)` (CLIP).
    QuickGelu,
}

/// Sizes and options of an activation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Activated<'a> {
    /// `φ`
    pub activation: Activation,
    /// Whether a row of the input is `[g | v]`.
    pub gated: bool,
    /// Rows.
    pub rows: usize,
    /// Numbers in a row of the output.
    pub width: usize,
    /// `[inputs]`, `width` of them or with a gate `2 width`: added to every row of the input.
    pub bias: Option<&'a [f32]>,
    /// Dropout.
    pub dropout: Option<DropoutMask>,
}

impl Activation {
    /// `φ` of each number, in place.
    ///
    /// ```
    /// use regard_kernels::activation::Activation;
    /// let mut x = [-1.0, 0.0, 2.0];
    /// Activation::Relu.apply(&mut x);
    /// assert_eq!(x, [0.0, 0.0, 2.0]);
    /// ```
    pub fn apply(self, x: &mut [f32]) {
        let (work, count, level) = (x.len() as f64, x.len(), Level::current());
        for_each_chunk(rows(x, 1), count, CHUNK, work, &|_, x: RowsMut<f32>| {
            let x = x.data;
            run(
                level,
                InPlace {
                    activation: self,
                    x,
                },
            );
        });
    }
}

impl Activated<'_> {
    /// The same of an input to which the bias has been added.
    pub(crate) fn unbiased(self) -> Self {
        Self { bias: None, ..self }
    }

    /// Numbers in a row of the input.
    pub(crate) fn inputs(&self) -> usize {
        self.width.saturating_mul(if self.gated { 2 } else { 1 })
    }

    pub(crate) fn check_options(&self) -> Result<(), KernelError> {
        if let Some(mask) = &self.dropout {
            mask.check()?;
        }
        match self.bias {
            Some(bias) => check_length("bias", "[inputs]", &[self.inputs()], bias.len()),
            None => Ok(()),
        }
    }

    fn check(&self, x: &[f32], y: usize) -> Result<(), KernelError> {
        self.check_options()?;
        let inputs = self.inputs();
        check_length("x", "[rows, inputs]", &[self.rows, inputs], x.len())?;
        check_length("y", "[rows, width]", &[self.rows, self.width], y)
    }

    fn nanoseconds(&self, of_number: f64) -> f64 {
        self.rows as f64 * self.width as f64 * of_number
    }

    /// Overwrites `y [rows, width]` with `m ∘ φ(u)`, or `m ∘ φ(g) ∘ v`.
    ///
    /// # Errors
    /// [`KernelError`] if a length does not fit the sizes, or a probability is not in `[0, 1)`.
    pub fn forward(&self, x: &[f32], y: &mut [f32]) -> Result<(), KernelError> {
        self.forward_on(Level::current(), x, fresh(y))
    }

    /// [`Activated::forward`] into memory that holds nothing yet: all of it is written, unless there is an error.
    ///
    /// # Errors
    /// As [`Activated::forward`].
    pub fn forward_fresh(&self, x: &[f32], y: &mut [MaybeUninit<f32>]) -> Result<(), KernelError> {
        self.forward_on(Level::current(), x, y)
    }

    fn forward_on(
        &self,
        level: Level,
        x: &[f32],
        y: &mut [MaybeUninit<f32>],
    ) -> Result<(), KernelError> {
        self.check(x, y.len())?;
        if y.is_empty() {
            return Ok(()); // rows of no numbers may be more than could be counted
        }
        let inputs = self.inputs();
        let work = |first: usize, y: RowsMut<MaybeUninit<f32>>| {
            self.forward_rows(level, first, &x[first * inputs..], y.data);
        };
        let items = rows(y, self.width);
        let chunk = (CHUNK / self.width.max(1)).max(1);
        for_each_chunk(items, self.rows, chunk, self.nanoseconds(1.0), &work);
        Ok(())
    }

    /// The rows from `first` on: `x [.., inputs]`, `y [.., width]`, on the calling thread.
    pub(crate) fn forward_rows(
        &self,
        level: Level,
        first: usize,
        x: &[f32],
        y: &mut [MaybeUninit<f32>],
    ) {
        let forward = Forward {
            spec: self,
            first,
            x,
            y,
        };
        run(level, forward);
    }

    /// Overwrites `d_x`, of the size of `x`, with the gradient of `x` from that of the output, `d_y [rows, width]`, and `d_bias`
    /// with that of the bias. Without a gate `d_y` may be `None`: the gradient of the output is what `d_x` holds.
    ///
    /// # Errors
    /// As [`Activated::forward`].
    pub fn backward(
        &self,
        x: &[f32],
        d_y: Option<&[f32]>,
        d_x: &mut [f32],
        d_bias: Option<&mut [f32]>,
    ) -> Result<(), KernelError> {
        self.backward_on(Level::current(), x, d_y, d_x, d_bias)
    }

    fn backward_on(
        &self,
        level: Level,
        x: &[f32],
        d_y: Option<&[f32]>,
        d_x: &mut [f32],
        d_bias: Option<&mut [f32]>,
    ) -> Result<(), KernelError> {
        // With a gate, the gradient of the output must be given.
        let of_output = d_y.map_or(if self.gated { 0 } else { d_x.len() }, <[f32]>::len);
        self.check(x, of_output)?;
        let (inputs, width) = (self.inputs(), self.width);
        check_length("d_x", "[rows, inputs]", &[self.rows, inputs], d_x.len())?;
        if let Some(d_bias) = &d_bias {
            check_length("d_bias", "[inputs]", &[inputs], d_bias.len())?;
        }
        let in_chunk = chunk_rows(self.rows, width);
        let summed = if d_bias.is_some() { inputs } else { 0 };
        let mut sums = vec![0.0f32; self.rows.div_ceil(in_chunk) * summed];
        let work = |chunk: usize, (d_x, sums): (RowsMut<f32>, RowsMut<f32>)| {
            let first = chunk * in_chunk;
            let backward = Backward {
                spec: self,
                first,
                x: &x[first * inputs..],
                d_y: d_y.map(|d_y| &d_y[first * width..]),
                d_x: d_x.data,
                y: &mut [],
                sums: sums.data,
            };
            run(level, backward);
        };
        let items = (rows(d_x, in_chunk * inputs), rows(&mut sums, summed));
        let chunks = self.rows.div_ceil(in_chunk);
        for_each_chunk(items, chunks, 1, self.nanoseconds(2.0), &work);
        if let Some(d_bias) = d_bias {
            add_chunks(&sums, d_bias);
        }
        Ok(())
    }
}

struct InPlace<'a> {
    activation: Activation,
    x: &'a mut [f32],
}

impl Kernel for InPlace<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        for at in (0..self.x.len()).step_by(S::LANES) {
            let x = s.load_at(self.x, at);
            s.store_at(self.x, at, value(s, self.activation, x));
        }
    }
}

/// Some numbers of a row of the input, and of the bias.
struct Part<'a> {
    x: &'a [f32],
    bias: &'a [f32],
}

impl<'a> Part<'a> {
    /// `count` numbers of the input's row `x` from `first` on.
    #[inline(always)]
    fn new(spec: &Activated<'a>, x: &'a [f32], first: usize, count: usize) -> Self {
        Self {
            x: &x[first..][..count],
            bias: match spec.bias {
                Some(bias) => &bias[first..][..count],
                None => &[0.0; BLOCK][..count],
            },
        }
    }

    /// `x + b`
    #[inline(always)]
    fn load<S: Simd>(&self, s: S, at: usize) -> S::V {
        s.add(s.load_at(self.x, at), s.load_at(self.bias, at))
    }
}

/// The rows from `first` on.
struct Forward<'a> {
    spec: &'a Activated<'a>,
    first: usize,
    x: &'a [f32],
    y: &'a mut [MaybeUninit<f32>],
}

impl Kernel for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let spec = self.spec;
        let (inputs, width) = (spec.inputs(), spec.width);
        let mut factors = [1.0f32; BLOCK];
        let rows = self.y.chunks_exact_mut(width.max(1));
        for (row, y) in rows.enumerate() {
            let x = &self.x[row * inputs..][..inputs];
            for (block, y) in y.chunks_mut(BLOCK).enumerate() {
                let (first, count) = (block * BLOCK, y.len());
                if let Some(mask) = &spec.dropout {
                    let number = (self.first + row) * width + first;
                    mask.fill(number, &mut factors[..count]);
                }
                let y = cleared(y);
                let gate = Part::new(spec, x, first, count);
                let value_part = spec.gated.then(|| Part::new(spec, x, width + first, count));
                for at in (0..count).step_by(S::LANES) {
                    let mut found = value(s, spec.activation, gate.load(s, at));
                    if let Some(v) = &value_part {
                        found = s.mul(found, v.load(s, at));
                    }
                    if spec.dropout.is_some() {
                        found = s.mul(found, s.load_at(&factors[..count], at));
                    }
                    s.store_at(y, at, found);
                }
            }
        }
    }
}

/// The gradient of the rows from `first` on and, if wanted, their output again.
pub(crate) struct Backward<'a> {
    pub(crate) spec: &'a Activated<'a>,
    pub(crate) first: usize,
    pub(crate) x: &'a [f32],
    /// If it is not in `d_x`.
    pub(crate) d_y: Option<&'a [f32]>,
    pub(crate) d_x: &'a mut [f32],
    /// `[rows, width]`; empty if not wanted.
    pub(crate) y: &'a mut [MaybeUninit<f32>],
    /// `[inputs]`, added to; empty if not wanted.
    pub(crate) sums: &'a mut [f32],
}

impl Kernel for Backward<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let spec = self.spec;
        let (inputs, width) = (spec.inputs(), spec.width);
        let mut factors = [1.0f32; BLOCK];
        let rows = self.d_x.chunks_exact_mut(inputs.max(1));
        for (row, d_x) in rows.enumerate() {
            let x = &self.x[row * inputs..][..inputs];
            let (d_x, d_v) = d_x.split_at_mut(width);
            for (block, d_x) in d_x.chunks_mut(BLOCK).enumerate() {
                let (first, count) = (block * BLOCK, d_x.len());
                if let Some(mask) = &spec.dropout {
                    let number = (self.first + row) * width + first;
                    mask.fill(number, &mut factors[..count]);
                }
                let gate = Part::new(spec, x, first, count);
                let mut of_value = spec.gated.then(|| {
                    let v = Part::new(spec, x, width + first, count);
                    (v, &mut d_v[first..][..count])
                });
                let d_y = self.d_y.map(|d_y| &d_y[row * width + first..][..count]);
                let mut y = match self.y.is_empty() {
                    true => None,
                    false => Some(cleared(&mut self.y[row * width + first..][..count])),
                };
                for at in (0..count).step_by(S::LANES) {
                    let u = gate.load(s, at);
                    let mut d = s.load_at(d_y.unwrap_or(d_x), at);
                    let factor = match spec.dropout {
                        Some(_) => s.load_at(&factors[..count], at),
                        None => s.splat(1.0),
                    };
                    let v = match &of_value {
                        Some((v, _)) => v.load(s, at),
                        None => s.splat(1.0),
                    };
                    d = s.mul(d, factor);
                    let [value, d_u] = with_gradient(s, spec.activation, u, s.mul(d, v));
                    s.store_at(d_x, at, d_u);
                    if let Some((_, d_v)) = &mut of_value {
                        s.store_at(d_v, at, s.mul(d, value));
                    }
                    if let Some(y) = &mut y {
                        s.store_at(y, at, s.mul(s.mul(value, v), factor));
                    }
                }
                if !self.sums.is_empty() {
                    let sums = &mut self.sums[first..][..count];
                    ColumnSums { x: d_x, sums }.call(s);
                    if let Some((_, d_v)) = of_value {
                        let sums = &mut self.sums[width + first..][..count];
                        ColumnSums { x: d_v, sums }.call(s);
                    }
                }
            }
        }
    }
}

/// Below its negative `φ` is 0 but for less than 1e-35, and beyond both `φ'` is 0 or 1.
const NEAR: f32 = 100.0;
/// The factor inside the sigmoid that comes nearest to GELU.
const QUICK: f32 = 1.702;

/// `φ(x)`
#[inline(always)]
fn value<S: Simd>(s: S, activation: Activation, x: S::V) -> S::V {
    let [value, _] = with_gradient(s, activation, x, s.zero());
    value
}

/// `φ(x)` and `d φ'(x)`, which share most of their work.
#[inline(always)]
fn with_gradient<S: Simd>(s: S, activation: Activation, x: S::V, d: S::V) -> [S::V; 2] {
    const ROOT_TWO_PI: f32 = 2.506_628_3;
    // Below it all but ReLU are 0, while a sigmoid's smallest value times -3e38 would not be.
    let above = s.max(s.splat(-NEAR), x);
    // Infinity times 0 would be NaN.
    let near = s.min(s.splat(NEAR), above);
    let [value, slope] = match activation {
        // Below the least number above 0 nothing comes back, not even infinity; NaN is not below it, and keeps its gradient.
        Activation::Relu => {
            let below = s.greater(s.splat(f32::from_bits(1)), x);
            return [s.max(s.zero(), x), s.select(below, s.zero(), d)];
        }
        Activation::Gelu => {
            let below = normal_below(s, above);
            let exponent = s.mul(half_square(s, near), s.splat(-LOG2_E));
            let density = s.mul(simd::exp2(s, exponent), s.splat(1.0 / ROOT_TWO_PI));
            [s.mul(above, below), s.fma(near, density, below)]
        }
        Activation::GeluTanh => {
            let (doubled, slope) = tanh_argument(s, near);
            times_sigmoid(s, above, doubled, s.mul(near, slope))
        }
        Activation::Silu => times_sigmoid(s, above, near, near),
        Activation::QuickGelu => {
            let scaled = s.mul(s.splat(QUICK), near);
            times_sigmoid(s, above, scaled, scaled)
        }
    };
    [value, s.mul(d, slope)]
}

/// `x σ(u)` and its slope, for an `x` that is not far below 0: `σ + (x u') σ (1 - σ)`, where the caller has multiplied `x` with `u'`.
#[inline(always)]
fn times_sigmoid<S: Simd>(s: S, x: S::V, u: S::V, x_times_slope: S::V) -> [S::V; 2] {
    let sigmoid = simd::sigmoid(s, u);
    let curve = s.mul(sigmoid, s.sub(s.splat(1.0), sigmoid));
    [s.mul(x, sigmoid), s.fma(x_times_slope, curve, sigmoid)]
}

/// `2u = 2 √(2/π) (x + a x³)`, for which `(1 + tanh u) / 2 = σ(2u)`, and its slope.
#[inline(always)]
fn tanh_argument<S: Simd>(s: S, x: S::V) -> (S::V, S::V) {
    const A: f32 = 0.044715;
    let factor = s.splat(2.0 * 0.797_884_6);
    let square = s.mul(x, x);
    let inner = s.fma(s.mul(s.splat(A), square), x, x);
    let slope = s.fma(s.splat(3.0 * A), square, s.splat(1.0));
    (s.mul(factor, inner), s.mul(factor, slope))
}

/// `Φ(x) = erfc(-x / √2) / 2`, by the rational Chebyshev fit of Numerical Recipes (`erfcc`), whose relative error is below
/// 1.2e-7 everywhere: with `t = 1 / (1 + |x| / √8)`, the tail on one side is `t 2^(P(t) - x² / ln 4) / 2`.
#[inline(always)]
fn normal_below<S: Simd>(s: S, x: S::V) -> S::V {
    // Those of the book times 1 / ln 2.
    const TERMS: [f32; 10] = [
        0.246_517_3,
        -1.186_114_9,
        2.147_474_5,
        -1.637_753_2,
        0.402_321_58,
        -0.268_756_86,
        0.139_630_06,
        0.539_700_6,
        1.442_729_2,
        -1.825_748_2,
    ];
    const ROOT_8TH: f32 = 0.353_553_4;
    let size = s.min(s.splat(NEAR), s.abs(x));
    let t = s.fma(size, s.splat(ROOT_8TH), s.splat(1.0));
    let t = s.quick_div(s.splat(1.0), t);
    let [first, rest @ ..] = TERMS;
    let mut sum = s.splat(first);
    for term in rest {
        sum = s.fma(sum, t, s.splat(term));
    }
    let exponent = s.fma(half_square(s, size), s.splat(-LOG2_E), sum);
    let tail = s.mul(s.mul(s.splat(0.5), t), simd::exp2(s, exponent));
    let positive = s.greater(x, s.zero());
    s.select(positive, s.sub(s.splat(1.0), tail), tail)
}

/// `x² / 2`
#[inline(always)]
fn half_square<S: Simd>(s: S, x: S::V) -> S::V {
    s.mul(s.mul(s.splat(0.5), x), x)
}
