//! One tile of keys: scores, weights and weighted values, for a block of `R` query rows at a time: 4, or 1 where only one
//! row reads the keys.
//!
//! Queries and outputs of such a block are stored as `[columns / LANES, R, LANES]`, so that one address reaches the
//! vectors of all its rows. A row's numbers are the same in either kind of block.

use std::ops::Range;

use crate::{
    element::{Element, Kind, load},
    simd::{Kernel, Simd, exp2},
};

use super::TILE;

/// Whether a block takes 4 keys, or 4 vectors of columns, at a time rather than 2. With 4 rows, this needs the registers
/// of AVX-512; for `f32`, where memory is the limit, steps of 2 were measured to be faster. A single row has registers to
/// spare.
#[inline(always)]
fn wide<S: Simd, T: Element, const R: usize>() -> bool {
    R == 1 || (S::LANES == 16 && T::KIND != Kind::F32)
}

/// Rows to prefetch while others are read: one row after the other, a number of elements at a time.
struct Prefetch<'a, T> {
    rows: std::slice::Iter<'a, *const T>,
    /// Numbers of a row; practically unlimited if the rows are contiguous.
    row: usize,
    /// Null if there are no rows.
    at: *const T,
    left: usize,
}

impl<'a, T> Prefetch<'a, T> {
    #[inline(always)]
    fn new(rows: &'a [*const T], row: usize) -> Self {
        let mut rows = rows.iter();
        let at = rows.next().copied().unwrap_or(std::ptr::null());
        Self {
            rows,
            row,
            at,
            left: row,
        }
    }

    #[inline(always)]
    fn fetch<S: Simd>(&mut self, s: S, numbers: usize) {
        if self.at.is_null() {
            return;
        }
        if self.left == 0 {
            (self.at, self.left) = (self.rows.next().copied().unwrap_or(self.at), self.row);
        }
        for line in 0..(numbers * size_of::<T>()).div_ceil(64) {
            s.prefetch_near(self.at.cast::<f32>().wrapping_add(16 * line));
        }
        self.at = self.at.wrapping_add(numbers);
        self.left = self.left.saturating_sub(numbers);
    }
}

/// Two vectors of the numbers from `from` on, in the order of [`interleave`].
///
/// # Safety
/// `2 LANES` numbers can be read.
#[inline(always)]
unsafe fn load_two<S: Simd, T: Element>(s: S, from: *const T) -> [S::V; 2] {
    // SAFETY: the caller vouches for the memory; `KIND` says what `T` is.
    unsafe {
        match T::KIND {
            Kind::Bf16 => s.load_bf16_interleaved(from.cast()),
            Kind::F32 | Kind::F16 => [load(s, from), load(s, from.add(S::LANES))],
        }
    }
}

/// Copies a row of numbers to row `r` of a block. Those of bfloat16 are interleaved in two vectors, as [`load_two`]
/// gives them, as long as there are enough for both.
#[inline(always)]
pub(super) fn interleave<S: Simd, T: Element, const R: usize>(
    row: &[f32],
    r: usize,
    block: &mut [f32],
) {
    let pairs = interleaved::<S, T>(row.len());
    for (two, at) in row[..pairs].chunks_exact(2 * S::LANES).zip(0..) {
        for half in 0..2 {
            let to = &mut block[((2 * at + half) * R + r) * S::LANES..][..S::LANES];
            for (to, two) in to.iter_mut().zip(two.chunks_exact(2)) {
                *to = two[half];
            }
        }
    }
    for (from, at) in row[pairs..].chunks(S::LANES).zip(pairs / S::LANES..) {
        block[(at * R + r) * S::LANES..][..from.len()].copy_from_slice(from);
    }
}

/// The inverse of [`interleave`].
#[inline(always)]
pub(super) fn gather<S: Simd, T: Element, const R: usize>(
    block: &[f32],
    r: usize,
    row: &mut [f32],
) {
    let pairs = interleaved::<S, T>(row.len());
    for (two, at) in row[..pairs].chunks_exact_mut(2 * S::LANES).zip(0..) {
        for half in 0..2 {
            let from = &block[((2 * at + half) * R + r) * S::LANES..][..S::LANES];
            for (from, two) in from.iter().zip(two.chunks_exact_mut(2)) {
                two[half] = *from;
            }
        }
    }
    for (to, at) in row[pairs..].chunks_mut(S::LANES).zip(pairs / S::LANES..) {
        to.copy_from_slice(&block[(at * R + r) * S::LANES..][..to.len()]);
    }
}

/// Numbers of a row of `dim` that are interleaved.
fn interleaved<S: Simd, T: Element>(dim: usize) -> usize {
    match T::KIND {
        Kind::Bf16 => dim / (2 * S::LANES) * (2 * S::LANES),
        Kind::F32 | Kind::F16 => 0,
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

/// Scores of `R` query rows with the keys of a tile.
pub(super) struct Scores<'a, T, const R: usize> {
    /// `[padded dim / LANES, R, LANES]`, see [`interleave`]; zeros past `dim`.
    pub(super) query: &'a [f32],
    pub(super) dim: usize,
    pub(super) scale: f32,
    /// Where the rows start, for every place of the tile.
    pub(super) key: &'a [*const T],
    pub(super) keys: usize,
    /// Rows to prefetch, one for each that is read; or empty.
    pub(super) prefetch: &'a [*const T],
    /// `[R, TILE]`
    pub(super) scores: &'a mut [f32],
}

impl<T: Element, const R: usize> Kernel for Scores<'_, T, R> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        // A multiple of 8 sums at a time, each added up in one order whatever the block.
        if R == 1 {
            self.keys::<S, 8, 8>(s);
        } else if wide::<S, T, R>() {
            self.keys::<S, 4, 16>(s);
        } else {
            self.keys::<S, 2, 8>(s);
        }
    }
}

impl<T: Element, const R: usize> Scores<'_, T, R> {
    /// `K` keys at a time, which are `N = R * K` sums.
    #[inline(always)]
    fn keys<S: Simd, const K: usize, const N: usize>(self, s: S) {
        assert!(self.query.len() >= R * self.dim && self.keys <= TILE);
        let query = self.query.as_ptr();
        let scores = &mut self.scores[..R * TILE];
        // Numbers that do not fill a vector are read apart: scalar code among the products would push their sums out of
        // the registers.
        let pairs = self.dim / (2 * S::LANES) * 2 * S::LANES;
        let whole = self.dim / S::LANES * S::LANES;
        let mut first = 0;
        while first < self.keys {
            let rows = self.prefetch.get(first..first + K).unwrap_or_default();
            let side_by_side = match rows {
                [start, .., last] => *last == start.wrapping_add((K - 1) * self.dim),
                _ => false,
            };
            let row = if side_by_side { usize::MAX } else { pairs };
            let mut prefetch = Prefetch::new(rows, row);
            let mut key = [std::ptr::null(); K];
            key.copy_from_slice(&self.key[first..first + K]);
            let mut sums = [s.zero(); N];
            // SAFETY: `key` are rows of `dim` numbers of a checked view, and `at` stays below `dim`; the query has as
            // many, in whole vectors.
            unsafe {
                let mut at = 0;
                while at < pairs {
                    prefetch.fetch(s, K * 2 * S::LANES);
                    if T::KIND == Kind::Bf16 {
                        let mut two = [[s.zero(); K]; 2];
                        for j in 0..K {
                            [two[0][j], two[1][j]] = load_two(s, key[j].add(at));
                        }
                        add::<S, R, K, N>(s, &mut sums, query.add(R * at), two[0]);
                        add::<S, R, K, N>(s, &mut sums, query.add(R * (at + S::LANES)), two[1]);
                    } else {
                        // One after the other, which needs fewer registers.
                        for at in [at, at + S::LANES] {
                            let mut one = [s.zero(); K];
                            for j in 0..K {
                                one[j] = load(s, key[j].add(at));
                            }
                            add::<S, R, K, N>(s, &mut sums, query.add(R * at), one);
                        }
                    }
                    at += 2 * S::LANES;
                }
                if pairs < whole {
                    let mut one = [s.zero(); K];
                    for j in 0..K {
                        one[j] = load(s, key[j].add(pairs));
                    }
                    add::<S, R, K, N>(s, &mut sums, query.add(R * pairs), one);
                }
                if whole < self.dim {
                    let mut rest = [s.zero(); K];
                    for j in 0..K {
                        rest[j] = load_up_to(s, key[j].add(whole), self.dim - whole);
                    }
                    add::<S, R, K, N>(s, &mut sums, query.add(R * whole), rest);
                }
            }
            let sums = s.reduce_add_each(sums);
            for r in 0..R {
                scores[r * TILE + first..][..K].copy_from_slice(&sums[r * K..][..K]);
            }
            first += K;
        }
        let scale = s.splat(self.scale);
        for row in scores.chunks_exact_mut(TILE) {
            for at in (0..self.keys).step_by(S::LANES) {
                let scaled = s.mul(s.load(&row[at..]), scale);
                s.store(&mut row[at..], scaled);
            }
        }
    }
}

/// Adds the products of a vector of each query row and one of each key.
///
/// # Safety
/// `R` vectors of the query can be read.
#[inline(always)]
unsafe fn add<S: Simd, const R: usize, const K: usize, const N: usize>(
    s: S,
    sums: &mut [S::V; N],
    query: *const f32,
    keys: [S::V; K],
) {
    for r in 0..R {
        // SAFETY: as the caller says.
        let query = unsafe { s.load_from(query.add(r * S::LANES)) };
        for (j, &key) in keys.iter().enumerate() {
            sums[r * K + j] = s.fma(query, key, sums[r * K + j]);
        }
    }
}

/// Turns the scores of `R` rows into weights under their bases, raised where a score exceeds them.
pub(super) struct Weigh<'a, const R: usize> {
    /// Keys of the tile, in whole vectors.
    pub(super) tile: usize,
    /// `[R, TILE]`, `-∞` where there is no key.
    pub(super) scores: &'a mut [f32],
    /// `[padded value_dim / LANES, R, LANES]`
    pub(super) output: &'a mut [f32],
    /// `[R]`
    pub(super) base: &'a mut [f32],
    /// `[R, LANES]`: sums of the weights so far, by lane.
    pub(super) sum: &'a mut [f32],
}

impl<const R: usize> Kernel for Weigh<'_, R> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let scores = &mut self.scores[..R * TILE];
        let base = &mut self.base[..R];
        let sum = &mut self.sum[..R * S::LANES];
        // All rows in one loop, so that one does not wait for the other.
        let mut tops = [s.splat(f32::NEG_INFINITY); R];
        for at in (0..self.tile.min(TILE)).step_by(S::LANES) {
            for (r, top) in tops.iter_mut().enumerate() {
                *top = s.max(s.load(&scores[r * TILE + at..]), *top);
            }
        }
        let mut largest = [0.0; R];
        for (largest, &top) in largest.iter_mut().zip(&tops) {
            *largest = s.reduce_max(top);
        }
        for (r, &largest) in largest.iter().enumerate() {
            if largest > base[r] {
                // Before the first visible key, all sums are 0.
                if base[r] != f32::NEG_INFINITY {
                    let factor = s.splat((base[r] - largest).exp());
                    for of_rows in self.output.chunks_exact_mut(R * S::LANES) {
                        let row = &mut of_rows[r * S::LANES..];
                        s.store(row, s.mul(s.load(row), factor));
                    }
                    let sum = &mut sum[r * S::LANES..];
                    s.store(sum, s.mul(s.load(sum), factor));
                }
                base[r] = largest;
            }
        }
        // Where no key has been seen so far, any base will do: all weights are 0.
        let (mut bases, mut sums) = ([s.zero(); R], [s.zero(); R]);
        for r in 0..R {
            if base[r] != f32::NEG_INFINITY {
                bases[r] = s.splat(base[r]);
            }
            sums[r] = s.load(&sum[r * S::LANES..]);
        }
        let log2_e = s.splat(std::f32::consts::LOG2_E);
        for at in (0..self.tile.min(TILE)).step_by(S::LANES) {
            for r in 0..R {
                let scores = &mut scores[r * TILE + at..];
                let weight = exp2(s, s.mul(s.sub(s.load(scores), bases[r]), log2_e));
                sums[r] = s.add(sums[r], weight);
                s.store(scores, weight);
            }
        }
        for (r, &sums) in sums.iter().enumerate() {
            s.store(&mut sum[r * S::LANES..], sums);
        }
    }
}

/// Adds the weighted values of a tile to `R` rows of output.
pub(super) struct Values<'a, T, const R: usize> {
    /// `[R, TILE]`
    pub(super) weights: &'a [f32],
    /// For each row, the keys that it sees; `None` if every row sees all.
    pub(super) seen: Option<&'a [u64]>,
    /// Where the rows start, for every place of the tile.
    pub(super) value: &'a [*const T],
    pub(super) keys: usize,
    pub(super) value_dim: usize,
    /// Rows to prefetch, one for each that is read; or empty.
    pub(super) prefetch: &'a [*const T],
    /// `[padded value_dim / LANES, R, LANES]`, see [`interleave`].
    pub(super) output: &'a mut [f32],
}

impl<T: Element, const R: usize> Kernel for Values<'_, T, R> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(mut self, s: S) {
        match self.seen {
            None => self.all::<S, false>(s),
            Some(_) => self.all::<S, true>(s),
        }
    }
}

impl<T: Element, const R: usize> Values<'_, T, R> {
    /// All columns; `SEEN` if there are keys that a row does not see.
    #[inline(always)]
    fn all<S: Simd, const SEEN: bool>(&mut self, s: S) {
        let most = if wide::<S, T, R>() { 4 } else { 2 } * S::LANES;
        // All columns for one half of the tile, then all for the other: the half stays in the L1 cache.
        let half = self.value.len() / 2;
        for first in (0..self.keys).step_by(half) {
            let keys = first..self.keys.min(first + half);
            let rows = self.prefetch.get(keys.clone()).unwrap_or_default();
            let mut prefetch = Prefetch::new(rows, self.value_dim / most * most);
            let mut at = 0;
            while wide::<S, T, R>() && at + 4 * S::LANES <= self.value_dim {
                self.columns::<S, 4, SEEN>(s, at, keys.clone(), &mut prefetch);
                at += 4 * S::LANES;
            }
            while at + 2 * S::LANES <= self.value_dim {
                self.columns::<S, 2, SEEN>(s, at, keys.clone(), &mut prefetch);
                at += 2 * S::LANES;
            }
            while at < self.value_dim {
                self.columns::<S, 1, SEEN>(s, at, keys.clone(), &mut prefetch);
                at += S::LANES;
            }
        }
    }

    /// `V` vectors of columns from `at` on, of which only a single one may be partial.
    #[inline(always)]
    fn columns<S: Simd, const V: usize, const SEEN: bool>(
        &mut self,
        s: S,
        at: usize,
        keys: Range<usize>,
        prefetch: &mut Prefetch<T>,
    ) {
        assert!(self.weights.len() >= R * TILE && keys.end <= TILE);
        let weights = self.weights[keys.start..].as_ptr();
        let output = &mut self.output[R * at..][..R * V * S::LANES];
        let left = self.value_dim - at;
        let mut sums = [[s.zero(); R]; V];
        for (v, sums) in sums.iter_mut().enumerate() {
            for (r, sum) in sums.iter_mut().enumerate() {
                *sum = s.load(&output[(v * R + r) * S::LANES..]);
            }
        }
        for (j, from) in self.value[keys.clone()].iter().enumerate() {
            if V > 1 {
                prefetch.fetch(s, V * S::LANES);
            }
            let from = from.wrapping_add(at);
            let mut values = [s.zero(); V];
            // SAFETY: `value` are rows of `value_dim` numbers of a checked view, and `left` of them are left.
            unsafe {
                if V == 1 && left < S::LANES {
                    values[0] = load_up_to(s, from, left);
                } else if V == 1 {
                    values[0] = load(s, from);
                } else {
                    for v in (0..V).step_by(2) {
                        [values[v], values[v + 1]] = load_two(s, from.add(v * S::LANES));
                    }
                }
            }
            for r in 0..R {
                if SEEN
                    && self
                        .seen
                        .is_some_and(|seen| seen[r] >> (keys.start + j) & 1 == 0)
                {
                    continue;
                }
                // SAFETY: there are weights of `R` rows of a tile, and `keys` are of one.
                let weight = s.splat(unsafe { *weights.add(r * TILE + j) });
                for v in 0..V {
                    sums[v][r] = s.fma(weight, values[v], sums[v][r]);
                }
            }
        }
        for (v, sums) in sums.iter().enumerate() {
            for (r, &sum) in sums.iter().enumerate() {
                s.store(&mut output[(v * R + r) * S::LANES..], sum);
            }
        }
    }
}
