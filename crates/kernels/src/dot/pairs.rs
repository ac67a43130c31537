//! The forward pass on pairs of bfloat16, where the machine multiplies them (`vdpbf16ps`): two
//! multiply-adds in a lane at once.
//!
//! ```text
//! Sᵀ:  one lane holds dims 2c, 2c + 1 of a query; a key's own pairs are read as they lie in memory
//! Oᵀ:  one lane holds the weights of keys 2j, 2j + 1, rounded to bfloat16;
//!      values v[2j][c], v[2j + 1][c] are laid side by side, once a tile
//! ```
//! Row sums add weights before they are rounded. Sums are `f32`. The exponential, the raising of `m` and
//! all masks are those of [`super::forward`].

use half::bf16;

use crate::element::pair;
use crate::simd::{Buffer, Kernel, Simd};

use super::{context::Context, panel::width, plan::Segment, stored::Rows};

impl Rows<bf16> {
    /// The first `count` rows, as lines of pairs of dims in `to`; `dim` is even.
    ///
    /// # Safety
    /// The rows can be read.
    #[inline(always)]
    pub(super) unsafe fn copy_pairs(self, count: usize, dim: usize, to: &mut Buffer) -> Rows {
        for (i, to) in to[..count * dim / 2].chunks_exact_mut(dim / 2).enumerate() {
            // SAFETY: the row has `dim` numbers.
            let row = unsafe { std::slice::from_raw_parts(self.from(i).start, dim) };
            for (to, x) in to.iter_mut().zip(row.chunks_exact(2)) {
                *to = pair(x[0], x[1]);
            }
        }
        Rows {
            start: to.as_ptr(),
            stride: dim / 2,
        }
    }

    /// Pairs of the first `count` rows, `[pairs, dim]` in `to`; a last row without a partner is paired
    /// with 0.
    ///
    /// # Safety
    /// The rows can be read.
    #[inline(always)]
    pub(super) unsafe fn pair_rows(self, count: usize, dim: usize, to: &mut Buffer) -> Rows<bf16> {
        // SAFETY: a row has `dim` numbers.
        let row = |i: usize| unsafe { std::slice::from_raw_parts(self.from(i).start, dim) };
        let lines = to[..count.div_ceil(2) * dim].chunks_exact_mut(dim);
        for (i, to) in lines.enumerate() {
            let low = row(2 * i);
            if 2 * i + 1 < count {
                for ((to, &low), &high) in to.iter_mut().zip(low).zip(row(2 * i + 1)) {
                    *to = pair(low, high);
                }
            } else {
                for (to, &low) in to.iter_mut().zip(low) {
                    *to = pair(low, bf16::ZERO);
                }
            }
        }
        Rows {
            start: to.as_ptr().cast(),
            stride: 2 * dim,
        }
    }
}

/// Rounds lines of weights to bfloat16, two to one, in place: `[keys, width]` becomes `[pairs, width]`.
pub(super) struct PackWeights<'a> {
    pub(super) weights: &'a mut [f32],
    pub(super) keys: usize,
    pub(super) live: std::ops::Range<usize>,
}

impl Kernel for PackWeights<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let width = width::<S>();
        for i in 0..self.keys.div_ceil(2) {
            for at in self.live.clone().map(|v| v * S::LANES) {
                let low = s.load(&self.weights[2 * i * width + at..]);
                let high = if 2 * i + 1 < self.keys {
                    s.load(&self.weights[(2 * i + 1) * width + at..])
                } else {
                    s.zero()
                };
                // SAFETY: `micro::outline` runs this kernel.
                let packed = unsafe { s.pack_pairs(low, high) };
                s.store(&mut self.weights[i * width + at..], packed);
            }
        }
    }
}

/// The context of contiguous segments, where each value is read only into the lanes that see it.
pub(super) struct CarefulContext<'a> {
    pub(super) run: Context<'a, bf16>,
    pub(super) segments: &'a [Segment],
}

impl Kernel for CarefulContext<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let (run, width) = (self.run, width::<S>());
        for v in run.first..self.segments[0].end {
            // Queries that see each key of the run.
            let seen: Vec<u32> = self
                .segments
                .iter()
                .flat_map(|segment| {
                    let bits = move |j| {
                        segment
                            .bits
                            .as_ref()
                            .map_or(!0, |bits| u32::from(bits[v][j]))
                    };
                    (0..segment.keys).map(bits)
                })
                .collect();
            for dim in 0..run.value_dim {
                let to = &mut run.sums[dim * width + v * S::LANES..];
                let before = s.load(to);
                let mut sum = if run.goes_on { before } else { s.zero() };
                for (i, seen) in seen.chunks(2).enumerate() {
                    let (low, high) = (seen[0], seen.get(1).copied().unwrap_or(0));
                    // SAFETY: the run has a line of `value_dim` pairs for every two keys.
                    let both: u32 = unsafe {
                        let line = run.value.start.add(i * run.value.stride + 2 * dim);
                        line.cast::<u32>().read_unaligned()
                    };
                    let lane = |bits: u32| s.splat(f32::from_bits(bits));
                    let with_low = s.select(high, lane(both), lane(both & 0xFFFF));
                    let without = s.select(high, lane(both & 0xFFFF_0000), s.zero());
                    let value = s.select(low, with_low, without);
                    let weight = s.load(&run.weights[i * width + v * S::LANES..]);
                    // SAFETY: `micro::outline` runs this kernel.
                    sum = unsafe { s.dot_pairs(value, weight, sum) };
                }
                let total = if run.goes_on { sum } else { s.add(before, sum) };
                s.store(to, total);
            }
        }
    }
}
