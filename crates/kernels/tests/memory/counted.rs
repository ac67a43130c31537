//! The system's allocator, with a count of the bytes in use. A program that counts has one test only, since the memory of another would be
//! counted too.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicIsize, Ordering::SeqCst},
};

struct Counted;

static IN_USE: AtomicIsize = AtomicIsize::new(0);
static MOST: AtomicIsize = AtomicIsize::new(0);

fn count(change: isize) {
    let in_use = IN_USE.fetch_add(change, SeqCst) + change;
    MOST.fetch_max(in_use, SeqCst);
}

// SAFETY: every call is passed on unchanged.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps `GlobalAlloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTED: Counted = Counted;

/// The most bytes in use during `work`, beyond those in use before it.
pub fn extra(work: impl FnOnce()) -> isize {
    let before = IN_USE.load(SeqCst);
    MOST.store(before, SeqCst);
    work();
    MOST.load(SeqCst) - before
}
