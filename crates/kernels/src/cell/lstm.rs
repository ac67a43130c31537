//! LSTM without peepholes, in PyTorch's gate order.
//!
//! ```text
//! i, f, o = σ(x + u), g = tanh(x_g + u_g)     x = W input + b, u = U h   [batch, 4 units]  (i f g o)
//! c' = f ∘ c + i ∘ g                                                     [batch, units]
//! h' = o ∘ tanh c'                                                       [batch, units]
//! ```
//!
//! ```text
//! | i | f | g | o |  = x + u  \                                       row by row, in place: every number is read
//! | c |                        >  | h' |, | c' |, | i | f | g | o |   once, the unit's gates in registers of one
//!                             /                                kept   step of lanes
//! ```
//!
//! ```
//! use regard_kernels::{Operation, cell::{Step, lstm::{LstmStep, LstmStepFields, LstmStepWritten}}};
//! let step = LstmStep(Step { batch: 1, units: 1, keep: None });
//! let inputs = LstmStepFields { x: &[0.0; 4][..], product: &[0.0; 4], hidden: &[0.3], cell: &[0.8] };
//! let (mut states, mut gates) = ([0.0; 2], [0.0; 4]);
//! step.forward(inputs, LstmStepWritten { states: &mut states, gates: &mut gates })?;
//! assert_eq!(states[1], 0.4);
//! assert!((states[0] - 0.5 * 0.4f32.tanh()).abs() < 1e-7);
//! # Ok::<(), regard_kernels::KernelError>(())
//! ```

use super::{Step, gates_mut, gates_of, moves, slope, tanh_slope};
use crate::error::KernelError;
use crate::operation::{Checked, Operation, Shape, fields};
use crate::rows::Strided;
use crate::simd::{Kernel, Simd, run, sigmoid, tanh, zip_map};

/// One step of an LSTM.
#[derive(Debug, Clone)]
pub struct LstmStep(pub Step);

fields! {
    /// What [`LstmStep`] reads.
    LstmStepFields in Step {
        /// Input part of the pre-activations, biases included.
        x: [batch, 4 units],
        /// `U h`, the part of the previous state.
        product: [batch, 4 units],
        /// The previous hidden state. A row that does not move returns it unchanged; in all others it enters through the
        /// product only.
        hidden: [batch, units],
        /// The previous cell.
        cell: [batch, units],
    }
}

fields! {
    /// What [`LstmStep`] writes.
    LstmStepWritten in Step {
        /// `h'` of all rows, then `c'` of all rows.
        states: [2 batch, units],
        /// Activated gates, for the backward pass.
        gates: [batch, 4 units],
    }
}

impl Operation for LstmStep {
    type Inputs<T> = LstmStepFields<T>;
    type Written<T> = LstmStepWritten<T>;
    const RESULTS: usize = 1;

    fn shapes(&self) -> Result<(LstmStepFields<Shape>, LstmStepWritten<Shape>), KernelError> {
        self.0.check()?;
        Ok((LstmStepFields::of(&self.0), LstmStepWritten::of(&self.0)))
    }

    fn forward_checked(
        &self,
        checked: Checked,
        inputs: LstmStepFields<&[f32]>,
        written: LstmStepWritten<&mut [f32]>,
    ) {
        let n = self.0.units;
        let (hidden, cell) = written.states.split_at_mut(self.0.batch * n);
        hidden.copy_from_slice(inputs.hidden);
        cell.copy_from_slice(inputs.cell);
        let outputs = [(hidden, 1), (cell, 1), (written.gates, 4)];
        self.0
            .for_each_block(outputs, |place, [hidden, cell, gates]| {
                let mut room = vec![
                    0.0;
                    if gates.is_empty() {
                        place.rows * 4 * n
                    } else {
                        0
                    }
                ];
                let gates = if gates.is_empty() { &mut room } else { gates };
                gates.copy_from_slice(place.of(inputs.x, 4 * n));
                let product = place.of(inputs.product, 4 * n);
                gates
                    .iter_mut()
                    .zip(product)
                    .for_each(|(gate, u)| *gate += u);
                let keep = self.0.keep_of(place);
                let step = Forward {
                    n,
                    gates,
                    hidden,
                    cell,
                    keep,
                };
                run(checked.level(), step);
            });
    }

    fn backward_checked(
        &self,
        checked: Checked,
        inputs: LstmStepFields<&[f32]>,
        written: LstmStepWritten<&[f32]>,
        d_states: &[f32],
        to: LstmStepFields<&mut [f32]>,
    ) {
        let (n, size) = (self.0.units, self.0.batch * self.0.units);
        let (d_hidden, d_cell) = d_states.split_at(size);
        to.hidden.copy_from_slice(d_hidden);
        to.cell.copy_from_slice(d_cell);
        let outputs = [(to.x, 4), (to.product, 4), (to.hidden, 1), (to.cell, 1)];
        self.0
            .for_each_block(outputs, |place, [d_x, d_product, d_hidden, d_cell]| {
                let step = Backward {
                    n,
                    gates: place.of(written.gates, 4 * n),
                    previous_cell: place.rows_of(inputs.cell, n),
                    cell: place.rows_of(&written.states[size..], n),
                    d_gates: d_x,
                    d_hidden,
                    d_cell,
                    keep: self.0.keep_of(place),
                };
                run(checked.level(), step);
                d_product.copy_from_slice(d_x);
            });
    }
}

/// Activates the gates in place and advances both states. The gates of a row that does not move become 0, so that it
/// contributes nothing to the weights' gradients.
pub(crate) struct Forward<'a> {
    pub(crate) n: usize,
    /// `[rows, 4n]`; on entry the pre-activations.
    pub(crate) gates: &'a mut [f32],
    pub(crate) hidden: &'a mut [f32],
    pub(crate) cell: &'a mut [f32],
    pub(crate) keep: Option<&'a [bool]>,
}

impl Kernel for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let n = self.n;
        let states = self
            .hidden
            .chunks_exact_mut(n)
            .zip(self.cell.chunks_exact_mut(n));
        let rows = self.gates.chunks_exact_mut(4 * n).zip(states);
        for (row, (gates, (hidden, cell))) in rows.enumerate() {
            if !moves(self.keep, row) {
                gates.fill(0.0);
                continue;
            }
            let [i, f, g, o] = gates_mut(gates, n);
            zip_map(
                s,
                [],
                [i, f, g, o, hidden, cell],
                #[inline(always)]
                |[], [i, f, g, o, _, c]| {
                    let (i, f, g, o) = (sigmoid(s, i), sigmoid(s, f), tanh(s, g), sigmoid(s, o));
                    let c = s.fma(f, c, s.mul(i, g));
                    [i, f, g, o, s.mul(o, tanh(s, c)), c]
                },
            );
        }
    }
}

/// From the gradients of the new states, computes those of the four pre-activations and, in place, of the previous cell. The
/// gradient of the previous hidden state becomes 0 in a row that moves: what flows through the product is added later.
pub(crate) struct Backward<'a> {
    pub(crate) n: usize,
    pub(crate) gates: &'a [f32],
    pub(crate) previous_cell: Strided<'a>,
    pub(crate) cell: Strided<'a>,
    pub(crate) d_gates: &'a mut [f32],
    pub(crate) d_hidden: &'a mut [f32],
    pub(crate) d_cell: &'a mut [f32],
    pub(crate) keep: Option<&'a [bool]>,
}

impl Kernel for Backward<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let n = self.n;
        let states = self
            .d_hidden
            .chunks_exact_mut(n)
            .zip(self.d_cell.chunks_exact_mut(n));
        let rows = self.d_gates.chunks_exact_mut(4 * n).zip(states);
        for (row, (d_gates, (d_hidden, d_cell))) in rows.enumerate() {
            if !moves(self.keep, row) {
                d_gates.fill(0.0);
                continue;
            }
            let [i, f, g, o] = gates_of(&self.gates[4 * n * row..], n);
            let [d_i, d_f, d_g, d_o] = gates_mut(d_gates, n);
            let (cell, previous) = (self.cell.row(row, n), self.previous_cell.row(row, n));
            zip_map(
                s,
                [i, f, g, o, cell, previous],
                [d_i, d_f, d_g, d_o, d_hidden, d_cell],
                #[inline(always)]
                |[i, f, g, o, cell, previous], [_, _, _, _, d_h, d_c]| {
                    let t = tanh(s, cell);
                    let d_c = s.fma(s.mul(d_h, o), tanh_slope(s, t), d_c);
                    let d_i = s.mul(s.mul(d_c, g), slope(s, i));
                    let d_f = s.mul(s.mul(d_c, previous), slope(s, f));
                    let d_g = s.mul(s.mul(d_c, i), tanh_slope(s, g));
                    let d_o = s.mul(s.mul(d_h, t), slope(s, o));
                    [d_i, d_f, d_g, d_o, s.zero(), s.mul(d_c, f)]
                },
            );
        }
    }
}
