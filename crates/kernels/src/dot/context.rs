//! `O += V P`: a tile's weighted values added to the output panel, a block of dims in registers.

use crate::simd::{Kernel, Simd};

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

/// Adds `keys` weighted values to the output panel.
pub(super) struct Context<'a, F = f32> {
    /// `[keys, width]`
    pub(super) weights: &'a [f32],
    /// `[value_dim, width]`
    pub(super) output: &'a mut [f32],
    pub(super) value: Rows<F>,
    /// Keys, or pairs of them.
    pub(super) keys: usize,
    pub(super) value_dim: usize,
    pub(super) first: usize,
}

pub(super) struct ContextKernel<'a, F, const V: usize>(pub(super) Context<'a, F>);

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
    assert!(run.weights.len() >= run.keys * width && run.output.len() >= (dim + R) * width);
    let columns: [*const F; R] =
        std::array::from_fn(|r| run.value.start.wrapping_add(F::PER_LANE * (dim + r)));
    // SAFETY: the tile has `keys` lines; the values are `keys` rows of a checked view, of which
    // `dim + R` numbers are read.
    let acc = unsafe {
        let weights = run.weights.as_ptr().add(offset);
        F::product::<S, R, V>(s, run.keys, weights, width, columns, run.value.stride)
    };
    let to = run.output[dim * width..][..R * width]
        .as_mut_ptr()
        .wrapping_add(offset);
    assert!(offset + V * S::LANES <= width);
    for (r, row) in acc.iter().enumerate() {
        for (v, &x) in row.iter().enumerate() {
            // SAFETY: the slice has `R` lines of `width` numbers, the vector lies in one.
            unsafe {
                let to = to.add(r * width + v * S::LANES);
                s.store_to(to, s.add(s.load_from(to), x));
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
            let mut sum = s.zero();
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
            let to = &mut run.output[dim * width + v * S::LANES..];
            let total = s.add(s.load(to), sum);
            s.store(to, total);
        }
    }
}
