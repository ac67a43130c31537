//! A worker of the backward pass: takes tasks and computes the panels of their key heads.
//!
//! The parent module has the formulas and the picture of the tiles.

use crate::{
    element::{Element, Kind},
    mask::{TILE_KEYS, Visible},
    prefetch::Prefetch,
    simd::{Kernel, Simd},
    threads::Tasks,
    view::SharedRows,
};

use super::{
    super::{
        Job,
        context::{Context, Totals, add_context, careful_context, run_of},
        panel::{unpack, width},
        plan::{Plan, Segment, Task},
        stored::Rows,
    },
    Inputs,
    blocks::{GradientBlock, GradientKernel, Spread, SpreadKernel, WeightBlock, WeightKernel},
    fetch::is_finite,
    options,
    ordered::{Ordered, Turn},
    scratch::{Scratch, TILE},
    split::{self, Destination, Splits},
};

/// What the workers of one call share.
pub(super) struct Worker<'a, T, O> {
    pub(super) job: &'a Job<'a>,
    pub(super) plan: &'a Plan,
    pub(super) splits: &'a Splits,
    /// Empty unless keys are interleaved.
    pub(super) ordered: &'a Ordered,
    pub(super) inputs: &'a Inputs<'a, T, O>,
    pub(super) d_query: SharedRows<'a, f32>,
    pub(super) d_key: Destination<'a>,
    pub(super) d_value: Destination<'a>,
    pub(super) d_bias: Option<Destination<'a>>,
    /// `[batch, heads, parts, 1]`
    pub(super) sink_rows: SharedRows<'a, f64>,
    pub(super) tasks: &'a Tasks,
}

impl<T: Element, O: Element> Kernel for Worker<'_, T, O> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let mut scratch = Scratch::new::<S, T, O>(&self.job.attention, &self.job.sizes);
        // None is claimed early where tasks wait for others.
        let mut claims = self.tasks.claims(!self.splits.by_keys);
        while let Some(task) = claims.take() {
            let split = self.splits.split(task);
            let mut part = Part {
                index: split.part,
                turn: self
                    .splits
                    .by_keys
                    .then(|| self.ordered.of(task, split.part)),
            };
            let mut heads = split.heads().peekable();
            while let Some((index, key_head)) = heads.next() {
                let following = || match heads.peek() {
                    Some(&head) => Some((head, split.part)),
                    None => {
                        let next = self.splits.split(claims.after(task)?);
                        Some((next.heads().next()?, next.part))
                    }
                };
                self.key_head(s, &mut scratch, &mut part, index, key_head, following);
            }
        }
    }
}

impl<T: Element, O: Element> Worker<'_, T, O> {
    /// One part of the work for one key head of one sequence. `following` gives the sequence and key head that come next, and their part;
    /// it is asked when the last panel begins.
    #[inline(always)]
    fn key_head<S: Simd>(
        &self,
        s: S,
        scratch: &mut Scratch,
        part: &mut Part,
        index: usize,
        key_head: usize,
        mut following: impl FnMut() -> Option<((usize, usize), usize)>,
    ) {
        let (job, sizes) = (self.job, &self.job.sizes);
        let sequence = job.attention.sequence(sizes, index);
        scratch.finite_key.clear();
        let key = |j: usize| {
            self.inputs
                .key
                .row(sequence.batch, key_head, sequence.first_key + j)
        };
        let blocks = sequence.keys.div_ceil(TILE_KEYS);
        scratch.finite_key.resize(blocks, true);
        for keys in self.splits.keys(part.index, 0..sequence.keys) {
            for first in keys.clone().step_by(TILE_KEYS) {
                let end = keys.end.min(first + TILE_KEYS);
                scratch.finite_key[first / TILE_KEYS] = (first..end).all(|j| is_finite(s, key(j)));
            }
            if !self.splits.clears(part.index) {
                continue;
            }
            for (to, dim) in [(&self.d_key, sizes.dim), (&self.d_value, sizes.value_dim)] {
                let to = to.rows(part.index, sequence.batch, key_head, sequence.first_key);
                for j in keys.clone() {
                    // SAFETY: the gradients were checked; this part alone has the rows of these keys.
                    let row = unsafe { to.from(j).row(dim) };
                    for at in (0..dim).step_by(S::LANES) {
                        s.store_at(row, at, s.zero());
                    }
                }
            }
        }
        let group = sizes.heads / sizes.key_heads;
        let heads = key_head * group..(key_head + 1) * group;
        for head in heads.clone() {
            let mut sink = 0.0;
            let mut panels = self.panels(index, head, part.index).peekable();
            while let Some(task) = panels.next() {
                let next = match (panels.peek(), head + 1 < heads.end) {
                    (Some(&next), _) => Some((next, part.index)),
                    (None, true) => {
                        let next = self.panels(index, head + 1, part.index).next();
                        next.map(|next| (next, part.index))
                    }
                    (None, false) => following().and_then(|((index, key_head), part)| {
                        Some((self.panels(index, key_head * group, part).next()?, part))
                    }),
                };
                self.prefetch_next::<S>(&mut scratch.prefetch, &task, next);
                sink += self.panel(s, scratch, &task, key_head, part);
            }
            // SAFETY: the rows were made for the call; this task alone has this one.
            unsafe { self.sink_rows.row_mut(index, head, part.index)[0] = sink };
        }
    }

    /// The panels of a head that a part goes through.
    #[inline(always)]
    fn panels(&self, index: usize, head: usize, part: usize) -> impl Iterator<Item = Task> {
        let (attention, sizes) = (&self.job.attention, &self.job.sizes);
        let panels = (self.plan).panels_of(&attention.sequence(sizes, index), index, head);
        let (first, step) = self.splits.panels(part);
        let panels = panels.skip(first).step_by(step);
        panels.map(|panel| self.plan.task(attention, sizes, panel))
    }

    /// Plans prefetches of the rows of queries that this panel will write, and of what the next one, of some part, will read and write
    /// first.
    #[inline(always)]
    fn prefetch_next<S: Simd>(
        &self,
        prefetch: &mut Prefetch,
        task: &Task,
        next: Option<(Task, usize)>,
    ) {
        let (inputs, attention, sizes) = (self.inputs, &self.job.attention, &self.job.sizes);
        let (dim, value_dim) = (sizes.dim, sizes.value_dim);
        let key_head = |task: &Task| (task.index, task.head / (sizes.heads / sizes.key_heads));
        let position = |task: &Task| task.sequence.first_query + task.query;
        prefetch.clear();
        let (to, stride) = (self.d_query).start(task.sequence.batch, task.head, position(task));
        prefetch.add(to, task.queries, stride, dim, true);
        if let Some((next, part)) = next {
            let batch = next.sequence.batch;
            let keys = self.splits.keys(part, 0..next.sequence.keys).next();
            if let Some(keys) = keys.filter(|_| key_head(task) != key_head(&next)) {
                let ((_, head), count) = (key_head(&next), keys.len().min(TILE));
                let first = next.sequence.first_key + keys.start;
                let key = Rows::new(&inputs.key, batch, head, first);
                let value = Rows::new(&inputs.value, batch, head, first);
                prefetch.add(key.start, count, key.stride, dim, false);
                prefetch.add(value.start, count, value.stride, value_dim, false);
                for (to, dim) in [(&self.d_key, dim), (&self.d_value, value_dim)] {
                    let to = to.rows(part, batch, head, first);
                    prefetch.add(to.start, count, to.stride, dim, true);
                }
            }
            let query = Rows::new(&inputs.query, batch, next.head, position(&next));
            prefetch.add(query.start, next.queries, query.stride, dim, false);
            for rows in [&inputs.d_output, &inputs.output] {
                let rows = Rows::new(rows, batch, next.head, position(&next));
                prefetch.add(rows.start, next.queries, rows.stride, value_dim, false);
            }
        }
        let visible = Visible::new(attention, sizes, &task.sequence, task.index, task.head);
        let keys = visible.reach(task.query, task.queries).len() / self.splits.parts_of_keys();
        prefetch.spread(2 * keys / if S::LANES == 16 { 8 } else { 4 });
    }

    /// The gradients of one panel, as far as this part computes them. Returns this part of the sink's
    /// gradient.
    #[inline(always)]
    fn panel<S: Simd>(
        &self,
        s: S,
        scratch: &mut Scratch,
        task: &Task,
        key_head: usize,
        part: &mut Part,
    ) -> f64 {
        self.tasks.heed_stop();
        let (job, sizes, sequence) = (self.job, &self.job.sizes, &task.sequence);
        let visible = Visible::new(&job.attention, sizes, sequence, task.index, task.head);
        let range = visible.reach(task.query, task.queries);
        if let Some(turn) = &mut part.turn
            && !turn.writes()
            && self.splits.keys(part.index, range.clone()).next().is_none()
        {
            turn.wait();
            turn.next();
            return 0.0;
        }
        let sink = self.fetch(s, scratch, task);
        let heads = Heads {
            key: Rows::new(
                &self.inputs.key,
                sequence.batch,
                key_head,
                sequence.first_key,
            ),
            value: Rows::new(
                &self.inputs.value,
                sequence.batch,
                key_head,
                sequence.first_key,
            ),
            d_key: self
                .d_key
                .rows(part.index, sequence.batch, key_head, sequence.first_key),
            d_value: self
                .d_value
                .rows(part.index, sequence.batch, key_head, sequence.first_key),
            part: part.index,
        };
        let near_all = visible.near_all(task.query, task.queries);
        let mut is_first = true;
        for keys in self.splits.keys(part.index, range) {
            let mut key = keys.start / TILE_KEYS * TILE_KEYS;
            while key < keys.end {
                let (tile, lanes) = (&mut scratch.tile, S::LANES);
                tile.fill(&visible, task, lanes, &near_all, keys.end, &mut key);
                self.widen(s, scratch, &heads);
                for index in 0..scratch.tile.segments().len() {
                    let segment = scratch.tile.segments()[index];
                    if S::LANES == 16 {
                        self.score_gradients::<S, 8>(s, scratch, task, &segment, &heads);
                    } else {
                        self.score_gradients::<S, 4>(s, scratch, task, &segment, &heads);
                    }
                }
                self.products(s, scratch, task, &heads, is_first);
                is_first &= scratch.tile.segments().is_empty();
            }
        }
        let scale = s.splat(job.attention.scale(sizes.dim));
        for x in scratch.d_query.chunks_exact_mut(S::LANES) {
            let scaled = s.mul(s.load(x), scale);
            s.store(x, scaled);
        }
        let position = sequence.first_query + task.query;
        let (to, stride) = self.d_query.start(sequence.batch, task.head, position);
        let Some(turn) = &mut part.turn else {
            // SAFETY: the gradient was checked; this task alone has these rows.
            unsafe { unpack(s, &scratch.d_query, task.queries, sizes.dim, to, stride) };
            return sink;
        };
        if turn.writes() {
            // SAFETY: the gradient was checked; the other parts wait until these rows are done.
            unsafe { unpack(s, &scratch.d_query, task.queries, sizes.dim, to, stride) };
            turn.next();
            return sink;
        }
        let rows = &mut scratch.query_rows[..task.queries * sizes.dim];
        // SAFETY: the rows are as many as are written.
        unsafe {
            unpack(
                s,
                &scratch.d_query,
                task.queries,
                sizes.dim,
                rows.as_mut_ptr(),
                sizes.dim,
            )
        };
        turn.wait();
        for (i, row) in rows.chunks_exact(sizes.dim.max(1)).enumerate() {
            // SAFETY: the gradient was checked; the parts before are done with these rows, those after wait.
            let to =
                unsafe { std::slice::from_raw_parts_mut(to.wrapping_add(i * stride), sizes.dim) };
            to.iter_mut().zip(row).for_each(|(to, x)| *to += x);
        }
        turn.next();
        0.0 // counted by the first part
    }

    /// Widens the keys and values of a tile, where they are stored in half precision.
    #[inline(always)]
    fn widen<S: Simd>(&self, s: S, scratch: &mut Scratch, heads: &Heads<T>) {
        if T::KIND == Kind::F32 {
            return;
        }
        let sizes = &self.job.sizes;
        for segment in scratch.tile.segments() {
            for (rows, dim, to) in [
                (heads.key, sizes.dim, &mut scratch.keys),
                (heads.value, sizes.value_dim, &mut scratch.values),
            ] {
                let rows = rows.from(segment.key);
                // SAFETY: the segment's keys are rows of a checked view.
                unsafe { rows.widen_into(s, segment.keys, dim, &mut to[segment.row * dim..]) };
            }
        }
    }

    /// Weights and score gradients of a segment, `R` keys at a time.
    #[inline(always)]
    fn score_gradients<S: Simd, const R: usize>(
        &self,
        s: S,
        scratch: &mut Scratch,
        task: &Task,
        segment: &Segment,
        heads: &Heads<T>,
    ) {
        let job = self.job;
        let width = width::<S>();
        let lines =
            segment.row * width..(segment.row + segment.keys.next_multiple_of(TILE_KEYS)) * width;
        let vectors = segment.end - segment.first;
        let block = WeightBlock {
            query: &scratch.query,
            dim: job.sizes.dim,
            key: heads.key.at(segment, &scratch.keys, job.sizes.dim),
            segment,
            scores: (!job.modified).then_some((&*scratch.base, job.factor, &*scratch.minus_log)),
            weights: &mut scratch.weights[lines.clone()],
            prefetch: &mut scratch.prefetch,
        };
        match vectors {
            3 => s.outline(WeightKernel::<R, 3>(block)),
            2 => s.outline(WeightKernel::<R, 2>(block)),
            _ => s.outline(WeightKernel::<R, 1>(block)),
        }
        let slopes = &mut scratch.slopes;
        if job.modified {
            let weights = &mut scratch.weights[lines.clone()];
            let lse = (&*scratch.base, &*scratch.minus_log);
            options::weights(s, job, task, segment, lse, weights, slopes);
        }
        let raw = job.attention.dropout.is_some() || slopes.any() || self.d_bias.is_some();
        let block = GradientBlock {
            d_output: &scratch.d_output,
            value_dim: job.sizes.value_dim,
            value: heads
                .value
                .at(segment, &scratch.values, job.sizes.value_dim),
            segment,
            minus_delta: (!raw).then_some(&*scratch.minus_delta),
            weights: &scratch.weights[lines.clone()],
            gradients: &mut scratch.gradients[lines.clone()],
            prefetch: &mut scratch.prefetch,
        };
        match vectors {
            3 => s.outline(GradientKernel::<R, 3>(block)),
            2 => s.outline(GradientKernel::<R, 2>(block)),
            _ => s.outline(GradientKernel::<R, 1>(block)),
        }
        if raw {
            let weights = &mut scratch.weights[lines.clone()];
            let gradients = &mut scratch.gradients[lines];
            let tile = options::TileGradients {
                segment,
                weights,
                gradients,
                slopes,
            };
            let d_bias = self.d_bias.as_ref().map(|d_bias| {
                |tile: &options::TileGradients| {
                    let row = |query| d_bias.broadcast(heads.part, task.index, task.head, query);
                    tile.add_to_bias(s, task, row);
                }
            });
            tile.apply(s, job, &scratch.minus_delta, &scratch.hashes, d_bias);
        }
    }

    /// Adds what the segments of the tile contribute to the gradients of queries, keys and values; `is_first` if none did before.
    #[inline(always)]
    fn products<S: Simd>(
        &self,
        s: S,
        scratch: &mut Scratch,
        task: &Task,
        heads: &Heads<T>,
        is_first: bool,
    ) {
        let mut segments = scratch.tile.segments();
        let mut totals = Totals::new(
            &mut scratch.d_query,
            &mut scratch.totals,
            segments,
            is_first,
        );
        while let Some(segment) = segments.first() {
            let run = run_of(segments);
            segments = &segments[run.len()..];
            let keys = run.iter().map(|segment| segment.keys).sum();
            let partial = |segment: &Segment| segment.bits.is_some();
            let any_partial = run.iter().any(partial);
            let finite_key = |segment: &Segment| scratch.finite_key[segment.key / TILE_KEYS];

            let (sizes, width) = (&self.job.sizes, width::<S>());
            let lines = segment.row * width..(segment.row + keys) * width;
            let (weights, gradients) = (&scratch.weights[lines.clone()], &scratch.gradients[lines]);
            let (sums, goes_on) = totals.next();
            let context = Context {
                weights: gradients,
                sums,
                goes_on,
                value: heads.key.at(segment, &scratch.keys, sizes.dim),
                keys,
                value_dim: sizes.dim,
                first: segment.first,
            };
            if run
                .iter()
                .any(|segment| partial(segment) && !finite_key(segment))
            {
                careful_context(s, context, run);
            } else {
                add_context(s, context, segment.end - segment.first);
            }
            let queries = segment.first * S::LANES..task.queries.min(segment.end * S::LANES);
            let (d_value, d_key) = (
                heads.d_value.from(segment.key),
                heads.d_key.from(segment.key),
            );
            for (scalars, rows, dim, to, finite) in [
                (
                    weights,
                    &scratch.d_output_rows,
                    sizes.value_dim,
                    d_value,
                    scratch.finite_d_output,
                ),
                (
                    gradients,
                    &scratch.query_rows,
                    sizes.dim,
                    d_key,
                    scratch.finite_query,
                ),
            ] {
                let spread = Spread {
                    scalars,
                    rows,
                    dim,
                    to,
                    keys,
                    queries: queries.clone(),
                };
                if any_partial && !finite {
                    spread.careful(s, run);
                } else {
                    s.outline(SpreadKernel(spread));
                }
            }
        }
        totals.finish(s);
    }
}

/// A part that is being computed.
struct Part<'a> {
    index: usize,
    /// Present where keys are interleaved.
    turn: Option<Turn<'a>>,
}

/// The rows of one key head.
struct Heads<T> {
    key: Rows<T>,
    value: Rows<T>,
    d_key: split::Target,
    d_value: split::Target,
    part: usize,
}

impl<T: Element> Rows<T> {
    /// The rows of a segment; in the widened copy of its tile where there is one.
    #[inline(always)]
    fn at(self, segment: &Segment, widened: &[f32], dim: usize) -> Rows {
        if T::KIND == Kind::F32 {
            return self.from(segment.key).cast();
        }
        Rows {
            start: widened[segment.row * dim..].as_ptr(),
            stride: dim,
        }
    }
}
