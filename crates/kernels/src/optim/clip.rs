//! The global norm of gradients, `‖g‖ = √(Σ g²)` over all tensors, and the factor that clips them to one,
//! `min(1, largest / ‖g‖)`.
//!
//! ```text
//! | 16,384 numbers | 16,384 numbers | ..      a sum of squares each, f32 in blocks, blocks in f64;
//!                                             the sums of all pieces added in order
//! ```

use super::CHUNK;
use crate::simd::{self, Kernel, Level, Simd, run};
use crate::threads::{RowsMut, for_each_chunk, rows};

/// `Σ x²` over all slices, in `f64` across blocks of `f32`, or all in `f64` where a block is beyond the
/// largest `f32`; the same bits for any number of threads. The squares of numbers below 1.1e-19 lose
/// precision, those of numbers below 2.6e-23 are 0.
///
/// ```
/// assert_eq!(regard_kernels::optim::squared_norm(&[&[3.0], &[4.0]]), 25.0);
/// ```
pub fn squared_norm(slices: &[&[f32]]) -> f64 {
    squared_norm_at(Level::current(), slices)
}

pub(super) fn squared_norm_at(level: Level, slices: &[&[f32]]) -> f64 {
    let chunks: Vec<&[f32]> = slices
        .iter()
        .flat_map(|slice| slice.chunks(CHUNK))
        .collect();
    let count: usize = slices.iter().map(|slice| slice.len()).sum();
    let mut parts = vec![0.0f64; chunks.len()];
    for_each_chunk(
        rows(&mut parts, 1),
        chunks.len(),
        1,
        count as f64 * 0.3,
        &|first, part: RowsMut<f64>| part.data[0] = run(level, Squares(chunks[first])),
    );
    parts.iter().sum()
}

struct Squares<'a>(&'a [f32]);

impl Kernel for Squares<'_> {
    type Output = f64;
    #[inline(always)]
    fn call<S: Simd>(self, s: S) -> f64 {
        simd::sum_of_squares(s, self.0)
    }
}

/// The factor that scales gradients of global norm `norm` down to `max_norm`: 1 if `norm` is not larger,
/// NaN if it is NaN.
///
/// ```
/// use regard_kernels::optim::clip_factor;
/// assert_eq!((clip_factor(0.5, 1.0), clip_factor(4.0, 1.0)), (1.0, 0.25));
/// ```
pub fn clip_factor(norm: f64, max_norm: f64) -> f64 {
    if norm <= max_norm {
        1.0
    } else {
        max_norm / norm
    }
}
