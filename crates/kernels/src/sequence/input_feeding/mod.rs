//! Luong's decoder with input feeding over a whole target sequence, teacher forced (Luong et al.
//! 2015): a stack of LSTMs that attends with its *current* state and is fed the attentional vector
//! of the step before.
//!
//! With the first layer's input part `x_t` projected (bias included), one step is
//!
//! ```text
//! layer 1:  gates = x_t + h̃_{t-1} F + h¹ U_1
//! layer l:  gates = b_l + (h^{l-1} ∘ mask_{l-1}) W_l + h^l U_l        (columns i | f | g | o)
//! e_j   = h^L · key_j                        dot; general if the keys are projected
//!       or vᵀ tanh(h^L W_a + key_j)          additive (Luong's concat)
//! α     = softmax of e over the kept sources inside the step's window
//! c_t   = Σ_j α_j value_j
//! h̃_t   = tanh([c_t; h^L] W_c + b_c) ∘ mask_L
//! ```
//!
//! The output is `h̃_t`, after its dropout mask, and that is also what is fed to the next step. The
//! masks come scaled (0 or `1 / (1 - p)`): mask `l` falls on layer `l`'s output on its way up, the
//! last one on `h̃`; recurrent connections and the attention's query are never dropped.
//!
//! ```text
//!              rows ->                     a task: a block of rows, all steps; inside a step the layers from the bottom
//!  step 1   |======|======|===|            to the top, the attention, h̃, which the next step's bottom layer reads
//!   ...       task   task  task
//!  step T   |======|======|===|            back the same way from the top to the bottom; then one product over all
//!                                          steps for each weight, and the sums of keys and values for each row
//! ```
//!
//! ```
//! use regard_kernels::sequence::input_feeding::{InputFeedingDecoder, Score};
//!
//! // All weights 0: every gate is 1/2, every state 0, the attention uniform, h̃ = tanh(b_c).
//! let decoder = InputFeedingDecoder {
//!     steps: 1,
//!     batch: 1,
//!     sources: 2,
//!     hidden: 1,
//!     layers: 1,
//!     value: 1,
//!     score: Score::Dot,
//!     x_projection: &[0.0; 4],
//!     feed: &[0.0],
//!     feed_weight: &[0.0; 4],
//!     recurrent: &[0.0; 4],
//!     layer_weight: &[],
//!     layer_bias: &[],
//!     initial_hidden: &[0.0],
//!     initial_cell: &[0.0],
//!     keys: &[1.0, 2.0],
//!     values: &[1.0, 2.0],
//!     combine_weight: &[0.0; 2],
//!     combine_bias: &[0.5],
//!     dropout: None,
//!     windows: None,
//!     keep_source: None,
//! };
//! let (mut output, mut weights) = ([0.0], [0.0; 2]);
//! decoder.forward(&mut output, &mut weights, None)?;
//! assert_eq!(weights, [0.5, 0.5]);
//! assert!((output[0] - 0.5f32.tanh()).abs() < 1e-6);
//! # Ok::<(), regard_kernels::KernelError>(())
//! ```

mod backward;
mod block_back;
mod forward;
mod shapes;
mod step;
mod weight_gradients;

pub use backward::{InputFeedingGradients, InputFeedingResult, ScoreGradients};

use crate::additive::Keys;
use crate::error::KernelError;
use crate::matmul::Packed;
use crate::sequence::attend::{Kept, ReadKeys, Scoring, Sources};
use crate::sequence::rows::{at_step, pack};
use crate::simd::{Level, run};

/// How the decoder scores its state against the keys.
#[derive(Debug, Clone, Copy)]
pub enum Score<'a> {
    /// `h · key`, keys `[B, S, n]`.
    Dot,
    /// `vᵀ tanh(h W_a + key)`, keys `[B, S, a]`.
    Additive {
        /// Width of the alignment model, `a`.
        attention: usize,
        /// `W_a`, `[n, a]`
        query_weight: &'a [f32],
        /// `v`, `[a]`
        vector: &'a [f32],
    },
}

/// The inputs of the decoder. `T` = steps, `B` = batch, `S` = sources, `n` = hidden, `L` = layers,
/// `d` = value.
#[derive(Debug, Clone, Copy)]
pub struct InputFeedingDecoder<'a> {
    /// Target steps `T`.
    pub steps: usize,
    /// Rows `B`.
    pub batch: usize,
    /// Source positions `S`.
    pub sources: usize,
    /// Units of each layer, `n`.
    pub hidden: usize,
    /// Layers `L`, at least 1.
    pub layers: usize,
    /// Width of a value, `d`.
    pub value: usize,
    /// How states are scored against keys.
    pub score: Score<'a>,
    /// Input part of the first layer's gates, `[T, B, 4n]`, columns `i | f | g | o`.
    pub x_projection: &'a [f32],
    /// The attentional vector before the first step, `[B, n]`; normally zeros.
    pub feed: &'a [f32],
    /// Weights of the fed vector, `F`, `[n, 4n]`.
    pub feed_weight: &'a [f32],
    /// Recurrent weights of each layer, `[L, n, 4n]`.
    pub recurrent: &'a [f32],
    /// Input weights of the layers above the first, `[L - 1, n, 4n]`.
    pub layer_weight: &'a [f32],
    /// Biases of the layers above the first, `[L - 1, 4n]`.
    pub layer_bias: &'a [f32],
    /// Hidden states before the first step, `[L, B, n]`.
    pub initial_hidden: &'a [f32],
    /// Cell states before the first step, `[L, B, n]`.
    pub initial_cell: &'a [f32],
    /// Keys, `[B, S, n]` or `[B, S, a]`; see [`Score`].
    pub keys: &'a [f32],
    /// Values, `[B, S, d]`.
    pub values: &'a [f32],
    /// `W_c`, `[d + n, n]`, the context's rows first.
    pub combine_weight: &'a [f32],
    /// `b_c`, `[n]`.
    pub combine_bias: &'a [f32],
    /// Scaled dropout masks, `[T, L, B, n]`.
    pub dropout: Option<&'a [f32]>,
    /// `[T, B]`: the source positions `start..end` that a step may attend to (Luong's local-m).
    pub windows: Option<&'a [[usize; 2]]>,
    /// `[B, S]`, `true` where a source position may be attended to.
    pub keep_source: Option<&'a [bool]>,
}

/// What [`InputFeedingDecoder::forward`] keeps for the backward pass.
#[derive(Debug)]
pub struct InputFeedingSaved<'a> {
    /// Activated gates, `[L, T, B, 4n]`
    pub gates: &'a mut [f32],
    /// `h | c` of each layer, `[L, T, B, 2n]`
    pub states: &'a mut [f32],
    /// Contexts, `[T, B, d]`
    pub contexts: &'a mut [f32],
    /// `tanh([c; h] W_c + b_c)` before the mask, `[T, B, n]`
    pub combined: &'a mut [f32],
    /// Queries `h W_a`, `[T, B, a]`; empty for [`Score::Dot`].
    pub queries: &'a mut [f32],
}

/// The packed weights of one direction.
pub(super) struct Weights {
    pub(super) feed: Packed,
    pub(super) recurrent: Vec<Packed>,
    pub(super) layers: Vec<Packed>,
    pub(super) query: Option<Packed>,
    pub(super) combine_context: Packed,
    pub(super) combine_state: Packed,
}

impl Weights {
    /// The weights as they are, or their transposes for the way back.
    pub(super) fn pack(level: Level, of: &InputFeedingDecoder<'_>, transposed: bool) -> Self {
        let (n, value) = (of.hidden, of.value);
        let pack = |matrix: &[f32], inner: usize, columns: usize| {
            pack(level, matrix, columns, inner, columns, transposed)
        };
        let stack = |matrices: &[f32]| -> Vec<Packed> {
            matrices
                .chunks_exact(4 * n * n)
                .map(|matrix| pack(matrix, n, 4 * n))
                .collect()
        };
        let (context, state) = of.combine_weight.split_at(value * n);
        Self {
            feed: pack(of.feed_weight, n, 4 * n),
            recurrent: stack(of.recurrent),
            layers: stack(of.layer_weight),
            query: match of.score {
                Score::Dot => None,
                Score::Additive {
                    attention,
                    query_weight,
                    ..
                } => Some(pack(query_weight, n, attention)),
            },
            combine_context: pack(context, value, n),
            combine_state: pack(state, n, n),
        }
    }
}

impl InputFeedingDecoder<'_> {
    /// Width of a query and a key.
    pub(super) fn attention(&self) -> usize {
        match self.score {
            Score::Dot => self.hidden,
            Score::Additive { attention, .. } => attention,
        }
    }

    /// Width of the saved queries: a dot product's queries are states, which are saved anyway.
    pub(super) fn query_width(&self) -> usize {
        if matches!(self.score, Score::Dot) {
            0
        } else {
            self.attention()
        }
    }

    /// Writes `h̃_t` to `output [T, B, n]` and the attention to `weights [T, B, S]`, and to `saved`
    /// what [`Self::backward`] needs.
    ///
    /// # Errors
    /// [`KernelError`] naming the slice whose length does not fit the sizes.
    pub fn forward(
        &self,
        output: &mut [f32],
        weights: &mut [f32],
        saved: Option<InputFeedingSaved<'_>>,
    ) -> Result<(), KernelError> {
        self.forward_at(Level::current(), output, weights, saved)
    }

    /// The keys of the block of rows from `first` on, ready to be scored at every step; `None` where
    /// they are scored as they are.
    pub(super) fn read_keys(&self, level: Level, first: usize, kept: &Kept) -> Option<Keys> {
        let Score::Additive { vector, .. } = self.score else {
            return None;
        };
        let read = ReadKeys {
            v: vector,
            keys: &self.keys[first * self.sources * self.attention()..],
            kept,
            sources: self.sources,
        };
        Some(run(level, read))
    }

    /// Multiply-adds of one direction.
    pub(super) fn products(&self) -> usize {
        let Self {
            hidden: n,
            layers,
            value,
            sources,
            ..
        } = *self;
        let attention = self.attention();
        let of_row = 8 * n * n * layers + (value + n) * n + n * self.query_width();
        self.steps * self.batch * (of_row + sources * (attention + value))
    }

    /// What the block of rows from `first` on attends to at `step`.
    pub(super) fn sources_of<'a>(
        &'a self,
        first: usize,
        kept: &'a Kept,
        scoring: Scoring<'a>,
        step: usize,
    ) -> Sources<'a> {
        let Self {
            batch,
            sources,
            value,
            ..
        } = *self;
        let attention = self.attention();
        Sources {
            scoring,
            keys: &self.keys[first * sources * attention..],
            values: &self.values[first * sources * value..],
            kept,
            windows: self
                .windows
                .map(|all| at_step(all, step, batch, 1, first, kept.rows())),
            sources,
            attention,
            value,
        }
    }

    /// The dropout mask of one layer's output, for the rows of a block.
    pub(super) fn mask(
        &self,
        step: usize,
        layer: usize,
        first: usize,
        rows: usize,
    ) -> Option<&[f32]> {
        let at = step * self.layers + layer;
        self.dropout
            .map(|masks| at_step(masks, at, self.batch, self.hidden, first, rows))
    }
}
