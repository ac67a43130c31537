//! LSTM without peepholes, in PyTorch's gate order.
//!
//! ```text
//! i, f, o = σ(x + u), g = tanh(x_g + u_g)     x = W input + b, u = U h   [batch, 4 units]  (i f g o)
//! c' = f ∘ c + i ∘ g                                                     [batch, units]
//! h' = o ∘ tanh c'                                                       [batch, units]
//! ```
//!
//! ```text
//! | i | f | g | o |  of x  \                                       row by row: every number is read once and
//! | i | f | g | o |  of u   >  | h' |, | c' |, | i | f | g | o |   every result written once, the unit's gates
//! | c |                   /                            kept        in registers of one step of lanes
//! ```
//!
//! ```
//! use regard_kernels::cell::{Step, lstm};
//! let step = Step { batch: 1, units: 1, keep: None };
//! let (mut h, mut c, mut gates) = ([0.0], [0.0], [0.0; 4]);
//! let state = lstm::State { h: &[0.3], c: &[0.8] };
//! lstm::forward(step, &[0.0; 4], &[0.0; 4], state, &mut h, &mut c, &mut gates)?;
//! assert_eq!(c, [0.4]);
//! assert!((h[0] - 0.5 * 0.4f32.tanh()).abs() < 1e-7);
//! # Ok::<(), regard_kernels::KernelError>(())
//! ```

use super::{RowWork, Step, gates_mut, gates_of};
use crate::error::KernelError;
use crate::simd::{Level, Simd, sigmoid, tanh, zip_map};
use crate::threads::{RowsMut, rows};

type One<'o> = RowsMut<'o, f32>;
type Three<'o> = (One<'o>, One<'o>, One<'o>);

/// The two halves of a state, or their gradients.
#[derive(Debug, Clone, Copy)]
pub struct State<'a> {
    /// Hidden state `[batch, units]`.
    pub h: &'a [f32],
    /// Cell `[batch, units]`.
    pub c: &'a [f32],
}

/// Computes the next `h` and `c` `[batch, units]` and, for [`backward`], the activated `gates`
/// `[batch, 4 units]`, from `x` and `u` `[batch, 4 units]` and the former state.
///
/// `gates` of a row that does not move are left as they are.
///
/// # Errors
/// [`KernelError::Length`] if a slice does not have the length its shape asks for.
pub fn forward(
    step: Step<'_>,
    x: &[f32],
    u: &[f32],
    state: State<'_>,
    h: &mut [f32],
    c: &mut [f32],
    gates: &mut [f32],
) -> Result<(), KernelError> {
    Forward { step, x, u, state }.at(Level::current(), h, c, gates)
}

pub(crate) struct Forward<'a> {
    pub(crate) step: Step<'a>,
    pub(crate) x: &'a [f32],
    pub(crate) u: &'a [f32],
    pub(crate) state: State<'a>,
}

impl Forward<'_> {
    pub(crate) fn at(
        &self,
        level: Level,
        h: &mut [f32],
        c: &mut [f32],
        gates: &mut [f32],
    ) -> Result<(), KernelError> {
        let step = self.step;
        step.check([
            ("x", 4, self.x.len()),
            ("u", 4, self.u.len()),
            ("state.h", 1, self.state.h.len()),
            ("state.c", 1, self.state.c.len()),
            ("h", 1, h.len()),
            ("c", 1, c.len()),
            ("gates", 4, gates.len()),
        ])?;
        let outputs = (
            rows(h, step.units),
            rows(c, step.units),
            rows(gates, 4 * step.units),
        );
        step.for_each_row(level, outputs, self);
        Ok(())
    }
}

impl<'o> RowWork<Three<'o>> for Forward<'_> {
    #[inline(always)]
    fn row<S: Simd>(&self, s: S, row: usize, (h, c, gates): Three<'o>) {
        let n = self.step.units;
        let [h_old] = gates_of(self.state.h, row, n);
        let [c_old] = gates_of(self.state.c, row, n);
        if !self.step.moves(row) {
            h.data.copy_from_slice(h_old);
            c.data.copy_from_slice(c_old);
            return;
        }
        let [x_i, x_f, x_g, x_o] = gates_of(self.x, row, n);
        let [u_i, u_f, u_g, u_o] = gates_of(self.u, row, n);
        let [i, f, g, o] = gates_mut(gates.data, n);
        zip_map(
            s,
            [x_i, x_f, x_g, x_o, u_i, u_f, u_g, u_o, c_old],
            [h.data, c.data, i, f, g, o],
            #[inline(always)]
            |[x_i, x_f, x_g, x_o, u_i, u_f, u_g, u_o, c_old], _| {
                let i = sigmoid(s, s.add(x_i, u_i));
                let f = sigmoid(s, s.add(x_f, u_f));
                let g = tanh(s, s.add(x_g, u_g));
                let o = sigmoid(s, s.add(x_o, u_o));
                let c = s.fma(f, c_old, s.mul(i, g));
                [s.mul(o, tanh(s, c)), c, i, f, g, o]
            },
        );
    }
}

/// What [`backward`] starts from.
#[derive(Debug, Clone, Copy)]
pub struct Saved<'a> {
    /// `[batch, units]`: the cell before the step.
    pub c_old: &'a [f32],
    /// `[batch, units]`: the cell after the step.
    pub c: &'a [f32],
    /// `[batch, 4 units]`, as [`forward`] returned them.
    pub gates: &'a [f32],
}

/// From the gradients of the new state, overwrites those of the pre-activations
/// (`d_pre [batch, 4 units]`: the gradient of `x` and of `u` alike) and of the former state.
///
/// `d_h_old` is 0 in rows that move, because there `h` enters only through `u`.
///
/// # Errors
/// [`KernelError::Length`] if a slice does not have the length its shape asks for.
pub fn backward(
    step: Step<'_>,
    saved: Saved<'_>,
    d_new: State<'_>,
    d_pre: &mut [f32],
    d_h_old: &mut [f32],
    d_c_old: &mut [f32],
) -> Result<(), KernelError> {
    Backward { step, saved, d_new }.at(Level::current(), d_pre, d_h_old, d_c_old)
}

pub(crate) struct Backward<'a> {
    pub(crate) step: Step<'a>,
    pub(crate) saved: Saved<'a>,
    pub(crate) d_new: State<'a>,
}

impl Backward<'_> {
    pub(crate) fn at(
        &self,
        level: Level,
        d_pre: &mut [f32],
        d_h_old: &mut [f32],
        d_c_old: &mut [f32],
    ) -> Result<(), KernelError> {
        let step = self.step;
        step.check([
            ("saved.c_old", 1, self.saved.c_old.len()),
            ("saved.c", 1, self.saved.c.len()),
            ("saved.gates", 4, self.saved.gates.len()),
            ("d_new.h", 1, self.d_new.h.len()),
            ("d_new.c", 1, self.d_new.c.len()),
            ("d_pre", 4, d_pre.len()),
            ("d_h_old", 1, d_h_old.len()),
            ("d_c_old", 1, d_c_old.len()),
        ])?;
        let n = step.units;
        let outputs = (rows(d_pre, 4 * n), rows(d_h_old, n), rows(d_c_old, n));
        step.for_each_row(level, outputs, self);
        Ok(())
    }
}

impl<'o> RowWork<Three<'o>> for Backward<'_> {
    #[inline(always)]
    fn row<S: Simd>(&self, s: S, row: usize, (d_pre, dh_old, dc_old): Three<'o>) {
        let n = self.step.units;
        let [d_h] = gates_of(self.d_new.h, row, n);
        let [d_c] = gates_of(self.d_new.c, row, n);
        if !self.step.moves(row) {
            d_pre.data.fill(0.0);
            dh_old.data.copy_from_slice(d_h);
            dc_old.data.copy_from_slice(d_c);
            return;
        }
        dh_old.data.fill(0.0);
        let [c_old] = gates_of(self.saved.c_old, row, n);
        let [c] = gates_of(self.saved.c, row, n);
        let [i, f, g, o] = gates_of(self.saved.gates, row, n);
        let [di, df, dg, d_o] = gates_mut(d_pre.data, n);
        zip_map(
            s,
            [d_h, d_c, c_old, c, i, f, g, o],
            [di, df, dg, d_o, dc_old.data],
            #[inline(always)]
            |[d_h, d_c, c_old, c, i, f, g, o], _| {
                let t = tanh(s, c);
                let through = s.mul(d_h, o);
                let d_c = s.add(d_c, s.fnma(s.mul(through, t), t, through));
                let d_g = s.mul(d_c, i);
                [
                    s.mul(s.mul(d_c, g), s.fnma(i, i, i)),
                    s.mul(s.mul(d_c, c_old), s.fnma(f, f, f)),
                    s.fnma(s.mul(d_g, g), g, d_g),
                    s.mul(s.mul(d_h, t), s.fnma(o, o, o)),
                    s.mul(d_c, f),
                ]
            },
        );
    }
}
