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
    simd::{Buffer, Kernel, Simd, exp2, split_ln},
    view::{SharedRows, View},
};

use super::{
    Job,
    micro::{Factor, outline},
    modify::Modify,
    pairs::{CarefulContext, PackWeights},
    panel::{VECTORS, pack, unpack, width},
    plan::{Plan, Segment, Task, Tile},
    scores::{drop_weights, modify_score, turn_bias},
    stored::Rows,
};

/// Keys whose weights are held at once.
pub(super) const TILE: usize = 128;
/// Segments in a tile.
pub(super) const SEGMENTS: usize = TILE / TILE_KEYS;
/// The sum of one block's weights above which `m` is raised to the largest of its scores.
const LIMIT: f32 = 256.0;

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

/// One worker's memory.
struct Scratch {
    /// Qᵀ, `[dim, width]`.
    query: Buffer,
    /// Sᵀ, then Pᵀ, `[TILE, width]`.
    weights: Buffer,
    /// Oᵀ, `[value_dim, width]`.
    output: Buffer,
    /// `-m`; 1 where a key has been seen, else 0; and `l`: `[width]` each.
    minus_m: Buffer,
    met: Buffer,
    sum: Buffer,
    /// Biasᵀ of 16 keys, `[16, width]`, and as many lines more as a block may reach over.
    bias: Buffer,
    /// Keys or values of a segment, or rows of queries or outputs, where these are not stored as `f32`.
    wide: Buffer,
    /// Vectors of which every lane has seen a key.
    settled: [bool; VECTORS],
    tile: Tile<SEGMENTS>,
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
        let mut first = range.start / TILE_KEYS * TILE_KEYS;
        while first < range.end {
            let tile = &mut scratch.tile;
            let (modify, lanes) = (job.modify, S::LANES);
            partial |= tile.fill(
                &visible,
                modify,
                task,
                lanes,
                &seen_by_all,
                range.end,
                &mut first,
            );
            self.tile(s, scratch, task, key, value, careful);
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
            let done = match live.len() {
                3 => outline::<S, F, _>(s, ScoreKernel::<M, F, R, 3>(block)),
                2 => outline::<S, F, _>(s, ScoreKernel::<M, F, R, 2>(block)),
                _ => outline::<S, F, _>(s, ScoreKernel::<M, F, R, 1>(block)),
            };
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

/// Scores of keys against the live vectors.
pub(super) struct ScoreBlock<'a, M, F = f32> {
    pub(super) job: &'a Job<'a, M>,
    pub(super) task: &'a Task,
    /// `[dim, width]`
    pub(super) query: &'a [f32],
    /// The row of the first key.
    pub(super) key: Rows<F>,
    pub(super) keys: std::ops::Range<usize>,
    pub(super) first: usize,
    pub(super) minus_m: &'a [f32],
    pub(super) sum: &'a mut [f32],
    /// `[keys, width]`, rounded up to whole blocks.
    pub(super) weights: &'a mut [f32],
    /// Of the segment, in which the first key is number `row`.
    pub(super) bits: Option<&'a [[u16; TILE_KEYS]; VECTORS]>,
    pub(super) row: usize,
    /// `[keys, width]`, if there is a bias.
    pub(super) bias: &'a [f32],
    /// Leave scores behind, before base and mask, not weights.
    pub(super) raw: bool,
}

/// Writes weights and adds them to the sums, or writes scores if asked for, in blocks of `R`
/// keys. Returns the number of keys done: less than all where a weight is too large, so that `m` must
/// be raised before going on.
pub(super) struct ScoreKernel<'a, M, F, const R: usize, const V: usize>(
    pub(super) ScoreBlock<'a, M, F>,
);

impl<M: Modify, F: Factor, const R: usize, const V: usize> Kernel for ScoreKernel<'_, M, F, R, V> {
    type Output = usize;

    #[inline(always)]
    fn call<S: Simd>(self, s: S) -> usize {
        let block = self.0;
        let width = width::<S>();
        let (depth, keys) = (block.job.sizes.dim / F::PER_LANE, block.keys.len());
        let modified = block.job.modified;
        let to_base = s.splat(block.job.to_base());
        let offset = block.first * S::LANES;
        assert!(offset + V * S::LANES <= width && block.sum.len() >= width);
        assert!(block.query.len() >= depth * width);
        assert!(block.weights.len() >= keys.next_multiple_of(R) * width);
        let mut minus_m = [s.zero(); V];
        for (v, x) in minus_m.iter_mut().enumerate() {
            *x = s.load(&block.minus_m[offset + v * S::LANES..]);
        }
        for row in (0..keys).step_by(R) {
            let last = keys - row - 1;
            let key: [*const F; R] =
                std::array::from_fn(|r| block.key.from(row + r.min(last)).start);
            // SAFETY: the panel has `depth` lines; the keys are rows of `dim` numbers of a checked view.
            let mut acc = unsafe {
                let query = block.query.as_ptr().add(offset);
                F::product::<S, R, V>(s, depth, query, width, key, F::PER_LANE)
            };
            if modified {
                for (r, line) in acc.iter_mut().enumerate() {
                    for (v, x) in line.iter_mut().enumerate() {
                        let at = (row + r) * width + offset + v * S::LANES;
                        let bias = block.job.attention.bias.map(|_| s.load(&block.bias[at..]));
                        let (key, vector) = (block.keys.start + row + r, block.first + v);
                        let score = s.mul(*x, s.splat(block.job.factor));
                        *x = modify_score(s, block.job, block.task, vector, key, score, bias);
                    }
                }
            }
            let to = block.weights[row * width..][..R * width]
                .as_mut_ptr()
                .wrapping_add(offset);
            if block.raw {
                for (r, line) in acc.iter().enumerate() {
                    for (v, &x) in line.iter().enumerate() {
                        // SAFETY: the slice has `R` lines of `width` numbers, the vector lies in one.
                        unsafe { s.store_to(to.add(r * width + v * S::LANES), x) };
                    }
                }
                continue;
            }
            for (r, line) in acc.iter_mut().enumerate() {
                for (v, x) in line.iter_mut().enumerate() {
                    *x = s.fma(*x, to_base, minus_m[v]);
                    if let Some(bits) = block.bits {
                        let bits = bits[block.first + v][block.row + row + r];
                        *x = s.select(bits.into(), *x, s.splat(f32::NEG_INFINITY));
                    }
                }
            }
            let mut over = 0;
            let mut sums = [s.zero(); V];
            for (v, sum) in sums.iter_mut().enumerate() {
                for (r, line) in acc.iter().enumerate() {
                    let weight = exp2(s, line[v]);
                    *sum = s.add(*sum, weight);
                    // SAFETY: as above.
                    unsafe { s.store_to(to.add(r * width + v * S::LANES), weight) };
                }
                over |= s.greater(*sum, s.splat(LIMIT));
            }
            if over != 0 {
                return row;
            }
            for (v, &sum) in sums.iter().enumerate() {
                // SAFETY: `sum` has `width` numbers, as was asserted.
                unsafe {
                    let to = block.sum.as_mut_ptr().add(offset + v * S::LANES);
                    s.store_to(to, s.add(s.load_from(to), sum));
                }
            }
        }
        keys
    }
}

/// Turns `R` rows of scores at `at` into weights, raising `m` where they are too large. What happens to a
/// lane depends on its own scores alone.
struct Raise<'a, const R: usize> {
    scratch: &'a mut Scratch,
    live: std::ops::Range<usize>,
    at: usize,
    /// The segment, in which the first of the rows is number `row`.
    segment: &'a Segment,
    row: usize,
    to_base: f32,
    value_dim: usize,
}

impl<const R: usize> Kernel for Raise<'_, R> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let width = width::<S>();
        let scratch = self.scratch;
        let (earlier, rows) = scratch.weights.split_at_mut(self.at * width);
        let rows = &mut rows[..R * width];
        for v in self.live {
            let lane = v * S::LANES;
            let to_base = s.splat(self.to_base);
            let hidden = s.splat(f32::NEG_INFINITY);
            let bits = self.segment.bits.map(|bits| bits[v]);
            let less_m = |r: usize, minus_m: S::V| {
                let x = s.fma(s.load(&rows[r * width + lane..]), to_base, minus_m);
                bits.map_or(x, |bits| s.select(bits[self.row + r].into(), x, hidden))
            };
            let minus_m = s.load(&scratch.minus_m[lane..]);
            let mut weights = [s.zero(); R];
            let mut sum = s.zero();
            let mut largest = hidden;
            for (r, weight) in weights.iter_mut().enumerate() {
                let x = less_m(r, minus_m);
                *weight = exp2(s, x);
                sum = s.add(sum, *weight);
                largest = s.max(largest, x);
            }
            let met = s.load(&scratch.met[lane..]);
            let unmet = s.greater(s.splat(0.5), met);
            let first = unmet & s.greater(largest, s.splat(f32::NEG_INFINITY));
            let over = first | (!unmet & s.greater(sum, s.splat(LIMIT)));
            if over != 0 {
                let shift = s.select(over, s.sub(s.zero(), largest), s.zero());
                let factor = s.select(first, s.splat(1.0), exp2(s, shift));
                let minus_m = s.add(minus_m, shift);
                s.store(&mut scratch.minus_m[lane..], minus_m);
                let met = s.select(over, s.splat(1.0), met);
                s.store(&mut scratch.met[lane..], met);
                scratch.settled[v] = s.greater(s.splat(0.5), met) == 0;
                let scale = |x: &mut [f32]| {
                    let scaled = s.mul(s.load(x), factor);
                    s.store(x, scaled);
                };
                for line in earlier.chunks_exact_mut(width) {
                    scale(&mut line[lane..]);
                }
                for line in scratch.output[..self.value_dim * width].chunks_exact_mut(width) {
                    scale(&mut line[lane..]);
                }
                scale(&mut scratch.sum[lane..]);
                // From the products again: the same rounding as in blocks that come later.
                sum = s.zero();
                for (r, weight) in weights.iter_mut().enumerate() {
                    *weight = exp2(s, less_m(r, minus_m));
                    sum = s.add(sum, *weight);
                }
            }
            for (r, &weight) in weights.iter().enumerate() {
                s.store(&mut rows[r * width + lane..], weight);
            }
            let total = s.load(&scratch.sum[lane..]);
            s.store(&mut scratch.sum[lane..], s.add(total, sum));
        }
    }
}

/// Runs the context of `vectors` live vectors.
#[inline(always)]
fn add_context<S: Simd, F: Factor>(s: S, run: Context<F>, vectors: usize) {
    match vectors {
        3 => outline::<S, F, _>(s, ContextKernel::<F, 3>(run)),
        2 => outline::<S, F, _>(s, ContextKernel::<F, 2>(run)),
        _ => outline::<S, F, _>(s, ContextKernel::<F, 1>(run)),
    }
}

/// Adds `keys` weighted values to the output panel.
pub(super) struct Context<'a, F = f32> {
    /// `[keys, width]`
    pub(super) weights: &'a [f32],
    /// `[value_dim, width]`
    pub(super) output: &'a mut [f32],
    pub(super) value: Rows<F>,
    /// Keys, or pairs of them.
    pub(super) keys: usize,
    pub(super) value_dim: usize,
    pub(super) first: usize,
}

pub(super) struct ContextKernel<'a, F, const V: usize>(pub(super) Context<'a, F>);

impl<F: Factor, const V: usize> Kernel for ContextKernel<'_, F, V> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let mut run = self.0;
        let mut dim = 0;
        if S::LANES == 16 {
            while dim + 8 <= run.value_dim {
                context_block::<S, F, 8, V>(s, &mut run, dim);
                dim += 8;
            }
        }
        while dim + 4 <= run.value_dim {
            context_block::<S, F, 4, V>(s, &mut run, dim);
            dim += 4;
        }
        while dim < run.value_dim {
            context_block::<S, F, 1, V>(s, &mut run, dim);
            dim += 1;
        }
    }
}

/// `R` dims of the context.
#[inline(always)]
fn context_block<S: Simd, F: Factor, const R: usize, const V: usize>(
    s: S,
    run: &mut Context<F>,
    dim: usize,
) {
    let width = width::<S>();
    let offset = run.first * S::LANES;
    assert!(run.weights.len() >= run.keys * width && run.output.len() >= (dim + R) * width);
    let columns: [*const F; R] =
        std::array::from_fn(|r| run.value.start.wrapping_add(F::PER_LANE * (dim + r)));
    // SAFETY: the tile has `keys` lines; the values are `keys` rows of a checked view, of which
    // `dim + R` numbers are read.
    let acc = unsafe {
        let weights = run.weights.as_ptr().add(offset);
        F::product::<S, R, V>(s, run.keys, weights, width, columns, run.value.stride)
    };
    let to = run.output[dim * width..][..R * width]
        .as_mut_ptr()
        .wrapping_add(offset);
    assert!(offset + V * S::LANES <= width);
    for (r, row) in acc.iter().enumerate() {
        for (v, &x) in row.iter().enumerate() {
            // SAFETY: the slice has `R` lines of `width` numbers, the vector lies in one.
            unsafe {
                let to = to.add(r * width + v * S::LANES);
                s.store_to(to, s.add(s.load_from(to), x));
            }
        }
    }
}

/// The context of segments that follow each other, each value read only into the lanes that see it.
#[inline(always)]
pub(super) fn careful_context<S: Simd>(s: S, run: Context, segments: &[Segment]) {
    let width = width::<S>();
    for dim in 0..run.value_dim {
        for v in run.first..segments[0].end {
            let mut sum = s.zero();
            let mut row = 0;
            for segment in segments {
                for j in 0..segment.keys {
                    // SAFETY: the position is one of the sequence's, the dim one of the row's.
                    let x = unsafe { *run.value.from(row).start.add(dim) };
                    let weight = s.load(&run.weights[row * width + v * S::LANES..]);
                    let seen = segment.bits.as_ref().map_or(!0, |bits| bits[v][j]);
                    sum = s.select(seen.into(), s.fma(s.splat(x), weight, sum), sum);
                    row += 1;
                }
            }
            let to = &mut run.output[dim * width + v * S::LANES..];
            let total = s.add(s.load(to), sum);
            s.store(to, total);
        }
    }
}
