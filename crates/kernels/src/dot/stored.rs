//! Rows of keys, values and queries in the type they are stored in, and their widening to `f32`.
//!
//! ```text
//! key [keys, dim], bf16 or f16   ->   scratch [keys of a segment, dim], f32   ->   Sᵀ block
//! ```
//! The kernels compute with `f32`. Rows stored as `f32` are read where they are; those of half the size
//! are widened, one segment of at most a tile at a time, into memory that stays in the L1 and L2 caches.
//! Every panel of queries widens them again: for a tile of 128 keys by 64 dims these are 512 vector
//! conversions beside 24,576 vector multiply-adds of the panel. The backward pass, which reads a tile's keys
//! twice, widens its keys and values once a panel. Widening a whole head once would save that, but take
//! memory that grows with the length.

use crate::{
    element::{Element, Kind, load},
    simd::{Buffer, Simd},
    view::View,
};

/// Rows of a query, key or value, from one position on.
#[derive(Clone, Copy)]
pub(super) struct Rows<T = f32> {
    pub(super) start: *const T,
    pub(super) stride: usize,
}

impl<T: Element> Rows<T> {
    pub(super) fn new(view: &View<T>, batch: usize, head: usize, first: usize) -> Self {
        Self {
            start: view.data.as_ptr().wrapping_add(view.at(batch, head, first)),
            stride: view.strides[2],
        }
    }

    #[inline(always)]
    pub(super) fn from(self, position: usize) -> Self {
        let start = self.start.wrapping_add(position * self.stride);
        Self { start, ..self }
    }

    /// The same rows typed as `U`, which must be the same type as `T`: for generic code that has tested
    /// `T::KIND`.
    #[inline(always)]
    pub(super) fn cast<U: Element>(self) -> Rows<U> {
        assert!(T::KIND == U::KIND);
        Rows {
            start: self.start.cast(),
            stride: self.stride,
        }
    }

    /// The first `count` rows of `dim` numbers as `f32`: in place, or as contiguous copies in `to`.
    ///
    /// # Safety
    /// The rows can be read.
    #[inline(always)]
    pub(super) unsafe fn widen<S: Simd>(
        self,
        s: S,
        count: usize,
        dim: usize,
        to: &mut Buffer,
    ) -> Rows {
        if T::KIND == Kind::F32 {
            return Rows {
                start: self.start.cast(),
                stride: self.stride,
            };
        }
        // SAFETY: guaranteed by the caller.
        unsafe { self.widen_into(s, count, dim, to) };
        Rows {
            start: to.as_ptr(),
            stride: dim,
        }
    }
    /// The first `count` rows of `dim` numbers as `f32`, contiguous.
    ///
    /// # Safety
    /// The rows can be read.
    #[inline(always)]
    pub(super) unsafe fn widen_into<S: Simd>(self, s: S, count: usize, dim: usize, to: &mut [f32]) {
        let whole = dim / S::LANES * S::LANES;
        for (i, to) in to[..count * dim].chunks_exact_mut(dim).enumerate() {
            let from = self.from(i).start;
            for c in (0..whole).step_by(S::LANES) {
                // SAFETY: the row has `dim` numbers.
                s.store(&mut to[c..], unsafe { load(s, from.add(c)) });
            }
            for (c, x) in to.iter_mut().enumerate().skip(whole) {
                // SAFETY: as above.
                *x = unsafe { *from.add(c) }.widen();
            }
        }
    }
}
