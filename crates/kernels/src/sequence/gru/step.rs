//! The pointwise parts of one GRU step on a block of rows, for both conventions of [`super`].
//!
//! A row of gates is `z | r | ñ`, for PyTorch's unit followed by `h U_n + b_n`. At a padded step the
//! gates are set to zero, so that nothing of it reaches a weight gradient.

use crate::sequence::rows::{Strided, is_real};
use crate::simd::{Kernel, Simd, sigmoid, tanh, zip_map};

/// A row of `3 n` numbers in its three parts.
#[inline(always)]
fn thirds(row: &[f32], n: usize) -> (&[f32], &[f32], &[f32]) {
    (&row[..n], &row[n..2 * n], &row[2 * n..3 * n])
}

/// A row of `3 n` numbers in its three parts.
#[inline(always)]
fn thirds_mut(row: &mut [f32], n: usize) -> (&mut [f32], &mut [f32], &mut [f32]) {
    let (first, rest) = row.split_at_mut(n);
    let (second, rest) = rest.split_at_mut(n);
    (first, second, &mut rest[..n])
}

/// `z = σ(z)`, `r = σ(r)` in place, `reset_state = r ∘ h`.
pub(super) struct ChoGates<'a> {
    pub(super) n: usize,
    pub(super) gates: &'a mut [f32],
    pub(super) state: &'a [f32],
    pub(super) reset_state: &'a mut [f32],
}

impl Kernel for ChoGates<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let n = self.n;
        let rows = self
            .gates
            .chunks_exact_mut(3 * n)
            .zip(self.state.chunks_exact(n));
        for ((gates, state), reset_state) in rows.zip(self.reset_state.chunks_exact_mut(n)) {
            let (z, r, _) = thirds_mut(gates, n);
            zip_map(
                s,
                [state],
                [z, r, reset_state],
                #[inline(always)]
                |[h], [z, r, _]| {
                    let r = sigmoid(s, r);
                    [sigmoid(s, z), r, s.mul(r, h)]
                },
            );
        }
    }
}

/// `ñ = tanh(ñ)` in place, `h = h + z ∘ (ñ - h)`.
pub(super) struct ChoState<'a> {
    pub(super) n: usize,
    pub(super) gates: &'a mut [f32],
    pub(super) state: &'a mut [f32],
    pub(super) keep: Option<&'a [bool]>,
}

impl Kernel for ChoState<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let n = self.n;
        let rows = self
            .gates
            .chunks_exact_mut(3 * n)
            .zip(self.state.chunks_exact_mut(n));
        for (row, (gates, state)) in rows.enumerate() {
            if !is_real(self.keep, row) {
                gates.fill(0.0);
                continue;
            }
            let (z, _, new) = thirds_mut(gates, n);
            zip_map(
                s,
                [z],
                [new, state],
                #[inline(always)]
                |[z], [new, h]| {
                    let new = tanh(s, new);
                    [new, s.fma(z, s.sub(new, h), h)]
                },
            );
        }
    }
}

/// Adds the gradient of the step's output to that of its state, then takes the latter through
/// `h' = (1 - z) ∘ h + z ∘ ñ`: gives the gradients of `z`'s and `ñ`'s pre-activations and the direct
/// part of the former state's.
pub(super) struct ChoBackState<'a> {
    pub(super) n: usize,
    pub(super) gates: &'a [f32],
    pub(super) previous: Strided<'a>,
    pub(super) d_out: Strided<'a>,
    pub(super) d_gates: &'a mut [f32],
    pub(super) d_state: &'a mut [f32],
    pub(super) keep: Option<&'a [bool]>,
}

impl Kernel for ChoBackState<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let n = self.n;
        let one = s.splat(1.0);
        for row in 0..self.d_state.len() / n {
            let at = row * n;
            let (gates, d_gates) = (&self.gates[3 * at..], &mut self.d_gates[3 * at..][..3 * n]);
            let (previous, d_out) = (self.previous.row(row, n), self.d_out.row(row, n));
            let d_state = &mut self.d_state[at..][..n];
            if !is_real(self.keep, row) {
                d_gates.fill(0.0);
                zip_map(
                    s,
                    [d_out],
                    [d_state],
                    #[inline(always)]
                    |[d_out], [d]| [s.add(d, d_out)],
                );
                continue;
            }
            let (z, _, new) = thirds(gates, n);
            let (d_z, _, d_new) = thirds_mut(d_gates, n);
            zip_map(
                s,
                [z, new, previous, d_out],
                [d_z, d_new, d_state],
                #[inline(always)]
                |[z, new, h, d_out], [_, _, d]| {
                    let d = s.add(d, d_out);
                    let keep = s.sub(one, z);
                    let d_z = s.mul(s.mul(d, s.sub(new, h)), s.mul(z, keep));
                    let d_new = s.mul(s.mul(d, z), s.fnma(new, new, one));
                    [d_z, d_new, s.mul(d, keep)]
                },
            );
        }
    }
}

/// From the gradient of `r ∘ h` to that of `r`'s pre-activation and of `h`; also forms `r ∘ h` again.
pub(super) struct ChoBackGates<'a> {
    pub(super) n: usize,
    pub(super) gates: &'a [f32],
    pub(super) previous: Strided<'a>,
    pub(super) d_left: &'a [f32],
    pub(super) d_gates: &'a mut [f32],
    pub(super) d_state: &'a mut [f32],
    pub(super) reset_state: &'a mut [f32],
}

impl Kernel for ChoBackGates<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let n = self.n;
        let one = s.splat(1.0);
        for row in 0..self.d_state.len() / n {
            let at = row * n;
            let r = &self.gates[3 * at + n..][..n];
            let (previous, d_left) = (self.previous.row(row, n), &self.d_left[at..][..n]);
            let d_r = &mut self.d_gates[3 * at + n..][..n];
            let d_state = &mut self.d_state[at..][..n];
            let reset_state = &mut self.reset_state[at..][..n];
            // A padded step has r = 0 and d_left = 0, so it changes nothing here.
            zip_map(
                s,
                [r, previous, d_left],
                [d_r, d_state, reset_state],
                #[inline(always)]
                |[r, h, d_left], [_, d, _]| {
                    let d_r = s.mul(s.mul(d_left, h), s.mul(r, s.sub(one, r)));
                    [d_r, s.fma(d_left, r, d), s.mul(r, h)]
                },
            );
        }
    }
}

/// The whole step of PyTorch's unit; the gates come in as `h U + b` (`z | r | _ | n`).
pub(super) struct PyTorchState<'a> {
    pub(super) n: usize,
    pub(super) x: &'a [f32],
    pub(super) gates: &'a mut [f32],
    pub(super) state: &'a mut [f32],
    pub(super) keep: Option<&'a [bool]>,
}

impl Kernel for PyTorchState<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let n = self.n;
        let rows = self
            .gates
            .chunks_exact_mut(4 * n)
            .zip(self.x.chunks_exact(3 * n));
        for (row, ((gates, x), state)) in rows.zip(self.state.chunks_exact_mut(n)).enumerate() {
            if !is_real(self.keep, row) {
                gates.fill(0.0);
                continue;
            }
            let (gates, hidden) = gates.split_at_mut(3 * n);
            let (z, r, new) = thirds_mut(gates, n);
            let (x_z, x_r, x_n) = thirds(x, n);
            zip_map(
                s,
                [x_z, x_r, x_n, hidden],
                [z, r, new, state],
                #[inline(always)]
                |[x_z, x_r, x_n, hidden], [z, r, _, h]| {
                    let z = sigmoid(s, s.add(x_z, z));
                    let r = sigmoid(s, s.add(x_r, r));
                    let new = tanh(s, s.fma(r, hidden, x_n));
                    [z, r, new, s.fma(z, s.sub(h, new), new)]
                },
            );
        }
    }
}

/// The whole step of PyTorch's unit backwards; `d_candidate` is the gradient of `h U_n + b_n`.
pub(super) struct PyTorchBack<'a> {
    pub(super) n: usize,
    pub(super) gates: &'a [f32],
    pub(super) previous: Strided<'a>,
    pub(super) d_out: Strided<'a>,
    pub(super) d_gates: &'a mut [f32],
    pub(super) d_state: &'a mut [f32],
    pub(super) d_candidate: &'a mut [f32],
    pub(super) keep: Option<&'a [bool]>,
}

impl Kernel for PyTorchBack<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let n = self.n;
        let one = s.splat(1.0);
        for row in 0..self.d_state.len() / n {
            let at = row * n;
            let (gates, d_gates) = (&self.gates[4 * at..], &mut self.d_gates[3 * at..][..3 * n]);
            let (previous, d_out) = (self.previous.row(row, n), self.d_out.row(row, n));
            let d_state = &mut self.d_state[at..][..n];
            let d_candidate = &mut self.d_candidate[at..][..n];
            if !is_real(self.keep, row) {
                d_gates.fill(0.0);
                d_candidate.fill(0.0);
                zip_map(
                    s,
                    [d_out],
                    [d_state],
                    #[inline(always)]
                    |[d_out], [d]| [s.add(d, d_out)],
                );
                continue;
            }
            let (z, r, new) = thirds(gates, n);
            let hidden = &gates[3 * n..4 * n];
            let (d_z, d_r, d_new) = thirds_mut(d_gates, n);
            zip_map(
                s,
                [z, r, new, hidden, previous, d_out],
                [d_z, d_r, d_new, d_candidate, d_state],
                #[inline(always)]
                |[z, r, new, hidden, h, d_out], [_, _, _, _, d]| {
                    let d = s.add(d, d_out);
                    let fresh = s.sub(one, z);
                    let d_z = s.mul(s.mul(d, s.sub(h, new)), s.mul(z, fresh));
                    let d_new = s.mul(s.mul(d, fresh), s.fnma(new, new, one));
                    let d_r = s.mul(s.mul(d_new, hidden), s.mul(r, s.sub(one, r)));
                    [d_z, d_r, d_new, s.mul(d_new, r), s.mul(d, z)]
                },
            );
        }
    }
}
