//! One split of a cache: tile after tile of scores, weights and weighted values.

use crate::{
    element::Element,
    mask::Visible,
    problem::Sizes,
    simd::{Buffer, Kernel, Simd},
    threads::Tasks,
    view::SharedRows,
};

use super::{
    Call, TILE, Task,
    tile::{Scores, Values, Weigh, gather, interleave},
};

/// Takes tasks whose query rows come in blocks of `R`.
pub(super) struct Worker<'a, T, const R: usize> {
    pub(super) call: &'a Call<'a, T>,
    pub(super) tasks: &'a [Task],
    /// For each task and row: `o`, `m`, `l`.
    pub(super) parts: SharedRows<'a, f32>,
    pub(super) queue: &'a Tasks,
}

/// One worker's memory. Rows are padded to whole blocks.
struct Scratch<'a> {
    /// `[rows / R, padded dim / LANES, R, LANES]`, as [`interleave`] says
    query: Buffer,
    /// `[rows, TILE]`: scores, then weights.
    weights: Buffer,
    /// `[rows / R, padded value_dim / LANES, R, LANES]`, as well
    output: Buffer,
    /// `[rows]`: `m`
    base: Buffer,
    /// `[rows, LANES]`: `l`, by lane.
    sum: Buffer,
    /// For each row, the keys of the tile that it sees.
    seen: Vec<u64>,
    rows: Vec<Row<'a>>,
}

struct Row<'a> {
    head: usize,
    query: usize,
    visible: Visible<'a>,
}

impl<T: Element, const R: usize> Kernel for Worker<'_, T, R> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let call = self.call;
        let rows = call.rows().next_multiple_of(R);
        let padded = |dim: usize| dim.next_multiple_of(S::LANES);
        let mut scratch = Scratch {
            query: Buffer::new(rows * padded(call.sizes.dim)),
            weights: Buffer::new(rows * TILE),
            output: Buffer::new(rows * padded(call.sizes.value_dim)),
            base: Buffer::new(rows),
            sum: Buffer::new(rows * S::LANES),
            seen: vec![0; rows],
            rows: Vec::with_capacity(rows),
        };
        while let Some(index) = self.queue.take() {
            let task = &self.tasks[index];
            // SAFETY: the view was made with these rows; this task alone has this row.
            let part = unsafe { self.parts.row_mut(0, 0, index) };
            self.split(s, &mut scratch, task, part);
        }
    }
}

/// Keys of a tile, in whole vectors. Its values, which are read one block of columns after the other, and the rows
/// prefetched meanwhile share the L1 cache with keys that are no longer needed.
fn tile<T>(dim: usize) -> usize {
    let bytes = if size_of::<T>() == 4 { 8192 } else { 16384 };
    (bytes / (dim * size_of::<T>()).max(1) / 16 * 16).clamp(16, TILE)
}

impl<'a, T: Element, const R: usize> Worker<'a, T, R> {
    /// One task, into `part [rows, value_dim + 2]`.
    #[inline(always)]
    fn split<S: Simd>(&self, s: S, scratch: &mut Scratch<'a>, task: &Task, part: &mut [f32]) {
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
        scratch.rows.clear();
        let mut all = 0..usize::MAX;
        for row in 0..rows {
            let (head, query) = (task.key_head * call.group() + row / queries, row % queries);
            let from = call.query.row(task.batch, head, query);
            let (block, r) = (row / R * R, row % R);
            let to = &mut scratch.query[block * query_width..][..R * query_width];
            interleave::<S, T, R>(from, r, to);
            let visible = call.visible(task.batch, head);
            let seen = visible.seen_by_all(query, 1);
            all = all.start.max(seen.start)..all.end.min(seen.end);
            scratch.rows.push(Row {
                head,
                query,
                visible,
            });
        }
        scratch.output.fill(0.0);
        scratch.base.fill(f32::NEG_INFINITY);
        scratch.sum.fill(0.0);
        let tile = tile::<T>(dim.max(value_dim)).min(task.keys.len().next_multiple_of(16));
        let distance = tile - tile / 8;
        let mut starts = [std::ptr::null(); 3 * TILE];
        let starts = &mut starts[..3 * tile];
        call.starts(&call.key, task, task.keys.start, &mut starts[2 * tile..]);
        for first in task.keys.clone().step_by(tile) {
            let keys = tile.min(task.keys.end - first);
            starts.copy_within(2 * tile.., 0);
            call.starts(&call.value, task, first, &mut starts[tile..2 * tile]);
            if first + tile < task.keys.end {
                call.starts(&call.key, task, first + tile, &mut starts[2 * tile..]);
            }
            let (key, value) = (&starts[..tile], &starts[tile..2 * tile]);
            // A single tile would be read before a prefetch arrives.
            let prefetch = match task.keys.len() > tile {
                true => &starts[distance..],
                false => &[],
            };
            for row in (0..rows).step_by(R) {
                let block = Scores::<T, R> {
                    query: &scratch.query[row * query_width..][..R * query_width],
                    dim,
                    scale: call.scale,
                    key,
                    keys,
                    prefetch: if row == 0 { prefetch } else { &[] },
                    scores: &mut scratch.weights[row * TILE..][..R * TILE],
                };
                s.outline(block);
            }
            let mut partial = false;
            let whole = first >= all.start && first + keys <= all.end;
            for scores in scratch.weights.chunks_exact_mut(TILE) {
                scores[keys..tile].fill(f32::NEG_INFINITY);
            }
            if !whole || call.modifies() {
                for (index, row) in scratch.rows.iter().enumerate() {
                    let scores = &mut scratch.weights[index * TILE..][..keys];
                    call.modify(s, task, row.head, row.query, first, scores);
                    scratch.seen[index] = !0;
                    if whole {
                        continue;
                    }
                    let bits = (0..keys).filter(|&j| row.visible.sees(row.query, first + j));
                    let bits = bits.fold(0u64, |bits, j| bits | 1 << j);
                    scratch.seen[index] = bits;
                    partial |= bits.count_ones() as usize != keys;
                    for (j, score) in scores.iter_mut().enumerate() {
                        if bits >> j & 1 == 0 {
                            *score = f32::NEG_INFINITY;
                        }
                    }
                }
            }
            for row in (0..rows).step_by(R) {
                let output = &mut scratch.output[row * value_width..][..R * value_width];
                s.outline(Weigh::<R> {
                    tile,
                    scores: &mut scratch.weights[row * TILE..][..R * TILE],
                    output,
                    base: &mut scratch.base[row..][..R],
                    sum: &mut scratch.sum[row * S::LANES..][..R * S::LANES],
                });
                s.outline(Values::<T, R> {
                    weights: &scratch.weights[row * TILE..][..R * TILE],
                    seen: partial.then_some(&scratch.seen[row..][..R]),
                    value,
                    keys,
                    value_dim,
                    prefetch: if row == 0 {
                        prefetch.get(tile..).unwrap_or_default()
                    } else {
                        &[]
                    },
                    output,
                });
            }
        }
        for (row, part) in part.chunks_exact_mut(width).enumerate() {
            let (block, r) = (row / R * R, row % R);
            let output = &scratch.output[block * value_width..][..R * value_width];
            gather::<S, T, R>(output, r, &mut part[..value_dim]);
            part[value_dim] = scratch.base[row];
            part[value_dim + 1] = s.reduce_add(s.load(&scratch.sum[row * S::LANES..]));
        }
    }
}
