//! Work over the rows of a batch, on rayon's pool or on the calling thread.
//!
//! A problem is cut into chunks of a fixed number of rows, whatever the number of threads, and every
//! chunk writes rows that only it owns. So the result is the same to the last bit on any pool:
//! the number of threads decides which thread computes a chunk, never what is in it.
//!
//! A small call stays on the calling thread: waking another takes longer than it saves (`docs/experiments.md`).

use std::sync::atomic::AtomicUsize;

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

/// Work below this many nanoseconds (estimated, one thread) stays on the calling thread: waking a
/// parked worker costs tens of microseconds.
const SINGLE_THREAD_NANOSECONDS: f64 = 60_000.0;

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
    let parallel = nanoseconds > SINGLE_THREAD_NANOSECONDS
        && total_rows > chunk_rows
        && rayon::current_num_threads() > 1;
    if parallel {
        halve(items, 0, total_rows, chunk_rows, work);
    } else {
        in_order(items, total_rows, chunk_rows, work);
    }
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
    rayon::join(
        || halve(head, first, middle, chunk_rows, work),
        || halve(tail, first + middle, total_rows - middle, chunk_rows, work),
    );
}

/// Calls `worker` on the threads of the caller's pool, or on the calling thread alone where the work
/// is not worth waking one. Workers take tasks `0..tasks` off the counter until none is left, so any worker may compute
/// any task; the result of a task must not depend on which one does.
pub(crate) fn team(tasks: usize, nanoseconds: f64, worker: &(impl Fn(&AtomicUsize) + Sync)) {
    if tasks == 0 {
        return;
    }
    let next = AtomicUsize::new(0);
    let threads = if nanoseconds > SINGLE_THREAD_NANOSECONDS {
        rayon::current_num_threads().min(tasks)
    } else {
        1
    };
    if threads == 1 {
        return worker(&next);
    }
    rayon::in_place_scope(|scope| {
        for _ in 1..threads {
            scope.spawn(|_| worker(&next));
        }
        worker(&next);
    });
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
}
