//! The feed-forward network of a Transformer, block by block of rows; with gradients.
//!
//! For `x [rows, inputs]`, `W₁ [inputs, width]` (with a gate `[inputs, 2 width]`), `W₂ [width, outputs]` and an activation `φ` with
//! dropout (see [`activation`](crate::activation)):
//! ```text
//! u = x W₁ + b₁     a = m ∘ φ(u)     y = a W₂
//! ȧ = ẏ W₂ᵀ         u̇ = m ∘ ȧ ∘ φ'(u)         ẋ = u̇ W₁ᵀ,   Ẇ₁ = xᵀ u̇,   ḃ₁ = Σ_rows u̇,   Ẇ₂ = aᵀ ẏ
//! ```
//! ```text
//! x | 32 rows | -> u, a | 32 rows of inner numbers | -> y | 32 rows |      u and a stay in the L2 cache; by separate operations
//!   | 32 rows |         ..                                                 each is written to memory and read again
//! ```
//! Of weights that are beyond that cache themselves, a block has up to 256 rows, so that they are not read too often. Of a pass without
//! gradients nothing but `y` is written. For gradients `u` is kept; the backward pass computes `a` again with `u̇`, as
//! both take the same exponential functions. Numbers are those of [`affine`](crate::matmul::affine()) and
//! [`Activated`] one after the other, to the last bit; `ḃ₁` is summed in another order.
//!
//! ```
//! use regard_kernels::{activation::{Activated, Activation}, feed_forward::FeedForward};
//! let activated = Activated { activation: Activation::Relu, gated: false, rows: 1, width: 2, bias: Some(&[0.0, 1.0]), dropout: None };
//! let layer = FeedForward { activated, inputs: 1, outputs: 1, first: &[1.0, -1.0], second: &[1.0, 10.0] };
//! let mut y = [0.0];
//! layer.forward(&[0.5], None, &mut y)?;
//! assert_eq!(y, [5.5]); // u = [0.5, 0.5]
//! # Ok::<(), regard_kernels::KernelError>(())
//! ```

use std::mem::MaybeUninit;

use crate::{
    activation::{Activated, Backward},
    error::{KernelError, check_length},
    matmul::{LARGE, NANOSECONDS, Packed, Strides, TASKS},
    pointwise::add_chunks,
    simd::{Level, cleared, fresh, run},
    threads::{RowsMut, for_each_chunk, rows},
};

#[cfg(test)]
mod tests;

/// Rows of an output that holds nothing yet.
type Fresh<'a> = RowsMut<'a, MaybeUninit<f32>>;

/// Rows of a unit: a block has one, or several where the weights are beyond the L2 cache. The gradient of the bias is summed unit by unit, so
/// that it does not depend on the number of threads.
const UNIT: usize = 32;
/// Units of a block, at least and at most, where there are several.
const UNITS: [usize; 2] = [2, 8];

/// The name and the shape of `u` in errors.
const U: (&str, &str) = ("u", "[rows, inner]");

/// Sizes, weights and options of a feed-forward network.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FeedForward<'a> {
    /// The activation: rows, width, `b₁`, dropout.
    pub activated: Activated<'a>,
    /// Numbers in a row of `x`.
    pub inputs: usize,
    /// Numbers in a row of `y`.
    pub outputs: usize,
    /// `W₁ [inputs, width]`, or with a gate `[inputs, 2 width]`.
    pub first: &'a [f32],
    /// `W₂ [width, outputs]`
    pub second: &'a [f32],
}

/// Where the gradients of a feed-forward network go, none of which needs to hold anything before; and what gradients of weights are computed
/// from, by [`weight_gradient`](crate::matmul::weight_gradient).
#[derive(Debug)]
pub struct Gradients<'a> {
    /// `ẋ [rows, inputs]`, if wanted.
    pub d_x: Option<&'a mut [MaybeUninit<f32>]>,
    /// `u̇ [rows, width]`, or with a gate `[rows, 2 width]`, if wanted: `Ẇ₁ = xᵀ u̇`.
    pub d_u: Option<&'a mut [MaybeUninit<f32>]>,
    /// `a [rows, width]`, if wanted: `Ẇ₂ = aᵀ ẏ`.
    pub a: Option<&'a mut [MaybeUninit<f32>]>,
    /// `ḃ₁ [width]`, or with a gate `[2 width]`, if wanted.
    pub d_bias: Option<&'a mut [f32]>,
}

impl FeedForward<'_> {
    /// Numbers in a row of `u`: the width, or with a gate twice that.
    fn inner(&self) -> usize {
        self.activated.inputs()
    }

    /// Units of a block. Influences speed only.
    fn units(&self) -> usize {
        if self.first.len().max(self.second.len()) <= LARGE {
            return 1;
        }
        let [least, most] = UNITS;
        let of_task = self
            .activated
            .rows
            .div_ceil(TASKS * rayon::current_num_threads());
        of_task.div_ceil(UNIT).clamp(least, most)
    }

    fn check(&self, y: usize) -> Result<(), KernelError> {
        let Activated { rows, width, .. } = self.activated;
        self.activated.check_options()?;
        let (first, second) = ([self.inputs, self.inner()], [width, self.outputs]);
        check_length("first", "[inputs, inner]", &first, self.first.len())?;
        check_length("second", "[width, outputs]", &second, self.second.len())?;
        check_length("y", "[rows, outputs]", &[rows, self.outputs], y)
    }

    fn check_rows(
        &self,
        (name, shape): (&'static str, &'static str),
        width: usize,
        found: usize,
    ) -> Result<(), KernelError> {
        check_length(name, shape, &[self.activated.rows, width], found)
    }

    fn nanoseconds(&self) -> f64 {
        let width = self.activated.width as f64;
        let products = self.inner() as f64 * self.inputs as f64 + width * self.outputs as f64;
        self.activated.rows as f64 * (products * NANOSECONDS + width)
    }

    /// Overwrites `y [rows, outputs]`, and `u [rows, width]` (with a gate `[rows, 2 width]`), which gradients need.
    ///
    /// # Errors
    /// [`KernelError`] if a length does not fit the sizes, or a probability is not in `[0, 1)`.
    pub fn forward(
        &self,
        x: &[f32],
        u: Option<&mut [f32]>,
        y: &mut [f32],
    ) -> Result<(), KernelError> {
        self.forward_on(Level::current(), x, u.map(fresh), fresh(y))
    }

    /// [`FeedForward::forward`] into memory that holds nothing yet: all of it is written, unless there is an error.
    ///
    /// # Errors
    /// As [`FeedForward::forward`].
    pub fn forward_fresh(
        &self,
        x: &[f32],
        u: Option<&mut [MaybeUninit<f32>]>,
        y: &mut [MaybeUninit<f32>],
    ) -> Result<(), KernelError> {
        self.forward_on(Level::current(), x, u, y)
    }

    fn forward_on(
        &self,
        level: Level,
        x: &[f32],
        u: Option<&mut [MaybeUninit<f32>]>,
        y: &mut [MaybeUninit<f32>],
    ) -> Result<(), KernelError> {
        let Self {
            inputs, outputs, ..
        } = *self;
        let (spec, inner, block) = (self.activated, self.inner(), self.units() * UNIT);
        self.check(y.len())?;
        self.check_rows(("x", "[rows, inputs]"), inputs, x.len())?;
        let kept = u.as_ref().map_or(0, |u| u.len());
        if u.is_some() {
            self.check_rows(U, inner, kept)?;
        }
        if y.is_empty() && kept == 0 {
            return Ok(()); // rows of no numbers may be more than could be counted
        }
        let [first, second] = [
            (self.first, inputs, inner),
            (self.second, spec.width, outputs),
        ]
        .map(|(weight, from, to)| {
            Packed::strided(level, weight, Strides { row: to, column: 1 }, from, to)
        });
        let work = |start: usize, (u, y): (Option<Fresh>, Fresh)| {
            let count = (spec.rows - start).min(block);
            let x = &x[start * inputs..][..count * inputs];
            let mut own = vec![0.0; if u.is_some() { 0 } else { count * inner }];
            let u = u.map_or_else(|| fresh(&mut own), |u| u.data);
            let u = first.affine(x, u, count, [0, inner], spec.bias.unwrap_or_default());
            let mut a = vec![0.0; count * spec.width];
            spec.unbiased().forward_rows(level, start, u, fresh(&mut a));
            second.affine(&a, y.data, count, [0, outputs], &[]);
        };
        let items = (u.map(|u| rows(u, inner)), rows(y, outputs));
        for_each_chunk(items, spec.rows, block, self.nanoseconds(), &work);
        Ok(())
    }

    /// Overwrites what `gradients` wants, from what [`FeedForward::forward`] kept in `u` and the gradient of the output,
    /// `d_y [rows, outputs]`.
    ///
    /// # Errors
    /// As [`FeedForward::forward`].
    pub fn backward(
        &self,
        u: &[f32],
        d_y: &[f32],
        gradients: Gradients<'_>,
    ) -> Result<(), KernelError> {
        self.backward_on(Level::current(), u, d_y, gradients)
    }

    fn backward_on(
        &self,
        level: Level,
        u: &[f32],
        d_y: &[f32],
        gradients: Gradients<'_>,
    ) -> Result<(), KernelError> {
        let Self {
            inputs, outputs, ..
        } = *self;
        let (spec, inner) = (self.activated.unbiased(), self.inner());
        let Gradients {
            d_x,
            d_u,
            a,
            d_bias,
        } = gradients;
        self.check(d_y.len())?;
        self.check_rows(U, inner, u.len())?;
        for (name, width, given) in [
            (("d_x", "[rows, inputs]"), inputs, &d_x),
            (("d_u", "[rows, inner]"), inner, &d_u),
            (("a", "[rows, width]"), spec.width, &a),
        ] {
            if let Some(given) = given {
                self.check_rows(name, width, given.len())?;
            }
        }
        if let Some(d_bias) = &d_bias {
            check_length("d_bias", "[inner]", &[inner], d_bias.len())?;
        }
        if inner == 0 {
            d_x.into_iter()
                .for_each(|d_x| d_x.fill(MaybeUninit::new(0.0)));
            return Ok(()); // rows of no numbers may be more than could be counted
        }
        let [first, second] = [
            (self.first, inner, inputs),
            (self.second, outputs, spec.width),
        ]
        .map(|(weight, from, to)| {
            Packed::strided(
                level,
                weight,
                Strides {
                    row: 1,
                    column: from,
                },
                from,
                to,
            )
        });
        let summed = if d_bias.is_some() { inner } else { 0 };
        let (units, of_block) = (spec.rows.div_ceil(UNIT), self.units());
        let mut sums = vec![0.0; units * summed];
        let work = |unit: usize, ([d_x, d_u, a], sums): ([Option<Fresh>; 3], RowsMut<f32>)| {
            let start = unit * UNIT;
            let count = (spec.rows - start).min(of_block * UNIT);
            let (u, d_y) = (
                &u[start * inner..],
                &d_y[start * outputs..][..count * outputs],
            );
            let mut own = vec![0.0; if d_u.is_some() { 0 } else { count * inner }];
            let d_u = d_u.map_or_else(|| fresh(&mut own), |d_u| d_u.data);
            let product = |to| second.affine(d_y, to, count, [0, spec.width], &[]);
            let mut d_a = vec![0.0; if spec.gated { count * spec.width } else { 0 }];
            let (d_a, d_u) = match spec.gated {
                true => (Some(&*product(fresh(&mut d_a))), cleared(d_u)),
                false => (None, product(d_u)),
            };
            let mut sums = sums.data.chunks_mut(inner);
            let mut a = a.map(|a| a.data.chunks_mut(UNIT * spec.width));
            for (index, d_u) in d_u.chunks_mut(UNIT * inner).enumerate() {
                let row = index * UNIT;
                let backward = Backward {
                    spec: &spec,
                    first: start + row,
                    x: &u[row * inner..],
                    d_y: d_a.map(|d_a| &d_a[row * spec.width..]),
                    d_x: d_u,
                    y: a.as_mut().and_then(Iterator::next).unwrap_or_default(),
                    sums: sums.next().unwrap_or_default(),
                };
                run(level, backward);
            }
            if let Some(d_x) = d_x {
                first.affine(d_u, d_x.data, count, [0, inputs], &[]);
            }
        };
        let cut = |to: Option<_>, width: usize| to.map(|to| rows(to, UNIT * width));
        let items = [cut(d_x, inputs), cut(d_u, inner), cut(a, spec.width)];
        let items = (items, rows(&mut sums, summed));
        for_each_chunk(items, units, of_block, self.nanoseconds(), &work);
        if let Some(d_bias) = d_bias {
            add_chunks(&sums, d_bias);
        }
        Ok(())
    }
}
