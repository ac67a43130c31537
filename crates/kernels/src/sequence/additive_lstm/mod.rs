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

mod backward;

use crate::additive::Keys;
use crate::error::{KernelError, check_length};
use crate::matmul::{Packed, Strides, Write};
use crate::sequence::attend::{Attend, Kept, ReadKeys, Scoring, Sources};
use crate::sequence::lstm::step::LstmState;
use crate::sequence::rows::{at_step, block_rows, by_rows, by_rows_optional, for_each_block};
use crate::simd::{Level, run};
pub use backward::{AdditiveLstmGradients, AdditiveLstmResult};

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

/// The packed weights of one direction.
struct Weights {
    query: Packed,
    recurrent: Packed,
    context: Packed,
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

    fn check(&self) -> Result<(), KernelError> {
        let Self {
            steps,
            batch,
            sources,
            hidden: n,
            attention,
            value,
            ..
        } = *self;
        let wide = 4usize.saturating_mul(n);
        for (name, shape, sizes, found) in [
            (
                "x_projection",
                "[steps, batch, 4 hidden]",
                &[steps, batch, wide][..],
                self.x_projection.len(),
            ),
            (
                "initial_hidden",
                "[batch, hidden]",
                &[batch, n],
                self.initial_hidden.len(),
            ),
            (
                "initial_cell",
                "[batch, hidden]",
                &[batch, n],
                self.initial_cell.len(),
            ),
            (
                "keys",
                "[batch, sources, attention]",
                &[batch, sources, attention],
                self.keys.len(),
            ),
            (
                "values",
                "[batch, sources, value]",
                &[batch, sources, value],
                self.values.len(),
            ),
            (
                "query_weight",
                "[hidden, attention]",
                &[n, attention],
                self.query_weight.len(),
            ),
            ("score", "[attention]", &[attention], self.score.len()),
            (
                "recurrent",
                "[hidden, 4 hidden]",
                &[n, wide],
                self.recurrent.len(),
            ),
            (
                "context_weight",
                "[value, 4 hidden]",
                &[value, wide],
                self.context_weight.len(),
            ),
        ] {
            check_length(name, shape, sizes, found)?;
        }
        self.keep_source.map_or(Ok(()), |keep| {
            let sizes = [batch, sources];
            check_length("keep_source", "[batch, sources]", &sizes, keep.len())
        })
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
        let of_row = self.hidden * self.attention + (self.hidden + self.value) * 4 * self.hidden;
        self.steps * self.batch * (of_row + self.sources * (self.attention + self.value))
    }

    pub(crate) fn forward_at(
        &self,
        level: Level,
        output: &mut [f32],
        weights: &mut [f32],
        saved: Option<AdditiveLstmSaved<'_>>,
    ) -> Result<(), KernelError> {
        self.check()?;
        let Self {
            steps,
            batch,
            sources,
            hidden: n,
            attention,
            value,
            ..
        } = *self;
        let check = check_length;
        check(
            "output",
            "[steps, batch, hidden + value]",
            &[steps, batch, n + value],
            output.len(),
        )?;
        check(
            "weights",
            "[steps, batch, sources]",
            &[steps, batch, sources],
            weights.len(),
        )?;
        if let Some(saved) = &saved {
            check(
                "saved.gates",
                "[steps, batch, 4 hidden]",
                &[steps, batch, 4, n],
                saved.gates.len(),
            )?;
            check(
                "saved.states",
                "[steps, batch, 2 hidden]",
                &[steps, batch, 2, n],
                saved.states.len(),
            )?;
            check(
                "saved.queries",
                "[steps, batch, attention]",
                &[steps, batch, attention],
                saved.queries.len(),
            )?;
        }
        if batch == 0 || n == 0 {
            weights.fill(0.0);
            output.fill(0.0);
            return Ok(());
        }
        let strides = |row| Strides { row, column: 1 };
        let packed = Weights {
            query: Packed::strided(level, self.query_weight, strides(attention), n, attention),
            recurrent: Packed::strided(level, self.recurrent, strides(4 * n), n, 4 * n),
            context: Packed::strided(level, self.context_weight, strides(4 * n), value, 4 * n),
        };
        let rows = block_rows(batch, self.products());
        let (gates, states, queries) = match saved {
            Some(saved) => (Some(saved.gates), Some(saved.states), Some(saved.queries)),
            None => (None, None, None),
        };
        let tasks = by_rows(output, steps, batch, n + value, rows)
            .into_iter()
            .zip(by_rows(weights, steps, batch, sources, rows))
            .zip(by_rows_optional(gates, steps, batch, 4 * n, rows))
            .zip(by_rows_optional(states, steps, batch, 2 * n, rows))
            .zip(by_rows_optional(queries, steps, batch, attention, rows))
            .map(|((((output, weights), gates), states), queries)| Block {
                output,
                weights,
                gates,
                states,
                queries,
            })
            .collect();
        for_each_block(tasks, |index, block| {
            self.forward_block(level, &packed, index * rows, block);
        });
        Ok(())
    }

    /// All steps of the rows from `first` on.
    fn forward_block(&self, level: Level, packed: &Weights, first: usize, mut block: Block<'_>) {
        let Self {
            batch,
            sources,
            hidden: n,
            attention,
            value,
            ..
        } = *self;
        let rows = block
            .output
            .first()
            .map_or(0, |step| step.len() / (n + value));
        let kept = Kept::new(self.keep_source, first, rows, sources);
        let mut hidden = self.initial_hidden[first * n..][..rows * n].to_vec();
        let mut cell = self.initial_cell[first * n..][..rows * n].to_vec();
        let mut context = vec![0.0; rows * value];
        let room = |needed: bool, numbers: usize| vec![0.0; if needed { numbers } else { 0 }];
        let mut gates_scratch = room(block.gates.is_none(), rows * 4 * n);
        let mut query_scratch = room(block.queries.is_none(), rows * attention);
        let mut scores = vec![0.0; sources];
        let read = self.read_keys(level, first, &kept);
        for step in 0..self.steps {
            let x = at_step(self.x_projection, step, batch, 4 * n, first, rows);
            let gates = block
                .gates
                .as_mut()
                .map_or(&mut gates_scratch[..], |gates| &mut *gates[step]);
            let queries = block
                .queries
                .as_mut()
                .map_or(&mut query_scratch[..], |queries| &mut *queries[step]);

            packed
                .query
                .product(&hidden, n, queries, attention, rows, Write::Replace);
            let attend = Attend {
                from: self.sources_of(first, &kept, &read),
                queries,
                scores: &mut scores,
                weights: block.weights[step],
                context: &mut context,
            };
            run(level, attend);

            gates.copy_from_slice(x);
            packed
                .context
                .product(&context, value, gates, 4 * n, rows, Write::Add);
            packed
                .recurrent
                .product(&hidden, n, gates, 4 * n, rows, Write::Add);
            let state = LstmState {
                n,
                gates,
                hidden: &mut hidden,
                cell: &mut cell,
                keep: None,
            };
            run(level, state);

            for (row, to) in block.output[step].chunks_exact_mut(n + value).enumerate() {
                to[..n].copy_from_slice(&hidden[row * n..][..n]);
                to[n..].copy_from_slice(&context[row * value..][..value]);
            }
            if let Some(states) = &mut block.states {
                for (row, to) in states[step].chunks_exact_mut(2 * n).enumerate() {
                    to[..n].copy_from_slice(&hidden[row * n..][..n]);
                    to[n..].copy_from_slice(&cell[row * n..][..n]);
                }
            }
        }
    }
}

/// What one task of the forward pass writes.
struct Block<'a> {
    output: Vec<&'a mut [f32]>,
    weights: Vec<&'a mut [f32]>,
    gates: Option<Vec<&'a mut [f32]>>,
    states: Option<Vec<&'a mut [f32]>>,
    queries: Option<Vec<&'a mut [f32]>>,
}
