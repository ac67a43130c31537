//! Memory that starts on a cache line, and memory that holds nothing yet.

use std::mem::MaybeUninit;

/// `f32` numbers aligned to 64 bytes, all 0 at first.
pub(crate) struct Buffer {
    lines: Vec<Line>,
    length: usize,
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; 16]);

impl Buffer {
    /// `length` zeros.
    pub(crate) fn new(length: usize) -> Self {
        Self {
            lines: vec![Line([0.0; 16]); length.div_ceil(16)],
            length,
        }
    }
}

impl std::ops::Deref for Buffer {
    type Target = [f32];

    #[inline(always)]
    fn deref(&self) -> &[f32] {
        // SAFETY: the lines are arrays of f32 side by side, at least `length` numbers in all.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.length) }
    }
}

impl std::ops::DerefMut for Buffer {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as above, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.length) }
    }
}

/// Numbers that will be overwritten, as memory that holds nothing yet: kernels write to both alike.
pub(crate) fn fresh(numbers: &mut [f32]) -> &mut [MaybeUninit<f32>] {
    // SAFETY: the types have one layout, and this crate writes nothing but numbers to such memory.
    unsafe { &mut *(std::ptr::from_mut(numbers) as *mut [MaybeUninit<f32>]) }
}

/// Zeros in the place of `memory`. A task clears its part of an output just before it writes there: while that is in its cache, which
/// takes less than clearing all of the output before.
pub(crate) fn cleared(memory: &mut [MaybeUninit<f32>]) -> &mut [f32] {
    memory.fill(MaybeUninit::new(0.0));
    // SAFETY: every number has just been written.
    unsafe { memory.assume_init_mut() }
}
