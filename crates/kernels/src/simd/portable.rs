//! The vector unit for any machine: eight lanes as an array.

use super::{Kernel, Simd};

/// Eight lanes in plain Rust; the compiler turns the loops into whatever instructions the target
/// has.
#[derive(Clone, Copy)]
pub(super) struct Portable;

const LANES: usize = 8;

#[inline(always)]
fn zip(a: [f32; LANES], b: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

impl Simd for Portable {
    type V = [f32; LANES];
    const LANES: usize = LANES;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; LANES]
    }
    #[inline(always)]
    fn load_partial(self, from: &[f32]) -> Self::V {
        let mut lanes = [0.0; LANES];
        for (lane, &x) in lanes.iter_mut().zip(from) {
            *lane = x;
        }
        lanes
    }
    #[inline(always)]
    fn store_partial(self, to: &mut [f32], v: Self::V) {
        for (x, &lane) in to.iter_mut().zip(&v) {
            *x = lane;
        }
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // `f32::mul_add` is a library call where the target has no such instruction.
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    fn fnma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        std::array::from_fn(|i| c[i] - a[i] * b[i])
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn sqrt(self, a: Self::V) -> Self::V {
        a.map(f32::sqrt)
    }
    #[inline(always)]
    fn quick_div(self, a: Self::V, b: Self::V) -> Self::V {
        self.div(a, b)
    }
    #[inline(always)]
    fn abs(self, a: Self::V) -> Self::V {
        a.map(f32::abs)
    }
    #[inline(always)]
    fn with_sign(self, magnitude: Self::V, sign: Self::V) -> Self::V {
        zip(magnitude, sign, f32::copysign)
    }
    #[inline(always)]
    fn exp2_biased(self, a: Self::V) -> Self::V {
        a.map(|x| f32::from_bits((x.to_bits() << 23).wrapping_add(127 << 23)))
    }
    #[inline(always)]
    fn reduce_add(self, a: Self::V) -> f32 {
        ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]))
    }
    #[inline(always)]
    fn reduce_max(self, a: Self::V) -> f32 {
        a.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
    #[inline(always)]
    fn greater(self, a: Self::V, b: Self::V) -> u32 {
        (0..LANES).fold(0, |bits, i| bits | u32::from(a[i] > b[i]) << i)
    }
    #[inline(always)]
    fn select(self, bits: u32, yes: Self::V, no: Self::V) -> Self::V {
        std::array::from_fn(|i| if bits >> i & 1 == 1 { yes[i] } else { no[i] })
    }
    #[inline(always)]
    fn split_floor(self, a: Self::V) -> (Self::V, Self::V) {
        let floor = a.map(|a| a.clamp(-127.0, 127.0).floor());
        (
            floor,
            zip(a, floor, |a, floor| a.clamp(-127.0, 127.0) - floor),
        )
    }
    #[inline(always)]
    fn scale_exponent(self, p: Self::V, y: Self::V) -> Self::V {
        // 2^-127 comes out as 0.
        zip(p, y, |p, y| {
            p * f32::from_bits(((y as i32 + 127) as u32) << 23)
        })
    }
    #[inline(always)]
    fn hash_at_least(self, rows: &[u32], key: u32, threshold: u32) -> u32 {
        let rows = &rows[..LANES];
        (0..LANES).fold(0, |bits, i| {
            bits | u32::from(crate::problem::mix(rows[i] ^ key) >= threshold) << i
        })
    }
    #[inline(always)]
    unsafe fn load_from(self, from: *const f32) -> Self::V {
        // SAFETY: the caller vouches for the memory.
        unsafe { from.cast::<[f32; LANES]>().read() }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const half::bf16) -> Self::V {
        // SAFETY: the caller vouches for the memory.
        unsafe {
            from.cast::<[half::bf16; LANES]>()
                .read()
                .map(half::bf16::to_f32)
        }
    }
    #[inline(always)]
    unsafe fn load_i8(self, from: *const i8) -> Self::V {
        // SAFETY: the caller vouches for the memory.
        unsafe { from.cast::<[i8; LANES]>().read().map(f32::from) }
    }
    #[inline(always)]
    unsafe fn load_bf16_interleaved(self, from: *const half::bf16) -> [Self::V; 2] {
        // SAFETY: the caller vouches for the memory.
        let pairs = unsafe { from.cast::<[[half::bf16; 2]; LANES]>().read() };
        [0, 1].map(|half| pairs.map(|pair| pair[half].to_f32()))
    }
    #[inline(always)]
    unsafe fn load_f16(self, from: *const half::f16) -> Self::V {
        // SAFETY: the caller vouches for the memory.
        unsafe {
            from.cast::<[half::f16; LANES]>()
                .read()
                .map(half::f16::to_f32)
        }
    }
    #[inline(always)]
    unsafe fn store_to(self, to: *mut f32, v: Self::V) {
        // SAFETY: the caller vouches for the memory.
        unsafe { to.cast::<[f32; LANES]>().write(v) }
    }
    #[inline(always)]
    unsafe fn transpose(
        self,
        from: *const f32,
        from_stride: usize,
        to: *mut f32,
        to_stride: usize,
    ) {
        for i in 0..LANES {
            for j in 0..LANES {
                // SAFETY: the caller vouches for LANES rows of LANES numbers on both sides.
                unsafe { *to.add(j * to_stride + i) = *from.add(i * from_stride + j) };
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
