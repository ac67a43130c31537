//! The allocator, which can count the most memory that was in use during some work.

use std::{
    alloc::{GlobalAlloc, Layout},
    sync::atomic::{AtomicBool, AtomicIsize, Ordering::Relaxed},
};

use mimalloc::MiMalloc;

/// mimalloc with counting, which can be switched on; switched off it costs one load of a flag a call.
pub struct Counted;

static WATCHED: AtomicBool = AtomicBool::new(false);
/// Bytes allocated less those freed since counting began.
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

/// Keeps freed memory for the next update of a training, which needs as much again: returning it and having the system clear
/// new pages took a fifth of an update. Keeping it costs some 30 MB of 450.
pub fn keep_freed_memory() {
    // `mi_option_purge_delay` in mimalloc.h; the sys crate has no name for it.
    const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
    // SAFETY: sets one number; mimalloc asks that no other thread sets options meanwhile, and this is called by the
    // command's first thread before it starts others.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, -1) };
}

fn count(change: isize) {
    if WATCHED.load(Relaxed) {
        let in_use = IN_USE.fetch_add(change, Relaxed) + change;
        MOST.fetch_max(in_use, Relaxed);
    }
}

// SAFETY: every call is passed on to mimalloc unchanged; counting touches no memory of the caller.
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
