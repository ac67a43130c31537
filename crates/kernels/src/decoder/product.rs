//! Products of a few rows with fixed weights: `y = x W + b`.
//!
//! ```text
//!                    W, packed:  | columns of part 0 | columns of part 1 |
//! fewer than 16 rows             |     thread A      |     thread B      |     each weight is read once, by one core
//! more          rows 0..8        |              thread A                 |
//!               rows 8..16       |              thread B                 |
//! ```

use std::sync::Arc;

use super::helper::Helper;
use crate::error::KernelError;
use crate::matmul::{Packed, Write};
use crate::threads::{RowsMut, for_each_chunk, rows};

/// A weight matrix with its bias, packed to be multiplied with rows again and again.
#[derive(Debug, Clone)]
pub struct Product {
    inner: usize,
    columns: usize,
    /// Contiguous columns each: one part, or two of about the same size.
    parts: Vec<Arc<Packed>>,
    bias: Option<Vec<f32>>,
}

/// From this many rows on, rows are divided among threads, rather than columns.
const MANY: usize = 16;
/// From this many multiplications on, a helper is worth its cost.
const WORTH_HELP: usize = 1 << 18;

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
        crate::error::check_length(
            "matrix",
            "[inner, columns]",
            &[inner, columns],
            matrix.len(),
        )?;
        let cut = |first: usize, end: usize| -> Vec<f32> {
            let rows = matrix.chunks_exact(columns.max(1));
            rows.flat_map(|row| &row[first..end]).copied().collect()
        };
        Self::of_parts(inner, columns, bias, |first, end| {
            Packed::new(&cut(first, end), inner, end - first)
        })
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
        crate::error::check_length("table", "[columns, inner]", &[columns, inner], table.len())?;
        Self::of_parts(inner, columns, bias, |first, end| {
            Packed::transposed(&table[first * inner..end * inner], inner, end - first)
        })
    }

    fn of_parts(
        inner: usize,
        columns: usize,
        bias: Option<Vec<f32>>,
        part: impl Fn(usize, usize) -> Result<Packed, KernelError>,
    ) -> Result<Self, KernelError> {
        if let Some(bias) = &bias {
            crate::error::check_length("bias", "[columns]", &[columns], bias.len())?;
        }
        // Halves, at the edge of a panel of any instruction set.
        let middle = (columns / 2).next_multiple_of(48).min(columns);
        let edges = [0, middle, columns];
        let parts = edges.windows(2).filter(|edge| edge[0] < edge[1]);
        Ok(Self {
            inner,
            columns,
            parts: parts
                .map(|edge| part(edge[0], edge[1]).map(Arc::new))
                .collect::<Result<_, _>>()?,
            bias,
        })
    }

    /// `[inner, columns]`
    pub fn sizes(&self) -> [usize; 2] {
        [self.inner, self.columns]
    }

    /// `x W + b` of `x [count, inner]`, whose length was checked.
    pub(super) fn apply(&self, x: &[f32], count: usize, helper: &Helper) -> Vec<f32> {
        let mut out = vec![];
        self.apply_to(x, count, &mut out, helper);
        out
    }

    /// The same into `out`, whose memory is reused.
    pub(super) fn apply_to(&self, x: &[f32], count: usize, out: &mut Vec<f32>, helper: &Helper) {
        out.resize(count * self.columns, 0.0);
        let work = count * self.inner * self.columns;
        if let [left, right] = &self.parts[..]
            && count < MANY
            && work >= WORTH_HELP
        {
            helper.product([left, right], x, (count, self.inner), out);
        } else {
            let nanoseconds = work as f64 / 64.0;
            let chunk = count.div_ceil(8).max(8);
            let items = rows(out, self.columns);
            for_each_chunk(
                items,
                count,
                chunk,
                nanoseconds,
                &|first, out: RowsMut<f32>| {
                    let rows = out.data.len() / self.columns.max(1);
                    let mut at = 0;
                    for part in &self.parts {
                        let (x, to) = (&x[first * self.inner..], &mut out.data[at..]);
                        part.product(x, self.inner, to, self.columns, rows, Write::Replace);
                        at += part.columns();
                    }
                },
            );
        }
        if let Some(bias) = &self.bias {
            for row in out.chunks_exact_mut(bias.len().max(1)) {
                row.iter_mut().zip(bias).for_each(|(x, b)| *x += b);
            }
        }
    }
}
