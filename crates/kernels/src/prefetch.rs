//! Prefetching: memory that will be needed soon is requested while something else is computed.
//!
//! In attention, for example:
//! ```text
//! panel p:   block  block  block  ...        each asks for a few rows of memory
//!              └──────┴──────┴──> outputs of p, queries of the next panel, keys and values that only that one sees
//! ```
//! A panel uses its queries and its outputs only once, so they are in no cache. If all were requested in one burst, the reads
//! that come next would wait until all of them have arrived, so the requests are spread (measured in `docs/experiments.md`).

use crate::simd::Simd;

/// Rows of memory to request, spread over the blocks of a computation.
#[derive(Default)]
pub(crate) struct Prefetch {
    parts: Vec<Part>,
    /// Rows for each block.
    each: usize,
    part: usize,
    row: usize,
}

/// Rows of `bytes` that are `stride` bytes apart.
#[derive(Clone, Copy)]
struct Part {
    start: *const u8,
    rows: usize,
    stride: usize,
    bytes: usize,
    write: bool,
}

/// Bytes of a line.
const LINE: usize = 64;

impl Prefetch {
    pub(crate) fn clear(&mut self) {
        self.parts.clear();
        (self.part, self.row) = (0, 0);
    }

    /// Adds `rows` rows of `numbers`, to be written or read.
    #[inline(always)]
    pub(crate) fn add<T>(
        &mut self,
        start: *const T,
        rows: usize,
        stride: usize,
        numbers: usize,
        write: bool,
    ) {
        self.parts.push(Part {
            start: start.cast(),
            rows,
            // That of a single row may be any number.
            stride: stride.wrapping_mul(size_of::<T>()),
            bytes: numbers * size_of::<T>(),
            write,
        });
    }

    /// Adds `numbers` that lie one after the other, as rows of a line each.
    #[inline(always)]
    pub(crate) fn add_run<T>(&mut self, start: *const T, numbers: usize, write: bool) {
        let of_line = LINE / size_of::<T>();
        self.add(start, numbers.div_ceil(of_line), of_line, of_line, write);
    }

    /// Spreads what was added over `blocks` blocks.
    pub(crate) fn spread(&mut self, blocks: usize) {
        let rows: usize = self.parts.iter().map(|part| part.rows).sum();
        self.each = rows.div_ceil(blocks.max(1));
    }

    /// Whether there are rows to request.
    pub(crate) fn has_rows(&self) -> bool {
        self.part < self.parts.len()
    }

    /// Requests the next rows.
    #[inline(always)]
    pub(crate) fn some<S: Simd>(&mut self, s: S) {
        let mut left = self.each;
        while left > 0
            && let Some(&part) = self.parts.get(self.part)
        {
            let rows = left.min(part.rows - self.row);
            let mut row = part.start.wrapping_add(self.row * part.stride);
            for _ in 0..rows {
                let mut at = 0;
                while at < part.bytes {
                    s.prefetch(row.wrapping_add(at).cast(), part.write);
                    at += LINE;
                }
                row = row.wrapping_add(part.stride);
            }
            left -= rows;
            self.row += rows;
            if self.row == part.rows {
                (self.part, self.row) = (self.part + 1, 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Kernel, Level, run};

    struct Next<'a>(&'a mut Prefetch);

    impl Kernel for Next<'_> {
        type Output = ();
        #[inline(always)]
        fn call<S: Simd>(self, s: S) {
            self.0.some(s);
        }
    }

    #[test]
    fn a_single_row_may_have_any_stride() {
        let (numbers, mut prefetch) = ([0.0f32; 16], Prefetch::default());
        for stride in [0, 16, usize::MAX] {
            prefetch.add(numbers.as_ptr(), 1, stride, 16, false);
        }
        prefetch.spread(2);
        run(Level::current(), Next(&mut prefetch));
        assert!(prefetch.has_rows(), "two of three rows");
        run(Level::current(), Next(&mut prefetch));
        assert!(!prefetch.has_rows());
    }
}
