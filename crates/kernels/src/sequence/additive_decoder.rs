//! A decoder layer with additive attention over a source, over a whole target sequence, teacher forced; the query is the
//! previous state: Bahdanau's (Bahdanau et al. 2014, App. A) around Cho's GRU, GNMT's bottom layer (Wu et al. 2016, sections 3
//! and 3.2) around an LSTM.
//!
//! With the input part `x_t` projected (`E y_{t-1} W + b`), keys `U_a h_j` projected, and `h_{t-1}` the previous (hidden)
//! state, one step is
//!
//! ```text
//! e_j  = vᵀ tanh(h_{t-1} W_a + key_j)      α = softmax of e over the kept sources
//! a_t  = Σ_j α_j value_j
//! h_t  = unit(x_t + a_t C, h_{t-1})        the table of Unit; a_t C is added to the columns of all gates
//! ```
//!
//! The output row is the state, then `a_t`: `s_t | a_t` of a GRU, `h_t | c_t | a_t` of an LSTM. A source sentence with nothing kept
//! has `α = 0`, `a = 0` and gradient 0; the contents of `keys` and `values` at a source that is not kept have no influence.
//!
//! ```text
//!              rows ->                     a task: a block of rows, all steps
//!  step 1   |======|======|===|            in the task's own memory: the state, a, the exponentials of its rows' keys
//!  step 2   |======|======|===|            of every step, in the caller's: output, α; for backward gates, queries
//!   ...       task   task  task
//!  step T   |======|======|===|
//! ```
//! The backward pass goes through a block's steps from the last to the first and writes the gradients of all pre-activations,
//! queries and contexts. The gradients that are sums over steps follow in one product each: those of the weights and, for each
//! row, of the values (`Σ_t α_t ⊗ da_t`).
//!
//! ```
//! use regard_kernels::{Operation, Unit, sequence::{AdditiveDecoder, AdditiveFields, AdditiveWritten, Layer}};
//!
//! // Equal keys: the attention is uniform and the context is the mean of the values.
//! let layer = Layer { steps: 1, batch: 1, hidden: 1, ..Layer::new(Unit::ChoGru) };
//! let decoder = AdditiveDecoder { layer, sources: 2, attention: 1, value: 1, keep_source: None };
//! let inputs = AdditiveFields {
//!     x_projection: &[0.0; 3][..],
//!     initial: &[1.0],
//!     keys: &[0.3, 0.3],
//!     values: &[1.0, 3.0],
//!     query_weight: &[1.0],
//!     score: &[1.0],
//!     recurrent: &[0.0; 3],
//!     context_weight: &[0.0; 3],
//! };
//! let (mut output, mut weights) = ([0.0; 2], [0.0; 2]);
//! let written = AdditiveWritten { output: &mut output[..], weights: &mut weights, ..Default::default() };
//! decoder.forward(inputs, written)?;
//! assert_eq!(weights, [0.5, 0.5]);
//! assert_eq!(output, [0.5, 2.0]);
//! # Ok::<(), regard_kernels::KernelError>(())
//! ```

use super::attend::{Attend, AttendBack, OuterSums, Sources, WriteKeyGradient};
use super::layer::{Layer, Sizes};
use super::rows::{Previous, before, column_sums, order, pack};
use super::unit::{State, UnitBack, UnitWeights};
use crate::cell::AddRows;
use crate::error::{KernelError, check_length};
use crate::matmul::{Matrix, Packed, Write, transposed_product};
use crate::operation::{Checked, Fields, Operation, Shape, fields};
use crate::rows::{Blocks, Cut, Place, Strided, join};
use crate::simd::{Buffer, Level, run};

/// A layer with additive attention over a source, by its sizes and masks.
#[derive(Debug, Clone)]
pub struct AdditiveDecoder {
    /// The recurrent layer, whose previous state is the query.
    pub layer: Layer,
    /// Source positions `S`.
    pub sources: usize,
    /// Units of the alignment model, `a`.
    pub attention: usize,
    /// Width of a value, `d`.
    pub value: usize,
    /// `[B, S]`, `true` where a source position may be attended to.
    pub keep_source: Option<Vec<bool>>,
}

fields! {
    /// What an [`AdditiveDecoder`] reads. `gates` and `states` are as in [`LayerFields`](super::LayerFields).
    AdditiveFields in Sizes {
        /// Input part of the pre-activations.
        x_projection: [steps, batch, gates],
        /// State before the first step.
        initial: [batch, states],
        /// Projected keys; their gradient is zero at sources that are not kept.
        keys: [batch, sources, attention],
        /// Values; their gradient is zero at sources that are not kept.
        values: [batch, sources, value],
        /// Weights of the query, `W_a`.
        query_weight: [hidden, attention],
        /// Score vector `v`.
        score: [attention],
        /// Recurrent weights `U`.
        recurrent: [hidden, gates],
        /// Context weights `C`.
        context_weight: [value, gates],
    }
}

fields! {
    /// What an [`AdditiveDecoder`] writes.
    AdditiveWritten in Sizes {
        /// The state after every step, and the context it was made with.
        output: [steps, batch, states + value],
        /// Attention.
        weights: [steps, batch, sources],
        /// Activated gates, for the backward pass, as in [`LayerWritten`](super::LayerWritten).
        gates: [steps, batch, saved],
        /// Queries `h_{t-1} W_a`, for the backward pass.
        queries: [steps, batch, attention],
    }
}

/// The packed weights of one direction.
struct Weights {
    query: Packed,
    context: Packed,
    unit: UnitWeights,
}

impl AdditiveDecoder {
    pub(super) fn sizes(&self) -> Sizes {
        let Layer {
            unit,
            steps,
            batch,
            hidden,
            ..
        } = self.layer;
        Sizes {
            steps,
            batch,
            hidden,
            gates: unit.gates().saturating_mul(hidden),
            states: unit.states().saturating_mul(hidden),
            saved: unit.saved().saturating_mul(hidden),
            sources: self.sources,
            attention: self.attention,
            value: self.value,
        }
    }

    /// Whether there is attention at all, or a layer alone.
    fn attends(&self) -> bool {
        [self.sources, self.attention, self.value] != [0; 3]
    }

    /// The weights as they are, or their transposes for the backward pass.
    fn pack(&self, level: Level, inputs: &AdditiveFields<&[f32]>, transposed: bool) -> Weights {
        let (unit, n) = (self.layer.unit, self.layer.hidden);
        let pack =
            |matrix, inner, columns| pack(level, matrix, columns, inner, columns, transposed);
        Weights {
            query: pack(inputs.query_weight, n, self.attention),
            context: pack(inputs.context_weight, self.value, unit.gates() * n),
            unit: UnitWeights::pack(level, unit, inputs.recurrent, n, transposed),
        }
    }

    fn source<'a>(&'a self, inputs: &AdditiveFields<&'a [f32]>) -> Sources<'a> {
        Sources {
            score: Some(inputs.score),
            keys: inputs.keys,
            values: inputs.values,
            keep: self.keep_source.as_deref(),
            windows: None,
            sources: self.sources,
            attention: self.attention,
            value: self.value,
        }
    }

    fn blocks(&self) -> Blocks {
        let (n, gates) = (self.layer.hidden, self.layer.unit.gates());
        let of_row = n * self.attention + (n + self.value) * gates * n;
        let attended = self.sources * (self.attention + self.value);
        let rows = self.layer.steps * self.layer.batch;
        Blocks::new(self.layer.batch, rows * (of_row + attended))
    }

    fn keep_of(&self, place: Place) -> Option<&[bool]> {
        self.layer.keep.as_deref().map(|keep| place.of(keep, 1))
    }

    /// All steps of a block of rows.
    fn forward_block(
        &self,
        level: Level,
        packed: &Weights,
        inputs: &AdditiveFields<&[f32]>,
        place: Place,
        [mut output, mut weights, mut gates, mut queries]: [Vec<&mut [f32]>; 4],
    ) {
        let Layer {
            unit,
            steps,
            hidden: n,
            reverse,
            ..
        } = self.layer;
        let Sizes {
            gates: wide,
            states,
            saved,
            attention,
            value,
            ..
        } = self.sizes();
        let rows = place.rows;
        let mut state = State::new(unit, rows, place.rows_of(inputs.initial, states), n);
        let mut context = vec![0.0; rows * value];
        let mut gates_room = vec![0.0; rows * saved];
        let mut queries_room = vec![0.0; rows * attention];
        let source = self.attends().then(|| self.source(inputs).of(level, place));
        for step in order(steps, reverse) {
            let place = place.at(step);
            let gates = kept_or(gates[step], &mut gates_room);
            join(rows, &[place.of(inputs.x_projection, wide)], gates);
            if let Some(from) = &source {
                let queries = kept_or(queries[step], &mut queries_room);
                let (query, write) = (&packed.query, Write::Replace);
                query.product(&state.hidden, n, queries, attention, rows, write);
                let attend = Attend {
                    from,
                    place,
                    queries: Strided {
                        data: queries,
                        stride: attention,
                    },
                    weights: weights[step],
                    context: &mut context,
                };
                run(level, attend);
                let to_gates = &packed.context;
                to_gates.product(&context, value, gates, saved, rows, Write::Add);
            }
            packed.unit.forward(gates, &mut state, self.keep_of(place));
            let parts = [&state.hidden[..], &state.cell, &context];
            join(rows, &parts, output[step]);
        }
    }

    /// All steps of a block of rows, the last one first.
    #[allow(clippy::too_many_arguments)]
    fn backward_block(
        &self,
        level: Level,
        packed: &Weights,
        inputs: &AdditiveFields<&[f32]>,
        written: &AdditiveWritten<&[f32]>,
        d_output: &[f32],
        place: Place,
        parts: [Vec<&mut [f32]>; 8],
    ) {
        let [
            mut d_gates,
            mut traces,
            mut d_queries,
            mut d_contexts,
            mut d_initial,
            mut d_keys,
            mut d_values,
            mut d_score,
        ] = parts;
        let Layer {
            steps,
            hidden: n,
            reverse,
            ..
        } = self.layer;
        let Sizes {
            gates: wide,
            states,
            saved,
            sources,
            attention,
            value,
            ..
        } = self.sizes();
        let (rows, stride) = (place.rows, states + value);
        let mut d_hidden = vec![0.0; rows * n];
        let mut d_cell = vec![0.0; rows * (states - n)];
        let source = self.attends().then(|| self.source(inputs).of(level, place));
        let mut sums = Buffer::new(source.as_ref().map_or(0, |source| source.sums()));
        for step in order(steps, reverse).rev() {
            let place = place.at(step);
            let d_out = place.rows_of(d_output, stride);
            for (x, out) in [(d_out, &mut d_hidden), (d_out.from(n), &mut d_cell)] {
                let mask = None;
                run(level, AddRows { n, x, mask, out });
            }
            let d_gates = &mut *d_gates[step];
            let back = UnitBack {
                gates: place.of(written.gates, saved),
                before: match before(step, steps, reverse) {
                    Some(step) => place.at(step).rows_of(written.output, stride),
                    None => place.at(0).rows_of(inputs.initial, states),
                },
                after: place.rows_of(written.output, stride),
                d_gates,
                d_hidden: &mut d_hidden,
                d_cell: &mut d_cell,
                trace: traces[step],
                keep: self.keep_of(place),
            };
            packed.unit.backward(back);
            let Some(from) = &source else {
                continue;
            };
            let d_context = &mut *d_contexts[step];
            for (row, to) in d_context.chunks_exact_mut(value.max(1)).enumerate() {
                to.copy_from_slice(d_out.from(states).row(row, value));
            }
            let of_context = &packed.context;
            of_context.product(d_gates, wide, d_context, value, rows, Write::Add);
            let attend = AttendBack {
                from,
                place,
                queries: place.rows_of(written.queries, attention),
                weights: place.of(written.weights, sources),
                d_context,
                d_queries: d_queries[step],
                d_scores: &mut [],
                sums: &mut sums,
                d_score: d_score[0],
            };
            run(level, attend);
            let (query, d_query) = (&packed.query, &d_queries[step]);
            query.product(d_query, attention, &mut d_hidden, n, rows, Write::Add);
        }
        join(rows, &[&d_hidden, &d_cell], d_initial[0]);
        let Some(from) = &source else {
            return;
        };
        let d_keys = WriteKeyGradient {
            from,
            sums: &sums,
            d_keys: d_keys[0],
        };
        run(level, d_keys);
        let d_values = OuterSums {
            from,
            steps,
            left: |step| place.at(step).of(written.weights, sources),
            right: |step: usize| Strided {
                data: d_contexts[step],
                stride: value,
            },
            width: value,
            out: d_values[0],
        };
        run(level, d_values);
    }
}

/// The memory that the caller gave for the backward pass, or `room` if it gave none.
fn kept_or<'a>(kept: &'a mut [f32], room: &'a mut [f32]) -> &'a mut [f32] {
    if kept.is_empty() { room } else { kept }
}

impl Operation for AdditiveDecoder {
    type Inputs<T> = AdditiveFields<T>;
    type Written<T> = AdditiveWritten<T>;
    const RESULTS: usize = 2;

    fn shapes(&self) -> Result<(AdditiveFields<Shape>, AdditiveWritten<Shape>), KernelError> {
        self.layer.check()?;
        if let Some(keep) = &self.keep_source {
            let sizes = [self.layer.batch, self.sources];
            check_length("keep_source", "[batch, sources]", &sizes, keep.len())?;
        }
        let sizes = self.sizes();
        Ok((AdditiveFields::of(&sizes), AdditiveWritten::of(&sizes)))
    }

    fn forward_checked(
        &self,
        checked: Checked,
        inputs: AdditiveFields<&[f32]>,
        written: AdditiveWritten<&mut [f32]>,
    ) {
        let Sizes {
            steps,
            batch,
            hidden,
            states,
            saved,
            sources,
            attention,
            value,
            ..
        } = self.sizes();
        // Without steps nothing is written, and sizes that no operand has may be more than could be allocated.
        if steps == 0 || batch == 0 || hidden == 0 {
            written.weights.fill(0.0);
            written.output.fill(0.0);
            return;
        }
        let level = checked.level();
        let packed = self.pack(level, &inputs, false);
        let outputs = [
            (written.output, states + value),
            (written.weights, sources),
            (written.gates, saved),
            (written.queries, attention),
        ];
        let outputs = outputs.map(|(data, width)| Cut {
            data,
            outer: steps,
            width,
        });
        self.blocks().run(outputs, |place, parts| {
            self.forward_block(level, &packed, &inputs, place, parts);
        });
    }

    fn backward_checked(
        &self,
        checked: Checked,
        inputs: AdditiveFields<&[f32]>,
        written: AdditiveWritten<&[f32]>,
        d_output: &[f32],
        to: AdditiveFields<&mut [f32]>,
    ) {
        let Sizes {
            steps,
            batch,
            hidden: n,
            gates: wide,
            states,
            sources,
            attention,
            value,
            ..
        } = self.sizes();
        if steps == 0 || batch == 0 || n == 0 {
            to.into_vec()
                .into_iter()
                .for_each(|gradient| gradient.fill(0.0));
            return;
        }
        let (unit, level) = (self.layer.unit, checked.level());
        let packed = self.pack(level, &inputs, true);
        let cells = steps * batch;
        let mut traces = vec![0.0; cells * unit.traces() * n];
        let mut d_queries = vec![0.0; cells * attention];
        let mut d_contexts = vec![0.0; cells * value];
        let mut d_score = vec![0.0; batch * attention];
        let outputs = [
            (&mut *to.x_projection, steps, wide),
            (&mut traces, steps, unit.traces() * n),
            (&mut d_queries, steps, attention),
            (&mut d_contexts, steps, value),
            (to.initial, 1, states),
            (to.keys, 1, sources * attention),
            (to.values, 1, sources * value),
            (&mut d_score, 1, attention),
        ];
        let outputs = outputs.map(|(data, outer, width)| Cut { data, outer, width });
        self.blocks().run(outputs, |place, parts| {
            self.backward_block(level, &packed, &inputs, &written, d_output, place, parts);
        });

        let stride = states + value;
        let rows_of = |data, stride| Strided { data, stride };
        let previous = Previous {
            initial: rows_of(inputs.initial, states),
            states: rows_of(written.output, stride),
            width: n,
            steps,
            batch,
            reverse: self.layer.reverse,
        };
        unit.weight_gradient(level, previous, to.x_projection, &traces, to.recurrent);
        if !self.attends() {
            return;
        }
        let a = attention;
        previous.product(level, rows_of(&d_queries, a), a, to.query_weight, a);
        let contexts = rows_of(written.output, stride).from(states).data;
        let contexts = Matrix::new(contexts, stride, cells, value);
        let d_gates = Matrix::new(to.x_projection, wide, cells, wide);
        let write = Write::Replace;
        transposed_product(level, contexts, d_gates, to.context_weight, wide, write);
        column_sums(&d_score, to.score);
    }
}
