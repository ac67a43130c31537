//! The forward pass.
//!
//! ```text
//! for each panel of queries (lanes), for each tile of 128 keys:
//!     Sᵀ block  [8 keys, 3 vectors]  = Σ over the dims  K Q                    registers
//!     P = 2^(s - m), l += P                                                    registers -> P tile
//!     Oᵀ block  [8 dims, 3 vectors] += Σ over the tile's keys  V P             registers -> O panel
//! O / l, turned back into rows; lse = (m + log₂ l) ln 2
//! ```
//! Products are multiplied by `scale · log₂ e` as `m` is taken off, so that weights are powers of 2 and
//! no product is rounded more often than in a plain computation. (Multiplying the queries beforehand
//! costs as much and rounds every one of them.)
//! Keys and values are never packed: their numbers are read one at a time and spread over the lanes.
//!
//! `m` is no running maximum. It is raised only when the weights of 8 keys sum to more than 256, which
//! after the first tile hardly happens: then what was summed is rescaled. The first score that a query
//! sees sets its `m`. A lane is raised by its own scores alone, so no query has an influence on the
//! rounding of another. Outputs of one tile are summed apart and then added: a blocked sum,
//! whose error is below that of adding one key after the other.
//!
//! Keys are asked about in segments of 16. Vectors of queries that see nothing of a segment are left
//! out, segments that nobody sees are passed over, and only where a mask cuts through a vector are
//! lanes set to `-∞`.
//!
//! A hidden key meets a weight of 0, and `0 · NaN` is NaN. So if a result is not finite and a mask cut
//! through the panel, the panel is computed again, reading each value only into the lanes that see it.

use std::sync::atomic::{AtomicUsize, Ordering};

use half::bf16;

use crate::{
    element::{Element, Kind},
    mask::{Plane, TILE_KEYS, Visible},
    simd::{Buffer, Kernel, Simd, split_ln},
    view::{SharedRows, View},
};

use super::{
    Job,
    context::{Context, add_context, careful_context},
    micro::{Factor, outline},
    modify::Modify,
    pairs::{CarefulContext, PackWeights},
    panel::{VECTORS, pack, unpack, width},
    plan::{Plan, Task, Tile},
    raise::{Raise, Scratch},
    score_block::ScoreBlock,
    scores::{drop_weights, turn_bias},
    stored::Rows,
};

/// Keys whose weights are held at once.
pub(super) const TILE: usize = 128;
/// Segments in a tile.
pub(super) const SEGMENTS: usize = TILE / TILE_KEYS;
/// The sum of one block's weights above which `m` is raised to the largest of its scores.
pub(super) const LIMIT: f32 = 256.0;

/// What the workers of one call share.
pub(super) struct Worker<'a, T, O, M> {
    pub(super) job: &'a Job<'a, M>,
    pub(super) query: View<'a, T>,
    pub(super) key: View<'a, T>,
    pub(super) value: View<'a, T>,
    pub(super) plan: &'a Plan,
    pub(super) output: SharedRows<'a, O>,
    /// `[batch, heads, queries, 1]`
    pub(super) lse: Option<SharedRows<'a, f32>>,
    pub(super) next: &'a AtomicUsize,
}

impl<T: Element, O: Element, M: Modify> Worker<'_, T, O, M> {
    /// Whether products are taken of pairs.
    #[inline(always)]
    fn pairs<S: Simd>(&self, s: S) -> bool {
        T::KIND == Kind::Bf16 && self.job.sizes.dim.is_multiple_of(2) && s.has_pairs()
    }
}

impl<T: Element, O: Element, M: Modify> Kernel for Worker<'_, T, O, M> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let (width, sizes) = (width::<S>(), &self.job.sizes);
        let mut scratch = Scratch {
            query: Buffer::new(sizes.dim * width),
            weights: Buffer::new(TILE * width),
            output: Buffer::new(sizes.value_dim * width),
            minus_m: Buffer::new(width),
            met: Buffer::new(width),
            sum: Buffer::new(width),
            bias: Buffer::new(2 * TILE_KEYS * width),
            wide: Buffer::new(if (T::KIND, O::KIND) == (Kind::F32, Kind::F32) {
                0
            } else {
                TILE * sizes.dim.max(sizes.value_dim)
            }),
            settled: [false; VECTORS],
            tile: Tile::EMPTY,
        };
        loop {
            let task = self.next.fetch_add(1, Ordering::Relaxed);
            if task >= self.plan.tasks() {
                return;
            }
            let next = task + 1;
            let task = self.plan.task(&self.job.attention, sizes, task);
            self.prefetch(s, &task, next);
            for careful in [false, true] {
                if self.panel(s, &mut scratch, &task, careful) {
                    break;
                }
            }
        }
    }
}

impl<T: Element, O: Element, M: Modify> Worker<'_, T, O, M> {
    /// Computes one panel. False if `careful` is not set and would have made a difference.
    #[inline(always)]
    fn panel<S: Simd>(&self, s: S, scratch: &mut Scratch, task: &Task, careful: bool) -> bool {
        let job = self.job;
        let sizes = &job.sizes;
        let sequence = &task.sequence;
        let key_head = task.head / (sizes.heads / sizes.key_heads);
        let position = sequence.first_query + task.query;
        let query = Rows::new(&self.query, sequence.batch, task.head, position);
        // SAFETY: the view was checked, and these are rows of it.
        let query = unsafe {
            if self.pairs(s) {
                query
                    .cast::<bf16>()
                    .copy_pairs(task.queries, sizes.dim, &mut scratch.wide)
            } else {
                query.widen(s, task.queries, sizes.dim, &mut scratch.wide)
            }
        };
        let depth = if self.pairs(s) {
            sizes.dim / 2
        } else {
            sizes.dim
        };
        let query_row = |i: usize| {
            // SAFETY: row `i` is one of the view's, or of those widened from it.
            unsafe { std::slice::from_raw_parts(query.from(i).start, depth) }
        };
        pack(
            s,
            &mut scratch.query,
            task.queries,
            depth,
            query.stride,
            1.0,
            query_row,
        );
        scratch.output.fill(0.0);
        scratch.minus_m.fill(0.0);
        scratch.met.fill(0.0);
        scratch.sum.fill(0.0);
        scratch.settled = [false; VECTORS];

        let visible = Visible::new(&job.attention, sizes, sequence, task.index, task.head);
        let key = Rows::new(&self.key, sequence.batch, key_head, sequence.first_key);
        let value = Rows::new(&self.value, sequence.batch, key_head, sequence.first_key);
        let range = visible.reach(task.query, task.queries);
        let mut seen_by_all = visible.seen_by_all(task.query, task.queries);
        if M::ACTIVE {
            seen_by_all = 0..0; // the caller may skip tiles
        }
        let mut partial = false;
        let start = range.start / TILE_KEYS * TILE_KEYS;
        // ALiBi's scores rise towards a query's own position. Read from there, they hardly ever raise `m`.
        let middle = match job.attention.alibi {
            Some(_) => {
                let own = (task.query as i64 + job.shift(task)).max(0) as usize;
                (own / TILE_KEYS * TILE_KEYS).clamp(start, range.end.max(start))
            }
            None => start,
        };
        for part in [middle..range.end, start..middle] {
            let mut first = part.start;
            while first < part.end {
                partial |= scratch.tile.fill(
                    &visible,
                    job.modify,
                    task,
                    S::LANES,
                    &seen_by_all,
                    part.end,
                    &mut first,
                );
                self.tile(s, scratch, task, key, value, careful);
            }
        }
        self.finish(s, scratch, task, partial && !careful)
    }

    /// Asks for the rows that this panel will write and those that the next one will read: each is met
    /// once, so nothing else would have brought them near.
    #[inline(always)]
    fn prefetch<S: Simd>(&self, s: S, task: &Task, next: usize) {
        let position = task.sequence.first_query + task.query;
        let (to, stride) = self.output.start(task.sequence.batch, task.head, position);
        for i in 0..task.queries {
            for c in (0..self.job.sizes.value_dim).step_by(64 / size_of::<O>()) {
                s.prefetch(to.wrapping_add(i * stride + c).cast(), true);
            }
        }
        if next < self.plan.tasks() {
            let next = self.plan.task(&self.job.attention, &self.job.sizes, next);
            for i in 0..next.queries {
                let position = next.sequence.first_query + next.query + i;
                let row = self.query.row(next.sequence.batch, next.head, position);
                for c in (0..row.len()).step_by(64 / size_of::<T>()) {
                    s.prefetch(row[c..].as_ptr().cast(), false);
                }
            }
        }
    }

    /// Scores, weights and context of one tile.
    #[inline(always)]
    fn tile<S: Simd>(
        &self,
        s: S,
        scratch: &mut Scratch,
        task: &Task,
        key: Rows<T>,
        value: Rows<T>,
        careful: bool,
    ) {
        let sizes = &self.job.sizes;
        for index in 0..scratch.tile.segments().len() {
            let segment = &scratch.tile.segments()[index];
            let key = key.from(segment.key);
            if self.pairs(s) {
                self.scores(s, scratch, task, index, key.cast::<bf16>());
            } else {
                // SAFETY: the segment's keys are rows of a checked view.
                let key = unsafe { key.widen(s, segment.keys, sizes.dim, &mut scratch.wide) };
                self.scores(s, scratch, task, index, key);
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
        let segments = scratch.tile.segments();
        let mut first = 0;
        while first < segments.len() {
            // What is hidden has a weight of 0, so segments can be read together.
            let segment = &segments[first];
            let (mut keys, mut end) = (segment.keys, first + 1);
            while end < segments.len() && segments[end].follows(segment, keys) {
                keys += segments[end].keys;
                end += 1;
            }
            let value = value.from(segment.key);
            let live = segment.first..segment.end;
            let rows = segment.row * width..(segment.row + keys) * width;
            let run = &segments[first..end];
            first = end;
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
                    output: &mut scratch.output,
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
                output: &mut scratch.output,
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
    }

    /// Weights of the segment `index`, whose first key is row 0 of `key`.
    #[inline(always)]
    fn scores<S: Simd, F: Factor>(
        &self,
        s: S,
        scratch: &mut Scratch,
        task: &Task,
        index: usize,
        key: Rows<F>,
    ) {
        if S::LANES == 16 {
            self.score_blocks::<S, F, 8>(s, scratch, task, index, key);
        } else {
            self.score_blocks::<S, F, 4>(s, scratch, task, index, key);
        }
    }

    /// [`Self::scores`], `R` keys at a time.
    #[inline(always)]
    fn score_blocks<S: Simd, F: Factor, const R: usize>(
        &self,
        s: S,
        scratch: &mut Scratch,
        task: &Task,
        index: usize,
        key: Rows<F>,
    ) {
        let job = self.job;
        let width = width::<S>();
        let segment = scratch.tile.segments()[index];
        let live = segment.first..segment.end;
        let mut row = 0; // keys done
        let mut turned = 0; // keys whose biases are turned
        let mut raw = false;
        while row < segment.keys {
            raw |= scratch.settled[live.clone()].contains(&false);
            let mut keys = segment.keys - row;
            if let Some(bias) = &job.attention.bias {
                if row == turned {
                    turned = (row + TILE_KEYS).min(segment.keys);
                    let keys = segment.key + row..segment.key + turned;
                    let plane = Plane::new(bias, task.index, task.head);
                    turn_bias(s, &plane, task, keys, live.clone(), &mut scratch.bias);
                }
                keys = turned - row;
            }
            if raw {
                keys = keys.min(R);
            }
            let at = (segment.row + row) * width;
            let block = ScoreBlock {
                job,
                task,
                query: &scratch.query,
                key: key.from(row),
                keys: segment.key + row..segment.key + row + keys,
                first: segment.first,
                minus_m: &scratch.minus_m,
                sum: &mut scratch.sum,
                weights: &mut scratch.weights[at..][..keys.next_multiple_of(R) * width],
                bits: segment.bits.as_ref(),
                row,
                bias: &scratch.bias[row % TILE_KEYS * width..],
                raw,
            };
            let done = block.run::<S, R>(s, live.len());
            row += done;
            if raw {
                let (live, value_dim) = (live.clone(), job.sizes.value_dim);
                s.outline(Raise::<R> {
                    scratch,
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

    /// Divides by the sums and writes the rows. False if a result is not finite and `check` is set.
    #[inline(always)]
    fn finish<S: Simd>(&self, s: S, scratch: &mut Scratch, task: &Task, check: bool) -> bool {
        let job = self.job;
        let (width, value_dim) = (width::<S>(), job.sizes.value_dim);
        let vectors = task.queries.div_ceil(S::LANES);
        let mut lse = [f32::NEG_INFINITY; 48];
        let mut finite = true;
        for v in 0..vectors {
            let at = v * S::LANES;
            let mut sum = s.load(&scratch.sum[at..]);
            let m = s.sub(s.zero(), s.load(&scratch.minus_m[at..]));
            if let Some(sinks) = job.attention.sink {
                let seen = s.greater(s.load(&scratch.met[at..]), s.splat(0.5));
                let mut factors = [0.0f32; 16];
                s.store(&mut factors, sum);
                let mut bases = [0.0f32; 16];
                s.store(&mut bases, m);
                let natural = f64::from(job.to_natural[0]) + f64::from(job.to_natural[1]);
                for i in 0..S::LANES {
                    let sink = f64::from(sinks[task.head]);
                    let log = if seen >> i & 1 == 1 {
                        let own = f64::from(bases[i]) * natural + f64::from(factors[i]).ln();
                        let top = own.max(sink);
                        top + ((own - top).exp() + (sink - top).exp()).ln()
                    } else {
                        sink
                    };
                    lse[at + i] = log as f32;
                    let power = f64::from(bases[i]) * natural - log;
                    factors[i] = power.exp() as f32;
                }
                sum = s.load(&factors); // what divides, inverted
            } else {
                let some = s.greater(sum, s.zero());
                // lse = m natural + n ln 2 + ln f. `m` and `n` may be large against their sum, so they are
                // added first; `natural` is not quite ln 2, since the factor was rounded.
                let [high, low] = job.to_natural;
                let (n, ln_f) = split_ln(s, sum);
                let (base, rest) = (s.add(m, n), std::f32::consts::LN_2 - high - low);
                let small = s.fma(n, s.splat(rest), s.fma(base, s.splat(low), ln_f));
                let log = s.fma(base, s.splat(high), small);
                let empty = s.greater(s.splat(f32::MIN_POSITIVE), sum);
                let log = s.select(empty, s.splat(f32::NEG_INFINITY), log);
                let nan = !(some | empty);
                s.store(&mut lse[at..], s.select(nan, sum, log));
                let safe = s.select(empty, s.splat(1.0), sum);
                sum = s.div(s.splat(1.0), safe);
            }
            if job.keep_scale != 1.0 {
                sum = s.mul(sum, s.splat(job.keep_scale));
            }
            let mut residue = s.zero();
            for line in scratch.output[..value_dim * width].chunks_exact_mut(width) {
                let x = s.mul(s.load(&line[at..]), sum);
                s.store(&mut line[at..], x);
                residue = s.fma(x, s.zero(), residue);
            }
            let inside = S::LANES.min(task.queries - at);
            let all = ((1u64 << inside) - 1) as u32;
            finite &= s.greater(s.splat(1.0), residue) & all == all;
        }
        if check && !finite {
            return false;
        }
        let sequence = &task.sequence;
        let position = sequence.first_query + task.query;
        let (to, stride) = self.output.start(sequence.batch, task.head, position);
        // SAFETY: the output was checked; this task alone has these rows.
        unsafe {
            match O::KIND {
                Kind::F32 => {
                    let to = to.cast();
                    unpack(s, &scratch.output, task.queries, value_dim, to, stride);
                }
                Kind::Bf16 | Kind::F16 => {
                    let rows = scratch.wide.as_mut_ptr();
                    unpack(s, &scratch.output, task.queries, value_dim, rows, value_dim);
                    for (i, row) in scratch.wide.chunks_exact(value_dim).enumerate() {
                        if i == task.queries {
                            break;
                        }
                        for (c, &x) in row.iter().enumerate() {
                            *to.add(i * stride + c) = O::narrow(x);
                        }
                    }
                }
            }
        }
        if let Some(to) = &self.lse {
            for (i, &lse) in lse[..task.queries].iter().enumerate() {
                // SAFETY: the lse was checked; this task alone has these rows.
                unsafe { to.row_mut(sequence.batch, task.head, position + i)[0] = lse };
            }
        }
        true
    }
}
