//! What Bahdanau's decoder ([`super::additive_gru`]) and GNMT's attending layer ([`super::additive_lstm`]) share:
//! all of a step but the recurrent cell.
//!
//! ```text
//! e_j  = vᵀ tanh(h_{t-1} W_a + key_j)      α = softmax of e over the kept sources
//! a_t  = Σ_j α_j value_j
//! p_t  = x_t + a_t C                       pre-activations, before the former state's part
//! h_t  = cell(p_t, former state)           Cell: h_{t-1} U, the gates, and what else the cell remembers
//! ```
//! ```text
//!              rows ->                     a task: a block of rows, all steps
//!  step 1   |======|======|===|            in the task's own memory: h, what the cell remembers, a, the scores,
//!  step 2   |======|======|===|                the exponentials of its rows' keys
//!   ...       task   task  task            of every step, in the caller's: h | a, α; for the way back gates, queries
//!  step T   |======|======|===|
//! ```
//! The way back goes through a block's steps from the last to the first and writes the gradients of all
//! pre-activations, queries and contexts. What sums over steps follows in one product each: the weights, and of
//! each row the values (`Σ_t α_t ⊗ da_t`).

mod backward;
mod forward;

use super::attend::{Kept, ReadKeys, Scoring, Sources};
use super::rows::{Place, Previous, pack};
use crate::additive::Keys;
use crate::error::{KernelError, check_length};
use crate::matmul::Packed;
use crate::simd::{Level, run};
pub(super) use backward::{Back, Gradients, Written};
pub(super) use forward::Saved;

/// A recurrent cell between its pre-activations and its state.
pub(super) trait Cell: Sync {
    /// Gates side by side in a row of pre-activations.
    const GATES: usize;
    /// State vectors of each row and step that are saved beside the output.
    const SAVED: usize;
    /// Vectors of each row and step that the way back leaves for the gradient of `U`.
    const TRACES: usize;
    /// Vectors of each row that the way back needs room for within a step.
    const ROOM: usize;
    const SHAPES: Shapes;
    /// `U`, packed.
    type Weights: Sync;
    /// What the rows of a block remember from step to step.
    type State;

    /// Checks what the cell alone has.
    fn check(&self, steps: usize, batch: usize, n: usize) -> Result<(), KernelError>;

    /// The hidden states before the first step, `[B, n]`.
    fn initial(&self) -> &[f32];

    /// `U [n, GATES n]`, or its transpose for the way back.
    fn pack(level: Level, recurrent: &[f32], n: usize, transposed: bool) -> Self::Weights;

    /// The state before the first step, of `rows` rows from `first` on.
    fn start(&self, n: usize, first: usize, rows: usize) -> Self::State;

    /// The hidden states, `[rows, n]`.
    fn hidden(state: &Self::State) -> &[f32];

    /// Adds the former state's part to the pre-activations, activates them in place and moves the state on.
    fn forward(
        &self,
        level: Level,
        weights: &Self::Weights,
        place: Place,
        gates: &mut [f32],
        state: &mut Self::State,
    );

    /// Writes what is saved of a state, `[rows, SAVED n]`.
    fn save(state: &Self::State, to: &mut [f32]);

    /// One step back: from the gradient of the new state to those of the pre-activations and the former state.
    fn backward(&self, level: Level, weights: &Self::Weights, back: Back<'_>);

    /// The gradient of `U`, from those of all pre-activations and the traces.
    fn recurrent_gradient(
        level: Level,
        previous: Previous<'_>,
        d_gates: &[f32],
        traces: &[f32],
        out: &mut [f32],
    );
}

/// Shapes by the number of gates, as messages name them.
pub(super) struct Shapes {
    pub(super) of_steps: &'static str,
    pub(super) of_hidden: &'static str,
    pub(super) of_value: &'static str,
}

/// The layer; the sizes and slices are those of [`super::additive_gru::AdditiveGruDecoder`].
pub(super) struct AdditiveDecoder<'a, C> {
    pub(super) cell: C,
    pub(super) steps: usize,
    pub(super) batch: usize,
    pub(super) sources: usize,
    pub(super) hidden: usize,
    pub(super) attention: usize,
    pub(super) value: usize,
    /// `[T, B, GATES n]`
    pub(super) x_projection: &'a [f32],
    pub(super) keys: &'a [f32],
    pub(super) values: &'a [f32],
    pub(super) query_weight: &'a [f32],
    pub(super) score: &'a [f32],
    /// `[n, GATES n]`
    pub(super) recurrent: &'a [f32],
    /// `[d, GATES n]`
    pub(super) context_weight: &'a [f32],
    pub(super) keep_source: Option<&'a [bool]>,
}

/// The packed weights of one direction.
struct Weights<C: Cell> {
    query: Packed,
    context: Packed,
    cell: C::Weights,
}

impl<C: Cell> AdditiveDecoder<'_, C> {
    fn check(&self) -> Result<(), KernelError> {
        let Self {
            steps,
            batch,
            sources,
            hidden: n,
            attention: a,
            value: d,
            ..
        } = *self;
        let wide = C::GATES.saturating_mul(n);
        let check = check_length;
        let shape = C::SHAPES.of_steps;
        let found = self.x_projection.len();
        check("x_projection", shape, &[steps, batch, wide], found)?;
        self.cell.check(steps, batch, n)?;
        let shape = "[batch, sources, attention]";
        check("keys", shape, &[batch, sources, a], self.keys.len())?;
        let shape = "[batch, sources, value]";
        check("values", shape, &[batch, sources, d], self.values.len())?;
        let shape = "[hidden, attention]";
        check("query_weight", shape, &[n, a], self.query_weight.len())?;
        check("score", "[attention]", &[a], self.score.len())?;
        let shape = C::SHAPES.of_hidden;
        check("recurrent", shape, &[n, wide], self.recurrent.len())?;
        let (shape, found) = (C::SHAPES.of_value, self.context_weight.len());
        check("context_weight", shape, &[d, wide], found)?;
        self.keep_source.map_or(Ok(()), |keep| {
            let shape = "[batch, sources]";
            check("keep_source", shape, &[batch, sources], keep.len())
        })
    }

    /// The weights as they are, or their transposes for the way back.
    fn pack(&self, level: Level, transposed: bool) -> Weights<C> {
        let (n, wide) = (self.hidden, C::GATES * self.hidden);
        let pack =
            |matrix, inner, columns| pack(level, matrix, columns, inner, columns, transposed);
        Weights {
            query: pack(self.query_weight, n, self.attention),
            context: pack(self.context_weight, self.value, wide),
            cell: C::pack(level, self.recurrent, n, transposed),
        }
    }

    /// What the block of rows from `first` on attends to.
    fn sources_of<'a>(&'a self, first: usize, kept: &'a Kept, read: &'a Keys) -> Sources<'a> {
        let Self {
            sources,
            attention,
            value,
            ..
        } = *self;
        Sources {
            scoring: Scoring::Additive(read),
            keys: &self.keys[first * sources * attention..],
            values: &self.values[first * sources * value..],
            kept,
            windows: None,
            sources,
            attention,
            value,
        }
    }

    /// The keys of the block of rows from `first` on, ready to be scored at every step.
    fn read_keys(&self, level: Level, first: usize, kept: &Kept) -> Keys {
        let read = ReadKeys {
            v: self.score,
            keys: &self.keys[first * self.sources * self.attention..],
            kept,
            sources: self.sources,
        };
        run(level, read)
    }

    /// Multiply-adds of one direction, products with weights and attention.
    fn products(&self) -> usize {
        let Self {
            hidden: n,
            attention,
            value,
            sources,
            ..
        } = *self;
        let of_row = n * attention + (n + value) * C::GATES * n;
        self.steps * self.batch * (of_row + sources * (attention + value))
    }
}
