//! Small row-major matrix products for recurrent networks: `C (+)= A B` on f32 slices.
//!
//! A recurrent step multiplies a few dozen rows with the same weights again and again, so the
//! weights are packed **once** ([`Packed`]) into panels that one micro-kernel reads front to back;
//! a product after that starts no thread ([`Packed::multiply`]). It allocates nothing with panels of
//! `f32`; with those of another [`Storage`], room for a widened panel from 16 rows on, or, where
//! bfloat16 is multiplied in pairs, for the rows of `A` rounded to bfloat16. The
//! other half of training, `C (+)= Aᵀ B` over all steps and rows at once, which is every weight
//! gradient, is [`weight_gradient`] (inside this crate `transposed_product`).
//!
//! The other two products of a linear layer, over all rows of a batch and on all threads, are [`affine()`] and [`input_gradient`]: they
//! pack the weights anew each time.
//!
//! Each element of `C` is one sum over the inner index in ascending order (in blocks of 192 in
//! gradients of weights, and small ones of those in parts of 1,024 rows and more), whatever rows
//! it is computed together with and however many threads take part: a row alone gives the same
//! bits as the same row inside a batch.
//!
//! The register tile is 8 rows x 3 vectors of 16 lanes (AVX-512), 4 x 3 x 8 elsewhere.
//!
//! ```
//! use regard_kernels::matmul::Packed;
//!
//! // [2, 3] x [3, 2]
//! let b = Packed::new(&[1.0, 4.0, 2.0, 5.0, 3.0, 6.0], 3, 2)?;
//! let mut c = [0.0; 4];
//! b.multiply(&[1.0, 0.0, 0.0, 1.0, 1.0, 1.0], &mut c, 2)?;
//! assert_eq!(c, [1.0, 4.0, 6.0, 15.0]);
//! # Ok::<(), regard_kernels::KernelError>(())
//! ```

mod affine;
mod stored;
mod tile;
mod transposed;

pub(crate) use affine::LARGE;
pub use affine::{affine, affine_fresh, input_gradient, input_gradient_fresh};
pub use stored::Storage;
pub(crate) use tile::Strides;
pub use tile::Write;
pub(crate) use transposed::{Matrix, transposed_product};
pub use transposed::{weight_gradient, weight_gradient_fresh};

use std::mem::MaybeUninit;

use crate::error::{KernelError, check_length, check_value, product};
use crate::prefetch::Prefetch;
use crate::simd::{Level, run};
use crate::threads::map_each;
use stored::{Number, Pair, Panels, Rounded};
pub(crate) use tile::lanes;
use tile::{PANEL, Pack, Product, Rows, Sums};

/// Nanoseconds of packing one number on one thread.
const PACKING: f64 = 0.3;
/// Nanoseconds of one multiply-add on one thread.
pub(crate) const NANOSECONDS: f64 = 0.01;
/// Tasks for each thread, so that none waits long for the last one.
pub(crate) const TASKS: usize = 2;

/// The right-hand matrix `B [inner, columns]` of many products, packed for the micro-kernel.
#[derive(Debug, Clone)]
pub struct Packed {
    inner: usize,
    columns: usize,
    level: Level,
    panels: Panels,
}

impl Packed {
    /// Packs the row-major `matrix [inner, columns]`.
    ///
    /// # Errors
    /// [`KernelError::Length`] if `matrix` does not hold `inner * columns` numbers.
    pub fn new(matrix: &[f32], inner: usize, columns: usize) -> Result<Self, KernelError> {
        check_length(
            "matrix",
            "[inner, columns]",
            &[inner, columns],
            matrix.len(),
        )?;
        let strides = Strides {
            row: columns,
            column: 1,
        };
        Ok(Self::strided(
            Level::current(),
            matrix,
            strides,
            inner,
            columns,
        ))
    }

    /// Packs the transpose of the row-major `matrix [columns, inner]`.
    ///
    /// # Errors
    /// [`KernelError::Length`] if `matrix` does not hold `columns * inner` numbers.
    pub fn transposed(matrix: &[f32], inner: usize, columns: usize) -> Result<Self, KernelError> {
        check_length(
            "matrix",
            "[columns, inner]",
            &[columns, inner],
            matrix.len(),
        )?;
        let strides = Strides {
            row: 1,
            column: inner,
        };
        Ok(Self::strided(
            Level::current(),
            matrix,
            strides,
            inner,
            columns,
        ))
    }

    /// Packs any strided matrix for one instruction set.
    pub(crate) fn strided(
        level: Level,
        matrix: &[f32],
        strides: Strides,
        inner: usize,
        columns: usize,
    ) -> Self {
        // No numbers: the size beside a 0 may be more than could be counted.
        if inner == 0 || columns == 0 {
            let panels = Panels::F32(vec![]);
            return Self {
                inner,
                columns,
                level,
                panels,
            };
        }
        let lanes = lanes(level);
        let mut panels = vec![0.0; inner * columns.next_multiple_of(lanes)];
        let panel = PANEL * lanes;
        let tasks = panels.chunks_mut((inner * panel).max(1)).enumerate();
        let tasks = tasks.map(|(index, panels)| {
            let first = index * panel;
            Pack {
                panels,
                matrix: &matrix[first * strides.column..],
                strides,
                inner,
                columns: panel.min(columns - first),
            }
        });
        let nanoseconds = inner as f64 * columns as f64 * PACKING;
        map_each(tasks.collect(), nanoseconds, &|_, task| run(level, task));
        Self {
            inner,
            columns,
            level,
            panels: Panels::F32(panels),
        }
    }

    /// A matrix of zeros, to be filled by [`Packed::set_column`].
    ///
    /// ```
    /// use regard_kernels::matmul::{Packed, Storage};
    ///
    /// let mut b = Packed::zeros(Storage::Int8, 2, 1)?;
    /// b.set_column(0, &[1.27, 0.1])?;
    /// let mut column = [0.0; 2];
    /// b.column(0, &mut column)?;
    /// assert!((column[1] - 0.1).abs() <= 0.005);
    /// # Ok::<(), regard_kernels::KernelError>(())
    /// ```
    ///
    /// # Errors
    /// [`KernelError::TooLarge`] for sizes whose product cannot be addressed.
    pub fn zeros(storage: Storage, inner: usize, columns: usize) -> Result<Self, KernelError> {
        let level = Level::current();
        let lanes = lanes(level);
        let padded = columns.checked_next_multiple_of(lanes);
        let padded = padded.unwrap_or(usize::MAX);
        product("matrix", "[inner, columns]", &[inner, padded])?;
        Ok(Self {
            inner,
            columns,
            level,
            panels: Panels::zeros(storage, inner, padded),
        })
    }

    /// Stores `values [inner]` as column `index`, rounded to the matrix's storage.
    ///
    /// # Errors
    /// [`KernelError`] if there is no such column, `values` has another length, or a number is beyond the largest of the storage
    /// (half precision: 65,504; 8 bits: 127 times that), or is NaN, which 8 bits cannot hold.
    pub fn set_column(&mut self, index: usize, values: &[f32]) -> Result<(), KernelError> {
        check_length("values", "[inner]", &[self.inner], values.len())?;
        let place = self.place(index)?;
        if let Some(&value) = values.iter().find(|&&value| !self.panels.holds(value)) {
            let expected = "numbers that the storage can hold";
            check_value("values", expected, f64::from(value), false)?;
        }
        self.panels.set_column(values, place);
        Ok(())
    }

    /// Reads column `index`, widened.
    ///
    /// # Errors
    /// [`KernelError`] if there is no such column, or `to` is not `[inner]`.
    pub fn column(&self, index: usize, to: &mut [f32]) -> Result<(), KernelError> {
        check_length("to", "[inner]", &[self.inner], to.len())?;
        self.panels.column(to, self.place(index)?);
        Ok(())
    }

    /// The bytes of memory that the numbers take.
    pub fn bytes(&self) -> usize {
        self.panels.bytes()
    }

    /// Where a column is: the first column of its panel, the panel's width, the place in it.
    fn place(&self, index: usize) -> Result<[usize; 3], KernelError> {
        let there = index < self.columns;
        check_value("column", "one of the matrix", index as f64, there)?;
        let lanes = lanes(self.level);
        let at = index % (PANEL * lanes);
        let first = index - at;
        let width = (self.columns - first).min(PANEL * lanes);
        Ok([first, width.next_multiple_of(lanes), at])
    }

    /// How many columns a panel has.
    pub(crate) fn panel(&self) -> usize {
        PANEL * lanes(self.level)
    }

    /// `[inner, columns]`
    pub fn sizes(&self) -> [usize; 2] {
        [self.inner, self.columns]
    }

    /// The columns of `B`.
    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// `C = A B` for the row-major `a [rows, inner]` and `c [rows, columns]`, on the calling thread.
    ///
    /// # Errors
    /// [`KernelError::Length`] if a slice does not have its shape's length.
    pub fn multiply(&self, a: &[f32], c: &mut [f32], rows: usize) -> Result<(), KernelError> {
        check_length("a", "[rows, inner]", &[rows, self.inner], a.len())?;
        check_length("c", "[rows, columns]", &[rows, self.columns], c.len())?;
        self.product(a, self.inner, c, self.columns, rows, Write::Replace);
        Ok(())
    }

    /// `C = A B` or `C += A B`; row `r` of `A` starts at `a[r * a_row]`, of `C` at `c[r * c_row]`.
    pub(crate) fn product(
        &self,
        a: &[f32],
        a_row: usize,
        c: &mut [f32],
        c_row: usize,
        rows: usize,
        write: Write,
    ) {
        let part = Part {
            a,
            a_row,
            c: Sums::new(c, write),
            c_row,
            rows,
            inner: self.inner,
            columns: self.columns,
            bias: &[],
        };
        self.run(part, 0);
    }

    /// The columns `first..end` of `C = A B + b`, for `a [rows, inner]`, `c [rows, end - first]` and `bias [columns]`, or an empty
    /// one. `first` is the first column of a panel. Returns the numbers in `c`, all of which it writes.
    pub(crate) fn affine<'c>(
        &self,
        a: &[f32],
        c: &'c mut [MaybeUninit<f32>],
        rows: usize,
        [first, end]: [usize; 2],
        bias: &[f32],
    ) -> &'c mut [f32] {
        assert_eq!(c.len(), rows * (end - first), "the room of a product");
        let part = Part {
            a,
            a_row: self.inner,
            c: Sums::Replace(&mut *c),
            c_row: end - first,
            rows,
            inner: self.inner,
            columns: end - first,
            bias: bias.get(first..end).unwrap_or_default(),
        };
        self.run(part, first);
        // SAFETY: a product writes every column of every row, and `c` holds nothing else.
        unsafe { c.assume_init_mut() }
    }

    /// A product with the columns from `first` on.
    fn run(&self, product: Part<'_>, first: usize) {
        let from = self.inner * first;
        match &self.panels {
            Panels::F32(panels) => product.run(self.level, &panels[from..], &[]),
            Panels::Bf16(panels) => product.run(self.level, &panels[from..], &[]),
            Panels::Pairs(panels) => {
                let from = self.inner.div_ceil(2) * first;
                product.run_pairs(self.level, &panels[from..]);
            }
            Panels::F16(panels) => product.run(self.level, &panels[from..], &[]),
            Panels::Int8(panels, scales) => {
                let scales = &scales[self.inner.div_ceil(stored::GROUP) * first..];
                product.run(self.level, &panels[from..], scales);
            }
        }
    }
}

/// A product, but for the matrix.
struct Part<'a> {
    a: &'a [f32],
    a_row: usize,
    c: Sums<'a>,
    c_row: usize,
    rows: usize,
    inner: usize,
    columns: usize,
    bias: &'a [f32],
}

impl<'a> Part<'a> {
    fn run<T: Number>(self, level: Level, panels: &[T], scales: &[half::f16]) {
        run(level, self.product(panels, scales));
    }

    /// With pairs of bfloat16, to which `a` is rounded.
    fn run_pairs(self, level: Level, panels: &[Pair]) {
        let rounded = Rounded {
            a: self.a,
            a_row: self.a_row,
            rows: self.rows,
            inner: self.inner,
        };
        let a = run(level, rounded);
        let pairs = self.inner.div_ceil(2);
        let product = Part {
            a: &a,
            a_row: pairs,
            inner: pairs,
            ..self
        };
        run(level, product.product(panels, &[]));
    }

    fn product<'b, T>(self, panels: &'b [T], scales: &'b [half::f16]) -> Product<'b, T>
    where
        'a: 'b,
    {
        let rows = Rows {
            a: self.a,
            a_strides: Strides {
                row: self.a_row,
                column: 1,
            },
            c: self.c,
            c_row: self.c_row,
            count: self.rows,
            inner: self.inner,
            columns: self.columns,
            bias: self.bias,
            ahead: Prefetch::default(),
        };
        Product {
            panels,
            scales,
            rows,
        }
    }
}

#[cfg(test)]
mod tests;
