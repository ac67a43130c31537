//! Decoding: one or a few queries against a long cache.
//!
//! ```text
//! for each (batch, key head), each split of 2,048 keys:           tasks, in any order
//!     for each tile of 16 to 64 keys:                             fetched in the order they are read
//!         s[r][j] = q_r · k_j      r: all queries of all query heads of this key head
//!         p = e^{s - m}, l += p    m raised if the tile's scores are larger
//!         o[r]   += Σ_j p[r][j] v_j
//! splits merged by (m, l) in the order of their keys
//! ```
//! The time goes into reading the cache: every key and value is read once for all its query heads, in the type it is stored in
//! (`f32`, bfloat16, half precision). Rows are prefetched into the L1 cache 7/8 of a tile before they are read, line after
//! line; where all keys fit one tile, nothing is prefetched. A block has 4 query rows, or 1 where a single row reads the keys,
//! as in beam search, where each hypothesis has its own past; a row's bits are the same in either. Splits have a fixed size, so
//! the result is the same on any number of threads. Tiles begin at the first key that any query sees, and their size follows the
//! number of keys, so that under a window the last bits of a query may depend on how many are decoded with it. Memory: `(value_dim + 2)` numbers for each query row and split.
//!
//! What was measured and tried is in `docs/experiments.md`.
//!
//! A hidden key is not read.
//!
//! ```
//! use regard_kernels::{Attention, View, ViewMut, dot::{self, Cache}};
//!
//! // A cache with room for 4 keys, of which 2 are filled.
//! let (key, value) = ([1.0f32, 1.0, f32::NAN, f32::NAN], [1.0f32, 3.0, f32::NAN, f32::NAN]);
//! let cache = Cache::Contiguous {
//!     key: View::heads_first(&key, [1, 1, 4, 1]),
//!     value: View::heads_first(&value, [1, 1, 4, 1]),
//!     filled: Some(&[2]),
//! };
//! let mut output = [0.0f32];
//! let attention = Attention { causal: true, ..Attention::default() };
//! let query = View::heads_first(&[0.5f32], [1, 1, 1, 1]);
//! dot::decode(&attention, query, cache, ViewMut::heads_first(&mut output, [1, 1, 1, 1]), None)?;
//! assert_eq!(output, [2.0]);
//! # Ok::<(), regard_kernels::KernelError>(())
//! ```

use std::ops::Range;

use crate::{
    element::Element,
    error::{KernelError, check_length, check_size},
    mask::{Plane, Visible},
    problem::{Alignment, Attention, Sequence, Sizes},
    simd::{self, Kernel, Level, Simd, run, tanh},
    threads::team,
    view::{SharedRows, View, ViewMut},
};

use super::{LSE, check_shape};

mod split;
#[cfg(test)]
mod tests;
mod tile;

use split::Worker;

/// Keys whose scores are held at once, at most.
const TILE: usize = 64;
/// Keys in a task.
const SPLIT: usize = 2048;
/// Where the keys and values of past positions are.
#[derive(Debug, Clone, Copy)]
pub enum Cache<'a, T> {
    /// All keys of a sequence in one view, and all values in another.
    Contiguous {
        /// `[batch, key_heads, keys, dim]`
        key: View<'a, T>,
        /// `[batch, key_heads, keys, value_dim]`
        value: View<'a, T>,
        /// `[batch]`: how many keys of each sequence are there, if not all; rows after these are not read.
        filled: Option<&'a [u32]>,
    },
    /// In pages that a table gives to sequences.
    Paged {
        /// `[pages, key_heads, page_size, dim]`
        key: View<'a, T>,
        /// `[pages, key_heads, page_size, value_dim]`
        value: View<'a, T>,
        /// `[batch, pages of a sequence]`: the pages of each sequence, in order. Entries beyond what is filled
        /// are not read.
        table: &'a [u32],
        /// `[batch]`: how many keys of each sequence are there.
        filled: &'a [u32],
    },
}

/// `output [batch, heads, queries, value_dim]` for `query [batch, heads, queries, dim]`.
/// The keys are those that the cache holds: with [`Alignment::LowerRight`] the last query stands at the last filled key.
/// Everything else is as in [`forward`](super::forward) over those keys; [`Attention::lengths`] hides padding among
/// them and moves no position. `lse`, if asked for, is `[batch, heads, queries, 3]`, as
/// [`forward`](super::forward) has it.
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
    T::decode(attention, query, cache, output, lse)
}

pub(crate) fn decode_at<T: Element>(
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
            let shape = [batch, heads, queries, 3];
            check_length("lse", LSE, &shape, lse.len())?;
            Some(ViewMut::heads_first(lse, shape))
        }
    };
    // Nothing to write: what is beside a size of 0 may be more than could be counted.
    if output.shape.contains(&0) {
        return Ok(());
    }
    let tasks = call.tasks();
    let rows = call.rows();
    let width = call.sizes.value_dim + 2;
    let mut parts = vec![0.0f32; tasks.len() * rows * width];
    let mut whole = ViewMut::heads_first(&mut parts, [1, 1, tasks.len(), rows * width]);
    let shared = whole.shared();
    let pairs: usize = tasks.iter().map(|task| task.keys.len()).sum();
    let dims = call.sizes.dim + call.sizes.value_dim;
    let nanoseconds = (pairs * dims * size_of::<T>()) as f64 / 10.0;
    team(tasks.len(), nanoseconds, &|queue| {
        let (call, tasks, parts) = (&call, &tasks[..], shared);
        match rows {
            1 => run(
                level,
                Worker::<T, 1> {
                    call,
                    tasks,
                    parts,
                    queue,
                },
            ),
            _ => run(
                level,
                Worker::<T, 4> {
                    call,
                    tasks,
                    parts,
                    queue,
                },
            ),
        }
    });
    let (output, lse) = (output.shared(), lse.as_mut().map(ViewMut::shared));
    run(
        level,
        Merge {
            call: &call,
            tasks: &tasks,
            parts: &parts,
            output,
            lse,
        },
    );
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
    filled: Option<&'a [u32]>,
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
        let (key, value, filled) = match cache {
            Cache::Contiguous { key, value, filled } => (key, value, filled),
            Cache::Paged {
                key, value, filled, ..
            } => (key, value, Some(filled)),
        };
        query.check("query")?;
        key.check("key")?;
        value.check("value")?;
        let batch = query.shape[0];
        let (mut key_shape, mut value_shape) = (key.shape, value.shape);
        if let Some(filled) = filled {
            check_length("filled", "[batch]", &[batch], filled.len())?;
        }
        let mut pages = None;
        if let Cache::Paged { table, .. } = cache {
            check_size(
                "value",
                "pages",
                value.shape[0],
                key.shape[0],
                "as the key has",
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
        for (position, &length) in filled.unwrap_or_default().iter().enumerate() {
            if length as usize > sizes.keys {
                return Err(KernelError::Entry {
                    argument: "filled",
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
            attention: *attention,
            sizes,
            query,
            key,
            value,
            table: pages,
            filled,
            scale: attention.scale(sizes.dim),
        })
    }

    /// Query rows that read the same keys: those of all query heads of a key head.
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
        self.filled
            .map_or(self.sizes.keys, |filled| filled[batch] as usize)
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
            // Heads may see different keys of it, but the range is the same for all.
            let reach = self.visible(batch, 0).reach(0, self.sizes.queries);
            for key_head in 0..self.sizes.key_heads {
                let mut key = reach.start;
                while key < reach.end {
                    let next = ((key / SPLIT + 1) * SPLIT).min(reach.end);
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

    /// Writes where the rows of a task's keys `first..` start; beyond the task's end, the last row is repeated.
    #[inline(always)]
    fn starts(&self, view: &View<'a, T>, task: &Task, first: usize, starts: &mut [*const T]) {
        let first = first.min(task.keys.end - 1);
        let (rows, beyond) = starts.split_at_mut(starts.len().min(task.keys.end - first));
        let spread = |rows: &mut [*const T], start: usize| {
            let start = view.data.as_ptr().wrapping_add(start);
            for (j, row) in rows.iter_mut().enumerate() {
                *row = start.wrapping_add(j * view.strides[2]);
            }
        };
        match self.table {
            None => spread(rows, view.at(task.batch, task.key_head, first)),
            Some((table, per_sequence)) => {
                let size = view.shape[2];
                let pages = &table[task.batch * per_sequence + first / size..];
                let (mut left, mut within) = (&mut *rows, first % size);
                for &page in pages {
                    let (run, after) = left.split_at_mut(left.len().min(size - within));
                    spread(run, view.at(page as usize, task.key_head, within));
                    (left, within) = (after, 0);
                    if left.is_empty() {
                        break;
                    }
                }
            }
        }
        beyond.fill(rows[rows.len() - 1]);
    }

    fn modifies(&self) -> bool {
        let Attention { softcap, alibi, .. } = &self.attention;
        softcap.is_some() || self.attention.has_bias() || alibi.is_some()
    }

    /// Softcap, biases and ALiBi of scores `keys.start..`, in place.
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
                *score = match plane.get(query, first + j) {
                    // Hidden, even where the score has overflowed.
                    f32::NEG_INFINITY => f32::NEG_INFINITY,
                    bias => *score + bias,
                };
            }
        }
        let shift = match self.attention.alignment {
            Alignment::UpperLeft => 0,
            Alignment::LowerRight => self.length(task.batch) as i64 - self.sizes.queries as i64,
        };
        let position = query as i64 + shift;
        if let Some(relative) = self.attention.relative {
            let relative = relative.of_head(self.sizes.heads, head);
            for (j, score) in scores.iter_mut().enumerate() {
                *score += relative.at((first + j) as i64 - position);
            }
        }
        if let Some(slopes) = self.attention.alibi {
            for (j, score) in scores.iter_mut().enumerate() {
                *score -= slopes[head] * position.abs_diff((first + j) as i64) as f32;
            }
        }
    }
}

/// Merges the splits of every row, in the order of their keys.
struct Merge<'a, T> {
    call: &'a Call<'a, T>,
    tasks: &'a [Task],
    /// `[tasks, rows, value_dim + 2]`
    parts: &'a [f32],
    output: SharedRows<'a, f32>,
    lse: Option<SharedRows<'a, f32>>,
}

impl<T: Element> Kernel for Merge<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let call = self.call;
        let (value_dim, queries) = (call.sizes.value_dim, call.sizes.queries);
        let (rows, width) = (call.rows(), value_dim + 2);
        let heads = (0..call.sizes.batch)
            .flat_map(|batch| (0..call.sizes.key_heads).map(move |head| (batch, head)));
        let mut next = 0;
        for (batch, key_head) in heads {
            let first = next;
            while next < self.tasks.len()
                && (self.tasks[next].batch, self.tasks[next].key_head) == (batch, key_head)
            {
                next += 1;
            }
            for row in 0..rows {
                let (head, query) = (key_head * call.group() + row / queries, row % queries);
                let splits = || {
                    (first..next).map(|task| &self.parts[(task * rows + row) * width..][..width])
                };
                let sink = call.attention.sink.map(|sinks| sinks[head]);
                // The last two numbers of a split are its base and its sum.
                let top = splits().map(|split| split[value_dim]).chain(sink);
                let top = top.fold(f32::NEG_INFINITY, f32::max);
                let factor = |base: f32| if base == top { 1.0 } else { (base - top).exp() };
                let mut total = sink.map_or(0.0, factor);
                // SAFETY: the outputs were checked; no other reference to them is alive.
                let to = unsafe { self.output.row_mut(batch, head, query) };
                to.fill(0.0);
                for split in splits().filter(|split| split[value_dim + 1] != 0.0) {
                    let factor = factor(split[value_dim]);
                    total += factor * split[value_dim + 1];
                    simd::axpy(s, factor, &split[..value_dim], to);
                }
                if total != 0.0 {
                    let total = s.splat(total);
                    simd::zip_map(
                        s,
                        [],
                        [to],
                        #[inline(always)]
                        |[], [x]| [s.div(x, total)],
                    );
                }
                if let Some(lse) = &self.lse {
                    let parts = match total == 0.0 {
                        true => [f32::NEG_INFINITY, 0.0, 0.0],
                        false => [top, 0.0, total.ln()],
                    };
                    // SAFETY: as above.
                    unsafe { lse.row_mut(batch, head, query) }.copy_from_slice(&parts);
                }
            }
        }
    }
}
