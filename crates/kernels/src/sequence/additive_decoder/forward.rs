//! The forward pass.

use super::{AdditiveDecoder, Cell, Weights};
use crate::error::{KernelError, check_length};
use crate::matmul::Write;
use crate::sequence::attend::{Attend, Kept};
use crate::sequence::rows::{Place, block_rows, by_rows, by_rows_optional, for_each_block};
use crate::simd::{Level, run};

/// What the forward pass keeps for the way back.
pub(in crate::sequence) struct Saved<'a> {
    /// Activated gates, `[T, B, GATES n]`
    pub(in crate::sequence) gates: &'a mut [f32],
    /// `[T, B, SAVED n]`
    pub(in crate::sequence) states: &'a mut [f32],
    /// `h_{t-1} W_a`, `[T, B, a]`
    pub(in crate::sequence) queries: &'a mut [f32],
}

impl<C: Cell> AdditiveDecoder<'_, C> {
    /// Writes `h_t | a_t` to `output [T, B, n + d]` and the attention to `weights [T, B, S]`.
    pub(in crate::sequence) fn forward(
        &self,
        level: Level,
        output: &mut [f32],
        weights: &mut [f32],
        saved: Option<Saved<'_>>,
    ) -> Result<(), KernelError> {
        self.check()?;
        self.check_forward(output, weights, saved.as_ref())?;
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
            weights.fill(0.0);
            output.fill(0.0);
            return Ok(());
        }
        let packed = self.pack(level, false);
        let rows = block_rows(batch, self.products());
        let (gates, states, queries) = match saved {
            Some(saved) => (Some(saved.gates), Some(saved.states), Some(saved.queries)),
            None => (None, None, None),
        };
        let tasks = by_rows(output, steps, batch, n + value, rows)
            .into_iter()
            .zip(by_rows(weights, steps, batch, sources, rows))
            .zip(by_rows_optional(gates, steps, batch, C::GATES * n, rows))
            .zip(by_rows_optional(states, steps, batch, C::SAVED * n, rows))
            .zip(by_rows_optional(queries, steps, batch, attention, rows))
            .map(|((((output, weights), gates), states), queries)| Block {
                output,
                weights,
                gates,
                states,
                queries,
            })
            .collect();
        for_each_block(tasks, |index, block| {
            self.forward_block(level, &packed, index * rows, block);
        });
        Ok(())
    }

    fn check_forward(
        &self,
        output: &[f32],
        weights: &[f32],
        saved: Option<&Saved<'_>>,
    ) -> Result<(), KernelError> {
        let (steps, batch, n) = (self.steps, self.batch, self.hidden);
        let check = check_length;
        let (shape, wide) = ("[steps, batch, hidden + value]", n + self.value);
        check("output", shape, &[steps, batch, wide], output.len())?;
        let shape = "[steps, batch, sources]";
        check(
            "weights",
            shape,
            &[steps, batch, self.sources],
            weights.len(),
        )?;
        let Some(saved) = saved else {
            return Ok(());
        };
        let (shape, sizes) = (C::SHAPES.of_steps, [steps, batch, C::GATES, n]);
        check("saved.gates", shape, &sizes, saved.gates.len())?;
        let (shape, sizes) = ("[steps, batch, 2 hidden]", [steps, batch, C::SAVED, n]);
        check("saved.states", shape, &sizes, saved.states.len())?;
        let (shape, sizes) = ("[steps, batch, attention]", [steps, batch, self.attention]);
        check("saved.queries", shape, &sizes, saved.queries.len())
    }

    /// All steps of the rows from `first` on.
    fn forward_block(&self, level: Level, packed: &Weights<C>, first: usize, mut block: Block<'_>) {
        let Self {
            batch,
            sources,
            hidden: n,
            attention,
            value,
            ..
        } = *self;
        let wide = C::GATES * n;
        let rows = block
            .output
            .first()
            .map_or(0, |step| step.len() / (n + value));
        let kept = Kept::new(self.keep_source, first, rows, sources);
        let mut state = self.cell.start(n, first, rows);
        let mut context = vec![0.0; rows * value];
        let room = |needed: bool, numbers: usize| vec![0.0; if needed { numbers } else { 0 }];
        let mut gates_room = room(block.gates.is_none(), rows * wide);
        let mut queries_room = room(block.queries.is_none(), rows * attention);
        let mut scores = vec![0.0; sources];
        let read = self.read_keys(level, first, &kept);
        for step in 0..self.steps {
            let place = Place {
                step,
                batch,
                first,
                rows,
            };
            let gates = block
                .gates
                .as_mut()
                .map_or(&mut gates_room[..], |gates| &mut *gates[step]);
            let queries = block
                .queries
                .as_mut()
                .map_or(&mut queries_room[..], |queries| &mut *queries[step]);

            let hidden = C::hidden(&state);
            packed
                .query
                .product(hidden, n, queries, attention, rows, Write::Replace);
            let attend = Attend {
                from: self.sources_of(first, &kept, &read),
                queries,
                scores: &mut scores,
                weights: block.weights[step],
                context: &mut context,
            };
            run(level, attend);

            gates.copy_from_slice(place.of(self.x_projection, wide));
            packed
                .context
                .product(&context, value, gates, wide, rows, Write::Add);
            self.cell
                .forward(level, &packed.cell, place, gates, &mut state);

            let hidden = C::hidden(&state);
            for (row, to) in block.output[step].chunks_exact_mut(n + value).enumerate() {
                to[..n].copy_from_slice(&hidden[row * n..][..n]);
                to[n..].copy_from_slice(&context[row * value..][..value]);
            }
            if let Some(states) = &mut block.states {
                C::save(&state, states[step]);
            }
        }
    }
}

/// What one task writes.
struct Block<'a> {
    output: Vec<&'a mut [f32]>,
    weights: Vec<&'a mut [f32]>,
    gates: Option<Vec<&'a mut [f32]>>,
    states: Option<Vec<&'a mut [f32]>>,
    queries: Option<Vec<&'a mut [f32]>>,
}
