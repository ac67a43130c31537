//! How the queries of a call are cut into panels, and which keys each panel reads.
//!
//! ```text
//!            keys ->   0    16   32   48   64
//!  panel 0   v0        F    P    .    .    .        F full, P partial, . skipped
//!  (3 vectors v1       F    F    P    .    .
//!   of queries) v2     F    F    F    P    .        segments of 16 keys; vectors that see any
//!                      [0,3)[0,3)[1,3)[2,3)         of a segment's keys: its live range
//! ```
//! The cut depends on shapes and options alone, never on the number of threads.

use crate::{
    mask::{self, BlockRun, TILE_KEYS, Visible},
    problem::{Attention, Sequence, Sizes},
};

use super::panel::VECTORS;

/// All panels of a call, one group of heads after the other; in each group, the last panels of all its heads come first (under
/// a causal mask the longest).
pub(super) struct Plan {
    width: usize,
    /// Heads of a task, and tasks of a group.
    together: usize,
    group: usize,
    /// Panels do not cross multiples of this: the blocks of a block-sparse mask.
    block: usize,
    /// Tasks before each sequence, and all of them at the end.
    firsts: Vec<usize>,
}

/// One panel of queries of one head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Task {
    pub(super) sequence: Sequence,
    /// Index of the sequence: the batch of masks and biases.
    pub(super) index: usize,
    /// First head, and how many are computed together.
    pub(super) head: usize,
    pub(super) heads: usize,
    /// First query, from the start of the sequence.
    pub(super) query: usize,
    /// Queries, at most the panel's width.
    pub(super) queries: usize,
}

impl Task {
    /// The task of one of its heads alone.
    #[inline(always)]
    pub(super) fn of(&self, member: usize) -> Self {
        Self {
            head: self.head + member,
            heads: 1,
            ..*self
        }
    }
}

impl Plan {
    /// Panels of up to `width` queries, head after head.
    pub(super) fn new(attention: &Attention, sizes: &Sizes, width: usize) -> Self {
        let (block, width) = match &attention.blocks {
            // Finer blocks would leave most lanes of a panel empty.
            Some(blocks) if blocks.query_size >= 2 * width / VECTORS => {
                // Equal parts, in whole vectors: 64 queries are 32 and 32, not 48 and 16, of which the second would take
                // more than a third of the first one's time.
                let parts = blocks.query_size.div_ceil(width);
                let part = blocks.query_size.div_ceil(parts);
                let lanes = width / VECTORS;
                (blocks.query_size, part.next_multiple_of(lanes))
            }
            _ => (usize::MAX / 2, width),
        };
        let mut plan = Self {
            width,
            together: 1,
            group: 1,
            block,
            firsts: vec![0],
        };
        for index in 0..sizes.batch {
            let panels = plan.panels(attention.sequence(sizes, index).queries);
            plan.firsts.push(plan.firsts[index] + panels * sizes.heads);
        }
        plan
    }

    /// The panels of a forward pass. Heads that share a bias or a mask of pairs are computed together: to transpose a number
    /// of it costs a tenth of what one head computes with it. Under a window, tasks of as many heads as there are threads
    /// alternate, so that each thread tends to stay with one head, most of whose next keys are in its cache.
    pub(super) fn forward(attention: &Attention, sizes: &Sizes, width: usize) -> Self {
        let plan = Self::new(attention, sizes, width);
        let threads = rayon::current_num_threads();
        let pairs = [
            attention.bias.map(|bias| bias.shape),
            attention.keep.map(|keep| keep.shape),
        ];
        let table = attention.blocks.map(|blocks| blocks.table.shape);
        let turned = pairs.iter().flatten().any(|shape| shape[2] > 1);
        let mut shapes = pairs.into_iter().chain([table]).flatten();
        if turned && attention.relative.is_none() && shapes.all(|shape| shape[1] == 1) {
            let enough = |&together: &usize| plan.tasks() >= 8 * threads * together;
            let together = [4, 2].into_iter().find(enough).unwrap_or(1);
            return plan.by_heads(sizes, together, 1);
        }
        match attention.window {
            Some(_) => plan.by_heads(sizes, 1, threads),
            None => plan,
        }
    }

    /// The same panels with `together` heads in a task, and the tasks of `group` neighbouring groups of heads alternating.
    fn by_heads(mut self, sizes: &Sizes, together: usize, group: usize) -> Self {
        let tasks = sizes.heads.div_ceil(together);
        for first in &mut self.firsts {
            *first = first.checked_div(sizes.heads).unwrap_or(0) * tasks;
        }
        Self {
            together,
            group,
            ..self
        }
    }

    /// The number of tasks.
    pub(super) fn tasks(&self) -> usize {
        self.firsts[self.firsts.len() - 1]
    }

    fn panels(&self, queries: usize) -> usize {
        let whole = queries / self.block;
        whole * self.block.div_ceil(self.width)
            + (queries - whole * self.block).div_ceil(self.width)
    }

    /// The tasks of `head` of sequence `index`, where each task has one head and they follow each other.
    pub(super) fn panels_of(
        &self,
        sequence: &Sequence,
        index: usize,
        head: usize,
    ) -> std::ops::Range<usize> {
        let panels = self.panels(sequence.queries);
        let first = self.firsts[index] + head * panels;
        first..first + panels
    }

    pub(super) fn task(&self, attention: &Attention, sizes: &Sizes, task: usize) -> Task {
        let index = self.firsts.partition_point(|&first| first <= task) - 1;
        let sequence = attention.sequence(sizes, index);
        let panels = self.panels(sequence.queries);
        let within = task - self.firsts[index];
        let units = sizes.heads.div_ceil(self.together);
        let first = within / (panels * self.group) * self.group;
        let within = within - first * panels;
        let group = self.group.min(units - first);
        let panel = panels - 1 - within / group;
        let head = (first + within % group) * self.together;
        let in_block = self.block.div_ceil(self.width);
        let (block, part) = (panel / in_block, panel % in_block);
        let query = block * self.block + part * self.width;
        let end = ((block + 1) * self.block).min(sequence.queries);
        Task {
            sequence,
            index,
            head,
            heads: self.together.min(sizes.heads - head),
            query,
            queries: self.width.min(end - query),
        }
    }
}

/// Contiguous keys, as one panel sees them: up to [`TILE_KEYS`] of them, or any number that all live vectors see.
#[derive(Clone, Copy)]
pub(super) struct Segment {
    /// First key, from the start of the sequence.
    pub(super) key: usize,
    pub(super) keys: usize,
    /// Its first row in the tile of weights.
    pub(super) row: usize,
    /// The vectors that see any of them are `first..end`.
    pub(super) first: usize,
    pub(super) end: usize,
    /// For each vector and key, the queries that see it; `None` if all live vectors see everything.
    pub(super) bits: Option<[[u16; TILE_KEYS]; VECTORS]>,
}

impl Segment {
    pub(super) const EMPTY: Self = Self {
        key: 0,
        keys: 0,
        row: 0,
        first: 0,
        end: 0,
        bits: None,
    };

    /// `key..key + keys` as the queries of `task` see them; `None` if no query sees any of them.
    #[inline(always)]
    pub(super) fn new(
        visible: &Visible,
        task: &Task,
        lanes: usize,
        key: usize,
        keys: usize,
    ) -> Option<Self> {
        let vectors = task.queries.div_ceil(lanes);
        let mut segment = Self {
            key,
            keys,
            row: 0,
            first: VECTORS,
            end: 0,
            bits: None,
        };
        let mut bits = [[0u16; TILE_KEYS]; VECTORS];
        let mut partial = keys < TILE_KEYS;
        for (v, bits) in bits[..vectors].iter_mut().enumerate() {
            let first = v * lanes;
            let count = lanes.min(task.queries - first);
            match visible.tile(task.query + first, count, key, keys) {
                mask::Tile::Skip => {
                    partial |= segment.first < v;
                    continue;
                }
                mask::Tile::Full => bits[..keys].fill(!0),
                mask::Tile::Partial(tile) => {
                    partial = true;
                    *bits = tile;
                }
            }
            // A vector that sees nothing lies between two that see something.
            partial |= segment.end != v && segment.end > 0;
            segment.first = segment.first.min(v);
            segment.end = v + 1;
        }
        if segment.end == 0 {
            return None;
        }
        // A skipped vector after the last live one does not make the segment partial.
        let inside = segment.first..segment.end;
        partial = keys < TILE_KEYS
            || bits[inside]
                .iter()
                .any(|bits| bits.iter().any(|&bits| bits != !0))
                && partial;
        segment.bits = partial.then_some(bits);
        Some(segment)
    }

    /// Whether these keys directly follow the `keys` keys that begin with those of `before`, and are seen by the same vectors.
    #[inline(always)]
    pub(super) fn follows(&self, before: &Self, keys: usize) -> bool {
        before.key + keys == self.key
            && before.row + keys == self.row
            && (before.first, before.end) == (self.first, self.end)
    }
}

/// The segments of one tile of keys.
pub(super) struct Tile<const SEGMENTS: usize> {
    segments: [Segment; SEGMENTS],
    count: usize,
    /// Rows of weights.
    pub(super) rows: usize,
}

impl<const SEGMENTS: usize> Tile<SEGMENTS> {
    pub(super) const EMPTY: Self = Self {
        segments: [Segment::EMPTY; SEGMENTS],
        count: 0,
        rows: 0,
    };

    /// Takes what is seen of the keys from `*key` on, as many as the tile has rows and up to `end`. (So the tiles are the same
    /// whatever the masks hide.) Returns true if a mask hides a part of any segment.
    #[inline(always)]
    pub(super) fn fill(
        &mut self,
        visible: &Visible,
        task: &Task,
        lanes: usize,
        near_all: &std::ops::Range<usize>,
        end: usize,
        key: &mut usize,
    ) -> bool {
        (self.count, self.rows) = (0, 0);
        let (start, size) = (*key, SEGMENTS * TILE_KEYS);
        let mut border = (start + size).min(end);
        let mut partial = false;
        while *key < border {
            let kept = match visible.blocks_from(task.query, task.queries, *key) {
                BlockRun::Hidden(until) if until >= end => {
                    *key = end;
                    break;
                }
                BlockRun::Hidden(until) if until >= *key + TILE_KEYS => {
                    *key += (until - *key) / TILE_KEYS * TILE_KEYS;
                    if self.rows == 0 {
                        // Whole tiles that nobody sees are passed over.
                        border = (start + (*key - start) / size * size + size).min(end);
                    } else {
                        *key = border.min(*key);
                    }
                    continue;
                }
                BlockRun::Kept(until) => until,
                BlockRun::Hidden(_) | BlockRun::Mixed => *key,
            };
            let inside = near_all.end.min(kept).min(border).saturating_sub(*key);
            let whole = inside / TILE_KEYS * TILE_KEYS;
            let segment = if whole > 0 && near_all.start <= *key {
                let end = task.queries.div_ceil(lanes);
                let segment = Segment {
                    key: *key,
                    keys: whole,
                    row: 0,
                    first: 0,
                    end,
                    bits: None,
                };
                *key += whole;
                Some(segment)
            } else {
                let keys = TILE_KEYS.min(end - *key);
                let segment = Segment::new(visible, task, lanes, *key, keys);
                *key += keys;
                segment
            };
            let Some(mut segment) = segment else { continue };
            partial |= segment.bits.is_some();
            segment.row = self.rows;
            self.rows += segment.keys.next_multiple_of(TILE_KEYS);
            match self.segments[..self.count].last_mut() {
                Some(before)
                    if segment.bits.is_none()
                        && before.bits.is_none()
                        && segment.follows(before, before.keys) =>
                {
                    before.keys += segment.keys;
                }
                _ => {
                    self.segments[self.count] = segment;
                    self.count += 1;
                }
            }
        }
        partial
    }

    pub(super) fn segments(&self) -> &[Segment] {
        &self.segments[..self.count]
    }
}
