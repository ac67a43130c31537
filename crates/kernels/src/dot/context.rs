//! `O += V P`: a tile's weighted values added to the output panel, a block of dims in registers.
//!
//! ```text
//! tile of keys:  | run | hidden | run | run |      runs of keys that follow one another, seen by the same vectors
//!                   └──── T ─────>└────>└──> O     each goes on from the sum of the run before; the total is added to O
//! ```
//! So where a tile's runs begin and end, which the masks of all queries of the panel decide, has no influence on the rounding
//! of any of them.

use crate::simd::{Buffer, Kernel, Simd};

use super::{
    micro::{Factor, outline},
    panel::width,
    plan::Segment,
    stored::Rows,
};

/// Runs the context of `vectors` live vectors.
#[inline(always)]
pub(super) fn add_context<S: Simd, F: Factor>(s: S, run: Context<F>, vectors: usize) {
    match vectors {
        3 => outline::<S, F, _>(s, ContextKernel::<F, 3>(run)),
        2 => outline::<S, F, _>(s, ContextKernel::<F, 2>(run)),
        _ => outline::<S, F, _>(s, ContextKernel::<F, 1>(run)),
    }
}

/// Where the sums of a tile's runs go, `[value_dim, width]` each: to the output at once if there is only one, or nothing in it yet; else
/// to sums of their own.
pub(super) struct Totals<'a> {
    output: &'a mut Buffer,
    tile: &'a mut Buffer,
    several: bool,
    apart: bool,
}

impl<'a> Totals<'a> {
    /// For the next tile; `is_first` if the output is still 0.
    #[inline(always)]
    pub(super) fn new(
        output: &'a mut Buffer,
        tile: &'a mut Buffer,
        segments: &[Segment],
        is_first: bool,
    ) -> Self {
        let several = run_of(segments).len() < segments.len();
        let apart = several && !is_first;
        if apart {
            tile.fill(0.0);
        }
        Self {
            output,
            tile,
            several,
            apart,
        }
    }

    /// The sums that the next run is added to, and whether it goes on from them.
    #[inline(always)]
    pub(super) fn next(&mut self) -> (&mut [f32], bool) {
        let sums = if self.apart {
            &mut *self.tile
        } else {
            &mut *self.output
        };
        (sums, self.several)
    }

    /// Adds those of the tile to the output.
    #[inline(always)]
    pub(super) fn finish<S: Simd>(self, s: S) {
        if self.apart {
            let totals = self.output.chunks_exact_mut(S::LANES);
            for (to, sum) in totals.zip(self.tile.chunks_exact(S::LANES)) {
                let total = s.add(s.load(to), s.load(sum));
                s.store(to, total);
            }
        }
    }
}

/// The first segments whose keys follow one another and are seen by the same vectors. Hidden keys have a weight of 0, so these can
/// be read together.
#[inline(always)]
pub(super) fn run_of(segments: &[Segment]) -> &[Segment] {
    let Some(first) = segments.first() else {
        return segments;
    };
    let (mut keys, mut count) = (first.keys, 1);
    while count < segments.len() && segments[count].follows(first, keys) {
        keys += segments[count].keys;
        count += 1;
    }
    &segments[..count]
}

/// Adds `keys` weighted values to the sums.
pub(super) struct Context<'a, F = f32> {
    /// `[keys, width]`
    pub(super) weights: &'a [f32],
    /// `[value_dim, width]`
    pub(super) sums: &'a mut [f32],
    /// Whether they are added one by one to what is there, and not first to each other.
    pub(super) goes_on: bool,
    pub(super) value: Rows<F>,
    /// Keys, or pairs of them.
    pub(super) keys: usize,
    pub(super) value_dim: usize,
    pub(super) first: usize,
}

struct ContextKernel<'a, F, const V: usize>(Context<'a, F>);

impl<F: Factor, const V: usize> Kernel for ContextKernel<'_, F, V> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let mut run = self.0;
        let mut dim = 0;
        if S::LANES == 16 {
            while dim + 8 <= run.value_dim {
                context_block::<S, F, 8, V>(s, &mut run, dim);
                dim += 8;
            }
        }
        while dim + 4 <= run.value_dim {
            context_block::<S, F, 4, V>(s, &mut run, dim);
            dim += 4;
        }
        while dim < run.value_dim {
            context_block::<S, F, 1, V>(s, &mut run, dim);
            dim += 1;
        }
    }
}

/// `R` dims of the context.
#[inline(always)]
fn context_block<S: Simd, F: Factor, const R: usize, const V: usize>(
    s: S,
    run: &mut Context<F>,
    dim: usize,
) {
    let width = width::<S>();
    let offset = run.first * S::LANES;
    assert!(run.weights.len() >= run.keys * width && offset + V * S::LANES <= width);
    let to = run.sums[dim * width..][..R * width]
        .as_mut_ptr()
        .wrapping_add(offset);
    let columns: [*const F; R] =
        std::array::from_fn(|r| run.value.start.wrapping_add(F::PER_LANE * (dim + r)));
    let mut acc = [[s.zero(); V]; R];
    if run.goes_on {
        for (r, row) in acc.iter_mut().enumerate() {
            for (v, x) in row.iter_mut().enumerate() {
                // SAFETY: the slice has `R` lines of `width` numbers, the vector lies in one.
                *x = unsafe { s.load_from(to.add(r * width + v * S::LANES)) };
            }
        }
    }
    // SAFETY: the tile has `keys` lines; the values are `keys` rows of a checked view, of which
    // `dim + R` numbers are read.
    let acc = unsafe {
        let weights = run.weights.as_ptr().add(offset);
        F::add_product::<S, R, V>(s, acc, run.keys, weights, width, columns, run.value.stride)
    };
    for (r, row) in acc.iter().enumerate() {
        for (v, &x) in row.iter().enumerate() {
            // SAFETY: as above.
            unsafe {
                let to = to.add(r * width + v * S::LANES);
                let total = match run.goes_on {
                    true => x,
                    false => s.add(s.load_from(to), x),
                };
                s.store_to(to, total);
            }
        }
    }
}

/// The context of contiguous segments, where each value is read only into the lanes that see it.
#[inline(always)]
pub(super) fn careful_context<S: Simd>(s: S, run: Context, segments: &[Segment]) {
    let width = width::<S>();
    for dim in 0..run.value_dim {
        for v in run.first..segments[0].end {
            let to = &mut run.sums[dim * width + v * S::LANES..];
            let before = s.load(to);
            let mut sum = if run.goes_on { before } else { s.zero() };
            let mut row = 0;
            for segment in segments {
                for j in 0..segment.keys {
                    // SAFETY: the position is one of the sequence's, the dim one of the row's.
                    let x = unsafe { *run.value.from(row).start.add(dim) };
                    let weight = s.load(&run.weights[row * width + v * S::LANES..]);
                    let seen = segment.bits.as_ref().map_or(!0, |bits| bits[v][j]);
                    sum = s.select(seen.into(), s.fma(s.splat(x), weight, sum), sum);
                    row += 1;
                }
            }
            let total = if run.goes_on { sum } else { s.add(before, sum) };
            s.store(to, total);
        }
    }
}
