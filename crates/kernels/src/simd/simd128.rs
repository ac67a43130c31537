//! WebAssembly's vectors: eight lanes in two registers.
//!
//! The instructions are chosen when the program is compiled (`-C target-feature=+simd128`): a browser without them refuses
//! the whole program. There is no fused multiply-add, and sums have the order of [`Portable`], so every result has its bits.

use std::arch::wasm32::*;

use super::{Kernel, Simd, portable::Portable};

/// A machine that runs a program compiled for vectors has them.
#[derive(Clone, Copy)]
pub(super) struct Simd128;

const LANES: usize = 8;

/// An operation on both registers. A closure would be called for each where the compiler saves space.
macro_rules! halves {
    ($operation:ident($($operand:expr),+)) => {
        [$operation($($operand[0]),+), $operation($($operand[1]),+)]
    };
}

/// Eight numbers as two registers.
#[inline(always)]
fn from_lanes(lanes: [f32; LANES]) -> [v128; 2] {
    let [a, b, c, d, e, f, g, h] = lanes;
    [f32x4(a, b, c, d), f32x4(e, f, g, h)]
}

/// The first four of eight bits, each as a lane of all ones or all zeros.
#[inline(always)]
fn lanes_of(bits: u32) -> v128 {
    let each = i32x4(1, 2, 4, 8);
    i32x4_eq(v128_and(i32x4_splat(bits as i32), each), each)
}

/// `x` in `[-127, 127]`; NaN stays.
#[inline(always)]
fn clamped(x: v128) -> v128 {
    f32x4_min(f32x4_max(x, f32x4_splat(-127.0)), f32x4_splat(127.0))
}

/// The hash of dropout ([`mix`](crate::problem::mix)).
#[inline(always)]
fn mixed(x: v128) -> v128 {
    let x = v128_xor(x, u32x4_shr(x, 16));
    let x = i32x4_mul(x, u32x4_splat(0x7FEB_352D));
    let x = v128_xor(x, u32x4_shr(x, 15));
    let x = i32x4_mul(x, u32x4_splat(0x846C_A68B));
    v128_xor(x, u32x4_shr(x, 16))
}

/// `2^n` for the whole `n` in `[-127, 127]` that `y` holds; 0 for -127.
#[inline(always)]
fn power(y: v128) -> v128 {
    i32x4_shl(i32x4_add(i32x4_trunc_sat_f32x4(y), i32x4_splat(127)), 23)
}

impl Simd for Simd128 {
    type V = [v128; 2];
    const LANES: usize = LANES;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [f32x4_splat(x); 2]
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
        halves!(f32x4_add(a, b))
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        halves!(f32x4_sub(a, b))
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        halves!(f32x4_mul(a, b))
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        halves!(f32x4_div(a, b))
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        self.add(self.mul(a, b), c)
    }
    #[inline(always)]
    fn fnma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        self.sub(c, self.mul(a, b))
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        // `f32x4_pmin(x, y)` is `y < x ? y : x`.
        halves!(f32x4_pmin(b, a))
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        halves!(f32x4_pmax(b, a))
    }
    #[inline(always)]
    fn sqrt(self, a: Self::V) -> Self::V {
        halves!(f32x4_sqrt(a))
    }
    #[inline(always)]
    fn quick_div(self, a: Self::V, b: Self::V) -> Self::V {
        self.div(a, b)
    }
    #[inline(always)]
    fn abs(self, a: Self::V) -> Self::V {
        halves!(f32x4_abs(a))
    }
    #[inline(always)]
    fn with_sign(self, magnitude: Self::V, sign: Self::V) -> Self::V {
        let top = [u32x4_splat(1 << 31); 2];
        halves!(v128_bitselect(sign, magnitude, top))
    }
    #[inline(always)]
    fn exp2_biased(self, a: Self::V) -> Self::V {
        a.map(|a| i32x4_add(i32x4_shl(a, 23), i32x4_splat(127 << 23)))
    }
    #[inline(always)]
    fn reduce_add(self, a: Self::V) -> f32 {
        let four = f32x4_add(a[0], a[1]);
        let two = f32x4_add(four, i64x2_shuffle::<1, 1>(four, four));
        f32x4_extract_lane::<0>(two) + f32x4_extract_lane::<1>(two)
    }
    #[inline(always)]
    fn reduce_max(self, a: Self::V) -> f32 {
        // Never NaN unless all lanes are.
        let four = f32x4_pmax(a[0], a[1]);
        let two = f32x4_pmax(four, i64x2_shuffle::<1, 1>(four, four));
        f32x4_extract_lane::<0>(two).max(f32x4_extract_lane::<1>(two))
    }
    #[inline(always)]
    fn greater(self, a: Self::V, b: Self::V) -> u32 {
        let [low, high] = halves!(f32x4_gt(a, b));
        u32::from(i32x4_bitmask(low)) | u32::from(i32x4_bitmask(high)) << 4
    }
    #[inline(always)]
    fn select(self, bits: u32, yes: Self::V, no: Self::V) -> Self::V {
        let lanes = [lanes_of(bits), lanes_of(bits >> 4)];
        halves!(v128_bitselect(yes, no, lanes))
    }
    #[inline(always)]
    fn split_floor(self, a: Self::V) -> (Self::V, Self::V) {
        let a = halves!(clamped(a));
        let floor = halves!(f32x4_floor(a));
        (floor, self.sub(a, floor))
    }
    #[inline(always)]
    fn scale_exponent(self, p: Self::V, y: Self::V) -> Self::V {
        let power = halves!(power(y));
        self.mul(p, power)
    }
    #[inline(always)]
    fn hash_at_least(self, rows: &[u32], key: u32, threshold: u32) -> u32 {
        let rows = &rows[..LANES];
        // SAFETY: the slice has been cut to 8 numbers.
        let rows = unsafe { self.load_from(rows.as_ptr().cast()) };
        let (key, threshold) = ([u32x4_splat(key); 2], [u32x4_splat(threshold); 2]);
        let keyed = halves!(v128_xor(rows, key));
        let hash = halves!(mixed(keyed));
        let [low, high] = halves!(u32x4_ge(hash, threshold));
        u32::from(i32x4_bitmask(low)) | u32::from(i32x4_bitmask(high)) << 4
    }
    #[inline(always)]
    unsafe fn load_from(self, from: *const f32) -> Self::V {
        // SAFETY: the caller vouches for the memory.
        unsafe { [v128_load(from.cast()), v128_load(from.add(4).cast())] }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const half::bf16) -> Self::V {
        // SAFETY: the caller vouches for the memory. A bf16 is the upper half of an f32.
        let x = unsafe { v128_load(from.cast()) };
        let [low, high] = [u32x4_extend_low_u16x8(x), u32x4_extend_high_u16x8(x)];
        [u32x4_shl(low, 16), u32x4_shl(high, 16)]
    }
    #[inline(always)]
    unsafe fn load_i8(self, from: *const i8) -> Self::V {
        // SAFETY: the caller vouches for the memory.
        let x = unsafe { i16x8_load_extend_i8x8(from) };
        let whole = [i32x4_extend_low_i16x8(x), i32x4_extend_high_i16x8(x)];
        halves!(f32x4_convert_i32x4(whole))
    }
    #[inline(always)]
    unsafe fn load_bf16_interleaved(self, from: *const half::bf16) -> [Self::V; 2] {
        // SAFETY: the caller vouches for the memory.
        let words = unsafe { self.load_from(from.cast()) };
        let upper = [u32x4_splat(0xFFFF_0000); 2];
        [
            [u32x4_shl(words[0], 16), u32x4_shl(words[1], 16)],
            halves!(v128_and(words, upper)),
        ]
    }
    #[inline(always)]
    unsafe fn load_f16(self, from: *const half::f16) -> Self::V {
        // SAFETY: the caller vouches for the memory.
        from_lanes(unsafe { Portable.load_f16(from) })
    }
    #[inline(always)]
    unsafe fn store_to(self, to: *mut f32, v: Self::V) {
        // SAFETY: the caller vouches for the memory.
        unsafe {
            v128_store(to.cast(), v[0]);
            v128_store(to.add(4).cast(), v[1]);
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
            // SAFETY: the caller vouches for 8 rows of 8 numbers, of which this is a quarter.
            let [a, b, c, d] = [0, 1, 2, 3]
                .map(|i| unsafe { v128_load(from.add((row + i) * from_stride + column).cast()) });
            let (low, high) = (
                [
                    i32x4_shuffle::<0, 4, 1, 5>(a, b),
                    i32x4_shuffle::<0, 4, 1, 5>(c, d),
                ],
                [
                    i32x4_shuffle::<2, 6, 3, 7>(a, b),
                    i32x4_shuffle::<2, 6, 3, 7>(c, d),
                ],
            );
            let turned = [
                i64x2_shuffle::<0, 2>(low[0], low[1]),
                i64x2_shuffle::<1, 3>(low[0], low[1]),
                i64x2_shuffle::<0, 2>(high[0], high[1]),
                i64x2_shuffle::<1, 3>(high[0], high[1]),
            ];
            for (j, line) in turned.into_iter().enumerate() {
                // SAFETY: as above, on the other side.
                unsafe { v128_store(to.add((column + j) * to_stride + row).cast(), line) };
            }
        }
    }
    #[inline(always)]
    fn prefetch(self, _: *const f32, _: bool) {}
    #[inline(always)]
    fn prefetch_near(self, _: *const f32) {}
    #[inline(never)]
    fn outline<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.call(self)
    }
}
