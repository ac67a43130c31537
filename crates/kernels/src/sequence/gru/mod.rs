//! A gated recurrent unit over a whole sequence.
//!
//! With `x_t = [x_z | x_r | x_n]` already projected (biases included) and `U = [U_z | U_r | U_n]`:
//!
//! | convention | reset gate | candidate | new state |
//! |---|---|---|---|
//! | [`Convention::Cho`] | before the product | `ñ = tanh(x_n + (r ∘ h) U_n)` | `(1 - z) ∘ h + z ∘ ñ` |
//! | [`Convention::PyTorch`] | after it | `ñ = tanh(x_n + r ∘ (h U_n + b_n))` | `(1 - z) ∘ ñ + z ∘ h` |
//!
//! and in both `z = σ(x_z + h U_z)`, `r = σ(x_r + h U_r)`, where PyTorch's convention adds its
//! hidden bias `b = [b_z | b_r | b_n]` to `h U`. (Cho et al. 2014; Bahdanau et al. 2014, App. A,
//! with `z` weighting the new state; `torch.nn.GRU`.)
//!
//! ```text
//!              rows ->                     a task: a block of rows, all steps; h and the gates in the core's own
//!  step 1   |======|======|===|            memory, U packed once and read by every step
//!   ...       task   task  task
//!  step T   |======|======|===|            back the same way; then dU = Σ_t h_{t-1}ᵀ d(gates)_t as one product
//! ```
//!
//! ```
//! use regard_kernels::sequence::gru::{Convention, GruSequence};
//!
//! // One step, one row, one unit: z = σ(0) = 1/2, r = 1/2, ñ = tanh(0 + (1/2 · 1) · 0) = 0.
//! let gru = GruSequence {
//!     steps: 1,
//!     batch: 1,
//!     hidden: 1,
//!     x_projection: &[0.0, 0.0, 0.0],
//!     recurrent: &[0.0, 0.0, 0.0],
//!     hidden_bias: None,
//!     initial: &[1.0],
//!     keep: None,
//!     reverse: false,
//!     convention: Convention::Cho,
//! };
//! let mut states = [0.0];
//! gru.forward(&mut states, None)?;
//! assert_eq!(states, [0.5]);
//! # Ok::<(), regard_kernels::KernelError>(())
//! ```

mod backward;
pub(in crate::sequence) mod cho;
mod step;

use crate::error::{KernelError, check_length};
use crate::matmul::Write;
use crate::sequence::rows::{
    at_step, block_rows, by_rows, by_rows_optional, check_keep, for_each_block, order,
};
use crate::simd::{Level, run};
pub use backward::GruGradients;
use cho::{ChoForward, GruWeights};
use step::PyTorchState;

/// Which of the two gated recurrent units is meant; see the table of the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Convention {
    /// Cho et al. 2014 and Bahdanau et al. 2014: the reset gate acts before the recurrent product,
    /// the update gate weights the new state.
    Cho,
    /// `torch.nn.GRU`: the reset gate acts after the recurrent product, the update gate weights
    /// the old state.
    PyTorch,
}

/// The inputs of a GRU over a sequence. `T` = steps, `B` = batch, `n` = hidden.
#[derive(Debug, Clone, Copy)]
pub struct GruSequence<'a> {
    /// Steps `T`.
    pub steps: usize,
    /// Rows `B`.
    pub batch: usize,
    /// Units `n`.
    pub hidden: usize,
    /// Input part of the pre-activations, `[T, B, 3n]`, columns `z | r | n`.
    pub x_projection: &'a [f32],
    /// Recurrent weights `U`, `[n, 3n]`, columns `z | r | n`.
    pub recurrent: &'a [f32],
    /// Bias of the recurrent product, `[3n]`; only PyTorch's convention has one.
    pub hidden_bias: Option<&'a [f32]>,
    /// State before the first step, `[B, n]`.
    pub initial: &'a [f32],
    /// `[T, B]`, `true` where the step is real; a padded step copies the state.
    pub keep: Option<&'a [bool]>,
    /// Whether time runs from the last step to the first.
    pub reverse: bool,
    /// Which unit.
    pub convention: Convention,
}

impl GruSequence<'_> {
    /// Numbers that `forward` saves for `backward`: `[T, B, 3n]` for Cho's unit (`z`, `r`, `ñ`),
    /// `[T, B, 4n]` for PyTorch's (and `h U_n + b_n`).
    pub fn saved_len(&self) -> usize {
        self.steps * self.batch * self.saved_width()
    }

    pub(super) fn saved_width(&self) -> usize {
        self.hidden
            * if self.convention == Convention::Cho {
                3
            } else {
                4
            }
    }

    /// Writes the state after every step to `states [T, B, n]`, and to `saved` (see
    /// [`Self::saved_len`]) what [`Self::backward`] needs.
    ///
    /// # Errors
    /// [`KernelError`] naming the slice whose length does not fit the sizes, or the hidden bias
    /// given to Cho's unit, which has none.
    pub fn forward(
        &self,
        states: &mut [f32],
        saved: Option<&mut [f32]>,
    ) -> Result<(), KernelError> {
        self.forward_at(Level::current(), states, saved)
    }

    /// Gradients of a loss whose gradient towards the states is `d_states [T, B, n]`, from what
    /// [`Self::forward`] wrote.
    ///
    /// # Errors
    /// [`KernelError`] naming the slice whose length does not fit the sizes.
    pub fn backward(
        &self,
        states: &[f32],
        saved: &[f32],
        d_states: &[f32],
        gradients: GruGradients<'_>,
    ) -> Result<(), KernelError> {
        self.backward_at(Level::current(), states, saved, d_states, gradients)
    }

    pub(super) fn check(&self) -> Result<(), KernelError> {
        let Self {
            steps,
            batch,
            hidden,
            ..
        } = *self;
        let wide = 3usize.saturating_mul(hidden);
        let check = check_length;
        let shape = "[steps, batch, 3 hidden]";
        check(
            "x_projection",
            shape,
            &[steps, batch, wide],
            self.x_projection.len(),
        )?;
        check(
            "recurrent",
            "[hidden, 3 hidden]",
            &[hidden, wide],
            self.recurrent.len(),
        )?;
        check(
            "initial",
            "[batch, hidden]",
            &[batch, hidden],
            self.initial.len(),
        )?;
        if let Some(bias) = self.hidden_bias {
            let wide = if self.convention == Convention::Cho {
                0
            } else {
                wide
            };
            let shape = "[3 hidden] for PyTorch's unit, none for Cho's";
            check("hidden_bias", shape, &[wide], bias.len())?;
        }
        check_keep(self.keep, steps, batch)
    }

    /// Multiply-adds of one direction.
    pub(super) fn products(&self) -> usize {
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
            hidden,
            ..
        } = *self;
        check_length(
            "states",
            "[steps, batch, hidden]",
            &[steps, batch, hidden],
            states.len(),
        )?;
        if let Some(saved) = &saved {
            check_length("saved", "[saved_len()]", &[self.saved_len()], saved.len())?;
        }
        if batch * hidden == 0 {
            return Ok(());
        }
        let weights = GruWeights::pack(level, self.recurrent, hidden, false);
        let rows = block_rows(batch, self.products());
        let states = by_rows(states, steps, batch, hidden, rows);
        let saved = by_rows_optional(saved, steps, batch, self.saved_width(), rows);
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
        weights: &GruWeights,
        first: usize,
        mut states: Vec<&mut [f32]>,
        mut saved: Option<Vec<&mut [f32]>>,
    ) {
        let (n, width) = (self.hidden, self.saved_width());
        let rows = states.first().map_or(0, |step| step.len() / n);
        let mut state = self.initial[first * n..][..rows * n].to_vec();
        let mut reset_state = vec![0.0; rows * n];
        let mut scratch = vec![0.0; if saved.is_none() { rows * width } else { 0 }];
        for step in order(self.steps, self.reverse) {
            let x = at_step(self.x_projection, step, self.batch, 3 * n, first, rows);
            let keep = self
                .keep
                .map(|keep| at_step(keep, step, self.batch, 1, first, rows));
            let gates = saved
                .as_mut()
                .map_or(&mut scratch[..], |saved| &mut *saved[step]);
            match self.convention {
                Convention::Cho => {
                    gates.copy_from_slice(x);
                    let step = ChoForward {
                        n,
                        gates,
                        state: &mut state,
                        reset_state: &mut reset_state,
                        keep,
                    };
                    step.run(level, weights);
                }
                Convention::PyTorch => {
                    for row in gates.chunks_exact_mut(width) {
                        match self.hidden_bias {
                            Some(bias) => {
                                row[..2 * n].copy_from_slice(&bias[..2 * n]);
                                row[3 * n..].copy_from_slice(&bias[2 * n..]);
                            }
                            None => row.fill(0.0),
                        }
                    }
                    weights
                        .gates
                        .product(&state, n, gates, width, rows, Write::Add);
                    let candidate = &mut gates[3 * n..];
                    weights
                        .candidate
                        .product(&state, n, candidate, width, rows, Write::Add);
                    run(
                        level,
                        PyTorchState {
                            n,
                            x,
                            gates,
                            state: &mut state,
                            keep,
                        },
                    );
                }
            }
            states[step].copy_from_slice(&state);
        }
    }
}
