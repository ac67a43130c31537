//! A long short-term memory over a whole sequence.
//!
//! With `x_t = [x_i | x_f | x_g | x_o]` already projected (biases included) and
//! `U = [U_i | U_f | U_g | U_o]`:
//!
//! `i, f, o = σ(x + h U)`, `g = tanh(x_g + h U_g)`, `c' = f ∘ c + i ∘ g`, `h' = o ∘ tanh c'`
//!
//! (Hochreiter & Schmidhuber 1997 with the forget gate of Gers et al. 2000; the column order is
//! `torch.nn.LSTM`'s.) The output holds both states, `[T, B, 2n]` with `h | c` in each row.
//!
//! ```text
//!              rows ->                     a task: a block of rows, all steps; h, c and the gates in the core's own
//!  step 1   |======|======|===|            memory, U packed once and read by every step
//!   ...       task   task  task
//!  step T   |======|======|===|            back the same way; then dU = Σ_t h_{t-1}ᵀ d(gates)_t as one product
//! ```
//!
//! ```
//! use regard_kernels::sequence::lstm::LstmSequence;
//!
//! // All gates σ(0) = 1/2, g = tanh(0) = 0: c' = c / 2, h' = tanh(c') / 2.
//! let lstm = LstmSequence {
//!     steps: 1,
//!     batch: 1,
//!     hidden: 1,
//!     x_projection: &[0.0; 4],
//!     recurrent: &[0.0; 4],
//!     initial_hidden: &[0.0],
//!     initial_cell: &[4.0],
//!     keep: None,
//!     reverse: false,
//! };
//! let mut states = [0.0; 2];
//! lstm.forward(&mut states, None)?;
//! assert_eq!(states[1], 2.0);
//! assert!((states[0] - 0.5 * 2.0f32.tanh()).abs() < 1e-6);
//! # Ok::<(), regard_kernels::KernelError>(())
//! ```

pub(in crate::sequence) mod step;

use crate::error::{KernelError, check_length};
use crate::matmul::{Packed, Write};
use crate::sequence::rows::{
    Previous, at_step, before, block_rows, by_rows, by_rows_optional, check_keep, for_each_block,
    order, pack,
};
use crate::simd::{Level, run};
use step::{AddOutput, LstmBack, LstmState, cells_before, join_states};

/// The inputs of an LSTM over a sequence. `T` = steps, `B` = batch, `n` = hidden.
#[derive(Debug, Clone, Copy)]
pub struct LstmSequence<'a> {
    /// Steps `T`.
    pub steps: usize,
    /// Rows `B`.
    pub batch: usize,
    /// Units `n`.
    pub hidden: usize,
    /// Input part of the pre-activations, `[T, B, 4n]`, columns `i | f | g | o`.
    pub x_projection: &'a [f32],
    /// Recurrent weights `U`, `[n, 4n]`, columns `i | f | g | o`.
    pub recurrent: &'a [f32],
    /// Hidden state before the first step, `[B, n]`.
    pub initial_hidden: &'a [f32],
    /// Cell state before the first step, `[B, n]`.
    pub initial_cell: &'a [f32],
    /// `[T, B]`, `true` where the step is real; a padded step copies both states.
    pub keep: Option<&'a [bool]>,
    /// Whether time runs from the last step to the first.
    pub reverse: bool,
}

/// Where [`LstmSequence::backward`] writes its gradients; every buffer is overwritten.
#[derive(Debug)]
pub struct LstmGradients<'a> {
    /// `[T, B, 4n]`
    pub x_projection: &'a mut [f32],
    /// `[n, 4n]`
    pub recurrent: &'a mut [f32],
    /// `[B, n]`
    pub initial_hidden: &'a mut [f32],
    /// `[B, n]`
    pub initial_cell: &'a mut [f32],
}

impl LstmSequence<'_> {
    /// Numbers that `forward` saves for `backward`: the gates, `[T, B, 4n]`.
    pub fn saved_len(&self) -> usize {
        self.x_projection.len()
    }

    /// Writes `h | c` after every step to `states [T, B, 2n]`, and to `saved` (see
    /// [`Self::saved_len`]) what [`Self::backward`] needs.
    ///
    /// # Errors
    /// [`KernelError`] naming the slice whose length does not fit the sizes.
    pub fn forward(
        &self,
        states: &mut [f32],
        saved: Option<&mut [f32]>,
    ) -> Result<(), KernelError> {
        self.forward_at(Level::current(), states, saved)
    }

    /// Gradients of a loss whose gradient towards the output is `d_states [T, B, 2n]`, from what
    /// [`Self::forward`] wrote.
    ///
    /// # Errors
    /// [`KernelError`] naming the slice whose length does not fit the sizes.
    pub fn backward(
        &self,
        states: &[f32],
        saved: &[f32],
        d_states: &[f32],
        gradients: LstmGradients<'_>,
    ) -> Result<(), KernelError> {
        self.backward_at(Level::current(), states, saved, d_states, gradients)
    }

    fn check(&self) -> Result<(), KernelError> {
        let Self {
            steps,
            batch,
            hidden,
            ..
        } = *self;
        let wide = 4usize.saturating_mul(hidden);
        let check = check_length;
        let shape = "[steps, batch, 4 hidden]";
        check(
            "x_projection",
            shape,
            &[steps, batch, wide],
            self.x_projection.len(),
        )?;
        check(
            "recurrent",
            "[hidden, 4 hidden]",
            &[hidden, wide],
            self.recurrent.len(),
        )?;
        let state = [batch, hidden];
        check(
            "initial_hidden",
            "[batch, hidden]",
            &state,
            self.initial_hidden.len(),
        )?;
        check(
            "initial_cell",
            "[batch, hidden]",
            &state,
            self.initial_cell.len(),
        )?;
        check_keep(self.keep, steps, batch)
    }

    /// Multiply-adds of one direction.
    fn products(&self) -> usize {
        self.x_projection.len() * self.hidden
    }

    pub(crate) fn forward_at(
        &self,
        level: Level,
        states: &mut [f32],
        saved: Option<&mut [f32]>,
    ) -> Result<(), KernelError> {
        self.check()?;
        let Self {
            steps,
            batch,
            hidden: n,
            ..
        } = *self;
        check_length(
            "states",
            "[steps, batch, 2 hidden]",
            &[steps, batch, 2, n],
            states.len(),
        )?;
        if let Some(saved) = &saved {
            check_length("saved", "[saved_len()]", &[self.saved_len()], saved.len())?;
        }
        if batch * n == 0 {
            return Ok(());
        }
        let weights = pack(level, self.recurrent, 4 * n, n, 4 * n, false);
        let rows = block_rows(batch, self.products());
        let states = by_rows(states, steps, batch, 2 * n, rows);
        let saved = by_rows_optional(saved, steps, batch, 4 * n, rows);
        let tasks = states.into_iter().zip(saved).collect();
        for_each_block(tasks, |index, (states, saved)| {
            self.forward_block(level, &weights, index * rows, states, saved);
        });
        Ok(())
    }

    /// All steps of the rows from `first` on.
    fn forward_block(
        &self,
        level: Level,
        weights: &Packed,
        first: usize,
        mut states: Vec<&mut [f32]>,
        mut saved: Option<Vec<&mut [f32]>>,
    ) {
        let n = self.hidden;
        let rows = states.first().map_or(0, |step| step.len() / (2 * n));
        let mut hidden = self.initial_hidden[first * n..][..rows * n].to_vec();
        let mut cell = self.initial_cell[first * n..][..rows * n].to_vec();
        let mut scratch = vec![0.0; if saved.is_none() { rows * 4 * n } else { 0 }];
        for step in order(self.steps, self.reverse) {
            let x = at_step(self.x_projection, step, self.batch, 4 * n, first, rows);
            let keep = self
                .keep
                .map(|keep| at_step(keep, step, self.batch, 1, first, rows));
            let gates = saved
                .as_mut()
                .map_or(&mut scratch[..], |saved| &mut *saved[step]);
            gates.copy_from_slice(x);
            weights.product(&hidden, n, gates, 4 * n, rows, Write::Add);
            run(
                level,
                LstmState {
                    n,
                    gates,
                    hidden: &mut hidden,
                    cell: &mut cell,
                    keep,
                },
            );
            join_states(n, &hidden, &cell, states[step]);
        }
    }

    pub(crate) fn backward_at(
        &self,
        level: Level,
        states: &[f32],
        saved: &[f32],
        d_states: &[f32],
        gradients: LstmGradients<'_>,
    ) -> Result<(), KernelError> {
        self.check()?;
        let Self {
            steps,
            batch,
            hidden: n,
            ..
        } = *self;
        let LstmGradients {
            x_projection: d_x,
            recurrent: d_u,
            initial_hidden: d_h,
            initial_cell: d_c,
        } = gradients;
        let check = check_length;
        let shape = "[steps, batch, 2 hidden]";
        check("states", shape, &[steps, batch, 2, n], states.len())?;
        check("d_states", shape, &[steps, batch, 2, n], d_states.len())?;
        check("saved", "[saved_len()]", &[self.saved_len()], saved.len())?;
        let shape = "[steps, batch, 4 hidden]";
        check(
            "gradients.x_projection",
            shape,
            &[self.x_projection.len()],
            d_x.len(),
        )?;
        check(
            "gradients.recurrent",
            "[hidden, 4 hidden]",
            &[self.recurrent.len()],
            d_u.len(),
        )?;
        check(
            "gradients.initial_hidden",
            "[batch, hidden]",
            &[batch, n],
            d_h.len(),
        )?;
        check(
            "gradients.initial_cell",
            "[batch, hidden]",
            &[batch, n],
            d_c.len(),
        )?;
        if batch * n == 0 {
            d_u.fill(0.0);
            return Ok(());
        }
        let weights = pack(level, self.recurrent, 4 * n, n, 4 * n, true);
        let rows = block_rows(batch, self.products());
        let tasks = by_rows(d_x, steps, batch, 4 * n, rows)
            .into_iter()
            .zip(d_h.chunks_mut(rows * n).zip(d_c.chunks_mut(rows * n)))
            .map(|(d_gates, (d_hidden, d_cell))| Block {
                d_gates,
                d_hidden,
                d_cell,
            })
            .collect();
        for_each_block(tasks, |index, block| {
            self.backward_block(
                level,
                &weights,
                index * rows,
                states,
                saved,
                d_states,
                block,
            );
        });
        let previous = Previous {
            initial: self.initial_hidden,
            states,
            stride: 2 * n,
            width: n,
            steps,
            batch,
            reverse: self.reverse,
        };
        previous.product(level, d_x, 4 * n, 0, 4 * n, d_u, 4 * n);
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    fn backward_block(
        &self,
        level: Level,
        weights: &Packed,
        first: usize,
        states: &[f32],
        saved: &[f32],
        d_states: &[f32],
        block: Block<'_>,
    ) {
        let Block {
            mut d_gates,
            d_hidden,
            d_cell,
        } = block;
        let (n, batch) = (self.hidden, self.batch);
        let rows = d_hidden.len() / n;
        d_hidden.fill(0.0);
        d_cell.fill(0.0);
        for step in order(self.steps, self.reverse).rev() {
            let states_before = before(step, self.steps, self.reverse)
                .map(|step| at_step(states, step, batch, 2 * n, first, rows));
            let initial = &self.initial_cell[first * n..][..rows * n];
            let d_out = at_step(d_states, step, batch, 2 * n, first, rows);
            run(
                level,
                AddOutput {
                    n,
                    d_out,
                    d_hidden,
                    d_cell,
                },
            );
            run(
                level,
                LstmBack {
                    n,
                    gates: at_step(saved, step, batch, 4 * n, first, rows),
                    previous_cell: cells_before(n, states_before, initial),
                    states: at_step(states, step, batch, 2 * n, first, rows),
                    d_gates: d_gates[step],
                    d_hidden,
                    d_cell,
                    keep: self
                        .keep
                        .map(|keep| at_step(keep, step, batch, 1, first, rows)),
                },
            );
            weights.product(d_gates[step], 4 * n, d_hidden, n, rows, Write::Add);
        }
    }
}

/// What one task of the backward pass writes.
struct Block<'a> {
    d_gates: Vec<&'a mut [f32]>,
    d_hidden: &'a mut [f32],
    d_cell: &'a mut [f32],
}
