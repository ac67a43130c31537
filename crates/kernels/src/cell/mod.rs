//! The pointwise part of recurrent cells: everything of a step but its matrix products.
//!
//! | module | cell | gates stand in the order |
//! |---|---|---|
//! | [`gru_reset_before`] | GRU as Cho 2014 and Bahdanau 2014 define it: `U (r ∘ s)` | `z r n` |
//! | [`gru`] | GRU as PyTorch and cuDNN compute it: `r ∘ (U h)` | `z r n` |
//! | [`lstm`] | LSTM without peepholes | `i f g o` |
//!
//! A matrix `[batch, k·n]` holds `k` gates side by side in every row. [`Step::keep`], one flag for each row
//! of the batch, marks with `false` a row whose sequence has already ended: its state and its gradient pass through
//! unchanged, nothing else of the row is read, and padding never changes a result.
//!
//! What a cell does with a block of rows is written once, forward and backward, in place on the gates: single steps
//! ([`Operation`](crate::Operation)s on a [`Step`]) and the steps of [`crate::sequence`] both call it.

pub mod gru;
pub mod gru_reset_before;
pub mod lstm;

#[cfg(test)]
mod tests;

use crate::error::{KernelError, check_length};
use crate::rows::{Blocks, Cut, Place, Strided};
use crate::simd::{Kernel, Simd, zip_map};

/// The sizes of a step, and which rows of the batch it moves.
#[derive(Debug, Clone)]
pub struct Step {
    /// Rows: sentences that are processed in parallel.
    pub batch: usize,
    /// Units of the cell, `n`.
    pub units: usize,
    /// `[batch]`: `false` where the row is past its end. `None` moves every row.
    pub keep: Option<Vec<bool>>,
}

/// The time that one unit of a pointwise step takes, in multiply-adds of a product.
const PRODUCTS_OF_A_UNIT: usize = 40;

impl Step {
    fn check(&self) -> Result<(), KernelError> {
        self.keep.as_ref().map_or(Ok(()), |keep| {
            check_length("keep", "[batch]", &[self.batch], keep.len())
        })
    }

    /// Runs `work` on the outputs, given with their widths in units, of every block of rows.
    fn for_each_block<const N: usize>(
        &self,
        outputs: [(&mut [f32], usize); N],
        work: impl Fn(Place, [&mut [f32]; N]) + Sync + Send,
    ) {
        if self.batch * self.units == 0 {
            return;
        }
        let blocks = Blocks::new(self.batch, PRODUCTS_OF_A_UNIT * self.batch * self.units);
        let outputs = outputs.map(|(data, width)| Cut::rows(data, width * self.units));
        blocks.run(outputs, |place, parts| {
            work(place, parts.map(|mut part| std::mem::take(&mut part[0])))
        });
    }

    fn keep_of(&self, place: Place) -> Option<&[bool]> {
        self.keep.as_deref().map(|keep| place.of(keep, 1))
    }
}

/// Cuts a row into `N` gates of `n` units; the rest is left out.
#[inline(always)]
pub(crate) fn gates_of<const N: usize>(row: &[f32], n: usize) -> [&[f32]; N] {
    std::array::from_fn(|gate| &row[gate * n..][..n])
}

/// [`gates_of`] a row to write.
#[inline(always)]
pub(crate) fn gates_mut<const N: usize>(mut row: &mut [f32], n: usize) -> [&mut [f32]; N] {
    std::array::from_fn(|_| {
        let (gate, rest) = std::mem::take(&mut row).split_at_mut(n);
        row = rest;
        gate
    })
}

/// Whether a step moves `row`.
#[inline(always)]
pub(crate) fn moves(keep: Option<&[bool]>, row: usize) -> bool {
    keep.is_none_or(|keep| keep[row])
}

/// The derivative of `σ` at the point where its value is `gate`.
#[inline(always)]
fn slope<S: Simd>(s: S, gate: S::V) -> S::V {
    s.mul(gate, s.sub(s.splat(1.0), gate))
}

/// The derivative of `tanh` at the point where its value is `t`.
#[inline(always)]
fn tanh_slope<S: Simd>(s: S, t: S::V) -> S::V {
    s.fnma(t, t, s.splat(1.0))
}

/// `x ∘ mask` added to `out [rows, n]`; without a mask `x`.
pub(crate) struct AddRows<'a> {
    pub(crate) n: usize,
    pub(crate) x: Strided<'a>,
    pub(crate) mask: Option<&'a [f32]>,
    pub(crate) out: &'a mut [f32],
}

impl Kernel for AddRows<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        for (row, out) in self.out.chunks_exact_mut(self.n).enumerate() {
            let x = self.x.row(row, self.n);
            match self.mask {
                None => zip_map(
                    s,
                    [x],
                    [out],
                    #[inline(always)]
                    |[x], [out]| [s.add(out, x)],
                ),
                Some(mask) => zip_map(
                    s,
                    [x, &mask[row * self.n..][..self.n]],
                    [out],
                    #[inline(always)]
                    |[x, mask], [out]| [s.fma(x, mask, out)],
                ),
            }
        }
    }
}
