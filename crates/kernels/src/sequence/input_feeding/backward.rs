//! The backward pass of [`super`].

use super::step::{AddMasked, CombineBack};
use super::{InputFeedingDecoder, Score, Weights};
use crate::error::{KernelError, check_length};
use crate::matmul::Write;
use crate::sequence::attend::{
    AttendBack, Kept, KeyGradient, OuterSums, Scoring, WriteKeyGradient,
};
use crate::sequence::lstm::step::LstmBack;
use crate::sequence::rows::{Strided, at_step, block_rows, by_rows, for_each_block, split};
use crate::simd::{Buffer, Level, run};

/// What [`InputFeedingDecoder::forward`] wrote.
#[derive(Debug, Clone, Copy)]
pub struct InputFeedingResult<'a> {
    /// `h̃_t`, `[T, B, n]`
    pub output: &'a [f32],
    /// Attention, `[T, B, S]`
    pub weights: &'a [f32],
    /// Activated gates, `[L, T, B, 4n]`
    pub gates: &'a [f32],
    /// `h | c` of each layer, `[L, T, B, 2n]`
    pub states: &'a [f32],
    /// Contexts, `[T, B, d]`
    pub contexts: &'a [f32],
    /// `tanh([c; h] W_c + b_c)` before the mask, `[T, B, n]`
    pub combined: &'a [f32],
    /// Queries, `[T, B, a]`; empty for [`Score::Dot`].
    pub queries: &'a [f32],
}

/// Where the gradients of [`Score::Additive`]'s weights go.
#[derive(Debug)]
pub struct ScoreGradients<'a> {
    /// `[n, a]`
    pub query_weight: &'a mut [f32],
    /// `[a]`
    pub vector: &'a mut [f32],
}

/// Where [`InputFeedingDecoder::backward`] writes its gradients; every buffer is overwritten.
#[derive(Debug)]
pub struct InputFeedingGradients<'a> {
    /// `[T, B, 4n]`
    pub x_projection: &'a mut [f32],
    /// `[B, n]`
    pub feed: &'a mut [f32],
    /// `[n, 4n]`
    pub feed_weight: &'a mut [f32],
    /// `[L, n, 4n]`
    pub recurrent: &'a mut [f32],
    /// `[L - 1, n, 4n]`
    pub layer_weight: &'a mut [f32],
    /// `[L - 1, 4n]`
    pub layer_bias: &'a mut [f32],
    /// `[L, B, n]`
    pub initial_hidden: &'a mut [f32],
    /// `[L, B, n]`
    pub initial_cell: &'a mut [f32],
    /// `[B, S, n]` or `[B, S, a]`, zero at sources that are not kept.
    pub keys: &'a mut [f32],
    /// `[B, S, d]`, zero at sources that are not kept.
    pub values: &'a mut [f32],
    /// `[d + n, n]`
    pub combine_weight: &'a mut [f32],
    /// `[n]`
    pub combine_bias: &'a mut [f32],
    /// Needed for [`Score::Additive`], not looked at for [`Score::Dot`].
    pub score: Option<ScoreGradients<'a>>,
}

/// Gradients of every step that the weight gradients are made from.
pub(super) struct Steps {
    /// Of the gates of the layers above the first, `[L - 1, T, B, 4n]`
    pub(super) gates: Vec<f32>,
    /// Of the argument of `h̃`'s tanh, `[T, B, n]`
    pub(super) combined: Vec<f32>,
    /// Of the contexts, `[T, B, d]`
    pub(super) contexts: Vec<f32>,
    /// Of the queries, `[T, B, a]`; empty for dot.
    pub(super) queries: Vec<f32>,
    /// Of the scores, `[T, B, S]`; empty for additive.
    pub(super) scores: Vec<f32>,
    /// Of the score vector, by row, `[B, a]`; empty for dot.
    pub(super) vector: Vec<f32>,
}

impl InputFeedingDecoder<'_> {
    /// Gradients of a loss whose gradient towards the output is `d_output [T, B, n]`, from what
    /// [`Self::forward`] wrote.
    ///
    /// # Errors
    /// [`KernelError`] naming the slice whose length does not fit the sizes.
    pub fn backward(
        &self,
        result: InputFeedingResult<'_>,
        d_output: &[f32],
        gradients: InputFeedingGradients<'_>,
    ) -> Result<(), KernelError> {
        self.backward_at(Level::current(), result, d_output, gradients)
    }

    pub(crate) fn backward_at(
        &self,
        level: Level,
        result: InputFeedingResult<'_>,
        d_output: &[f32],
        mut to: InputFeedingGradients<'_>,
    ) -> Result<(), KernelError> {
        self.check()?;
        self.check_backward(&result, d_output, &to)?;
        let Self {
            steps,
            batch,
            sources,
            hidden: n,
            layers,
            value,
            ..
        } = *self;
        let attention = self.attention();
        let (cells, query_width) = (steps * batch, self.query_width());
        let dot = matches!(self.score, Score::Dot);
        let mut d = Steps {
            gates: vec![0.0; (layers - 1) * cells * 4 * n],
            combined: vec![0.0; cells * n],
            contexts: vec![0.0; cells * value],
            queries: vec![0.0; cells * query_width],
            scores: vec![0.0; if dot { cells * sources } else { 0 }],
            vector: vec![0.0; batch * query_width],
        };
        if batch > 0 && n > 0 {
            let packed = Weights::pack(level, self, true);
            let rows = block_rows(batch, self.products());
            let blocks = batch.div_ceil(rows);
            let kept: Vec<Kept> = (0..batch)
                .step_by(rows)
                .map(|first| Kept::new(self.keep_source, first, rows.min(batch - first), sources))
                .collect();
            let scores_width = if dot { sources } else { 0 };
            // The keys of an additive score gather their gradient step by step, those of a dot
            // product get it at the end.
            let keys_now = if dot { &mut [][..] } else { &mut *to.keys };
            let tasks = by_rows(to.x_projection, steps, batch, 4 * n, rows)
                .into_iter()
                .zip(by_rows(
                    &mut d.gates,
                    (layers - 1) * steps,
                    batch,
                    4 * n,
                    rows,
                ))
                .zip(by_rows(&mut d.combined, steps, batch, n, rows))
                .zip(by_rows(&mut d.contexts, steps, batch, value, rows))
                .zip(by_rows(&mut d.queries, steps, batch, query_width, rows))
                .zip(by_rows(&mut d.scores, steps, batch, scores_width, rows))
                .zip(by_rows(to.initial_hidden, layers, batch, n, rows))
                .zip(by_rows(to.initial_cell, layers, batch, n, rows))
                .zip(split(to.feed, rows * n, blocks))
                .zip(split(keys_now, rows * sources * attention, blocks))
                .zip(split(&mut d.vector, rows * query_width, blocks));
            let tasks = tasks.map(
                |(
                    (
                        (
                            (
                                (
                                    (((((first, upper), combined), contexts), queries), scores),
                                    hidden,
                                ),
                                cell,
                            ),
                            feed,
                        ),
                        keys,
                    ),
                    vector,
                )| {
                    Block {
                        first,
                        upper,
                        combined,
                        contexts,
                        queries,
                        scores,
                        hidden,
                        cell,
                        feed,
                        keys,
                        vector,
                    }
                },
            );
            for_each_block(tasks.collect(), |index, block| {
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
            let sums = |index: usize, left, right, stride, width, out| OuterSums {
                first: index * rows,
                steps,
                batch,
                sources,
                left,
                right,
                stride,
                width,
                kept: &kept[index],
                out,
            };
            let d_values = split(to.values, rows * sources * value, blocks);
            for_each_block(d_values, |index, out| {
                run(
                    level,
                    sums(index, result.weights, &d.contexts, value, value, out),
                );
            });
            if dot {
                let top = &result.states[(layers - 1) * cells * 2 * n..];
                let d_keys = split(to.keys, rows * sources * n, blocks);
                for_each_block(d_keys, |index, out| {
                    run(level, sums(index, &d.scores, top, 2 * n, n, out));
                });
            }
        } else {
            to.keys.fill(0.0);
            to.values.fill(0.0);
        }
        self.weight_gradients(level, &result, &d, &mut to);
        Ok(())
    }

    fn check_backward(
        &self,
        result: &InputFeedingResult<'_>,
        d_output: &[f32],
        to: &InputFeedingGradients<'_>,
    ) -> Result<(), KernelError> {
        let Self {
            steps,
            batch,
            sources,
            hidden: n,
            layers,
            value,
            ..
        } = *self;
        let check = check_length;
        let shape = "[steps, batch, hidden]";
        check("output", shape, &[steps, batch, n], result.output.len())?;
        check("d_output", shape, &[steps, batch, n], d_output.len())?;
        check("combined", shape, &[steps, batch, n], result.combined.len())?;
        check(
            "weights",
            "[steps, batch, sources]",
            &[steps, batch, sources],
            result.weights.len(),
        )?;
        let shape = "[layers, steps, batch, 4 hidden]";
        check(
            "gates",
            shape,
            &[layers, steps, batch, 4, n],
            result.gates.len(),
        )?;
        let shape = "[layers, steps, batch, 2 hidden]";
        check(
            "states",
            shape,
            &[layers, steps, batch, 2, n],
            result.states.len(),
        )?;
        check(
            "contexts",
            "[steps, batch, value]",
            &[steps, batch, value],
            result.contexts.len(),
        )?;
        let shape = "[steps, batch, attention], empty for dot";
        check(
            "queries",
            shape,
            &[steps, batch, self.query_width()],
            result.queries.len(),
        )?;
        for (name, like, found) in [
            (
                "gradients.x_projection",
                self.x_projection.len(),
                to.x_projection.len(),
            ),
            ("gradients.feed", self.feed.len(), to.feed.len()),
            (
                "gradients.feed_weight",
                self.feed_weight.len(),
                to.feed_weight.len(),
            ),
            (
                "gradients.recurrent",
                self.recurrent.len(),
                to.recurrent.len(),
            ),
            (
                "gradients.layer_weight",
                self.layer_weight.len(),
                to.layer_weight.len(),
            ),
            (
                "gradients.layer_bias",
                self.layer_bias.len(),
                to.layer_bias.len(),
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
                "gradients.combine_weight",
                self.combine_weight.len(),
                to.combine_weight.len(),
            ),
            (
                "gradients.combine_bias",
                self.combine_bias.len(),
                to.combine_bias.len(),
            ),
        ] {
            check(name, "that of the input of the same name", &[like], found)?;
        }
        if let Score::Additive {
            query_weight,
            vector,
            ..
        } = self.score
        {
            let (weight, v) = to
                .score
                .as_ref()
                .map_or((0, 0), |s| (s.query_weight.len(), s.vector.len()));
            check(
                "gradients.score.query_weight",
                "[hidden, attention]",
                &[query_weight.len()],
                weight,
            )?;
            check("gradients.score.vector", "[attention]", &[vector.len()], v)?;
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
        result: &InputFeedingResult<'_>,
        d_output: &[f32],
        mut block: Block<'_>,
    ) {
        let Self {
            steps,
            batch,
            sources,
            hidden: n,
            layers,
            value,
            ..
        } = *self;
        let rows = kept.rows();
        let query_width = self.query_width();
        let mut d_scores = vec![0.0; sources];
        let mut d_dot_query = vec![0.0; if query_width == 0 { rows * n } else { 0 }];
        let mut d_up = vec![0.0; rows * n];
        block
            .hidden
            .iter_mut()
            .chain(&mut block.cell)
            .for_each(|state| state.fill(0.0));
        block.feed.fill(0.0);
        let read = self.read_keys(level, first, kept);
        let scoring = Scoring::of(read.as_ref());
        let mut sums = Buffer::new(read.as_ref().map_or(0, |read| rows * read.sums()));
        let top = layers - 1;
        for step in (0..steps).rev() {
            let d_combined = &mut *block.combined[step];
            run(
                level,
                CombineBack {
                    combined: at_step(result.combined, step, batch, n, first, rows),
                    mask: self.mask(step, top, first, rows),
                    d_out: at_step(d_output, step, batch, n, first, rows),
                    d_feed: block.feed,
                    d_combined,
                },
            );
            let d_context = &mut *block.contexts[step];
            packed
                .combine_context
                .product(d_combined, n, d_context, value, rows, Write::Replace);
            packed
                .combine_state
                .product(d_combined, n, block.hidden[top], n, rows, Write::Add);

            let states = at_step(result.states, top * steps + step, batch, 2 * n, first, rows);
            let queries = if query_width == 0 {
                Strided {
                    data: states,
                    stride: 2 * n,
                }
            } else {
                let queries = at_step(result.queries, step, batch, query_width, first, rows);
                Strided {
                    data: queries,
                    stride: query_width,
                }
            };
            let d_keys = match scoring {
                Scoring::Dot => KeyGradient::Dot {
                    scores: block.scores[step],
                },
                Scoring::Additive(_) => KeyGradient::Additive {
                    sums: &mut sums,
                    v: &mut *block.vector,
                },
            };
            let d_queries = if query_width == 0 {
                &mut d_dot_query[..]
            } else {
                &mut *block.queries[step]
            };
            run(
                level,
                AttendBack {
                    from: self.sources_of(first, kept, scoring, step),
                    queries,
                    weights: at_step(result.weights, step, batch, sources, first, rows),
                    d_context,
                    d_scores: &mut d_scores,
                    d_queries: &mut *d_queries,
                    d_keys,
                },
            );
            match &packed.query {
                Some(weights) => {
                    weights.product(
                        d_queries,
                        query_width,
                        block.hidden[top],
                        n,
                        rows,
                        Write::Add,
                    );
                }
                None => {
                    let values = Strided {
                        data: d_queries,
                        stride: n,
                    };
                    run(
                        level,
                        AddMasked {
                            n,
                            values,
                            mask: None,
                            out: block.hidden[top],
                        },
                    );
                }
            }

            for layer in (0..layers).rev() {
                let at = layer * steps + step;
                let previous_cell = match step {
                    0 => {
                        let data = at_step(self.initial_cell, layer, batch, n, first, rows);
                        Strided { data, stride: n }
                    }
                    _ => {
                        let states = at_step(result.states, at - 1, batch, 2 * n, first, rows);
                        Strided {
                            data: &states[n.min(states.len())..],
                            stride: 2 * n,
                        }
                    }
                };
                let d_gates = match layer.checked_sub(1) {
                    None => &mut *block.first[step],
                    Some(below) => &mut *block.upper[below * steps + step],
                };
                let d_hidden = &mut *block.hidden[layer];
                run(
                    level,
                    LstmBack {
                        n,
                        gates: at_step(result.gates, at, batch, 4 * n, first, rows),
                        previous_cell,
                        states: at_step(result.states, at, batch, 2 * n, first, rows),
                        d_gates,
                        d_hidden,
                        d_cell: block.cell[layer],
                        keep: None,
                    },
                );
                packed.recurrent[layer].product(d_gates, 4 * n, d_hidden, n, rows, Write::Add);
                match layer.checked_sub(1) {
                    None => {
                        packed
                            .feed
                            .product(d_gates, 4 * n, block.feed, n, rows, Write::Replace);
                    }
                    Some(below) => {
                        packed.layers[below].product(
                            d_gates,
                            4 * n,
                            &mut d_up,
                            n,
                            rows,
                            Write::Replace,
                        );
                        let mask = self.mask(step, below, first, rows);
                        let values = Strided {
                            data: &d_up,
                            stride: n,
                        };
                        run(
                            level,
                            AddMasked {
                                n,
                                values,
                                mask,
                                out: block.hidden[below],
                            },
                        );
                    }
                }
            }
        }
        match &read {
            None => block.keys.fill(0.0),
            Some(read) => {
                let write = WriteKeyGradient {
                    read,
                    kept,
                    sums: &sums,
                    d_keys: block.keys,
                };
                run(level, write);
            }
        }
    }
}

/// What one task of the backward pass writes: the gradients of ...
struct Block<'a> {
    /// the first layer's gates, by step,
    first: Vec<&'a mut [f32]>,
    /// the other layers' gates, by layer and step,
    upper: Vec<&'a mut [f32]>,
    combined: Vec<&'a mut [f32]>,
    contexts: Vec<&'a mut [f32]>,
    queries: Vec<&'a mut [f32]>,
    scores: Vec<&'a mut [f32]>,
    /// the states before the first step, by layer; on the way, of those before the current one,
    hidden: Vec<&'a mut [f32]>,
    cell: Vec<&'a mut [f32]>,
    /// the fed vector,
    feed: &'a mut [f32],
    keys: &'a mut [f32],
    vector: &'a mut [f32],
}
