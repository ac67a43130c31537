//! One worker's memory, and raising `m` where weights have become too large.

use crate::prefetch::Prefetch;
use crate::simd::{Buffer, Kernel, Simd, exp2};

use super::{
    forward::{LIMIT, SEGMENTS},
    panel::{VECTORS, width},
    plan::{Segment, Tile},
};

/// One worker's memory.
pub(super) struct Scratch {
    /// The running state of each of a task's heads.
    pub(super) heads: Vec<Head>,
    /// Sᵀ, then Pᵀ, `[TILE, width]`.
    pub(super) weights: Buffer,
    /// Weighted values of a tile, `[value_dim, width]`.
    pub(super) totals: Buffer,
    /// Biasᵀ of a tile's keys, `[TILE, width]`, plus the lines by which a block may extend beyond the tile.
    pub(super) bias: Buffer,
    /// Keys or values of a segment, or rows of queries or outputs, where these are not stored as `f32`.
    pub(super) wide: Buffer,
    pub(super) tile: Tile<SEGMENTS>,
    /// Rows that the panel will write and the next one will read.
    pub(super) prefetch: Prefetch,
}

/// The running state of one head's panel.
pub(super) struct Head {
    /// Qᵀ, `[dim, width]`.
    pub(super) query: Buffer,
    /// Oᵀ, `[value_dim, width]`.
    pub(super) output: Buffer,
    /// `m`; 1 where a key has been seen, else 0; and `l`: `[width]` each.
    pub(super) m: Buffer,
    pub(super) met: Buffer,
    pub(super) sum: Buffer,
    /// Vectors of which every lane has seen a key.
    pub(super) settled: [bool; VECTORS],
}

impl Head {
    pub(super) fn new(dim: usize, value_dim: usize, width: usize) -> Self {
        Self {
            query: Buffer::new(dim * width),
            output: Buffer::new(value_dim * width),
            m: Buffer::new(width),
            met: Buffer::new(width),
            sum: Buffer::new(width),
            settled: [false; VECTORS],
        }
    }

    /// Resets to the state before the first key.
    pub(super) fn clear(&mut self) {
        self.output.fill(0.0);
        self.m.fill(0.0);
        self.met.fill(0.0);
        self.sum.fill(0.0);
        self.settled = [false; VECTORS];
    }
}

/// Turns `R` rows of scores at `at` into weights, raising `m` where they are too large. What happens to a
/// lane depends on its own scores alone.
pub(super) struct Rescale<'a, const R: usize> {
    pub(super) head: &'a mut Head,
    /// `[TILE, width]`
    pub(super) weights: &'a mut [f32],
    pub(super) live: std::ops::Range<usize>,
    pub(super) at: usize,
    /// The segment, in which the first of the rows is number `row`.
    pub(super) segment: &'a Segment,
    pub(super) row: usize,
    pub(super) to_base: f32,
    pub(super) value_dim: usize,
}

impl<const R: usize> Kernel for Rescale<'_, R> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let width = width::<S>();
        let head = self.head;
        let (earlier, rows) = self.weights.split_at_mut(self.at * width);
        let rows = &mut rows[..R * width];
        for v in self.live {
            let lane = v * S::LANES;
            let to_base = s.splat(self.to_base);
            let hidden = s.splat(f32::NEG_INFINITY);
            let bits = self.segment.bits.map(|bits| bits[v]);
            let seen: [u32; R] =
                std::array::from_fn(|r| bits.map_or(!0, |bits| bits[self.row + r].into()));
            // Under a negative scale the least product has the largest weight.
            let sign = s.splat(1.0f32.copysign(self.to_base));
            let m = s.load(&head.m[lane..]);
            let mut largest = hidden;
            for (r, &seen) in seen.iter().enumerate() {
                let score = s.load(&rows[r * width + lane..]);
                let score = s.select(seen, s.mul(score, sign), hidden);
                largest = s.max(largest, score);
            }
            let met = s.load(&head.met[lane..]);
            let unmet = s.greater(s.splat(0.5), met);
            let first = unmet & s.greater(largest, hidden);
            // Before its first key a panel has no `m` that weights could be taken from.
            let fresh = unmet == (1 << S::LANES) - 1;
            let (mut weights, mut sum) = match fresh {
                true => ([s.zero(); R], s.zero()),
                false => weigh(s, &rows[lane..], width, m, to_base, &seen),
            };
            let over = first | (!unmet & s.greater(sum, s.splat(LIMIT)));
            let mut raised = m;
            if over != 0 {
                // `m` is one of the scores, unrounded, so that the differences from it are exact near it, however large it
                // is.
                raised = s.select(over, s.mul(largest, sign), m);
                let factor = exp2(s, s.mul(s.sub(m, raised), to_base));
                let factor = s.select(first, s.splat(1.0), factor);
                s.store(&mut head.m[lane..], raised);
                let met = s.select(over, s.splat(1.0), met);
                s.store(&mut head.met[lane..], met);
                head.settled[v] = s.greater(s.splat(0.5), met) == 0;
                let scale = |x: &mut [f32]| {
                    let scaled = s.mul(s.load(x), factor);
                    s.store(x, scaled);
                };
                // At a lane's first score there is nothing to rescale.
                if over & !first != 0 {
                    for line in earlier.chunks_exact_mut(width) {
                        scale(&mut line[lane..]);
                    }
                    let output = &mut head.output[..self.value_dim * width];
                    for line in output.chunks_exact_mut(width) {
                        scale(&mut line[lane..]);
                    }
                    scale(&mut head.sum[lane..]);
                }
            }
            if fresh || over != 0 {
                (weights, sum) = weigh(s, &rows[lane..], width, raised, to_base, &seen);
            }
            for (r, &weight) in weights.iter().enumerate() {
                s.store(&mut rows[r * width + lane..], weight);
            }
            let total = s.load(&head.sum[lane..]);
            s.store(&mut head.sum[lane..], s.add(total, sum));
        }
    }
}

/// `2^((score - m) · to_base)` of `R` rows `width` apart, 0 where a score is not `seen`, and their sum. Not a closure, which
/// would be compiled without the vector instructions.
#[inline(always)]
fn weigh<S: Simd, const R: usize>(
    s: S,
    rows: &[f32],
    width: usize,
    m: S::V,
    to_base: S::V,
    seen: &[u32; R],
) -> ([S::V; R], S::V) {
    let (mut weights, mut sum) = ([s.zero(); R], s.zero());
    for (r, weight) in weights.iter_mut().enumerate() {
        let x = s.mul(s.sub(s.load(&rows[r * width..]), m), to_base);
        *weight = exp2(s, s.select(seen[r], x, s.splat(f32::NEG_INFINITY)));
        sum = s.add(sum, *weight);
    }
    (weights, sum)
}
