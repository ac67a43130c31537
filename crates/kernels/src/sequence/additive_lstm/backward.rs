//! The backward pass.
//!
//! Each task takes its rows from the last step to the first and writes the gradients of the
//! pre-activations, queries and contexts of every step. What sums over steps then follows in one
//! product each: the weights, and per row the values (`Σ_t α_t ⊗ da_t`).

use super::{AdditiveLstmDecoder, Weights};
use crate::error::{KernelError, check_length};
use crate::matmul::{Matrix, Packed, Strides, Write, transposed_product};
use crate::sequence::attend::{AttendBack, Kept, KeyGradient, OuterSums, WriteKeyGradient};
use crate::sequence::lstm::step::LstmBack;
use crate::sequence::rows::{
    Previous, Strided, at_step, block_rows, by_rows, column_sums, for_each_block, split,
};
use crate::simd::{Buffer, Level, run};

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
        to: AdditiveLstmGradients<'_>,
    ) -> Result<(), KernelError> {
        self.check()?;
        self.check_backward(&result, d_output, &to)?;
        let Self {
            steps,
            batch,
            sources,
            hidden: n,
            attention,
            value,
            ..
        } = *self;
        if batch == 0 || n == 0 {
            to.keys.fill(0.0);
            to.values.fill(0.0);
            to.query_weight.fill(0.0);
            to.score.fill(0.0);
            to.recurrent.fill(0.0);
            to.context_weight.fill(0.0);
            return Ok(());
        }
        let wide = 4 * n;
        let strides = |column| Strides { row: 1, column };
        let packed = Weights {
            query: Packed::strided(level, self.query_weight, strides(attention), attention, n),
            recurrent: Packed::strided(level, self.recurrent, strides(wide), wide, n),
            context: Packed::strided(level, self.context_weight, strides(wide), wide, value),
        };
        let d_x = to.x_projection;
        let mut d_queries = vec![0.0; steps * batch * attention];
        let mut d_context = vec![0.0; steps * batch * value];
        let mut d_score = vec![0.0; batch * attention];

        let rows = block_rows(batch, self.products());
        let kept: Vec<_> = (0..batch)
            .step_by(rows)
            .map(|first| Kept::new(self.keep_source, first, rows.min(batch - first), sources))
            .collect();
        let d_keys = split(to.keys, rows * sources * attention, kept.len());
        let d_scores = split(&mut d_score, rows * attention, kept.len());
        let tasks = by_rows(d_x, steps, batch, wide, rows)
            .into_iter()
            .zip(by_rows(&mut d_queries, steps, batch, attention, rows))
            .zip(by_rows(&mut d_context, steps, batch, value, rows))
            .zip(to.initial_hidden.chunks_mut(rows * n))
            .zip(to.initial_cell.chunks_mut(rows * n))
            .zip(d_keys.into_iter().zip(d_scores))
            .map(
                |(((((d_gates, d_queries), d_context), d_hidden), d_cell), (d_keys, d_score))| {
                    Block {
                        d_gates,
                        d_queries,
                        d_context,
                        d_hidden,
                        d_cell,
                        d_keys,
                        d_score,
                    }
                },
            )
            .collect();
        for_each_block(tasks, |index, block| {
            let first = index * rows;
            self.backward_block(
                level,
                &packed,
                first,
                &kept[index],
                &result,
                d_output,
                block,
            );
        });

        let d_values = split(to.values, rows * sources * value, kept.len());
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
            initial: self.initial_hidden,
            states: result.output,
            stride: n + value,
            width: n,
            steps,
            batch,
            reverse: false,
        };
        let a = attention;
        previous.product(level, &d_queries, a, 0, a, to.query_weight, a);
        previous.product(level, d_x, wide, 0, wide, to.recurrent, wide);
        let all = steps * batch;
        let contexts = &result.output[n.min(result.output.len())..];
        let contexts = Matrix::new(contexts, n + value, all, value);
        let d_gates = Matrix::new(d_x, wide, all, wide);
        let write = Write::Replace;
        transposed_product(level, contexts, d_gates, to.context_weight, wide, write);
        column_sums(&d_score, attention, 0, to.score);
        Ok(())
    }

    fn check_backward(
        &self,
        result: &AdditiveLstmResult<'_>,
        d_output: &[f32],
        to: &AdditiveLstmGradients<'_>,
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
        let shape = "[steps, batch, hidden + value]";
        let output = [steps, batch, n + value];
        check("output", shape, &output, result.output.len())?;
        check("d_output", shape, &output, d_output.len())?;
        check(
            "weights",
            "[steps, batch, sources]",
            &[steps, batch, sources],
            result.weights.len(),
        )?;
        check(
            "gates",
            "[steps, batch, 4 hidden]",
            &[steps, batch, 4, n],
            result.gates.len(),
        )?;
        check(
            "states",
            "[steps, batch, 2 hidden]",
            &[steps, batch, 2, n],
            result.states.len(),
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
                to.x_projection.len(),
            ),
            (
                "gradients.initial_hidden",
                self.initial_hidden.len(),
                to.initial_hidden.len(),
            ),
            (
                "gradients.initial_cell",
                self.initial_cell.len(),
                to.initial_cell.len(),
            ),
            ("gradients.keys", self.keys.len(), to.keys.len()),
            ("gradients.values", self.values.len(), to.values.len()),
            (
                "gradients.query_weight",
                self.query_weight.len(),
                to.query_weight.len(),
            ),
            ("gradients.score", self.score.len(), to.score.len()),
            (
                "gradients.recurrent",
                self.recurrent.len(),
                to.recurrent.len(),
            ),
            (
                "gradients.context_weight",
                self.context_weight.len(),
                to.context_weight.len(),
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
        result: &AdditiveLstmResult<'_>,
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
            mut d_queries,
            mut d_context,
            d_hidden,
            d_cell,
            d_keys,
            d_score,
        } = block;
        let rows = kept.rows();
        let stride = n + value;
        let mut d_scores = vec![0.0; sources];
        let read = self.read_keys(level, first, kept);
        let mut sums = Buffer::new(rows * read.sums());
        d_hidden.fill(0.0);
        d_cell.fill(0.0);
        for step in (0..self.steps).rev() {
            let previous_cell = match step.checked_sub(1) {
                Some(step) => {
                    let states = at_step(result.states, step, batch, 2 * n, first, rows);
                    Strided {
                        data: &states[n.min(states.len())..],
                        stride: 2 * n,
                    }
                }
                None => Strided {
                    data: &self.initial_cell[first * n..][..rows * n],
                    stride: n,
                },
            };
            let d_out = at_step(d_output, step, batch, stride, first, rows);
            let (d_gates, d_context) = (&mut *d_gates[step], &mut *d_context[step]);
            for (d_out, d_hidden) in d_out.chunks_exact(stride).zip(d_hidden.chunks_exact_mut(n)) {
                d_hidden.iter_mut().zip(d_out).for_each(|(d, x)| *d += x);
            }
            run(
                level,
                LstmBack {
                    n,
                    gates: at_step(result.gates, step, batch, 4 * n, first, rows),
                    previous_cell,
                    states: at_step(result.states, step, batch, 2 * n, first, rows),
                    d_gates,
                    d_hidden,
                    d_cell,
                    keep: None,
                },
            );
            packed
                .recurrent
                .product(d_gates, 4 * n, d_hidden, n, rows, Write::Add);

            for (row, d_context) in d_context.chunks_exact_mut(value.max(1)).enumerate() {
                d_context.copy_from_slice(&d_out[row * stride + n..][..value]);
            }
            packed
                .context
                .product(d_gates, 4 * n, d_context, value, rows, Write::Add);
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
                .product(d_queries[step], attention, d_hidden, n, rows, Write::Add);
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
    d_queries: Vec<&'a mut [f32]>,
    d_context: Vec<&'a mut [f32]>,
    d_hidden: &'a mut [f32],
    d_cell: &'a mut [f32],
    d_keys: &'a mut [f32],
    d_score: &'a mut [f32],
}
