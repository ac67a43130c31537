//! Activations of a feed-forward network, with a gate or without, with dropout, in one pass; with gradients.
//!
//! For `x [rows, width]`, or with a gate rows `[g | v]` of `2 width` numbers, and dropout's factors `m` (see
//! [`pointwise`](crate::pointwise)):
//! ```text
//! plain   y = m ∘ φ(x)            ẋ = m ∘ ẏ ∘ φ'(x)
//! gated   y = m ∘ φ(g) ∘ v        ġ = m ∘ ẏ ∘ v ∘ φ'(g),   v̇ = m ∘ ẏ ∘ φ(g)
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
//! let spec = Activated { activation: Activation::Silu, gated: true, rows: 1, width: 2, dropout: None };
//! let (x, mut y) = ([0.0, 100.0, 5.0, 3.0], [0.0; 2]); // g = [0, 100], v = [5, 3]
//! spec.forward(&x, &mut y)?;
//! assert_eq!(y, [0.0, 300.0]);
//! # Ok::<(), regard_kernels::KernelError>(())
//! ```

use std::f32::consts::LOG2_E;

use crate::error::{KernelError, check_length};
use crate::pointwise::DropoutMask;
use crate::simd::{self, Kernel, Level, Simd, run};
use crate::threads::{RowsMut, for_each_chunk, rows};

#[cfg(test)]
mod tests;

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
pub struct Activated {
    /// `φ`
    pub activation: Activation,
    /// Whether a row is `[g | v]`.
    pub gated: bool,
    /// Rows.
    pub rows: usize,
    /// Numbers in a row of the output.
    pub width: usize,
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

impl Activated {
    /// Numbers in a row of the input.
    fn inputs(&self) -> usize {
        self.width.saturating_mul(if self.gated { 2 } else { 1 })
    }

    fn check(&self, x: &[f32], y: usize) -> Result<(), KernelError> {
        if let Some(mask) = &self.dropout {
            mask.check()?;
        }
        let inputs = self.inputs();
        check_length("x", "[rows, inputs]", &[self.rows, inputs], x.len())?;
        check_length("y", "[rows, width]", &[self.rows, self.width], y)
    }

    /// Rows in a chunk of work.
    fn chunk(&self) -> usize {
        (CHUNK / self.width.max(1)).max(1)
    }

    fn nanoseconds(&self, of_number: f64) -> f64 {
        self.rows as f64 * self.width as f64 * of_number
    }

    /// Overwrites `y [rows, width]` with `m ∘ φ(x)`, or `m ∘ φ(g) ∘ v`.
    ///
    /// # Errors
    /// [`KernelError`] if a length does not fit the sizes, or a probability is not in `[0, 1)`.
    pub fn forward(&self, x: &[f32], y: &mut [f32]) -> Result<(), KernelError> {
        self.forward_on(Level::current(), x, y)
    }

    fn forward_on(&self, level: Level, x: &[f32], y: &mut [f32]) -> Result<(), KernelError> {
        self.check(x, y.len())?;
        let inputs = self.inputs();
        let work = |first: usize, y: RowsMut<f32>| {
            let x = &x[first * inputs..];
            run(
                level,
                Forward {
                    spec: self,
                    first,
                    x,
                    y: y.data,
                },
            );
        };
        let items = rows(y, self.width);
        for_each_chunk(items, self.rows, self.chunk(), self.nanoseconds(1.0), &work);
        Ok(())
    }

    /// Overwrites `d_x`, of the size of `x`, with the gradient of `x` from that of the output, `d_y [rows, width]`.
    ///
    /// # Errors
    /// As [`Activated::forward`].
    pub fn backward(&self, x: &[f32], d_y: &[f32], d_x: &mut [f32]) -> Result<(), KernelError> {
        self.backward_on(Level::current(), x, d_y, d_x)
    }

    fn backward_on(
        &self,
        level: Level,
        x: &[f32],
        d_y: &[f32],
        d_x: &mut [f32],
    ) -> Result<(), KernelError> {
        self.check(x, d_y.len())?;
        let (inputs, width) = (self.inputs(), self.width);
        check_length("d_x", "[rows, inputs]", &[self.rows, inputs], d_x.len())?;
        let work = |first: usize, d_x: RowsMut<f32>| {
            let (x, d_y) = (&x[first * inputs..], &d_y[first * width..]);
            run(
                level,
                Backward {
                    spec: self,
                    first,
                    x,
                    d_y,
                    d_x: d_x.data,
                },
            );
        };
        let items = rows(d_x, inputs);
        for_each_chunk(items, self.rows, self.chunk(), self.nanoseconds(2.0), &work);
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

/// The rows from `first` on.
struct Forward<'a> {
    spec: &'a Activated,
    first: usize,
    x: &'a [f32],
    y: &'a mut [f32],
}

impl Kernel for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let Activated {
            activation,
            gated,
            width,
            dropout,
            ..
        } = *self.spec;
        let inputs = self.spec.inputs();
        let mut factors = [1.0f32; BLOCK];
        let rows = self.y.chunks_exact_mut(width.max(1));
        for (row, y) in rows.enumerate() {
            let x = &self.x[row * inputs..][..inputs];
            for first in (0..width).step_by(BLOCK) {
                let count = BLOCK.min(width - first);
                if let Some(mask) = &dropout {
                    let number = (self.first + row) * width + first;
                    mask.fill(number, &mut factors[..count]);
                }
                let part = &x[first..first + count];
                let y = &mut y[first..first + count];
                for at in (0..count).step_by(S::LANES) {
                    let mut found = value(s, activation, s.load_at(part, at));
                    if gated {
                        let v = &x[width + first..][..count];
                        found = s.mul(found, s.load_at(v, at));
                    }
                    if dropout.is_some() {
                        found = s.mul(found, s.load_at(&factors[..count], at));
                    }
                    s.store_at(y, at, found);
                }
            }
        }
    }
}

/// The rows from `first` on.
struct Backward<'a> {
    spec: &'a Activated,
    first: usize,
    x: &'a [f32],
    d_y: &'a [f32],
    d_x: &'a mut [f32],
}

impl Kernel for Backward<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let Activated {
            activation,
            gated,
            width,
            dropout,
            ..
        } = *self.spec;
        let inputs = self.spec.inputs();
        let mut factors = [1.0f32; BLOCK];
        let rows = self.d_x.chunks_exact_mut(inputs.max(1));
        for (row, d_x) in rows.enumerate() {
            let x = &self.x[row * inputs..][..inputs];
            let (d_x, d_v) = d_x.split_at_mut(width);
            for first in (0..width).step_by(BLOCK) {
                let count = BLOCK.min(width - first);
                if let Some(mask) = &dropout {
                    let number = (self.first + row) * width + first;
                    mask.fill(number, &mut factors[..count]);
                }
                let part = &x[first..first + count];
                let d_y = &self.d_y[row * width + first..][..count];
                let d_x = &mut d_x[first..first + count];
                for at in (0..count).step_by(S::LANES) {
                    let x_at = s.load_at(part, at);
                    let mut d = s.load_at(d_y, at);
                    if dropout.is_some() {
                        d = s.mul(d, s.load_at(&factors[..count], at));
                    }
                    let slope = slope(s, activation, x_at);
                    if gated {
                        let v = s.load_at(&x[width + first..][..count], at);
                        let d_v = &mut d_v[first..first + count];
                        s.store_at(d_v, at, s.mul(d, value(s, activation, x_at)));
                        d = s.mul(d, v);
                    }
                    s.store_at(d_x, at, s.mul(d, slope));
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
    if activation == Activation::Relu {
        return s.max(x, s.zero());
    }
    // Below it the others are 0, while a sigmoid's smallest value times -3e38 would not be.
    let x = s.max(s.splat(-NEAR), x);
    match activation {
        Activation::Relu => x,
        Activation::Gelu => s.mul(x, normal_below(s, x)),
        Activation::GeluTanh => {
            let (doubled, _) = tanh_argument(s, x);
            s.mul(x, simd::sigmoid(s, doubled))
        }
        Activation::Silu => s.mul(x, simd::sigmoid(s, x)),
        Activation::QuickGelu => s.mul(x, simd::sigmoid(s, s.mul(s.splat(QUICK), x))),
    }
}

/// `φ'(x)`
#[inline(always)]
fn slope<S: Simd>(s: S, activation: Activation, x: S::V) -> S::V {
    const ROOT_TWO_PI: f32 = 2.506_628_3;
    let one = s.splat(1.0);
    // Infinity times 0 would be NaN.
    let near = s.min(s.splat(NEAR), s.max(s.splat(-NEAR), x));
    match activation {
        Activation::Relu => s.select(s.greater(x, s.zero()), one, s.zero()),
        Activation::Gelu => {
            let exponent = s.mul(half_square(s, near), s.splat(-LOG2_E));
            let density = simd::exp2(s, exponent);
            let density = s.mul(density, s.splat(1.0 / ROOT_TWO_PI));
            s.fma(near, density, normal_below(s, x))
        }
        Activation::GeluTanh => {
            let (doubled, slope) = tanh_argument(s, near);
            let sigmoid = simd::sigmoid(s, doubled);
            let curve = s.mul(s.mul(near, slope), s.mul(sigmoid, s.sub(one, sigmoid)));
            s.add(sigmoid, curve)
        }
        Activation::Silu => {
            let sigmoid = simd::sigmoid(s, near);
            s.fma(near, s.mul(sigmoid, s.sub(one, sigmoid)), sigmoid)
        }
        Activation::QuickGelu => {
            let scaled = s.mul(s.splat(QUICK), near);
            let sigmoid = simd::sigmoid(s, scaled);
            s.fma(scaled, s.mul(sigmoid, s.sub(one, sigmoid)), sigmoid)
        }
    }
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
