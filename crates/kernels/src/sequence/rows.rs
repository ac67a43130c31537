//! The order of steps, and the sums over all steps that weight gradients are.

use crate::matmul::{Matrix, Packed, Strides, Write, transposed_product};
use crate::rows::Strided;
use crate::simd::Level;

/// A weight `[inner, columns]` whose rows start `stride` numbers apart, or its transpose for the backward pass.
pub(super) fn pack(
    level: Level,
    matrix: &[f32],
    stride: usize,
    inner: usize,
    columns: usize,
    transposed: bool,
) -> Packed {
    if transposed {
        let (row, column) = (1, stride);
        Packed::strided(level, matrix, Strides { row, column }, columns, inner)
    } else {
        let (row, column) = (stride, 1);
        Packed::strided(level, matrix, Strides { row, column }, inner, columns)
    }
}

/// Steps in the order in which time runs.
pub(super) fn order(steps: usize, reverse: bool) -> impl DoubleEndedIterator<Item = usize> {
    (0..steps).map(move |at| if reverse { steps - 1 - at } else { at })
}

/// The step before `step` in the order of time, `None` for the first.
pub(super) fn before(step: usize, steps: usize, reverse: bool) -> Option<usize> {
    if reverse {
        (step + 1 < steps).then_some(step + 1)
    } else {
        step.checked_sub(1)
    }
}

/// The states before every step: the rows of `initial [batch, ..]`, then all but the last of `states [steps, batch, ..]`.
#[derive(Clone, Copy)]
pub(super) struct Previous<'a> {
    pub(super) initial: Strided<'a>,
    pub(super) states: Strided<'a>,
    pub(super) width: usize,
    pub(super) steps: usize,
    pub(super) batch: usize,
    pub(super) reverse: bool,
}

impl Previous<'_> {
    /// `out = Σ_{steps, rows} previousᵀ d`, of the first `columns` numbers of the rows of `d [steps, batch, ..]`; the rows of
    /// `out` start `out_stride` apart.
    pub(super) fn product(
        &self,
        level: Level,
        d: Strided<'_>,
        columns: usize,
        out: &mut [f32],
        out_stride: usize,
    ) {
        let Self {
            initial,
            states,
            width,
            steps,
            batch,
            reverse,
        } = *self;
        if batch == 0 || steps == 0 {
            out.chunks_mut(out_stride.max(1))
                .for_each(|row| row[..columns].fill(0.0));
            return;
        }
        let rows = (steps - 1) * batch;
        let (from, to, first) = if reverse {
            (batch, 0, rows)
        } else {
            (0, batch, 0)
        };
        let later = matrix(d, to, rows, columns);
        let states = matrix(states, from, rows, width);
        transposed_product(level, states, later, out, out_stride, Write::Replace);
        let (initial, d) = (
            matrix(initial, 0, batch, width),
            matrix(d, first, batch, columns),
        );
        transposed_product(level, initial, d, out, out_stride, Write::Add);
    }
}

/// `rows` of the rows of `of` from `first` on, `columns` numbers of each.
fn matrix(of: Strided<'_>, first: usize, rows: usize, columns: usize) -> Matrix<'_> {
    let of = of.from(first * of.stride);
    Matrix::new(of.data, of.stride, rows, columns)
}

/// `out[j] = Σ_rows d[row, j]`, in blocks of 64 rows of `out.len()` numbers.
pub(super) fn column_sums(d: &[f32], out: &mut [f32]) {
    out.fill(0.0);
    if out.is_empty() {
        return;
    }
    let width = out.len();
    let mut block_sum = vec![0.0; width];
    for block in d.chunks(64 * width) {
        block_sum.fill(0.0);
        for row in block.chunks_exact(width) {
            block_sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
        }
        out.iter_mut()
            .zip(&block_sum)
            .for_each(|(out, sum)| *out += sum);
    }
}
