//! The forward pass.
//!
//! ```text
//! for each panel of queries (lanes), for each tile of 128 keys:
//!     Sᵀ block  [8 keys, 3 vectors]  = Σ over the dims  K Q                    registers
//!     P = e^(s - m), l += P                                                    registers -> P tile
//!     Oᵀ block  [8 dims, 3 vectors] += Σ over the tile's keys  V P             registers -> O panel
//! O / l, turned back into rows; lse = m + ln l
//! ```
//! `m` is one of the row's own scores, in the units of the product, and is subtracted before anything else is done: near the
//! largest score the differences are exact, whatever its size. They are then multiplied by `scale · log₂ e`, so that weights
//! are powers of 2 and no product is rounded more often than in a plain computation. (One multiply-add would do both, but its
//! error is half a unit in the last place of `m · scale · log₂ e`: at scores of `-1e9`, which people use as masks, the exponent
//! is then wrong by up to 64. Scaling the queries beforehand would round every one of them.) Keys and values are never packed:
//! their numbers are read one at a time and broadcast to the lanes.
//!
//! `m` is not the running maximum. It is raised only when the weights of 8 keys sum to more than 256, which hardly happens
//! after the first tile; the sums so far are then rescaled. The first score that a query sees sets its `m`. A lane is raised by
//! its own scores alone. The output of each tile is summed separately and then added to the total: the error of such a blocked
//! sum is below that of adding one key after the other. Tiles lie at fixed keys, whatever is hidden, so no query has an influence
//! on the rounding of another, neither by its numbers nor by what it sees.
//!
//! The mask is evaluated for segments of 16 keys. Vectors of queries that see no key of a segment are left out, segments that
//! no query sees are skipped, and lanes are set to `-∞` only in vectors that see a part of a segment.
//!
//! Heads that share a bias or a mask of pairs are computed four at a time, tile by tile, so that the bias or mask is
//! transposed, from rows of keys to lanes of queries, only once.
//!
//! The weight of a hidden key is 0, but `0 · NaN` is NaN. So if a result is not finite and the panel has hidden keys among its
//! segments, the panel is computed again, reading each value only into the lanes that see it.
//!
//! What was tried is in `docs/experiments.md`.

use half::bf16;

use crate::{
    element::{Element, Kind},
    mask::{TILE_KEYS, Visible},
    prefetch::Prefetch,
    simd::{Buffer, Kernel, Simd},
    threads::Tasks,
    view::{SharedRows, View},
};

use super::{
    Job,
    context::{Context, Totals, add_context, careful_context, run_of},
    micro::{Factor, outline},
    pairs::{CarefulContext, PackWeights},
    panel::{pack, width},
    plan::{Plan, Task, Tile},
    rescale::{Head, Rescale, Scratch},
    score_block::ScoreBlock,
    scores::{Biases, drop_weights},
    stored::Rows,
};

/// Keys whose weights are held at once.
pub(super) const TILE: usize = 128;
/// Segments in a tile.
pub(super) const SEGMENTS: usize = TILE / TILE_KEYS;
/// The sum of one block's weights above which `m` is raised to the largest of its scores.
pub(super) const LIMIT: f32 = 256.0;

/// What the workers of one call share.
pub(super) struct Worker<'a, T, O> {
    pub(super) job: &'a Job<'a>,
    pub(super) query: View<'a, T>,
    pub(super) key: View<'a, T>,
    pub(super) value: View<'a, T>,
    pub(super) plan: &'a Plan,
    pub(super) output: SharedRows<'a, O>,
    /// `[batch, heads, queries, 3]`
    pub(super) lse: Option<SharedRows<'a, f32>>,
    pub(super) tasks: &'a Tasks,
}

impl<T: Element, O: Element> Worker<'_, T, O> {
    /// Whether products multiply pairs of bfloat16.
    #[inline(always)]
    fn pairs<S: Simd>(&self, s: S) -> bool {
        T::KIND == Kind::Bf16 && self.job.sizes.dim.is_multiple_of(2) && s.has_pairs()
    }
}

impl<T: Element, O: Element> Kernel for Worker<'_, T, O> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let (width, sizes) = (width::<S>(), &self.job.sizes);
        let mut scratch = Scratch {
            heads: Vec::new(),
            weights: Buffer::new(TILE * width),
            totals: Buffer::new(sizes.value_dim * width),
            bias: Buffer::new(match self.job.attention.has_bias() {
                true => (TILE + TILE_KEYS) * width,
                false => 0,
            }),
            wide: Buffer::new(if (T::KIND, O::KIND) == (Kind::F32, Kind::F32) {
                0
            } else {
                TILE * sizes.dim.max(sizes.value_dim)
            }),
            tile: Tile::EMPTY,
            prefetch: Prefetch::default(),
        };
        let new_head = || Head::new(sizes.dim, sizes.value_dim, width);
        let mut claims = self.tasks.claims(true);
        while let Some(index) = claims.take() {
            let task = self.plan.task(&self.job.attention, sizes, index);
            let next = claims.after(index);
            self.prefetch_next::<S>(&mut scratch.prefetch, &task, next);
            if scratch.heads.len() < task.heads {
                scratch.heads.resize_with(task.heads, new_head);
            }
            self.panel(s, &mut scratch, &task);
        }
    }
}

impl<T: Element, O: Element> Worker<'_, T, O> {
    /// Computes one panel of each of a task's heads, and again, reading only what is seen, where NaN or ∞ of a hidden key may
    /// have reached the result.
    #[inline(always)]
    fn panel<S: Simd>(&self, s: S, scratch: &mut Scratch, task: &Task) {
        let partial = self.heads(s, scratch, task, false);
        for member in 0..task.heads {
            let own = task.of(member);
            if !self.finish(s, scratch, member, &own, partial) {
                self.heads(s, scratch, &own, true);
                self.finish(s, scratch, 0, &own, false);
            }
        }
    }

    /// Goes through the keys for one panel of each head of the task. Returns true if a mask hides some keys of a segment.
    #[inline(always)]
    fn heads<S: Simd>(&self, s: S, scratch: &mut Scratch, task: &Task, careful: bool) -> bool {
        let job = self.job;
        let sizes = &job.sizes;
        let sequence = &task.sequence;
        for member in 0..task.heads {
            self.fetch(s, scratch, member, &task.of(member));
        }
        let visible = Visible::new(&job.attention, sizes, sequence, task.index, task.head);
        let range = visible.reach(task.query, task.queries);
        let near_all = visible.near_all(task.query, task.queries);
        let mut partial = false;
        let start = range.start / TILE_KEYS * TILE_KEYS;
        // Starts at a key after which `m` hardly needs to be raised: under ALiBi, whose scores rise towards a query's own
        // position, at that position; else at the first key that all queries of a whole panel see, since each lane's first key
        // sets its `m`. How many queries there are has no influence: it would change their rounding.
        let middle = match job.attention.alibi {
            Some(_) => (task.query as i64 + job.shift(task)).max(0) as usize,
            None => {
                let of_all = visible.near_all(task.query, width::<S>());
                of_all.start.next_multiple_of(TILE_KEYS)
            }
        };
        let middle = (middle / TILE_KEYS * TILE_KEYS).clamp(start, range.end.max(start));
        let mut is_first = true;
        for part in [middle..range.end, start..middle] {
            let mut first = part.start;
            while first < part.end {
                partial |=
                    scratch
                        .tile
                        .fill(&visible, task, S::LANES, &near_all, part.end, &mut first);
                if job.attention.has_bias() {
                    self.transpose_bias(s, scratch, task);
                }
                for member in 0..task.heads {
                    self.tile(s, scratch, member, &task.of(member), is_first, careful);
                }
                is_first &= scratch.tile.segments().is_empty();
            }
        }
        partial
    }

    /// Loads the queries of a head's panel.
    #[inline(always)]
    fn fetch<S: Simd>(&self, s: S, scratch: &mut Scratch, member: usize, task: &Task) {
        let sizes = &self.job.sizes;
        let position = task.sequence.first_query + task.query;
        let query = Rows::new(&self.query, task.sequence.batch, task.head, position);
        // SAFETY: the view was checked, and these are rows of it.
        let (query, depth) = unsafe {
            if self.pairs(s) {
                let query = query.cast::<bf16>();
                let query = query.copy_pairs(task.queries, sizes.dim, &mut scratch.wide);
                (query, sizes.dim / 2)
            } else {
                let query = query.widen(s, task.queries, sizes.dim, &mut scratch.wide);
                (query, sizes.dim)
            }
        };
        let query_row = |i: usize| {
            // SAFETY: row `i` is one of the view's, or of those widened from it.
            unsafe { std::slice::from_raw_parts(query.from(i).start, depth) }
        };
        let head = &mut scratch.heads[member];
        pack(
            s,
            &mut head.query,
            task.queries,
            depth,
            query.stride,
            1.0,
            query_row,
        );
        head.clear();
    }

    /// Transposes the biases of the tile, which a task's heads share.
    #[inline(always)]
    fn transpose_bias<S: Simd>(&self, s: S, scratch: &mut Scratch, task: &Task) {
        let Some(biases) = Biases::of(self.job, task) else {
            return;
        };
        for segment in scratch.tile.segments() {
            for row in (0..segment.keys).step_by(TILE_KEYS) {
                let keys = segment.key + row..segment.key + (row + TILE_KEYS).min(segment.keys);
                let to = &mut scratch.bias[(segment.row + row) * width::<S>()..];
                biases.transpose(s, task, keys, segment.first..segment.end, to);
            }
        }
    }

    /// Plans prefetches of the rows that this panel will write and of those that the next one will read first.
    #[inline(always)]
    fn prefetch_next<S: Simd>(&self, prefetch: &mut Prefetch, task: &Task, next: Option<usize>) {
        let (sizes, sequence) = (&self.job.sizes, &task.sequence);
        prefetch.clear();
        let position = sequence.first_query + task.query;
        for head in task.head..task.head + task.heads {
            let (to, stride) = self.output.start(sequence.batch, head, position);
            prefetch.add(to.cast_const(), task.queries, stride, sizes.value_dim, true);
        }
        let reach = |task: &Task| {
            Visible::new(
                &self.job.attention,
                sizes,
                &task.sequence,
                task.index,
                task.head,
            )
            .reach(task.query, task.queries)
        };
        let own = reach(task);
        if let Some(next) = next {
            let next = self.plan.task(&self.job.attention, sizes, next);
            let (batch, position) = (next.sequence.batch, next.sequence.first_query + next.query);
            for head in next.head..next.head + next.heads {
                let query = Rows::new(&self.query, batch, head, position);
                prefetch.add(query.start, next.queries, query.stride, sizes.dim, false);
            }
            let reach = reach(&next);
            let key_head = |task: &Task| task.head / (sizes.heads / sizes.key_heads);
            // Of another key head its first tile, of the same one what this panel does not read.
            let same = (task.index, key_head(task)) == (next.index, key_head(&next));
            let end = if same { own.start } else { reach.end };
            let new = reach.start..end.min(reach.start + TILE);
            if !new.is_empty() {
                let first = next.sequence.first_key + new.start;
                let key = Rows::new(&self.key, batch, key_head(&next), first);
                prefetch.add(key.start, new.len(), key.stride, sizes.dim, false);
                let value = Rows::new(&self.value, batch, key_head(&next), first);
                prefetch.add(value.start, new.len(), value.stride, sizes.value_dim, false);
            }
        }
        let block = if S::LANES == 16 { 8 } else { 4 };
        prefetch.spread(task.heads * own.len() / block);
    }

    /// Scores, weights and context of one tile; `is_first` if none was seen before.
    #[inline(always)]
    fn tile<S: Simd>(
        &self,
        s: S,
        scratch: &mut Scratch,
        member: usize,
        task: &Task,
        is_first: bool,
        careful: bool,
    ) {
        let sizes = &self.job.sizes;
        let (batch, first_key) = (task.sequence.batch, task.sequence.first_key);
        let key_head = task.head / (sizes.heads / sizes.key_heads);
        let key = Rows::new(&self.key, batch, key_head, first_key);
        let value = Rows::new(&self.value, batch, key_head, first_key);
        for index in 0..scratch.tile.segments().len() {
            let segment = &scratch.tile.segments()[index];
            let key = key.from(segment.key);
            if self.pairs(s) {
                self.scores(s, scratch, member, task, index, key.cast::<bf16>());
            } else {
                // SAFETY: the segment's keys are rows of a checked view.
                let key = unsafe { key.widen(s, segment.keys, sizes.dim, &mut scratch.wide) };
                self.scores(s, scratch, member, task, index, key);
            }
        }
        if let Some(dropout) = &self.job.attention.dropout {
            drop_weights(
                s,
                dropout,
                task,
                scratch.tile.segments(),
                &mut scratch.weights,
            );
        }
        let (width, value_dim) = (width::<S>(), sizes.value_dim);
        let mut segments = scratch.tile.segments();
        let output = &mut scratch.heads[member].output;
        let mut totals = Totals::new(output, &mut scratch.totals, segments, is_first);
        while let Some(segment) = segments.first() {
            let run = run_of(segments);
            segments = &segments[run.len()..];
            let keys = run.iter().map(|segment| segment.keys).sum();
            let value = value.from(segment.key);
            let live = segment.first..segment.end;
            let rows = segment.row * width..(segment.row + keys) * width;
            let (sums, goes_on) = totals.next();
            if self.pairs(s) {
                let value = value.cast::<bf16>();
                // SAFETY: the run's keys are rows of a checked view.
                let value = unsafe { value.pair_rows(keys, value_dim, &mut scratch.wide) };
                let weights = &mut scratch.weights[rows];
                let pack = PackWeights {
                    weights: &mut *weights,
                    keys,
                    live: live.clone(),
                };
                outline::<S, bf16, _>(s, pack);
                let context = Context {
                    weights,
                    sums,
                    goes_on,
                    value,
                    keys: keys.div_ceil(2),
                    value_dim,
                    first: live.start,
                };
                if careful {
                    let kernel = CarefulContext {
                        run: context,
                        segments: run,
                    };
                    outline::<S, bf16, _>(s, kernel);
                } else {
                    add_context(s, context, live.len());
                }
                continue;
            }
            // SAFETY: as above.
            let value = unsafe { value.widen(s, keys, value_dim, &mut scratch.wide) };
            let context = Context {
                weights: &scratch.weights[rows],
                sums,
                goes_on,
                value,
                keys,
                value_dim,
                first: live.start,
            };
            if careful {
                careful_context(s, context, run);
            } else {
                add_context(s, context, live.len());
            }
        }
        totals.finish(s);
    }

    /// Weights of the segment `index`, whose first key is row 0 of `key`.
    #[inline(always)]
    fn scores<S: Simd, F: Factor>(
        &self,
        s: S,
        scratch: &mut Scratch,
        member: usize,
        task: &Task,
        index: usize,
        key: Rows<F>,
    ) {
        if S::LANES == 16 {
            self.score_blocks::<S, F, 8>(s, scratch, member, task, index, key);
        } else {
            self.score_blocks::<S, F, 4>(s, scratch, member, task, index, key);
        }
    }

    /// [`Self::scores`], `R` keys at a time.
    #[inline(always)]
    fn score_blocks<S: Simd, F: Factor, const R: usize>(
        &self,
        s: S,
        scratch: &mut Scratch,
        member: usize,
        task: &Task,
        index: usize,
        key: Rows<F>,
    ) {
        let job = self.job;
        let width = width::<S>();
        let segment = scratch.tile.segments()[index];
        let live = segment.first..segment.end;
        let head = &mut scratch.heads[member];
        let mut row = 0; // keys done
        let mut raw = false;
        while row < segment.keys {
            raw |= head.settled[live.clone()].contains(&false);
            let mut keys = segment.keys - row;
            if raw {
                keys = keys.min(R);
            }
            let at = (segment.row + row) * width;
            let block = ScoreBlock {
                job,
                task,
                query: &head.query,
                key: key.from(row),
                keys: segment.key + row..segment.key + row + keys,
                first: segment.first,
                m: &head.m,
                sum: &mut head.sum,
                weights: &mut scratch.weights[at..][..keys.next_multiple_of(R) * width],
                bits: segment.bits.as_ref(),
                row,
                bias: scratch.bias.get(at..).unwrap_or_default(),
                raw,
                prefetch: &mut scratch.prefetch,
            };
            let done = block.run::<S, R>(s, live.len());
            row += done;
            if raw {
                let (live, value_dim) = (live.clone(), job.sizes.value_dim);
                s.outline(Rescale::<R> {
                    head,
                    weights: &mut scratch.weights,
                    live,
                    at: segment.row + row - done,
                    segment: &segment,
                    row: row - done,
                    to_base: job.to_base(),
                    value_dim,
                });
            }
            raw = !raw && done < keys;
        }
    }
}
