//! A worker of the backward pass: goes through the panels of the key heads that are its own.
//!
//! The parent module has the formulas and the picture of the tiles.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::{
    element::{Element, Kind},
    mask::{TILE_KEYS, Visible},
    simd::{Buffer, Kernel, Simd},
    view::SharedRows,
};

use super::{
    super::{
        Job,
        context::{Context, ContextKernel, careful_context},
        modify::Modify,
        panel::{unpack, width},
        plan::{Plan, Segment, Task, Tile},
        stored::Rows,
    },
    Inputs,
    blocks::{GradientBlock, GradientKernel, Spread, SpreadKernel, WeightBlock, WeightKernel},
    fetch::is_finite,
    options::{self, Slopes},
    share::{self, Destination, Shares},
};

/// Keys whose weights and gradients are held at once.
const TILE: usize = 128;
/// Segments in a tile.
const SEGMENTS: usize = TILE / TILE_KEYS;

/// What the workers of one call share.
pub(super) struct Worker<'a, T, O, M> {
    pub(super) job: &'a Job<'a, M>,
    pub(super) plan: &'a Plan,
    pub(super) shares: &'a Shares,
    pub(super) inputs: &'a Inputs<'a, T, O>,
    pub(super) d_query: SharedRows<'a, f32>,
    pub(super) d_key: Destination<'a>,
    pub(super) d_value: Destination<'a>,
    pub(super) d_bias: Option<Destination<'a>>,
    /// `[batch, heads, parts, 1]`
    pub(super) sink_rows: SharedRows<'a, f64>,
    pub(super) next: &'a AtomicUsize,
}

/// One worker's memory.
pub(super) struct Scratch {
    /// Qᵀ, Oᵀ and dOᵀ, `[dim, width]`.
    pub(super) query: Buffer,
    pub(super) output: Buffer,
    pub(super) d_output: Buffer,
    /// scale Q and dO, `[width, dim]`, the dims rounded up to whole vectors.
    pub(super) query_rows: Buffer,
    pub(super) d_output_rows: Buffer,
    /// Pᵀ and dSᵀ, `[TILE, width]`.
    weights: Buffer,
    gradients: Buffer,
    slopes: Slopes,
    /// dQᵀ, `[dim, width]`.
    pub(super) d_query: Buffer,
    /// `-lse`, to base 2 where nothing acts on the scores, and `-δ`: `[width]`.
    pub(super) minus_lse: Buffer,
    pub(super) minus_delta: Buffer,
    /// The queries' part of dropout's hashes.
    pub(super) hashes: [u32; 48],
    /// Whether Q, dO and, for each 16 of its rows, K hold finite numbers only.
    pub(super) finite_query: bool,
    pub(super) finite_d_output: bool,
    finite_key: Vec<bool>,
    tile: Tile<SEGMENTS>,
    /// Where operands are not stored as `f32`: the keys and the values of a tile, `[TILE, dim]` each, and one
    /// of the panel's operands, `[width, dim]`.
    keys: Buffer,
    values: Buffer,
    pub(super) wide: Buffer,
}

impl<T: Element, O: Element, M: Modify> Kernel for Worker<'_, T, O, M> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let (width, sizes) = (width::<S>(), &self.job.sizes);
        let rounded = |dim: usize| dim.next_multiple_of(S::LANES);
        let copies = |stored: bool, rows: usize, dim: usize| if stored { rows * dim } else { 0 };
        let (stored, any) = (
            T::KIND != Kind::F32,
            (T::KIND, O::KIND) != (Kind::F32, Kind::F32),
        );
        let mut scratch = Scratch {
            query: Buffer::new(sizes.dim * width),
            output: Buffer::new(sizes.value_dim * width),
            d_output: Buffer::new(sizes.value_dim * width),
            query_rows: Buffer::new(rounded(sizes.dim) * width),
            d_output_rows: Buffer::new(rounded(sizes.value_dim) * width),
            weights: Buffer::new(TILE * width),
            gradients: Buffer::new(TILE * width),
            slopes: Slopes::new::<M>(&self.job.attention, TILE, width),
            d_query: Buffer::new(sizes.dim * width),
            minus_lse: Buffer::new(width),
            minus_delta: Buffer::new(width),
            hashes: [0; 48],
            finite_query: true,
            finite_d_output: true,
            finite_key: Vec::new(),
            tile: Tile::EMPTY,
            keys: Buffer::new(copies(stored, TILE, sizes.dim)),
            values: Buffer::new(copies(stored, TILE, sizes.value_dim)),
            wide: Buffer::new(copies(any, width, sizes.dim.max(sizes.value_dim))),
        };
        loop {
            let task = self.next.fetch_add(1, Ordering::Relaxed);
            if task >= self.shares.tasks() {
                return;
            }
            let share = self.shares.share(task);
            for index in share.sequences.clone() {
                for key_head in share.key_heads.clone() {
                    self.key_head(s, &mut scratch, share.part, index, key_head);
                }
            }
        }
    }
}

impl<T: Element, O: Element, M: Modify> Worker<'_, T, O, M> {
    /// One part of all that belongs to a key head of a sequence.
    #[inline(always)]
    fn key_head<S: Simd>(
        &self,
        s: S,
        scratch: &mut Scratch,
        part: usize,
        index: usize,
        key_head: usize,
    ) {
        let (job, sizes) = (self.job, &self.job.sizes);
        let sequence = job.attention.sequence(sizes, index);
        scratch.finite_key.clear();
        let key = |j: usize| {
            self.inputs
                .key
                .row(sequence.batch, key_head, sequence.first_key + j)
        };
        for first in (0..sequence.keys).step_by(TILE_KEYS) {
            let end = sequence.keys.min(first + TILE_KEYS);
            scratch
                .finite_key
                .push((first..end).all(|j| is_finite(s, key(j))));
        }
        if part == 0 {
            for (to, dim) in [(&self.d_key, sizes.dim), (&self.d_value, sizes.value_dim)] {
                let to = to.rows(part, sequence.batch, key_head, sequence.first_key);
                for j in 0..sequence.keys {
                    // SAFETY: the gradients were checked; this part alone has the rows of this key head.
                    unsafe { to.from(j).row(dim) }.fill(0.0);
                }
            }
        }
        let group = sizes.heads / sizes.key_heads;
        for head in key_head * group..(key_head + 1) * group {
            let mut sink = 0.0;
            let panels = self.plan.panels_of(&sequence, index, head);
            for task in panels.skip(part).step_by(self.shares.parts) {
                let task = self.plan.task(&job.attention, sizes, task);
                sink += self.panel(s, scratch, &task, key_head, part);
            }
            // SAFETY: the rows were made for the call; this task alone has this one.
            unsafe { self.sink_rows.row_mut(index, head, part)[0] = sink };
        }
    }

    /// The gradients of one panel. Returns its part of the sink's.
    #[inline(always)]
    fn panel<S: Simd>(
        &self,
        s: S,
        scratch: &mut Scratch,
        task: &Task,
        key_head: usize,
        part: usize,
    ) -> f64 {
        let (job, sizes, sequence) = (self.job, &self.job.sizes, &task.sequence);
        let sink = self.fetch(s, scratch, task);
        let visible = Visible::new(&job.attention, sizes, sequence, task.index, task.head);
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
                .rows(part, sequence.batch, key_head, sequence.first_key),
            d_value: self
                .d_value
                .rows(part, sequence.batch, key_head, sequence.first_key),
            part,
        };
        let range = visible.reach(task.query, task.queries);
        let mut seen_by_all = visible.seen_by_all(task.query, task.queries);
        if M::ACTIVE {
            seen_by_all = 0..0; // the caller may skip tiles
        }
        let mut key = range.start / TILE_KEYS * TILE_KEYS;
        while key < range.end {
            let (tile, modify, lanes) = (&mut scratch.tile, job.modify, S::LANES);
            tile.fill(
                &visible,
                modify,
                task,
                lanes,
                &seen_by_all,
                range.end,
                &mut key,
            );
            self.widen(s, scratch, &heads);
            for index in 0..scratch.tile.segments().len() {
                let segment = scratch.tile.segments()[index];
                if S::LANES == 16 {
                    self.score_gradients::<S, 8>(s, scratch, task, &segment, &heads);
                } else {
                    self.score_gradients::<S, 4>(s, scratch, task, &segment, &heads);
                }
            }
            let mut first = 0;
            while first < scratch.tile.segments().len() {
                first = self.products(s, scratch, task, first, &heads);
            }
        }
        let scale = s.splat(job.attention.scale(sizes.dim));
        for x in scratch.d_query.chunks_exact_mut(S::LANES) {
            let scaled = s.mul(s.load(x), scale);
            s.store(x, scaled);
        }
        let position = sequence.first_query + task.query;
        let (to, stride) = self.d_query.start(sequence.batch, task.head, position);
        // SAFETY: the gradient was checked; this task alone has these rows.
        unsafe { unpack(s, &scratch.d_query, task.queries, sizes.dim, to, stride) };
        sink
    }

    /// Widens the keys and values of a tile, where they are stored in half the width.
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
            scores: (!job.modified).then_some((job.factor, &*scratch.minus_lse)),
            weights: &mut scratch.weights[lines.clone()],
        };
        match vectors {
            3 => s.outline(WeightKernel::<R, 3>(block)),
            2 => s.outline(WeightKernel::<R, 2>(block)),
            _ => s.outline(WeightKernel::<R, 1>(block)),
        }
        let slopes = &mut scratch.slopes;
        if job.modified {
            let weights = &mut scratch.weights[lines.clone()];
            options::weights(s, job, task, segment, &scratch.minus_lse, weights, slopes);
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

    /// What segments from `first` on add to the gradients of queries, keys and values: as many as follow
    /// each other. Returns the next segment.
    #[inline(always)]
    fn products<S: Simd>(
        &self,
        s: S,
        scratch: &mut Scratch,
        task: &Task,
        first: usize,
        heads: &Heads<T>,
    ) -> usize {
        let segments = &scratch.tile.segments()[first..];
        let segment = &segments[0];
        // What is hidden has a gradient of 0, so segments can be read together.
        let (mut keys, mut count) = (segment.keys, 1);
        while count < segments.len() && segments[count].follows(segment, keys) {
            keys += segments[count].keys;
            count += 1;
        }
        let segments = &segments[..count];
        let partial = |segment: &Segment| segment.bits.is_some();
        let any_partial = segments.iter().any(partial);
        let finite_key = |segment: &Segment| scratch.finite_key[segment.key / TILE_KEYS];

        let (sizes, width) = (&self.job.sizes, width::<S>());
        let lines = segment.row * width..(segment.row + keys) * width;
        let (weights, gradients) = (&scratch.weights[lines.clone()], &scratch.gradients[lines]);
        let run = Context {
            weights: gradients,
            output: &mut scratch.d_query,
            value: heads.key.at(segment, &scratch.keys, sizes.dim),
            keys,
            value_dim: sizes.dim,
            first: segment.first,
        };
        if segments
            .iter()
            .any(|segment| partial(segment) && !finite_key(segment))
        {
            careful_context(s, run, segments);
        } else {
            match segment.end - segment.first {
                3 => s.outline(ContextKernel::<f32, 3>(run)),
                2 => s.outline(ContextKernel::<f32, 2>(run)),
                _ => s.outline(ContextKernel::<f32, 1>(run)),
            }
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
            let run = Spread {
                scalars,
                rows,
                dim,
                to,
                keys,
                queries: queries.clone(),
            };
            if any_partial && !finite {
                run.careful(s, segments);
            } else {
                s.outline(SpreadKernel(run));
            }
        }
        first + count
    }
}

/// The rows of one key head.
struct Heads<T> {
    key: Rows<T>,
    value: Rows<T>,
    d_key: share::Target,
    d_value: share::Target,
    part: usize,
}

impl<T: Element> Rows<T> {
    /// The rows of a segment, of the widened ones of its tile where there are such.
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
