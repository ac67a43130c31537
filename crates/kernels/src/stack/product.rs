//! Products of rows with fixed weights: `y = x W + b`.
//!
//! ```text
//!                     W, packed in panels:  | panel | panel | panel | panel | ..
//! fewer than 16 rows                        thread A  B       B       A            each weight is read once, by one core
//! more              the first half of them  | thread A, all panels                 a panel stays in the cache for all rows
//!                   the second half         | thread B, all panels
//! ```

use super::helper::Helper;
use crate::error::{KernelError, check_length, product};
use crate::matmul::{Packed, Storage};
use crate::simd::fresh;
use crate::threads::{RowsMut, for_each_chunk, rows};

/// A weight matrix with its bias, packed to be multiplied with rows again and again.
#[derive(Debug, Clone)]
pub struct Product {
    pub(super) matrix: Packed,
    bias: Option<Vec<f32>>,
}

/// From this many rows on, rows are divided among threads, rather than columns.
const MANY: usize = 16;

impl Product {
    /// `x W + b` for `matrix [inner, columns]` and `bias [columns]`.
    ///
    /// # Errors
    /// [`KernelError::Length`] if a slice does not have its shape's length.
    pub fn new(
        matrix: &[f32],
        inner: usize,
        columns: usize,
        bias: Option<Vec<f32>>,
    ) -> Result<Self, KernelError> {
        Self::of(Packed::new(matrix, inner, columns)?, bias)
    }

    /// `x Tᵀ + b` for a table of embeddings, `table [columns, inner]`.
    ///
    /// # Errors
    /// As [`Product::new`].
    pub fn transposed(
        table: &[f32],
        inner: usize,
        columns: usize,
        bias: Option<Vec<f32>>,
    ) -> Result<Self, KernelError> {
        Self::of(Packed::transposed(table, inner, columns)?, bias)
    }

    /// Zeros in any storage, to be filled column by column: [`Product::set_column`].
    ///
    /// # Errors
    /// As [`Packed::zeros`].
    pub fn zeros(storage: Storage, inner: usize, columns: usize) -> Result<Self, KernelError> {
        Self::of(Packed::zeros(storage, inner, columns)?, None)
    }

    /// `x W + b`
    ///
    /// # Errors
    /// [`KernelError::Length`] if `bias` is not `[columns]`.
    pub fn of(matrix: Packed, bias: Option<Vec<f32>>) -> Result<Self, KernelError> {
        if let Some(bias) = &bias {
            check_length("bias", "[columns]", &[matrix.columns()], bias.len())?;
        }
        Ok(Self { matrix, bias })
    }

    /// The same product with `bias [columns]` added.
    ///
    /// # Errors
    /// [`KernelError::Length`] if `bias` has another length.
    pub fn with_bias(self, bias: Vec<f32>) -> Result<Self, KernelError> {
        Self::of(self.matrix, Some(bias))
    }

    /// Stores the weights of output `index`, `values [inner]`.
    ///
    /// # Errors
    /// As [`Packed::set_column`].
    pub fn set_column(&mut self, index: usize, values: &[f32]) -> Result<(), KernelError> {
        self.matrix.set_column(index, values)
    }

    /// The weights of output `index`: an embedding, where the output layer shares the table of embeddings.
    ///
    /// # Errors
    /// As [`Packed::column`].
    pub fn column(&self, index: usize, to: &mut [f32]) -> Result<(), KernelError> {
        self.matrix.column(index, to)
    }

    /// `[columns]`
    pub fn bias(&self) -> Option<&[f32]> {
        self.bias.as_deref()
    }

    /// `[inner, columns]`
    pub fn sizes(&self) -> [usize; 2] {
        self.matrix.sizes()
    }

    /// The bytes of memory that the weights take.
    pub fn bytes(&self) -> usize {
        self.matrix.bytes() + self.bias.as_ref().map_or(0, |bias| 4 * bias.len())
    }

    /// `y [count, columns]` of `x [count, inner]`.
    ///
    /// # Errors
    /// [`KernelError::Length`] if `x` has another length.
    pub fn forward(&self, x: &[f32], count: usize) -> Result<Vec<f32>, KernelError> {
        let [inner, columns] = self.sizes();
        check_length("x", "[count, inner]", &[count, inner], x.len())?;
        product("y", "[count, columns]", &[count, columns])?;
        Ok(Helper::beside(|helper| self.apply(x, count, helper)))
    }

    /// `x W + b` of `x [count, inner]`, whose length was checked.
    pub(super) fn apply<'a>(
        &'a self,
        x: &[f32],
        count: usize,
        helper: &Helper<'_, '_, 'a>,
    ) -> Vec<f32> {
        let mut out = vec![];
        self.apply_to(x, count, &mut out, helper);
        out
    }

    /// The same into `out`, whose memory is reused.
    pub(super) fn apply_to<'a>(
        &'a self,
        x: &[f32],
        count: usize,
        out: &mut Vec<f32>,
        helper: &Helper<'_, '_, 'a>,
    ) {
        let [inner, columns] = self.sizes();
        out.resize(count * columns, 0.0);
        let bias = self.bias.as_deref().unwrap_or_default();
        if count < MANY {
            helper.product(&self.matrix, bias, x, count, out);
            return;
        }
        let nanoseconds = (count * inner * columns) as f64 / 64.0;
        let chunk = count
            .div_ceil(rayon::current_num_threads())
            .next_multiple_of(8);
        let items = rows(out, columns);
        for_each_chunk(
            items,
            count,
            chunk,
            nanoseconds,
            &|first, out: RowsMut<f32>| {
                let rows = out.data.len() / columns.max(1);
                let x = &x[first * inner..];
                self.matrix
                    .affine(x, fresh(out.data), rows, [0, columns], bias);
            },
        );
    }
}
