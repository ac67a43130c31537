//! The gradients of the weights, from those of every step.

use super::backward::{InputFeedingGradients, InputFeedingResult, Steps};
use super::step::AddMasked;
use super::{InputFeedingDecoder, Score};
use crate::matmul::{Matrix, Write, transposed_product};
use crate::sequence::rows::{Previous, Strided, column_sums};
use crate::simd::{Level, run};

impl InputFeedingDecoder<'_> {
    /// One product over all steps and rows for each weight.
    pub(super) fn weight_gradients(
        &self,
        level: Level,
        result: &InputFeedingResult<'_>,
        d: &Steps,
        to: &mut InputFeedingGradients<'_>,
    ) {
        let Self {
            steps,
            batch,
            hidden: n,
            layers,
            value,
            ..
        } = *self;
        let (cells, wide) = (steps * batch, 4 * n);
        if n == 0 {
            if let Some(score) = &mut to.score {
                score.vector.fill(0.0);
            }
            return;
        }
        let size = n * wide;
        let mut up = vec![0.0; if layers > 1 { cells * n } else { 0 }];
        for layer in 0..layers {
            let d_gates = match layer.checked_sub(1) {
                None => &*to.x_projection,
                Some(below) => &d.gates[below * cells * wide..][..cells * wide],
            };
            let states = &result.states[layer * cells * 2 * n..][..cells * 2 * n];
            let initial = &self.initial_hidden[layer * batch * n..][..batch * n];
            let previous = Previous {
                initial,
                states,
                stride: 2 * n,
                width: n,
                steps,
                batch,
                reverse: false,
            };
            let d_recurrent = &mut to.recurrent[layer * size..][..size];
            previous.product(level, d_gates, wide, 0, wide, d_recurrent, wide);
            if layer == 0 {
                let previous = Previous {
                    initial: self.feed,
                    states: result.output,
                    stride: n,
                    width: n,
                    steps,
                    batch,
                    reverse: false,
                };
                previous.product(level, d_gates, wide, 0, wide, to.feed_weight, wide);
                continue;
            }
            let below = &result.states[(layer - 1) * cells * 2 * n..][..cells * 2 * n];
            up.fill(0.0);
            for (step, up) in up.chunks_exact_mut((batch * n).max(1)).enumerate() {
                let below = &below[step * batch * 2 * n..][..batch * 2 * n];
                let values = Strided {
                    data: below,
                    stride: 2 * n,
                };
                let mask = self.mask(step, layer - 1, 0, batch);
                run(
                    level,
                    AddMasked {
                        n,
                        values,
                        mask,
                        out: up,
                    },
                );
            }
            let (up, d_all) = (
                Matrix::new(&up, n, cells, n),
                Matrix::new(d_gates, wide, cells, wide),
            );
            let d_weight = &mut to.layer_weight[(layer - 1) * size..][..size];
            transposed_product(level, up, d_all, d_weight, wide, Write::Replace);
            let d_bias = &mut to.layer_bias[(layer - 1) * wide..][..wide];
            column_sums(d_gates, wide, 0, d_bias);
        }
        let top = Matrix::new(
            &result.states[(layers - 1) * cells * 2 * n..],
            2 * n,
            cells,
            n,
        );
        let d_combined = Matrix::new(&d.combined, n, cells, n);
        let contexts = Matrix::new(result.contexts, value, cells, value);
        let (of_context, of_state) = to.combine_weight.split_at_mut(value * n);
        transposed_product(level, contexts, d_combined, of_context, n, Write::Replace);
        transposed_product(level, top, d_combined, of_state, n, Write::Replace);
        column_sums(&d.combined, n, 0, to.combine_bias);
        if let (Score::Additive { attention, .. }, Some(score)) = (self.score, &mut to.score) {
            let d_queries = Matrix::new(&d.queries, attention, cells, attention);
            transposed_product(
                level,
                top,
                d_queries,
                score.query_weight,
                attention,
                Write::Replace,
            );
            column_sums(&d.vector, attention, 0, score.vector);
        }
    }
}
