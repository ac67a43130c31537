//! How the gradients are divided into tasks, and how the parts are summed.
//!
//! ```text
//!                        dK, dV of (sequence, key head)      dQ
//!  4 heads or more       one task each, written in place     in place
//!  fewer, many keys      part 0: keys 0-127, 896-1151 ..     in place   } a panel at a time, one part
//!                        part 1: keys 128-255, 768-895 ..    added      } after the other (see `ordered`)
//!  fewer, few keys       part 0: panels 0, p, 2p ..          in place
//!                        part 1: panels 1, p + 1 ..          in place     dK, dV: a copy, added in order at the end
//! ```
//! Chunks of keys are interleaved among the parts in alternating order (part 0, 1, .., 1, 0), and panels of queries in
//! plain order (0, 1, .., 0, 1), so that under a causal mask all parts take about as long. If several batch entries or
//! heads share a bias whose gradient is asked for, they become one task, or one split into parts, which goes through
//! them in order.
//!
//! Memory: with [`TASKS`] heads or more, and wherever keys are interleaved, the tiles of the threads and 8 bytes a part.
//! Where queries are interleaved, also `parts - 1` (at most 3) copies of `dK` and `dV` of fewer than [`LONG`] keys, which
//! is 1.5 MiB a head at a dim of 64. If the gradient of a bias is asked for, queries are interleaved at any length,
//! because parts with keys of their own would share its rows; that gradient is mostly as large as all scores.
//!
//! What was tried is in `docs/experiments.md`.

use std::ops::Range;

use crate::{
    problem::{Attention, Sizes},
    threads::team,
    view::{SharedRows, ViewMut},
};

/// The least number of tasks that a call is cut into, where its length allows. More would serve machines of more cores,
/// at the price of fetching every panel of queries once more for each.
pub(super) const TASKS: usize = 4;
/// Keys that a part takes at a time: a tile of them. (This and the next are smaller for tests under Miri, which is a
/// thousand times slower.)
const CHUNK: usize = if cfg!(miri) { 32 } else { 128 };
/// From this many keys in the longest sequence on, parts divide the keys rather than the queries. Below it, each part
/// would fetch a panel of queries for only two tiles.
const LONG: usize = if cfg!(miri) { 2 * CHUNK } else { 1024 };
/// Queries that a part has at least: below this, adding the copies costs more than it gains.
const PART_QUERIES: usize = 192;

/// How a call is cut.
pub(super) struct Splits {
    batch: usize,
    key_heads: usize,
    /// Number of groups of sequences, and of key heads: each one is its own group, or, where they share a bias, all are
    /// one.
    batch_groups: usize,
    head_groups: usize,
    /// Parts of every group.
    pub(super) parts: usize,
    /// Whether parts have keys of their own, or else queries.
    pub(super) by_keys: bool,
}

/// One task.
pub(super) struct Split {
    pub(super) sequences: Range<usize>,
    pub(super) key_heads: Range<usize>,
    pub(super) part: usize,
}

impl Split {
    /// The sequences and key heads that it goes through.
    pub(super) fn heads(&self) -> impl Iterator<Item = (usize, usize)> {
        let key_heads = self.key_heads.clone();
        (self.sequences.clone())
            .flat_map(move |index| key_heads.clone().map(move |head| (index, head)))
    }
}

impl Splits {
    /// The cut of a call, with the shape of the bias whose gradient is asked for.
    pub(super) fn new(attention: &Attention, sizes: &Sizes, bias: Option<[usize; 4]>) -> Self {
        let groups = |count: usize, axis: usize| match bias {
            Some(shape) if shape[axis] == 1 => count.min(1),
            _ => count,
        };
        let (batch_groups, head_groups) = (groups(sizes.batch, 0), groups(sizes.key_heads, 1));
        let sequences = || (0..sizes.batch).map(|index| attention.sequence(sizes, index));
        let queries = sequences().map(|of| of.queries).max().unwrap_or(0);
        let keys = sequences().map(|of| of.keys).max().unwrap_or(0);
        let group = sizes.heads / sizes.key_heads.max(1);
        let wanted = TASKS.div_ceil((batch_groups * head_groups).max(1));
        let by_keys = wanted > 1 && keys >= LONG && bias.is_none();
        let room = if by_keys {
            keys / CHUNK
        } else {
            queries.saturating_mul(group) / PART_QUERIES
        };
        let parts = wanted.min(room).max(1);
        Self {
            batch: sizes.batch,
            key_heads: sizes.key_heads,
            batch_groups,
            head_groups,
            parts,
            by_keys,
        }
    }

    /// Outputs of `dK` and `dV`: the gradients themselves and copies.
    pub(super) fn outputs(&self) -> usize {
        if self.by_keys { 1 } else { self.parts }
    }

    /// Among how many parts the keys of a panel are divided.
    pub(super) fn parts_of_keys(&self) -> usize {
        if self.by_keys { self.parts } else { 1 }
    }

    /// Whether `part` sets the rows of its keys to 0 before it adds to them.
    pub(super) fn clears(&self, part: usize) -> bool {
        self.by_keys || part == 0
    }

    /// Which of a head's panels `part` goes through: the first, and every so many-th after.
    pub(super) fn panels(&self, part: usize) -> (usize, usize) {
        if self.by_keys {
            (0, 1)
        } else {
            (part, self.parts)
        }
    }

    /// Those of `keys` that `part` goes through, in order.
    pub(super) fn keys(
        &self,
        part: usize,
        keys: Range<usize>,
    ) -> impl Iterator<Item = Range<usize>> {
        let (by_keys, parts) = (self.by_keys, self.parts);
        let size = if by_keys { CHUNK } else { usize::MAX / 2 };
        let owner = move |chunk: usize| {
            let turn = chunk % (2 * parts);
            turn.min(2 * parts - 1 - turn)
        };
        (keys.start / size..keys.end.div_ceil(size))
            .filter(move |&chunk| !by_keys || owner(chunk) == part)
            .map(move |chunk| (chunk * size).max(keys.start)..((chunk + 1) * size).min(keys.end))
    }

    pub(super) fn tasks(&self) -> usize {
        self.batch_groups * self.head_groups * self.parts
    }

    pub(super) fn split(&self, task: usize) -> Split {
        let (group, part) = (task / self.parts, task % self.parts);
        let range = |group: usize, groups: usize, count: usize| {
            if groups == count {
                group..group + 1
            } else {
                0..count
            }
        };
        Split {
            sequences: range(group / self.head_groups, self.batch_groups, self.batch),
            key_heads: range(group % self.head_groups, self.head_groups, self.key_heads),
            part,
        }
    }
}

/// Copies of an output for the parts after the first.
pub(super) struct Copies {
    numbers: Vec<f32>,
    shape: [usize; 4],
    parts: usize,
}

impl Copies {
    pub(super) fn new(shape: [usize; 4], parts: usize) -> Self {
        let numbers = vec![0.0; shape.iter().product::<usize>() * (parts - 1)];
        Self {
            numbers,
            shape,
            parts,
        }
    }

    /// The copies as one view, one after the other along the batch.
    pub(super) fn view(&mut self) -> ViewMut<'_> {
        let [batch, heads, length, dim] = self.shape;
        ViewMut::heads_first(
            &mut self.numbers,
            [batch * (self.parts - 1), heads, length, dim],
        )
    }

    /// Adds the copies, in order.
    pub(super) fn add_to(&self, to: &mut ViewMut) {
        const ROWS: usize = 64;
        if self.numbers.is_empty() {
            return;
        }
        let [batch, heads, length, dim] = self.shape;
        let rows = batch * heads * length;
        let to = to.shared();
        let nanoseconds = (self.numbers.len() / 4) as f64;
        team(rows.div_ceil(ROWS), nanoseconds, &|tasks| {
            while let Some(task) = tasks.take() {
                for row in task * ROWS..rows.min((task + 1) * ROWS) {
                    let (plane, position) = (row / length, row % length);
                    // SAFETY: the output was checked; this task alone has this row.
                    let to = unsafe { to.row_mut(plane / heads, plane % heads, position) };
                    for copy in self.numbers.chunks_exact(rows * dim) {
                        for (to, &x) in to.iter_mut().zip(&copy[row * dim..][..dim]) {
                            *to += x;
                        }
                    }
                }
            }
        });
    }
}

/// An output and its copies, of which each part writes one.
#[derive(Clone, Copy)]
pub(super) struct Destination<'a> {
    output: SharedRows<'a, f32>,
    copies: SharedRows<'a, f32>,
    shape: [usize; 4],
    parts: usize,
}

impl<'a> Destination<'a> {
    /// `copies` is what [`Copies::view`] gave.
    pub(super) fn new(output: &'a mut ViewMut, copies: &'a mut ViewMut) -> Self {
        let shape = output.shape;
        let parts = 1 + copies.shape[0] / shape[0].max(1);
        Self {
            output: output.shared(),
            copies: copies.shared(),
            shape,
            parts,
        }
    }

    /// The rows of `part` at `(batch, head, position)` and after.
    #[inline(always)]
    pub(super) fn rows(&self, part: usize, batch: usize, head: usize, position: usize) -> Target {
        let (start, stride) = if part == 0 || self.parts == 1 {
            self.output.start(batch, head, position)
        } else {
            self.copies
                .start((part - 1) * self.shape[0] + batch, head, position)
        };
        Target { start, stride }
    }

    /// The row of `part` that serves `(batch, head, position)`, and its length, where sizes may be 1.
    #[inline(always)]
    pub(super) fn broadcast(
        &self,
        part: usize,
        batch: usize,
        head: usize,
        position: usize,
    ) -> (Target, usize) {
        let at = |axis: usize, index: usize| if self.shape[axis] == 1 { 0 } else { index };
        (
            self.rows(part, at(0, batch), at(1, head), at(2, position)),
            self.shape[3],
        )
    }
}

/// Rows of an output, from one position on.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub(super) start: *mut f32,
    pub(super) stride: usize,
}

impl Target {
    /// The rows from `position` on.
    #[inline(always)]
    pub(super) fn from(self, position: usize) -> Self {
        Self {
            start: self.start.wrapping_add(position * self.stride),
            ..self
        }
    }

    /// The first row, of `dim` numbers.
    ///
    /// # Safety
    /// There is such a row in a checked output, and no other reference to it is alive.
    #[inline(always)]
    pub(super) unsafe fn row<'a>(self, dim: usize) -> &'a mut [f32] {
        // SAFETY: guaranteed by the caller.
        unsafe { std::slice::from_raw_parts_mut(self.start, dim) }
    }
}

/// Sets every number of a checked view to 0.
pub(super) fn clear(view: &mut ViewMut) {
    let [batch, heads, length, _] = view.shape;
    if view.shape.contains(&0) {
        return;
    }
    let rows = view.shared();
    for row in 0..batch * heads * length {
        let (plane, position) = (row / length, row % length);
        // SAFETY: the view was checked and is borrowed for this function alone.
        unsafe { rows.row_mut(plane / heads, plane % heads, position) }.fill(0.0);
    }
}
