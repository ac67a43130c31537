//! AVX-512F: sixteen lanes.

use std::arch::x86_64::*;

use super::{Kernel, Simd};

/// Proof that the machine has AVX-512F (and AVX2 and FMA).
#[derive(Clone, Copy)]
pub(super) struct Avx512(());

/// Runs `kernel` with AVX-512F switched on.
///
/// # Safety
/// The machine has AVX-512F, AVX2 and FMA.
#[target_feature(enable = "avx512f,avx2,fma")]
pub(super) unsafe fn call<K: Kernel>(kernel: K) -> K::Output {
    kernel.call(Avx512(()))
}

const LANES: usize = 16;

#[inline(always)]
fn lane_mask(count: usize) -> __mmask16 {
    if count >= LANES {
        !0
    } else {
        (1u16 << count) - 1
    }
}

/// Wraps intrinsics: each needs only that the machine has AVX-512F, which the token proves.
macro_rules! intrinsic {
    ($($body:tt)*) => {
        // SAFETY: `self` exists, so the machine has AVX-512F; no memory is touched.
        unsafe { $($body)* }
    };
}

impl Simd for Avx512 {
    type V = __m512;
    const LANES: usize = LANES;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        intrinsic!(_mm512_set1_ps(x))
    }
    #[inline(always)]
    fn load(self, from: &[f32]) -> Self::V {
        let from = &from[..LANES];
        // SAFETY: AVX-512F is there, and the slice has been cut to 16 numbers.
        unsafe { _mm512_loadu_ps(from.as_ptr()) }
    }
    #[inline(always)]
    fn load_partial(self, from: &[f32]) -> Self::V {
        // SAFETY: AVX-512F is there; lanes past the slice's end are masked and not read.
        unsafe { _mm512_maskz_loadu_ps(lane_mask(from.len()), from.as_ptr()) }
    }
    #[inline(always)]
    fn store(self, to: &mut [f32], v: Self::V) {
        let to = &mut to[..LANES];
        // SAFETY: AVX-512F is there, and the slice has been cut to 16 numbers.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), v) }
    }
    #[inline(always)]
    fn store_partial(self, to: &mut [f32], v: Self::V) {
        // SAFETY: AVX-512F is there; lanes past the slice's end are masked and not written.
        unsafe { _mm512_mask_storeu_ps(to.as_mut_ptr(), lane_mask(to.len()), v) }
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        intrinsic!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        intrinsic!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        intrinsic!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        intrinsic!(_mm512_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        intrinsic!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn fnma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        intrinsic!(_mm512_fnmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        intrinsic!(_mm512_min_ps(a, b))
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        intrinsic!(_mm512_max_ps(a, b))
    }
    #[inline(always)]
    fn sqrt(self, a: Self::V) -> Self::V {
        intrinsic!(_mm512_sqrt_ps(a))
    }
    #[inline(always)]
    fn quick_div(self, a: Self::V, b: Self::V) -> Self::V {
        // A quotient of 14 bits and one correction by its remainder; dividing takes four times as
        // long.
        intrinsic! {
            let reciprocal = _mm512_rcp14_ps(b);
            let quotient = _mm512_mul_ps(a, reciprocal);
            let remainder = _mm512_fnmadd_ps(quotient, b, a);
            _mm512_fmadd_ps(remainder, reciprocal, quotient)
        }
    }
    #[inline(always)]
    fn abs(self, a: Self::V) -> Self::V {
        intrinsic!(_mm512_abs_ps(a))
    }
    #[inline(always)]
    fn with_sign(self, magnitude: Self::V, sign: Self::V) -> Self::V {
        intrinsic! {
            let mask = _mm512_set1_epi32(i32::MIN);
            // Truth table of `magnitude | (mask & sign)`.
            _mm512_castsi512_ps(_mm512_ternarylogic_epi32::<0b1111_1000>(
                _mm512_castps_si512(magnitude),
                mask,
                _mm512_castps_si512(sign),
            ))
        }
    }
    #[inline(always)]
    fn exp2_biased(self, a: Self::V) -> Self::V {
        intrinsic! {
            let shifted = _mm512_slli_epi32::<23>(_mm512_castps_si512(a));
            _mm512_castsi512_ps(_mm512_add_epi32(shifted, _mm512_set1_epi32(127 << 23)))
        }
    }
    #[inline(always)]
    fn reduce_add(self, a: Self::V) -> f32 {
        intrinsic!(_mm512_reduce_add_ps(a))
    }
    #[inline(always)]
    fn reduce_max(self, a: Self::V) -> f32 {
        intrinsic!(_mm512_reduce_max_ps(a))
    }
    #[inline(always)]
    fn greater(self, a: Self::V, b: Self::V) -> u32 {
        u32::from(intrinsic!(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b)))
    }
    #[inline(always)]
    fn select(self, bits: u32, yes: Self::V, no: Self::V) -> Self::V {
        intrinsic!(_mm512_mask_blend_ps(bits as u16, no, yes))
    }
    #[inline(always)]
    fn scale_exponent(self, a: Self::V, biased: Self::V) -> Self::V {
        intrinsic!(_mm512_scalef_ps(
            a,
            _mm512_sub_ps(biased, _mm512_set1_ps(12_582_912.0))
        ))
    }
    #[inline(always)]
    fn hash_at_least(self, rows: &[u32], key: u32, threshold: u32) -> u32 {
        let rows = &rows[..LANES];
        // SAFETY: AVX-512F is there, and the slice has been cut to 16 numbers.
        let rows = unsafe { _mm512_loadu_si512(rows.as_ptr().cast()) };
        u32::from(intrinsic! {
            let x = _mm512_xor_si512(rows, _mm512_set1_epi32(key as i32));
            let x = _mm512_xor_si512(x, _mm512_srli_epi32::<16>(x));
            let x = _mm512_mullo_epi32(x, _mm512_set1_epi32(0x7FEB_352D));
            let x = _mm512_xor_si512(x, _mm512_srli_epi32::<15>(x));
            let x = _mm512_mullo_epi32(x, _mm512_set1_epi32(0x846C_A68B_u32 as i32));
            let x = _mm512_xor_si512(x, _mm512_srli_epi32::<16>(x));
            _mm512_cmpge_epu32_mask(x, _mm512_set1_epi32(threshold as i32))
        })
    }
    #[inline(always)]
    unsafe fn load_from(self, from: *const f32) -> Self::V {
        // SAFETY: AVX-512F is there; the caller vouches for the memory.
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store_to(self, to: *mut f32, v: Self::V) {
        // SAFETY: AVX-512F is there; the caller vouches for the memory.
        unsafe { _mm512_storeu_ps(to, v) }
    }
    #[inline(always)]
    unsafe fn transpose(
        self,
        from: *const f32,
        from_stride: usize,
        to: *mut f32,
        to_stride: usize,
    ) {
        // SAFETY: AVX-512F is there; the caller vouches for 16 rows of 16 numbers on both sides.
        unsafe {
            // Four lines of four rows: row i, i + 4, i + 8, i + 12 side by side in 128-bit quarters.
            let quarter = |row: usize, column: usize| {
                let load = |row: usize| _mm_loadu_ps(from.add(row * from_stride + column));
                let x = _mm512_castps128_ps512(load(row));
                let x = _mm512_insertf32x4::<1>(x, load(row + 4));
                let x = _mm512_insertf32x4::<2>(x, load(row + 8));
                _mm512_insertf32x4::<3>(x, load(row + 12))
            };
            for column in [0, 4, 8, 12] {
                let [a, b, c, d] = [0, 1, 2, 3].map(|row| quarter(row, column));
                let (low, high) = (_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
                let (low2, high2) = (_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
                let rows = [
                    _mm512_shuffle_ps::<0b01_00_01_00>(low, low2),
                    _mm512_shuffle_ps::<0b11_10_11_10>(low, low2),
                    _mm512_shuffle_ps::<0b01_00_01_00>(high, high2),
                    _mm512_shuffle_ps::<0b11_10_11_10>(high, high2),
                ];
                for (j, row) in rows.into_iter().enumerate() {
                    _mm512_storeu_ps(to.add((column + j) * to_stride), row);
                }
            }
        }
    }
    #[inline(always)]
    fn outline<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: `self` exists, so the machine has AVX-512F, AVX2 and FMA.
        unsafe { call(kernel) }
    }
}
