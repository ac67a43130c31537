//! What scores are computed from: exponentials of queries and keys, or the numbers themselves.
//!
//! `tanh(q + k) = 1 - 2 / x` with `x = 1 + e^{2q} e^{2k}`: the exponentials are taken of
//! `(queries + keys) · dim` numbers, and the `queries · keys · dim` terms are a multiplication, an
//! addition and a share of a division each.
//!
//! ```text
//! rows of e^{2k}    | 16 | 16 | .. | 16 |gap|      whole lines, 0 in the padding of the score vector;
//!                   | 16 | 16 | .. | 16 |gap|      an odd number of lines a row, so that the columns
//!                   | 16 | 16 | .. | 16 |gap|      of the backward pass spread over the whole cache
//! ```
//! `x` is capped at 1e9, where tanh is 1 to the last bit: four of them multiply without overflow.
//! Exponentials are exact to their rounding as long as `|q|` and `|k|` are at most [`LARGEST`]: the
//! product keeps its relative precision even where `q` and `k` cancel. Where a query, or one of the keys, holds a
//! number beyond that, or NaN, the rows are copied as they are and every term is a tanh.
//!
//! The rows are also copied where all of their numbers are small, as in a model's first steps: there
//! `1 - 2 / x` keeps the absolute precision of tanh but not its relative one, and the error of the scores
//! would be above that of a naive computation.
//!
//! The cap costs a tenth of the scores' speed (28.6 to 26.1 10⁹ tanh/s a thread). Considered and rejected: a
//! bound on the largest `|q| + |k|` in its place, which sends a whole block with one saturated unit to the
//! slow path; clamping `q` and `k`, which is wrong where two large ones cancel.

use super::row;
use crate::simd::{self, Buffer, Simd};

/// The largest magnitude whose `e^{2x}` and `e^{-2x}` are normal numbers.
const LARGEST: f32 = 43.0;
/// Where all magnitudes are below this, a tanh of each sum is worth its time: it is exact relative to its
/// own size, the exponentials only relative to 1.
const SMALL: f32 = 0.125;
/// The largest magnitude in the score vector for which four terms have a common denominator.
const LARGEST_SCORE: f32 = 1e8;
/// Numbers of a cache line, and of the widest register.
const LINE: usize = 16;

/// Rows of numbers, padded to whole cache lines.
struct Rows {
    data: Buffer,
    stride: usize,
}

impl Rows {
    fn new(count: usize, dim: usize) -> Self {
        let stride = (dim.div_ceil(LINE) | 1) * LINE;
        let data = Buffer::new(count * stride);
        Self { data, stride }
    }

    /// Writes `f` of every number, and of 0 in the padding.
    #[inline(always)]
    fn fill<S: Simd>(&mut self, s: S, index: usize, from: &[f32], mut f: impl FnMut(S::V) -> S::V) {
        let to = &mut self.data[index * self.stride..][..from.len().next_multiple_of(LINE)];
        for at in (0..to.len()).step_by(S::LANES) {
            let x = s.load_at(from, at.min(from.len()));
            s.store(&mut to[at..], f(x));
        }
    }

    /// Writes `e^{2x}`.
    #[inline(always)]
    fn exponentials<S: Simd>(&mut self, s: S, index: usize, from: &[f32]) {
        self.fill(
            s,
            index,
            from,
            #[inline(always)]
            |x| simd::exp(s, s.add(x, x)),
        );
    }

    /// Writes the numbers as they are.
    #[inline(always)]
    fn plain<S: Simd>(&mut self, s: S, index: usize, from: &[f32]) {
        self.fill(
            s,
            index,
            from,
            #[inline(always)]
            |x| x,
        );
    }
}

/// Bounds on the magnitudes in some rows.
#[derive(Clone, Copy)]
struct Range {
    /// All within [`LARGEST`].
    within: bool,
    /// All below [`SMALL`].
    small: bool,
}

impl Range {
    /// That of one row.
    #[inline(always)]
    fn of<S: Simd>(s: S, row: &[f32]) -> Self {
        let (limit, small) = (s.splat(LARGEST), s.splat(SMALL));
        let every = s.greater(s.splat(1.0), s.zero());
        let (mut within, mut below) = (every, every);
        for at in (0..row.len()).step_by(S::LANES) {
            let x = s.abs(s.load_at(row, at));
            within &= s.greater(limit, x);
            below &= s.greater(small, x);
        }
        Self {
            within: within == every,
            small: below == every,
        }
    }

    fn and(self, other: Self) -> Self {
        Self {
            within: self.within & other.within,
            small: self.small & other.small,
        }
    }
}

/// The keys of some problems, and the score vector in use.
pub(crate) struct Keys {
    /// Exponentials, `[problems, keys]` rows.
    rows: Rows,
    /// The magnitudes of the keys of each problem.
    range: Vec<Range>,
    /// The score vector, as one row.
    v: Rows,
    /// Whether all of `v` is within [`LARGEST_SCORE`].
    v_within: bool,
    /// Half the sum of the score vector, by lane.
    half_sum: [f32; LINE],
    dim: usize,
    keys: usize,
}

impl Keys {
    /// Room for the keys of `problems` problems.
    #[inline(always)]
    pub(crate) fn new<S: Simd>(s: S, v: &[f32], problems: usize, keys: usize) -> Self {
        let dim = v.len();
        let mut all = Self {
            rows: Rows::new(problems * keys, dim),
            range: vec![
                Range {
                    within: false,
                    small: true
                };
                problems
            ],
            v: Rows::new(1, dim),
            v_within: false,
            half_sum: [0.0; LINE],
            dim,
            keys,
        };
        all.score_by(s, v);
        all
    }

    /// Replaces the score vector by another of the same length, for keys that are read from now on.
    #[inline(always)]
    pub(super) fn score_by<S: Simd>(&mut self, s: S, v: &[f32]) {
        let limit = s.splat(LARGEST_SCORE);
        let (mut sum, mut within) = (s.zero(), true);
        self.v.fill(
            s,
            0,
            v,
            #[inline(always)]
            |x| {
                within &= s.greater(limit, s.abs(x)) == s.greater(limit, s.zero());
                sum = s.add(sum, x);
                x
            },
        );
        self.v_within = within;
        s.store(&mut self.half_sum, s.mul(sum, s.splat(0.5)));
    }

    /// Reads the kept ones of `keys [keys, dim]` of one problem.
    #[inline(always)]
    pub(crate) fn read<S: Simd>(&mut self, s: S, problem: usize, keys: &[f32], kept: &[usize]) {
        let mut range = Range {
            within: self.v_within,
            small: true,
        };
        for &j in kept {
            let key = row(keys, j, self.dim);
            self.rows.exponentials(s, problem * self.keys + j, key);
            range = range.and(Range::of(s, key));
        }
        self.range[problem] = range;
    }

    /// Whether a query is scored by exponentials against the keys of a problem.
    #[inline(always)]
    fn by_exponentials<S: Simd>(&self, s: S, problem: usize, query: &[f32]) -> bool {
        let range = self.range[problem].and(Range::of(s, query));
        range.within & !range.small
    }

    /// How many of `queries [count, dim]` of a problem, from the first on, are scored in the same way, by exponentials or each tanh for
    /// itself: a block of others would change what comes out of a query by the queries beside it.
    #[inline(always)]
    pub(super) fn alike<S: Simd>(
        &self,
        s: S,
        problem: usize,
        queries: &[f32],
        count: usize,
    ) -> usize {
        let first = self.by_exponentials(s, problem, row(queries, 0, self.dim));
        let mut alike = 1;
        while alike < count
            && self.by_exponentials(s, problem, row(queries, alike, self.dim)) == first
        {
            alike += 1;
        }
        alike
    }

    /// Prepares `queries [_, dim]` of a problem, one or more that are [`alike`](Self::alike), to be scored against the kept ones of its
    /// `keys [keys, dim]`, which have been read before.
    #[inline(always)]
    pub(crate) fn beside<'a, S: Simd>(
        &'a self,
        s: S,
        problem: usize,
        queries: &[f32],
        keys: &[f32],
        kept: &'a [usize],
        room: &'a mut Room,
    ) -> Operands<'a> {
        let (dim, stride) = (self.dim, self.rows.stride);
        let count = queries.len().checked_div(dim).unwrap_or(0);
        let exponential = self.by_exponentials(s, problem, row(queries, 0, dim));
        let keys = if exponential {
            for i in 0..count {
                room.queries.exponentials(s, i, row(queries, i, dim));
            }
            &self.rows.data[problem * self.keys * stride..][..self.keys * stride]
        } else {
            for i in 0..count {
                room.queries.plain(s, i, row(queries, i, dim));
            }
            let plain = room.keys.get_or_insert_with(|| Rows::new(self.keys, dim));
            for &j in kept {
                plain.plain(s, j, row(keys, j, dim));
            }
            &plain.data
        };
        Operands {
            exponential,
            v: &self.v.data,
            half_sum: &self.half_sum,
            queries: &room.queries.data,
            keys,
            kept,
            stride,
            dim,
        }
    }

    /// Numbers that [`Operands::sweep`] needs for the sums of one problem's keys.
    pub(crate) fn sums(&self) -> usize {
        self.keys * self.rows.stride
    }

    /// The gradient of one problem's keys, `[keys, dim]`, from the sums of [`Operands::sweep`]: zeros
    /// where a key is not kept, or added to what is there.
    #[inline(always)]
    pub(crate) fn write_gradient<S: Simd>(
        &self,
        s: S,
        sums: &[f32],
        kept: &[usize],
        add: bool,
        d_keys: &mut [f32],
    ) {
        if !add {
            d_keys.fill(0.0);
        }
        let (v, four) = (&self.v.data[..self.dim], s.splat(4.0));
        for &j in kept {
            let sums = &sums[j * self.rows.stride..][..self.dim];
            let to = &mut d_keys[j * self.dim..][..self.dim];
            simd::zip_map(
                s,
                [v, sums],
                [to],
                #[inline(always)]
                |[v, sum], [d]| [s.fma(s.mul(four, v), sum, d)],
            );
        }
    }
}

/// Memory for the queries of [`Keys::beside`].
pub(crate) struct Room {
    queries: Rows,
    /// Copies of keys too large for exponentials.
    keys: Option<Rows>,
}

impl Room {
    /// Room for so many queries.
    pub(crate) fn new(queries: usize, dim: usize) -> Self {
        Self {
            queries: Rows::new(queries, dim),
            keys: None,
        }
    }
}

/// Queries and keys of one problem, ready to be scored.
#[derive(Clone, Copy)]
pub(crate) struct Operands<'a> {
    /// Whether the rows are exponentials, not the numbers themselves.
    pub(super) exponential: bool,
    /// The score vector, zeros in the padding.
    pub(super) v: &'a [f32],
    pub(super) half_sum: &'a [f32; LINE],
    pub(super) queries: &'a [f32],
    /// Rows of keys; only those of kept keys have been written.
    pub(super) keys: &'a [f32],
    pub(super) kept: &'a [usize],
    /// The distance from row to row, padding included.
    pub(super) stride: usize,
    pub(super) dim: usize,
}

impl<'a> Operands<'a> {
    /// Numbers of a row, whole lines.
    #[inline(always)]
    pub(super) fn padded(&self) -> usize {
        self.dim.next_multiple_of(LINE)
    }

    #[inline(always)]
    pub(super) fn query(&self, index: usize) -> &'a [f32] {
        &self.queries[index * self.stride..][..self.padded()]
    }

    #[inline(always)]
    pub(super) fn key(&self, index: usize) -> &'a [f32] {
        &self.keys[index * self.stride..][..self.padded()]
    }
}

/// `N` vectors from `at` on.
///
/// Small loops in place of closures here and in the inner loops: a closure that is not inlined is
/// compiled without the vector unit's instructions, at a tenth of the speed.
#[inline(always)]
pub(super) fn load<S: Simd, const N: usize>(s: S, from: &[f32], at: usize) -> [S::V; N] {
    let from = &from[at..at + N * S::LANES];
    let mut vectors = [s.zero(); N];
    for n in 0..N {
        vectors[n] = s.load(&from[n * S::LANES..]);
    }
    vectors
}

/// `1 + e^{2(q + k)}` from the exponentials, at most 1e9.
#[inline(always)]
pub(super) fn denominator<S: Simd>(s: S, query: S::V, key: S::V) -> S::V {
    s.min(s.fma(query, key, s.splat(1.0)), s.splat(1e9))
}
