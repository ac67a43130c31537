//! The pointwise part of recurrent cells: everything of a step but its matrix products.
//!
//! | module | cell | gates stand in the order |
//! |---|---|---|
//! | [`gru_reset_before`] | GRU as Cho 2014 and Bahdanau 2014 define it: `U (r ∘ s)` | `z r n` |
//! | [`gru`] | GRU as PyTorch and cuDNN compute it: `r ∘ (U h)` | `z r n` |
//! | [`lstm`] | LSTM without peepholes | `i f g o` |
//!
//! A matrix `[batch, k·n]` holds `k` gates side by side in every row. `keep`, one flag for each row
//! of the batch, marks with 0 a row whose sequence has already ended: its state goes through
//! unchanged and so does the gradient, nothing else of the row is looked at, and padding never
//! changes a result.

pub mod gru;
pub mod gru_reset_before;
pub mod lstm;

#[cfg(test)]
mod tests;

use crate::error::{KernelError, check_length};
use crate::simd::{Kernel, Level, Simd, run};
use crate::threads::{Rows, for_each_chunk};

/// The sizes of a step, and which rows of the batch it moves.
#[derive(Debug, Clone, Copy)]
pub struct Step<'a> {
    /// Rows: sentences moving in step.
    pub batch: usize,
    /// Units of the cell, `n`.
    pub units: usize,
    /// `[batch]`: 0 where the row is past its end. `None` moves every row.
    pub keep: Option<&'a [u8]>,
}

/// Names of the shapes in messages, by the number of gates side by side.
const SHAPES: [&str; 5] = [
    "",
    "[batch, units]",
    "[batch, 2 units]",
    "[batch, 3 units]",
    "[batch, 4 units]",
];

impl Step<'_> {
    /// Checks arguments given as `(name, gates side by side, length)`.
    fn check<const N: usize>(
        &self,
        arguments: [(&'static str, usize, usize); N],
    ) -> Result<(), KernelError> {
        if let Some(keep) = self.keep {
            check_length("keep", "[batch]", &[self.batch], keep.len())?;
        }
        for (name, gates, found) in arguments {
            check_length(name, SHAPES[gates], &[self.batch, gates, self.units], found)?;
        }
        Ok(())
    }

    fn moves(&self, row: usize) -> bool {
        self.keep.is_none_or(|keep| keep[row] != 0)
    }

    /// Runs `work(row, outputs of the row)` over the batch.
    fn for_each_row<R: Rows, W: RowWork<R>>(&self, level: Level, outputs: R, work: &W) {
        let rows_in_chunk = (4096 / self.units.max(1)).max(1);
        let nanoseconds = 2.0 * (self.batch * self.units) as f64;
        for_each_chunk(
            outputs,
            self.batch,
            rows_in_chunk,
            nanoseconds,
            &|first, outputs: R| {
                let count = rows_in_chunk.min(self.batch - first);
                run(
                    level,
                    Chunk {
                        work,
                        first,
                        count,
                        outputs,
                    },
                );
            },
        );
    }
}

/// What a cell does with one row; generic over the vector unit.
trait RowWork<R>: Sync {
    fn row<S: Simd>(&self, s: S, row: usize, outputs: R);
}

struct Chunk<'a, R, W> {
    work: &'a W,
    first: usize,
    count: usize,
    outputs: R,
}

impl<R: Rows, W: RowWork<R>> Kernel for Chunk<'_, R, W> {
    type Output = ();
    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let mut rest = self.outputs;
        for row in self.first..self.first + self.count - 1 {
            let (head, tail) = rest.split(1);
            self.work.row(s, row, head);
            rest = tail;
        }
        self.work.row(s, self.first + self.count - 1, rest);
    }
}

/// Row `row` of a matrix of `N` gates, cut into its gates.
#[inline(always)]
fn gates_of<const N: usize>(matrix: &[f32], row: usize, units: usize) -> [&[f32]; N] {
    let row = &matrix[row * N * units..(row + 1) * N * units];
    std::array::from_fn(|gate| &row[gate * units..(gate + 1) * units])
}

/// One row of `N` gates, cut into its gates, to write.
#[inline(always)]
fn gates_mut<const N: usize>(mut row: &mut [f32], units: usize) -> [&mut [f32]; N] {
    std::array::from_fn(|_| {
        let (gate, rest) = std::mem::take(&mut row).split_at_mut(units);
        row = rest;
        gate
    })
}
