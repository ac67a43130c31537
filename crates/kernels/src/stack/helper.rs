//! Other threads that take their share of each small product.
//!
//! A step of generation is some twenty to two hundred products of a few rows, each of them 5 to 500 µs long. Waking a sleeping
//! thread takes longer than most of them, so the other threads are woken once, and then watch for work without sleeping:
//!
//! ```text
//! own thread      offer  [panels 0..4] [8..12]  wait, copy    offer  [panels ..] ..
//!                    \                         /
//! helper   .. watch  [panels 4..8 ]  watch ..
//! ```
//! Whoever is free takes the next few panels, so a step never waits for a thread that is busy elsewhere or has not arrived. A
//! helper that is not needed for a while leaves: rayon may have started it on a thread that other work waits for. A number is the
//! same whichever thread computes it.
//!
//! What was tried is in `docs/experiments.md`.

use std::sync::{
    PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
    atomic::{
        AtomicBool, AtomicU32, AtomicU64, AtomicUsize,
        Ordering::{AcqRel, Acquire, Relaxed, Release},
    },
};

use crate::{
    matmul::Packed,
    simd::fresh,
    threads::{ENOUGH, Stop, look_again},
};

/// From this many multiplications on, help is worth its cost.
const WORTH_HELP: usize = 1 << 18;
/// Shares of a product for each thread: more than one, as they do not begin together.
const SHARES: usize = 4;

/// What the calling thread and its helpers share.
#[derive(Default)]
struct Desk<'a> {
    job: RwLock<Job<'a>>,
    /// Which shares were taken, as [`Taken`] says.
    taken: AtomicU64,
    done: AtomicUsize,
    over: AtomicBool,
    present: AtomicUsize,
}

/// `job << 32 | shares << 16 | taken`: one number, so that nobody takes a share of another job than he read.
#[derive(Clone, Copy)]
struct Taken(u64);

impl Taken {
    fn of(job: u32, shares: usize) -> Self {
        Self(u64::from(job) << 32 | (shares as u64) << 16)
    }

    fn shares(self) -> usize {
        (self.0 >> 16 & 0xFFFF) as usize
    }

    fn count(self) -> usize {
        (self.0 & 0xFFFF) as usize
    }

    fn job(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// `out [count, columns] = x [count, inner] · matrix + bias`, in shares of some panels.
#[derive(Default)]
struct Job<'a> {
    matrix: Option<&'a Packed>,
    /// `[columns]`, or empty.
    bias: &'a [f32],
    x: Vec<f32>,
    count: usize,
    /// Columns of a share.
    width: usize,
    /// The bits of the results: threads write different ones.
    out: Vec<AtomicU32>,
}

impl Job<'_> {
    /// Computes one share in the memory of `own`.
    fn run(&self, share: usize, own: &mut Vec<f32>) {
        let Some(matrix) = self.matrix else { return };
        let [_, columns] = matrix.sizes();
        let first = share * self.width;
        let end = (first + self.width).min(columns);
        let width = end - first;
        own.resize(self.count * width, 0.0);
        matrix.affine(&self.x, fresh(own), self.count, [first, end], self.bias);
        for (row, from) in own.chunks_exact(width).enumerate() {
            let to = &self.out[row * columns + first..];
            for (to, x) in to.iter().zip(from) {
                to.store(x.to_bits(), Relaxed);
            }
        }
    }
}

impl<'a> Desk<'a> {
    fn read(&self) -> RwLockReadGuard<'_, Job<'a>> {
        self.job.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Job<'a>> {
        self.job.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes and computes shares until none is left; whether there was one.
    fn work(&self, own: &mut Vec<f32>) -> bool {
        let mut worked = false;
        loop {
            let taken = Taken(self.taken.load(Acquire));
            if taken.count() >= taken.shares() {
                return worked;
            }
            let next = taken.0 + 1;
            if self
                .taken
                .compare_exchange(taken.0, next, AcqRel, Relaxed)
                .is_err()
            {
                continue;
            }
            // The job stays the same until this share is done.
            self.read().run(taken.count(), own);
            self.done.fetch_add(1, Release);
            worked = true;
        }
    }

    /// What a helper does.
    fn watch(&self) {
        let (mut looks, mut own) = (0, vec![]);
        while looks < ENOUGH && !self.over.load(Acquire) {
            match self.work(&mut own) {
                true => looks = 0,
                false => _ = look_again(&mut looks),
            }
        }
        self.present.fetch_sub(1, Release);
    }
}

/// Ends the helpers' watch, also when the work panics.
struct Watch<'d, 'a>(&'d Desk<'a>);

impl Drop for Watch<'_, '_> {
    fn drop(&mut self) {
        self.0.over.store(true, Release);
    }
}

/// The calling thread's side.
pub(super) struct Helper<'r, 's, 'a> {
    desk: &'s Desk<'a>,
    scope: &'r rayon::Scope<'s>,
    /// Threads beside the calling one.
    helpers: usize,
}

impl<'a> Helper<'_, '_, 'a> {
    /// Does `work` on a thread of the caller's pool, while its other threads watch for their share.
    pub(super) fn beside<T: Send>(work: impl FnOnce(&Helper<'_, '_, 'a>) -> T + Send) -> T {
        let desk = Desk::default();
        let desk = &desk;
        // Where a share is left undone the helpers could not go on.
        let _unheeded = Stop::of_this_thread();
        rayon::scope(|scope| {
            let _watch = Watch(desk);
            let helpers = rayon::current_num_threads() - 1;
            work(&Helper {
                desk,
                scope,
                helpers,
            })
        })
    }

    /// Sends the helpers away, so that rayon's own work can have their threads.
    pub(super) fn dismiss(&self) {
        self.desk.over.store(true, Release);
    }

    /// Asks for helpers where some have left.
    fn call(&self) {
        self.desk.over.store(false, Release);
        while self.desk.present.load(Acquire) < self.helpers {
            self.desk.present.fetch_add(1, AcqRel);
            let desk = self.desk;
            self.scope.spawn(|_| desk.watch());
        }
    }

    /// `out [count, columns] = x [count, inner] · matrix + bias`, for `bias [columns]` or an empty one.
    pub(super) fn product(
        &self,
        matrix: &'a Packed,
        bias: &'a [f32],
        x: &[f32],
        count: usize,
        out: &mut [f32],
    ) {
        let [inner, columns] = matrix.sizes();
        let x = &x[..count * inner];
        if self.helpers == 0 || x.len() * columns < WORTH_HELP {
            matrix.affine(x, fresh(out), count, [0, columns], bias);
            return;
        }
        self.call();
        let panels = columns.div_ceil(matrix.panel());
        let in_share = panels.div_ceil(SHARES * (self.helpers + 1));
        let shares = panels.div_ceil(in_share);
        let mut job = self.desk.write();
        job.matrix = Some(matrix);
        job.bias = bias;
        job.x.clear();
        job.x.extend_from_slice(x);
        job.count = count;
        job.width = in_share * matrix.panel();
        if job.out.len() < out.len() {
            job.out.resize_with(out.len(), AtomicU32::default);
        }
        drop(job);
        self.desk.done.store(0, Release);
        let number = Taken(self.desk.taken.load(Acquire)).job().wrapping_add(1);
        let taken = Taken::of(number, shares);
        self.desk.taken.store(taken.0, Release);
        self.desk.work(&mut vec![]);
        let mut looks = 0;
        while self.desk.done.load(Acquire) < shares {
            look_again(&mut looks);
        }
        let job = self.desk.read();
        for (to, from) in out.iter_mut().zip(&job.out) {
            *to = f32::from_bits(from.load(Relaxed));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(inner: usize, columns: usize) -> Packed {
        let numbers: Vec<f32> = (0..inner * columns)
            .map(|i| (i % 17) as f32 - 8.0)
            .collect();
        Packed::new(&numbers, inner, columns).unwrap()
    }

    fn pool(threads: usize) -> rayon::ThreadPool {
        let builder = rayon::ThreadPoolBuilder::new().num_threads(threads);
        builder.build().unwrap()
    }

    /// The result is the same whoever computes which share.
    #[test]
    fn all_threads_give_the_same_numbers() {
        let (inner, columns) = crate::testing::unless_miri((300, 1030), (16, 100));
        let (left, right) = (matrix(inner, columns), matrix(inner, columns / 3));
        let x: Vec<f32> = (0..3 * inner).map(|i| (i % 5) as f32).collect();
        let bias: Vec<f32> = (0..columns).map(|i| i as f32 * 0.1).collect();
        let alone = |matrix: &Packed| {
            let mut out = vec![0.0; 3 * matrix.columns()];
            matrix.multiply(&x, &mut out, 3).unwrap();
            let rows = out.chunks_exact_mut(matrix.columns());
            rows.for_each(|row| row.iter_mut().zip(&bias).for_each(|(y, b)| *y += b));
            out
        };
        for threads in [1, 2, 3] {
            pool(threads).install(|| {
                Helper::beside(|helper| {
                    for round in 0..crate::testing::unless_miri(300, 3) {
                        if round % 50 == 7 {
                            helper.dismiss();
                        }
                        for matrix in [&left, &right] {
                            let mut out = vec![0.0; 3 * matrix.columns()];
                            helper.product(matrix, &bias[..matrix.columns()], &x, 3, &mut out);
                            assert_eq!(out, alone(matrix));
                        }
                    }
                });
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
