//! From the gradients of scores to those of queries, keys and the score vector.
//!
//! With `x` as in the scores and `h = ½ tanh(q + k) = ½ - 1/x`, so that `1 - tanh² = 4 (¼ - h²)`:
//! ```text
//! d_query_i = 4 v ∘ Σ_j ė_ij (¼ - h_ij²)      d_key_j = 4 v ∘ Σ_i ė_ij (¼ - h_ij²)
//! d_v       = 2 Σ_ij ė_ij h_ij
//!
//!              four vectors of dims                 one block of dims at a time through all queries
//!   query i  | q  dq  dv  in registers |            and keys, so that the keys' exponentials and sums
//!   key  j   | read e^{2k}, add to sum |            of that block stay in the first-level cache
//! ```
//! `½ - 1/x` keeps the absolute precision of a direct tanh; with `Σ ė / x` instead, a small `d_v` would be
//! lost in the rounding of the `½ ė`, which cancel. The factors `4 v` are taken outside the sums.
//!
//! What was tried is in `docs/experiments.md`.

use super::operands::{Operands, denominator, load};
use crate::simd::{self, Simd};

impl Operands<'_> {
    /// From `d_scores [queries, kept]`: overwrites `d_queries [queries, dim]`, adds to `d_v [dim]`, and adds
    /// to `sums` (rows of the same stride as the keys' exponentials) the sums from which the gradient of the
    /// keys is made: see [`Keys::write_gradient`](super::operands::Keys::write_gradient).
    #[inline(always)]
    pub(crate) fn sweep<S: Simd>(
        &self,
        s: S,
        d_scores: &[f32],
        d_queries: &mut [f32],
        sums: &mut [f32],
        d_v: &mut [f32],
    ) {
        let padded = self.padded();
        let mut at = 0;
        if self.exponential {
            while at + 4 * S::LANES <= padded {
                self.block::<S, 4, true>(s, at, d_scores, d_queries, sums, d_v);
                at += 4 * S::LANES;
            }
            while at < padded {
                self.block::<S, 1, true>(s, at, d_scores, d_queries, sums, d_v);
                at += S::LANES;
            }
        } else {
            while at < padded {
                self.block::<S, 1, false>(s, at, d_scores, d_queries, sums, d_v);
                at += S::LANES;
            }
        }
    }

    /// `N` vectors of dims from `at` on.
    #[inline(always)]
    fn block<S: Simd, const N: usize, const EXPONENTIAL: bool>(
        &self,
        s: S,
        at: usize,
        d_scores: &[f32],
        d_queries: &mut [f32],
        sums: &mut [f32],
        d_v: &mut [f32],
    ) {
        let (dim, count) = (self.dim, self.kept.len());
        let mut of_v = [s.zero(); N];
        let v = load::<S, N>(s, self.v, at);
        for (i, d_query) in d_queries.chunks_exact_mut(dim).enumerate() {
            let query = load::<S, N>(s, self.query(i), at);
            let mut slopes = [s.zero(); N];
            for (&d, &j) in d_scores[i * count..][..count].iter().zip(self.kept) {
                let key = load::<S, N>(s, self.key(j), at);
                let (d, quarter) = (s.splat(d), s.splat(0.25 * d));
                let sums = &mut sums[j * self.stride + at..][..N * S::LANES];
                for n in 0..N {
                    let h = half_tanh::<S, EXPONENTIAL>(s, query[n], key[n]);
                    let weighted = s.mul(d, h);
                    let slope = s.fnma(weighted, h, quarter);
                    of_v[n] = s.add(of_v[n], weighted);
                    slopes[n] = s.add(slopes[n], slope);
                    let sum = &mut sums[n * S::LANES..];
                    s.store(sum, s.add(s.load(sum), slope));
                }
            }
            for n in 0..N {
                let to = at + n * S::LANES;
                if to < dim {
                    let four_v = s.mul(s.splat(4.0), v[n]);
                    s.store_at(d_query, to, s.mul(four_v, slopes[n]));
                }
            }
        }
        for (n, of_v) in of_v.into_iter().enumerate() {
            let to = at + n * S::LANES;
            if to < dim {
                let d = s.fma(s.splat(2.0), of_v, s.load_at(d_v, to));
                s.store_at(d_v, to, d);
            }
        }
    }
}

/// `½ tanh(q + k)`, from the exponentials or from the numbers themselves.
#[inline(always)]
fn half_tanh<S: Simd, const EXPONENTIAL: bool>(s: S, query: S::V, key: S::V) -> S::V {
    let half = s.splat(0.5);
    if EXPONENTIAL {
        s.sub(half, s.div(s.splat(1.0), denominator(s, query, key)))
    } else {
        s.mul(half, simd::tanh(s, s.add(query, key)))
    }
}
