//! The memory peak: a sum over memory far larger than the caches.

use std::{hint::black_box, time::Instant};

use crate::simd::{Kernel, Level, Simd, run};

/// Memory to read: 192 MiB by default, several times the caches of a desktop or of a share of a
/// server.
#[derive(Debug)]
pub struct Stream {
    numbers: Vec<f32>,
    /// Where the next reading starts: nothing of it is in a cache after the last one.
    next: usize,
}

/// Numbers of one reading: enough that the time to wake threads is negligible.
const READING: usize = 16 << 20;

impl Default for Stream {
    fn default() -> Self {
        Self {
            numbers: vec![1.0; 3 * READING],
            next: 0,
        }
    }
}

impl Stream {
    /// Bytes a second at which the threads of the current pool together read 64 MiB.
    ///
    /// ```
    /// let mut stream = regard_kernels::measure::Stream::default();
    /// assert!(stream.read() > 1e6);
    /// ```
    pub fn read(&mut self) -> f64 {
        let numbers = &self.numbers[self.next..self.next + READING];
        self.next = (self.next + READING) % self.numbers.len();
        let spans = rayon::broadcast(|context| {
            let length = READING / context.num_threads();
            let part = &numbers[context.index() * length..][..length];
            let start = Instant::now();
            black_box(run(Level::current(), Sum(part)));
            (start, Instant::now())
        });
        let read = READING / spans.len() * spans.len() * size_of::<f32>();
        let start = spans.iter().map(|span| span.0).min();
        let end = spans.iter().map(|span| span.1).max();
        match (start, end) {
            (Some(start), Some(end)) => read as f64 / (end - start).as_secs_f64(),
            _ => f64::NAN, // a pool has a thread
        }
    }
}

struct Sum<'a>(&'a [f32]);

impl Kernel for Sum<'_> {
    type Output = f32;

    #[inline(always)]
    fn call<S: Simd>(self, s: S) -> f32 {
        let mut sums = [s.zero(); 8];
        for chunk in self.0.chunks_exact(8 * S::LANES) {
            for (k, sum) in sums.iter_mut().enumerate() {
                *sum = s.add(*sum, s.load(&chunk[k * S::LANES..]));
            }
        }
        let mut total = s.zero();
        for sum in sums {
            total = s.add(total, sum);
        }
        s.reduce_add(total)
    }
}
