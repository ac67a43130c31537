//! The backward pass: the rows' way back, then one product for each weight.

use super::cho::{ChoBack, GruWeights, cho_weight_gradient};
use super::step::PyTorchBack;
use super::{Convention, GruSequence};
use crate::error::{KernelError, check_length};
use crate::matmul::Write;
use crate::sequence::rows::{
    Previous, Strided, at_step, before, block_rows, by_rows, column_sums, for_each_block, order,
};
use crate::simd::{Level, run};

/// Where [`GruSequence::backward`] writes its gradients; every buffer is overwritten.
#[derive(Debug)]
pub struct GruGradients<'a> {
    /// `[T, B, 3n]`
    pub x_projection: &'a mut [f32],
    /// `[n, 3n]`
    pub recurrent: &'a mut [f32],
    /// `[3n]`
    pub hidden_bias: Option<&'a mut [f32]>,
    /// `[B, n]`
    pub initial: &'a mut [f32],
}

impl GruSequence<'_> {
    pub(crate) fn backward_at(
        &self,
        level: Level,
        states: &[f32],
        saved: &[f32],
        d_states: &[f32],
        gradients: GruGradients<'_>,
    ) -> Result<(), KernelError> {
        self.check()?;
        let Self {
            steps,
            batch,
            hidden,
            ..
        } = *self;
        let GruGradients {
            x_projection: d_x,
            recurrent: d_u,
            hidden_bias: d_bias,
            initial: d_h,
        } = gradients;
        let check = check_length;
        let shape = "[steps, batch, hidden]";
        check("states", shape, &[steps, batch, hidden], states.len())?;
        check("d_states", shape, &[steps, batch, hidden], d_states.len())?;
        check("saved", "[saved_len()]", &[self.saved_len()], saved.len())?;
        let shape = "[steps, batch, 3 hidden]";
        check(
            "gradients.x_projection",
            shape,
            &[self.x_projection.len()],
            d_x.len(),
        )?;
        check(
            "gradients.recurrent",
            "[hidden, 3 hidden]",
            &[self.recurrent.len()],
            d_u.len(),
        )?;
        check(
            "gradients.initial",
            "[batch, hidden]",
            &[batch, hidden],
            d_h.len(),
        )?;
        if let Some(d_bias) = &d_bias {
            check(
                "gradients.hidden_bias",
                "[3 hidden]",
                &[3, hidden],
                d_bias.len(),
            )?;
        }
        if batch * hidden == 0 {
            d_u.fill(0.0);
            d_bias.into_iter().for_each(|d| d.fill(0.0));
            return Ok(());
        }
        // Cho: r ∘ h, the left side of the candidate's product. PyTorch: the gradient of h U_n + b_n.
        let mut candidate = vec![0.0; steps * batch * hidden];
        let weights = GruWeights::pack(level, self.recurrent, hidden, true);
        let rows = block_rows(batch, self.products());
        let tasks = by_rows(d_x, steps, batch, 3 * hidden, rows)
            .into_iter()
            .zip(by_rows(&mut candidate, steps, batch, hidden, rows))
            .zip(d_h.chunks_mut(rows * hidden))
            .map(|((d_gates, candidate), d_state)| Block {
                d_gates,
                candidate,
                d_state,
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

        let wide = 3 * hidden;
        let previous = Previous {
            initial: self.initial,
            states,
            stride: hidden,
            width: hidden,
            steps,
            batch,
            reverse: self.reverse,
        };
        match self.convention {
            Convention::Cho => cho_weight_gradient(level, previous, d_x, &candidate, d_u),
            Convention::PyTorch => {
                previous.product(level, d_x, wide, 0, 2 * hidden, d_u, wide);
                let d_candidate = &mut d_u[2 * hidden..];
                previous.product(level, &candidate, hidden, 0, hidden, d_candidate, wide);
            }
        }
        if let Some(d_bias) = d_bias {
            let (gates, new) = d_bias.split_at_mut(2 * hidden);
            column_sums(d_x, wide, 0, gates);
            column_sums(&candidate, hidden, 0, new);
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    fn backward_block(
        &self,
        level: Level,
        weights: &GruWeights,
        first: usize,
        states: &[f32],
        saved: &[f32],
        d_states: &[f32],
        block: Block<'_>,
    ) {
        let Block {
            mut d_gates,
            mut candidate,
            d_state,
        } = block;
        let (n, batch) = (self.hidden, self.batch);
        let rows = d_state.len() / n;
        let mut d_left = vec![0.0; rows * n];
        d_state.fill(0.0);
        for step in order(self.steps, self.reverse).rev() {
            let d_out = Strided {
                data: at_step(d_states, step, batch, n, first, rows),
                stride: n,
            };
            let gates = at_step(saved, step, batch, self.saved_width(), first, rows);
            let keep = self
                .keep
                .map(|keep| at_step(keep, step, batch, 1, first, rows));
            let previous = match before(step, self.steps, self.reverse) {
                Some(step) => at_step(states, step, batch, n, first, rows),
                None => &self.initial[first * n..][..rows * n],
            };
            let previous = Strided {
                data: previous,
                stride: n,
            };
            let (d_gates, candidate) = (&mut *d_gates[step], &mut *candidate[step]);
            match self.convention {
                Convention::Cho => {
                    let step = ChoBack {
                        n,
                        gates,
                        previous,
                        d_out,
                        d_gates,
                        d_state,
                        reset_state: candidate,
                        d_left: &mut d_left,
                        keep,
                    };
                    step.run(level, weights);
                }
                Convention::PyTorch => {
                    let d_candidate = &mut *candidate;
                    run(
                        level,
                        PyTorchBack {
                            n,
                            gates,
                            previous,
                            d_out,
                            d_gates,
                            d_state,
                            d_candidate,
                            keep,
                        },
                    );
                    weights
                        .candidate
                        .product(candidate, n, d_state, n, rows, Write::Add);
                    weights
                        .gates
                        .product(d_gates, 3 * n, d_state, n, rows, Write::Add);
                }
            }
        }
    }
}

/// What one task of the backward pass writes.
struct Block<'a> {
    d_gates: Vec<&'a mut [f32]>,
    candidate: Vec<&'a mut [f32]>,
    d_state: &'a mut [f32],
}
