//! NEON: eight lanes in two registers.
//!
//! NEON has 32 registers of four numbers. With two registers for each vector, the blocks of the other
//! eight-lane levels (12 vectors of sums, 3 of queries) take 30 registers, and sums have the same order
//! as theirs.

use std::arch::aarch64::*;

use super::{Kernel, Simd};

/// Proof that the machine has NEON.
#[derive(Clone, Copy)]
pub(super) struct Neon(());

/// Runs `kernel` with NEON switched on.
///
/// # Safety
/// The machine has NEON.
#[target_feature(enable = "neon")]
pub(super) unsafe fn call<K: Kernel>(kernel: K) -> K::Output {
    kernel.call(Neon(()))
}

const LANES: usize = 8;

/// Wraps intrinsics: each needs only that the machine has NEON, which the token proves.
macro_rules! intrinsic {
    ($($body:tt)*) => {
        // SAFETY: `self` exists, so the machine has NEON; no memory is touched.
        unsafe { $($body)* }
    };
}

/// Applies `f` to both halves.
#[inline(always)]
fn halves<T>(f: impl Fn(usize) -> T) -> [T; 2] {
    [f(0), f(1)]
}

/// The first four or the last four of eight bits, each as a lane of all ones or all zeros.
///
/// # Safety
/// The machine has NEON.
#[inline(always)]
unsafe fn lanes_of(bits: u32) -> uint32x4_t {
    const ONE_EACH: [u32; 4] = [1, 2, 4, 8];
    // SAFETY: the caller vouches for NEON; the array has four numbers.
    unsafe { vtstq_u32(vdupq_n_u32(bits), vld1q_u32(ONE_EACH.as_ptr())) }
}

/// One bit for each lane: set if the lane is all ones.
///
/// # Safety
/// The machine has NEON.
#[inline(always)]
unsafe fn bits_of(lanes: uint32x4_t) -> u32 {
    const ONE_EACH: [u32; 4] = [1, 2, 4, 8];
    // SAFETY: the caller vouches for NEON; the array has four numbers.
    unsafe { vaddvq_u32(vandq_u32(lanes, vld1q_u32(ONE_EACH.as_ptr()))) }
}

impl Simd for Neon {
    type V = [float32x4_t; 2];
    const LANES: usize = LANES;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [intrinsic!(vdupq_n_f32(x)); 2]
    }
    #[inline(always)]
    fn load_partial(self, from: &[f32]) -> Self::V {
        let mut lanes = [0.0; LANES];
        let count = from.len().min(LANES);
        lanes[..count].copy_from_slice(&from[..count]);
        self.load(&lanes)
    }
    #[inline(always)]
    fn store_partial(self, to: &mut [f32], v: Self::V) {
        let mut lanes = [0.0; LANES];
        self.store(&mut lanes, v);
        let count = to.len().min(LANES);
        to[..count].copy_from_slice(&lanes[..count]);
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        halves(|h| intrinsic!(vaddq_f32(a[h], b[h])))
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        halves(|h| intrinsic!(vsubq_f32(a[h], b[h])))
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        halves(|h| intrinsic!(vmulq_f32(a[h], b[h])))
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        halves(|h| intrinsic!(vdivq_f32(a[h], b[h])))
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        halves(|h| intrinsic!(vfmaq_f32(c[h], a[h], b[h])))
    }
    #[inline(always)]
    fn fnma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        halves(|h| intrinsic!(vfmsq_f32(c[h], a[h], b[h])))
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        // `vminq` gives NaN where either is NaN; the trait asks for `b`.
        halves(|h| intrinsic!(vbslq_f32(vcltq_f32(a[h], b[h]), a[h], b[h])))
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        halves(|h| intrinsic!(vbslq_f32(vcgtq_f32(a[h], b[h]), a[h], b[h])))
    }
    #[inline(always)]
    fn sqrt(self, a: Self::V) -> Self::V {
        halves(|h| intrinsic!(vsqrtq_f32(a[h])))
    }
    #[inline(always)]
    fn quick_div(self, a: Self::V, b: Self::V) -> Self::V {
        // The estimate of a reciprocal has 8 bits here; refining it costs as much as dividing.
        self.div(a, b)
    }
    #[inline(always)]
    fn abs(self, a: Self::V) -> Self::V {
        halves(|h| intrinsic!(vabsq_f32(a[h])))
    }
    #[inline(always)]
    fn with_sign(self, magnitude: Self::V, sign: Self::V) -> Self::V {
        halves(|h| intrinsic!(vbslq_f32(vdupq_n_u32(1 << 31), sign[h], magnitude[h])))
    }
    #[inline(always)]
    fn exp2_biased(self, a: Self::V) -> Self::V {
        halves(|h| {
            intrinsic! {
                let shifted = vshlq_n_u32::<23>(vreinterpretq_u32_f32(a[h]));
                vreinterpretq_f32_u32(vaddq_u32(shifted, vdupq_n_u32(127 << 23)))
            }
        })
    }
    #[inline(always)]
    fn reduce_add(self, a: Self::V) -> f32 {
        intrinsic! {
            let half = vaddq_f32(a[0], a[1]);
            let pair = vadd_f32(vget_low_f32(half), vget_high_f32(half));
            vpadds_f32(pair)
        }
    }
    #[inline(always)]
    fn reduce_add_each<const N: usize>(self, a: [Self::V; N]) -> [f32; N] {
        let mut sums = [0.0; N];
        let mut at = 0;
        while at + 4 <= N {
            // Sums of neighbours, in two steps.
            let [a, b, c, d] = [0, 1, 2, 3].map(|i| {
                let [low, high] = a[at + i];
                intrinsic!(vaddq_f32(low, high))
            });
            // SAFETY: NEON is there, and there is room for four sums.
            unsafe {
                let all = vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d));
                vst1q_f32(sums[at..at + 4].as_mut_ptr(), all);
            }
            at += 4;
        }
        for (sum, &a) in sums[at..].iter_mut().zip(&a[at..]) {
            *sum = self.reduce_add(a);
        }
        sums
    }
    #[inline(always)]
    fn reduce_max(self, a: Self::V) -> f32 {
        intrinsic!(vmaxnmvq_f32(vmaxnmq_f32(a[0], a[1])))
    }
    #[inline(always)]
    fn greater(self, a: Self::V, b: Self::V) -> u32 {
        let [low, high] = halves(|h| intrinsic!(bits_of(vcgtq_f32(a[h], b[h]))));
        low | high << 4
    }
    #[inline(always)]
    fn select(self, bits: u32, yes: Self::V, no: Self::V) -> Self::V {
        halves(|h| intrinsic!(vbslq_f32(lanes_of(bits >> (4 * h)), yes[h], no[h])))
    }
    #[inline(always)]
    fn split_floor(self, a: Self::V) -> (Self::V, Self::V) {
        let a = halves(|h| {
            intrinsic!(vmaxq_f32(
                vdupq_n_f32(-127.0),
                vminq_f32(vdupq_n_f32(127.0), a[h])
            ))
        });
        let floor = halves(|h| intrinsic!(vrndmq_f32(a[h])));
        (floor, self.sub(a, floor))
    }
    #[inline(always)]
    fn scale_exponent(self, p: Self::V, y: Self::V) -> Self::V {
        halves(|h| {
            intrinsic! {
                // 2^-127 comes out as 0. NaN gives an arbitrary power, and `p` is NaN then.
                let power = vaddq_s32(vcvtnq_s32_f32(y[h]), vdupq_n_s32(127));
                vmulq_f32(p[h], vreinterpretq_f32_s32(vshlq_n_s32::<23>(power)))
            }
        })
    }
    #[inline(always)]
    fn hash_at_least(self, rows: &[u32], key: u32, threshold: u32) -> u32 {
        let rows = &rows[..LANES];
        let [low, high] = halves(|h| {
            // SAFETY: NEON is there, and the slice has been cut to 8 numbers.
            unsafe {
                let x = veorq_u32(vld1q_u32(rows.as_ptr().add(4 * h)), vdupq_n_u32(key));
                let x = veorq_u32(x, vshrq_n_u32::<16>(x));
                let x = vmulq_u32(x, vdupq_n_u32(0x7FEB_352D));
                let x = veorq_u32(x, vshrq_n_u32::<15>(x));
                let x = vmulq_u32(x, vdupq_n_u32(0x846C_A68B));
                let x = veorq_u32(x, vshrq_n_u32::<16>(x));
                bits_of(vcgeq_u32(x, vdupq_n_u32(threshold)))
            }
        });
        low | high << 4
    }
    #[inline(always)]
    unsafe fn load_from(self, from: *const f32) -> Self::V {
        // SAFETY: NEON is there; the caller vouches for the memory.
        unsafe { [vld1q_f32(from), vld1q_f32(from.add(4))] }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const half::bf16) -> Self::V {
        // SAFETY: NEON is there; the caller vouches for the memory. A bf16 is the upper half of an f32.
        let x = unsafe { vld1q_u16(from.cast()) };
        intrinsic! {
            [
                vreinterpretq_f32_u32(vshlq_n_u32::<16>(vmovl_u16(vget_low_u16(x)))),
                vreinterpretq_f32_u32(vshlq_n_u32::<16>(vmovl_u16(vget_high_u16(x)))),
            ]
        }
    }
    #[inline(always)]
    unsafe fn load_i8(self, from: *const i8) -> Self::V {
        // SAFETY: NEON is there; the caller vouches for the memory.
        let x = unsafe { vld1_s8(from) };
        intrinsic! {
            {
                let x = vmovl_s8(x);
                [
                    vcvtq_f32_s32(vmovl_s16(vget_low_s16(x))),
                    vcvtq_f32_s32(vmovl_s16(vget_high_s16(x))),
                ]
            }
        }
    }
    #[inline(always)]
    unsafe fn load_bf16_interleaved(self, from: *const half::bf16) -> [Self::V; 2] {
        // SAFETY: NEON is there; the caller vouches for the memory.
        let words = unsafe { [vld1q_u16(from.cast()), vld1q_u16(from.add(8).cast())] };
        let words = halves(|h| intrinsic!(vreinterpretq_u32_u16(words[h])));
        let high = intrinsic!(vdupq_n_u32(0xFFFF_0000));
        [
            halves(|h| intrinsic!(vreinterpretq_f32_u32(vshlq_n_u32::<16>(words[h])))),
            halves(|h| intrinsic!(vreinterpretq_f32_u32(vandq_u32(words[h], high)))),
        ]
    }
    #[inline(always)]
    unsafe fn load_f16(self, from: *const half::f16) -> Self::V {
        let (low, high): (float32x4_t, float32x4_t);
        // SAFETY: NEON is there, and with it these conversions (their intrinsics await Rust's f16); the
        // caller vouches for the memory.
        unsafe {
            std::arch::asm!(
                "fcvtl {low:v}.4s, {x:v}.4h",
                "fcvtl2 {high:v}.4s, {x:v}.8h",
                x = in(vreg) vld1q_u16(from.cast()),
                low = out(vreg) low,
                high = out(vreg) high,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        [low, high]
    }
    #[inline(always)]
    unsafe fn store_to(self, to: *mut f32, v: Self::V) {
        // SAFETY: NEON is there; the caller vouches for the memory.
        unsafe {
            vst1q_f32(to, v[0]);
            vst1q_f32(to.add(4), v[1]);
        }
    }
    #[inline(always)]
    unsafe fn transpose(
        self,
        from: *const f32,
        from_stride: usize,
        to: *mut f32,
        to_stride: usize,
    ) {
        for (row, column) in [(0, 0), (0, 4), (4, 0), (4, 4)] {
            // SAFETY: NEON is there; the caller vouches for 8 rows of 8 numbers on both sides, of which
            // this is a quarter.
            unsafe {
                let [a, b, c, d] =
                    [0, 1, 2, 3].map(|i| vld1q_f32(from.add((row + i) * from_stride + column)));
                let (low, high) = (vtrnq_f32(a, b), vtrnq_f32(c, d));
                let turned = [
                    vcombine_f32(vget_low_f32(low.0), vget_low_f32(high.0)),
                    vcombine_f32(vget_low_f32(low.1), vget_low_f32(high.1)),
                    vcombine_f32(vget_high_f32(low.0), vget_high_f32(high.0)),
                    vcombine_f32(vget_high_f32(low.1), vget_high_f32(high.1)),
                ];
                for (j, line) in turned.into_iter().enumerate() {
                    vst1q_f32(to.add((column + j) * to_stride + row), line);
                }
            }
        }
    }
    #[inline(always)]
    fn prefetch(self, at: *const f32, write: bool) {
        // SAFETY: a prefetch of any address is harmless.
        unsafe {
            if write {
                std::arch::asm!("prfm pstl1keep, [{at}]", at = in(reg) at, options(nostack, preserves_flags));
            } else {
                std::arch::asm!("prfm pldl2keep, [{at}]", at = in(reg) at, options(nostack, preserves_flags, readonly));
            }
        }
    }
    #[inline(always)]
    fn prefetch_near(self, at: *const f32) {
        // SAFETY: a prefetch of any address is harmless.
        unsafe {
            std::arch::asm!("prfm pldl1keep, [{at}]", at = in(reg) at, options(nostack, preserves_flags, readonly));
        }
    }
    #[inline(always)]
    fn outline<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: `self` exists, so the machine has NEON.
        unsafe { call(kernel) }
    }
}
