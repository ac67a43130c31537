//! The two products of a tile, with the rows that come next fetched between them.

use crate::{
    element::{Element, load},
    simd::{Kernel, Simd},
};

use super::{ROWS, TILE};

/// Rows of a tile that will be read soon, and their numbers.
pub(super) type Ahead<'a, T> = Option<(&'a [*const T; TILE], usize)>;

#[inline(always)]
fn fetch<S: Simd, T>(s: S, ahead: &Ahead<T>, j: usize) {
    if let Some((rows, numbers)) = ahead {
        for at in (0..*numbers).step_by(64 / size_of::<T>()) {
            s.prefetch(rows[j].wrapping_add(at).cast(), false);
        }
    }
}

/// Scores of [`ROWS`] query rows with the keys of a tile.
pub(super) struct Scores<'a, T> {
    /// `[ROWS, padded dim]`, zeros past `dim`.
    pub(super) query: &'a [f32],
    pub(super) dim: usize,
    pub(super) key: &'a [*const T; TILE],
    pub(super) keys: usize,
    pub(super) ahead: Ahead<'a, T>,
    /// `[ROWS, TILE]`
    pub(super) scores: &'a mut [f32],
}

impl<T: Element> Kernel for Scores<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        const KEYS: usize = 4;
        let width = self.query.len() / ROWS;
        // What does not fill a vector is read apart: code that looks at single numbers among the products would drive
        // their sums out of the registers.
        let whole = self.dim / S::LANES * S::LANES;
        for first in (0..self.keys).step_by(KEYS) {
            let mut sums = [[s.zero(); KEYS]; ROWS];
            for j in 0..KEYS {
                fetch(s, &self.ahead, first + j);
            }
            let key = &self.key[first..first + KEYS];
            let mut add = |at: usize, keys: [S::V; KEYS]| {
                for (r, sums) in sums.iter_mut().enumerate() {
                    let query = s.load(&self.query[r * width + at..]);
                    for (sum, key) in sums.iter_mut().zip(keys) {
                        *sum = s.fma(query, key, *sum);
                    }
                }
            };
            for at in (0..whole).step_by(S::LANES) {
                // SAFETY: `key` are rows of `dim` numbers of a checked view, and a vector of them is left.
                add(
                    at,
                    std::array::from_fn(|j| unsafe { load(s, key[j].add(at)) }),
                );
            }
            if whole < self.dim {
                let rest = self.dim - whole;
                // SAFETY: as above, and `rest` numbers are left.
                let rest = |j: usize| unsafe { load_up_to(s, key[j].add(whole), rest) };
                add(whole, std::array::from_fn(rest));
            }
            for (r, sums) in sums.iter().enumerate() {
                for (j, &sum) in sums.iter().enumerate() {
                    self.scores[r * TILE + first + j] = s.reduce_add(sum);
                }
            }
        }
    }
}

/// A vector of `from`, zeros beyond its `count` numbers, which are fewer than lanes.
///
/// # Safety
/// `count` numbers can be read.
#[inline(always)]
unsafe fn load_up_to<S: Simd, T: Element>(s: S, from: *const T, count: usize) -> S::V {
    let mut lanes = [0.0f32; 16];
    for (j, lane) in lanes[..count].iter_mut().enumerate() {
        // SAFETY: as the caller says.
        *lane = unsafe { from.add(j).read() }.widen();
    }
    s.load(&lanes)
}

/// Adds the weighted values of a tile to [`ROWS`] rows of output.
pub(super) struct Values<'a, T> {
    /// `[ROWS, TILE]`
    pub(super) weights: &'a [f32],
    /// For each row the keys that it sees, if there are any it does not.
    pub(super) seen: Option<&'a [u64]>,
    pub(super) value: &'a [*const T; TILE],
    pub(super) keys: usize,
    pub(super) value_dim: usize,
    pub(super) ahead: Ahead<'a, T>,
    /// `[ROWS, padded value_dim]`
    pub(super) output: &'a mut [f32],
}

impl<T: Element> Kernel for Values<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(mut self, s: S) {
        let mut at = 0;
        while at + 4 * S::LANES <= self.value_dim {
            self.columns::<S, 4, true>(s, at);
            at += 4 * S::LANES;
        }
        while at + S::LANES <= self.value_dim {
            self.columns::<S, 1, true>(s, at);
            at += S::LANES;
        }
        if at < self.value_dim {
            self.columns::<S, 1, false>(s, at);
        }
    }
}

impl<T: Element> Values<'_, T> {
    /// `V` vectors of columns from `at` on, `WHOLE` unless the row ends within one.
    #[inline(always)]
    fn columns<S: Simd, const V: usize, const WHOLE: bool>(&mut self, s: S, at: usize) {
        let width = self.output.len() / ROWS;
        let mut sums = [[s.zero(); V]; ROWS];
        for (r, sums) in sums.iter_mut().enumerate() {
            for (v, sum) in sums.iter_mut().enumerate() {
                *sum = s.load(&self.output[r * width + at + v * S::LANES..]);
            }
        }
        for j in 0..self.keys {
            if at == 0 {
                fetch(s, &self.ahead, j);
            }
            let mut values = [s.zero(); V];
            for (v, x) in values.iter_mut().enumerate() {
                let column = at + v * S::LANES;
                let left = self.value_dim - column;
                // SAFETY: `value` are rows of `value_dim` numbers of a checked view.
                *x = unsafe {
                    let from = self.value[j].add(column);
                    if WHOLE {
                        load(s, from)
                    } else {
                        load_up_to(s, from, left)
                    }
                };
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                if self.seen.is_some_and(|seen| seen[r] >> j & 1 == 0) {
                    continue;
                }
                let weight = s.splat(self.weights[r * TILE + j]);
                for (sum, &value) in sums.iter_mut().zip(&values) {
                    *sum = s.fma(weight, value, *sum);
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            for (v, &sum) in sums.iter().enumerate() {
                s.store(&mut self.output[r * width + at + v * S::LANES..], sum);
            }
        }
    }
}
