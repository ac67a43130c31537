//! The forward pass.

use super::step::{Combine, Masked};
use super::{InputFeedingDecoder, InputFeedingSaved, Weights};
use crate::error::KernelError;
use crate::matmul::Write;
use crate::sequence::attend::{Attend, Kept, Scoring};
use crate::sequence::lstm::step::{LstmState, join_states};
use crate::sequence::rows::{at_step, block_rows, by_rows, for_each_block};
use crate::simd::{Level, run};

impl InputFeedingDecoder<'_> {
    pub(crate) fn forward_at(
        &self,
        level: Level,
        output: &mut [f32],
        weights: &mut [f32],
        saved: Option<InputFeedingSaved<'_>>,
    ) -> Result<(), KernelError> {
        self.check()?;
        self.check_forward(output, weights, saved.as_ref())?;
        let Self {
            steps,
            batch,
            sources,
            hidden: n,
            layers,
            value,
            ..
        } = *self;
        if batch == 0 || n == 0 {
            weights.fill(0.0);
            return Ok(());
        }
        let packed = Weights::pack(level, self, false);
        let rows = block_rows(batch, self.products());
        let blocks = batch.div_ceil(rows);
        let saved: Vec<Option<SavedBlock<'_>>> = match saved {
            None => (0..blocks).map(|_| None).collect(),
            Some(saved) => by_rows(saved.gates, layers * steps, batch, 4 * n, rows)
                .into_iter()
                .zip(by_rows(saved.states, layers * steps, batch, 2 * n, rows))
                .zip(by_rows(saved.contexts, steps, batch, value, rows))
                .zip(by_rows(saved.combined, steps, batch, n, rows))
                .zip(by_rows(
                    saved.queries,
                    steps,
                    batch,
                    self.query_width(),
                    rows,
                ))
                .map(|((((gates, states), contexts), combined), queries)| {
                    Some(SavedBlock {
                        gates,
                        states,
                        contexts,
                        combined,
                        queries,
                    })
                })
                .collect(),
        };
        let tasks = by_rows(output, steps, batch, n, rows)
            .into_iter()
            .zip(by_rows(weights, steps, batch, sources, rows))
            .zip(saved)
            .map(|((output, weights), saved)| Block {
                output,
                weights,
                saved,
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
            steps,
            batch,
            sources,
            hidden: n,
            layers,
            value,
            ..
        } = *self;
        let rows = block.output.first().map_or(0, |step| step.len() / n);
        let kept = Kept::new(self.keep_source, first, rows, sources);
        let initial = |states: &[f32]| -> Vec<Vec<f32>> {
            (0..layers)
                .map(|l| at_step(states, l, batch, n, first, rows).to_vec())
                .collect()
        };
        let mut hidden = initial(self.initial_hidden);
        let mut cell = initial(self.initial_cell);
        let mut feed = self.feed[first * n..][..rows * n].to_vec();
        let mut gates = vec![0.0; rows * 4 * n];
        let mut up = vec![0.0; rows * n];
        let mut queries = vec![0.0; rows * self.query_width()];
        let mut context = vec![0.0; rows * value];
        let mut combined = vec![0.0; rows * n];
        let mut scores = vec![0.0; sources];
        let read = self.read_keys(level, first, &kept);
        let scoring = Scoring::of(read.as_ref());
        for step in 0..steps {
            for layer in 0..layers {
                if layer == 0 {
                    let x = at_step(self.x_projection, step, batch, 4 * n, first, rows);
                    gates.copy_from_slice(x);
                    packed
                        .feed
                        .product(&feed, n, &mut gates, 4 * n, rows, Write::Add);
                } else {
                    let below = &hidden[layer - 1];
                    let mask = self.mask(step, layer - 1, first, rows);
                    run(
                        level,
                        Masked {
                            values: below,
                            mask,
                            out: &mut up,
                        },
                    );
                    let bias = &self.layer_bias[(layer - 1) * 4 * n..][..4 * n];
                    gates
                        .chunks_exact_mut(4 * n)
                        .for_each(|row| row.copy_from_slice(bias));
                    packed.layers[layer - 1].product(&up, n, &mut gates, 4 * n, rows, Write::Add);
                }
                let (hidden, cell) = (&mut hidden[layer], &mut cell[layer]);
                packed.recurrent[layer].product(hidden, n, &mut gates, 4 * n, rows, Write::Add);
                run(
                    level,
                    LstmState {
                        n,
                        gates: &mut gates,
                        hidden,
                        cell,
                        keep: None,
                    },
                );
                if let Some(saved) = &mut block.saved {
                    saved.gates[layer * steps + step].copy_from_slice(&gates);
                    join_states(n, hidden, cell, saved.states[layer * steps + step]);
                }
            }

            let top = &hidden[layers - 1];
            if let Some(weights) = &packed.query {
                let width = self.query_width();
                weights.product(top, n, &mut queries, width, rows, Write::Replace);
            }
            let attend = Attend {
                from: self.sources_of(first, &kept, scoring, step),
                queries: if packed.query.is_some() {
                    &queries
                } else {
                    top
                },
                scores: &mut scores,
                weights: block.weights[step],
                context: &mut context,
            };
            run(level, attend);

            combined
                .chunks_exact_mut(n)
                .for_each(|row| row.copy_from_slice(self.combine_bias));
            packed
                .combine_context
                .product(&context, value, &mut combined, n, rows, Write::Add);
            packed
                .combine_state
                .product(top, n, &mut combined, n, rows, Write::Add);
            let mask = self.mask(step, layers - 1, first, rows);
            run(
                level,
                Combine {
                    combined: &mut combined,
                    mask,
                    out: &mut feed,
                },
            );
            block.output[step].copy_from_slice(&feed);
            if let Some(saved) = &mut block.saved {
                saved.contexts[step].copy_from_slice(&context);
                saved.combined[step].copy_from_slice(&combined);
                saved.queries[step].copy_from_slice(&queries);
            }
        }
    }
}

/// What one task of the forward pass writes.
struct Block<'a> {
    output: Vec<&'a mut [f32]>,
    weights: Vec<&'a mut [f32]>,
    saved: Option<SavedBlock<'a>>,
}

/// A block of [`InputFeedingSaved`]; of layers and steps, the layer comes first.
struct SavedBlock<'a> {
    gates: Vec<&'a mut [f32]>,
    states: Vec<&'a mut [f32]>,
    contexts: Vec<&'a mut [f32]>,
    combined: Vec<&'a mut [f32]>,
    queries: Vec<&'a mut [f32]>,
}
