//! One split of a cache: tile after tile of scores, weights and weighted values.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::{
    element::Element,
    problem::Sizes,
    simd::{Buffer, Kernel, Simd, exp},
    view::{SharedRows, View},
};

use super::{
    Call, ROWS, TILE, Task,
    tile::{Scores, Values},
};

pub(super) struct Worker<'a, T> {
    pub(super) call: &'a Call<'a, T>,
    pub(super) tasks: &'a [Task],
    /// For each task and row: `o`, `m`, `l`.
    pub(super) parts: SharedRows<'a, f32>,
    pub(super) next: &'a AtomicUsize,
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
