//! Matrix products on slices, by [`gemm`], which Burn's own products use: here they read and write parts of a matrix in place
//! and add to what is there, so that gradients of several products are added up without a copy. Products of many rows
//! with weights, and gradients of narrow weights, have kernels of ours: [`regard_kernels::matmul`].

use std::{mem::MaybeUninit, ops::Range};

#[cfg(feature = "kernels")]
use gemm::Parallelism;
use regard_kernels::{
    KernelError, for_each_task,
    matmul::{self, Write},
};

use super::memory;

/// gemm copies both operands of a gradient of weights, which takes up to a third of the time where the narrower one has fewer
/// columns than these (`docs/experiments.md`).
const NARROW: usize = 512;
/// Rows from which on the kernel of gradients of weights is worth its packing.
const LONG: usize = 256;
/// Rows from which on the kernels of products with weights are worth the packing of these (`docs/experiments.md`).
pub(super) const MANY: usize = 1024;
/// Rows and columns of weights from which on this holds without a bias. (With one, gemm writes its output, reads it and writes it again.)
const WIDE: usize = 64;

/// Of one multiply-add on one thread.
const NANOSECONDS: f64 = 0.015;
/// Parts of a product for each thread, so that none waits long for the last one.
const PARTS: usize = 2;
/// Rows and columns of a part at least: each packs the rows and columns of its operands for itself.
const PART: usize = 64;
/// A product of fewer rows or columns waits for memory, and stays whole.
const THIN: usize = 16;

/// A matrix inside a slice: entry `(i, j)` stands at `i · row + j · column`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Matrix<'a> {
    data: &'a [f32],
    rows: usize,
    columns: usize,
    row: usize,
    column: usize,
}

/// The output of a product: rows of `columns` numbers that start `stride` numbers apart.
#[derive(Debug)]
pub(super) struct MatrixMut<'a> {
    data: &'a mut [f32],
    rows: usize,
    columns: usize,
    stride: usize,
}

impl<'a> Matrix<'a> {
    /// Row-major, from the start of `data`, with rows `stride` apart.
    ///
    /// # Panics
    /// If `data` is too short, or rows overlap.
    pub(super) fn new(data: &'a [f32], rows: usize, columns: usize, stride: usize) -> Self {
        check(data.len(), rows, columns, stride);
        Self {
            data,
            rows,
            columns,
            row: stride,
            column: 1,
        }
    }

    /// Of `[rows, columns]`, whose entry `(i, j)` stands at `i · row + j · column` of `data`; entries may share a place.
    ///
    /// # Panics
    /// If `data` is too short.
    pub(super) fn strided(
        data: &'a [f32],
        [rows, columns]: [usize; 2],
        [row, column]: [usize; 2],
    ) -> Self {
        if rows > 0 && columns > 0 {
            check_length(data.len(), (rows - 1) * row + (columns - 1) * column + 1);
        }
        Self {
            data,
            rows,
            columns,
            row,
            column,
        }
    }

    /// Some of its rows and columns.
    fn part(self, rows: Range<usize>, columns: Range<usize>) -> Self {
        let start = rows.start * self.row + columns.start * self.column;
        let [rows, columns] = [rows.len(), columns.len()];
        Self::strided(
            &self.data[start..],
            [rows, columns],
            [self.row, self.column],
        )
    }

    /// Whether row follows row without a gap.
    fn is_whole(&self) -> bool {
        self.row == self.columns && self.column == 1
    }

    /// The transpose.
    pub(super) fn transposed(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row: self.column,
            column: self.row,
            ..self
        }
    }
}

impl<'a> MatrixMut<'a> {
    /// Row-major, from the start of `data`, with rows `stride` apart.
    ///
    /// # Panics
    /// If `data` is too short, or rows overlap.
    pub(super) fn new(data: &'a mut [f32], rows: usize, columns: usize, stride: usize) -> Self {
        check(data.len(), rows, columns, stride);
        Self {
            data,
            rows,
            columns,
            stride,
        }
    }
}

fn check(length: usize, rows: usize, columns: usize, stride: usize) {
    assert!(
        columns <= stride,
        "rows of {columns} numbers stand {stride} apart"
    );
    if rows > 0 && columns > 0 {
        check_length(length, (rows - 1) * stride + columns);
    }
}

fn check_length(length: usize, needed: usize) {
    assert!(
        needed <= length,
        "a matrix of {needed} numbers in a slice of {length}"
    );
}

/// `a b`, or `a b + bias` with one number of `bias` for each column.
///
/// # Errors
/// [`KernelError`], or a panic, if the sizes do not fit together.
pub(super) fn affine(
    a: Matrix<'_>,
    b: Matrix<'_>,
    bias: Option<&[f32]>,
) -> Result<Vec<f32>, KernelError> {
    assert_eq!(a.columns, b.rows, "sizes of a product");
    let (rows, inner, columns) = (a.rows, a.columns, b.columns);
    if rows >= MANY && a.is_whole() && (bias.is_some() || inner.min(columns) >= WIDE) {
        let a = &a.data[..rows * inner];
        let of_b = &b.data[..inner * columns];
        if b.is_whole() {
            let sizes = [rows, inner, columns];
            let write = |to: &mut [_]| matmul::affine_fresh(sizes, a, of_b, bias, to);
            // SAFETY: the kernel writes all of its output.
            return unsafe { memory::written(rows * columns, write) };
        }
        if b.transposed().is_whole() && bias.is_none() {
            let sizes = [rows, columns, inner];
            let write = |to: &mut [_]| matmul::input_gradient_fresh(sizes, a, of_b, to);
            // SAFETY: the kernel writes all of its output.
            return unsafe { memory::written(rows * columns, write) };
        }
    }
    if let Some(bias) = bias {
        assert_eq!(bias.len(), columns, "one number of a bias for each column");
        let mut to = memory::repeat(bias, rows);
        let sums = MatrixMut::new(&mut to, rows, columns, columns);
        product(a, b, sums, Write::Add);
        return Ok(to);
    }
    if [rows, columns, inner].contains(&0) {
        return Ok(memory::zeros(rows * columns));
    }
    let mut to = Vec::with_capacity(rows * columns);
    // SAFETY: there is room for all rows, and the product overwrites every number of them without reading it.
    unsafe {
        multiply(a, b, to.as_mut_ptr(), columns, Write::Replace);
        to.set_len(rows * columns);
    }
    Ok(to)
}

/// `to = a b`, or `to += a b`.
///
/// # Panics
/// If the sizes do not fit together.
pub(super) fn product(a: Matrix<'_>, b: Matrix<'_>, to: MatrixMut<'_>, write: Write) {
    assert_eq!(
        [a.rows, a.columns, b.columns],
        [to.rows, b.rows, to.columns],
        "sizes of a product"
    );
    let (m, n, k) = (to.rows, to.columns, a.columns);
    if m == 0 || n == 0 {
        return;
    }
    if k == 0 {
        if write == Write::Replace {
            (0..m).for_each(|row| to.data[row * to.stride..][..n].fill(0.0));
        }
        return;
    }
    // SAFETY: `check` has made sure that all rows lie inside the slice, which is borrowed exclusively, and do not overlap.
    unsafe { multiply(a, b, to.data.as_mut_ptr(), to.stride, write) };
}

/// `xᵀ d_y`, the gradient of the weights of `y = x weight`; where `xᵀ` stands row by row, [`affine`] of it.
///
/// # Errors
/// [`KernelError`], or a panic as of [`product`], if `x` and `d_y` have not as many rows.
pub(super) fn weight_gradient(x: Matrix<'_>, d_y: Matrix<'_>) -> Result<Vec<f32>, KernelError> {
    let Some((sizes, x, d_y)) = narrow(x, d_y) else {
        return affine(x.transposed(), d_y, None);
    };
    let [_, inputs, outputs] = sizes;
    let write = |to: &mut [_]| matmul::weight_gradient_fresh(sizes, x, d_y, to);
    // SAFETY: the kernel writes all of its output.
    unsafe { memory::written(inputs * outputs, write) }
}

/// [`weight_gradient`] written or added to `to`.
///
/// # Errors
/// As [`weight_gradient`], and if `to` has not the size of the weights.
pub(super) fn weight_gradient_to(
    x: Matrix<'_>,
    d_y: Matrix<'_>,
    to: MatrixMut<'_>,
    write: Write,
) -> Result<(), KernelError> {
    let Some((sizes, x, d_y)) = narrow(x, d_y) else {
        product(x.transposed(), d_y, to, write);
        return Ok(());
    };
    matmul::weight_gradient(sizes, x, d_y, to.data, to.stride, write)
}

/// `[count, m, n]`, whose matrix `i` is the sum of the products of `pairs(i)`, of `[m, k]` and `[k, n]` each. No size is 0, and no sum is
/// empty.
///
/// # Errors
/// [`KernelError`], or a panic, if the sizes do not fit together.
pub(super) fn sums_of_products<'a, P: Iterator<Item = [Matrix<'a>; 2]>>(
    count: usize,
    [m, k, n]: [usize; 3],
    pairs: impl Fn(usize) -> P + Sync,
) -> Result<Vec<f32>, KernelError> {
    let write = |to: &mut [MaybeUninit<f32>]| {
        let to = Shared(to.as_mut_ptr().cast());
        let sum = |index: usize, alone: bool| {
            let mut write = Write::Replace;
            for [a, b] in pairs(index) {
                assert_eq!(
                    [a.rows, a.columns, b.rows, b.columns],
                    [m, k, k, n],
                    "sizes of a product"
                );
                // SAFETY: there is room for `count` matrices of `m` rows of `n` numbers. Each is one task's, whose first product writes
                // it before others are added.
                unsafe {
                    let to = to.from(index * m * n);
                    match alone {
                        true => multiply_alone(a, b, to, n, write),
                        false => multiply(a, b, to, n, write),
                    }
                }
                write = Write::Add;
            }
            assert!(write == Write::Add, "a sum of no products");
        };
        // A few products have all threads one after the other; of many each thread has some.
        match count < PARTS * rayon::current_num_threads() {
            true => (0..count).for_each(|index| sum(index, false)),
            false => {
                let nanoseconds = (count * m * k * n) as f64 * NANOSECONDS;
                for_each_task(count, nanoseconds, &|index| sum(index, true));
            }
        }
        Ok(())
    };
    // SAFETY: all matrices are written, each by at least one product.
    unsafe { memory::written(count * m * n, write) }
}

/// The arguments `[rows, inputs, outputs]`, `x` and `d_y` of our kernel, where it is the faster one.
fn narrow<'a>(x: Matrix<'a>, d_y: Matrix<'a>) -> Option<([usize; 3], &'a [f32], &'a [f32])> {
    let [rows, inputs, outputs] = [x.rows, x.columns, d_y.columns];
    let whole = x.is_whole() && d_y.is_whole();
    (whole && rows >= LONG && inputs.min(outputs) < NARROW).then(|| {
        let (x, d_y) = (&x.data[..rows * inputs], &d_y.data[..rows * outputs]);
        ([rows, inputs, outputs], x, d_y)
    })
}

/// Where the tasks of a product write, each numbers of its own.
struct Shared(*mut f32);

// SAFETY: tasks write different numbers, and nobody reads them meanwhile.
unsafe impl Sync for Shared {}

impl Shared {
    fn from(&self, offset: usize) -> *mut f32 {
        self.0.wrapping_add(offset)
    }
}

/// The product of two matrices none of whose sizes is 0, written to rows `stride` apart, by parts on all threads. (gemm's own division
/// among threads was slower from 16 rows on: `docs/experiments.md`.)
///
/// # Safety
/// From `to` on there is room for all rows of the product, which nobody else uses meanwhile; they do not overlap. To be added to, they
/// hold numbers.
unsafe fn multiply(a: Matrix<'_>, b: Matrix<'_>, to: *mut f32, stride: usize, write: Write) {
    let (m, n, k) = (a.rows, b.columns, a.columns);
    let [down, across] = parts([m, n]);
    let to = Shared(to);
    let part = |index: usize| {
        let rows = cut(m, down, index / across)..cut(m, down, index / across + 1);
        let columns = cut(n, across, index % across)..cut(n, across, index % across + 1);
        let at = to.from(rows.start * stride + columns.start);
        let (a, b) = (a.part(rows, 0..k), b.part(0..k, columns));
        // SAFETY: the parts lie inside of the product and do not overlap; the caller vouches for the rest.
        unsafe { multiply_alone(a, b, at, stride, write) };
    };
    for_each_task(down * across, (m * n * k) as f64 * NANOSECONDS, &part);
}

/// Into how many parts the rows and the columns of a product are cut: the longer side in two, until there are enough.
fn parts(size: [usize; 2]) -> [usize; 2] {
    let wanted = match rayon::current_num_threads() {
        threads if threads > 1 && size[0].min(size[1]) >= THIN => PARTS * threads,
        _ => 1,
    };
    let mut parts = [1, 1];
    while parts[0] * parts[1] < wanted {
        let side = |axis: usize| size[axis] / parts[axis];
        let longer = usize::from(side(1) >= side(0));
        if side(longer) < 2 * PART {
            break;
        }
        parts[longer] *= 2;
    }
    parts
}

/// Where part `index` of `parts` of `length` rows or columns begins: at a multiple of the lanes of any processor.
fn cut(length: usize, parts: usize, index: usize) -> usize {
    match index == parts {
        true => length,
        false => length * index / parts / 16 * 16,
    }
}

/// [`multiply`] on the calling thread.
///
/// # Safety
/// As of [`multiply`].
#[cfg(feature = "kernels")]
unsafe fn multiply_alone(a: Matrix<'_>, b: Matrix<'_>, to: *mut f32, stride: usize, write: Write) {
    let one = |write: Write| if write == Write::Add { 1.0 } else { 0.0 };
    // SAFETY: a matrix has its entries inside of its slice; for `to` the caller vouches. gemm reads `to` only if asked to.
    unsafe {
        gemm::gemm(
            a.rows,
            b.columns,
            a.columns,
            to,
            1,
            stride as isize,
            write == Write::Add,
            a.data.as_ptr(),
            a.column as isize,
            a.row as isize,
            b.data.as_ptr(),
            b.column as isize,
            b.row as isize,
            one(write),
            1.0,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

/// Nothing is fused without the feature `kernels`, so this is never called.
#[cfg(not(feature = "kernels"))]
unsafe fn multiply_alone(_: Matrix<'_>, _: Matrix<'_>, _: *mut f32, _: usize, _: Write) {
    unreachable!("a fused product without the feature `kernels`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_matrices_are_multiplied_in_place() {
        // a is the right half of a [2, 4], b is [2, 3] transposed from [3, 2], to is the middle of a [2, 5].
        let a: Vec<f32> = (0..8).map(|i| i as f32).collect();
        let b: Vec<f32> = (0..6).map(|i| 1.0 + i as f32).collect();
        let mut to = vec![10.0; 10];
        for (write, base) in [(Write::Add, 10.0), (Write::Replace, 0.0)] {
            let a = Matrix::new(&a[2..], 2, 2, 4);
            let b = Matrix::new(&b, 3, 2, 2).transposed();
            product(a, b, MatrixMut::new(&mut to[1..], 2, 3, 5), write);
            // [2 3; 6 7] [1 3 5; 2 4 6] = [8 18 28; 20 46 72]
            let [x, y] = [[8.0, 18.0, 28.0], [20.0, 46.0, 72.0]].map(|row| row.map(|x| x + base));
            assert_eq!(to, [&[10.0][..], &x, &[10.0, 10.0], &y, &[10.0]].concat());
            to.fill(10.0);
        }
        product(
            Matrix::new(&[], 2, 0, 0),
            Matrix::new(&[], 0, 3, 3),
            MatrixMut::new(&mut to[1..], 2, 3, 5),
            Write::Replace,
        );
        assert_eq!(to[..6], [10.0, 0.0, 0.0, 0.0, 10.0, 10.0]);
    }

    #[test]
    #[should_panic(expected = "a matrix of 6 numbers in a slice of 5")]
    fn what_lies_outside_is_refused() {
        Matrix::new(&[0.0; 5], 2, 3, 3);
    }
}
