//! The allocator, and how much memory was in use at most while somebody watched.

use std::{
    alloc::{GlobalAlloc, Layout},
    sync::atomic::{AtomicBool, AtomicIsize, Ordering::Relaxed},
};

use mimalloc::MiMalloc;

/// mimalloc, counted while it is watched: nobody watching costs one load of a flag a call.
pub struct Counted;

static WATCHED: AtomicBool = AtomicBool::new(false);
/// Bytes allocated less those freed since watching began.
static IN_USE: AtomicIsize = AtomicIsize::new(0);
static MOST: AtomicIsize = AtomicIsize::new(0);

/// The most bytes that were in use during `work` beyond those in use before it, on all threads.
pub fn extra_bytes<T>(work: impl FnOnce() -> T) -> (T, usize) {
    IN_USE.store(0, Relaxed);
    MOST.store(0, Relaxed);
    WATCHED.store(true, Relaxed);
    let result = work();
    WATCHED.store(false, Relaxed);
    (result, MOST.load(Relaxed).unsigned_abs())
}

fn count(change: isize) {
    if WATCHED.load(Relaxed) {
        let in_use = IN_USE.fetch_add(change, Relaxed) + change;
        MOST.fetch_max(in_use, Relaxed);
    }
}

// SAFETY: every call is passed on to mimalloc as it came; counting touches no memory of the caller's.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps `GlobalAlloc`'s contract.
        unsafe { MiMalloc.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { MiMalloc.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as above.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: as above.
        unsafe { MiMalloc.realloc(pointer, layout, size) }
    }
}
