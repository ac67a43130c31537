//! A second thread that takes its half of each small product.
//!
//! A step of generation is some twenty products of a few rows, each of them 5 to 150 µs long. Waking a sleeping thread takes
//! longer than most of them, so the second thread is woken once a step, and then watches for work without sleeping:
//!
//! ```text
//! own thread      offer  [left half ]  done? copy      offer  [left half ] ..
//!                    \                   /
//! helper   .. watch  [right half    ]  watch ..
//! ```
//! If the helper has not begun its half when the calling thread has finished its own, the calling thread takes it back, so a
//! step never waits for a thread that is busy elsewhere or has not arrived. A helper that is not needed for a while leaves:
//! rayon may have started it on a thread that other work waits for. The halves are the same whichever thread computes them,
//! and so are the numbers.
//!
//! What was tried is in `docs/experiments.md`.

use std::{
    hint::spin_loop,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicU8,
            Ordering::{AcqRel, Acquire, Release},
        },
    },
    thread::yield_now,
};

use crate::matmul::{Packed, Write};

/// No helper has arrived (yet).
const ABSENT: u8 = 0;
/// The helper watches for work.
const FREE: u8 = 1;
/// Work is offered, and the helper has not begun it.
const OFFERED: u8 = 2;
/// The helper is computing.
const CLAIMED: u8 = 3;
/// The result is ready.
const DONE: u8 = 4;
/// The step is over.
const OVER: u8 = 5;

/// How often a thread polls before it yields its core: some 20 µs.
const PATIENCE: u32 = 500;
/// How often the helper polls before it leaves: some hundreds of microseconds.
const ENOUGH: u32 = 2000;

/// What the calling thread and the helper share.
#[derive(Default)]
pub(super) struct Helper {
    state: AtomicU8,
    job: Mutex<Job>,
}

/// `out [count, columns] = x [count, inner] · part`.
#[derive(Default)]
struct Job {
    part: Option<Arc<Packed>>,
    x: Vec<f32>,
    count: usize,
    inner: usize,
    out: Vec<f32>,
}

impl Job {
    fn run(&mut self) {
        let Self {
            part,
            x,
            count,
            inner,
            out,
        } = self;
        if let Some(part) = part {
            let columns = part.columns();
            out.resize(*count * columns, 0.0);
            part.product(x, *inner, out, columns, *count, Write::Replace);
        }
    }
}

/// Ends the helper's watch, also when the step panics.
struct Watch<'a>(&'a Helper);

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.0.state.store(OVER, Release);
    }
}

impl Helper {
    /// Does `work` on a thread of the caller's pool, while another thread, if there is one, watches for its share.
    pub(super) fn beside<T: Send>(work: impl FnOnce(&Self) -> T + Send) -> T {
        let helper = Self::default();
        if rayon::current_num_threads() == 1 {
            return rayon::scope(|_| work(&helper));
        }
        let own = || {
            let _watch = Watch(&helper);
            work(&helper)
        };
        rayon::join(own, || helper.watch()).0
    }

    fn job(&self) -> MutexGuard<'_, Job> {
        self.job.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, from: u8, to: u8) -> bool {
        self.state
            .compare_exchange(from, to, AcqRel, Acquire)
            .is_ok()
    }

    fn watch(&self) {
        if !self.change(ABSENT, FREE) {
            return; // over before it began
        }
        let mut looks = 0;
        loop {
            match self.state.load(Acquire) {
                OVER => return,
                OFFERED if self.change(OFFERED, CLAIMED) => {
                    self.job().run();
                    self.change(CLAIMED, DONE);
                    looks = 0;
                }
                FREE if looks >= ENOUGH && self.change(FREE, ABSENT) => return,
                _ => look_again(&mut looks),
            }
        }
    }

    /// `out [count, columns of both] = x [count, inner] · [left | right]`.
    pub(super) fn product(
        &self,
        [left, right]: [&Arc<Packed>; 2],
        x: &[f32],
        (count, inner): (usize, usize),
        out: &mut [f32],
    ) {
        let (first, second) = (left.columns(), right.columns());
        let width = first + second;
        let offered = self.state.load(Acquire) == FREE;
        if offered {
            let mut job = self.job();
            job.part = Some(Arc::clone(right));
            (job.count, job.inner) = (count, inner);
            job.x.clear();
            job.x.extend_from_slice(&x[..count * inner]);
            drop(job);
            self.state.store(OFFERED, Release);
        }
        left.product(x, inner, out, width, count, Write::Replace);
        if !offered || self.change(OFFERED, FREE) {
            right.product(x, inner, &mut out[first..], width, count, Write::Replace);
            return;
        }
        let mut looks = 0;
        while self.state.load(Acquire) != DONE {
            look_again(&mut looks);
        }
        let job = self.job();
        for (to, from) in out
            .chunks_exact_mut(width)
            .zip(job.out.chunks_exact(second))
        {
            to[first..].copy_from_slice(from);
        }
        drop(job);
        self.state.store(FREE, Release);
    }
}

fn look_again(looks: &mut u32) {
    *looks += 1;
    match *looks {
        ..PATIENCE => spin_loop(),
        _ => yield_now(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(inner: usize, columns: usize) -> Arc<Packed> {
        let numbers: Vec<f32> = (0..inner * columns)
            .map(|i| (i % 17) as f32 - 8.0)
            .collect();
        Arc::new(Packed::new(&numbers, inner, columns).unwrap())
    }

    fn pool(threads: usize) -> rayon::ThreadPool {
        let builder = rayon::ThreadPoolBuilder::new().num_threads(threads);
        builder.build().unwrap()
    }

    /// The result is the same whether the helper or the calling thread computes the second half.
    #[test]
    fn both_threads_give_the_same_numbers() {
        let (inner, count) = (32, 3);
        let (left, right) = (part(inner, 48), part(inner, 20));
        let x: Vec<f32> = (0..count * inner).map(|i| (i % 5) as f32).collect();
        let product = |helper: &Helper| {
            let mut out = vec![0.0; count * 68];
            helper.product([&left, &right], &x, (count, inner), &mut out);
            out
        };
        let alone = product(&Helper::default());
        for threads in [1, 2, 3] {
            pool(threads).install(|| {
                for _ in 0..3 {
                    Helper::beside(|helper| {
                        for _ in 0..crate::testing::unless_miri(200, 4) {
                            assert_eq!(product(helper), alone);
                        }
                    });
                }
            });
        }
    }

    #[test]
    fn a_panic_ends_the_watch() {
        pool(2).install(|| {
            let work = || Helper::beside(|_| panic!("a mistake of the work"));
            let failed: Result<(), _> = std::panic::catch_unwind(work);
            assert!(failed.is_err());
        });
    }
}
