//! AVX2 with FMA: eight lanes.

use std::arch::x86_64::*;

use super::{Kernel, Simd};

/// Proof that the machine has AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(super) struct Avx2(());

/// Runs `kernel` with AVX2 and FMA switched on.
///
/// # Safety
/// The machine has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn call<K: Kernel>(kernel: K) -> K::Output {
    kernel.call(Avx2(()))
}

const LANES: usize = 8;

/// Ones for the first eight, zeros after: a window into it is the mask of a partial vector.
static MASKS: [i32; 2 * LANES] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

#[inline(always)]
fn lane_mask(_: Avx2, count: usize) -> __m256i {
    let window = &MASKS[LANES - count.min(LANES)..][..LANES];
    // SAFETY: the token proves AVX2, and the window has eight numbers.
    unsafe { _mm256_loadu_si256(window.as_ptr().cast()) }
}

/// Wraps intrinsics: each needs only that the machine has AVX2 and FMA, which the token proves.
macro_rules! intrinsic {
    ($($body:tt)*) => {
        // SAFETY: `self` exists, so the machine has AVX2 and FMA; no memory is touched.
        unsafe { $($body)* }
    };
}

impl Simd for Avx2 {
    type V = __m256;
    const LANES: usize = LANES;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        intrinsic!(_mm256_set1_ps(x))
    }
    #[inline(always)]
    fn load_partial(self, from: &[f32]) -> Self::V {
        // SAFETY: AVX2 is there; lanes past the slice's end are masked and not read.
        unsafe { _mm256_maskload_ps(from.as_ptr(), lane_mask(self, from.len())) }
    }
    #[inline(always)]
    fn store_partial(self, to: &mut [f32], v: Self::V) {
        // SAFETY: AVX2 is there; lanes past the slice's end are masked and not written.
        unsafe { _mm256_maskstore_ps(to.as_mut_ptr(), lane_mask(self, to.len()), v) }
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        intrinsic!(_mm256_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        intrinsic!(_mm256_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        intrinsic!(_mm256_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        intrinsic!(_mm256_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        intrinsic!(_mm256_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn fnma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        intrinsic!(_mm256_fnmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        intrinsic!(_mm256_min_ps(a, b))
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        intrinsic!(_mm256_max_ps(a, b))
    }
    #[inline(always)]
    fn sqrt(self, a: Self::V) -> Self::V {
        intrinsic!(_mm256_sqrt_ps(a))
    }
    #[inline(always)]
    fn quick_div(self, a: Self::V, b: Self::V) -> Self::V {
        // The estimate of a reciprocal has 12 bits here; refining it costs as much as dividing.
        self.div(a, b)
    }
    #[inline(always)]
    fn abs(self, a: Self::V) -> Self::V {
        intrinsic!(_mm256_andnot_ps(_mm256_set1_ps(-0.0), a))
    }
    #[inline(always)]
    fn with_sign(self, magnitude: Self::V, sign: Self::V) -> Self::V {
        intrinsic!(_mm256_or_ps(
            magnitude,
            _mm256_and_ps(_mm256_set1_ps(-0.0), sign)
        ))
    }
    #[inline(always)]
    fn exp2_biased(self, a: Self::V) -> Self::V {
        intrinsic! {
            let shifted = _mm256_slli_epi32::<23>(_mm256_castps_si256(a));
            _mm256_castsi256_ps(_mm256_add_epi32(shifted, _mm256_set1_epi32(127 << 23)))
        }
    }
    #[inline(always)]
    fn reduce_add(self, a: Self::V) -> f32 {
        intrinsic! {
            let half = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
            _mm_cvtss_f32(_mm_add_ss(pair, _mm_shuffle_ps::<1>(pair, pair)))
        }
    }
    #[inline(always)]
    fn reduce_add_each<const N: usize>(self, a: [Self::V; N]) -> [f32; N] {
        let mut sums = [0.0; N];
        let mut at = 0;
        while at + 8 <= N {
            // Macros, since closures would be compiled without AVX2. The first reduces four vectors to one whose
            // halves hold a sum of each; the second reduces two of those to one, half by half.
            macro_rules! halves {
                ($first:expr) => {{
                    let [a, b, c, d] = [
                        a[at + $first],
                        a[at + $first + 1],
                        a[at + $first + 2],
                        a[at + $first + 3],
                    ];
                    let ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
                    let cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
                    _mm256_add_ps(
                        _mm256_shuffle_ps::<0b01_00_01_00>(ab, cd),
                        _mm256_shuffle_ps::<0b11_10_11_10>(ab, cd),
                    )
                }};
            }
            let all = intrinsic! {
                let (low, high) = (halves!(0), halves!(4));
                _mm256_add_ps(
                    _mm256_permute2f128_ps::<0x20>(low, high),
                    _mm256_permute2f128_ps::<0x31>(low, high),
                )
            };
            self.store(&mut sums[at..], all);
            at += 8;
        }
        for (sum, &a) in sums[at..].iter_mut().zip(&a[at..]) {
            *sum = self.reduce_add(a);
        }
        sums
    }
    #[inline(always)]
    fn reduce_max(self, a: Self::V) -> f32 {
        intrinsic! {
            let half = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let pair = _mm_max_ps(half, _mm_movehl_ps(half, half));
            _mm_cvtss_f32(_mm_max_ss(pair, _mm_shuffle_ps::<1>(pair, pair)))
        }
    }
    #[inline(always)]
    fn greater(self, a: Self::V, b: Self::V) -> u32 {
        intrinsic!(_mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(a, b)) as u32)
    }
    #[inline(always)]
    fn select(self, bits: u32, yes: Self::V, no: Self::V) -> Self::V {
        intrinsic! {
            let one_each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
            let set = _mm256_and_si256(_mm256_set1_epi32(bits as i32), one_each);
            let mask = _mm256_cmpeq_epi32(set, one_each);
            _mm256_blendv_ps(no, yes, _mm256_castsi256_ps(mask))
        }
    }
    #[inline(always)]
    fn split_floor(self, a: Self::V) -> (Self::V, Self::V) {
        intrinsic! {
            // With the arguments in this order, NaN passes through.
            let a = _mm256_max_ps(_mm256_set1_ps(-127.0), _mm256_min_ps(_mm256_set1_ps(127.0), a));
            let floor = _mm256_floor_ps(a);
            (floor, _mm256_sub_ps(a, floor))
        }
    }
    #[inline(always)]
    fn scale_exponent(self, p: Self::V, y: Self::V) -> Self::V {
        intrinsic! {
            // 2^-127 comes out as 0. NaN gives an arbitrary power, and `p` is NaN then.
            let power = _mm256_add_epi32(_mm256_cvtps_epi32(y), _mm256_set1_epi32(127));
            _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(power)))
        }
    }
    #[inline(always)]
    fn hash_at_least(self, rows: &[u32], key: u32, threshold: u32) -> u32 {
        let rows = &rows[..LANES];
        // SAFETY: AVX2 is there, and the slice has been cut to 8 numbers.
        let rows = unsafe { _mm256_loadu_si256(rows.as_ptr().cast()) };
        intrinsic! {
            let x = _mm256_xor_si256(rows, _mm256_set1_epi32(key as i32));
            let x = _mm256_xor_si256(x, _mm256_srli_epi32::<16>(x));
            let x = _mm256_mullo_epi32(x, _mm256_set1_epi32(0x7FEB_352D));
            let x = _mm256_xor_si256(x, _mm256_srli_epi32::<15>(x));
            let x = _mm256_mullo_epi32(x, _mm256_set1_epi32(0x846C_A68B_u32 as i32));
            let x = _mm256_xor_si256(x, _mm256_srli_epi32::<16>(x));
            let threshold = _mm256_set1_epi32(threshold as i32);
            let at_least = _mm256_cmpeq_epi32(_mm256_max_epu32(x, threshold), x);
            _mm256_movemask_ps(_mm256_castsi256_ps(at_least)) as u32
        }
    }
    #[inline(always)]
    unsafe fn load_from(self, from: *const f32) -> Self::V {
        // SAFETY: AVX2 is there; the caller vouches for the memory.
        unsafe { _mm256_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const half::bf16) -> Self::V {
        // SAFETY: AVX2 is there; the caller vouches for the memory.
        unsafe {
            let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
        }
    }
    #[inline(always)]
    unsafe fn load_i8(self, from: *const i8) -> Self::V {
        // SAFETY: AVX2 is there; the caller vouches for the memory.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_bf16_interleaved(self, from: *const half::bf16) -> [Self::V; 2] {
        // SAFETY: AVX2 is there; the caller vouches for the memory.
        unsafe {
            let words = _mm256_loadu_si256(from.cast());
            let high = _mm256_set1_epi32(0xFFFF_0000_u32 as i32);
            [
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words)),
                _mm256_castsi256_ps(_mm256_and_si256(words, high)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn load_f16(self, from: *const half::f16) -> Self::V {
        // SAFETY: F16C is there; the caller vouches for the memory.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }
    #[inline(always)]
    unsafe fn store_to(self, to: *mut f32, v: Self::V) {
        // SAFETY: AVX2 is there; the caller vouches for the memory.
        unsafe { _mm256_storeu_ps(to, v) }
    }
    #[inline(always)]
    unsafe fn transpose(
        self,
        from: *const f32,
        from_stride: usize,
        to: *mut f32,
        to_stride: usize,
    ) {
        // SAFETY: AVX2 is there; the caller vouches for 8 rows of 8 numbers on both sides.
        unsafe {
            // A macro, since a closure would be compiled without AVX2. Rows i and i + 4 side by side in
            // halves.
            macro_rules! half {
                ($row:expr, $column:expr) => {{
                    let from = from.add($row * from_stride + $column);
                    let x = _mm256_castps128_ps256(_mm_loadu_ps(from));
                    _mm256_insertf128_ps::<1>(x, _mm_loadu_ps(from.add(4 * from_stride)))
                }};
            }
            for column in [0, 4] {
                let (a, b) = (half!(0, column), half!(1, column));
                let (c, d) = (half!(2, column), half!(3, column));
                let (low, high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
                let (low2, high2) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
                let rows = [
                    _mm256_shuffle_ps::<0b01_00_01_00>(low, low2),
                    _mm256_shuffle_ps::<0b11_10_11_10>(low, low2),
                    _mm256_shuffle_ps::<0b01_00_01_00>(high, high2),
                    _mm256_shuffle_ps::<0b11_10_11_10>(high, high2),
                ];
                for (j, row) in rows.into_iter().enumerate() {
                    _mm256_storeu_ps(to.add((column + j) * to_stride), row);
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
    fn prefetch_near(self, at: *const f32) {
        // SAFETY: a prefetch of any address is harmless.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
    #[inline(always)]
    fn outline<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: `self` exists, so the machine has AVX2, FMA and F16C.
        unsafe { call(kernel) }
    }
    #[inline(always)]
    fn before_loads<const N: usize>(self, mut row: [Self::V; N]) -> [Self::V; N] {
        if let [a, b, c] = &mut row[..] {
            // SAFETY: `self` exists, so the machine has AVX.
            unsafe { before_loads(a, b, c) };
        }
        row
    }
}

/// Generates no instruction, but is declared to write its arguments and to touch memory: what computes the
/// arguments stays before it, and later loads stay after it.
#[inline]
#[target_feature(enable = "avx")]
fn before_loads(a: &mut __m256, b: &mut __m256, c: &mut __m256) {
    // SAFETY: there is no instruction in it.
    unsafe {
        std::arch::asm!(
            "/* {0} {1} {2} */",
            inout(ymm_reg) * a,
            inout(ymm_reg) * b,
            inout(ymm_reg) * c,
            options(nostack, preserves_flags)
        );
    }
}
