//! GRU with the reset applied after the recurrent product (Cho 2014's decoder, PyTorch, cuDNN).
//!
//! ```text
//! z  = σ(x_z + u_z)          x = W input + b   [batch, 3 units]  (z r n)
//! r  = σ(x_r + u_r)          u = U h + b'      [batch, 3 units]
//! n  = tanh(x_n + r ∘ u_n)
//! h' = (1 - z) ∘ n + z ∘ h                     [batch, units]
//! ```
//! Here `z` weights the *old* state; in [`super::gru_reset_before`] it weights the new one. PyTorch's
//! weights hold the same gates in the order `r z n`.
//!
//! ```text
//! | z | r | n |  of x  \                               row by row: every number is read once and every
//! | z | r | n |  of u   >  | h' |,  | z | r | n | kept   result written once, the unit's gates in registers
//! | h |               /                                of one step of lanes
//! ```
//!
//! ```
//! use regard_kernels::cell::{Step, gru};
//! let step = Step { batch: 1, units: 1, keep: None };
//! let (mut next, mut gates) = ([0.0], [0.0; 3]);
//! gru::forward(step, &[0.0; 3], &[0.0; 3], &[1.0], &mut next, &mut gates)?;
//! assert_eq!(next, [0.5]);
//! assert_eq!(gates, [0.5, 0.5, 0.0]);
//! # Ok::<(), regard_kernels::KernelError>(())
//! ```

use super::{RowWork, Step, gates_mut, gates_of};
use crate::error::KernelError;
use crate::simd::{Level, Simd, sigmoid, tanh, zip_map};
use crate::threads::{RowsMut, rows};

/// Computes the next state `[batch, units]` and, for [`backward`], the activated `gates`
/// `[batch, 3 units]` (`z r n`) from `x` and `u` `[batch, 3 units]` and `state` `[batch, units]`.
///
/// `gates` of a row that does not move are left as they are.
///
/// # Errors
/// [`KernelError::Length`] if a slice does not have the length its shape asks for.
pub fn forward(
    step: Step<'_>,
    x: &[f32],
    u: &[f32],
    state: &[f32],
    next: &mut [f32],
    gates: &mut [f32],
) -> Result<(), KernelError> {
    forward_at(Level::current(), step, x, u, state, next, gates)
}

pub(crate) fn forward_at(
    level: Level,
    step: Step<'_>,
    x: &[f32],
    u: &[f32],
    state: &[f32],
    next: &mut [f32],
    gates: &mut [f32],
) -> Result<(), KernelError> {
    step.check([
        ("x", 3, x.len()),
        ("u", 3, u.len()),
        ("state", 1, state.len()),
        ("next", 1, next.len()),
        ("gates", 3, gates.len()),
    ])?;
    let outputs = (rows(next, step.units), rows(gates, 3 * step.units));
    step.for_each_row(level, outputs, &Forward { step, x, u, state });
    Ok(())
}

struct Forward<'a> {
    step: Step<'a>,
    x: &'a [f32],
    u: &'a [f32],
    state: &'a [f32],
}

impl<'o> RowWork<(RowsMut<'o, f32>, RowsMut<'o, f32>)> for Forward<'_> {
    #[inline(always)]
    fn row<S: Simd>(&self, s: S, row: usize, (next, gates): (RowsMut<'o, f32>, RowsMut<'o, f32>)) {
        let n = self.step.units;
        let [state] = gates_of(self.state, row, n);
        if !self.step.moves(row) {
            next.data.copy_from_slice(state);
            return;
        }
        let [x_z, x_r, x_n] = gates_of(self.x, row, n);
        let [u_z, u_r, u_n] = gates_of(self.u, row, n);
        let [z, r, c] = gates_mut(gates.data, n);
        zip_map(
            s,
            [x_r, x_z, x_n, u_r, u_z, u_n, state],
            [next.data, r, z, c],
            #[inline(always)]
            |[x_r, x_z, x_n, u_r, u_z, u_n, state], _| {
                let r = sigmoid(s, s.add(x_r, u_r));
                let z = sigmoid(s, s.add(x_z, u_z));
                let c = tanh(s, s.fma(r, u_n, x_n));
                [s.fma(z, s.sub(state, c), c), r, z, c]
            },
        );
    }
}

/// What [`backward`] starts from.
#[derive(Debug, Clone, Copy)]
pub struct Saved<'a> {
    /// `[batch, 3 units]`, as given to [`forward`].
    pub u: &'a [f32],
    /// `[batch, units]`, as given to [`forward`].
    pub state: &'a [f32],
    /// `[batch, 3 units]`, as [`forward`] returned them.
    pub gates: &'a [f32],
}

/// Gradients of `x`, `u` (`[batch, 3 units]`) and `state` (`[batch, units]`), each overwritten,
/// from that of the next state.
///
/// # Errors
/// [`KernelError::Length`] if a slice does not have the length its shape asks for.
pub fn backward(
    step: Step<'_>,
    saved: Saved<'_>,
    d_next: &[f32],
    d_x: &mut [f32],
    d_u: &mut [f32],
    d_state: &mut [f32],
) -> Result<(), KernelError> {
    backward_at(Level::current(), step, saved, d_next, d_x, d_u, d_state)
}

pub(crate) fn backward_at(
    level: Level,
    step: Step<'_>,
    saved: Saved<'_>,
    d_next: &[f32],
    d_x: &mut [f32],
    d_u: &mut [f32],
    d_state: &mut [f32],
) -> Result<(), KernelError> {
    step.check([
        ("saved.u", 3, saved.u.len()),
        ("saved.state", 1, saved.state.len()),
        ("saved.gates", 3, saved.gates.len()),
        ("d_next", 1, d_next.len()),
        ("d_x", 3, d_x.len()),
        ("d_u", 3, d_u.len()),
        ("d_state", 1, d_state.len()),
    ])?;
    let n = step.units;
    let outputs = (rows(d_x, 3 * n), rows(d_u, 3 * n), rows(d_state, n));
    step.for_each_row(
        level,
        outputs,
        &Backward {
            step,
            saved,
            d_next,
        },
    );
    Ok(())
}

struct Backward<'a> {
    step: Step<'a>,
    saved: Saved<'a>,
    d_next: &'a [f32],
}

type BackwardRow<'o> = (RowsMut<'o, f32>, RowsMut<'o, f32>, RowsMut<'o, f32>);

impl<'o> RowWork<BackwardRow<'o>> for Backward<'_> {
    #[inline(always)]
    fn row<S: Simd>(&self, s: S, row: usize, (d_x, d_u, d_state): BackwardRow<'o>) {
        let n = self.step.units;
        let [d_next] = gates_of(self.d_next, row, n);
        if !self.step.moves(row) {
            d_x.data.fill(0.0);
            d_u.data.fill(0.0);
            d_state.data.copy_from_slice(d_next);
            return;
        }
        let [_, _, u_n] = gates_of(self.saved.u, row, n);
        let [state] = gates_of(self.saved.state, row, n);
        let [z, r, c] = gates_of(self.saved.gates, row, n);
        let [dx_z, dx_r, dx_n] = gates_mut(d_x.data, n);
        let [du_z, du_r, du_n] = gates_mut(d_u.data, n);
        zip_map(
            s,
            [d_next, u_n, state, r, z, c],
            [dx_r, dx_z, dx_n, du_r, du_z, du_n, d_state.data],
            #[inline(always)]
            |[d, u_n, state, r, z, c], _| {
                let d_old = s.mul(d, z);
                let d_n = s.sub(d, d_old);
                let d_n = s.fnma(s.mul(d_n, c), c, d_n);
                let d_z = s.mul(s.sub(state, c), s.fnma(z, d_old, d_old));
                let slope_r = s.fnma(r, r, r);
                let d_r = s.mul(s.mul(d_n, u_n), slope_r);
                [d_r, d_z, d_n, d_r, d_z, s.mul(d_n, r), d_old]
            },
        );
    }
}
