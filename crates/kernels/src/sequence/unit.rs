//! The recurrent units: the columns of a row of each, and one step of a block of rows, including the products with `U`.
//!
//! ```text
//! Cho's GRU        z, r += h [U_z U_r]    r = σ, r ∘ h    ñ += (r ∘ h) U_n    z = σ, ñ = tanh, h = h + z ∘ (ñ - h)
//!      backward    dz, dñ, dh    d(r ∘ h) = dñ U_nᵀ    dr, dh    dh += [dz dr] [U_z U_r]ᵀ
//! PyTorch's GRU    z, r += h [U_z U_r]    u_n = h U_n    the step
//!      backward    dz, dr, dñ, du_n, dh    dh += du_n U_nᵀ    dh += [dz dr] [U_z U_r]ᵀ
//! LSTM             i, f, g, o += h U    the step
//!      backward    di, df, dg, do, dc    dh = [di df dg do] Uᵀ
//! ```
//! The pointwise parts are those of [`crate::cell`].

use super::rows::{Previous, pack};
use crate::cell::{gru, gru_reset_before as cho, lstm};
use crate::matmul::{Matrix, Packed, Write, transposed_product};
use crate::rows::{Strided, gather, join};
use crate::simd::{Level, run};

/// A recurrent unit of `n` numbers. With `x` the input part of the pre-activations, biases included, and `U` the recurrent
/// weights, its gates side by side:
///
/// | unit | gates | candidate | new state |
/// |---|---|---|---|
/// | [`Unit::ChoGru`] | `z, r = σ(x + h U)` | `ñ = tanh(x_n + (r ∘ h) U_n)` | `(1 - z) ∘ h + z ∘ ñ` |
/// | [`Unit::PyTorchGru`] | `z, r = σ(x + h U)` | `ñ = tanh(x_n + r ∘ (h U_n))` | `(1 - z) ∘ ñ + z ∘ h` |
/// | [`Unit::Lstm`] | `i, f, o = σ(x + h U)` | `g = tanh(x_g + h U_g)` | `c' = f ∘ c + i ∘ g`, `h' = o ∘ tanh c'` |
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unit {
    /// Cho et al. 2014 and Bahdanau et al. 2014: the reset gate acts before the recurrent product, the update gate weights the
    /// new state. Columns `z | r | n`.
    ChoGru,
    /// `torch.nn.GRU`: the reset gate acts after the recurrent product, the update gate weights the old state. Columns
    /// `z | r | n`.
    PyTorchGru,
    /// Hochreiter & Schmidhuber 1997 with the forget gate of Gers et al. 2000. Columns `i | f | g | o`, as `torch.nn.LSTM` has
    /// them; states `h | c`.
    Lstm,
}

impl Unit {
    /// Gates side by side in a row of pre-activations: 3 of a GRU, 4 of an LSTM.
    pub fn gates(self) -> usize {
        if self == Self::Lstm { 4 } else { 3 }
    }

    /// States side by side in a row: `h`, or `h | c` of an LSTM.
    pub fn states(self) -> usize {
        if self == Self::Lstm { 2 } else { 1 }
    }

    /// Width, in units, of what a row saves for the backward pass: the activated gates, and for PyTorch's GRU also `h U_n`.
    pub(super) fn saved(self) -> usize {
        if self == Self::ChoGru { 3 } else { 4 }
    }

    /// Width, in units, of what the backward pass writes for a row beside the gates, for the gradient of `U`: `r ∘ h` of Cho's
    /// GRU, the gradient of `h U_n` of PyTorch's.
    pub(super) fn traces(self) -> usize {
        if self == Self::Lstm { 0 } else { 1 }
    }

    /// The gradient of `U [n, gates]` from those of all pre-activations and the traces.
    pub(super) fn weight_gradient(
        self,
        level: Level,
        previous: Previous<'_>,
        d_gates: &[f32],
        traces: &[f32],
        out: &mut [f32],
    ) {
        let n = previous.width;
        let stride = self.gates() * n;
        let d_gates = Strided {
            data: d_gates,
            stride,
        };
        if self == Self::Lstm {
            return previous.product(level, d_gates, stride, out, stride);
        }
        previous.product(level, d_gates, 2 * n, out, stride);
        let out = &mut out[2 * n..];
        if self == Self::PyTorchGru {
            let d_candidate = Strided {
                data: traces,
                stride: n,
            };
            return previous.product(level, d_candidate, n, out, stride);
        }
        let rows = previous.steps * previous.batch;
        let d_candidate = Matrix::new(d_gates.from(2 * n).data, stride, rows, n);
        let resets = Matrix::new(traces, n, rows, n);
        transposed_product(level, resets, d_candidate, out, stride, Write::Replace);
    }
}

/// What the rows of a block carry from step to step.
pub(super) struct State {
    /// `[rows, n]`
    pub(super) hidden: Vec<f32>,
    /// `[rows, n]` of an LSTM, else empty.
    pub(super) cell: Vec<f32>,
    /// Memory for `r ∘ h`.
    reset: Vec<f32>,
}

impl State {
    /// Reads rows of states.
    pub(super) fn new(unit: Unit, rows: usize, states: Strided<'_>, n: usize) -> Self {
        let lstm = unit == Unit::Lstm;
        Self {
            hidden: gather(rows, states, n),
            cell: gather(rows, states.from(n), if lstm { n } else { 0 }),
            reset: vec![0.0; if lstm { 0 } else { rows * n }],
        }
    }

    /// Writes `h`, or `h | c`, to the first columns of the rows of `to`.
    pub(super) fn write(&self, rows: usize, to: &mut [f32]) {
        join(rows, &[&self.hidden, &self.cell], to);
    }
}

/// The weights of a unit, packed: as they are, or transposed for the backward pass.
pub(super) struct UnitWeights {
    level: Level,
    unit: Unit,
    n: usize,
    /// `U`; for a GRU only `U_z | U_r`.
    gates: Packed,
    /// `U_n`, for a GRU.
    candidate: Option<Packed>,
}

impl UnitWeights {
    /// Packs `recurrent [n, gates]`.
    pub(super) fn pack(
        level: Level,
        unit: Unit,
        recurrent: &[f32],
        n: usize,
        transposed: bool,
    ) -> Self {
        let stride = unit.gates() * n;
        let part = |first: usize, columns: usize| {
            let matrix = &recurrent[first.min(recurrent.len())..];
            pack(level, matrix, stride, n, columns, transposed)
        };
        let lstm = unit == Unit::Lstm;
        Self {
            level,
            unit,
            n,
            gates: part(0, if lstm { 4 * n } else { 2 * n }),
            candidate: (!lstm).then(|| part(2 * n, n)),
        }
    }

    /// One step for the rows of a block. `gates` is as wide as what is saved for the backward pass. On entry its first columns
    /// hold all of the pre-activations except the part of `U`, on return it holds the activated gates.
    pub(super) fn forward(&self, gates: &mut [f32], state: &mut State, keep: Option<&[bool]>) {
        let Self { level, unit, n, .. } = *self;
        let State {
            hidden,
            cell,
            reset,
        } = state;
        let (rows, wide) = (hidden.len() / n, unit.saved() * n);
        self.gates.product(hidden, n, gates, wide, rows, Write::Add);
        match (unit, &self.candidate) {
            (Unit::ChoGru, Some(candidate)) => {
                let half = cho::Reset {
                    n,
                    gates,
                    state: hidden,
                    reset,
                    keep,
                };
                run(level, half);
                let new = &mut gates[2 * n..];
                candidate.product(reset, n, new, wide, rows, Write::Add);
                let state = hidden;
                let half = cho::Update {
                    n,
                    gates,
                    state,
                    keep,
                };
                run(level, half);
            }
            (Unit::PyTorchGru, Some(candidate)) => {
                let u_n = &mut gates[3 * n..];
                candidate.product(hidden, n, u_n, wide, rows, Write::Replace);
                let state = hidden;
                let step = gru::Forward {
                    n,
                    gates,
                    state,
                    keep,
                };
                run(level, step);
            }
            _ => {
                let step = lstm::Forward {
                    n,
                    gates,
                    hidden,
                    cell,
                    keep,
                };
                run(level, step);
            }
        }
    }

    /// The backward pass of one step for the rows of a block, with the transposed weights: from the gradient of the new state,
    /// computes those of the pre-activations and, in place, of the previous state.
    pub(super) fn backward(&self, back: UnitBack<'_>) {
        let Self { level, unit, n, .. } = *self;
        let UnitBack {
            gates,
            before,
            after,
            d_gates,
            d_hidden,
            d_cell,
            trace,
            keep,
        } = back;
        let (rows, wide) = (d_hidden.len() / n, unit.gates() * n);
        match (unit, &self.candidate) {
            (Unit::ChoGru, Some(candidate)) => {
                let half = cho::UpdateBack {
                    n,
                    gates,
                    previous: before,
                    d_gates,
                    d_state: d_hidden,
                    keep,
                };
                run(level, half);
                let mut d_reset = vec![0.0; rows * n];
                let d_new = &d_gates[2 * n..];
                candidate.product(d_new, wide, &mut d_reset, n, rows, Write::Replace);
                let half = cho::ResetBack {
                    n,
                    gates,
                    previous: before,
                    d_reset: &d_reset,
                    d_gates,
                    d_state: d_hidden,
                    reset: trace,
                    keep,
                };
                run(level, half);
            }
            (Unit::PyTorchGru, Some(candidate)) => {
                let step = gru::Backward {
                    n,
                    gates,
                    previous: before,
                    d_gates,
                    d_state: d_hidden,
                    d_candidate: trace,
                    keep,
                };
                run(level, step);
                candidate.product(trace, n, d_hidden, n, rows, Write::Add);
            }
            _ => {
                let step = lstm::Backward {
                    n,
                    gates,
                    previous_cell: before.from(n),
                    cell: after.from(n),
                    d_gates,
                    d_hidden,
                    d_cell,
                    keep,
                };
                run(level, step);
            }
        }
        self.gates
            .product(d_gates, wide, d_hidden, n, rows, Write::Add);
    }
}

/// The arguments of [`UnitWeights::backward`] for one step of the rows of a block.
pub(super) struct UnitBack<'a> {
    /// The gates as the forward pass saved them.
    pub(super) gates: &'a [f32],
    /// The states before the step, `h` first.
    pub(super) before: Strided<'a>,
    /// The states after it.
    pub(super) after: Strided<'a>,
    /// `[rows, gates]`, overwritten.
    pub(super) d_gates: &'a mut [f32],
    /// `[rows, n]`
    pub(super) d_hidden: &'a mut [f32],
    /// `[rows, n]` of an LSTM, else empty.
    pub(super) d_cell: &'a mut [f32],
    /// `[rows, traces]`, overwritten.
    pub(super) trace: &'a mut [f32],
    pub(super) keep: Option<&'a [bool]>,
}
