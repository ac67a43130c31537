//! One small vector of `f32`, its implementations for several instruction sets, and the choice between them at run time.
//!
//! A kernel is written once, generic over `Simd`, as a `Kernel`; `run` compiles it for every
//! instruction set and calls the version for the best one that the machine has:
//!
//! | [`Level`] | lanes | needs |
//! |---|---|---|
//! | `Avx512` | 16 | x86-64 with AVX-512F and AVX-512DQ |
//! | `Avx2` | 8 | x86-64 with AVX2, FMA and F16C |
//! | `Neon` | 8, in two registers | AArch64 |
//! | `Simd128` | 8, in two registers | WebAssembly, compiled with `-C target-feature=+simd128`: then the only level |
//! | `Scalar` | 8, as plain loops the compiler may vectorise | nothing |
//!
//! The environment variable `REGARD_SIMD` (`avx512`, `avx2`, `neon` or `scalar`), read once, asks for a
//! lower level than the best one available; a level that the machine lacks is never chosen. Levels differ in the last
//! bits of a result (the number of lanes decides the order of summation; `Scalar` has no fused multiply-add); within one
//! level every result is reproducible.

mod bits;
mod buffer;
mod math;
mod portable;
mod zip;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_feature = "simd128")]
mod simd128;

use std::sync::OnceLock;

pub(crate) use bits::column_bits;
pub(crate) use buffer::{Buffer, cleared, fresh};
pub(crate) use math::{exp, exp2, sigmoid, split_ln, tanh, tanh_small};
pub use math::{exp_in_place, sigmoid_in_place, tanh_in_place};
pub(crate) use zip::{axpy, dot, max, scale, sum, sum_f64, sum_of_squares, zip_map};

/// An instruction set that the kernels are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Plain Rust loops, on any machine.
    Scalar,
    /// WebAssembly's vectors, 8 lanes in two registers.
    Simd128,
    /// NEON, 8 lanes in two registers.
    Neon,
    /// AVX2, FMA and F16C, 8 lanes.
    Avx2,
    /// AVX-512F and DQ, 16 lanes.
    Avx512,
}

impl Level {
    /// Those that `REGARD_SIMD` may name, whether this machine has them or not.
    pub const NAMED: [Self; 4] = [Self::Scalar, Self::Neon, Self::Avx2, Self::Avx512];

    /// Its name: `scalar`, `simd128`, `neon`, `avx2` or `avx512`.
    pub fn name(self) -> &'static str {
        match self {
            Level::Scalar => "scalar",
            Level::Simd128 => "simd128",
            Level::Neon => "neon",
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512",
        }
    }

    /// Whether this machine multiplies pairs of bfloat16 in one instruction at this level (AVX512-BF16). Then factors of products with
    /// bfloat16 are rounded to bfloat16; elsewhere such numbers are widened, and results differ.
    pub fn has_pairs(self) -> bool {
        struct Asked;
        impl Kernel for Asked {
            type Output = bool;
            #[inline(always)]
            fn call<S: Simd>(self, s: S) -> bool {
                s.has_pairs()
            }
        }
        run(self, Asked)
    }

    /// The levels that this machine can run, lowest first.
    ///
    /// ```
    /// use regard_kernels::simd::Level;
    /// assert_eq!(Level::available()[0], Level::Scalar);
    /// ```
    pub fn available() -> &'static [Level] {
        #[cfg(target_arch = "aarch64")]
        const ALL: [Level; 2] = [Level::Scalar, Level::Neon];
        #[cfg(target_feature = "simd128")]
        const ALL: [Level; 1] = [Level::Simd128];
        #[cfg(not(any(target_arch = "aarch64", target_feature = "simd128")))]
        const ALL: [Level; 3] = [Level::Scalar, Level::Avx2, Level::Avx512];
        static COUNT: OnceLock<usize> = OnceLock::new();
        &ALL[..*COUNT.get_or_init(detected_count)]
    }

    /// The level that every kernel of this process runs on: the highest one available, or the one
    /// that `REGARD_SIMD` names if that is available. An unknown name changes nothing.
    pub fn current() -> Level {
        static CURRENT: OnceLock<Level> = OnceLock::new();
        *CURRENT.get_or_init(|| {
            let best = Level::available()[Level::available().len() - 1];
            let asked = std::env::var("REGARD_SIMD").unwrap_or_default();
            let asked = Level::NAMED.into_iter().find(|level| level.name() == asked);
            let asked = asked.unwrap_or(best);
            let highest = Level::available()
                .iter()
                .rev()
                .find(|&&level| level <= asked);
            highest.copied().unwrap_or(best)
        })
    }
}

#[cfg(target_arch = "x86_64")]
fn detected_count() -> usize {
    let avx2 = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    match (
        avx2,
        avx2 && is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512dq"),
    ) {
        (_, true) => 3,
        (true, false) => 2,
        (false, _) => 1,
    }
}

#[cfg(target_arch = "aarch64")]
fn detected_count() -> usize {
    1 + usize::from(std::arch::is_aarch64_feature_detected!("neon"))
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn detected_count() -> usize {
    1
}

/// A vector unit: the operations that the kernels are written in.
///
/// A value of an implementing type is the proof that the machine has its instructions, so every
/// method is safe to call. All slices are bounds-checked.
pub(crate) trait Simd: Copy + Send + Sync {
    /// A register of [`Self::LANES`] numbers.
    type V: Copy;
    /// Numbers in a register.
    const LANES: usize;

    /// The same number in every lane.
    fn splat(self, x: f32) -> Self::V;
    /// The first `LANES` numbers of `from`. Panics if there are fewer.
    #[inline(always)]
    fn load(self, from: &[f32]) -> Self::V {
        let from = &from[..Self::LANES];
        // SAFETY: the slice has been cut to `LANES` numbers.
        unsafe { self.load_from(from.as_ptr()) }
    }
    /// As many numbers as `from` has, at most `LANES`; zeros in the remaining lanes.
    fn load_partial(self, from: &[f32]) -> Self::V;
    /// Writes the first `LANES` numbers of `to`. Panics if there are fewer.
    #[inline(always)]
    fn store(self, to: &mut [f32], v: Self::V) {
        let to = &mut to[..Self::LANES];
        // SAFETY: the slice has been cut to `LANES` numbers.
        unsafe { self.store_to(to.as_mut_ptr(), v) }
    }
    /// Writes as many numbers as `to` has, at most `LANES`.
    fn store_partial(self, to: &mut [f32], v: Self::V);

    /// `a + b`
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a - b`
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b`
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a / b`
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, fused where the machine can.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `c - a * b`, fused where the machine can.
    fn fnma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The smaller one; `b` where either is NaN.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// The larger one; `b` where either is NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// `√a`
    fn sqrt(self, a: Self::V) -> Self::V;
    /// `a / b` to within 1 unit in the last place, for `b` in `[2⁻¹²⁶, 2¹²⁶]` and a quotient that is
    /// a normal number or 0; where that is no faster, the exact division.
    fn quick_div(self, a: Self::V, b: Self::V) -> Self::V;
    /// The magnitude.
    fn abs(self, a: Self::V) -> Self::V;
    /// `magnitude`, which is not negative, with the sign of `sign`.
    fn with_sign(self, magnitude: Self::V, sign: Self::V) -> Self::V;
    /// `2ⁿ` where `a = n + 1.5·2²³`, for whole `n` in `[-126, 127]`.
    fn exp2_biased(self, a: Self::V) -> Self::V;
    /// The sum over lanes, in pairs.
    fn reduce_add(self, a: Self::V) -> f32;
    /// [`Self::reduce_add`] of each, perhaps in another order; several at once cost less than one by one.
    #[inline(always)]
    fn reduce_add_each<const N: usize>(self, a: [Self::V; N]) -> [f32; N] {
        std::array::from_fn(|i| self.reduce_add(a[i]))
    }
    /// The largest lane; NaN lanes may be ignored.
    fn reduce_max(self, a: Self::V) -> f32;

    /// Bit `i` is set where lane `i` of `a` is greater than that of `b`; never for NaN.
    fn greater(self, a: Self::V, b: Self::V) -> u32;
    /// Lane `i` of `yes` where bit `i` is set, else of `no`.
    fn select(self, bits: u32, yes: Self::V, no: Self::V) -> Self::V;
    /// `(y, a - ⌊a⌋)`, where `y` is what [`Self::scale_exponent`] needs of `a`; the second is 0 for infinite `a`.
    fn split_floor(self, a: Self::V) -> (Self::V, Self::V);
    /// `p · 2^⌊a⌋` for `p` in `[1, 2]` and the `y` of `a`. Results below the normal numbers may be 0, and
    /// those above 2^127 may be 2^127.
    fn scale_exponent(self, p: Self::V, y: Self::V) -> Self::V;
    /// Bit `i` is set where `mix(rows[i] ^ key) >= threshold`: the hash of dropout.
    fn hash_at_least(self, rows: &[u32], key: u32, threshold: u32) -> u32;

    /// `LANES` numbers from `from` on.
    ///
    /// # Safety
    /// They can be read.
    unsafe fn load_from(self, from: *const f32) -> Self::V;
    /// `LANES / 2` numbers from `low` on, and as many from `high` on.
    ///
    /// # Safety
    /// They can be read.
    #[inline(always)]
    unsafe fn load_halves(self, low: *const f32, high: *const f32) -> Self::V {
        let half = Self::LANES / 2;
        let mut both = [0.0; 16];
        // SAFETY: the caller vouches for the memory; no unit has more than 16 lanes.
        unsafe {
            both.as_mut_ptr().copy_from_nonoverlapping(low, half);
            both.as_mut_ptr()
                .add(half)
                .copy_from_nonoverlapping(high, half);
        }
        self.load(&both)
    }
    /// `LANES` numbers of bfloat16 from `from` on.
    ///
    /// # Safety
    /// They can be read.
    unsafe fn load_bf16(self, from: *const half::bf16) -> Self::V;
    /// `2 LANES` numbers of bfloat16 from `from` on: the even-numbered ones in one vector, the odd-numbered ones in the
    /// other. Both come from one vector of 32-bit words, without a step that moves numbers between lanes.
    ///
    /// # Safety
    /// They can be read.
    unsafe fn load_bf16_interleaved(self, from: *const half::bf16) -> [Self::V; 2];
    /// `LANES` numbers of IEEE half precision from `from` on.
    ///
    /// # Safety
    /// They can be read.
    unsafe fn load_f16(self, from: *const half::f16) -> Self::V;
    /// `LANES` whole numbers of 8 bits from `from` on.
    ///
    /// # Safety
    /// They can be read.
    unsafe fn load_i8(self, from: *const i8) -> Self::V;
    /// Writes `LANES` numbers from `to` on.
    ///
    /// # Safety
    /// They can be written.
    unsafe fn store_to(self, to: *mut f32, v: Self::V);
    /// Transposes a square: number `j` of row `i` at `from` becomes number `i` of row `j` at `to`, for `i, j < LANES`;
    /// rows are `from_stride` and `to_stride` apart.
    ///
    /// # Safety
    /// Every row has `LANES` numbers that can be read or written.
    unsafe fn transpose(self, from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize);
    /// Prefetches the cache line at `at`, to be read or (`write`) written soon. Any address will do.
    fn prefetch(self, at: *const f32, write: bool);
    /// Prefetches a line into the L1 cache, to be read very soon.
    fn prefetch_near(self, at: *const f32);
    /// Runs `kernel` on this vector unit, compiled as a function of its own, so that registers are allocated for it
    /// alone.
    fn outline<K: Kernel>(self, kernel: K) -> K::Output;

    /// Whether [`Self::dot_pairs`] is one instruction.
    #[inline(always)]
    fn has_pairs(self) -> bool {
        false
    }
    /// `c + Σ a b` over the two bfloat16 numbers that each lane of `a` and `b` holds, the first in the
    /// lower half.
    ///
    /// # Safety
    /// Inside a kernel that [`Self::outline_pairs`] runs.
    #[inline(always)]
    unsafe fn dot_pairs(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        let mut lanes = [[0.0f32; 16]; 3];
        for (lanes, x) in lanes.iter_mut().zip([a, b, c]) {
            self.store(lanes, x);
        }
        let [a, b, mut c] = lanes;
        for (c, (a, b)) in c.iter_mut().zip(a.iter().zip(&b)) {
            let (a, b) = (a.to_bits(), b.to_bits());
            let halves = |x: u32| (f32::from_bits(x << 16), f32::from_bits(x & 0xFFFF_0000));
            let ((a0, a1), (b0, b1)) = (halves(a), halves(b));
            *c += a0 * b0 + a1 * b1;
        }
        self.load(&c)
    }
    /// Numbers rounded to bfloat16, `low` in the lower half of each lane.
    ///
    /// # Safety
    /// Inside a kernel that [`Self::outline_pairs`] runs.
    #[inline(always)]
    unsafe fn pack_pairs(self, low: Self::V, high: Self::V) -> Self::V {
        let (mut a, mut b) = ([0.0f32; 16], [0.0f32; 16]);
        self.store(&mut a, low);
        self.store(&mut b, high);
        for (a, b) in a.iter_mut().zip(b) {
            let bits = |x| u32::from(half::bf16::from_f32(x).to_bits());
            *a = f32::from_bits(bits(*a) | bits(b) << 16);
        }
        self.load(&a)
    }
    /// [`Self::outline`] for a kernel that uses pairs.
    ///
    /// # Safety
    /// [`Self::has_pairs`] is true, or the implementation keeps the trait's own methods for pairs.
    #[inline(always)]
    unsafe fn outline_pairs<K: Kernel>(self, kernel: K) -> K::Output {
        self.outline(kernel)
    }

    /// Returns `row`, and makes sure that it is computed before anything after this call is loaded. A micro-kernel whose
    /// accumulators, line and factor fill all 16 registers of a machine calls this after each row: otherwise the compiler
    /// loads the next factor early and keeps an accumulator in memory, and each of its additions then waits for a store
    /// and a load (54 against 119 GFLOP/s on a Zen 5 with AVX2). Does nothing where there are more registers.
    #[inline(always)]
    fn before_loads<const N: usize>(self, row: [Self::V; N]) -> [Self::V; N] {
        row
    }

    /// Every lane 0.
    #[inline(always)]
    fn zero(self) -> Self::V {
        self.splat(0.0)
    }
    /// [`Self::load`] where all lanes fit from `at` on, else [`Self::load_partial`].
    #[inline(always)]
    fn load_at(self, from: &[f32], at: usize) -> Self::V {
        let from = &from[at..];
        if from.len() >= Self::LANES {
            self.load(from)
        } else {
            self.load_partial(from)
        }
    }
    /// [`Self::store`] where all lanes fit from `at` on, else [`Self::store_partial`].
    #[inline(always)]
    fn store_at(self, to: &mut [f32], at: usize, v: Self::V) {
        let to = &mut to[at..];
        if to.len() >= Self::LANES {
            self.store(to, v)
        } else {
            self.store_partial(to, v)
        }
    }
}

/// Work that is generic over the vector unit.
pub(crate) trait Kernel {
    /// What it returns.
    type Output;
    /// Does the work. Implementations are `#[inline(always)]`, so that they are compiled inside the
    /// function that enables the instructions.
    fn call<S: Simd>(self, simd: S) -> Self::Output;
}

/// Runs `kernel` on the vector unit of `level`, or of the best available one below it.
#[inline]
pub(crate) fn run<K: Kernel>(level: Level, kernel: K) -> K::Output {
    #[cfg(target_arch = "x86_64")]
    {
        let level = level.min(Level::available()[Level::available().len() - 1]);
        match level {
            // SAFETY: `level` is at most the highest available one, so detection found AVX-512F and DQ.
            Level::Avx512 => return unsafe { avx512::call(kernel) },
            // SAFETY: as above, detection found AVX2, FMA and F16C.
            Level::Avx2 => return unsafe { avx2::call(kernel) },
            Level::Neon | Level::Simd128 | Level::Scalar => {}
        }
    }
    #[cfg(target_arch = "aarch64")]
    if level >= Level::Neon && Level::available().contains(&Level::Neon) {
        // SAFETY: detection found NEON.
        return unsafe { neon::call(kernel) };
    }
    let _ = level;
    // A program for the browser has each kernel once.
    #[cfg(target_feature = "simd128")]
    return kernel.call(simd128::Simd128);
    #[cfg(not(target_feature = "simd128"))]
    kernel.call(portable::Portable)
}

#[cfg(test)]
mod tests;
