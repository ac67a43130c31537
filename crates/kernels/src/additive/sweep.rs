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
//! `½ - 1/x` keeps the absolute precision of a direct tanh; `Σ ė / x` in its place would drown a small
//! `d_v` in the cancelling sum of `½ ė`. The factors `4 v` are taken outside the sums.
//!
//! What was tried: four queries at once (one load and store of the key's sum for four terms): no
//! faster, the arithmetic hides the loads. One division for four terms: as fast as the reciprocal
//! estimate with a correction, but the terms then depend on their neighbours.

use super::operands::{Operands, denominator};
use crate::simd::{self, Simd};

impl Operands<'_> {
    /// From `d_scores [queries, kept]`: overwrites `d_queries [queries, dim]`, adds to `d_v [dim]`, and adds
    /// to `sums` (rows as long as these) what makes the gradient of the keys: see
    /// [`Keys::write_gradient`](super::operands::Keys::write_gradient).
    #[inline(always)]
    pub(crate) fn sweep<S: Simd>(
        &self,
        s: S,
        d_scores: &[f32],
        d_queries: &mut [f32],
        sums: &mut [f32],
        d_v: &mut [f32],
    ) {
        if self.exponential {
            let half_tanh = |q, k| {
                let reciprocal = s.quick_div(s.splat(1.0), denominator(s, q, k));
                s.sub(s.splat(0.5), reciprocal)
            };
            let padded = self.padded();
            let mut at = 0;
            while at + 4 * S::LANES <= padded {
                self.block::<S, 4>(s, at, half_tanh, d_scores, d_queries, sums, d_v);
                at += 4 * S::LANES;
            }
            while at < padded {
                self.block::<S, 1>(s, at, half_tanh, d_scores, d_queries, sums, d_v);
                at += S::LANES;
            }
        } else {
            let half_tanh = |q, k| s.mul(s.splat(0.5), simd::tanh(s, s.add(q, k)));
            for at in (0..self.padded()).step_by(S::LANES) {
                self.block::<S, 1>(s, at, half_tanh, d_scores, d_queries, sums, d_v);
            }
        }
    }

    /// `N` vectors of dims from `at` on.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "one inner loop, cut out to be compiled twice")]
    fn block<S: Simd, const N: usize>(
        &self,
        s: S,
        at: usize,
        half_tanh: impl Fn(S::V, S::V) -> S::V,
        d_scores: &[f32],
        d_queries: &mut [f32],
        sums: &mut [f32],
        d_v: &mut [f32],
    ) {
        let load = |from: &[f32]| -> [S::V; N] {
            let from = &from[at..at + N * S::LANES];
            std::array::from_fn(|n| s.load(&from[n * S::LANES..]))
        };
        let (dim, count) = (self.dim, self.kept.len());
        let mut of_v = [s.zero(); N];
        let four_v = load(self.v).map(|v| s.mul(s.splat(4.0), v));
        for (i, d_query) in d_queries.chunks_exact_mut(dim).enumerate() {
            let query = load(self.query(i));
            let mut slopes = [s.zero(); N];
            for (&d, &j) in d_scores[i * count..][..count].iter().zip(self.kept) {
                let key = load(self.key(j));
                let (d, quarter) = (s.splat(d), s.splat(0.25 * d));
                let sums = &mut sums[j * self.stride + at..][..N * S::LANES];
                for n in 0..N {
                    let h = half_tanh(query[n], key[n]);
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
                    s.store_at(d_query, to, s.mul(four_v[n], slopes[n]));
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
