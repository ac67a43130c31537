//! Decoding: one or a few queries against a long cache.
//!
//! ```text
//! for each (batch, key head), each split of 2,048 keys:           tasks, in any order
//!     for each tile of 64 keys:                                   prefetched
//!         s[r][j] = q_r · k_j      r: all queries of all query heads of this key head
//!         p = e^{s - m}, l += p    m raised when a tile asks for it
//!         o[r]   += Σ_j p[r][j] v_j
//! splits merged by (m, l) in the order of their keys
//! ```
//! The work is reading the cache: every key and value is read once for all its query heads, in the type
//! it is stored in (`f32`, bfloat16, half precision). While the scores of a tile are computed its values
//! are fetched, and while its values are read the next tile's keys. Splits have a fixed size, so the
//! result is the same on any number of threads. Memory: `(value_dim + 2)` numbers for each query row and
//! split.
//!
//! A key that a query may not see is not read for it.
//!
//! ```
//! use regard_kernels::{Attention, View, ViewMut, dot::{self, Cache}};
//!
//! // A cache with room for 4 keys, of which 2 are filled.
//! let (key, value) = ([1.0f32, 1.0, f32::NAN, f32::NAN], [1.0f32, 3.0, f32::NAN, f32::NAN]);
//! let cache = Cache::Contiguous {
//!     key: View::heads_first(&key, [1, 1, 4, 1]),
//!     value: View::heads_first(&value, [1, 1, 4, 1]),
//! };
//! let mut output = [0.0f32];
//! let attention = Attention { lengths: Some(&[2]), ..Attention::default() };
//! let query = View::heads_first(&[0.5f32], [1, 1, 1, 1]);
//! dot::decode(&attention, query, cache, ViewMut::heads_first(&mut output, [1, 1, 1, 1]), None)?;
//! assert_eq!(output, [2.0]);
//! # Ok::<(), regard_kernels::KernelError>(())
//! ```

use std::{
    ops::Range,
    sync::atomic::{AtomicUsize, Ordering},
};

use crate::{
    element::{Element, load},
    error::{KernelError, check_length, check_size},
    mask::{Plane, Visible},
    problem::{Alignment, Attention, Sequence, Sizes},
    simd::{Buffer, Kernel, Level, Simd, exp, run, tanh},
    threads::crew,
    view::{SharedRows, View, ViewMut},
};

use super::check_shape;

/// Keys whose scores are held at once.
const TILE: usize = 64;
/// Keys in a task.
const SPLIT: usize = 2048;
/// Query rows in a register block.
const ROWS: usize = 4;

/// Where the keys and values of past positions are.
#[derive(Debug, Clone, Copy)]
pub enum Cache<'a, T> {
    /// Side by side.
    Contiguous {
        /// `[batch, key_heads, keys, dim]`
        key: View<'a, T>,
        /// `[batch, key_heads, keys, value_dim]`
        value: View<'a, T>,
    },
    /// In pages that a table gives to sequences.
    Paged {
        /// `[pages, key_heads, page_size, dim]`
        key: View<'a, T>,
        /// `[pages, key_heads, page_size, value_dim]`
        value: View<'a, T>,
        /// `[batch, pages of a sequence]`: the pages of each sequence, in order. Entries beyond its length
        /// are not read. [`Attention::lengths`] is needed.
        table: &'a [u32],
    },
}

/// `output [batch, heads, queries, value_dim]` for `query [batch, heads, queries, dim]`.
/// [`Attention::lengths`] says how many keys of each sequence are filled; positions count among those, so
/// with [`Alignment::LowerRight`] the last query stands at the last filled key. `lse`, if asked for, is
/// `[batch, heads, queries]`.
///
/// # Errors
/// An argument whose shape, strides or values do not fit, by name; dropout and packed batches, which
/// decoding does not have. Nothing is written then.
pub fn decode<T: Element>(
    attention: &Attention,
    query: View,
    cache: Cache<T>,
    output: ViewMut,
    lse: Option<&mut [f32]>,
) -> Result<(), KernelError> {
    decode_at(Level::current(), attention, query, cache, output, lse)
}

pub(super) fn decode_at<T: Element>(
    level: Level,
    attention: &Attention,
    query: View,
    cache: Cache<T>,
    mut output: ViewMut,
    lse: Option<&mut [f32]>,
) -> Result<(), KernelError> {
    let call = Call::new(attention, query, cache)?;
    let [batch, heads, queries, _] = query.shape;
    let shape = [batch, heads, queries, call.sizes.value_dim];
    check_shape("output", output.shape, shape)?;
    output.check("output")?;
    let mut lse = match lse {
        None => None,
        Some(lse) => {
            check_length("lse", "[batch, heads, queries]", &shape[..3], lse.len())?;
            Some(ViewMut::heads_first(lse, [batch, heads, queries, 1]))
        }
    };
    let tasks = call.tasks();
    let rows = call.rows();
    let width = call.sizes.value_dim + 2;
    let mut parts = vec![0.0f32; tasks.len() * rows * width];
    let mut whole = ViewMut::heads_first(&mut parts, [1, 1, tasks.len(), rows * width]);
    let shared = whole.shared();
    let pairs: usize = tasks.iter().map(|task| task.keys.len()).sum();
    let dims = call.sizes.dim + call.sizes.value_dim;
    let nanoseconds = (pairs * dims * size_of::<T>()) as f64 / 10.0;
    crew(tasks.len(), nanoseconds, &|next: &AtomicUsize| {
        run(
            level,
            Worker {
                call: &call,
                tasks: &tasks,
                parts: shared,
                next,
            },
        );
    });
    let (output, lse) = (output.shared(), lse.as_mut().map(ViewMut::shared));
    call.merge(&tasks, &parts, output, lse);
    Ok(())
}

/// A checked call.
struct Call<'a, T> {
    attention: Attention<'a>,
    sizes: Sizes,
    query: View<'a>,
    key: View<'a, T>,
    value: View<'a, T>,
    /// Page table and pages of a sequence.
    table: Option<(&'a [u32], usize)>,
    /// Filled keys of each sequence; `None` if all are.
    lengths: Option<&'a [u32]>,
    scale: f32,
}

/// Some keys of one key head of one sequence.
struct Task {
    batch: usize,
    key_head: usize,
    keys: Range<usize>,
}

impl<'a, T: Element> Call<'a, T> {
    fn new(
        attention: &Attention<'a>,
        query: View<'a>,
        cache: Cache<'a, T>,
    ) -> Result<Self, KernelError> {
        let refuse = |argument, found| {
            let expected = "nothing: decoding does not have it";
            Err(KernelError::Value {
                argument,
                expected,
                found,
            })
        };
        if let Some(dropout) = attention.dropout {
            return refuse("dropout.probability", dropout.probability.into());
        }
        if let Some(offsets) = attention.offsets {
            return refuse("offsets", offsets.query.len() as f64);
        }
        let (key, value) = match cache {
            Cache::Contiguous { key, value } | Cache::Paged { key, value, .. } => (key, value),
        };
        query.check("query")?;
        key.check("key")?;
        value.check("value")?;
        let batch = query.shape[0];
        let (mut key_shape, mut value_shape) = (key.shape, value.shape);
        let mut pages = None;
        if let Cache::Paged { table, .. } = cache {
            check_size(
                "value",
                "pages",
                value.shape[0],
                key.shape[0],
                "as the key has",
            )?;
            let lengths = attention.lengths.unwrap_or_default();
            check_length(
                "lengths",
                "[batch], needed for pages",
                &[batch],
                lengths.len(),
            )?;
            let per_sequence = table.len().checked_div(batch).unwrap_or(0);
            let shape = "[batch, pages of a sequence]";
            check_length("table", shape, &[batch, per_sequence], table.len())?;
            for shape in [&mut key_shape, &mut value_shape] {
                shape[0] = batch;
                shape[2] = shape[2].saturating_mul(per_sequence);
            }
            pages = Some((table, per_sequence));
        }
        let sizes = attention.check(query.shape, key_shape, value_shape)?;
        for (position, &length) in attention.lengths.unwrap_or_default().iter().enumerate() {
            if length as usize > sizes.keys {
                return Err(KernelError::Entry {
                    argument: "lengths",
                    position,
                    expected: format!("at most the cache's {} keys", sizes.keys),
                    found: length.to_string(),
                });
            }
            let Some((table, per_sequence)) = pages else {
                continue;
            };
            let used = (length as usize).div_ceil(key.shape[2].max(1));
            let first = position * per_sequence;
            let beyond = |&page: &u32| page as usize >= key.shape[0];
            if let Some(page) = table[first..first + used].iter().position(beyond) {
                return Err(KernelError::Entry {
                    argument: "table",
                    position: first + page,
                    expected: format!("a page below {}", key.shape[0]),
                    found: table[first + page].to_string(),
                });
            }
        }
        Ok(Self {
            attention: Attention {
                lengths: None,
                ..*attention
            },
            sizes,
            query,
            key,
            value,
            table: pages,
            lengths: attention.lengths,
            scale: attention.scale(sizes.dim),
        })
    }

    /// Query rows that read the same keys: those of a group of heads.
    fn rows(&self) -> usize {
        self.group() * self.sizes.queries
    }

    fn group(&self) -> usize {
        self.sizes
            .heads
            .checked_div(self.sizes.key_heads)
            .unwrap_or(0)
    }

    fn length(&self, batch: usize) -> usize {
        self.lengths
            .map_or(self.sizes.keys, |lengths| lengths[batch] as usize)
    }

    fn visible(&self, batch: usize, head: usize) -> Visible<'a> {
        let sequence = Sequence {
            batch,
            first_query: 0,
            queries: self.sizes.queries,
            first_key: 0,
            keys: self.length(batch),
        };
        Visible::new(&self.attention, &self.sizes, &sequence, batch, head)
    }

    fn tasks(&self) -> Vec<Task> {
        let mut tasks = Vec::new();
        if self.rows() == 0 {
            return tasks;
        }
        for batch in 0..self.sizes.batch {
            for key_head in 0..self.sizes.key_heads {
                let heads = key_head * self.group()..(key_head + 1) * self.group();
                let reaches =
                    heads.map(|head| self.visible(batch, head).reach(0, self.sizes.queries));
                let (first, end) = reaches.fold((usize::MAX, 0), |(first, end), reach| {
                    (first.min(reach.start), end.max(reach.end))
                });
                let mut key = first;
                while key < end {
                    let next = ((key / SPLIT + 1) * SPLIT).min(end);
                    tasks.push(Task {
                        batch,
                        key_head,
                        keys: key..next,
                    });
                    key = next;
                }
            }
        }
        tasks
    }

    /// Where the row of a position starts.
    #[inline(always)]
    fn at(&self, view: &View<'a, T>, task: &Task, position: usize) -> usize {
        match self.table {
            None => view.at(task.batch, task.key_head, position),
            Some((table, per_sequence)) => {
                let size = view.shape[2];
                let page = table[task.batch * per_sequence + position / size] as usize;
                view.at(page, task.key_head, position % size)
            }
        }
    }

    /// Softcap, bias and ALiBi of scores `keys.start..`, in place.
    #[inline(always)]
    fn modify<S: Simd>(
        &self,
        s: S,
        task: &Task,
        head: usize,
        query: usize,
        first: usize,
        scores: &mut [f32],
    ) {
        if let Some(cap) = self.attention.softcap {
            for at in (0..scores.len()).step_by(S::LANES) {
                let x = s.mul(s.load_at(scores, at), s.splat(1.0 / cap));
                s.store_at(scores, at, s.mul(s.splat(cap), tanh(s, x)));
            }
        }
        if let Some(bias) = &self.attention.bias {
            let plane = Plane::new(bias, task.batch, head);
            for (j, score) in scores.iter_mut().enumerate() {
                *score += plane.get(query, first + j);
            }
        }
        if let Some(slopes) = self.attention.alibi {
            let shift = match self.attention.alignment {
                Alignment::UpperLeft => 0,
                Alignment::LowerRight => self.length(task.batch) as i64 - self.sizes.queries as i64,
            };
            let position = query as i64 + shift;
            for (j, score) in scores.iter_mut().enumerate() {
                *score -= slopes[head] * position.abs_diff((first + j) as i64) as f32;
            }
        }
    }

    /// Merges the splits of every row, in the order of their keys.
    fn merge(
        &self,
        tasks: &[Task],
        parts: &[f32],
        output: SharedRows<f32>,
        lse: Option<SharedRows<f32>>,
    ) {
        let (value_dim, queries) = (self.sizes.value_dim, self.sizes.queries);
        let width = value_dim + 2;
        let mut next = 0;
        for batch in 0..self.sizes.batch {
            for key_head in 0..self.sizes.key_heads {
                let first = next;
                while next < tasks.len()
                    && (tasks[next].batch, tasks[next].key_head) == (batch, key_head)
                {
                    next += 1;
                }
                for row in 0..self.rows() {
                    let (head, query) = (key_head * self.group() + row / queries, row % queries);
                    let splits = || {
                        (first..next)
                            .map(|task| &parts[(task * self.rows() + row) * width..][..width])
                    };
                    let sink = self.attention.sink.map(|sinks| sinks[head]);
                    // The last two numbers of a split are its base and its sum.
                    let top = splits().map(|split| split[value_dim]).chain(sink);
                    let top = top.fold(f32::NEG_INFINITY, f32::max);
                    let mut total = sink.map_or(0.0, |sink| (sink - top).exp());
                    // SAFETY: the outputs were checked; no other reference to them is alive.
                    let to = unsafe { output.row_mut(batch, head, query) };
                    to.fill(0.0);
                    for split in splits().filter(|split| split[value_dim + 1] != 0.0) {
                        let factor = (split[value_dim] - top).exp();
                        total += factor * split[value_dim + 1];
                        for (to, x) in to.iter_mut().zip(split) {
                            *to += factor * x;
                        }
                    }
                    if total != 0.0 {
                        to.iter_mut().for_each(|x| *x /= total);
                    }
                    if let Some(lse) = &lse {
                        let log = if total == 0.0 {
                            f32::NEG_INFINITY
                        } else {
                            top + total.ln()
                        };
                        // SAFETY: as above.
                        unsafe { lse.row_mut(batch, head, query)[0] = log };
                    }
                }
            }
        }
    }
}

struct Worker<'a, T> {
    call: &'a Call<'a, T>,
    tasks: &'a [Task],
    /// For each task and row: `o`, `m`, `l`.
    parts: SharedRows<'a, f32>,
    next: &'a AtomicUsize,
}

/// One worker's memory.
struct Scratch {
    /// `[rows, padded dim]`
    query: Buffer,
    /// `[rows, TILE]`: scores, then weights.
    weights: Buffer,
    /// `[rows, padded value_dim]`
    output: Buffer,
    /// For each row, the keys of the tile that it sees.
    seen: Vec<u64>,
}

impl<T: Element> Kernel for Worker<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let call = self.call;
        let rows = call.rows().next_multiple_of(ROWS);
        let padded = |dim: usize| dim.next_multiple_of(S::LANES);
        let mut scratch = Scratch {
            query: Buffer::new(rows * padded(call.sizes.dim)),
            weights: Buffer::new(rows * TILE),
            output: Buffer::new(rows * padded(call.sizes.value_dim)),
            seen: vec![0; rows],
        };
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(task) = self.tasks.get(index) else {
                return;
            };
            // SAFETY: the view was made to measure; this task alone has this row.
            let part = unsafe { self.parts.row_mut(0, 0, index) };
            self.split(s, &mut scratch, task, part);
        }
    }
}

impl<T: Element> Worker<'_, T> {
    /// One task, into `part [rows, value_dim + 2]`.
    #[inline(always)]
    fn split<S: Simd>(&self, s: S, scratch: &mut Scratch, task: &Task, part: &mut [f32]) {
        let call = self.call;
        let Sizes {
            queries,
            dim,
            value_dim,
            ..
        } = call.sizes;
        let (rows, width) = (call.rows(), value_dim + 2);
        let (query_width, value_width) = (
            dim.next_multiple_of(S::LANES),
            value_dim.next_multiple_of(S::LANES),
        );
        for row in 0..rows {
            let head = task.key_head * call.group() + row / queries;
            let from = call.query.row(task.batch, head, row % queries);
            scratch.query[row * query_width..][..dim].copy_from_slice(from);
        }
        scratch.output.fill(0.0);
        for row in part.chunks_exact_mut(width) {
            (row[value_dim], row[value_dim + 1]) = (f32::NEG_INFINITY, 0.0);
        }
        for first in task.keys.clone().step_by(TILE) {
            let keys = TILE.min(task.keys.end - first);
            let start = |view: &View<'_, T>, j: usize| {
                let position = (first + j).min(task.keys.end - 1);
                view.data
                    .as_ptr()
                    .wrapping_add(call.at(view, task, position))
            };
            let key: [*const T; TILE] = std::array::from_fn(|j| start(&call.key, j));
            let value: [*const T; TILE] = std::array::from_fn(|j| start(&call.value, j));
            let next: [*const T; TILE] = std::array::from_fn(|j| start(&call.key, j + TILE));
            for row in (0..rows).step_by(ROWS) {
                let block = Scores {
                    query: &scratch.query[row * query_width..][..ROWS * query_width],
                    dim,
                    key: &key,
                    keys,
                    ahead: (row == 0).then_some((&value, value_dim)),
                    scores: &mut scratch.weights[row * TILE..][..ROWS * TILE],
                };
                s.outline(block);
            }
            let mut partial = false;
            for row in 0..rows {
                let (head, query) = (task.key_head * call.group() + row / queries, row % queries);
                let visible = call.visible(task.batch, head);
                let scores = &mut scratch.weights[row * TILE..][..keys];
                scores.iter_mut().for_each(|x| *x *= call.scale);
                call.modify(s, task, head, query, first, scores);
                let all = visible.seen_by_all(query, 1);
                scratch.seen[row] = !0;
                if first < all.start || first + keys > all.end {
                    let bits = (0..keys).filter(|&j| visible.sees(query, first + j));
                    let bits = bits.fold(0u64, |bits, j| bits | 1 << j);
                    scratch.seen[row] = bits;
                    partial |= bits.count_ones() as usize != keys;
                    for (j, score) in scores.iter_mut().enumerate() {
                        if bits >> j & 1 == 0 {
                            *score = f32::NEG_INFINITY;
                        }
                    }
                }
                let output = &mut scratch.output[row * value_width..][..value_width];
                let [m, l] = &mut part[row * width + value_dim..][..2] else {
                    unreachable!()
                };
                weigh(s, scores, output, m, l);
            }
            for row in (0..rows).step_by(ROWS) {
                let block = Values {
                    weights: &scratch.weights[row * TILE..][..ROWS * TILE],
                    seen: if partial {
                        Some(&scratch.seen[row..][..ROWS])
                    } else {
                        None
                    },
                    value: &value,
                    keys,
                    value_dim,
                    ahead: (row == 0).then_some((&next, dim)),
                    output: &mut scratch.output[row * value_width..][..ROWS * value_width],
                };
                s.outline(block);
            }
        }
        for (row, part) in part.chunks_exact_mut(width).enumerate() {
            part[..value_dim].copy_from_slice(&scratch.output[row * value_width..][..value_dim]);
        }
    }
}

/// Turns scores into weights under the base `m`, raised where a score exceeds it.
#[inline(always)]
fn weigh<S: Simd>(s: S, scores: &mut [f32], output: &mut [f32], m: &mut f32, l: &mut f32) {
    let mut largest = f32::NEG_INFINITY;
    for at in (0..scores.len()).step_by(S::LANES) {
        let beyond = s.splat(f32::NEG_INFINITY);
        let inside = S::LANES.min(scores.len() - at);
        let x = s.select(((1u64 << inside) - 1) as u32, s.load_at(scores, at), beyond);
        largest = largest.max(s.reduce_max(x));
    }
    if largest > *m {
        let factor = (*m - largest).exp();
        for at in (0..output.len()).step_by(S::LANES) {
            let scaled = s.mul(s.load(&output[at..]), s.splat(factor));
            s.store(&mut output[at..], scaled);
        }
        *l *= factor;
        *m = largest;
    }
    // Without a key seen so far, any base will do: all weights are 0.
    let base = s.splat(if *m == f32::NEG_INFINITY { 0.0 } else { *m });
    let mut sum = s.zero();
    for at in (0..scores.len()).step_by(S::LANES) {
        let inside = S::LANES.min(scores.len() - at);
        let weight = exp(s, s.sub(s.load_at(scores, at), base));
        sum = s.add(
            sum,
            s.select(((1u64 << inside) - 1) as u32, weight, s.zero()),
        );
        s.store_at(scores, at, weight);
    }
    *l += s.reduce_add(sum);
}

/// Rows of a tile that will be read soon, and their numbers.
type Ahead<'a, T> = Option<(&'a [*const T; TILE], usize)>;

#[inline(always)]
fn fetch<S: Simd, T>(s: S, ahead: &Ahead<T>, j: usize) {
    if let Some((rows, numbers)) = ahead {
        for at in (0..*numbers).step_by(64 / size_of::<T>()) {
            s.prefetch(rows[j].wrapping_add(at).cast(), false);
        }
    }
}

/// Scores of [`ROWS`] query rows with the keys of a tile.
struct Scores<'a, T> {
    /// `[ROWS, padded dim]`, zeros past `dim`.
    query: &'a [f32],
    dim: usize,
    key: &'a [*const T; TILE],
    keys: usize,
    ahead: Ahead<'a, T>,
    /// `[ROWS, TILE]`
    scores: &'a mut [f32],
}

impl<T: Element> Kernel for Scores<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        const KEYS: usize = 4;
        let width = self.query.len() / ROWS;
        for first in (0..self.keys).step_by(KEYS) {
            let mut sums = [[s.zero(); KEYS]; ROWS];
            for j in 0..KEYS {
                fetch(s, &self.ahead, first + j);
            }
            for at in (0..self.dim).step_by(S::LANES) {
                let mut query = [s.zero(); ROWS];
                for (r, x) in query.iter_mut().enumerate() {
                    *x = s.load(&self.query[r * width + at..]);
                }
                for j in 0..KEYS {
                    // SAFETY: `key` are rows of `dim` numbers of a checked view.
                    let x = unsafe { load_up_to(s, self.key[first + j].add(at), self.dim - at) };
                    for r in 0..ROWS {
                        sums[r][j] = s.fma(query[r], x, sums[r][j]);
                    }
                }
            }
            for (r, sums) in sums.iter().enumerate() {
                for (j, &sum) in sums.iter().enumerate() {
                    self.scores[r * TILE + first + j] = s.reduce_add(sum);
                }
            }
        }
    }
}

/// A vector of `from`, zeros beyond its `count` numbers.
///
/// # Safety
/// `count` numbers can be read.
#[inline(always)]
unsafe fn load_up_to<S: Simd, T: Element>(s: S, from: *const T, count: usize) -> S::V {
    if count >= S::LANES {
        // SAFETY: as the caller says.
        return unsafe { load(s, from) };
    }
    let mut lanes = [0.0f32; 16];
    for (j, lane) in lanes[..count].iter_mut().enumerate() {
        // SAFETY: as the caller says.
        *lane = unsafe { from.add(j).read() }.widen();
    }
    s.load(&lanes)
}

/// Adds the weighted values of a tile to [`ROWS`] rows of output.
struct Values<'a, T> {
    /// `[ROWS, TILE]`
    weights: &'a [f32],
    /// For each row the keys that it sees, if there are any it does not.
    seen: Option<&'a [u64]>,
    value: &'a [*const T; TILE],
    keys: usize,
    value_dim: usize,
    ahead: Ahead<'a, T>,
    /// `[ROWS, padded value_dim]`
    output: &'a mut [f32],
}

impl<T: Element> Kernel for Values<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(mut self, s: S) {
        let mut at = 0;
        while at + 4 * S::LANES <= self.value_dim {
            self.columns::<S, 4>(s, at);
            at += 4 * S::LANES;
        }
        while at < self.value_dim {
            self.columns::<S, 1>(s, at);
            at += S::LANES;
        }
    }
}

impl<T: Element> Values<'_, T> {
    /// `V` vectors of columns from `at` on.
    #[inline(always)]
    fn columns<S: Simd, const V: usize>(&mut self, s: S, at: usize) {
        let width = self.output.len() / ROWS;
        let mut sums = [[s.zero(); V]; ROWS];
        for (r, sums) in sums.iter_mut().enumerate() {
            for (v, sum) in sums.iter_mut().enumerate() {
                *sum = s.load(&self.output[r * width + at + v * S::LANES..]);
            }
        }
        for j in 0..self.keys {
            if at == 0 {
                fetch(s, &self.ahead, j);
            }
            let mut values = [s.zero(); V];
            for (v, x) in values.iter_mut().enumerate() {
                let column = at + v * S::LANES;
                // SAFETY: `value` are rows of `value_dim` numbers of a checked view.
                *x = unsafe { load_up_to(s, self.value[j].add(column), self.value_dim - column) };
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                if self.seen.is_some_and(|seen| seen[r] >> j & 1 == 0) {
                    continue;
                }
                let weight = s.splat(self.weights[r * TILE + j]);
                for (sum, &value) in sums.iter_mut().zip(&values) {
                    *sum = s.fma(weight, value, *sum);
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            for (v, &sum) in sums.iter().enumerate() {
                s.store(&mut self.output[r * width + at + v * S::LANES..], sum);
            }
        }
    }
}
