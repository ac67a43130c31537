//! GRU with the reset applied before the recurrent product (Cho 2014; Bahdanau 2014, appendix A).
//!
//! ```text
//! z  = σ(x_z + u_z)       x = W e(y) + C c + b  [batch, 3 units]  (z r n)
//! r  = σ(x_r + u_r)       u = U_zr s            [batch, 2 units]
//! s~ = tanh(x_n + U_n (r ∘ s))
//! s' = (1 - z) ∘ s + z ∘ s~
//! ```
//! `z` weights the *new* state. The product with `U_n` needs `r ∘ s`, so a step has two pointwise
//! halves around it: [`ResetStep`], then the product, then [`UpdateStep`].
//!
//! ```text
//! | r | = x + u, | s |                              ResetStep     | r ∘ s |, | r | kept      row by row, in place;
//! | z | = x + u, | n | = x + U_n (r ∘ s), | s |     UpdateStep    | s' |, | z | s~ | kept    between both the product
//! ```
//!
//! ```
//! use regard_kernels::{Operation, cell::{Step, gru_reset_before::*}};
//! let step = Step { batch: 1, units: 1, keep: None };
//! let (x, product, state) = (&[0.0; 3][..], &[0.0; 2][..], &[0.8][..]);
//! let (mut reset, mut next) = ([0.0], [0.0]);
//! let written = ResetWritten { reset: &mut reset[..], gates: &mut [] };
//! ResetStep(step.clone()).forward(ResetFields { x, product, state }, written)?;
//! assert_eq!(reset, [0.4]);
//! let inputs = UpdateFields { x, product, candidate: &[0.0], state };
//! UpdateStep(step).forward(inputs, UpdateWritten { next: &mut next, gates: &mut [] })?;
//! assert_eq!(next, [0.4]);
//! # Ok::<(), regard_kernels::KernelError>(())
//! ```

use super::{Step, gates_mut, gates_of, moves, slope, tanh_slope};
use crate::error::KernelError;
use crate::operation::{Checked, Operation, Shape, fields};
use crate::rows::{Place, Strided};
use crate::simd::{Kernel, Simd, run, sigmoid, tanh, zip_map};

/// The first half of a step: `r = σ(x_r + u_r)`, `r ∘ s`, which is 0 in a row that does not move.
#[derive(Debug, Clone)]
pub struct ResetStep(pub Step);

fields! {
    /// What [`ResetStep`] reads.
    ResetFields in Step {
        /// Input part of the pre-activations, biases included; only `x_r` is read.
        x: [batch, 3 units],
        /// `U_zr s`; only `u_r` is read.
        product: [batch, 2 units],
        /// The previous state.
        state: [batch, units],
    }
}

fields! {
    /// What [`ResetStep`] writes.
    ResetWritten in Step {
        /// `r ∘ s`
        reset: [batch, units],
        /// Gates `z | r | n`, of which `r` is activated, for the backward pass.
        gates: [batch, 3 units],
    }
}

/// The second half: `z = σ(x_z + u_z)`, `s~ = tanh(x_n + U_n (r ∘ s))`, the next state.
#[derive(Debug, Clone)]
pub struct UpdateStep(pub Step);

fields! {
    /// What [`UpdateStep`] reads.
    UpdateFields in Step {
        /// Input part of the pre-activations, biases included; only `x_z` and `x_n` are read.
        x: [batch, 3 units],
        /// `U_zr s`; only `u_z` is read.
        product: [batch, 2 units],
        /// `U_n (r ∘ s)`
        candidate: [batch, units],
        /// The previous state.
        state: [batch, units],
    }
}

fields! {
    /// What [`UpdateStep`] writes.
    UpdateWritten in Step {
        /// The next state.
        next: [batch, units],
        /// Gates `z | r | s~`, of which `z` and `s~` are activated, for the backward pass.
        gates: [batch, 3 units],
    }
}

/// `x + u` for `z` and `r` in the gates of a block, and `x_n` as it is; `u` is `U_zr s`.
fn pre_activations(place: Place, n: usize, x: &[f32], product: &[f32], gates: &mut [f32]) {
    gates.copy_from_slice(place.of(x, 3 * n));
    let product = place.of(product, 2 * n).chunks_exact(2 * n);
    for (gates, u) in gates.chunks_exact_mut(3 * n).zip(product) {
        gates.iter_mut().zip(u).for_each(|(gate, u)| *gate += u);
    }
}

impl Operation for ResetStep {
    type Inputs<T> = ResetFields<T>;
    type Written<T> = ResetWritten<T>;
    const RESULTS: usize = 1;

    fn shapes(&self) -> Result<(ResetFields<Shape>, ResetWritten<Shape>), KernelError> {
        self.0.check()?;
        Ok((ResetFields::of(&self.0), ResetWritten::of(&self.0)))
    }

    fn forward_checked(
        &self,
        checked: Checked,
        inputs: ResetFields<&[f32]>,
        written: ResetWritten<&mut [f32]>,
    ) {
        let n = self.0.units;
        let outputs = [(written.reset, 1), (written.gates, 3)];
        self.0.for_each_block(outputs, |place, [reset, gates]| {
            let mut room = vec![
                0.0;
                if gates.is_empty() {
                    place.rows * 3 * n
                } else {
                    0
                }
            ];
            let gates = if gates.is_empty() { &mut room } else { gates };
            pre_activations(place, n, inputs.x, inputs.product, gates);
            let half = Reset {
                n,
                gates,
                state: place.of(inputs.state, n),
                reset,
                keep: self.0.keep_of(place),
            };
            run(checked.level(), half);
        });
    }

    fn backward_checked(
        &self,
        checked: Checked,
        inputs: ResetFields<&[f32]>,
        written: ResetWritten<&[f32]>,
        d_reset: &[f32],
        to: ResetFields<&mut [f32]>,
    ) {
        let n = self.0.units;
        to.state.fill(0.0);
        let outputs = [(to.x, 3), (to.product, 2), (to.state, 1)];
        self.0
            .for_each_block(outputs, |place, [d_x, d_product, d_state]| {
                d_x.fill(0.0);
                let half = ResetBack {
                    n,
                    gates: place.of(written.gates, 3 * n),
                    previous: place.rows_of(inputs.state, n),
                    d_reset: place.of(d_reset, n),
                    d_gates: d_x,
                    d_state,
                    reset: &mut vec![0.0; place.rows * n],
                    keep: self.0.keep_of(place),
                };
                run(checked.level(), half);
                of_product(n, d_x, d_product);
            });
    }
}

impl Operation for UpdateStep {
    type Inputs<T> = UpdateFields<T>;
    type Written<T> = UpdateWritten<T>;
    const RESULTS: usize = 1;

    fn shapes(&self) -> Result<(UpdateFields<Shape>, UpdateWritten<Shape>), KernelError> {
        self.0.check()?;
        Ok((UpdateFields::of(&self.0), UpdateWritten::of(&self.0)))
    }

    fn forward_checked(
        &self,
        checked: Checked,
        inputs: UpdateFields<&[f32]>,
        written: UpdateWritten<&mut [f32]>,
    ) {
        let n = self.0.units;
        written.next.copy_from_slice(inputs.state);
        let outputs = [(written.next, 1), (written.gates, 3)];
        self.0.for_each_block(outputs, |place, [state, gates]| {
            let mut room = vec![
                0.0;
                if gates.is_empty() {
                    place.rows * 3 * n
                } else {
                    0
                }
            ];
            let gates = if gates.is_empty() { &mut room } else { gates };
            pre_activations(place, n, inputs.x, inputs.product, gates);
            let candidate = place.of(inputs.candidate, n).chunks_exact(n);
            for (gates, u) in gates.chunks_exact_mut(3 * n).zip(candidate) {
                let gates = gates[2 * n..].iter_mut();
                gates.zip(u).for_each(|(gate, u)| *gate += u);
            }
            let keep = self.0.keep_of(place);
            let half = Update {
                n,
                gates,
                state,
                keep,
            };
            run(checked.level(), half);
        });
    }

    fn backward_checked(
        &self,
        checked: Checked,
        inputs: UpdateFields<&[f32]>,
        written: UpdateWritten<&[f32]>,
        d_next: &[f32],
        to: UpdateFields<&mut [f32]>,
    ) {
        let n = self.0.units;
        to.state.copy_from_slice(d_next);
        let outputs = [(to.x, 3), (to.product, 2), (to.candidate, 1), (to.state, 1)];
        self.0
            .for_each_block(outputs, |place, [d_x, d_product, d_candidate, d_state]| {
                d_x.fill(0.0);
                let half = UpdateBack {
                    n,
                    gates: place.of(written.gates, 3 * n),
                    previous: place.rows_of(inputs.state, n),
                    d_gates: d_x,
                    d_state,
                    keep: self.0.keep_of(place),
                };
                run(checked.level(), half);
                of_product(n, d_x, d_product);
                for (to, d_x) in d_candidate.chunks_exact_mut(n).zip(d_x.chunks_exact(3 * n)) {
                    to.copy_from_slice(&d_x[2 * n..]);
                }
            });
    }
}

/// The gradient of `U_zr s`: that of the first two gates.
fn of_product(n: usize, d_gates: &[f32], d_product: &mut [f32]) {
    let rows = d_product.chunks_exact_mut(2 * n);
    for (to, d_gates) in rows.zip(d_gates.chunks_exact(3 * n)) {
        to.copy_from_slice(&d_gates[..2 * n]);
    }
}

/// `r = σ(r)` in place, `reset = r ∘ h`; 0 in a row that does not move.
pub(crate) struct Reset<'a> {
    pub(crate) n: usize,
    /// `z | r | n`, `[rows, 3n]`; on entry the pre-activations.
    pub(crate) gates: &'a mut [f32],
    pub(crate) state: &'a [f32],
    pub(crate) reset: &'a mut [f32],
    pub(crate) keep: Option<&'a [bool]>,
}

impl Kernel for Reset<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let n = self.n;
        let states = self
            .state
            .chunks_exact(n)
            .zip(self.reset.chunks_exact_mut(n));
        let rows = self.gates.chunks_exact_mut(3 * n).zip(states);
        for (row, (gates, (state, reset))) in rows.enumerate() {
            let [_, r, _] = gates_mut(gates, n);
            if !moves(self.keep, row) {
                r.fill(0.0);
                reset.fill(0.0);
                continue;
            }
            zip_map(
                s,
                [state],
                [r, reset],
                #[inline(always)]
                |[h], [r, _]| {
                    let r = sigmoid(s, r);
                    [r, s.mul(r, h)]
                },
            );
        }
    }
}

/// `z = σ(z)`, `ñ = tanh(ñ)` in place, `h = h + z ∘ (ñ - h)`. The gates of a row that does not move become 0, so that it
/// contributes nothing to the weights' gradients.
pub(crate) struct Update<'a> {
    pub(crate) n: usize,
    pub(crate) gates: &'a mut [f32],
    pub(crate) state: &'a mut [f32],
    pub(crate) keep: Option<&'a [bool]>,
}

impl Kernel for Update<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let n = self.n;
        let rows = self.gates.chunks_exact_mut(3 * n);
        for (row, (gates, state)) in rows.zip(self.state.chunks_exact_mut(n)).enumerate() {
            if !moves(self.keep, row) {
                gates.fill(0.0);
                continue;
            }
            let [z, _, new] = gates_mut(gates, n);
            zip_map(
                s,
                [],
                [z, new, state],
                #[inline(always)]
                |[], [z, new, h]| {
                    let (z, new) = (sigmoid(s, z), tanh(s, new));
                    [z, new, s.fma(z, s.sub(new, h), h)]
                },
            );
        }
    }
}

/// From the gradient of the new state, through `h' = (1 - z) ∘ h + z ∘ ñ`, computes those of the pre-activations of `z` and
/// `ñ` and, in place, the direct part of that of the previous state.
pub(crate) struct UpdateBack<'a> {
    pub(crate) n: usize,
    pub(crate) gates: &'a [f32],
    pub(crate) previous: Strided<'a>,
    pub(crate) d_gates: &'a mut [f32],
    pub(crate) d_state: &'a mut [f32],
    pub(crate) keep: Option<&'a [bool]>,
}

impl Kernel for UpdateBack<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let n = self.n;
        let one = s.splat(1.0);
        let rows = self.d_gates.chunks_exact_mut(3 * n);
        for (row, (d_gates, d_state)) in rows.zip(self.d_state.chunks_exact_mut(n)).enumerate() {
            if !moves(self.keep, row) {
                d_gates.fill(0.0);
                continue;
            }
            let [z, _, new] = gates_of(&self.gates[3 * n * row..], n);
            let [d_z, _, d_new] = gates_mut(d_gates, n);
            zip_map(
                s,
                [z, new, self.previous.row(row, n)],
                [d_z, d_new, d_state],
                #[inline(always)]
                |[z, new, h], [_, _, d]| {
                    let keep = s.sub(one, z);
                    let d_z = s.mul(s.mul(d, s.sub(new, h)), s.mul(z, keep));
                    let d_new = s.mul(s.mul(d, z), tanh_slope(s, new));
                    [d_z, d_new, s.mul(d, keep)]
                },
            );
        }
    }
}

/// From the gradient of `r ∘ h`, computes that of `r`'s pre-activation and adds to that of `h`; also computes `r ∘ h` again.
pub(crate) struct ResetBack<'a> {
    pub(crate) n: usize,
    pub(crate) gates: &'a [f32],
    pub(crate) previous: Strided<'a>,
    pub(crate) d_reset: &'a [f32],
    pub(crate) d_gates: &'a mut [f32],
    pub(crate) d_state: &'a mut [f32],
    pub(crate) reset: &'a mut [f32],
    pub(crate) keep: Option<&'a [bool]>,
}

impl Kernel for ResetBack<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let n = self.n;
        let states = self
            .d_state
            .chunks_exact_mut(n)
            .zip(self.reset.chunks_exact_mut(n));
        let rows = self.d_gates.chunks_exact_mut(3 * n).zip(states);
        for (row, (d_gates, (d_state, reset))) in rows.enumerate() {
            let [_, d_r, _] = gates_mut(d_gates, n);
            if !moves(self.keep, row) {
                d_r.fill(0.0);
                reset.fill(0.0);
                continue;
            }
            let [_, r] = gates_of(&self.gates[3 * n * row..], n);
            let d_reset = &self.d_reset[n * row..][..n];
            zip_map(
                s,
                [r, self.previous.row(row, n), d_reset],
                [d_r, d_state, reset],
                #[inline(always)]
                |[r, h, d_reset], [_, d, _]| {
                    let d_r = s.mul(s.mul(d_reset, h), slope(s, r));
                    [d_r, s.fma(d_reset, r, d), s.mul(r, h)]
                },
            );
        }
    }
}
