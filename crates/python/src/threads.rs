//! Work outside of the interpreter's lock, on threads that there are: a process that was forked has none of its parent's.

use std::{
    process,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use pyo3::{marker::Ungil, prelude::*};
use rayon::ThreadPool;

/// The process that imported the package: in it, the common pool of threads serves.
static HOME: OnceLock<u32> = OnceLock::new();

/// The pool of a forked process.
static FORKED: Mutex<Option<(u32, Arc<ThreadPool>)>> = Mutex::new(None);

/// Notes which process this is.
pub fn at_home() {
    HOME.get_or_init(process::id);
}

/// `work`, while other threads of Python go on.
pub fn detached<T: Ungil + Send>(py: Python<'_>, work: impl FnOnce() -> T + Ungil + Send) -> T {
    py.detach(|| match HOME.get() {
        Some(&home) if home != process::id() => match pool(process::id()) {
            Some(pool) => pool.install(work),
            None => work(),
        },
        _ => work(),
    })
}

fn pool(process: u32) -> Option<Arc<ThreadPool>> {
    let mut known = FORKED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, pool)) = known.as_ref().filter(|(of, _)| *of == process) {
        return Some(pool.clone());
    }
    let pool = Arc::new(rayon::ThreadPoolBuilder::new().build().ok()?);
    if let Some((_, of_parent)) = known.replace((process, pool.clone())) {
        // Its threads are not here, so nobody could wait for their end.
        std::mem::forget(of_parent);
    }
    Some(pool)
}
