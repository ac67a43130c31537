//! The way back of one block of rows: from the last step to the first, from the top layer to the bottom.

use super::backward::InputFeedingResult;
use super::step::{AddMasked, CombineBack};
use super::{InputFeedingDecoder, Weights};
use crate::matmul::Write;
use crate::sequence::attend::{AttendBack, Kept, KeyGradient, Scoring, WriteKeyGradient};
use crate::sequence::lstm::step::{LstmBack, cells_before};
use crate::sequence::rows::{Strided, at_step};
use crate::simd::{Buffer, Level, run};

impl InputFeedingDecoder<'_> {
    #[allow(clippy::too_many_arguments)]
    /// All steps of the rows from `first` on, the last one first.
    pub(super) fn backward_block(
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
                let initial = at_step(self.initial_cell, layer, batch, n, first, rows);
                let states_before =
                    (step > 0).then(|| at_step(result.states, at - 1, batch, 2 * n, first, rows));
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
                        previous_cell: cells_before(n, states_before, initial),
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
pub(super) struct Block<'a> {
    /// the first layer's gates, by step,
    pub(super) first: Vec<&'a mut [f32]>,
    /// the other layers' gates, by layer and step,
    pub(super) upper: Vec<&'a mut [f32]>,
    pub(super) combined: Vec<&'a mut [f32]>,
    pub(super) contexts: Vec<&'a mut [f32]>,
    pub(super) queries: Vec<&'a mut [f32]>,
    pub(super) scores: Vec<&'a mut [f32]>,
    /// the states before the first step, by layer; on the way, of those before the current one,
    pub(super) hidden: Vec<&'a mut [f32]>,
    pub(super) cell: Vec<&'a mut [f32]>,
    /// the fed vector,
    pub(super) feed: &'a mut [f32],
    pub(super) keys: &'a mut [f32],
    pub(super) vector: &'a mut [f32],
}
