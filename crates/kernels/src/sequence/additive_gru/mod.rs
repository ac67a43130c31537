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

mod backward;

use crate::error::{KernelError, check_length};
use crate::matmul::{Packed, Strides, Write};
use crate::additive::Keys;
use crate::sequence::attend::{Attend, Kept, ReadKeys, Scoring, Sources};
use crate::sequence::gru::step::{ChoGates, ChoState};
use crate::sequence::rows::{
    at_step, block_rows, by_rows, by_rows_optional, check_keep, for_each_block,
};
use crate::simd::{Level, run};
pub use backward::{AdditiveGruGradients, AdditiveGruResult};

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

/// The packed weights of one direction.
pub(super) struct Weights {
    pub(super) query: Packed,
    /// `U_z | U_r`
    pub(super) gates: Packed,
    /// `U_n`
    pub(super) candidate: Packed,
    pub(super) context: Packed,
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

    pub(super) fn check(&self) -> Result<(), KernelError> {
        let Self {
            steps,
            batch,
            sources,
            hidden,
            attention,
            value,
            ..
        } = *self;
        let wide = 3usize.saturating_mul(hidden);
        let check = check_length;
        check(
            "x_projection",
            "[steps, batch, 3 hidden]",
            &[steps, batch, wide],
            self.x_projection.len(),
        )?;
        check(
            "initial",
            "[batch, hidden]",
            &[batch, hidden],
            self.initial.len(),
        )?;
        check(
            "keys",
            "[batch, sources, attention]",
            &[batch, sources, attention],
            self.keys.len(),
        )?;
        check(
            "values",
            "[batch, sources, value]",
            &[batch, sources, value],
            self.values.len(),
        )?;
        check(
            "query_weight",
            "[hidden, attention]",
            &[hidden, attention],
            self.query_weight.len(),
        )?;
        check("score", "[attention]", &[attention], self.score.len())?;
        check(
            "recurrent",
            "[hidden, 3 hidden]",
            &[hidden, wide],
            self.recurrent.len(),
        )?;
        check(
            "context_weight",
            "[value, 3 hidden]",
            &[value, wide],
            self.context_weight.len(),
        )?;
        if let Some(keep) = self.keep_source {
            check(
                "keep_source",
                "[batch, sources]",
                &[batch, sources],
                keep.len(),
            )?;
        }
        check_keep(self.keep, steps, batch)
    }

    /// What the block of rows from `first` on attends to.
    pub(super) fn sources_of<'a>(
        &'a self,
        first: usize,
        kept: &'a Kept,
        read: &'a Keys,
    ) -> Sources<'a> {
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
    pub(super) fn read_keys(&self, level: Level, first: usize, kept: &Kept) -> Keys {
        let read = ReadKeys {
            v: self.score,
            keys: &self.keys[first * self.sources * self.attention..],
            kept,
            sources: self.sources,
        };
        run(level, read)
    }

    /// Multiply-adds of one direction, products with weights and attention.
    pub(super) fn products(&self) -> usize {
        let of_row = self.hidden * self.attention + (self.hidden + self.value) * 3 * self.hidden;
        self.steps * self.batch * (of_row + self.sources * (self.attention + self.value))
    }

    pub(crate) fn forward_at(
        &self,
        level: Level,
        output: &mut [f32],
        weights: &mut [f32],
        saved: Option<AdditiveGruSaved<'_>>,
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
                "[steps, batch, 3 hidden]",
                &[steps, batch, 3, n],
                saved.gates.len(),
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
            gates: Packed::strided(level, self.recurrent, strides(3 * n), n, 2 * n),
            candidate: Packed::strided(level, &self.recurrent[2 * n..], strides(3 * n), n, n),
            context: Packed::strided(level, self.context_weight, strides(3 * n), value, 3 * n),
        };
        let rows = block_rows(batch, self.products());
        let (gates, queries) = saved.map(|saved| (saved.gates, saved.queries)).unzip();
        let tasks = by_rows(output, steps, batch, n + value, rows)
            .into_iter()
            .zip(by_rows(weights, steps, batch, sources, rows))
            .zip(by_rows_optional(gates, steps, batch, 3 * n, rows))
            .zip(by_rows_optional(queries, steps, batch, attention, rows))
            .map(|(((output, weights), gates), queries)| Block {
                output,
                weights,
                gates,
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
        let mut state = self.initial[first * n..][..rows * n].to_vec();
        let mut reset_state = vec![0.0; rows * n];
        let mut context = vec![0.0; rows * value];
        let mut gates_scratch = vec![
            0.0;
            if block.gates.is_none() {
                rows * 3 * n
            } else {
                0
            }
        ];
        let mut query_scratch = vec![
            0.0;
            if block.queries.is_none() {
                rows * attention
            } else {
                0
            }
        ];
        let mut scores = vec![0.0; sources];
        let read = self.read_keys(level, first, &kept);
        for step in 0..self.steps {
            let x = at_step(self.x_projection, step, batch, 3 * n, first, rows);
            let keep = self
                .keep
                .map(|keep| at_step(keep, step, batch, 1, first, rows));
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
                .product(&state, n, queries, attention, rows, Write::Replace);
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
                .product(&context, value, gates, 3 * n, rows, Write::Add);
            packed
                .gates
                .product(&state, n, gates, 3 * n, rows, Write::Add);
            run(
                level,
                ChoGates {
                    n,
                    gates,
                    state: &state,
                    reset_state: &mut reset_state,
                },
            );
            packed.candidate.product(
                &reset_state,
                n,
                &mut gates[2 * n..],
                3 * n,
                rows,
                Write::Add,
            );
            run(
                level,
                ChoState {
                    n,
                    gates,
                    state: &mut state,
                    keep,
                },
            );

            for (row, to) in block.output[step].chunks_exact_mut(n + value).enumerate() {
                to[..n].copy_from_slice(&state[row * n..][..n]);
                to[n..].copy_from_slice(&context[row * value..][..value]);
            }
        }
    }
}

/// What one task of the forward pass writes.
struct Block<'a> {
    output: Vec<&'a mut [f32]>,
    weights: Vec<&'a mut [f32]>,
    gates: Option<Vec<&'a mut [f32]>>,
    queries: Option<Vec<&'a mut [f32]>>,
}
