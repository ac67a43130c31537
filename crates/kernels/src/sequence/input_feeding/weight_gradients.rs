//! The gradients of the weights, from those of every step.

use super::backward::Steps;
use super::{InputFeedingDecoder, InputFeedingFields, Inputs, Sizes, Written};
use crate::cell::AddRows;
use crate::matmul::{Matrix, Write, transposed_product};
use crate::rows::{Place, Strided};
use crate::sequence::rows::{Previous, column_sums};
use crate::simd::{Level, run};

impl InputFeedingDecoder {
    /// One product over all steps and rows for each weight.
    pub(super) fn weight_gradients(
        &self,
        level: Level,
        inputs: &Inputs<'_>,
        written: &Written<'_>,
        d: &Steps,
        to: &mut InputFeedingFields<&mut [f32]>,
    ) {
        let Sizes {
            steps,
            batch,
            hidden: n,
            layers,
            upper,
            value,
            query,
            ..
        } = self.sizes();
        let (cells, wide) = (steps * batch, 4 * n);
        let rows_of = |data, stride| Strided { data, stride };
        let states = |layer: usize| rows_of(&written.states[layer * cells * 2 * n..], 2 * n);
        let before = |initial, states| Previous {
            initial,
            states,
            width: n,
            steps,
            batch,
            reverse: false,
        };
        let whole = Place {
            step: 0,
            batch,
            first: 0,
            rows: batch,
        };
        for layer in 0..layers {
            let d_gates = match layer.checked_sub(1) {
                None => &*to.x_projection,
                Some(below) => &d.gates[below * cells * wide..][..cells * wide],
            };
            let d_gates = rows_of(d_gates, wide);
            let initial = whole.at(layer).rows_of(inputs.initial, 2 * n);
            let d_recurrent = &mut to.recurrent[layer * n * wide..][..n * wide];
            before(initial, states(layer)).product(level, d_gates, wide, d_recurrent, wide);
        }
        let feeds = before(rows_of(inputs.feed, n), rows_of(written.output, n));
        let d_first = rows_of(to.x_projection, wide);
        feeds.product(level, d_first, wide, to.feed_weight, wide);

        let mut up = vec![0.0; if upper > 0 { cells * n } else { 0 }];
        for below in 0..upper {
            up.fill(0.0);
            for (step, out) in up.chunks_exact_mut(batch * n).enumerate() {
                let x = states(below).from(step * batch * 2 * n);
                let mask = self.mask(whole.at(step), below);
                run(level, AddRows { n, x, mask, out });
            }
            let d_gates = &d.gates[below * cells * wide..][..cells * wide];
            let (up, d_all) = (
                Matrix::new(&up, n, cells, n),
                Matrix::new(d_gates, wide, cells, wide),
            );
            let d_weight = &mut to.layer_weight[below * n * wide..][..n * wide];
            transposed_product(level, up, d_all, d_weight, wide, Write::Replace);
            column_sums(d_gates, &mut to.layer_bias[below * wide..][..wide]);
        }

        let top = Matrix::new(states(layers - 1).data, 2 * n, cells, n);
        let d_combined = Matrix::new(&d.combined, n, cells, n);
        let contexts = Matrix::new(written.contexts, value, cells, value);
        let (of_context, of_state) = to.combine_weight.split_at_mut(value * n);
        transposed_product(level, contexts, d_combined, of_context, n, Write::Replace);
        transposed_product(level, top, d_combined, of_state, n, Write::Replace);
        column_sums(&d.combined, to.combine_bias);
        let d_queries = Matrix::new(&d.queries, query, cells, query);
        transposed_product(
            level,
            top,
            d_queries,
            to.query_weight,
            query,
            Write::Replace,
        );
        column_sums(&d.score, to.score);
    }
}
