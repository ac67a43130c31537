//! The arithmetic peak: a loop of independent multiply-adds that never leaves the registers.
//!
//! ```text
//! a_i <- a_i · x + x      i = 0..12, all independent: enough to hide the latency of two units, few
//!                         enough for the 16 registers of AVX2
//! ```

use std::{hint::black_box, time::Instant};

use crate::simd::{Kernel, Level, Simd, run};

/// Independent sums.
const CHAINS: usize = 12;
/// Rounds of all chains between two readings of the clock.
const ROUNDS: usize = 100_000;

/// Operations a second of fused multiply-adds (each counts as two) at `level`, or the best level below
/// it that the machine has, on `threads` threads of the current pool (at most as many as it has).
///
/// Takes a few milliseconds. Each thread measures its own rate and the rates are added, so that a thread
/// that wakes late does not lower the result.
///
/// ```
/// use regard_kernels::{measure::fma_peak, simd::Level};
/// assert!(fma_peak(Level::Scalar, 1) > 1e6);
/// ```
pub fn fma_peak(level: Level, threads: usize) -> f64 {
    on_threads(threads, || run(level, MultiplyAdd))
}

/// As [`fma_peak`], of bf16 dot products of pairs with f32 sums (`vdpbf16ps`, four operations a lane);
/// `None` where the machine has no such instruction or [`Level::current`] forbids it.
pub fn bf16_peak(threads: usize) -> Option<f64> {
    #[cfg(target_arch = "x86_64")]
    if Level::current() == Level::Avx512 && is_x86_feature_detected!("avx512bf16") {
        // SAFETY: the instruction was detected just now.
        return Some(on_threads(threads, || unsafe { dot_products() }));
    }
    let _ = threads;
    None
}

/// The sum of the rates that the first `threads` threads measure.
fn on_threads(threads: usize, rate: impl Fn() -> f64 + Sync) -> f64 {
    if threads <= 1 {
        return rate();
    }
    let rates = rayon::broadcast(|context| {
        if context.index() < threads {
            rate()
        } else {
            0.0
        }
    });
    rates.iter().sum()
}

/// Times a loop of multiply-adds.
struct MultiplyAdd;

impl Kernel for MultiplyAdd {
    type Output = f64;

    #[inline(always)]
    fn call<S: Simd>(self, s: S) -> f64 {
        let start = Instant::now();
        let x = s.splat(black_box(0.999));
        let mut sums = [s.splat(black_box(1.0)); CHAINS];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = s.fma(*sum, x, x);
            }
        }
        let mut total = s.zero();
        for sum in sums {
            total = s.add(total, sum);
        }
        black_box(s.reduce_add(total));
        (ROUNDS * CHAINS * S::LANES * 2) as f64 / start.elapsed().as_secs_f64()
    }
}

/// Times a loop of bf16 dot products.
///
/// # Safety
/// The machine has AVX-512F and AVX512-BF16.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn dot_products() -> f64 {
    use std::arch::x86_64::{
        __m512, __m512bh, _mm512_add_ps, _mm512_dpbf16_ps, _mm512_reduce_add_ps, _mm512_set1_ps,
    };

    let start = Instant::now();
    // SAFETY: both types are 512 bits without any invalid pattern.
    let pairs = unsafe { std::mem::transmute::<__m512, __m512bh>(_mm512_set1_ps(black_box(0.25))) };
    let mut sums = [_mm512_set1_ps(black_box(1.0)); CHAINS];
    for _ in 0..ROUNDS {
        for sum in &mut sums {
            *sum = _mm512_dpbf16_ps(*sum, pairs, pairs);
        }
    }
    let total = sums
        .into_iter()
        .fold(_mm512_set1_ps(0.0), |total, sum| _mm512_add_ps(total, sum));
    black_box(_mm512_reduce_add_ps(total));
    (ROUNDS * CHAINS * 64) as f64 / start.elapsed().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "large")]
    fn every_level_has_a_peak() {
        for &level in Level::available() {
            assert!(fma_peak(level, 1).is_finite());
        }
        assert!(bf16_peak(1).is_none_or(|peak| peak > 0.0));
        assert!(fma_peak(Level::Scalar, rayon::current_num_threads()) > 0.0);
    }
}
