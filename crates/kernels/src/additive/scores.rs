//! Scores: `Σ_d v_d tanh(q_d + k_d)` without a tanh, and with one division for four terms.
//!
//! ```text
//! v0/x0 + v1/x1 + v2/x2 + v3/x3 = ((v0 x1 + v1 x0) x2 x3 + (v2 x3 + v3 x2) x0 x1) / (x0 x1 x2 x3)
//!
//!               key j          key j+1              dims in the lanes; four vectors of dims are
//! query i     | sum_ij       | sum_i,j+1 |          loaded once for two queries and two keys, and
//! query i+1   | sum_i+1,j    | ..        |          make four terms with one division for each pair
//! ```
//! A lane starts at half its part of `Σ v`, so `score = 2 Σ_lanes` needs no term of its own. The score
//! of a pair does not depend on the tile in which it is computed.
//!
//! What was tried is in `docs/experiments.md`.

use super::operands::{Operands, denominator, load};
use crate::simd::{self, Simd};

impl Operands<'_> {
    /// The scores of the first `queries` queries against the kept keys, `[queries, kept]`.
    #[inline(always)]
    pub(crate) fn scores<S: Simd>(&self, s: S, queries: usize, scores: &mut [f32]) {
        let count = self.kept.len();
        if !self.exponential {
            for i in 0..queries {
                for (n, &j) in self.kept.iter().enumerate() {
                    scores[i * count + n] = self.plain_score(s, i, j);
                }
            }
            return;
        }
        let (even_queries, even_keys) = (queries & !1, count & !1);
        for i in (0..even_queries).step_by(2) {
            for n in (0..even_keys).step_by(2) {
                self.tile::<S, 2>(s, i, n, scores);
            }
        }
        // What is left over: the last key of all queries, then the last query.
        for i in 0..queries {
            let from = if i < even_queries { even_keys } else { 0 };
            for n in from..count {
                self.tile::<S, 1>(s, i, n, scores);
            }
        }
    }

    /// The scores of `P` queries from `i` on against `P` kept keys from number `n` on.
    #[inline(always)]
    fn tile<S: Simd, const P: usize>(&self, s: S, i: usize, n: usize, scores: &mut [f32]) {
        let (mut queries, mut keys) = ([self.query(i); P], [self.key(self.kept[n]); P]);
        for other in 1..P {
            queries[other] = self.query(i + other);
            keys[other] = self.key(self.kept[n + other]);
        }
        let mut sums = [[s.load(self.half_sum); P]; P];
        let padded = self.padded();
        let mut at = 0;
        while at + 4 * S::LANES <= padded {
            self.terms::<S, P, 4>(s, queries, keys, at, &mut sums);
            at += 4 * S::LANES;
        }
        match (padded - at) / S::LANES {
            1 => self.terms::<S, P, 1>(s, queries, keys, at, &mut sums),
            2 => self.terms::<S, P, 2>(s, queries, keys, at, &mut sums),
            3 => self.terms::<S, P, 3>(s, queries, keys, at, &mut sums),
            _ => {}
        }
        for a in 0..P {
            for b in 0..P {
                scores[(i + a) * self.kept.len() + n + b] = 2.0 * s.reduce_add(sums[a][b]);
            }
        }
    }

    /// Subtracts `v / x` of `N` vectors of dims from each sum.
    #[inline(always)]
    fn terms<S: Simd, const P: usize, const N: usize>(
        &self,
        s: S,
        queries: [&[f32]; P],
        keys: [&[f32]; P],
        at: usize,
        sums: &mut [[S::V; P]; P],
    ) {
        let v = load::<S, N>(s, self.v, at);
        let mut of_keys = [[s.zero(); N]; P];
        for b in 0..P {
            of_keys[b] = load(s, keys[b], at);
        }
        for a in 0..P {
            let query = load::<S, N>(s, queries[a], at);
            for b in 0..P {
                let (above, below) = fraction(s, v, query, of_keys[b]);
                sums[a][b] = s.sub(sums[a][b], s.div(above, below));
            }
        }
    }

    #[inline(always)]
    fn plain_score<S: Simd>(&self, s: S, i: usize, j: usize) -> f32 {
        let (query, key) = (self.query(i), self.key(j));
        let mut sum = s.zero();
        for at in (0..query.len()).step_by(S::LANES) {
            let t = simd::tanh(s, s.add(s.load(&query[at..]), s.load(&key[at..])));
            sum = s.fma(s.load(&self.v[at..]), t, sum);
        }
        s.reduce_add(sum)
    }
}

/// `Σ v / x` of up to four vectors as one fraction `(above, below)`.
#[inline(always)]
fn fraction<S: Simd, const N: usize>(
    s: S,
    v: [S::V; N],
    query: [S::V; N],
    key: [S::V; N],
) -> (S::V, S::V) {
    let mut terms = [(s.zero(), s.splat(1.0)); 4];
    for n in 0..N {
        terms[n] = (v[n], denominator(s, query[n], key[n]));
    }
    match N {
        1 => terms[0],
        2 => together(s, terms[0], terms[1]),
        3 => together(s, together(s, terms[0], terms[1]), terms[2]),
        _ => together(
            s,
            together(s, terms[0], terms[1]),
            together(s, terms[2], terms[3]),
        ),
    }
}

/// The sum of two fractions `(above, below)`.
#[inline(always)]
fn together<S: Simd>(s: S, a: (S::V, S::V), b: (S::V, S::V)) -> (S::V, S::V) {
    (s.fma(a.0, b.1, s.mul(b.0, a.1)), s.mul(a.1, b.1))
}

/// Softmax in place; all zeros if every score is `-∞`. Returns the largest score `m` and
/// `Σ e^(score - m)`.
#[inline(always)]
pub(crate) fn softmax<S: Simd>(s: S, scores: &mut [f32]) -> (f32, f32) {
    let largest = simd::max(s, scores);
    if largest == f32::NEG_INFINITY && scores.iter().all(|score| !score.is_nan()) {
        scores.fill(0.0);
        return (largest, 0.0);
    }
    let shift = s.splat(largest);
    simd::zip_map(
        s,
        [],
        [&mut *scores],
        #[inline(always)]
        |[], [x]| [simd::exp(s, s.sub(x, shift))],
    );
    let total: f32 = scores.iter().sum();
    simd::scale(s, 1.0 / total, scores);
    (largest, total)
}
