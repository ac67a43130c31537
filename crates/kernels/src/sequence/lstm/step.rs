//! The pointwise parts of one LSTM step on a block of rows; a row of gates is `i | f | g | o`.
//!
//! At a padded step the gates are set to zero, so that nothing of it reaches a weight gradient.

use crate::sequence::rows::{Strided, is_real};
use crate::simd::{Kernel, Simd, sigmoid, tanh, zip_map};

/// A row of gates in its four parts.
#[inline(always)]
fn quarters(row: &[f32], n: usize) -> [&[f32]; 4] {
    [
        &row[..n],
        &row[n..2 * n],
        &row[2 * n..3 * n],
        &row[3 * n..4 * n],
    ]
}

/// A row of gates in its four parts.
#[inline(always)]
fn quarters_mut(row: &mut [f32], n: usize) -> [&mut [f32]; 4] {
    let (a, rest) = row.split_at_mut(n);
    let (b, rest) = rest.split_at_mut(n);
    let (c, d) = rest.split_at_mut(n);
    [a, b, c, &mut d[..n]]
}

/// The derivative of `σ` where it is `gate`.
#[inline(always)]
fn slope<S: Simd>(s: S, gate: S::V) -> S::V {
    s.mul(gate, s.sub(s.splat(1.0), gate))
}

/// Activates the gates in place and moves both states on.
pub(in crate::sequence) struct LstmState<'a> {
    pub(in crate::sequence) n: usize,
    pub(in crate::sequence) gates: &'a mut [f32],
    pub(in crate::sequence) hidden: &'a mut [f32],
    pub(in crate::sequence) cell: &'a mut [f32],
    pub(in crate::sequence) keep: Option<&'a [bool]>,
}

impl Kernel for LstmState<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let n = self.n;
        let states = self
            .hidden
            .chunks_exact_mut(n)
            .zip(self.cell.chunks_exact_mut(n));
        for (row, (gates, (hidden, cell))) in
            self.gates.chunks_exact_mut(4 * n).zip(states).enumerate()
        {
            if !is_real(self.keep, row) {
                gates.fill(0.0);
                continue;
            }
            let [i, f, g, o] = quarters_mut(gates, n);
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

/// Writes rows `h | c`.
pub(in crate::sequence) fn join_states(n: usize, hidden: &[f32], cell: &[f32], to: &mut [f32]) {
    let states = hidden.chunks_exact(n).zip(cell.chunks_exact(n));
    for (to, (hidden, cell)) in to.chunks_exact_mut(2 * n).zip(states) {
        to[..n].copy_from_slice(hidden);
        to[n..].copy_from_slice(cell);
    }
}

/// The cells of rows `h | c` after the step before, or else the initial ones.
pub(in crate::sequence) fn cells_before<'a>(
    n: usize,
    states: Option<&'a [f32]>,
    initial: &'a [f32],
) -> Strided<'a> {
    match states {
        Some(states) => Strided {
            data: &states[n.min(states.len())..],
            stride: 2 * n,
        },
        None => Strided {
            data: initial,
            stride: n,
        },
    }
}

/// From the gradients of the new states to those of the four pre-activations and of the former
/// cell; the former hidden state's is left 0 at a real step, for the product with the weights to be
/// added to.
pub(in crate::sequence) struct LstmBack<'a> {
    pub(in crate::sequence) n: usize,
    pub(in crate::sequence) gates: &'a [f32],
    pub(in crate::sequence) previous_cell: Strided<'a>,
    /// `h | c` after the step.
    pub(in crate::sequence) states: &'a [f32],
    pub(in crate::sequence) d_gates: &'a mut [f32],
    pub(in crate::sequence) d_hidden: &'a mut [f32],
    pub(in crate::sequence) d_cell: &'a mut [f32],
    pub(in crate::sequence) keep: Option<&'a [bool]>,
}

impl Kernel for LstmBack<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let n = self.n;
        let one = s.splat(1.0);
        for row in 0..self.d_hidden.len() / n {
            let d_gates = &mut self.d_gates[4 * n * row..][..4 * n];
            let d_hidden = &mut self.d_hidden[n * row..][..n];
            let d_cell = &mut self.d_cell[n * row..][..n];
            if !is_real(self.keep, row) {
                d_gates.fill(0.0);
                continue;
            }
            let [i, f, g, o] = quarters(&self.gates[4 * n * row..], n);
            let [d_i, d_f, d_g, d_o] = quarters_mut(d_gates, n);
            let cell = &self.states[2 * n * row + n..][..n];
            let previous = self.previous_cell.row(row, n);
            zip_map(
                s,
                [i, f, g, o, cell, previous],
                [d_i, d_f, d_g, d_o, d_hidden, d_cell],
                #[inline(always)]
                |[i, f, g, o, cell, previous], [_, _, _, _, d_h, d_c]| {
                    let t = tanh(s, cell);
                    let d_c = s.fma(s.mul(d_h, o), s.fnma(t, t, one), d_c);
                    let d_i = s.mul(s.mul(d_c, g), slope(s, i));
                    let d_f = s.mul(s.mul(d_c, previous), slope(s, f));
                    let d_g = s.mul(s.mul(d_c, i), s.fnma(g, g, one));
                    let d_o = s.mul(s.mul(d_h, t), slope(s, o));
                    [d_i, d_f, d_g, d_o, s.zero(), s.mul(d_c, f)]
                },
            );
        }
    }
}

/// Adds the gradient of a step's output, rows `h | c`, to those of its states.
pub(in crate::sequence) struct AddOutput<'a> {
    pub(in crate::sequence) n: usize,
    pub(in crate::sequence) d_out: &'a [f32],
    pub(in crate::sequence) d_hidden: &'a mut [f32],
    pub(in crate::sequence) d_cell: &'a mut [f32],
}

impl Kernel for AddOutput<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let states = self
            .d_hidden
            .chunks_exact_mut(self.n)
            .zip(self.d_cell.chunks_exact_mut(self.n));
        for (d_out, (d_hidden, d_cell)) in self.d_out.chunks_exact(2 * self.n).zip(states) {
            let (out_h, out_c) = d_out.split_at(self.n);
            zip_map(
                s,
                [out_h, out_c],
                [d_hidden, d_cell],
                #[inline(always)]
                |[out_h, out_c], [h, c]| [s.add(h, out_h), s.add(c, out_c)],
            );
        }
    }
}
