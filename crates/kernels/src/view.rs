//! Strided views of `[batch, heads, length, dim]`: how a kernel sees the caller's slice.
//!
//! Element `(b, h, i, c)` stands at `b·strides[0] + h·strides[1] + i·strides[2] + c`: the last dimension
//! is contiguous, the others may have any stride, including 0 in views that are only read. So
//! `[batch, heads, length, dim]`, `[batch, length, heads, dim]` and one part of a fused query-key-value
//! projection are all read in place.
//!
//! ```
//! use regard_kernels::View;
//!
//! let numbers: Vec<f32> = (0..2 * 3 * 4 * 5).map(|x| x as f32).collect();
//! let heads_first = View::heads_first(&numbers, [2, 3, 4, 5]); // stored as [2, 3, 4, 5]
//! let length_first = View::length_first(&numbers, [2, 3, 4, 5]); // stored as [2, 4, 3, 5]
//! assert_eq!(heads_first.strides, [60, 20, 5]);
//! assert_eq!(length_first.strides, [60, 5, 15]);
//! ```

use std::ops::Range;

use crate::error::KernelError;

/// A slice seen as `[batch, heads, length, dim]`. It is checked when a kernel is called with it.
#[derive(Debug, Clone, Copy)]
pub struct View<'a, T = f32> {
    /// The numbers.
    pub data: &'a [T],
    /// `[batch, heads, length, dim]`
    pub shape: [usize; 4],
    /// Numbers from one batch entry, head and position to the next. The dim is contiguous.
    pub strides: [usize; 3],
}

/// A mutable slice seen as `[batch, heads, length, dim]`; no two rows may share a number. It is checked
/// when a kernel is called with it.
#[derive(Debug)]
pub struct ViewMut<'a, T = f32> {
    /// The numbers.
    pub data: &'a mut [T],
    /// `[batch, heads, length, dim]`
    pub shape: [usize; 4],
    /// Numbers from one batch entry, head and position to the next. The dim is contiguous.
    pub strides: [usize; 3],
}

/// Strides of `shape` stored as `[batch, heads, length, dim]`.
fn heads_first([_, heads, length, dim]: [usize; 4]) -> [usize; 3] {
    let row = dim.saturating_mul(length);
    [row.saturating_mul(heads), row, dim]
}

/// Strides of `shape` stored as `[batch, length, heads, dim]`.
fn length_first([_, heads, length, dim]: [usize; 4]) -> [usize; 3] {
    let row = dim.saturating_mul(heads);
    [row.saturating_mul(length), dim, row]
}

impl<'a, T> View<'a, T> {
    /// The view of head `head` alone; that of all heads if they have one in common.
    pub fn of_head(self, head: usize) -> Self {
        let [batch, heads, rows, columns] = self.shape;
        match heads {
            1 => self,
            _ => Self {
                data: (self.data.get(head.saturating_mul(self.strides[1])..)).unwrap_or_default(),
                shape: [batch, 1, rows, columns],
                ..self
            },
        }
    }

    /// `data` stored as `[batch, heads, length, dim]`; `shape` is in that order.
    pub fn heads_first(data: &'a [T], shape: [usize; 4]) -> Self {
        let strides = heads_first(shape);
        Self {
            data,
            shape,
            strides,
        }
    }

    /// `data` stored as `[batch, length, heads, dim]`; `shape` is still `[batch, heads, length, dim]`.
    pub fn length_first(data: &'a [T], shape: [usize; 4]) -> Self {
        let strides = length_first(shape);
        Self {
            data,
            shape,
            strides,
        }
    }

    /// Checks that every element lies inside the slice.
    pub(crate) fn check(&self, argument: &'static str) -> Result<(), KernelError> {
        check_extent(argument, self.data.len(), self.shape, self.strides)
    }

    /// The `dim` numbers at `(batch, head, position)`, of a checked view.
    #[inline(always)]
    pub(crate) fn row(&self, batch: usize, head: usize, position: usize) -> &'a [T] {
        &self.data[self.at(batch, head, position)..][..self.shape[3]]
    }

    /// Where that row starts.
    #[inline(always)]
    pub(crate) fn at(&self, batch: usize, head: usize, position: usize) -> usize {
        batch * self.strides[0] + head * self.strides[1] + position * self.strides[2]
    }
}

impl<'a, T> ViewMut<'a, T> {
    /// `data` stored as `[batch, heads, length, dim]`; `shape` is in that order.
    pub fn heads_first(data: &'a mut [T], shape: [usize; 4]) -> Self {
        let strides = heads_first(shape);
        Self {
            data,
            shape,
            strides,
        }
    }

    /// `data` stored as `[batch, length, heads, dim]`; `shape` is still `[batch, heads, length, dim]`.
    pub fn length_first(data: &'a mut [T], shape: [usize; 4]) -> Self {
        let strides = length_first(shape);
        Self {
            data,
            shape,
            strides,
        }
    }

    /// The same view, read-only.
    pub fn as_view(&self) -> View<'_, T> {
        View {
            data: self.data,
            shape: self.shape,
            strides: self.strides,
        }
    }

    /// Checks that every element lies inside the slice and that no two rows share a number.
    pub(crate) fn check(&self, argument: &'static str) -> Result<(), KernelError> {
        check_extent(argument, self.data.len(), self.shape, self.strides)?;
        if self.shape.contains(&0) {
            return Ok(());
        }
        // Innermost first, each stride must step over everything inside it.
        let mut outer: Vec<(usize, usize)> = (0..3)
            .filter(|&axis| self.shape[axis] > 1)
            .map(|axis| (self.strides[axis], self.shape[axis]))
            .collect();
        outer.sort_unstable();
        let mut inside = self.shape[3]; // numbers spanned by what lies inside
        for (stride, size) in outer {
            if stride < inside {
                return Err(KernelError::Overlap {
                    argument,
                    shape: self.shape,
                    strides: self.strides,
                });
            }
            inside += stride * (size - 1);
        }
        Ok(())
    }

    /// Rows that several threads write, each its own.
    pub(crate) fn shared(&mut self) -> SharedRows<'_, T> {
        SharedRows {
            data: self.data.as_mut_ptr(),
            shape: self.shape,
            strides: self.strides,
            lifetime: std::marker::PhantomData,
        }
    }
}

fn check_extent(
    argument: &'static str,
    found: usize,
    shape: [usize; 4],
    strides: [usize; 3],
) -> Result<(), KernelError> {
    crate::error::product(argument, "[batch, heads, length, dim]", &shape)?;
    if shape.contains(&0) {
        return Ok(());
    }
    let expected = (0..3).try_fold(shape[3], |last, axis| {
        strides[axis]
            .checked_mul(shape[axis] - 1)?
            .checked_add(last)
    });
    match expected {
        Some(expected) if expected <= found => Ok(()),
        _ => Err(KernelError::Extent {
            argument,
            shape,
            strides,
            expected: expected.unwrap_or(usize::MAX),
            found,
        }),
    }
}

/// The rows of a checked [`ViewMut`], to be written from several threads, each row by one of them.
#[derive(Clone, Copy)]
pub(crate) struct SharedRows<'a, T> {
    data: *mut T,
    shape: [usize; 4],
    strides: [usize; 3],
    lifetime: std::marker::PhantomData<&'a mut [T]>,
}

// SAFETY: `row_mut`'s contract leaves each row to one thread, as if the slice had been split into rows.
unsafe impl<T: Send> Send for SharedRows<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedRows<'_, T> {}

impl<T> SharedRows<'_, T> {
    /// The row at `(batch, head, position)`.
    ///
    /// # Safety
    /// The view was checked ([`ViewMut::check`]), and no other reference to this row is alive.
    #[allow(clippy::mut_from_ref)]
    #[inline(always)]
    pub(crate) unsafe fn row_mut(&self, batch: usize, head: usize, position: usize) -> &mut [T] {
        // SAFETY: as the caller vouches.
        unsafe { self.part_mut(batch, head, position, 0..self.shape[3]) }
    }

    /// The numbers `columns` of that row.
    ///
    /// # Safety
    /// The view was checked ([`ViewMut::check`]), and no other reference to one of these numbers is alive.
    #[allow(clippy::mut_from_ref)]
    #[inline(always)]
    pub(crate) unsafe fn part_mut(
        &self,
        batch: usize,
        head: usize,
        position: usize,
        columns: Range<usize>,
    ) -> &mut [T] {
        assert!(batch < self.shape[0] && head < self.shape[1] && position < self.shape[2]);
        assert!(columns.start <= columns.end && columns.end <= self.shape[3]);
        let at = batch * self.strides[0] + head * self.strides[1] + position * self.strides[2];
        // SAFETY: the position and the columns are inside the shape, whose every row the check found inside the slice
        // and disjoint from all others; the caller holds no second reference to these numbers.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(at + columns.start), columns.len()) }
    }
}

impl<T> SharedRows<'_, T> {
    /// Where the row at `(batch, head, position)` starts, and how far it is to the next position. The
    /// address may only be used as [`Self::row_mut`] allows.
    #[inline(always)]
    pub(crate) fn start(&self, batch: usize, head: usize, position: usize) -> (*mut T, usize) {
        let at = batch * self.strides[0] + head * self.strides[1] + position * self.strides[2];
        (self.data.wrapping_add(at), self.strides[2])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_that_leaves_its_slice_is_refused() {
        let numbers = [0.0f32; 24];
        let mut view = View::heads_first(&numbers, [1, 2, 3, 4]);
        assert!(view.check("key").is_ok());
        view.shape[2] = 4;
        let message = view.check("key").unwrap_err().to_string();
        assert!(
            message.contains("`key`") && message.contains("28") && message.contains("24"),
            "{message}"
        );
        view.strides = [usize::MAX, usize::MAX, usize::MAX];
        view.shape = [2, 2, 2, 1];
        assert!(view.check("key").is_err());
        view.shape = [usize::MAX, usize::MAX, 2, 1];
        assert!(view.check("key").is_err());
        view.shape = [0, usize::MAX, 1, 1];
        assert!(view.check("key").is_ok());
    }

    #[test]
    fn a_head_that_is_not_there_is_empty() {
        let numbers = [0.0f32; 24];
        let view = View::heads_first(&numbers, [1, 2, 3, 4]);
        for head in [3, usize::MAX / 12 + 1, usize::MAX] {
            assert!(view.of_head(head).data.is_empty(), "{head}");
        }
    }

    #[test]
    fn rows_that_overlap_are_refused() {
        let mut numbers = [0.0f32; 64];
        let mut view = ViewMut::length_first(&mut numbers, [2, 2, 4, 4]);
        assert!(view.check("output").is_ok());
        view.strides = [32, 3, 8];
        assert!(matches!(
            view.check("output"),
            Err(KernelError::Overlap { .. })
        ));
        view.strides = [0, 4, 8];
        assert!(matches!(
            view.check("output"),
            Err(KernelError::Overlap { .. })
        ));
    }
}
