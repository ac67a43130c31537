//! `2^(s - m)` of a block of keys in registers: products, the options that act on scores, mask, sum.

use crate::{
    mask::TILE_KEYS,
    prefetch::Prefetch,
    simd::{Kernel, Simd, exp2},
};

use super::{
    Job,
    forward::LIMIT,
    micro::{Factor, outline},
    panel::{VECTORS, width},
    plan::Task,
    scores::{ScoresAt, modify_scores},
    stored::Rows,
};

/// Scores of keys against the live vectors.
pub(super) struct ScoreBlock<'a, F = f32> {
    pub(super) job: &'a Job<'a>,
    pub(super) task: &'a Task,
    /// `[dim, width]`
    pub(super) query: &'a [f32],
    /// The row of the first key.
    pub(super) key: Rows<F>,
    pub(super) keys: std::ops::Range<usize>,
    pub(super) first: usize,
    pub(super) m: &'a [f32],
    pub(super) sum: &'a mut [f32],
    /// `[keys, width]`, rounded up to whole blocks.
    pub(super) weights: &'a mut [f32],
    /// Of the segment, in which the first key is number `row`.
    pub(super) bits: Option<&'a [[u16; TILE_KEYS]; VECTORS]>,
    pub(super) row: usize,
    /// `[keys, width]`, if there is a bias.
    pub(super) bias: &'a [f32],
    /// Whether to write scores, before base and mask, rather than weights.
    pub(super) raw: bool,
    pub(super) prefetch: &'a mut Prefetch,
}

impl<F: Factor> ScoreBlock<'_, F> {
    /// Runs [`ScoreKernel`] on `vectors` live vectors, in blocks of `R` keys.
    #[inline(always)]
    pub(super) fn run<S: Simd, const R: usize>(self, s: S, vectors: usize) -> usize {
        match (vectors, self.job.modified) {
            (3, false) => outline::<S, F, _>(s, ScoreKernel::<F, R, 3, false>(self)),
            (2, false) => outline::<S, F, _>(s, ScoreKernel::<F, R, 2, false>(self)),
            (_, false) => outline::<S, F, _>(s, ScoreKernel::<F, R, 1, false>(self)),
            (3, true) => outline::<S, F, _>(s, ScoreKernel::<F, R, 3, true>(self)),
            (2, true) => outline::<S, F, _>(s, ScoreKernel::<F, R, 2, true>(self)),
            (_, true) => outline::<S, F, _>(s, ScoreKernel::<F, R, 1, true>(self)),
        }
    }
}

/// Writes weights and adds them to the sums, or writes scores if asked for, in blocks of `R`
/// keys. Returns the number of keys done: less than all where a weight is too large, so that `m` must
/// be raised before going on. `MODIFIED` where options act on scores: this is compiled separately, so
/// that without options nothing competes for registers.
struct ScoreKernel<'a, F, const R: usize, const V: usize, const MODIFIED: bool>(ScoreBlock<'a, F>);

impl<F: Factor, const R: usize, const V: usize, const MODIFIED: bool> Kernel
    for ScoreKernel<'_, F, R, V, MODIFIED>
{
    type Output = usize;

    #[inline(always)]
    fn call<S: Simd>(self, s: S) -> usize {
        let block = self.0;
        let width = width::<S>();
        let (depth, keys) = (block.job.sizes.dim / F::PER_LANE, block.keys.len());
        let to_base = s.splat(block.job.to_base());
        let offset = block.first * S::LANES;
        assert!(offset + V * S::LANES <= width && block.sum.len() >= width);
        assert!(block.query.len() >= depth * width);
        assert!(block.weights.len() >= keys.next_multiple_of(R) * width);
        let mut m = [s.zero(); V];
        for (v, x) in m.iter_mut().enumerate() {
            *x = s.load(&block.m[offset + v * S::LANES..]);
        }
        for row in (0..keys).step_by(R) {
            block.prefetch.some(s);
            let last = keys - row - 1;
            let key: [*const F; R] =
                std::array::from_fn(|r| block.key.from(row + r.min(last)).start);
            // SAFETY: the panel has `depth` lines; the keys are rows of `dim` numbers of a checked view.
            let mut acc = unsafe {
                let (query, none) = (block.query.as_ptr().add(offset), [[s.zero(); V]; R]);
                F::add_product::<S, R, V>(s, none, depth, query, width, key, F::PER_LANE)
            };
            let to = block.weights[row * width..][..R * width]
                .as_mut_ptr()
                .wrapping_add(offset);
            if MODIFIED {
                let place = ScoresAt {
                    job: block.job,
                    task: block.task,
                    vector: block.first,
                    key: block.keys.start + row,
                };
                let bias = block.job.attention.has_bias().then(|| {
                    let bias = &block.bias[row * width + offset..];
                    assert!(bias.len() >= (R - 1) * width + V * S::LANES);
                    bias.as_ptr()
                });
                // SAFETY: the bias was checked to have `R` lines with `V` vectors each; `to` has as
                // many.
                unsafe { modify_scores(s, &place, &mut acc, bias, to, width) };
            }
            if block.raw {
                for (r, line) in acc.iter().enumerate() {
                    for (v, &x) in line.iter().enumerate() {
                        // SAFETY: the slice has `R` lines of `width` numbers, the vector lies in one.
                        unsafe { s.store_to(to.add(r * width + v * S::LANES), x) };
                    }
                }
                continue;
            }
            for (r, line) in acc.iter_mut().enumerate() {
                for (v, x) in line.iter_mut().enumerate() {
                    *x = s.mul(s.sub(*x, m[v]), to_base);
                    if let Some(bits) = block.bits {
                        let bits = bits[block.first + v][block.row + row + r];
                        *x = s.select(bits.into(), *x, s.splat(f32::NEG_INFINITY));
                    }
                }
            }
            let mut over = 0;
            let mut sums = [s.zero(); V];
            for (v, sum) in sums.iter_mut().enumerate() {
                for (r, line) in acc.iter().enumerate() {
                    let weight = exp2(s, line[v]);
                    *sum = s.add(*sum, weight);
                    // SAFETY: as above.
                    unsafe { s.store_to(to.add(r * width + v * S::LANES), weight) };
                }
                over |= s.greater(*sum, s.splat(LIMIT));
            }
            if over != 0 {
                return row;
            }
            for (v, &sum) in sums.iter().enumerate() {
                // SAFETY: `sum` has `width` numbers, as was asserted.
                unsafe {
                    let to = block.sum.as_mut_ptr().add(offset + v * S::LANES);
                    s.store_to(to, s.add(s.load_from(to), sum));
                }
            }
        }
        keys
    }
}
