//! What the tests share: seeded numbers, pools of each size, and the error bound.

use crate::reference::Real;

/// Seeded numbers in `[-1, 1)` times `scale`.
pub(crate) fn random(seed: u64, count: usize, scale: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            ((state >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * scale
        })
        .collect()
}

/// What a test goes through: as usual, or less under Miri, which is a thousand times slower.
pub(crate) fn unless_miri<T>(usual: T, small: T) -> T {
    if cfg!(miri) { small } else { usual }
}

/// The bits of each number.
pub(crate) fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// The same numbers in double precision.
pub(crate) fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| f64::from(x)).collect()
}

/// Runs `f` on pools of 1, 2, 3 and 8 threads (1 and 2 under Miri) and checks that the bits agree.
pub(crate) fn on_every_pool(f: impl Fn() -> Vec<Vec<f32>> + Sync) -> Vec<Vec<f32>> {
    let bits = |all: &[Vec<f32>]| -> Vec<Vec<u32>> {
        all.iter()
            .map(|x| x.iter().map(|x| x.to_bits()).collect())
            .collect()
    };
    let pools = unless_miri(&[1, 2, 3, 8][..], &[1, 2]);
    let mut results = pools.iter().map(|&threads| {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .unwrap();
        pool.install(&f)
    });
    let first = results.next().unwrap();
    for other in results {
        assert_eq!(
            bits(&first),
            bits(&other),
            "same bits on any number of threads"
        );
    }
    first
}

/// `max|fast - truth| <= factor · max|naive - truth|` plus the rounding of the result itself: that of
/// a number of its size plus 0.3, as FlashAttention's tests have it, because a naive computation of
/// very few terms is exact by chance.
#[track_caller]
pub(crate) fn assert_close(name: &str, fast: &[f32], naive: &[f32], truth: &[f64], factor: f64) {
    assert_eq!(fast.len(), truth.len(), "{name}: length");
    let worst = |x: &[f32]| {
        x.iter().zip(truth).fold(0.0f64, |m, (&x, &t)| {
            let error = (f64::from(x) - t).abs();
            if error.is_nan() {
                f64::INFINITY
            } else {
                m.max(error)
            }
        })
    };
    let largest = truth.iter().fold(0.0f64, |m, t| m.max(t.abs()));
    let bound = factor * worst(naive) + (0.3 + largest) * f64::from(f32::EPSILON);
    let error = worst(fast);
    assert!(error <= bound, "{name}: error {error:e} above {bound:e}");
}

/// The derivative of `f` at `x[index]` by central differences.
pub(crate) fn difference(x: &[f64], index: usize, f: impl Fn(&[f64]) -> f64) -> f64 {
    let h = 1e-5;
    let at = |offset: f64| {
        let mut moved = x.to_vec();
        moved[index] += offset;
        f(&moved)
    };
    (at(h) - at(-h)) / (2.0 * h)
}

/// A sum that gives every output its own weight, so that a gradient can be checked through it.
pub(crate) fn probe<T: Real>(outputs: &[T], weights: &[T]) -> T {
    outputs
        .iter()
        .zip(weights)
        .fold(T::of(0.0), |sum, (&x, &w)| sum + x * w)
}
