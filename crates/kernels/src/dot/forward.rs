//! The forward pass.
//!
//! ```text
//! for each panel of queries (lanes), for each tile of 128 keys:
//!     Sᵀ block  [8 keys, 3 vectors]   from -m on, so the product is s - m      registers
//!     P = 2^(s - m), l += P                                                    registers -> P tile
//!     Oᵀ block  [8 dims, 3 vectors] += Σ over the tile's keys  V P             registers -> O panel
//! O / l, turned back into rows; lse = (m + log₂ l) ln 2
//! ```
//! The queries are multiplied by `scale · log₂ e` when they are packed, so that weights are powers of 2.
//! Keys and values are never packed: their numbers are read one at a time and spread over the lanes.
//!
//! `m` is no running maximum. It is raised only when a score exceeds it by 8 (a factor of 256 in the
//! weight), which after the first tile hardly happens: then what was summed is rescaled. The first score
//! that a query sees sets its `m`. Outputs of one tile are summed apart and then added: a blocked sum,
//! whose error is below that of adding one key after the other.
//!
//! Keys are asked about in segments of 16. Vectors of queries that see nothing of a segment are left
//! out, segments that nobody sees are passed over, and only where a mask cuts through a vector are
//! lanes set to `-∞`.
//!
//! A hidden key meets a weight of 0, and `0 · NaN` is NaN. So if a result is not finite and a mask cut
//! through the panel, the panel is computed again, reading each value only into the lanes that see it.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::{
    mask::{TILE_KEYS, Visible},
    simd::{Buffer, Kernel, Simd, exp2, ln},
    view::{SharedRows, View},
};

use super::{
    Job,
    micro::{ROWS, product},
    modify::Modify,
    panel::{VECTORS, pack, unpack, width},
    plan::{Plan, Segment, Task},
    scores::modify_scores,
};

/// Keys whose weights are held at once.
const TILE: usize = 128;
/// Segments in a tile.
const SEGMENTS: usize = TILE / TILE_KEYS;
/// How far (in powers of 2) a score may exceed `m` before `m` is raised.
const SLACK: f32 = 8.0;

/// What the workers of one call share.
pub(super) struct Worker<'a, M> {
    pub(super) job: &'a Job<'a, M>,
    pub(super) plan: &'a Plan,
    pub(super) output: SharedRows<'a, f32>,
    /// `[batch, heads, queries, 1]`
    pub(super) lse: Option<SharedRows<'a, f32>>,
    pub(super) next: &'a AtomicUsize,
}

/// One worker's memory.
struct Scratch {
    /// Qᵀ, `[dim, width]`.
    query: Buffer,
    /// Sᵀ, then Pᵀ, `[TILE, width]`.
    weights: Buffer,
    /// Oᵀ, `[value_dim, width]`.
    output: Buffer,
    /// `-m`, the bound above which `m` is raised, and `l`: `[width]` each.
    minus_m: Buffer,
    limit: Buffer,
    sum: Buffer,
    segments: [Segment; SEGMENTS],
}

impl<M: Modify> Kernel for Worker<'_, M> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let (width, sizes) = (width::<S>(), &self.job.sizes);
        let mut scratch = Scratch {
            query: Buffer::new(sizes.dim * width),
            weights: Buffer::new(TILE * width),
            output: Buffer::new(sizes.value_dim * width),
            minus_m: Buffer::new(width),
            limit: Buffer::new(width),
            sum: Buffer::new(width),
            segments: [Segment::EMPTY; SEGMENTS],
        };
        loop {
            let task = self.next.fetch_add(1, Ordering::Relaxed);
            if task >= self.plan.tasks() {
                return;
            }
            let task = self.plan.task(&self.job.attention, sizes, task);
            if !self.panel(s, &mut scratch, &task, false) {
                self.panel(s, &mut scratch, &task, true);
            }
        }
    }
}

impl<M: Modify> Worker<'_, M> {
    /// Computes one panel. False if `careful` is not set and would have made a difference.
    #[inline(always)]
    fn panel<S: Simd>(&self, s: S, scratch: &mut Scratch, task: &Task, careful: bool) -> bool {
        let job = self.job;
        let (sizes, width) = (&job.sizes, width::<S>());
        let sequence = &task.sequence;
        let key_head = task.head / (sizes.heads / sizes.key_heads);
        let query_row = |i: usize| {
            job.query.row(
                sequence.batch,
                task.head,
                sequence.first_query + task.query + i,
            )
        };
        let stride = job.query.strides[2];
        pack(
            s,
            &mut scratch.query,
            task.queries,
            sizes.dim,
            stride,
            job.factor,
            query_row,
        );
        scratch.output.fill(0.0);
        scratch.minus_m.fill(0.0);
        scratch.limit.fill(f32::NEG_INFINITY);
        scratch.sum.fill(0.0);

        let visible = Visible::new(&job.attention, sizes, sequence, task.index, task.head);
        let key = Rows::new(&job.key, sequence.batch, key_head, sequence.first_key);
        let value = Rows::new(&job.value, sequence.batch, key_head, sequence.first_key);
        let range = visible.reach(task.query, task.queries);
        let mut partial = false;
        let mut first = range.start / TILE_KEYS * TILE_KEYS;
        while first < range.end {
            let mut count = 0;
            while count < SEGMENTS && first < range.end {
                let keys = TILE_KEYS.min(range.end - first);
                let segment = Segment::new(&visible, job.modify, task, S::LANES, first, keys);
                first += TILE_KEYS;
                if let Some(segment) = segment {
                    partial |= segment.bits.is_some();
                    scratch.segments[count] = segment;
                    count += 1;
                }
            }
            self.tile(s, scratch, task, count, key, value, careful);
        }
        self.finish(s, scratch, task, partial && !careful)
    }

    /// Scores, weights and context of the first `count` segments.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    fn tile<S: Simd>(
        &self,
        s: S,
        scratch: &mut Scratch,
        task: &Task,
        count: usize,
        key: Rows,
        value: Rows,
        careful: bool,
    ) {
        for index in 0..count {
            let segment = scratch.segments[index];
            let at = index * TILE_KEYS; // rows of the P tile
            if S::LANES == 16 {
                for row in (0..segment.keys).step_by(8) {
                    self.scores::<S, 8>(s, scratch, task, &segment, at, row, key);
                }
            } else {
                for row in (0..segment.keys).step_by(4) {
                    self.scores::<S, 4>(s, scratch, task, &segment, at, row, key);
                }
            }
        }
        if let Some(dropout) = &self.job.attention.dropout {
            super::scores::drop_weights(
                s,
                dropout,
                task,
                &scratch.segments[..count],
                &mut scratch.weights,
            );
        }
        let mut index = 0;
        while index < count {
            let segment = scratch.segments[index];
            if careful && segment.bits.is_some() {
                careful_context(s, scratch, index, value, self.job.sizes.value_dim);
                index += 1;
                continue;
            }
            // Segments that follow each other and have the same live vectors are read as one.
            let mut keys = segment.keys;
            index += 1;
            while index < count {
                let next = &scratch.segments[index];
                let follows = next.key == segment.key + keys
                    && (next.first, next.end) == (segment.first, segment.end);
                if !follows || careful && next.bits.is_some() {
                    break;
                }
                keys += next.keys;
                index += 1;
            }
            let at = (index - keys.div_ceil(TILE_KEYS)) * TILE_KEYS;
            let run = Context {
                weights: &scratch.weights[at * width::<S>()..][..keys * width::<S>()],
                output: &mut scratch.output,
                value: value.from(segment.key),
                keys,
                value_dim: self.job.sizes.value_dim,
                first: segment.first,
            };
            match segment.end - segment.first {
                3 => s.outline(ContextKernel::<3>(run)),
                2 => s.outline(ContextKernel::<2>(run)),
                _ => s.outline(ContextKernel::<1>(run)),
            }
        }
    }

    /// Weights of the `R` keys from `row` of a segment on, whose rows of the P tile start at `at`.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    fn scores<S: Simd, const R: usize>(
        &self,
        s: S,
        scratch: &mut Scratch,
        task: &Task,
        segment: &Segment,
        at: usize,
        row: usize,
        key: Rows,
    ) {
        let job = self.job;
        let width = width::<S>();
        let keys = R.min(segment.keys - row);
        let (first, at) = (segment.key + row, at + row);
        let bits = segment.bits.as_ref().map(|bits| {
            let mut block = [[0u16; ROWS]; VECTORS];
            for (block, bits) in block.iter_mut().zip(bits) {
                block[..R].copy_from_slice(&bits[row..][..R]);
            }
            block
        });
        let block = ScoreBlock {
            query: &scratch.query[..job.sizes.dim * width],
            dim: job.sizes.dim,
            key: std::array::from_fn(|r| key.from(first + r.min(keys - 1)).start),
            first: segment.first,
            minus_m: &scratch.minus_m,
            limit: &scratch.limit,
            sum: &mut scratch.sum,
            weights: &mut scratch.weights[at * width..][..R * width],
            bits: if job.modified { None } else { bits.as_ref() },
            raw: job.modified,
        };
        let exceeds = match segment.end - segment.first {
            3 => s.outline(ScoreKernel::<R, 3>(block)),
            2 => s.outline(ScoreKernel::<R, 2>(block)),
            _ => s.outline(ScoreKernel::<R, 1>(block)),
        };
        if !exceeds {
            return;
        }
        let live = segment.first..segment.end;
        if job.modified {
            let rows = &mut scratch.weights[at * width..][..R * width];
            modify_scores(
                s,
                job,
                task,
                first..first + keys,
                live.clone(),
                &scratch.minus_m,
                rows,
                bits.as_ref(),
            );
        }
        let value_dim = job.sizes.value_dim;
        s.outline(Raise::<R> {
            scratch,
            live,
            at,
            value_dim,
        });
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
                let seen = s.greater(s.load(&scratch.limit[at..]), s.splat(0.0));
                let mut factors = [0.0f32; 16];
                s.store(&mut factors, sum);
                let mut bases = [0.0f32; 16];
                s.store(&mut bases, m);
                for i in 0..S::LANES {
                    let sink = f64::from(sinks[task.head]);
                    let log = if seen >> i & 1 == 1 {
                        let own = f64::from(bases[i]) * std::f64::consts::LN_2
                            + f64::from(factors[i]).ln();
                        let top = own.max(sink);
                        top + ((own - top).exp() + (sink - top).exp()).ln()
                    } else {
                        sink
                    };
                    lse[at + i] = log as f32;
                    let power = f64::from(bases[i]) * std::f64::consts::LN_2 - log;
                    factors[i] = power.exp() as f32;
                }
                sum = s.load(&factors); // what divides, inverted
            } else {
                let some = s.greater(sum, s.zero());
                let log = s.add(m, s.mul(ln(s, sum), s.splat(std::f32::consts::LOG2_E)));
                let log = s.mul(log, s.splat(std::f32::consts::LN_2));
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
        // SAFETY: the output was checked; this task alone has these rows.
        let row = |i| unsafe { self.output.row_mut(sequence.batch, task.head, position + i) };
        unpack(s, &scratch.output, task.queries, value_dim, row);
        if let Some(to) = &self.lse {
            for (i, &lse) in lse[..task.queries].iter().enumerate() {
                // SAFETY: as above.
                unsafe { to.row_mut(sequence.batch, task.head, position + i)[0] = lse };
            }
        }
        true
    }
}

/// Rows of a key or value, from one position on.
#[derive(Clone, Copy)]
struct Rows {
    start: *const f32,
    stride: usize,
}

impl Rows {
    fn new(view: &View, batch: usize, head: usize, first: usize) -> Self {
        Self {
            start: view.data.as_ptr().wrapping_add(view.at(batch, head, first)),
            stride: view.strides[2],
        }
    }

    #[inline(always)]
    fn from(self, position: usize) -> Self {
        let start = self.start.wrapping_add(position * self.stride);
        Self { start, ..self }
    }
}

/// Scores of up to 8 keys against the live vectors.
struct ScoreBlock<'a> {
    query: &'a [f32],
    dim: usize,
    key: [*const f32; ROWS],
    first: usize,
    minus_m: &'a [f32],
    limit: &'a [f32],
    sum: &'a mut [f32],
    weights: &'a mut [f32],
    bits: Option<&'a [[u16; ROWS]; VECTORS]>,
    /// Leave the bare products behind.
    raw: bool,
}

/// Writes `R` rows of weights and adds them to the sums. True if it wrote scores (less `m`) instead,
/// because one exceeds the limit or because they were asked for raw.
struct ScoreKernel<'a, const R: usize, const V: usize>(ScoreBlock<'a>);

impl<const R: usize, const V: usize> Kernel for ScoreKernel<'_, R, V> {
    type Output = bool;

    #[inline(always)]
    fn call<S: Simd>(self, s: S) -> bool {
        let block = self.0;
        let width = width::<S>();
        let offset = block.first * S::LANES;
        let mut start = [s.zero(); V];
        if !block.raw {
            for (v, x) in start.iter_mut().enumerate() {
                *x = s.load(&block.minus_m[offset + v * S::LANES..]);
            }
        }
        let key: [*const f32; R] = std::array::from_fn(|r| block.key[r]);
        assert!(block.query.len() >= block.dim * width && block.weights.len() >= R * width);
        // SAFETY: the panel has `dim` lines; the keys are rows of `dim` numbers of a checked view.
        let mut acc = unsafe {
            let query = block.query.as_ptr().add(offset);
            product::<S, R, V>(s, block.dim, query, width, key, 1, [start; R])
        };
        if let Some(bits) = block.bits {
            for (r, row) in acc.iter_mut().enumerate() {
                for (v, x) in row.iter_mut().enumerate() {
                    let bits = bits[block.first + v][r];
                    *x = s.select(bits.into(), *x, s.splat(f32::NEG_INFINITY));
                }
            }
        }
        let mut over = u32::from(block.raw);
        for v in 0..V {
            let mut largest = acc[0][v];
            for row in &acc[1..] {
                largest = s.max(largest, row[v]);
            }
            over |= s.greater(largest, s.load(&block.limit[offset + v * S::LANES..]));
        }
        for v in 0..V {
            let at = offset + v * S::LANES;
            let mut sum = s.zero();
            for (r, row) in acc.iter().enumerate() {
                let to = &mut block.weights[r * width + at..];
                if over != 0 {
                    s.store(to, row[v]);
                } else {
                    let weight = exp2(s, row[v]);
                    sum = s.add(sum, weight);
                    s.store(to, weight);
                }
            }
            let total = s.load(&block.sum[at..]);
            s.store(&mut block.sum[at..], s.add(total, sum));
        }
        over != 0
    }
}

/// Turns `R` rows of scores (less `m`) at `at` into weights, raising `m` where they exceed the limit.
struct Raise<'a, const R: usize> {
    scratch: &'a mut Scratch,
    live: std::ops::Range<usize>,
    at: usize,
    value_dim: usize,
}

impl<const R: usize> Kernel for Raise<'_, R> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let width = width::<S>();
        let scratch = self.scratch;
        let (earlier, rows) = scratch.weights.split_at_mut(self.at * width);
        for v in self.live {
            let lane = v * S::LANES;
            let column = |row: usize| row * width + lane;
            let mut largest = s.load(&rows[column(0)..]);
            for r in 1..R {
                largest = s.max(largest, s.load(&rows[column(r)..]));
            }
            let limit = s.load(&scratch.limit[lane..]);
            let over = s.greater(largest, limit);
            let mut shift = s.zero();
            if over != 0 {
                let seen = s.greater(limit, s.zero());
                shift = s.select(over, s.sub(s.zero(), largest), shift);
                let factor = s.select(seen, exp2(s, shift), s.splat(1.0));
                let minus_m = s.load(&scratch.minus_m[lane..]);
                s.store(&mut scratch.minus_m[lane..], s.add(minus_m, shift));
                s.store(
                    &mut scratch.limit[lane..],
                    s.select(over, s.splat(SLACK), limit),
                );
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
            }
            let mut sum = s.zero();
            for r in 0..R {
                let weight = exp2(s, s.add(s.load(&rows[column(r)..]), shift));
                sum = s.add(sum, weight);
                s.store(&mut rows[column(r)..], weight);
            }
            let total = s.load(&scratch.sum[lane..]);
            s.store(&mut scratch.sum[lane..], s.add(total, sum));
        }
    }
}

/// Adds `keys` weighted values to the output panel.
struct Context<'a> {
    /// `[keys, width]`
    weights: &'a [f32],
    /// `[value_dim, width]`
    output: &'a mut [f32],
    value: Rows,
    keys: usize,
    value_dim: usize,
    first: usize,
}

struct ContextKernel<'a, const V: usize>(Context<'a>);

impl<const V: usize> Kernel for ContextKernel<'_, V> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let mut run = self.0;
        let mut dim = 0;
        if S::LANES == 16 {
            while dim + 8 <= run.value_dim {
                context_block::<S, 8, V>(s, &mut run, dim);
                dim += 8;
            }
        }
        while dim + 4 <= run.value_dim {
            context_block::<S, 4, V>(s, &mut run, dim);
            dim += 4;
        }
        while dim < run.value_dim {
            context_block::<S, 1, V>(s, &mut run, dim);
            dim += 1;
        }
    }
}

/// `R` dims of the context.
#[inline(always)]
fn context_block<S: Simd, const R: usize, const V: usize>(s: S, run: &mut Context, dim: usize) {
    let width = width::<S>();
    let offset = run.first * S::LANES;
    assert!(run.weights.len() >= run.keys * width && run.output.len() >= (dim + R) * width);
    let columns: [*const f32; R] = std::array::from_fn(|r| run.value.start.wrapping_add(dim + r));
    // SAFETY: the tile has `keys` lines; the values are `keys` rows of a checked view, of which
    // `dim + R` numbers are read.
    let acc = unsafe {
        let weights = run.weights.as_ptr().add(offset);
        let zero = [[s.zero(); V]; R];
        product::<S, R, V>(s, run.keys, weights, width, columns, run.value.stride, zero)
    };
    for (r, row) in acc.iter().enumerate() {
        for (v, &x) in row.iter().enumerate() {
            let to = &mut run.output[(dim + r) * width + offset + v * S::LANES..];
            let total = s.add(s.load(to), x);
            s.store(to, total);
        }
    }
}

/// The context of one segment, each value read only into the lanes that see it.
#[inline(always)]
fn careful_context<S: Simd>(
    s: S,
    scratch: &mut Scratch,
    index: usize,
    value: Rows,
    value_dim: usize,
) {
    let width = width::<S>();
    let segment = &scratch.segments[index];
    let Some(bits) = &segment.bits else { return };
    for dim in 0..value_dim {
        for v in segment.first..segment.end {
            let mut sum = s.zero();
            for j in 0..segment.keys {
                // SAFETY: the position is one of the sequence's, the dim one of the row's.
                let x = unsafe { *value.from(segment.key + j).start.add(dim) };
                let at = (index * TILE_KEYS + j) * width + v * S::LANES;
                let read = s.fma(s.splat(x), s.load(&scratch.weights[at..]), sum);
                sum = s.select(bits[v][j].into(), read, sum);
            }
            let to = &mut scratch.output[dim * width + v * S::LANES..];
            let total = s.add(s.load(to), sum);
            s.store(to, total);
        }
    }
}
