//! The decoder layer that attends, of Google's translation system, over a whole target sequence, teacher
//! forced (Wu et al. 2016, sections 3 and 3.2): an LSTM whose former output asks and whose gates read the answer.
//!
//! With the input part `x_t = [x_i | x_f | x_g | x_o]` projected (`E y_{t-1} W + b`), keys `U_a h_j`
//! projected, and `h_{t-1}, c_{t-1}` the former states, one step is
//!
//! ```text
//! e_j     = vᵀ tanh(h_{t-1} W_a + key_j)       α = softmax of e over the kept sources
//! a_t     = Σ_j α_j value_j
//! i, f, o = σ(x + h_{t-1} U + a_t C)           (their columns of U and C)
//! g       = tanh(x_g + h_{t-1} U_g + a_t C_g)
//! c_t     = f ∘ c_{t-1} + i ∘ g,  h_t = o ∘ tanh c_t
//! ```
//!
//! The output row is `h_t | a_t`: the layers above read both. A source sentence with nothing kept has `α = 0`,
//! `a = 0` and gradient 0; whatever stands in `keys` and `values` at a source that is not kept has no influence.
//!
//! ```
//! use regard_kernels::sequence::additive_lstm::AdditiveLstmDecoder;
//!
//! // Equal keys: the attention is uniform and the context is the mean of the values. All gates are
//! // σ(0) = 1/2 and g = tanh(0) = 0: c' = c / 2, h' = tanh(c') / 2.
//! let decoder = AdditiveLstmDecoder {
//!     steps: 1,
//!     batch: 1,
//!     sources: 2,
//!     hidden: 1,
//!     attention: 1,
//!     value: 1,
//!     x_projection: &[0.0; 4],
//!     initial_hidden: &[0.0],
//!     initial_cell: &[4.0],
//!     keys: &[0.3, 0.3],
//!     values: &[1.0, 3.0],
//!     query_weight: &[1.0],
//!     score: &[1.0],
//!     recurrent: &[0.0; 4],
//!     context_weight: &[0.0; 4],
//!     keep_source: None,
//! };
//! let (mut output, mut weights) = ([0.0; 2], [0.0; 2]);
//! decoder.forward(&mut output, &mut weights, None)?;
//! assert_eq!(weights, [0.5, 0.5]);
//! assert_eq!(output[1], 2.0);
//! assert!((output[0] - 0.5 * 2.0f32.tanh()).abs() < 1e-6);
//! # Ok::<(), regard_kernels::KernelError>(())
//! ```

use super::additive_decoder::{AdditiveDecoder, Back, Cell, Gradients, Saved, Shapes, Written};
use super::lstm::step::{LstmBack, LstmState, cells_before, join_states};
use super::rows::{Place, Previous, check_gradients, pack};
use crate::error::{KernelError, check_length};
use crate::matmul::{Packed, Write};
use crate::simd::{Level, run};

/// The inputs of the layer. `T` = steps, `B` = batch, `S` = sources, `n` = hidden, `a` = attention,
/// `d` = value.
#[derive(Debug, Clone, Copy)]
pub struct AdditiveLstmDecoder<'a> {
    /// Target steps `T`.
    pub steps: usize,
    /// Rows `B`.
    pub batch: usize,
    /// Source positions `S`.
    pub sources: usize,
    /// Units of the state, `n`.
    pub hidden: usize,
    /// Units of the alignment model, `a`.
    pub attention: usize,
    /// Width of a value, `d`.
    pub value: usize,
    /// Input part of the pre-activations, `[T, B, 4n]`, columns `i | f | g | o`.
    pub x_projection: &'a [f32],
    /// Hidden state before the first step, `[B, n]`.
    pub initial_hidden: &'a [f32],
    /// Cell state before the first step, `[B, n]`.
    pub initial_cell: &'a [f32],
    /// Projected keys, `[B, S, a]`.
    pub keys: &'a [f32],
    /// Values, `[B, S, d]`.
    pub values: &'a [f32],
    /// Weights of the query, `W_a`, `[n, a]`.
    pub query_weight: &'a [f32],
    /// Score vector `v`, `[a]`.
    pub score: &'a [f32],
    /// Recurrent weights `U`, `[n, 4n]`, columns `i | f | g | o`.
    pub recurrent: &'a [f32],
    /// Context weights `C`, `[d, 4n]`, columns `i | f | g | o`.
    pub context_weight: &'a [f32],
    /// `[B, S]`, `true` where a source position may be attended to.
    pub keep_source: Option<&'a [bool]>,
}

/// What [`AdditiveLstmDecoder::forward`] keeps for the backward pass.
#[derive(Debug)]
pub struct AdditiveLstmSaved<'a> {
    /// `i | f | g | o`, `[T, B, 4n]`
    pub gates: &'a mut [f32],
    /// `h_t | c_t`, `[T, B, 2n]`
    pub states: &'a mut [f32],
    /// Queries `h_{t-1} W_a`, `[T, B, a]`
    pub queries: &'a mut [f32],
}

/// What [`AdditiveLstmDecoder::forward`] wrote.
#[derive(Debug, Clone, Copy)]
pub struct AdditiveLstmResult<'a> {
    /// `h_t | a_t`, `[T, B, n + d]`
    pub output: &'a [f32],
    /// Attention, `[T, B, S]`
    pub weights: &'a [f32],
    /// `i | f | g | o`, `[T, B, 4n]`
    pub gates: &'a [f32],
    /// `h_t | c_t`, `[T, B, 2n]`
    pub states: &'a [f32],
    /// Queries, `[T, B, a]`
    pub queries: &'a [f32],
}

/// Where [`AdditiveLstmDecoder::backward`] writes its gradients; every buffer is overwritten.
#[derive(Debug)]
pub struct AdditiveLstmGradients<'a> {
    /// `[T, B, 4n]`
    pub x_projection: &'a mut [f32],
    /// `[B, n]`
    pub initial_hidden: &'a mut [f32],
    /// `[B, n]`
    pub initial_cell: &'a mut [f32],
    /// `[B, S, a]`, zero at sources that are not kept.
    pub keys: &'a mut [f32],
    /// `[B, S, d]`, zero at sources that are not kept.
    pub values: &'a mut [f32],
    /// `[n, a]`
    pub query_weight: &'a mut [f32],
    /// `[a]`
    pub score: &'a mut [f32],
    /// `[n, 4n]`
    pub recurrent: &'a mut [f32],
    /// `[d, 4n]`
    pub context_weight: &'a mut [f32],
}

impl AdditiveLstmDecoder<'_> {
    /// Writes `h_t | a_t` to `output [T, B, n + d]` and the attention to `weights [T, B, S]`, and
    /// to `saved` what [`Self::backward`] needs.
    ///
    /// # Errors
    /// [`KernelError`] naming the slice whose length does not fit the sizes.
    pub fn forward(
        &self,
        output: &mut [f32],
        weights: &mut [f32],
        saved: Option<AdditiveLstmSaved<'_>>,
    ) -> Result<(), KernelError> {
        self.forward_at(Level::current(), output, weights, saved)
    }

    pub(crate) fn forward_at(
        &self,
        level: Level,
        output: &mut [f32],
        weights: &mut [f32],
        saved: Option<AdditiveLstmSaved<'_>>,
    ) -> Result<(), KernelError> {
        let saved = saved.map(|saved| Saved {
            gates: saved.gates,
            states: saved.states,
            queries: saved.queries,
        });
        self.decoder().forward(level, output, weights, saved)
    }

    /// Gradients of a loss whose gradient towards the output is `d_output [T, B, n + d]`, from what
    /// [`Self::forward`] wrote.
    ///
    /// # Errors
    /// [`KernelError`] naming the slice whose length does not fit the sizes.
    pub fn backward(
        &self,
        result: AdditiveLstmResult<'_>,
        d_output: &[f32],
        gradients: AdditiveLstmGradients<'_>,
    ) -> Result<(), KernelError> {
        self.backward_at(Level::current(), result, d_output, gradients)
    }

    pub(crate) fn backward_at(
        &self,
        level: Level,
        result: AdditiveLstmResult<'_>,
        d_output: &[f32],
        gradients: AdditiveLstmGradients<'_>,
    ) -> Result<(), KernelError> {
        let (hidden, cell) = (gradients.initial_hidden, gradients.initial_cell);
        check_gradients([
            ("gradients.initial_hidden", self.initial_hidden, &*hidden),
            ("gradients.initial_cell", self.initial_cell, &*cell),
        ])?;
        let written = Written {
            output: result.output,
            weights: result.weights,
            gates: result.gates,
            states: result.states,
            queries: result.queries,
        };
        let to = Gradients {
            x_projection: gradients.x_projection,
            hidden,
            memory: cell,
            keys: gradients.keys,
            values: gradients.values,
            query_weight: gradients.query_weight,
            score: gradients.score,
            recurrent: gradients.recurrent,
            context_weight: gradients.context_weight,
        };
        self.decoder().backward(level, written, d_output, to)
    }

    fn decoder(&self) -> AdditiveDecoder<'_, Lstm<'_>> {
        AdditiveDecoder {
            cell: Lstm {
                hidden: self.initial_hidden,
                cell: self.initial_cell,
            },
            steps: self.steps,
            batch: self.batch,
            sources: self.sources,
            hidden: self.hidden,
            attention: self.attention,
            value: self.value,
            x_projection: self.x_projection,
            keys: self.keys,
            values: self.values,
            query_weight: self.query_weight,
            score: self.score,
            recurrent: self.recurrent,
            context_weight: self.context_weight,
            keep_source: self.keep_source,
        }
    }
}

/// The LSTM, by its initial states. What it saves of a step is `h | c`.
struct Lstm<'a> {
    hidden: &'a [f32],
    cell: &'a [f32],
}

/// `h` and `c`.
struct States {
    n: usize,
    hidden: Vec<f32>,
    cell: Vec<f32>,
}

impl Cell for Lstm<'_> {
    const GATES: usize = 4;
    const SAVED: usize = 2;
    const TRACES: usize = 0;
    const ROOM: usize = 0;
    const SHAPES: Shapes = Shapes {
        of_steps: "[steps, batch, 4 hidden]",
        of_hidden: "[hidden, 4 hidden]",
        of_value: "[value, 4 hidden]",
    };
    type Weights = Packed;
    type State = States;

    fn check(&self, _: usize, batch: usize, n: usize) -> Result<(), KernelError> {
        let (shape, sizes) = ("[batch, hidden]", [batch, n]);
        check_length("initial_hidden", shape, &sizes, self.hidden.len())?;
        check_length("initial_cell", shape, &sizes, self.cell.len())
    }

    fn initial(&self) -> &[f32] {
        self.hidden
    }

    fn pack(level: Level, recurrent: &[f32], n: usize, transposed: bool) -> Packed {
        pack(level, recurrent, 4 * n, n, 4 * n, transposed)
    }

    fn start(&self, n: usize, first: usize, rows: usize) -> States {
        let of_rows = |states: &[f32]| states[first * n..][..rows * n].to_vec();
        States {
            n,
            hidden: of_rows(self.hidden),
            cell: of_rows(self.cell),
        }
    }

    fn hidden(state: &States) -> &[f32] {
        &state.hidden
    }

    fn forward(
        &self,
        level: Level,
        weights: &Packed,
        place: Place,
        gates: &mut [f32],
        state: &mut States,
    ) {
        let n = state.n;
        weights.product(&state.hidden, n, gates, 4 * n, place.rows, Write::Add);
        let step = LstmState {
            n,
            gates,
            hidden: &mut state.hidden,
            cell: &mut state.cell,
            keep: None,
        };
        run(level, step);
    }

    fn save(state: &States, to: &mut [f32]) {
        join_states(state.n, &state.hidden, &state.cell, to);
    }

    fn backward(&self, level: Level, weights: &Packed, back: Back<'_>) {
        let Back {
            n,
            place,
            d_gates,
            d_hidden,
            ..
        } = back;
        for (row, d_hidden) in d_hidden.chunks_exact_mut(n).enumerate() {
            let d_out = back.d_out.row(row, n);
            d_hidden.iter_mut().zip(d_out).for_each(|(d, x)| *d += x);
        }
        let states_before = place.before().map(|before| before.of(back.states, 2 * n));
        let initial = &self.cell[place.first * n..][..place.rows * n];
        let step = LstmBack {
            n,
            gates: back.gates,
            previous_cell: cells_before(n, states_before, initial),
            states: place.of(back.states, 2 * n),
            d_gates,
            d_hidden,
            d_cell: back.d_memory,
            keep: None,
        };
        run(level, step);
        weights.product(d_gates, 4 * n, d_hidden, n, place.rows, Write::Add);
    }

    fn recurrent_gradient(
        level: Level,
        previous: Previous<'_>,
        d_gates: &[f32],
        _: &[f32],
        out: &mut [f32],
    ) {
        let wide = 4 * previous.width;
        previous.product(level, d_gates, wide, 0, wide, out, wide);
    }
}
