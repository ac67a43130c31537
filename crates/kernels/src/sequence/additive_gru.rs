//! Bahdanau's decoder over a whole target sequence, teacher forced (Bahdanau et al. 2014, App. A).
//!
//! With the input part `x_t = [x_z | x_r | x_n]` projected (`E y_{t-1} W + b`), keys `U_a h_j`
//! projected, and `s_{t-1}` the former state, one step is
//!
//! ```text
//! e_j   = vᵀ tanh(s_{t-1} W_a + key_j)        α = softmax of e over the kept sources
//! c_t   = Σ_j α_j value_j
//! z, r  = σ(x + s_{t-1} U + c_t C)            (their columns of U and C)
//! ñ     = tanh(x_n + (r ∘ s_{t-1}) U_n + c_t C_n)
//! s_t   = (1 - z) ∘ s_{t-1} + z ∘ ñ
//! ```
//!
//! The output row is `s_t | c_t`. A source sentence with nothing kept has `α = 0`, `c = 0` and
//! gradient 0; whatever stands in `keys` and `values` at a source that is not kept has no influence.
//!
//! ```
//! use regard_kernels::sequence::additive_gru::AdditiveGruDecoder;
//!
//! // Equal keys: the attention is uniform and the context is the mean of the values.
//! let decoder = AdditiveGruDecoder {
//!     steps: 1,
//!     batch: 1,
//!     sources: 2,
//!     hidden: 1,
//!     attention: 1,
//!     value: 1,
//!     x_projection: &[0.0; 3],
//!     initial: &[1.0],
//!     keys: &[0.3, 0.3],
//!     values: &[1.0, 3.0],
//!     query_weight: &[1.0],
//!     score: &[1.0],
//!     recurrent: &[0.0; 3],
//!     context_weight: &[0.0; 3],
//!     keep_source: None,
//!     keep: None,
//! };
//! let (mut output, mut weights) = ([0.0; 2], [0.0; 2]);
//! decoder.forward(&mut output, &mut weights, None)?;
//! assert_eq!(weights, [0.5, 0.5]);
//! assert_eq!(output, [0.5, 2.0]);
//! # Ok::<(), regard_kernels::KernelError>(())
//! ```

use super::additive_decoder::{AdditiveDecoder, Back, Cell, Gradients, Saved, Shapes, Written};
use super::gru::cho::{ChoBack, ChoForward, GruWeights, cho_weight_gradient};
use super::rows::{Place, Previous, check_gradients, check_keep};
use crate::error::{KernelError, check_length};
use crate::simd::Level;

/// The inputs of the decoder. `T` = steps, `B` = batch, `S` = sources, `n` = hidden, `a` =
/// attention, `d` = value.
#[derive(Debug, Clone, Copy)]
pub struct AdditiveGruDecoder<'a> {
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
    /// Input part of the pre-activations, `[T, B, 3n]`, columns `z | r | n`.
    pub x_projection: &'a [f32],
    /// State before the first step, `[B, n]`.
    pub initial: &'a [f32],
    /// Projected keys, `[B, S, a]`.
    pub keys: &'a [f32],
    /// Values, `[B, S, d]`.
    pub values: &'a [f32],
    /// Weights of the query, `W_a`, `[n, a]`.
    pub query_weight: &'a [f32],
    /// Score vector `v`, `[a]`.
    pub score: &'a [f32],
    /// Recurrent weights `U`, `[n, 3n]`, columns `z | r | n`.
    pub recurrent: &'a [f32],
    /// Context weights `C`, `[d, 3n]`, columns `z | r | n`.
    pub context_weight: &'a [f32],
    /// `[B, S]`, `true` where a source position may be attended to.
    pub keep_source: Option<&'a [bool]>,
    /// `[T, B]`, `true` where the target step is real; a padded step copies the state.
    pub keep: Option<&'a [bool]>,
}

/// What [`AdditiveGruDecoder::forward`] keeps for the backward pass.
#[derive(Debug)]
pub struct AdditiveGruSaved<'a> {
    /// `z | r | ñ`, `[T, B, 3n]`
    pub gates: &'a mut [f32],
    /// Queries `s_{t-1} W_a`, `[T, B, a]`
    pub queries: &'a mut [f32],
}

/// What [`AdditiveGruDecoder::forward`] wrote.
#[derive(Debug, Clone, Copy)]
pub struct AdditiveGruResult<'a> {
    /// `s_t | c_t`, `[T, B, n + d]`
    pub output: &'a [f32],
    /// Attention, `[T, B, S]`
    pub weights: &'a [f32],
    /// `z | r | ñ`, `[T, B, 3n]`
    pub gates: &'a [f32],
    /// Queries, `[T, B, a]`
    pub queries: &'a [f32],
}

/// Where [`AdditiveGruDecoder::backward`] writes its gradients; every buffer is overwritten.
#[derive(Debug)]
pub struct AdditiveGruGradients<'a> {
    /// `[T, B, 3n]`
    pub x_projection: &'a mut [f32],
    /// `[B, n]`
    pub initial: &'a mut [f32],
    /// `[B, S, a]`, zero at sources that are not kept.
    pub keys: &'a mut [f32],
    /// `[B, S, d]`, zero at sources that are not kept.
    pub values: &'a mut [f32],
    /// `[n, a]`
    pub query_weight: &'a mut [f32],
    /// `[a]`
    pub score: &'a mut [f32],
    /// `[n, 3n]`
    pub recurrent: &'a mut [f32],
    /// `[d, 3n]`
    pub context_weight: &'a mut [f32],
}

impl AdditiveGruDecoder<'_> {
    /// Writes `s_t | c_t` to `output [T, B, n + d]` and the attention to `weights [T, B, S]`, and
    /// to `saved` what [`Self::backward`] needs.
    ///
    /// # Errors
    /// [`KernelError`] naming the slice whose length does not fit the sizes.
    pub fn forward(
        &self,
        output: &mut [f32],
        weights: &mut [f32],
        saved: Option<AdditiveGruSaved<'_>>,
    ) -> Result<(), KernelError> {
        self.forward_at(Level::current(), output, weights, saved)
    }

    pub(crate) fn forward_at(
        &self,
        level: Level,
        output: &mut [f32],
        weights: &mut [f32],
        saved: Option<AdditiveGruSaved<'_>>,
    ) -> Result<(), KernelError> {
        let saved = saved.map(|saved| Saved {
            gates: saved.gates,
            states: &mut [],
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
        result: AdditiveGruResult<'_>,
        d_output: &[f32],
        gradients: AdditiveGruGradients<'_>,
    ) -> Result<(), KernelError> {
        self.backward_at(Level::current(), result, d_output, gradients)
    }

    pub(crate) fn backward_at(
        &self,
        level: Level,
        result: AdditiveGruResult<'_>,
        d_output: &[f32],
        gradients: AdditiveGruGradients<'_>,
    ) -> Result<(), KernelError> {
        check_gradients([("gradients.initial", self.initial, &*gradients.initial)])?;
        let written = Written {
            output: result.output,
            weights: result.weights,
            gates: result.gates,
            states: &[],
            queries: result.queries,
        };
        let to = Gradients {
            x_projection: gradients.x_projection,
            hidden: gradients.initial,
            memory: &mut [],
            keys: gradients.keys,
            values: gradients.values,
            query_weight: gradients.query_weight,
            score: gradients.score,
            recurrent: gradients.recurrent,
            context_weight: gradients.context_weight,
        };
        self.decoder().backward(level, written, d_output, to)
    }

    fn decoder(&self) -> AdditiveDecoder<'_, Gru<'_>> {
        AdditiveDecoder {
            cell: Gru {
                initial: self.initial,
                keep: self.keep,
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

/// Cho's unit. The way back leaves `r ∘ s` of every step.
struct Gru<'a> {
    initial: &'a [f32],
    keep: Option<&'a [bool]>,
}

/// `s`, and room for `r ∘ s`.
struct GruState {
    n: usize,
    state: Vec<f32>,
    reset_state: Vec<f32>,
}

impl Cell for Gru<'_> {
    const GATES: usize = 3;
    const SAVED: usize = 0;
    const TRACES: usize = 1;
    const ROOM: usize = 1;
    const SHAPES: Shapes = Shapes {
        of_steps: "[steps, batch, 3 hidden]",
        of_hidden: "[hidden, 3 hidden]",
        of_value: "[value, 3 hidden]",
    };
    type Weights = GruWeights;
    type State = GruState;

    fn check(&self, steps: usize, batch: usize, n: usize) -> Result<(), KernelError> {
        let found = self.initial.len();
        check_length("initial", "[batch, hidden]", &[batch, n], found)?;
        check_keep(self.keep, steps, batch)
    }

    fn initial(&self) -> &[f32] {
        self.initial
    }

    fn pack(level: Level, recurrent: &[f32], n: usize, transposed: bool) -> GruWeights {
        GruWeights::pack(level, recurrent, n, transposed)
    }

    fn start(&self, n: usize, first: usize, rows: usize) -> GruState {
        GruState {
            n,
            state: self.initial[first * n..][..rows * n].to_vec(),
            reset_state: vec![0.0; rows * n],
        }
    }

    fn hidden(state: &GruState) -> &[f32] {
        &state.state
    }

    fn forward(
        &self,
        level: Level,
        weights: &GruWeights,
        place: Place,
        gates: &mut [f32],
        state: &mut GruState,
    ) {
        let step = ChoForward {
            n: state.n,
            gates,
            state: &mut state.state,
            reset_state: &mut state.reset_state,
            keep: self.keep.map(|keep| place.of(keep, 1)),
        };
        step.run(level, weights);
    }

    /// The state stands in the output.
    fn save(_: &GruState, _: &mut [f32]) {}

    fn backward(&self, level: Level, weights: &GruWeights, back: Back<'_>) {
        let step = ChoBack {
            n: back.n,
            gates: back.gates,
            previous: back.previous,
            d_out: back.d_out,
            d_gates: back.d_gates,
            d_state: back.d_hidden,
            reset_state: back.traces,
            d_left: back.room,
            keep: self.keep.map(|keep| back.place.of(keep, 1)),
        };
        step.run(level, weights);
    }

    fn recurrent_gradient(
        level: Level,
        previous: Previous<'_>,
        d_gates: &[f32],
        traces: &[f32],
        out: &mut [f32],
    ) {
        cho_weight_gradient(level, previous, d_gates, traces, out);
    }
}
