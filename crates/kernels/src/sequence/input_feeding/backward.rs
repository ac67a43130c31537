//! The backward pass: every block's way back ([`super::block_back`]), then the sums over all steps.

use super::block_back::Block;
use super::{InputFeedingDecoder, Score, Weights};
use crate::error::KernelError;
use crate::sequence::attend::{Kept, OuterSums};
use crate::sequence::rows::{block_rows, by_rows, for_each_block, split};
use crate::simd::{Level, run};

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
            let kept = Kept::blocks(self.keep_source, batch, rows, sources);
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
}
