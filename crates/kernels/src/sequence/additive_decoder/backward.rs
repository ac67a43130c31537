//! The way back.

use super::{AdditiveDecoder, Cell, Weights};
use crate::error::{KernelError, check_length};
use crate::matmul::{Matrix, Write, transposed_product};
use crate::sequence::attend::{AttendBack, Kept, KeyGradient, OuterSums, WriteKeyGradient};
use crate::sequence::rows::{
    Place, Previous, Strided, block_rows, by_rows, check_gradients, column_sums, for_each_block,
    split,
};
use crate::simd::{Buffer, Level, run};

/// What the forward pass wrote.
#[derive(Clone, Copy)]
pub(in crate::sequence) struct Written<'a> {
    /// `h_t | a_t`, `[T, B, n + d]`
    pub(in crate::sequence) output: &'a [f32],
    /// `[T, B, S]`
    pub(in crate::sequence) weights: &'a [f32],
    /// `[T, B, GATES n]`
    pub(in crate::sequence) gates: &'a [f32],
    /// `[T, B, SAVED n]`
    pub(in crate::sequence) states: &'a [f32],
    /// `[T, B, a]`
    pub(in crate::sequence) queries: &'a [f32],
}

/// Where the gradients go, each of the shape of the input of its name.
pub(in crate::sequence) struct Gradients<'a> {
    pub(in crate::sequence) x_projection: &'a mut [f32],
    pub(in crate::sequence) hidden: &'a mut [f32],
    /// Empty for a cell that remembers nothing but its hidden state.
    pub(in crate::sequence) memory: &'a mut [f32],
    pub(in crate::sequence) keys: &'a mut [f32],
    pub(in crate::sequence) values: &'a mut [f32],
    pub(in crate::sequence) query_weight: &'a mut [f32],
    pub(in crate::sequence) score: &'a mut [f32],
    pub(in crate::sequence) recurrent: &'a mut [f32],
    pub(in crate::sequence) context_weight: &'a mut [f32],
}

/// One step of a block on the way back, as the cell sees it.
pub(in crate::sequence) struct Back<'a> {
    pub(in crate::sequence) n: usize,
    pub(in crate::sequence) place: Place,
    /// Activated gates of the block at this step.
    pub(in crate::sequence) gates: &'a [f32],
    /// [`Written::states`], all of it.
    pub(in crate::sequence) states: &'a [f32],
    /// The hidden states before the step.
    pub(in crate::sequence) previous: Strided<'a>,
    /// The gradient of the step's output, `h_t` first.
    pub(in crate::sequence) d_out: Strided<'a>,
    pub(in crate::sequence) d_gates: &'a mut [f32],
    pub(in crate::sequence) d_hidden: &'a mut [f32],
    pub(in crate::sequence) d_memory: &'a mut [f32],
    /// `[rows, TRACES n]`
    pub(in crate::sequence) traces: &'a mut [f32],
    /// `[rows, ROOM n]`
    pub(in crate::sequence) room: &'a mut [f32],
}

impl<C: Cell> AdditiveDecoder<'_, C> {
    /// Gradients of a loss whose gradient towards the output is `d_output [T, B, n + d]`.
    pub(in crate::sequence) fn backward(
        &self,
        level: Level,
        result: Written<'_>,
        d_output: &[f32],
        to: Gradients<'_>,
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
        let wide = C::GATES * n;
        let packed = self.pack(level, true);
        let d_x = to.x_projection;
        let mut traces = vec![0.0; steps * batch * C::TRACES * n];
        let mut d_queries = vec![0.0; steps * batch * attention];
        let mut d_context = vec![0.0; steps * batch * value];
        let mut d_score = vec![0.0; batch * attention];

        let rows = block_rows(batch, self.products());
        let kept = Kept::blocks(self.keep_source, batch, rows, sources);
        let d_memory = split(to.memory, rows * n, kept.len());
        let d_keys = split(to.keys, rows * sources * attention, kept.len());
        let d_scores = split(&mut d_score, rows * attention, kept.len());
        let tasks = by_rows(d_x, steps, batch, wide, rows)
            .into_iter()
            .zip(by_rows(&mut traces, steps, batch, C::TRACES * n, rows))
            .zip(by_rows(&mut d_queries, steps, batch, attention, rows))
            .zip(by_rows(&mut d_context, steps, batch, value, rows))
            .zip(to.hidden.chunks_mut(rows * n).zip(d_memory))
            .zip(d_keys.into_iter().zip(d_scores))
            .map(
                |(((((d_gates, traces), d_queries), d_context), states), keys)| Block {
                    d_gates,
                    traces,
                    d_queries,
                    d_context,
                    d_hidden: states.0,
                    d_memory: states.1,
                    d_keys: keys.0,
                    d_score: keys.1,
                },
            )
            .collect();
        for_each_block(tasks, |index, block| {
            let (first, kept) = (index * rows, &kept[index]);
            self.backward_block(level, &packed, first, kept, &result, d_output, block);
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
            initial: self.cell.initial(),
            states: result.output,
            stride: n + value,
            width: n,
            steps,
            batch,
            reverse: false,
        };
        let a = attention;
        previous.product(level, &d_queries, a, 0, a, to.query_weight, a);
        C::recurrent_gradient(level, previous, d_x, &traces, to.recurrent);
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
        result: &Written<'_>,
        d_output: &[f32],
        to: &Gradients<'_>,
    ) -> Result<(), KernelError> {
        let (steps, batch, n) = (self.steps, self.batch, self.hidden);
        let check = check_length;
        let shape = "[steps, batch, hidden + value]";
        let output = [steps, batch, n + self.value];
        check("output", shape, &output, result.output.len())?;
        check("d_output", shape, &output, d_output.len())?;
        let (shape, sizes) = ("[steps, batch, sources]", [steps, batch, self.sources]);
        check("weights", shape, &sizes, result.weights.len())?;
        let (shape, sizes) = (C::SHAPES.of_steps, [steps, batch, C::GATES, n]);
        check("gates", shape, &sizes, result.gates.len())?;
        let (shape, sizes) = ("[steps, batch, 2 hidden]", [steps, batch, C::SAVED, n]);
        check("states", shape, &sizes, result.states.len())?;
        let (shape, sizes) = ("[steps, batch, attention]", [steps, batch, self.attention]);
        check("queries", shape, &sizes, result.queries.len())?;
        check_gradients([
            (
                "gradients.x_projection",
                self.x_projection,
                &*to.x_projection,
            ),
            ("gradients.keys", self.keys, &*to.keys),
            ("gradients.values", self.values, &*to.values),
            (
                "gradients.query_weight",
                self.query_weight,
                &*to.query_weight,
            ),
            ("gradients.score", self.score, &*to.score),
            ("gradients.recurrent", self.recurrent, &*to.recurrent),
            (
                "gradients.context_weight",
                self.context_weight,
                &*to.context_weight,
            ),
        ])
    }

    /// All steps of the rows from `first` on, the last one first.
    #[allow(clippy::too_many_arguments)]
    fn backward_block(
        &self,
        level: Level,
        packed: &Weights<C>,
        first: usize,
        kept: &Kept,
        result: &Written<'_>,
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
            mut traces,
            mut d_queries,
            mut d_context,
            d_hidden,
            d_memory,
            d_keys,
            d_score,
        } = block;
        let (rows, wide, stride) = (kept.rows(), C::GATES * n, n + value);
        let mut room = vec![0.0; rows * C::ROOM * n];
        let mut d_scores = vec![0.0; sources];
        let read = self.read_keys(level, first, kept);
        let mut sums = Buffer::new(rows * read.sums());
        d_hidden.fill(0.0);
        d_memory.fill(0.0);
        for step in (0..self.steps).rev() {
            let place = Place {
                step,
                batch,
                first,
                rows,
            };
            let d_out = place.of(d_output, stride);
            let (d_gates, d_context) = (&mut *d_gates[step], &mut *d_context[step]);
            let back = Back {
                n,
                place,
                gates: place.of(result.gates, wide),
                states: result.states,
                previous: match place.before() {
                    Some(before) => Strided {
                        data: before.of(result.output, stride),
                        stride,
                    },
                    None => Strided {
                        data: &self.cell.initial()[first * n..][..rows * n],
                        stride: n,
                    },
                },
                d_out: Strided {
                    data: d_out,
                    stride,
                },
                d_gates,
                d_hidden,
                d_memory,
                traces: traces[step],
                room: &mut room,
            };
            self.cell.backward(level, &packed.cell, back);

            for (row, d_context) in d_context.chunks_exact_mut(value.max(1)).enumerate() {
                d_context.copy_from_slice(&d_out[row * stride + n..][..value]);
            }
            packed
                .context
                .product(d_gates, wide, d_context, value, rows, Write::Add);
            let attend = AttendBack {
                from: self.sources_of(first, kept, &read),
                queries: Strided {
                    data: place.of(result.queries, attention),
                    stride: attention,
                },
                weights: place.of(result.weights, sources),
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

/// What one task writes.
struct Block<'a> {
    d_gates: Vec<&'a mut [f32]>,
    traces: Vec<&'a mut [f32]>,
    d_queries: Vec<&'a mut [f32]>,
    d_context: Vec<&'a mut [f32]>,
    d_hidden: &'a mut [f32],
    d_memory: &'a mut [f32],
    d_keys: &'a mut [f32],
    d_score: &'a mut [f32],
}
