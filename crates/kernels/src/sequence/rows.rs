//! What the sequence operations share: blocks of batch rows, the order of steps, and the sums over
//! all steps that make weight gradients.

use rayon::prelude::*;

use crate::error::{KernelError, check_length};
use crate::matmul::{Matrix, Packed, Strides, Write, transposed_product};
use crate::simd::Level;

/// Rows of a block at most: beyond this the rows' own buffers leave the second-level cache.
const LARGEST_BLOCK: usize = 64;
/// Rows of a block are a multiple of the tallest register tile of [`crate::matmul`].
const TILE: usize = 8;
/// Multiply-adds of a whole call below which waking other threads costs more than it brings.
const SINGLE_THREAD_PRODUCTS: usize = 1 << 20;

/// Rows in one block of a batch, given the multiply-adds of the whole call. Influences speed only.
pub(super) fn block_rows(batch: usize, products: usize) -> usize {
    let threads = if products < SINGLE_THREAD_PRODUCTS {
        1
    } else {
        rayon::current_num_threads()
    };
    batch
        .div_ceil(threads)
        .next_multiple_of(TILE)
        .clamp(TILE, LARGEST_BLOCK)
}

/// Runs `work(index, task)` for every task: on the pool if there is more than one.
pub(super) fn for_each_block<T: Send>(tasks: Vec<T>, work: impl Fn(usize, T) + Sync + Send) {
    if tasks.len() == 1 {
        tasks.into_iter().for_each(|task| work(0, task));
    } else {
        tasks
            .into_par_iter()
            .enumerate()
            .for_each(|(index, task)| work(index, task));
    }
}

/// Cuts `data [steps, batch, width]` into blocks of `rows` batch rows: `result[block][step]` is
/// `[rows of the block, width]`.
pub(super) fn by_rows<T>(
    data: &mut [T],
    steps: usize,
    batch: usize,
    width: usize,
    rows: usize,
) -> Vec<Vec<&mut [T]>> {
    let mut blocks: Vec<Vec<&mut [T]>> = (0..batch.div_ceil(rows))
        .map(|_| Vec::with_capacity(steps))
        .collect();
    if batch * width == 0 {
        blocks
            .iter_mut()
            .for_each(|block| block.resize_with(steps, || &mut []));
        return blocks;
    }
    for step in data.chunks_exact_mut(batch * width) {
        for (block, part) in blocks.iter_mut().zip(step.chunks_mut(rows * width)) {
            block.push(part);
        }
    }
    blocks
}

/// [`by_rows`] of a buffer that may be absent: then every block holds `None`.
pub(super) fn by_rows_optional<T>(
    data: Option<&mut [T]>,
    steps: usize,
    batch: usize,
    width: usize,
    rows: usize,
) -> Vec<Option<Vec<&mut [T]>>> {
    match data {
        Some(data) => by_rows(data, steps, batch, width, rows)
            .into_iter()
            .map(Some)
            .collect(),
        None => (0..batch.div_ceil(rows)).map(|_| None).collect(),
    }
}

/// A slice of `[steps, batch, width]`: the rows of one block at one step.
pub(super) fn at_step<T>(
    data: &[T],
    step: usize,
    batch: usize,
    width: usize,
    first: usize,
    rows: usize,
) -> &[T] {
    &data[(step * batch + first) * width..][..rows * width]
}

/// Where a task stands: its rows, at one step.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) step: usize,
    pub(super) batch: usize,
    pub(super) first: usize,
    pub(super) rows: usize,
}

impl Place {
    /// Its part of `data [steps, batch, width]`.
    pub(super) fn of<T>(self, data: &[T], width: usize) -> &[T] {
        at_step(data, self.step, self.batch, width, self.first, self.rows)
    }

    /// The same rows a step earlier.
    pub(super) fn before(self) -> Option<Self> {
        let step = self.step.checked_sub(1)?;
        Some(Self { step, ..self })
    }
}

/// A weight `[inner, columns]` whose rows start `stride` numbers apart, or its transpose for the way back.
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

/// Rows that start `stride` numbers apart.
#[derive(Clone, Copy)]
pub(super) struct Strided<'a> {
    pub(super) data: &'a [f32],
    pub(super) stride: usize,
}

impl Strided<'_> {
    /// The first `width` numbers of a row.
    #[inline(always)]
    pub(super) fn row(&self, row: usize, width: usize) -> &[f32] {
        &self.data[row * self.stride..][..width]
    }
}

/// Whether the step of `row` is real.
#[inline(always)]
pub(super) fn is_real(keep: Option<&[bool]>, row: usize) -> bool {
    keep.is_none_or(|keep| keep[row])
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

/// Checks the mask of real steps.
pub(super) fn check_keep(
    keep: Option<&[bool]>,
    steps: usize,
    batch: usize,
) -> Result<(), KernelError> {
    keep.map_or(Ok(()), |keep| {
        check_length("keep", "[steps, batch]", &[steps, batch], keep.len())
    })
}

/// Checks that gradients, given as `(name, input, gradient)`, are as long as what they are gradients of.
pub(super) fn check_gradients<const N: usize>(
    gradients: [(&'static str, &[f32], &[f32]); N],
) -> Result<(), KernelError> {
    for (name, input, gradient) in gradients {
        let shape = "that of the input of the same name";
        check_length(name, shape, &[input.len()], gradient.len())?;
    }
    Ok(())
}

/// The states before every step: `initial [batch, width]`, then all but the last of
/// `states [steps, batch, ..]`, whose rows start `stride` numbers apart.
#[derive(Clone, Copy)]
pub(super) struct Previous<'a> {
    pub(super) initial: &'a [f32],
    pub(super) states: &'a [f32],
    pub(super) stride: usize,
    pub(super) width: usize,
    pub(super) steps: usize,
    pub(super) batch: usize,
    pub(super) reverse: bool,
}

impl Previous<'_> {
    /// `out = Σ_{steps, rows} previousᵀ d`, where the rows of `d [steps, batch, ..]` start at
    /// `d[column]`, `d_stride` apart, and have `columns` numbers.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn product(
        &self,
        level: Level,
        d: &[f32],
        d_stride: usize,
        column: usize,
        columns: usize,
        out: &mut [f32],
        out_stride: usize,
    ) {
        let Self {
            steps,
            batch,
            width,
            stride,
            reverse,
            ..
        } = *self;
        if batch == 0 || steps == 0 {
            out.chunks_mut(out_stride)
                .for_each(|row| row[..columns].fill(0.0));
            return;
        }
        let rows = (steps - 1) * batch;
        let (from, to, first) = if reverse {
            (batch, 0, rows)
        } else {
            (0, batch, 0)
        };
        let later = Matrix::new(
            &d[(to * d_stride + column).min(d.len())..],
            d_stride,
            rows,
            columns,
        );
        let states = Matrix::new(
            &self.states[(from * stride).min(self.states.len())..],
            stride,
            rows,
            width,
        );
        transposed_product(level, states, later, out, out_stride, Write::Replace);
        let initial = Matrix::new(self.initial, width, batch, width);
        let d = Matrix::new(&d[first * d_stride + column..], d_stride, batch, columns);
        transposed_product(level, initial, d, out, out_stride, Write::Add);
    }
}

/// `out[j] = Σ_rows d[row, column + j]`, in blocks of 64 rows.
pub(super) fn column_sums(d: &[f32], stride: usize, column: usize, out: &mut [f32]) {
    out.fill(0.0);
    if out.is_empty() {
        return;
    }
    let mut block_sum = vec![0.0; out.len()];
    for block in d.chunks(64 * stride) {
        block_sum.fill(0.0);
        for row in block.chunks_exact(stride) {
            let row = &row[column..column + out.len()];
            block_sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
        }
        out.iter_mut()
            .zip(&block_sum)
            .for_each(|(out, sum)| *out += sum);
    }
}

/// `data` in `count` pieces of `size`, the last one with the rest; empty pieces if `size` is 0.
pub(super) fn split(mut data: &mut [f32], size: usize, count: usize) -> Vec<&mut [f32]> {
    (0..count)
        .map(|_| {
            let whole = std::mem::take(&mut data);
            let (head, tail) = whole.split_at_mut(size.min(whole.len()));
            data = tail;
            head
        })
        .collect()
}
