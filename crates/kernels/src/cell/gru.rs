//! GRU with the reset applied after the recurrent product (Cho 2014's decoder, PyTorch, cuDNN).
//!
//! ```text
//! z  = σ(x_z + u_z)          x = W input + b   [batch, 3 units]  (z r n)
//! r  = σ(x_r + u_r)          u = U h           [batch, 3 units]
//! n  = tanh(x_n + r ∘ u_n)
//! h' = (1 - z) ∘ n + z ∘ h                     [batch, units]
//! ```
//! Here `z` weights the *old* state; in [`super::gru_reset_before`] it weights the new one. PyTorch's
//! weights hold the same gates in the order `r z n`.
//!
//! ```text
//! | z | r |  = x + u  \                                 row by row, in place: every number is read once, the
//! | n |  of x          >  | h' |,  | z | r | n | u |    unit's gates in registers of one step of lanes
//! | n |  of u         /                        kept
//! | h |              /
//! ```
//!
//! ```
//! use regard_kernels::{Operation, cell::{Step, gru::{GruStep, GruStepFields, GruStepWritten}}};
//! let step = GruStep(Step { batch: 1, units: 1, keep: None });
//! let inputs = GruStepFields { x: &[0.0; 3][..], product: &[0.0; 3], state: &[1.0] };
//! let (mut next, mut gates) = ([0.0], [0.0; 4]);
//! step.forward(inputs, GruStepWritten { next: &mut next, gates: &mut gates })?;
//! assert_eq!(next, [0.5]);
//! assert_eq!(gates, [0.5, 0.5, 0.0, 0.0]);
//! # Ok::<(), regard_kernels::KernelError>(())
//! ```

use super::{Step, gates_mut, gates_of, moves, slope, tanh_slope};
use crate::error::KernelError;
use crate::operation::{Checked, Operation, Shape, fields};
use crate::rows::Strided;
use crate::simd::{Kernel, Simd, run, sigmoid, tanh, zip_map};

/// One step of the unit.
#[derive(Debug, Clone)]
pub struct GruStep(pub Step);

fields! {
    /// What [`GruStep`] reads.
    GruStepFields in Step {
        /// Input part of the pre-activations, biases included.
        x: [batch, 3 units],
        /// `U h`, the part of the previous state.
        product: [batch, 3 units],
        /// The previous state.
        state: [batch, units],
    }
}

fields! {
    /// What [`GruStep`] writes.
    GruStepWritten in Step {
        /// The next state.
        next: [batch, units],
        /// Activated gates and `u_n`, for the backward pass.
        gates: [batch, 4 units],
    }
}

impl Operation for GruStep {
    type Inputs<T> = GruStepFields<T>;
    type Written<T> = GruStepWritten<T>;
    const RESULTS: usize = 1;

    fn shapes(&self) -> Result<(GruStepFields<Shape>, GruStepWritten<Shape>), KernelError> {
        self.0.check()?;
        Ok((GruStepFields::of(&self.0), GruStepWritten::of(&self.0)))
    }

    fn forward_checked(
        &self,
        checked: Checked,
        inputs: GruStepFields<&[f32]>,
        written: GruStepWritten<&mut [f32]>,
    ) {
        let n = self.0.units;
        written.next.copy_from_slice(inputs.state);
        let outputs = [(written.next, 1), (written.gates, 4)];
        self.0.for_each_block(outputs, |place, [state, gates]| {
            let mut room = vec![
                0.0;
                if gates.is_empty() {
                    place.rows * 4 * n
                } else {
                    0
                }
            ];
            let gates = if gates.is_empty() { &mut room } else { gates };
            let parts = place.of(inputs.x, 3 * n).chunks_exact(3 * n);
            let parts = parts.zip(place.of(inputs.product, 3 * n).chunks_exact(3 * n));
            for (gates, (x, u)) in gates.chunks_exact_mut(4 * n).zip(parts) {
                gates[..3 * n].copy_from_slice(x);
                gates
                    .iter_mut()
                    .zip(&u[..2 * n])
                    .for_each(|(gate, u)| *gate += u);
                gates[3 * n..].copy_from_slice(&u[2 * n..]);
            }
            let keep = self.0.keep_of(place);
            let step = Forward {
                n,
                gates,
                state,
                keep,
            };
            run(checked.level(), step);
        });
    }

    fn backward_checked(
        &self,
        checked: Checked,
        inputs: GruStepFields<&[f32]>,
        written: GruStepWritten<&[f32]>,
        d_next: &[f32],
        to: GruStepFields<&mut [f32]>,
    ) {
        let n = self.0.units;
        to.state.copy_from_slice(d_next);
        let outputs = [(to.x, 3), (to.product, 3), (to.state, 1)];
        self.0
            .for_each_block(outputs, |place, [d_x, d_product, d_state]| {
                let mut d_candidate = vec![0.0; place.rows * n];
                let step = Backward {
                    n,
                    gates: place.of(written.gates, 4 * n),
                    previous: place.rows_of(inputs.state, n),
                    d_gates: d_x,
                    d_state,
                    d_candidate: &mut d_candidate,
                    keep: self.0.keep_of(place),
                };
                run(checked.level(), step);
                d_product.copy_from_slice(d_x);
                let rows = d_product.chunks_exact_mut(3 * n);
                for (row, d_candidate) in rows.zip(d_candidate.chunks_exact(n)) {
                    row[2 * n..].copy_from_slice(d_candidate);
                }
            });
    }
}

/// Activates the gates in place and advances the state. The gates of a row that does not move become 0, so that it
/// contributes nothing to the weights' gradients.
pub(crate) struct Forward<'a> {
    pub(crate) n: usize,
    /// `z | r | n | u_n`, `[rows, 4n]`; on entry the pre-activations of `z` and `r`, and `x_n`.
    pub(crate) gates: &'a mut [f32],
    pub(crate) state: &'a mut [f32],
    pub(crate) keep: Option<&'a [bool]>,
}

impl Kernel for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let n = self.n;
        let rows = self.gates.chunks_exact_mut(4 * n);
        for (row, (gates, state)) in rows.zip(self.state.chunks_exact_mut(n)).enumerate() {
            if !moves(self.keep, row) {
                gates.fill(0.0);
                continue;
            }
            let [z, r, new, u_n] = gates_mut(gates, n);
            zip_map(
                s,
                [&*u_n],
                [z, r, new, state],
                #[inline(always)]
                |[u_n], [z, r, x_n, h]| {
                    let (z, r) = (sigmoid(s, z), sigmoid(s, r));
                    let new = tanh(s, s.fma(r, u_n, x_n));
                    [z, r, new, s.fma(z, s.sub(h, new), new)]
                },
            );
        }
    }
}

/// From the gradient of the new state, computes those of the pre-activations, of `u_n` and, in place, of the previous
/// state, except for the part that reaches it through the product.
pub(crate) struct Backward<'a> {
    pub(crate) n: usize,
    pub(crate) gates: &'a [f32],
    pub(crate) previous: Strided<'a>,
    pub(crate) d_gates: &'a mut [f32],
    pub(crate) d_state: &'a mut [f32],
    /// The gradient of `u_n`.
    pub(crate) d_candidate: &'a mut [f32],
    pub(crate) keep: Option<&'a [bool]>,
}

impl Kernel for Backward<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let n = self.n;
        let one = s.splat(1.0);
        let states = self
            .d_state
            .chunks_exact_mut(n)
            .zip(self.d_candidate.chunks_exact_mut(n));
        let rows = self.d_gates.chunks_exact_mut(3 * n).zip(states);
        for (row, (d_gates, (d_state, d_candidate))) in rows.enumerate() {
            if !moves(self.keep, row) {
                d_gates.fill(0.0);
                d_candidate.fill(0.0);
                continue;
            }
            let [z, r, new, u_n] = gates_of(&self.gates[4 * n * row..], n);
            let [d_z, d_r, d_new] = gates_mut(d_gates, n);
            zip_map(
                s,
                [z, r, new, u_n, self.previous.row(row, n)],
                [d_z, d_r, d_new, d_candidate, d_state],
                #[inline(always)]
                |[z, r, new, u_n, h], [_, _, _, _, d]| {
                    let d_z = s.mul(s.mul(d, s.sub(h, new)), slope(s, z));
                    let d_new = s.mul(s.mul(d, s.sub(one, z)), tanh_slope(s, new));
                    let d_r = s.mul(s.mul(d_new, u_n), slope(s, r));
                    [d_z, d_r, d_new, s.mul(d_new, r), s.mul(d, z)]
                },
            );
        }
    }
}
