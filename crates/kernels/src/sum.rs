//! The sum of all numbers of a tensor.
//!
//! ```text
//! | part of 65,536 numbers | part | .. |     each summed in `f64` by one thread, the sums of the parts added in order:
//!                                           the same bits on any number of threads
//! ```
//!
//! ```
//! assert_eq!(regard_kernels::sum::sum(&[1.0, 2.0, -4.0]), -1.0);
//! ```

use crate::simd::{Kernel, Level, Simd, run};
use crate::threads::{RowsMut, for_each_chunk, rows};

/// Numbers of a part.
const PART: usize = 1 << 16;

/// `Σ x`
pub fn sum(x: &[f32]) -> f64 {
    let level = Level::current();
    let mut sums = vec![0.0f64; x.len().div_ceil(PART)];
    let parts = sums.len();
    let work = |part: usize, to: RowsMut<f64>| {
        let x = &x[part * PART..];
        to.data[0] = run(level, Sum(&x[..x.len().min(PART)]));
    };
    for_each_chunk(rows(&mut sums, 1), parts, 1, x.len() as f64 * 0.1, &work);
    sums.iter().sum()
}

/// The sum of numbers, in `f64`.
pub(crate) struct Sum<'a>(pub(crate) &'a [f32]);

impl Kernel for Sum<'_> {
    type Output = f64;

    #[inline(always)]
    fn call<S: Simd>(self, _: S) -> f64 {
        const CHAINS: usize = 16;
        let chunks = self.0.chunks_exact(CHAINS);
        let rest: f64 = chunks.remainder().iter().map(|&x| f64::from(x)).sum();
        let mut sums = [0.0; CHAINS];
        for chunk in chunks {
            for (sum, &x) in sums.iter_mut().zip(chunk) {
                *sum += f64::from(x);
            }
        }
        sums.iter().sum::<f64>() + rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{on_every_pool, random, unless_miri, wide};

    #[test]
    fn numbers_are_added_in_wide_ones() {
        for length in [0, 1, 17, unless_miri(3 * PART + 5, 40)] {
            let x = random(1, length, 1.0);
            let truth: f64 = wide(&x).iter().sum();
            let found = on_every_pool(|| vec![vec![sum(&x) as f32]]);
            assert!((f64::from(found[0][0]) - truth).abs() <= 1e-7 * (1.0 + truth.abs()));
        }
        assert_eq!(sum(&[1e9, 1.0, -1e9]), 1.0);
        assert_eq!(sum(&[f32::MAX, f32::MAX, -f32::MAX]), f64::from(f32::MAX));
        assert_eq!(
            sum(&[f32::from_bits(1); 3]),
            3.0 * f64::from(f32::from_bits(1))
        );
        assert_eq!(sum(&[f32::INFINITY, -1e30]), f64::INFINITY);
        assert!(sum(&[1.0, f32::NAN]).is_nan());
    }
}
