//! The forward pass.

use super::step::{Combine, Masked};
use super::{InputFeedingDecoder, Inputs, Sizes, Weights};
use crate::matmul::Write;
use crate::rows::{Place, Strided};
use crate::sequence::attend::Attend;
use crate::sequence::unit::{State, Unit};
use crate::simd::{Level, run};

impl InputFeedingDecoder {
    /// All steps of a block of rows. The outputs for the backward pass are empty if nothing is
    /// saved.
    pub(super) fn forward_block(
        &self,
        level: Level,
        packed: &Weights,
        inputs: &Inputs<'_>,
        place: Place,
        parts: [Vec<&mut [f32]>; 7],
    ) {
        let [
            mut output,
            mut weights,
            mut all_gates,
            mut all_states,
            mut contexts,
            mut all_combined,
            mut all_queries,
        ] = parts;
        let Sizes {
            steps,
            hidden: n,
            layers,
            value,
            query,
            ..
        } = self.sizes();
        let rows = place.rows;
        let initial = |layer: usize| {
            let states = place.at(layer).rows_of(inputs.initial, 2 * n);
            State::new(Unit::Lstm, rows, states, n)
        };
        let mut states: Vec<State> = (0..layers).map(initial).collect();
        let mut feed = place.of(inputs.feed, n).to_vec();
        let mut gates = vec![0.0; rows * 4 * n];
        let mut up = vec![0.0; rows * n];
        let mut queries = vec![0.0; rows * query];
        let mut context = vec![0.0; rows * value];
        let mut combined = vec![0.0; rows * n];
        let source = self.source(inputs).of(level, place);
        for step in 0..steps {
            let place = place.at(step);
            for layer in 0..layers {
                let (weight, input) = match layer.checked_sub(1) {
                    None => {
                        gates.copy_from_slice(place.of(inputs.x_projection, 4 * n));
                        (&packed.feed, &feed)
                    }
                    Some(below) => {
                        let masked = Masked {
                            values: &states[below].hidden,
                            mask: self.mask(place, below),
                            out: &mut up,
                        };
                        run(level, masked);
                        repeat(&inputs.layer_bias[below * 4 * n..][..4 * n], &mut gates);
                        (&packed.layers[below], &up)
                    }
                };
                weight.product(input, n, &mut gates, 4 * n, rows, Write::Add);
                packed.recurrent[layer].forward(&mut gates, &mut states[layer], None);
                let at = layer * steps + step;
                save(all_gates[at], &gates);
                if !all_states[at].is_empty() {
                    states[layer].write(rows, all_states[at]);
                }
            }

            let top = &states[layers - 1].hidden;
            if let Some(weights) = &packed.query {
                weights.product(top, n, &mut queries, query, rows, Write::Replace);
            }
            let (asked, stride) = match packed.query {
                Some(_) => (&queries, query),
                None => (top, n),
            };
            let attend = Attend {
                from: &source,
                place,
                queries: Strided {
                    data: asked,
                    stride,
                },
                weights: weights[step],
                context: &mut context,
            };
            run(level, attend);

            repeat(inputs.combine_bias, &mut combined);
            let (of_context, of_state) = (&packed.combine_context, &packed.combine_state);
            of_context.product(&context, value, &mut combined, n, rows, Write::Add);
            of_state.product(top, n, &mut combined, n, rows, Write::Add);
            let combine = Combine {
                combined: &mut combined,
                mask: self.mask(place, layers - 1),
                out: &mut feed,
            };
            run(level, combine);
            output[step].copy_from_slice(&feed);
            save(contexts[step], &context);
            save(all_combined[step], &combined);
            save(all_queries[step], &queries);
        }
    }
}

/// Copies `row` to every row of `to`.
fn repeat(row: &[f32], to: &mut [f32]) {
    to.chunks_exact_mut(row.len())
        .for_each(|to| to.copy_from_slice(row));
}

/// Copies what is saved for the backward pass, if anything is.
fn save(to: &mut [f32], from: &[f32]) {
    if !to.is_empty() {
        to.copy_from_slice(from);
    }
}
