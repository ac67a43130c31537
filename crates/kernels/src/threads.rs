//! Work over the rows of a batch, on rayon's pool or on the calling thread.
//!
//! A problem is cut into chunks of a fixed number of rows, whatever the number of threads, and every
//! chunk writes rows that only it owns. So the result is the same to the last bit on any pool:
//! the number of threads decides which thread computes a chunk, never what is in it.
//!
//! A small call stays on the calling thread: waking another takes longer than it saves.
//!
//! An update of a small model is some hundred operations of 20 to 500 µs. Rayon's threads go to sleep some 10 µs after their last
//! share, and would be woken for each operation. So a thread that has done its share lingers: for a short while it looks for more
//! without sleeping. So does the calling thread when it waits for the last shares of others.
//!
//! A call under [`stoppable`] looks at a flag before each chunk or task. If it is set, the thread unwinds as it would by a panic, so that
//! nothing that follows sees half of a result.

use std::{
    cell::Cell,
    hint::spin_loop,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicUsize,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    thread::yield_now,
    time::{Duration, Instant},
};

use rayon::Yield;

/// Something made of equal rows that can be cut in two between rows.
pub(crate) trait Rows: Send + Sized {
    /// Cuts off the first `rows` rows.
    fn split(self, rows: usize) -> (Self, Self);
}

/// A mutable slice seen as rows of `width` numbers.
pub(crate) struct RowsMut<'a, T> {
    pub(crate) data: &'a mut [T],
    pub(crate) width: usize,
}

/// Shorthand for [`RowsMut`].
pub(crate) fn rows<T>(data: &mut [T], width: usize) -> RowsMut<'_, T> {
    RowsMut { data, width }
}

impl<T: Send> Rows for RowsMut<'_, T> {
    fn split(self, rows: usize) -> (Self, Self) {
        let (head, tail) = self.data.split_at_mut(rows * self.width);
        let width = self.width;
        (RowsMut { data: head, width }, RowsMut { data: tail, width })
    }
}

impl<R: Rows> Rows for Option<R> {
    fn split(self, rows: usize) -> (Self, Self) {
        match self {
            Some(inner) => {
                let (head, tail) = inner.split(rows);
                (Some(head), Some(tail))
            }
            None => (None, None),
        }
    }
}

impl<R: Rows, const N: usize> Rows for [R; N] {
    fn split(self, rows: usize) -> (Self, Self) {
        let mut tails = Vec::with_capacity(N);
        let heads = self.map(|part| {
            let (head, tail) = part.split(rows);
            tails.push(tail);
            head
        });
        let mut tails = tails.into_iter();
        (
            heads,
            std::array::from_fn(|_| tails.next().expect("one tail for each head")),
        )
    }
}

macro_rules! tuple_rows {
    ($($name:ident),+) => {
        impl<$($name: Rows),+> Rows for ($($name,)+) {
            #[allow(non_snake_case)]
            fn split(self, rows: usize) -> (Self, Self) {
                let ($($name,)+) = self;
                $(let $name = $name.split(rows);)+
                (($($name.0,)+), ($($name.1,)+))
            }
        }
    };
}
tuple_rows!(A, B);
tuple_rows!(A, B, C);
tuple_rows!(A, B, C, D);
tuple_rows!(A, B, C, D, E);

/// Work of at most this many nanoseconds (estimated, one thread) is not worth waking a sleeping thread: it may even wake on the
/// caller's own core (`docs/experiments.md`).
const WORTH_WAKING: f64 = 60_000.0;
/// The same where another thread is awake.
const WORTH_SHARING: f64 = 12_000.0;

/// Whether to share work that takes one thread so many `nanoseconds`.
fn is_worth_sharing(nanoseconds: f64) -> bool {
    let least = match LINGERING.load(Relaxed) {
        0 => WORTH_WAKING,
        _ => WORTH_SHARING,
    };
    nanoseconds > least && rayon::current_num_threads() > 1
}

/// Why there is no result: see [`stoppable`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("stopped")]
pub struct Stopped;

thread_local! {
    /// What the calls of this thread look at.
    static STOP: Cell<Option<Arc<AtomicBool>>> = const { Cell::new(None) };
}

/// What `work` gives, unless another thread sets `stop` before: a kernel that this thread calls in `work` then ends behind the tasks (panels
/// of queries, chunks of rows) that its threads are at, and what it was to write is incomplete. For calls so long that a user may press
/// Ctrl-C. A pass of [`stack`](crate::stack) runs to its end.
///
/// It unwinds through `work`, which therefore must not hold what a panic would leave unusable, such as a locked `Mutex`. Nor should `work`
/// itself wait for rayon: the thread may take work of others meanwhile, and would stop it.
///
/// ```
/// use std::sync::{Arc, atomic::{AtomicBool, Ordering}};
/// use regard_kernels::{Stopped, stoppable, sum};
///
/// let stop = Arc::new(AtomicBool::new(false));
/// assert_eq!(stoppable(&stop, || sum::sum(&[1.0, 2.0])), Ok(3.0));
/// stop.store(true, Ordering::Relaxed); // by another thread, in the middle of a call
/// assert_eq!(stoppable(&stop, || sum::sum(&[1.0, 2.0])), Err(Stopped));
/// ```
///
/// # Errors
/// `stop` was set.
pub fn stoppable<R>(stop: &Arc<AtomicBool>, work: impl FnOnce() -> R) -> Result<R, Stopped> {
    let outer = STOP.replace(Some(stop.clone()));
    let result = catch_unwind(AssertUnwindSafe(work));
    STOP.set(outer);
    result.map_err(|thrown| match thrown.downcast() {
        Ok(stopped) => *stopped,
        Err(panicked) => resume_unwind(panicked),
    })
}

/// The flag of one call, taken from its thread: while it waits for others, the thread may take work of another call, which the flag does not
/// concern.
pub(crate) struct Stop(Option<Arc<AtomicBool>>);

impl Stop {
    pub(crate) fn of_this_thread() -> Self {
        Self(STOP.take())
    }

    /// Does not return if the flag is set.
    pub(crate) fn heed(&self) {
        if self.0.as_ref().is_some_and(|stop| stop.load(Relaxed)) {
            resume_unwind(Box::new(Stopped));
        }
    }
}

impl Drop for Stop {
    fn drop(&mut self) {
        STOP.set(self.0.take());
    }
}

/// Calls `work(first_row, chunk)` for every chunk of at most `chunk_rows` rows.
///
/// `nanoseconds` is a rough estimate of the whole on one thread; it chooses between the pool and
/// the calling thread and has no influence on the result.
pub(crate) fn for_each_chunk<R: Rows>(
    items: R,
    total_rows: usize,
    chunk_rows: usize,
    nanoseconds: f64,
    work: &(impl Fn(usize, R) + Sync),
) {
    if total_rows == 0 {
        return;
    }
    let chunk_rows = chunk_rows.max(1);
    let stop = Stop::of_this_thread();
    let work = &|first, chunk| {
        stop.heed();
        work(first, chunk);
    };
    if total_rows > chunk_rows && is_worth_sharing(nanoseconds) {
        halve(items, 0, total_rows, chunk_rows, work);
    } else {
        in_order(items, total_rows, chunk_rows, work);
    }
}

/// What `work(index, item)` gives for every item, in the order of the items.
///
/// `nanoseconds` as for [`for_each_chunk`].
pub(crate) fn map_each<T: Send, R: Send>(
    items: Vec<T>,
    nanoseconds: f64,
    work: &(impl Fn(usize, T) -> R + Sync),
) -> Vec<R> {
    let count = items.len();
    let mut items: Vec<Option<T>> = items.into_iter().map(Some).collect();
    let mut results: Vec<Option<R>> = (0..count).map(|_| None).collect();
    let both = (rows(&mut items, 1), rows(&mut results, 1));
    let fill = |first, (items, results): (RowsMut<_>, RowsMut<_>)| {
        let both = items.data.iter_mut().zip(results.data);
        for (index, (item, result)) in (first..).zip(both) {
            *result = Option::take(item).map(|item| work(index, item));
        }
    };
    for_each_chunk(both, count, 1, nanoseconds, &fill);
    results.into_iter().flatten().collect()
}

fn in_order<R: Rows>(
    mut items: R,
    total_rows: usize,
    chunk_rows: usize,
    work: &(impl Fn(usize, R) + Sync),
) {
    let mut first = 0;
    while total_rows - first > chunk_rows {
        let (head, tail) = items.split(chunk_rows);
        work(first, head);
        items = tail;
        first += chunk_rows;
    }
    work(first, items);
}

fn halve<R: Rows>(
    items: R,
    first: usize,
    total_rows: usize,
    chunk_rows: usize,
    work: &(impl Fn(usize, R) + Sync),
) {
    if total_rows <= chunk_rows {
        return work(first, items);
    }
    let chunks = total_rows.div_ceil(chunk_rows);
    let middle = chunks / 2 * chunk_rows;
    let (head, tail) = items.split(middle);
    join(
        || halve(head, first, middle, chunk_rows, work),
        || halve(tail, first + middle, total_rows - middle, chunk_rows, work),
    );
}

/// The tasks of a [`team`].
pub(crate) struct Tasks {
    next: AtomicUsize,
    count: usize,
    stop: Stop,
}

impl Tasks {
    /// The next task that no worker has taken.
    pub(crate) fn take(&self) -> Option<usize> {
        self.heed_stop();
        let task = self.next.fetch_add(1, Relaxed);
        (task < self.count).then_some(task)
    }

    /// What a worker takes task by task where it wants to know the next one before it is done, to request what that one reads. With `early`
    /// the next one is claimed when it is asked for, but for the last ones, so that nobody waits for a busy worker; else it is a guess.
    pub(crate) fn claims(&self, early: bool) -> Claims<'_> {
        let last = 4 * rayon::current_num_threads();
        Claims {
            tasks: self,
            late: if early {
                self.count.saturating_sub(last)
            } else {
                0
            },
            ahead: None,
        }
    }

    /// Does not return if the call has been stopped. For the middle of long tasks.
    pub(crate) fn heed_stop(&self) {
        self.stop.heed();
    }
}

/// The tasks of a worker: see [`Tasks::claims`].
pub(crate) struct Claims<'a> {
    tasks: &'a Tasks,
    /// The first task after which none is claimed early.
    late: usize,
    ahead: Option<usize>,
}

impl Claims<'_> {
    /// The next task.
    pub(crate) fn take(&mut self) -> Option<usize> {
        self.ahead.take().or_else(|| self.tasks.take())
    }

    /// The task after `task`, which is the one that was taken last; asked for once.
    pub(crate) fn after(&mut self, task: usize) -> Option<usize> {
        if task < self.late {
            self.ahead = self.tasks.take();
            return self.ahead;
        }
        Some(task + 1).filter(|&next| next < self.tasks.count)
    }
}

/// Calls `task` once with each of `0..count`, on the threads of the caller's pool, or on the calling thread alone where a rough estimate of
/// the whole, in `nanoseconds` of one thread, is not worth waking another. What a task does must not depend on its thread. Threads
/// that have no task left look for more before they sleep, as after a kernel. A call under [`stoppable`] ends between two tasks.
///
/// # Panics
/// If a task does.
///
/// ```
/// use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
///
/// let sum = AtomicUsize::new(0);
/// regard_kernels::for_each_task(10, 1e6, &|task| {
///     sum.fetch_add(task, Relaxed);
/// });
/// assert_eq!(sum.into_inner(), 45);
/// ```
pub fn for_each_task(count: usize, nanoseconds: f64, task: &(impl Fn(usize) + Sync)) {
    team(count, nanoseconds, &|tasks| {
        while let Some(next) = tasks.take() {
            task(next);
        }
    });
}

/// Calls `worker` on the threads of the caller's pool, or on the calling thread alone where the work
/// is not worth waking one. Workers take tasks `0..count` until none is left, so any worker may compute
/// any task; the result of a task must not depend on which one does.
pub(crate) fn team(count: usize, nanoseconds: f64, worker: &(impl Fn(&Tasks) + Sync)) {
    if count == 0 {
        return;
    }
    let tasks = &Tasks {
        next: AtomicUsize::new(0),
        count,
        stop: Stop::of_this_thread(),
    };
    if count == 1 || !is_worth_sharing(nanoseconds) {
        return worker(tasks);
    }
    let threads = rayon::current_num_threads().min(count);
    let running = AtomicUsize::new(0);
    let caller = rayon::current_thread_index();
    rayon::in_place_scope(|scope| {
        for _ in 1..threads {
            scope.spawn(|_| {
                running.fetch_add(1, Relaxed);
                worker(tasks);
                running.fetch_sub(1, Release);
                if rayon::current_thread_index() != caller {
                    linger();
                }
            });
        }
        worker(tasks);
        wait_for(|| running.load(Acquire) == 0);
    });
}

/// `rayon::join`, whose threads stay awake.
fn join(first: impl FnOnce() + Send, second: impl FnOnce() + Send) {
    let (begun, done) = (AtomicBool::new(false), AtomicBool::new(false));
    rayon::join_context(
        |_| {
            first();
            wait_for(|| !begun.load(Relaxed) || done.load(Acquire));
        },
        |context| {
            begun.store(true, Relaxed);
            second();
            done.store(true, Release);
            if context.migrated() {
                linger();
            }
        },
    );
}

/// How often a thread looks before it offers its core to others: 10 to 50 µs.
const PATIENCE: u32 = 500;
/// How often it looks at most: some hundreds of microseconds, if nobody takes its offers.
pub(crate) const ENOUGH: u32 = 2000;
/// How long a thread lingers before it returns to rayon: it may have been waiting for something when it took its share, and
/// sees that only there.
const SPELL: Duration = Duration::from_micros(500);
/// If a core that was offered comes back only after this time, others need it.
const TAKEN: Duration = Duration::from_micros(50);

/// How many threads linger, of all pools.
static LINGERING: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static LINGERS: Cell<bool> = const { Cell::new(false) };
}

/// Lets this thread look for more work without sleeping, once it has returned from its share: for one [`SPELL`], and for another
/// if there was some and no other thread needs the core.
fn linger() {
    if LINGERS.get() {
        return;
    }
    let own = rayon::current_thread_index();
    rayon::spawn(move || {
        // Another thread may have taken this before its own one came to it.
        if rayon::current_thread_index() != own {
            return;
        }
        LINGERS.set(true);
        LINGERING.fetch_add(1, Relaxed);
        let begun = Instant::now();
        let (mut worked, mut looks) = (false, 0);
        while begun.elapsed() < SPELL {
            if rayon::yield_now() == Some(Yield::Executed) {
                (worked, looks) = (true, 0);
            } else if !look_again(&mut looks) {
                worked = false;
                break;
            }
        }
        LINGERING.fetch_sub(1, Relaxed);
        LINGERS.set(false);
        if worked {
            linger();
        }
    });
}

/// Waits for what is about to happen without sleeping. If it takes longer, rayon's own wait follows.
fn wait_for(happened: impl Fn() -> bool) {
    let mut looks = 0;
    while looks < ENOUGH && !happened() && look_again(&mut looks) {}
}

/// A pause before the next look, of which there were `looks`; whether no other thread needs the core.
pub(crate) fn look_again(looks: &mut u32) -> bool {
    *looks = looks.saturating_add(1);
    if *looks < PATIENCE {
        spin_loop();
        return true;
    }
    let offered = Instant::now();
    yield_now();
    offered.elapsed() < TAKEN
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::unless_miri;

    #[test]
    fn chunks_are_the_same_in_order_and_in_parallel() {
        for &total in unless_miri(&[1usize, 2, 5, 16, 17, 33][..], &[5]) {
            for &chunk in unless_miri(&[1usize, 2, 4, 16, 100][..], &[2]) {
                let seen = |nanoseconds: f64| {
                    let mut starts = vec![usize::MAX; total];
                    for_each_chunk(
                        rows(&mut starts, 1),
                        total,
                        chunk,
                        nanoseconds,
                        &|first, part: RowsMut<usize>| {
                            part.data.fill(first);
                        },
                    );
                    starts
                };
                let pool = rayon::ThreadPoolBuilder::new()
                    .num_threads(3)
                    .build()
                    .unwrap();
                let alone = seen(0.0);
                assert_eq!(alone, pool.install(|| seen(f64::INFINITY)));
                assert!(
                    alone
                        .iter()
                        .enumerate()
                        .all(|(row, &first)| first == row / chunk * chunk)
                );
            }
        }
    }

    #[test]
    fn tasks_that_are_claimed_early_are_taken_once() {
        for early in [false, true] {
            for count in unless_miri(&[0, 1, 3, 50, 200][..], &[3]) {
                let pool = rayon::ThreadPoolBuilder::new();
                let pool = pool.num_threads(3).build().unwrap();
                let taken: Vec<_> = (0..*count).map(|_| AtomicUsize::new(0)).collect();
                pool.install(|| {
                    team(*count, f64::INFINITY, &|tasks| {
                        let mut claims = tasks.claims(early);
                        while let Some(task) = claims.take() {
                            taken[task].fetch_add(1, Relaxed);
                            let next = claims.after(task);
                            assert!(next.is_none_or(|next| task < next && next < *count));
                        }
                    });
                });
                assert!(taken.iter().all(|times| times.load(Relaxed) == 1));
            }
        }
    }

    #[test]
    fn shares_that_panic_leave_a_pool_that_works() {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(2)
            .build()
            .unwrap();
        let sum = |broken: usize| {
            let total = AtomicUsize::new(0);
            team(8, f64::INFINITY, &|tasks| {
                while let Some(task) = tasks.take() {
                    assert_ne!(task, broken);
                    total.fetch_add(task, Relaxed);
                }
            });
            total.into_inner()
        };
        for round in 0..unless_miri(200, 2) {
            let broken = std::panic::AssertUnwindSafe(|| pool.install(|| sum(round % 8)));
            assert!(std::panic::catch_unwind(broken).is_err());
            assert_eq!(pool.install(|| sum(usize::MAX)), 28);
        }
    }

    #[test]
    fn a_call_that_is_stopped_ends_and_leaves_a_pool_that_works() {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(3)
            .build()
            .unwrap();
        for nanoseconds in [0.0, f64::INFINITY] {
            let done = AtomicUsize::new(0);
            // One task sets the flag; those behind it come after that.
            let task = |index: usize, stop_at: usize, stop: &AtomicBool| {
                stop.fetch_or(index == stop_at, Relaxed);
                while index > stop_at && !stop.load(Relaxed) {
                    yield_now();
                }
                done.fetch_add(1, Relaxed);
            };
            let in_a_team = |stop_at: usize, stop: &AtomicBool| {
                team(100, nanoseconds, &|tasks| {
                    while let Some(index) = tasks.take() {
                        task(index, stop_at, stop);
                    }
                });
            };
            let in_chunks = |stop_at: usize, stop: &AtomicBool| {
                let numbers = &mut [0usize; 100];
                let work = |first, _: RowsMut<usize>| task(first, stop_at, stop);
                for_each_chunk(rows(numbers, 1), 100, 1, nanoseconds, &work);
            };
            let stops = |way: &(dyn Fn(usize, &AtomicBool) + Sync)| {
                let call = |stop_at: usize| {
                    done.store(0, Relaxed);
                    let stop = &Arc::new(AtomicBool::new(false));
                    let result = pool.install(|| stoppable(stop, || way(stop_at, stop)));
                    (result, done.load(Relaxed))
                };
                assert_eq!(call(usize::MAX), (Ok(()), 100));
                let (result, done) = call(3);
                assert_eq!(result, Err(Stopped));
                assert!(done < 100, "{done}");
                // A call beside it has no flag.
                pool.install(|| way(0, &AtomicBool::new(true)));
            };
            stops(&in_a_team);
            stops(&in_chunks);
        }
    }

    #[test]
    fn a_panic_is_not_a_stop() {
        let stop = &Arc::new(AtomicBool::new(true));
        let panicked = catch_unwind(|| stoppable(stop, || panic!("broken")));
        let said = panicked.unwrap_err();
        assert_eq!(said.downcast_ref::<&str>(), Some(&"broken"));
    }

    #[test]
    fn a_thread_that_lingers_takes_other_work_and_leaves() {
        let (left, leaving) = std::sync::mpsc::channel();
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(3)
            .exit_handler(move |_| left.send(()).unwrap())
            .build()
            .unwrap();
        for _ in 0..unless_miri(50, 2) {
            let mut numbers = [0usize; 64];
            pool.install(|| {
                for_each_chunk(rows(&mut numbers, 1), 64, 1, f64::INFINITY, &|_, _| {
                    let [mut a, mut b] = [[0; 8]; 2];
                    let fill = |first: usize, part: RowsMut<usize>| part.data.fill(first);
                    for_each_chunk(rows(&mut a, 1), 8, 2, f64::INFINITY, &fill);
                    rayon::join(|| b.fill(1), || ());
                    assert_eq!((a, b), ([0, 0, 2, 2, 4, 4, 6, 6], [1; 8]));
                });
            });
        }
        drop(pool);
        for _ in 0..3 {
            leaving.recv_timeout(Duration::from_secs(60)).unwrap();
        }
    }
}
