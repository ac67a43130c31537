//! The backward pass.
//!
//! Each task takes its rows from the last step to the first and writes the gradients of the
//! pre-activations, queries and contexts of every step. What sums over steps then follows in one
//! product each: the weights, and per row the values (`Σ_t α_t ⊗ dc_t`).

use super::{AdditiveGruDecoder, Weights};
use crate::error::{KernelError, check_length};
use crate::matmul::{Matrix, Packed, Strides, Write, transposed_product};
use crate::sequence::attend::{AttendBack, Kept, KeyGradient, OuterSums, WriteKeyGradient};
use crate::sequence::gru::step::{ChoBackGates, ChoBackState};
use crate::sequence::rows::{
    Previous, Strided, at_step, block_rows, by_rows, column_sums, for_each_block, split,
};
use crate::simd::{Buffer, Level, run};

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
        self.check()?;
        self.check_backward(&result, d_output, &gradients)?;
        let Self {
            steps,
            batch,
            sources,
            hidden: n,
            attention,
            value,
            ..
        } = *self;
        let AdditiveGruGradients {
            x_projection: d_x, ..
        } = gradients;
        if batch == 0 || n == 0 {
            gradients.keys.fill(0.0);
            gradients.values.fill(0.0);
            gradients.query_weight.fill(0.0);
            gradients.score.fill(0.0);
            gradients.recurrent.fill(0.0);
            gradients.context_weight.fill(0.0);
            return Ok(());
        }
        let wide = 3 * n;
        let strides = |column| Strides { row: 1, column };
        let packed = Weights {
            query: Packed::strided(level, self.query_weight, strides(attention), attention, n),
            gates: Packed::strided(level, self.recurrent, strides(wide), 2 * n, n),
            candidate: Packed::strided(level, &self.recurrent[2 * n..], strides(wide), n, n),
            context: Packed::strided(level, self.context_weight, strides(wide), wide, value),
        };
        let mut reset_state = vec![0.0; steps * batch * n];
        let mut d_queries = vec![0.0; steps * batch * attention];
        let mut d_context = vec![0.0; steps * batch * value];
        let mut d_score = vec![0.0; batch * attention];

        let rows = block_rows(batch, self.products());
        let kept: Vec<_> = (0..batch)
            .step_by(rows)
            .map(|first| Kept::new(self.keep_source, first, rows.min(batch - first), sources))
            .collect();
        let d_keys = split(gradients.keys, rows * sources * attention, kept.len());
        let d_scores = split(&mut d_score, rows * attention, kept.len());
        let tasks = by_rows(d_x, steps, batch, wide, rows)
            .into_iter()
            .zip(by_rows(&mut reset_state, steps, batch, n, rows))
            .zip(by_rows(&mut d_queries, steps, batch, attention, rows))
            .zip(by_rows(&mut d_context, steps, batch, value, rows))
            .zip(gradients.initial.chunks_mut(rows * n))
            .zip(d_keys.into_iter().zip(d_scores))
            .map(
                |(
                    ((((d_gates, reset_state), d_queries), d_context), d_state),
                    (d_keys, d_score),
                )| {
                    Block {
                        d_gates,
                        reset_state,
                        d_queries,
                        d_context,
                        d_state,
                        d_keys,
                        d_score,
                    }
                },
            )
            .collect();
        for_each_block(tasks, |index, block| {
            self.backward_block(
                level,
                &packed,
                index * rows,
                &kept[index],
                &result,
                d_output,
                block,
            );
        });

        let d_values = split(gradients.values, rows * sources * value, kept.len());
        for_each_block(d_values, |index, d_values| {
            let sums = OuterSums {
                first: index * rows,
                steps,
                batch,
                sources,
                left: result.weights,
                right: &d_context,
                stride: value,
                width: value,
                kept: &kept[index],
                out: d_values,
            };
            run(level, sums);
        });

        let previous = Previous {
            initial: self.initial,
            states: result.output,
            stride: n + value,
            width: n,
            steps,
            batch,
            reverse: false,
        };
        previous.product(
            level,
            &d_queries,
            attention,
            0,
            attention,
            gradients.query_weight,
            attention,
        );
        previous.product(level, d_x, wide, 0, 2 * n, gradients.recurrent, wide);
        let all = steps * batch;
        let reset_state = Matrix::new(&reset_state, n, all, n);
        let d_candidate = Matrix::new(&d_x[(2 * n).min(d_x.len())..], wide, all, n);
        let to = &mut gradients.recurrent[2 * n..];
        transposed_product(level, reset_state, d_candidate, to, wide, Write::Replace);
        let context = Matrix::new(
            &result.output[n.min(result.output.len())..],
            n + value,
            all,
            value,
        );
        let d_gates = Matrix::new(d_x, wide, all, wide);
        transposed_product(
            level,
            context,
            d_gates,
            gradients.context_weight,
            wide,
            Write::Replace,
        );
        column_sums(&d_score, attention, 0, gradients.score);
        Ok(())
    }

    fn check_backward(
        &self,
        result: &AdditiveGruResult<'_>,
        d_output: &[f32],
        gradients: &AdditiveGruGradients<'_>,
    ) -> Result<(), KernelError> {
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
        let output = [steps, batch, n + value];
        check(
            "output",
            "[steps, batch, hidden + value]",
            &output,
            result.output.len(),
        )?;
        check(
            "d_output",
            "[steps, batch, hidden + value]",
            &output,
            d_output.len(),
        )?;
        check(
            "weights",
            "[steps, batch, sources]",
            &[steps, batch, sources],
            result.weights.len(),
        )?;
        check(
            "gates",
            "[steps, batch, 3 hidden]",
            &[steps, batch, 3, n],
            result.gates.len(),
        )?;
        check(
            "queries",
            "[steps, batch, attention]",
            &[steps, batch, attention],
            result.queries.len(),
        )?;
        for (name, like, found) in [
            (
                "gradients.x_projection",
                self.x_projection.len(),
                gradients.x_projection.len(),
            ),
            (
                "gradients.initial",
                self.initial.len(),
                gradients.initial.len(),
            ),
            ("gradients.keys", self.keys.len(), gradients.keys.len()),
            (
                "gradients.values",
                self.values.len(),
                gradients.values.len(),
            ),
            (
                "gradients.query_weight",
                self.query_weight.len(),
                gradients.query_weight.len(),
            ),
            ("gradients.score", self.score.len(), gradients.score.len()),
            (
                "gradients.recurrent",
                self.recurrent.len(),
                gradients.recurrent.len(),
            ),
            (
                "gradients.context_weight",
                self.context_weight.len(),
                gradients.context_weight.len(),
            ),
        ] {
            check(name, "that of the input of the same name", &[like], found)?;
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    fn backward_block(
        &self,
        level: Level,
        packed: &Weights,
        first: usize,
        kept: &Kept,
        result: &AdditiveGruResult<'_>,
        d_output: &[f32],
        block: Block<'_>,
    ) {
        let Self {
            batch,
            sources,
            hidden: n,
            attention,
            value,
            ..
        } = *self;
        let Block {
            mut d_gates,
            mut reset_state,
            mut d_queries,
            mut d_context,
            d_state,
            d_keys,
            d_score,
        } = block;
        let rows = kept.rows();
        let stride = n + value;
        let mut d_left = vec![0.0; rows * n];
        let mut d_scores = vec![0.0; sources];
        let read = self.read_keys(level, first, kept);
        let mut sums = Buffer::new(rows * read.sums());
        d_state.fill(0.0);
        for step in (0..self.steps).rev() {
            let d_out = at_step(d_output, step, batch, stride, first, rows);
            let gates = at_step(result.gates, step, batch, 3 * n, first, rows);
            let keep = self
                .keep
                .map(|keep| at_step(keep, step, batch, 1, first, rows));
            let previous = match step.checked_sub(1) {
                Some(step) => Strided {
                    data: at_step(result.output, step, batch, stride, first, rows),
                    stride,
                },
                None => Strided {
                    data: &self.initial[first * n..][..rows * n],
                    stride: n,
                },
            };
            let (d_gates, d_context) = (&mut *d_gates[step], &mut *d_context[step]);
            let d_out_state = Strided {
                data: d_out,
                stride,
            };
            run(
                level,
                ChoBackState {
                    n,
                    gates,
                    previous,
                    d_out: d_out_state,
                    d_gates,
                    d_state,
                    keep,
                },
            );
            packed.candidate.product(
                &d_gates[2 * n..],
                3 * n,
                &mut d_left,
                n,
                rows,
                Write::Replace,
            );
            let reset_state = &mut *reset_state[step];
            run(
                level,
                ChoBackGates {
                    n,
                    gates,
                    previous,
                    d_left: &d_left,
                    d_gates,
                    d_state,
                    reset_state,
                },
            );
            packed
                .gates
                .product(d_gates, 3 * n, d_state, n, rows, Write::Add);

            for (row, d_context) in d_context.chunks_exact_mut(value.max(1)).enumerate() {
                d_context.copy_from_slice(&d_out[row * stride + n..][..value]);
            }
            packed
                .context
                .product(d_gates, 3 * n, d_context, value, rows, Write::Add);
            let queries = at_step(result.queries, step, batch, attention, first, rows);
            let attend = AttendBack {
                from: self.sources_of(first, kept, &read),
                queries: Strided {
                    data: queries,
                    stride: attention,
                },
                weights: at_step(result.weights, step, batch, sources, first, rows),
                d_context,
                d_scores: &mut d_scores,
                d_queries: d_queries[step],
                d_keys: KeyGradient::Additive {
                    sums: &mut sums,
                    v: &mut *d_score,
                },
            };
            run(level, attend);
            packed
                .query
                .product(d_queries[step], attention, d_state, n, rows, Write::Add);
        }
        let write = WriteKeyGradient {
            read: &read,
            kept,
            sums: &sums,
            d_keys,
        };
        run(level, write);
    }
}

/// What one task of the backward pass writes.
struct Block<'a> {
    d_gates: Vec<&'a mut [f32]>,
    reset_state: Vec<&'a mut [f32]>,
    d_queries: Vec<&'a mut [f32]>,
    d_context: Vec<&'a mut [f32]>,
    d_state: &'a mut [f32],
    d_keys: &'a mut [f32],
    d_score: &'a mut [f32],
}
