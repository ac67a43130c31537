//! Small row-major matrix products for recurrent networks: `C (+)= A B` on f32 slices.
//!
//! A recurrent step multiplies a few dozen rows with the same weights again and again, so the
//! weights are packed **once** ([`Packed`]) into panels that one micro-kernel reads front to back;
//! every product after that allocates nothing and starts no thread ([`Packed::multiply`]). The
//! other half of training, `C (+)= Aᵀ B` over all steps and rows at once, which is every weight
//! gradient, is `transposed_product`.
//!
//! Each element of `C` is one sum over the inner index in ascending order (in blocks of 256 in
//! `transposed_product`), whatever rows it is computed together with and however many threads
//! take part: a row alone gives the same bits as the same row inside a batch.
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

mod tile;
mod transposed;

pub(crate) use tile::{Strides, Write};
pub(crate) use transposed::{Matrix, transposed_product};

use crate::error::{KernelError, check_length};
use crate::simd::{Level, run};
use tile::{Product, lanes, pack};

/// The right-hand matrix `B [inner, columns]` of many products, packed for the micro-kernel.
#[derive(Debug, Clone)]
pub struct Packed {
    inner: usize,
    columns: usize,
    level: Level,
    panels: Vec<f32>,
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
        let lanes = lanes(level);
        let mut panels = vec![0.0; inner * columns.next_multiple_of(lanes)];
        pack(&mut panels, lanes, matrix, strides, inner, columns);
        Self {
            inner,
            columns,
            level,
            panels,
        }
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
        run(
            self.level,
            Product {
                a,
                a_strides: Strides {
                    row: a_row,
                    column: 1,
                },
                panels: &self.panels,
                c,
                c_row,
                rows,
                inner: self.inner,
                columns: self.columns,
                write,
            },
        );
    }
}

#[cfg(test)]
mod tests;
