//! AVX-512F and DQ: sixteen lanes.

use std::arch::x86_64::*;

use super::{Kernel, Simd};

/// Proof that the machine has AVX-512F and DQ (and AVX2 and FMA).
#[derive(Clone, Copy)]
pub(super) struct Avx512(());

/// Runs `kernel` with AVX-512F switched on.
///
/// # Safety
/// The machine has AVX-512F, AVX-512DQ, AVX2 and FMA.
#[target_feature(enable = "avx512f,avx512dq,avx2,fma,f16c")]
pub(super) unsafe fn call<K: Kernel>(kernel: K) -> K::Output {
    kernel.call(Avx512(()))
}

/// Runs `kernel` with AVX-512F and BF16 switched on.
///
/// # Safety
/// The machine has AVX-512F, AVX-512DQ, AVX-512 BF16, AVX2 and FMA.
#[target_feature(enable = "avx512f,avx512dq,avx512bf16,avx2,fma,f16c")]
unsafe fn call_pairs<K: Kernel>(kernel: K) -> K::Output {
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

/// Wraps intrinsics: each needs only that the machine has AVX-512F and DQ, which the token proves.
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
    fn load_partial(self, from: &[f32]) -> Self::V {
        // SAFETY: AVX-512F is there; lanes past the slice's end are masked and not read.
        unsafe { _mm512_maskz_loadu_ps(lane_mask(from.len()), from.as_ptr()) }
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
        // A quotient of 14 bits and one correction by its remainder; a division takes four times as long.
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
    fn reduce_add_each<const N: usize>(self, a: [Self::V; N]) -> [f32; N] {
        let mut sums = [0.0; N];
        let mut at = 0;
        while at + 8 <= N {
            // Macros, since closures would be compiled without AVX-512. The first reduces four vectors to one whose
            // quarters hold a sum of each; the others reduce four of those to one, quarter by quarter, or two.
            macro_rules! halves {
                ($a:expr, $b:expr) => {
                    _mm512_add_ps(
                        _mm512_mask_blend_ps(0xCCCC, $a, $b),
                        _mm512_shuffle_ps::<0b01_00_11_10>($a, $b),
                    )
                };
            }
            macro_rules! quarters {
                ($first:expr) => {{
                    let [a, b, c, d] = [
                        a[at + $first],
                        a[at + $first + 1],
                        a[at + $first + 2],
                        a[at + $first + 3],
                    ];
                    let (ab, cd) = (halves!(a, b), halves!(c, d));
                    _mm512_add_ps(
                        _mm512_shuffle_ps::<0b10_00_10_00>(ab, cd),
                        _mm512_shuffle_ps::<0b11_01_11_01>(ab, cd),
                    )
                }};
            }
            macro_rules! join {
                ($a:expr, $b:expr) => {{
                    let (a, b) = ($a, $b);
                    _mm512_add_ps(
                        _mm512_shuffle_f32x4::<0b10_00_10_00>(a, b),
                        _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b),
                    )
                }};
            }
            let count = if at + 16 <= N { 16 } else { 8 };
            let all = intrinsic! {
                let low = join!(quarters!(0), quarters!(4));
                let high = if count == 16 { join!(quarters!(8), quarters!(12)) } else { low };
                join!(low, high)
            };
            self.store_partial(&mut sums[at..at + count], all);
            at += count;
        }
        for (sum, &a) in sums[at..].iter_mut().zip(&a[at..]) {
            *sum = self.reduce_add(a);
        }
        sums
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
    fn split_floor(self, a: Self::V) -> (Self::V, Self::V) {
        // `vreduceps` gives 0 for infinite `a`; `vscalefps` takes the floor itself.
        let rest = intrinsic!(_mm512_reduce_ps::<_MM_FROUND_TO_NEG_INF>(a));
        (a, rest)
    }
    #[inline(always)]
    fn scale_exponent(self, p: Self::V, y: Self::V) -> Self::V {
        intrinsic!(_mm512_scalef_ps(p, y))
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
    unsafe fn load_halves(self, low: *const f32, high: *const f32) -> Self::V {
        // SAFETY: AVX-512F is there; the caller vouches for the memory.
        unsafe {
            let low = _mm512_castpd256_pd512(_mm256_loadu_pd(low.cast()));
            _mm512_castpd_ps(_mm512_insertf64x4::<1>(low, _mm256_loadu_pd(high.cast())))
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const half::bf16) -> Self::V {
        // SAFETY: AVX-512F is there; the caller vouches for the memory.
        unsafe {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
        }
    }
    #[inline(always)]
    unsafe fn load_i8(self, from: *const i8) -> Self::V {
        // SAFETY: AVX-512F is there; the caller vouches for the memory.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_bf16_interleaved(self, from: *const half::bf16) -> [Self::V; 2] {
        // SAFETY: AVX-512F is there; the caller vouches for the memory.
        unsafe {
            let words = _mm512_loadu_si512(from.cast());
            let high = _mm512_set1_epi32(0xFFFF_0000_u32 as i32);
            [
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words)),
                _mm512_castsi512_ps(_mm512_and_si512(words, high)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn load_f16(self, from: *const half::f16) -> Self::V {
        // SAFETY: AVX-512F is there; the caller vouches for the memory.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
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
            // Each row is read once, as one vector: rows a power of two apart compete for few places of the L1 cache. Pairs
            // of rows, then fours, are interleaved within quarters; then the quarters are transposed as a square of 4.
            let mut rows: [__m512; LANES] = [_mm512_setzero_ps(); LANES];
            for (i, row) in rows.iter_mut().enumerate() {
                *row = _mm512_loadu_ps(from.add(i * from_stride));
            }
            let mut fours = rows;
            for (four, row) in fours.chunks_exact_mut(4).zip(rows.chunks_exact(4)) {
                let low = _mm512_unpacklo_ps(row[0], row[1]);
                let high = _mm512_unpackhi_ps(row[0], row[1]);
                let low2 = _mm512_unpacklo_ps(row[2], row[3]);
                let high2 = _mm512_unpackhi_ps(row[2], row[3]);
                four[0] = _mm512_shuffle_ps::<0b01_00_01_00>(low, low2);
                four[1] = _mm512_shuffle_ps::<0b11_10_11_10>(low, low2);
                four[2] = _mm512_shuffle_ps::<0b01_00_01_00>(high, high2);
                four[3] = _mm512_shuffle_ps::<0b11_10_11_10>(high, high2);
            }
            for j in 0..4 {
                // Quarter q of `fours[4 i + j]` holds column 4 q + j of rows 4 i to 4 i + 3.
                let even = _mm512_shuffle_f32x4::<0b10_00_10_00>(fours[j], fours[4 + j]);
                let odd = _mm512_shuffle_f32x4::<0b11_01_11_01>(fours[j], fours[4 + j]);
                let even2 = _mm512_shuffle_f32x4::<0b10_00_10_00>(fours[8 + j], fours[12 + j]);
                let odd2 = _mm512_shuffle_f32x4::<0b11_01_11_01>(fours[8 + j], fours[12 + j]);
                let columns = [
                    _mm512_shuffle_f32x4::<0b10_00_10_00>(even, even2),
                    _mm512_shuffle_f32x4::<0b10_00_10_00>(odd, odd2),
                    _mm512_shuffle_f32x4::<0b11_01_11_01>(even, even2),
                    _mm512_shuffle_f32x4::<0b11_01_11_01>(odd, odd2),
                ];
                for (q, column) in columns.into_iter().enumerate() {
                    _mm512_storeu_ps(to.add((4 * q + j) * to_stride), column);
                }
            }
        }
    }
    #[inline(always)]
    fn prefetch(self, at: *const f32, write: bool) {
        // SAFETY: a prefetch of any address is harmless.
        unsafe {
            if write {
                _mm_prefetch::<_MM_HINT_ET0>(at.cast());
            } else {
                _mm_prefetch::<_MM_HINT_T1>(at.cast());
            }
        }
    }
    #[inline(always)]
    fn has_pairs(self) -> bool {
        is_x86_feature_detected!("avx512bf16")
    }
    #[inline(always)]
    unsafe fn dot_pairs(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: the caller runs inside `call_pairs`; both types are 64 bytes of numbers.
        unsafe {
            let a: __m512bh = std::mem::transmute(a);
            let b: __m512bh = std::mem::transmute(b);
            _mm512_dpbf16_ps(c, a, b)
        }
    }
    #[inline(always)]
    unsafe fn pack_pairs(self, low: Self::V, high: Self::V) -> Self::V {
        // SAFETY: the caller runs inside `call_pairs`; both types are 32 bytes of numbers.
        unsafe {
            let low: __m256i = std::mem::transmute(_mm512_cvtneps_pbh(low));
            let high: __m256i = std::mem::transmute(_mm512_cvtneps_pbh(high));
            let high = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(high));
            _mm512_castsi512_ps(_mm512_or_si512(_mm512_cvtepu16_epi32(low), high))
        }
    }
    #[inline(always)]
    unsafe fn outline_pairs<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: the caller checked for BF16, and `self` proves the rest.
        unsafe { call_pairs(kernel) }
    }
    #[inline(always)]
    fn prefetch_near(self, at: *const f32) {
        // SAFETY: a prefetch of any address is harmless.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
    #[inline(always)]
    fn outline<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: `self` exists, so the machine has AVX-512F, AVX-512DQ, AVX2 and FMA.
        unsafe { call(kernel) }
    }
}
