//! The allocator of the command `regard`.

use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Keeps freed memory for the next update, as `regard train` does.
pub fn keep_freed_memory() {
    // `mi_option_purge_delay` in mimalloc.h; the sys crate has no name for it.
    const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
    // SAFETY: sets one number; mimalloc asks that no other thread sets options meanwhile, and this is called by the
    // process's first thread before it starts others.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, -1) };
}
