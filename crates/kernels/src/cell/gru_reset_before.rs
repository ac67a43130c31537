//! GRU with the reset applied before the recurrent product (Cho 2014; Bahdanau 2014, appendix A).
//!
//! ```text
//! z  = σ(x_z + u_z)       x = W e(y) + C c + b  [batch, 3 units]  (z r n)
//! r  = σ(x_r + u_r)       u = U_zr s            [batch, 2 units]
//! s~ = tanh(x_n + U_n (r ∘ s))
//! s' = (1 - z) ∘ s + z ∘ s~
//! ```
//! `z` weights the *new* state. The product with `U_n` needs `r ∘ s`, so a step has two pointwise
//! halves around it: [`gates`], then the product, then [`output`].
//!
//! ```text
//! | z | r | of x, u   \   gates    | z | r ∘ s |, | r | kept        row by row, every number read once and
//! | s |               /                                             every result written once; between both
//! | n | of x, U_n (r ∘ s), z, s    output    | s' |, | s~ | kept    halves the product with U_n
//! ```
//!
//! ```
//! use regard_kernels::cell::{Step, gru_reset_before};
//! let step = Step { batch: 1, units: 1, keep: None };
//! let x = [0.0, 0.0, 0.0];
//! let (mut z_reset, mut r) = ([0.0; 2], [0.0]);
//! gru_reset_before::gates(step, &x, &[0.0; 2], &[0.8], &mut z_reset, &mut r)?;
//! assert_eq!((z_reset, r), ([0.5, 0.4], [0.5]));
//! let (mut next, mut candidate) = ([0.0], [0.0]);
//! gru_reset_before::output(step, &x, &[0.0], &z_reset, &[0.8], &mut next, &mut candidate)?;
//! assert_eq!((next, candidate), ([0.4], [0.0]));
//! # Ok::<(), regard_kernels::KernelError>(())
//! ```

use super::{RowWork, Step, gates_mut, gates_of};
use crate::error::KernelError;
use crate::simd::{Level, Simd, sigmoid, tanh, zip_map};
use crate::threads::{RowsMut, rows};

type One<'o> = RowsMut<'o, f32>;
type Two<'o> = (One<'o>, One<'o>);
type Three<'o> = (One<'o>, One<'o>, One<'o>);

/// First half: `z_reset [batch, 2 units]` (`z` and `r ∘ state` side by side) and, for
/// [`gates_backward`], `r [batch, units]`, from `x [batch, 3 units]` (its last third is not read),
/// `u [batch, 2 units]` and `state [batch, units]`.
///
/// Rows that do not move get zeros, which keeps the product that follows finite.
///
/// # Errors
/// [`KernelError::Length`] if a slice does not have the length its shape asks for.
pub fn gates(
    step: Step<'_>,
    x: &[f32],
    u: &[f32],
    state: &[f32],
    z_reset: &mut [f32],
    r: &mut [f32],
) -> Result<(), KernelError> {
    gates_at(Level::current(), step, x, u, state, z_reset, r)
}

pub(crate) fn gates_at(
    level: Level,
    step: Step<'_>,
    x: &[f32],
    u: &[f32],
    state: &[f32],
    z_reset: &mut [f32],
    r: &mut [f32],
) -> Result<(), KernelError> {
    step.check([
        ("x", 3, x.len()),
        ("u", 2, u.len()),
        ("state", 1, state.len()),
        ("z_reset", 2, z_reset.len()),
        ("r", 1, r.len()),
    ])?;
    let outputs = (rows(z_reset, 2 * step.units), rows(r, step.units));
    step.for_each_row(level, outputs, &Gates { step, x, u, state });
    Ok(())
}

struct Gates<'a> {
    step: Step<'a>,
    x: &'a [f32],
    u: &'a [f32],
    state: &'a [f32],
}

impl<'o> RowWork<Two<'o>> for Gates<'_> {
    #[inline(always)]
    fn row<S: Simd>(&self, s: S, row: usize, (z_reset, r): Two<'o>) {
        let n = self.step.units;
        if !self.step.moves(row) {
            z_reset.data.fill(0.0);
            r.data.fill(0.0);
            return;
        }
        let [x_z, x_r, _] = gates_of(self.x, row, n);
        let [u_z, u_r] = gates_of(self.u, row, n);
        let [state] = gates_of(self.state, row, n);
        let [z, reset] = gates_mut(z_reset.data, n);
        zip_map(
            s,
            [x_z, x_r, u_z, u_r, state],
            [z, reset, r.data],
            #[inline(always)]
            |[x_z, x_r, u_z, u_r, state], _| {
                let r = sigmoid(s, s.add(x_r, u_r));
                [sigmoid(s, s.add(x_z, u_z)), s.mul(r, state), r]
            },
        );
    }
}

/// Second half: `next [batch, units]` and, for [`output_backward`], the activated `candidate
/// [batch, units]`, from the last third of `x [batch, 3 units]`, `u_candidate = U_n (r ∘ s)
/// [batch, units]`, `z_reset` of the first half (its second half is not read) and the former `state`.
///
/// # Errors
/// [`KernelError::Length`] if a slice does not have the length its shape asks for.
pub fn output(
    step: Step<'_>,
    x: &[f32],
    u_candidate: &[f32],
    z_reset: &[f32],
    state: &[f32],
    next: &mut [f32],
    candidate: &mut [f32],
) -> Result<(), KernelError> {
    output_at(
        Level::current(),
        step,
        x,
        u_candidate,
        z_reset,
        state,
        next,
        candidate,
    )
}

#[allow(clippy::too_many_arguments)]
pub(crate) fn output_at(
    level: Level,
    step: Step<'_>,
    x: &[f32],
    u_candidate: &[f32],
    z_reset: &[f32],
    state: &[f32],
    next: &mut [f32],
    candidate: &mut [f32],
) -> Result<(), KernelError> {
    step.check([
        ("x", 3, x.len()),
        ("u_candidate", 1, u_candidate.len()),
        ("z_reset", 2, z_reset.len()),
        ("state", 1, state.len()),
        ("next", 1, next.len()),
        ("candidate", 1, candidate.len()),
    ])?;
    let outputs = (rows(next, step.units), rows(candidate, step.units));
    step.for_each_row(
        level,
        outputs,
        &Output {
            step,
            x,
            u_candidate,
            z_reset,
            state,
        },
    );
    Ok(())
}

struct Output<'a> {
    step: Step<'a>,
    x: &'a [f32],
    u_candidate: &'a [f32],
    z_reset: &'a [f32],
    state: &'a [f32],
}

impl<'o> RowWork<Two<'o>> for Output<'_> {
    #[inline(always)]
    fn row<S: Simd>(&self, s: S, row: usize, (next, candidate): Two<'o>) {
        let n = self.step.units;
        let [state] = gates_of(self.state, row, n);
        if !self.step.moves(row) {
            next.data.copy_from_slice(state);
            candidate.data.fill(0.0);
            return;
        }
        let [_, _, x_n] = gates_of(self.x, row, n);
        let [u_n] = gates_of(self.u_candidate, row, n);
        let [z, _] = gates_of(self.z_reset, row, n);
        zip_map(
            s,
            [x_n, u_n, z, state],
            [next.data, candidate.data],
            #[inline(always)]
            |[x_n, u_n, z, state], _| {
                let c = tanh(s, s.add(x_n, u_n));
                [s.fma(z, s.sub(c, state), state), c]
            },
        );
    }
}

/// Backward of [`output`]: from `d_next [batch, units]`, overwrites the last third of
/// `d_x [batch, 3 units]` (which is the gradient of `u_candidate` too, written to
/// `d_u_candidate [batch, units]`), `d_z` and `d_state` `[batch, units]`. `d_state` holds the part
/// of the gradient that reaches the state through this half.
///
/// # Errors
/// [`KernelError::Length`] if a slice does not have the length its shape asks for.
#[allow(clippy::too_many_arguments)]
pub fn output_backward(
    step: Step<'_>,
    z_reset: &[f32],
    candidate: &[f32],
    state: &[f32],
    d_next: &[f32],
    d_x: &mut [f32],
    d_u_candidate: &mut [f32],
    d_z: &mut [f32],
    d_state: &mut [f32],
) -> Result<(), KernelError> {
    let saved = OutputBackward {
        step,
        z_reset,
        candidate,
        state,
        d_next,
    };
    saved.at(Level::current(), d_x, d_u_candidate, d_z, d_state)
}

pub(crate) struct OutputBackward<'a> {
    pub(crate) step: Step<'a>,
    pub(crate) z_reset: &'a [f32],
    pub(crate) candidate: &'a [f32],
    pub(crate) state: &'a [f32],
    pub(crate) d_next: &'a [f32],
}

impl OutputBackward<'_> {
    pub(crate) fn at(
        &self,
        level: Level,
        d_x: &mut [f32],
        d_u_candidate: &mut [f32],
        d_z: &mut [f32],
        d_state: &mut [f32],
    ) -> Result<(), KernelError> {
        let step = self.step;
        step.check([
            ("z_reset", 2, self.z_reset.len()),
            ("candidate", 1, self.candidate.len()),
            ("state", 1, self.state.len()),
            ("d_next", 1, self.d_next.len()),
            ("d_x", 3, d_x.len()),
            ("d_u_candidate", 1, d_u_candidate.len()),
            ("d_z", 1, d_z.len()),
            ("d_state", 1, d_state.len()),
        ])?;
        let n = step.units;
        let outputs = (
            rows(d_x, 3 * n),
            rows(d_u_candidate, n),
            rows(d_z, n),
            rows(d_state, n),
        );
        step.for_each_row(level, outputs, self);
        Ok(())
    }
}

impl<'o> RowWork<(One<'o>, One<'o>, One<'o>, One<'o>)> for OutputBackward<'_> {
    #[inline(always)]
    fn row<S: Simd>(
        &self,
        s: S,
        row: usize,
        (d_x, d_u, d_z, d_state): (One<'o>, One<'o>, One<'o>, One<'o>),
    ) {
        let n = self.step.units;
        let [d_next] = gates_of(self.d_next, row, n);
        let [_, _, d_x] = gates_mut(d_x.data, n);
        if !self.step.moves(row) {
            d_x.fill(0.0);
            d_u.data.fill(0.0);
            d_z.data.fill(0.0);
            d_state.data.copy_from_slice(d_next);
            return;
        }
        let [z, _] = gates_of(self.z_reset, row, n);
        let [c] = gates_of(self.candidate, row, n);
        let [state] = gates_of(self.state, row, n);
        zip_map(
            s,
            [d_next, z, c, state],
            [d_x, d_u.data, d_z.data, d_state.data],
            #[inline(always)]
            |[d, z, c, state], _| {
                let d_new = s.mul(d, z);
                let d_candidate = s.fnma(s.mul(d_new, c), c, d_new);
                [
                    d_candidate,
                    d_candidate,
                    s.mul(d, s.sub(c, state)),
                    s.sub(d, d_new),
                ]
            },
        );
    }
}

/// Backward of [`gates`]: from `d_z` and `d_reset` `[batch, units]`, overwrites the first two
/// thirds of `d_x [batch, 3 units]` and `d_u [batch, 2 units]` (the same numbers), and *adds* to
/// `d_state [batch, units]` what reaches the state through `r ∘ s`.
///
/// # Errors
/// [`KernelError::Length`] if a slice does not have the length its shape asks for.
#[allow(clippy::too_many_arguments)]
pub fn gates_backward(
    step: Step<'_>,
    z_reset: &[f32],
    r: &[f32],
    state: &[f32],
    d_z: &[f32],
    d_reset: &[f32],
    d_x: &mut [f32],
    d_u: &mut [f32],
    d_state: &mut [f32],
) -> Result<(), KernelError> {
    GatesBackward {
        step,
        z_reset,
        r,
        state,
        d_z,
        d_reset,
    }
    .at(Level::current(), d_x, d_u, d_state)
}

pub(crate) struct GatesBackward<'a> {
    pub(crate) step: Step<'a>,
    pub(crate) z_reset: &'a [f32],
    pub(crate) r: &'a [f32],
    pub(crate) state: &'a [f32],
    pub(crate) d_z: &'a [f32],
    pub(crate) d_reset: &'a [f32],
}

impl GatesBackward<'_> {
    pub(crate) fn at(
        &self,
        level: Level,
        d_x: &mut [f32],
        d_u: &mut [f32],
        d_state: &mut [f32],
    ) -> Result<(), KernelError> {
        let step = self.step;
        step.check([
            ("z_reset", 2, self.z_reset.len()),
            ("r", 1, self.r.len()),
            ("state", 1, self.state.len()),
            ("d_z", 1, self.d_z.len()),
            ("d_reset", 1, self.d_reset.len()),
            ("d_x", 3, d_x.len()),
            ("d_u", 2, d_u.len()),
            ("d_state", 1, d_state.len()),
        ])?;
        let n = step.units;
        let outputs = (rows(d_x, 3 * n), rows(d_u, 2 * n), rows(d_state, n));
        step.for_each_row(level, outputs, self);
        Ok(())
    }
}

impl<'o> RowWork<Three<'o>> for GatesBackward<'_> {
    #[inline(always)]
    fn row<S: Simd>(&self, s: S, row: usize, (d_x, d_u, d_state): Three<'o>) {
        let n = self.step.units;
        let [dx_z, dx_r, _] = gates_mut(d_x.data, n);
        if !self.step.moves(row) {
            dx_z.fill(0.0);
            dx_r.fill(0.0);
            d_u.data.fill(0.0);
            return;
        }
        let [du_z, du_r] = gates_mut(d_u.data, n);
        let [z, _] = gates_of(self.z_reset, row, n);
        let [r] = gates_of(self.r, row, n);
        let [state] = gates_of(self.state, row, n);
        let [d_z] = gates_of(self.d_z, row, n);
        let [d_reset] = gates_of(self.d_reset, row, n);
        zip_map(
            s,
            [z, r, state, d_z, d_reset],
            [dx_z, dx_r, du_z, du_r, d_state.data],
            #[inline(always)]
            |[z, r, state, d_z, d_reset], [_, _, _, _, d_state]| {
                let d_z = s.mul(d_z, s.fnma(z, z, z));
                let d_r = s.mul(s.mul(d_reset, state), s.fnma(r, r, r));
                [d_z, d_r, d_z, d_r, s.fma(d_reset, r, d_state)]
            },
        );
    }
}
