//! Work outside of the interpreter's lock, on threads that there are: a process that was forked has none of its parent's.

use std::{
    error::Error,
    fmt::Display,
    hint, io, panic, process,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use pyo3::{exceptions::PyRuntimeError, marker::Ungil, prelude::*};
use rayon::{ThreadBuilder, ThreadPool, ThreadPoolBuilder};
use regard_kernels::{KernelError, stoppable};

use crate::arrays::{refused, refused_by_kernel};

/// The process that imported the package: in it, the common pool of threads serves.
static HOME: OnceLock<u32> = OnceLock::new();

/// Whether the common pool could be built, or why not. Rayon tries once, and panics at each use of a pool that it could not build.
static COMMON: OnceLock<Result<(), String>> = OnceLock::new();

/// The pool of a forked process.
static FORKED: Mutex<Option<(u32, Arc<ThreadPool>)>> = Mutex::new(None);

/// Products from which a call is long: a tenth of a second of one slow thread.
const LONG: f64 = 1e9;

/// Bytes that must be free where a thread of a pool is started: for its stack (2 MB), and for what it allocates as it begins.
const ROOM: usize = 4 << 20;

/// Notes which process this is.
pub fn at_home() {
    HOME.get_or_init(process::id);
}

/// `work`, while other threads of Python go on.
///
/// # Errors
/// RuntimeError: threads cannot be started.
pub fn detached<T: Ungil + Send>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Ungil + Send,
) -> PyResult<T> {
    py.detach(|| at_home_or_forked(work))
}

fn at_home_or_forked<T: Send>(work: impl FnOnce() -> T + Send) -> PyResult<T> {
    Ok(match pool()? {
        Some(pool) => pool.install(work),
        None => work(),
    })
}

/// A call of a kernel that makes about so many `products` (multiply-adds). One that may take long ends at Ctrl-C.
///
/// # Errors
/// Those of the kernel, what a signal's handler raised, and RuntimeError: threads cannot be started.
pub fn kernel<T: Ungil + Send>(
    py: Python<'_>,
    products: f64,
    work: impl FnOnce() -> Result<T, KernelError> + Ungil + Send,
) -> PyResult<T> {
    // Only a second thread lets this one listen, and starting it takes some 50 µs.
    if products < LONG {
        return detached(py, work)?.map_err(refused_by_kernel);
    }
    // Whoever stops it has answered with the signal, so that `Stopped` does not come here.
    let answer = interruptible(py, |stop| stoppable(stop, work))?;
    answer.map_err(refused)?.map_err(refused_by_kernel)
}

/// Long `work` on the pool of threads, while this one listens for Ctrl-C: then it sets what `work` looks at now and then, and waits for it
/// (to its end, where it does not look).
///
/// # Errors
/// What a signal's handler raised, such as KeyboardInterrupt; RuntimeError: threads cannot be started.
pub fn interruptible<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(&Arc<AtomicBool>) -> T + Send,
) -> PyResult<T> {
    let stopped = &Arc::new(AtomicBool::new(false));
    py.detach(|| {
        let pool = pool()?;
        thread::scope(|scope| {
            let (done, answer) = mpsc::sync_channel(1);
            let task = move || {
                let work = || work(stopped);
                let answer = match pool {
                    Some(pool) => pool.install(work),
                    None => rayon::scope(|_| work()),
                };
                // The other side is gone if a signal came first.
                let _ = done.send(answer);
            };
            let worker = thread::Builder::new().spawn_scoped(scope, task);
            let worker = worker.map_err(unstarted)?;
            match heard(&answer) {
                Ok(Some(answer)) => Ok(answer),
                Ok(None) => ended(worker.join()),
                Err(signal) => {
                    stopped.store(true, Relaxed);
                    Err(signal)
                }
            }
        })
    })
}

/// As [`interruptible`], for `work` that cannot be stopped on the way: after Ctrl-C it goes on by itself, and nobody waits for its answer.
/// So it has a thread of its own: what waits for a network would keep one of the pool's from others.
///
/// # Errors
/// As [`interruptible`].
pub fn abandonable<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    py.detach(|| {
        let (done, answer) = mpsc::sync_channel(1);
        let task = move || {
            let _ = done.send(at_home_or_forked(work));
        };
        let worker = thread::Builder::new().spawn(task).map_err(unstarted)?;
        match heard(&answer)? {
            Some(answer) => answer,
            None => ended(worker.join()),
        }
    })
}

/// An answer, or none from a thread that panicked.
///
/// # Errors
/// What a signal's handler raised before the answer came.
fn heard<T>(answer: &Receiver<T>) -> PyResult<Option<T>> {
    loop {
        match answer.recv_timeout(Duration::from_millis(50)) {
            Ok(answer) => return Ok(Some(answer)),
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
            Err(RecvTimeoutError::Timeout) => Python::attach(|py| py.check_signals())?,
        }
    }
}

/// Goes on with the panic of a thread that did not answer.
fn ended<T>(joined: thread::Result<()>) -> T {
    match joined {
        Err(panicked) => panic::resume_unwind(panicked),
        Ok(()) => unreachable!("it answers before it ends"),
    }
}

/// The pool of this process, if it was forked; if not, none, and the common one is there.
///
/// # Errors
/// RuntimeError: threads cannot be started.
fn pool() -> PyResult<Option<Arc<ThreadPool>>> {
    let this = process::id();
    match HOME.get() {
        Some(&home) if home != this => forked(this).map(Some),
        _ => common().map(|()| None),
    }
}

fn common() -> PyResult<()> {
    let build = || match ThreadPoolBuilder::new().spawn_handler(start).build_global() {
        // Without a source it says that the pool is there.
        Err(error) if error.source().is_some() => Err(error.to_string()),
        _ => Ok(()),
    };
    COMMON.get_or_init(build).clone().map_err(unstarted)
}

fn forked(process: u32) -> PyResult<Arc<ThreadPool>> {
    let mut known = FORKED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, pool)) = known.as_ref().filter(|(of, _)| *of == process) {
        return Ok(pool.clone());
    }
    let pool = ThreadPoolBuilder::new().spawn_handler(start).build();
    let pool = Arc::new(pool.map_err(unstarted)?);
    if let Some((_, of_parent)) = known.replace((process, pool.clone())) {
        // Its threads are not here, so nobody could wait for their end.
        std::mem::forget(of_parent);
    }
    Ok(pool)
}

/// Starts a thread of a pool if there is room for it, and waits until it runs. One that finds no memory as it begins cannot say so: it ends
/// the process.
fn start(thread: ThreadBuilder) -> io::Result<()> {
    let mut room: Vec<u8> = vec![];
    room.try_reserve_exact(ROOM)
        .map_err(|_| io::ErrorKind::OutOfMemory)?;
    drop(hint::black_box(room));
    let (begun, wait) = mpsc::sync_channel(1);
    thread::Builder::new().spawn(move || {
        let _ = begun.send(());
        thread.run();
    })?;
    let _ = wait.recv();
    Ok(())
}

/// That threads cannot be started, as a RuntimeError.
pub fn unstarted(reason: impl Display) -> PyErr {
    PyRuntimeError::new_err(format!(
        "threads cannot be started: {reason}; give the process more memory or threads, or set RAYON_NUM_THREADS to fewer before it starts"
    ))
}
