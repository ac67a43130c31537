//! Cuts a batch into blocks of rows, one task for each block, and tells a task where its rows are.

use rayon::prelude::*;

use crate::threads::Stop;

/// Rows of a block at most: beyond this the rows' own buffers leave the second-level cache.
const LARGEST_BLOCK: usize = 64;
/// Rows of a block are a multiple of the tallest register tile of [`crate::matmul`].
const TILE: usize = 8;
/// Multiply-adds of a whole call below which waking other threads costs more than it brings.
const SINGLE_THREAD_PRODUCTS: usize = 1 << 20;

/// How a batch is cut into blocks of rows. Influences speed only.
#[derive(Clone, Copy)]
pub(crate) struct Blocks {
    batch: usize,
    rows: usize,
}

/// An output of a call that is to be cut into blocks: `[outer, batch, width]`, or empty.
pub(crate) struct Cut<'a> {
    pub(crate) data: &'a mut [f32],
    pub(crate) outer: usize,
    pub(crate) width: usize,
}

impl<'a> Cut<'a> {
    /// `[batch, width]`
    pub(crate) fn rows(data: &'a mut [f32], width: usize) -> Self {
        let outer = 1;
        Self { data, outer, width }
    }
}

impl Blocks {
    /// The blocks for a call of `products` multiply-adds.
    pub(crate) fn new(batch: usize, products: usize) -> Self {
        let threads = if products < SINGLE_THREAD_PRODUCTS {
            1
        } else {
            rayon::current_num_threads()
        };
        let rows = batch
            .div_ceil(threads)
            .next_multiple_of(TILE)
            .clamp(TILE, LARGEST_BLOCK);
        Self { batch, rows }
    }

    /// Runs `work(place, parts)` for every block: on the pool if there is more than one. `parts[k][i]` is the block's
    /// `[rows, width]` of `outputs[k]` at its outer index `i`, empty if there is nothing.
    pub(crate) fn run<const N: usize>(
        self,
        outputs: [Cut<'_>; N],
        work: impl Fn(Place, [Vec<&mut [f32]>; N]) + Sync + Send,
    ) {
        let Self { batch, rows } = self;
        let mut columns = outputs.map(|output| self.cut(output).into_iter());
        let stop = Stop::of_this_thread();
        let work = |place, parts| {
            stop.heed();
            work(place, parts);
        };
        let tasks: Vec<_> = (0..batch)
            .step_by(rows)
            .map(|first| {
                let rows = rows.min(batch - first);
                let parts = columns
                    .each_mut()
                    .map(|blocks| blocks.next().unwrap_or_default());
                (
                    Place {
                        step: 0,
                        batch,
                        first,
                        rows,
                    },
                    parts,
                )
            })
            .collect();
        if tasks.len() == 1 {
            tasks
                .into_iter()
                .for_each(|(place, parts)| work(place, parts));
        } else {
            tasks
                .into_par_iter()
                .for_each(|(place, parts)| work(place, parts));
        }
    }

    /// `result[block][i]`
    fn cut<'a>(&self, Cut { data, outer, width }: Cut<'a>) -> Vec<Vec<&'a mut [f32]>> {
        let Self { batch, rows } = *self;
        let mut blocks: Vec<Vec<&mut [f32]>> = (0..batch.div_ceil(rows))
            .map(|_| Vec::with_capacity(outer))
            .collect();
        if data.is_empty() {
            blocks
                .iter_mut()
                .for_each(|block| block.resize_with(outer, || &mut []));
            return blocks;
        }
        for part in data.chunks_exact_mut(batch * width) {
            for (block, part) in blocks.iter_mut().zip(part.chunks_mut(rows * width)) {
                block.push(part);
            }
        }
        blocks
    }
}

/// What a task works on: its rows, at one step.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) step: usize,
    pub(crate) batch: usize,
    pub(crate) first: usize,
    pub(crate) rows: usize,
}

impl Place {
    /// The same rows at another step.
    pub(crate) fn at(self, step: usize) -> Self {
        Self { step, ..self }
    }

    /// The task's part of `data [steps, batch, width]`.
    pub(crate) fn of<T>(self, data: &[T], width: usize) -> &[T] {
        &data[(self.step * self.batch + self.first) * width..][..self.rows * width]
    }

    /// The same part, as rows.
    pub(crate) fn rows_of(self, data: &[f32], width: usize) -> Strided<'_> {
        Strided {
            data: self.of(data, width),
            stride: width,
        }
    }
}

/// Rows that start `stride` numbers apart.
#[derive(Clone, Copy)]
pub(crate) struct Strided<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) stride: usize,
}

impl<'a> Strided<'a> {
    /// The first `width` numbers of a row.
    #[inline(always)]
    pub(crate) fn row(&self, row: usize, width: usize) -> &'a [f32] {
        &self.data[row * self.stride..][..width]
    }

    /// The rows from `column` on.
    pub(crate) fn from(self, column: usize) -> Self {
        Self {
            data: &self.data[column.min(self.data.len())..],
            ..self
        }
    }
}

/// Copies rows of several matrices side by side into the rows of `to`; columns of `to` beyond them stay as they are.
pub(crate) fn join(rows: usize, parts: &[&[f32]], to: &mut [f32]) {
    let stride = to.len() / rows;
    let mut column = 0;
    for part in parts {
        let width = part.len() / rows;
        for (row, to) in to.chunks_exact_mut(stride.max(1)).enumerate() {
            to[column..][..width].copy_from_slice(&part[row * width..][..width]);
        }
        column += width;
    }
}

/// The first `width` numbers of each row, without gaps.
pub(crate) fn gather(rows: usize, from: Strided<'_>, width: usize) -> Vec<f32> {
    (0..rows)
        .flat_map(|row| from.row(row, width))
        .copied()
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, atomic::AtomicBool};

    use super::*;
    use crate::threads::{Stopped, stoppable};

    #[test]
    fn blocks_are_stopped() {
        for products in [0, usize::MAX] {
            let blocks = |stop| {
                let mut numbers = [0.0; 1000];
                let outputs = [Cut::rows(&mut numbers, 1)];
                let fill = |_, [parts]: [Vec<&mut [f32]>; 1]| {
                    parts.into_iter().for_each(|part| part.fill(1.0));
                };
                let run = || Blocks::new(1000, products).run(outputs, fill);
                let stopped = stoppable(&Arc::new(AtomicBool::new(stop)), run);
                (stopped, numbers.iter().sum::<f32>())
            };
            assert_eq!(blocks(false), (Ok(()), 1000.0));
            assert_eq!(blocks(true), (Err(Stopped), 0.0));
        }
    }
}
