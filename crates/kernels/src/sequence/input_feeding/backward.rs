//! The backward pass: for every block from the last step to the first and from the top layer to the bottom, then the sums
//! over all steps ([`super::weight_gradients`]).

use super::step::CombineBack;
use super::{InputFeedingDecoder, InputFeedingFields, Inputs, Sizes, Weights, Written};
use crate::cell::AddRows;
use crate::matmul::Write;
use crate::rows::{Cut, Place, Strided, join};
use crate::sequence::attend::{AttendBack, OuterSums, WriteKeyGradient};
use crate::sequence::unit::UnitBack;
use crate::simd::{Buffer, Level, run};

/// Gradients of every step, from which the weight gradients are computed.
pub(super) struct Steps {
    /// Of the gates of the layers above the first, `[L - 1, T, B, 4n]`
    pub(super) gates: Vec<f32>,
    /// Of the argument of `h̃`'s tanh, `[T, B, n]`
    pub(super) combined: Vec<f32>,
    /// Of the queries, `[T, B, a]`; empty for dot.
    pub(super) queries: Vec<f32>,
    /// Of the score vector, by row, `[B, a]`; empty for dot.
    pub(super) score: Vec<f32>,
}

impl InputFeedingDecoder {
    /// All gradients. The batch has rows, and the layers have units.
    pub(super) fn backward_all(
        &self,
        level: Level,
        inputs: &Inputs<'_>,
        written: &Written<'_>,
        d_output: &[f32],
        mut to: InputFeedingFields<&mut [f32]>,
    ) {
        let Sizes {
            steps,
            batch,
            sources,
            hidden: n,
            layers,
            upper,
            value,
            key,
            query,
        } = self.sizes();
        let cells = steps * batch;
        let mut d = Steps {
            gates: vec![0.0; upper * cells * 4 * n],
            combined: vec![0.0; cells * n],
            queries: vec![0.0; cells * query],
            score: vec![0.0; batch * query],
        };
        let packed = self.pack(level, inputs, true);
        let outputs = [
            (&mut *to.x_projection, steps, 4 * n),
            (&mut d.gates, upper * steps, 4 * n),
            (&mut d.combined, steps, n),
            (&mut d.queries, steps, query),
            (&mut *to.initial, layers, 2 * n),
            (&mut *to.feed, 1, n),
            (&mut *to.keys, 1, sources * key),
            (&mut *to.values, 1, sources * value),
            (&mut d.score, 1, query),
        ];
        let outputs = outputs.map(|(data, outer, width)| Cut { data, outer, width });
        self.blocks().run(outputs, |place, parts| {
            self.backward_block(level, &packed, inputs, written, d_output, place, parts);
        });
        self.weight_gradients(level, inputs, written, &d, &mut to);
    }

    /// All steps of a block of rows, the last one first.
    #[allow(clippy::too_many_arguments)]
    fn backward_block(
        &self,
        level: Level,
        packed: &Weights,
        inputs: &Inputs<'_>,
        written: &Written<'_>,
        d_output: &[f32],
        place: Place,
        parts: [Vec<&mut [f32]>; 9],
    ) {
        let [
            mut d_first,
            mut d_upper,
            mut d_combined,
            mut d_queries,
            mut d_initial,
            mut d_feed,
            mut d_keys,
            mut d_values,
            mut d_score,
        ] = parts;
        let Sizes {
            steps,
            sources,
            hidden: n,
            layers,
            value,
            key,
            query,
            ..
        } = self.sizes();
        let (rows, top) = (place.rows, layers - 1);
        let mut d_contexts = vec![0.0; steps * rows * value];
        // Under a dot product the queries are states, and the gradients of all steps' scores are needed at the end.
        let dot = packed.query.is_none();
        let mut d_state_query = vec![0.0; if dot { rows * n } else { 0 }];
        let mut d_scores = vec![0.0; if dot { steps * rows * sources } else { 0 }];
        let mut d_up = vec![0.0; rows * n];
        let [mut d_hidden, mut d_cell] = [(); 2].map(|()| vec![vec![0.0; rows * n]; layers]);
        d_feed[0].fill(0.0);
        let source = self.source(inputs).of(level, place);
        let mut sums = Buffer::new(source.sums());
        let states_of = |place: Place, layer: usize| {
            let place = place.at(layer * steps + place.step);
            place.rows_of(written.states, 2 * n)
        };
        for step in (0..steps).rev() {
            let place = place.at(step);
            let d_combined = &mut *d_combined[step];
            let combine = CombineBack {
                combined: place.of(written.combined, n),
                mask: self.mask(place, top),
                d_out: place.of(d_output, n),
                d_feed: d_feed[0],
                d_combined,
            };
            run(level, combine);
            let d_context = &mut d_contexts[step * rows * value..][..rows * value];
            let (of_context, of_state) = (&packed.combine_context, &packed.combine_state);
            of_context.product(d_combined, n, d_context, value, rows, Write::Replace);
            of_state.product(d_combined, n, &mut d_hidden[top], n, rows, Write::Add);

            let (queries, d_query) = match dot {
                true => (states_of(place, top), &mut d_state_query[..]),
                false => (place.rows_of(written.queries, query), &mut *d_queries[step]),
            };
            let of_step = if dot { rows * sources } else { 0 };
            let attend = AttendBack {
                from: &source,
                place,
                queries,
                weights: place.of(written.weights, sources),
                d_context,
                d_queries: d_query,
                d_scores: &mut d_scores[step * of_step..][..of_step],
                sums: &mut sums,
                d_score: d_score[0],
            };
            run(level, attend);
            match &packed.query {
                Some(weights) => {
                    let to = &mut d_hidden[top];
                    weights.product(d_queries[step], query, to, n, rows, Write::Add);
                }
                None => add(level, n, &d_state_query, None, &mut d_hidden[top]),
            }

            for layer in (0..layers).rev() {
                let below = layer.checked_sub(1);
                let d_gates = match below {
                    None => &mut *d_first[step],
                    Some(below) => &mut *d_upper[below * steps + step],
                };
                let of_layer = place.at(layer * steps + step);
                let before = step.checked_sub(1).map(|step| place.at(step));
                let back = UnitBack {
                    gates: of_layer.of(written.gates, 4 * n),
                    before: match before {
                        Some(place) => states_of(place, layer),
                        None => place.at(layer).rows_of(inputs.initial, 2 * n),
                    },
                    after: states_of(place, layer),
                    d_gates,
                    d_hidden: &mut d_hidden[layer],
                    d_cell: &mut d_cell[layer],
                    trace: &mut [],
                    keep: None,
                };
                packed.recurrent[layer].backward(back);
                match below {
                    None => {
                        let to = &mut *d_feed[0];
                        packed
                            .feed
                            .product(d_gates, 4 * n, to, n, rows, Write::Replace);
                    }
                    Some(below) => {
                        let weights = &packed.layers[below];
                        weights.product(d_gates, 4 * n, &mut d_up, n, rows, Write::Replace);
                        let mask = self.mask(place, below);
                        add(level, n, &d_up, mask, &mut d_hidden[below]);
                    }
                }
            }
        }
        for (layer, to) in d_initial.iter_mut().enumerate() {
            join(rows, &[&d_hidden[layer], &d_cell[layer]], to);
        }
        let d_values = OuterSums {
            from: &source,
            steps,
            left: |step| place.at(step).of(written.weights, sources),
            right: |step| Strided {
                data: &d_contexts[step * rows * value..][..rows * value],
                stride: value,
            },
            width: value,
            out: d_values[0],
        };
        run(level, d_values);
        if dot {
            let d_keys = OuterSums {
                from: &source,
                steps,
                left: |step| &d_scores[step * rows * sources..][..rows * sources],
                right: |step| states_of(place.at(step), top),
                width: key,
                out: d_keys[0],
            };
            run(level, d_keys);
        } else {
            let d_keys = WriteKeyGradient {
                from: &source,
                sums: &sums,
                d_keys: d_keys[0],
            };
            run(level, d_keys);
        }
    }
}

/// Adds `x ∘ mask`, or `x` without a mask, to `out`.
fn add(level: Level, n: usize, x: &[f32], mask: Option<&[f32]>, out: &mut [f32]) {
    let x = Strided { data: x, stride: n };
    run(level, AddRows { n, x, mask, out });
}
