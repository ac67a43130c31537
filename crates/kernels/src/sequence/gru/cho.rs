//! One step of Cho's unit on a block of rows, products with `U` and all; see [`super`] for the formulas.
//!
//! ```text
//! forward    z, r += h [U_z U_r]    z, r = σ    r ∘ h    ñ += (r ∘ h) U_n    ñ = tanh    h = h + z ∘ (ñ - h)
//! way back   dz, dñ, dh    d(r ∘ h) = dñ U_nᵀ    dr, dh    dh += [dz dr] [U_z U_r]ᵀ
//! ```

use super::step::{ChoBackGates, ChoBackState, ChoGates, ChoState};
use crate::matmul::{Matrix, Packed, Write, transposed_product};
use crate::sequence::rows::{Previous, Strided, pack};
use crate::simd::{Level, run};

/// `U` in the two parts that are multiplied with different left sides.
pub(in crate::sequence) struct GruWeights {
    /// `U_z | U_r`
    pub(super) gates: Packed,
    /// `U_n`
    pub(super) candidate: Packed,
}

impl GruWeights {
    /// Of `recurrent [n, 3n]`, or their transposes for the way back.
    pub(in crate::sequence) fn pack(
        level: Level,
        recurrent: &[f32],
        n: usize,
        transposed: bool,
    ) -> Self {
        Self {
            gates: pack(level, recurrent, 3 * n, n, 2 * n, transposed),
            candidate: pack(level, &recurrent[2 * n..], 3 * n, n, n, transposed),
        }
    }
}

/// A step forward.
pub(in crate::sequence) struct ChoForward<'a> {
    pub(in crate::sequence) n: usize,
    /// In: all of the pre-activations but `U`'s part. Out: the activated gates.
    pub(in crate::sequence) gates: &'a mut [f32],
    pub(in crate::sequence) state: &'a mut [f32],
    /// `r ∘ h`, overwritten.
    pub(in crate::sequence) reset_state: &'a mut [f32],
    pub(in crate::sequence) keep: Option<&'a [bool]>,
}

impl ChoForward<'_> {
    pub(in crate::sequence) fn run(self, level: Level, weights: &GruWeights) {
        let Self {
            n,
            gates,
            state,
            reset_state,
            keep,
        } = self;
        let (rows, wide) = (state.len() / n, 3 * n);
        weights
            .gates
            .product(state, n, gates, wide, rows, Write::Add);
        let both = ChoGates {
            n,
            gates,
            state,
            reset_state,
        };
        run(level, both);
        let candidate = &mut gates[2 * n..];
        weights
            .candidate
            .product(reset_state, n, candidate, wide, rows, Write::Add);
        let new = ChoState {
            n,
            gates,
            state,
            keep,
        };
        run(level, new);
    }
}

/// A step back.
pub(in crate::sequence) struct ChoBack<'a> {
    pub(in crate::sequence) n: usize,
    pub(in crate::sequence) gates: &'a [f32],
    pub(in crate::sequence) previous: Strided<'a>,
    pub(in crate::sequence) d_out: Strided<'a>,
    pub(in crate::sequence) d_gates: &'a mut [f32],
    pub(in crate::sequence) d_state: &'a mut [f32],
    /// `r ∘ h`, overwritten: the left side of `U_n`'s gradient.
    pub(in crate::sequence) reset_state: &'a mut [f32],
    /// Room for the gradient of `r ∘ h`.
    pub(in crate::sequence) d_left: &'a mut [f32],
    pub(in crate::sequence) keep: Option<&'a [bool]>,
}

impl ChoBack<'_> {
    /// `weights` are the transposed ones.
    pub(in crate::sequence) fn run(self, level: Level, weights: &GruWeights) {
        let Self {
            n,
            gates,
            previous,
            d_out,
            d_gates,
            d_state,
            reset_state,
            d_left,
            keep,
        } = self;
        let (rows, wide) = (d_state.len() / n, 3 * n);
        let new = ChoBackState {
            n,
            gates,
            previous,
            d_out,
            d_gates,
            d_state,
            keep,
        };
        run(level, new);
        let d_new = &d_gates[2 * n..];
        weights
            .candidate
            .product(d_new, wide, d_left, n, rows, Write::Replace);
        let both = ChoBackGates {
            n,
            gates,
            previous,
            d_left,
            d_gates,
            d_state,
            reset_state,
        };
        run(level, both);
        weights
            .gates
            .product(d_gates, wide, d_state, n, rows, Write::Add);
    }
}

/// The gradient of `U` from those of all pre-activations and every step's `r ∘ h`, `[T, B, n]`.
pub(in crate::sequence) fn cho_weight_gradient(
    level: Level,
    previous: Previous<'_>,
    d_gates: &[f32],
    reset_states: &[f32],
    out: &mut [f32],
) {
    let (n, all) = (previous.width, previous.steps * previous.batch);
    let wide = 3 * n;
    previous.product(level, d_gates, wide, 0, 2 * n, out, wide);
    let reset_states = Matrix::new(reset_states, n, all, n);
    let d_candidate = &d_gates[(2 * n).min(d_gates.len())..];
    let d_candidate = Matrix::new(d_candidate, wide, all, n);
    let out = &mut out[2 * n..];
    transposed_product(level, reset_states, d_candidate, out, wide, Write::Replace);
}
