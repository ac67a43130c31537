//! exp, tanh and sigmoid on vectors.
//!
//! `exp x = 2ⁿ e^r` with `n = round(x / ln 2)`, `|r| ≤ ln 2 / 2`, and
//! `e^r = 1 + r + r² P(r)` with a polynomial of degree 5 (Cephes' coefficients).
//! `tanh x = m / (m + 2)` with `m = e^{2x} - 1`, formed without cancellation as
//! `2ⁿ (r + r² P(r)) + (2ⁿ - 1)`, so small arguments keep their relative precision.
//! `σ(x) = 1 / (1 + e^{-x})`.
//!
//! Largest error against `f64`, over a dense sweep of all magnitudes (units in the last place; the
//! tests assert these): exp 1 (subnormal results: 1 of the smallest subnormal), tanh 2, sigmoid 2.5
//! down to `x = -87`, below which it stays what it is there, 1.65e-38. NaN in, NaN out; `exp(-∞) = 0`,
//! `exp(x) = ∞` above 88.73, `tanh(±∞) = ±1`.
//! The same bounds hold on every level.

use super::{Kernel, Level, Simd, run};

const MAGIC: f32 = 12_582_912.0; // 1.5·2²³: adding it rounds to a whole number
const LOG2_E: f32 = std::f32::consts::LOG2_E;
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;

/// `P(r)` with `e^r ≈ 1 + r + r² P(r)`.
#[inline(always)]
fn tail_polynomial<S: Simd>(s: S, r: S::V) -> S::V {
    let mut p = s.splat(1.987_569_1e-4);
    for coefficient in [
        1.398_199_9e-3,
        8.333_452e-3,
        4.166_579_6e-2,
        1.666_666_5e-1,
        0.5,
    ] {
        p = s.fma(p, r, s.splat(coefficient));
    }
    p
}

/// `x` as `n ln 2 + r`: returns `n + MAGIC` and `e^r - 1`.
#[inline(always)]
fn reduce<S: Simd>(s: S, x: S::V) -> (S::V, S::V) {
    let biased = s.fma(x, s.splat(LOG2_E), s.splat(MAGIC));
    let n = s.sub(biased, s.splat(MAGIC));
    let r = s.fnma(n, s.splat(LN_2_LOW), s.fnma(n, s.splat(LN_2_HIGH), x));
    (biased, s.fma(tail_polynomial(s, r), s.mul(r, r), r))
}

/// `e^x` in every lane.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    let x = s.min(s.splat(89.0), s.max(s.splat(-104.0), x));
    let (biased, minus_one) = reduce(s, x);
    let n = s.sub(biased, s.splat(MAGIC));
    // Two factors, because 2ⁿ itself may lie outside the normal range.
    let half = s.fma(n, s.splat(0.5), s.splat(MAGIC));
    let rest = s.add(s.sub(n, s.sub(half, s.splat(MAGIC))), s.splat(MAGIC));
    let e = s.add(minus_one, s.splat(1.0));
    s.mul(s.mul(e, s.exp2_biased(half)), s.exp2_biased(rest))
}

/// `2^x` in every lane, to within 2.5 units in the last place (2.75 on `Scalar` and `Simd128`, whose multiply-add rounds
/// twice): `2^⌊x⌋` times a polynomial of degree 5 in the rest (largest relative error 8.2e-8 before
/// rounding). 0 for `-∞`, `∞` above 128 (on some machines `2^127` from there on), NaN for NaN; results below
/// the normal numbers may be 0.
#[inline(always)]
pub(crate) fn exp2<S: Simd>(s: S, x: S::V) -> S::V {
    let (x, r) = s.split_floor(x);
    let mut p = s.splat(1.867_131e-3);
    for coefficient in [
        9.017_028e-3,
        5.579_991_5e-2,
        2.401_644_5e-1,
        0.693_151_3,
        1.0,
    ] {
        p = s.fma(p, r, s.splat(coefficient));
    }
    s.scale_exponent(p, x)
}

/// `(n, ln f)` with `x = 2ⁿ f` and `f` in `[√½, √2)`, in every lane, for normal positive `x`; the second
/// to within 1e-7 (Cephes' polynomial). Anything else gives arbitrary numbers.
#[inline(always)]
pub(crate) fn split_ln<S: Simd>(s: S, x: S::V) -> (S::V, S::V) {
    // Split by integers in memory: loops of this form become vector code on every machine.
    let (mut mantissa, mut exponent) = ([0.0f32; 16], [0.0f32; 16]);
    s.store(&mut mantissa, x);
    for i in 0..S::LANES {
        let bits = mantissa[i].to_bits();
        let e = (bits.wrapping_sub(0x3F35_04F3) as i32) >> 23; // mantissa in [√½, √2)
        mantissa[i] = f32::from_bits(bits.wrapping_sub((e as u32) << 23)) - 1.0;
        exponent[i] = e as f32;
    }
    let (f, n) = (s.load(&mantissa), s.load(&exponent));
    let mut p = s.splat(7.037_683_6e-2);
    for coefficient in [
        -1.151_461e-1,
        1.167_699_9e-1,
        -1.242_014_1e-1,
        1.424_932_3e-1,
        -1.666_805_8e-1,
        2.000_071_5e-1,
        -2.499_999_4e-1,
        0.333_333_3,
    ] {
        p = s.fma(p, f, s.splat(coefficient));
    }
    let square = s.mul(f, f);
    let low = s.fnma(s.splat(0.5), square, s.mul(s.mul(p, f), square));
    (n, s.add(f, low))
}

/// `tanh x` in every lane.
#[inline(always)]
pub(crate) fn tanh<S: Simd>(s: S, x: S::V) -> S::V {
    // Computed from the magnitude: for negative numbers the quotient would double the rounding of `m`.
    let magnitude = s.min(s.splat(9.1), s.abs(x));
    let (biased, minus_one) = reduce(s, s.add(magnitude, magnitude));
    let power = s.exp2_biased(biased);
    let m = s.fma(power, minus_one, s.sub(power, s.splat(1.0)));
    s.with_sign(s.quick_div(m, s.add(m, s.splat(2.0))), x)
}

/// `tanh x` in every lane for `|x| ≤ 0.625`, to within 2 units in the last place (Cephes' polynomial).
#[inline(always)]
pub(crate) fn tanh_small<S: Simd>(s: S, x: S::V) -> S::V {
    let square = s.mul(x, x);
    let mut p = s.splat(-5.704_988_7e-3);
    for coefficient in [
        2.063_908_8e-2,
        -5.373_971_6e-2,
        1.333_144_2e-1,
        -0.333_332_8,
    ] {
        p = s.fma(p, square, s.splat(coefficient));
    }
    s.fma(s.mul(p, square), x, x)
}

/// `1 / (1 + e^{-x})` in every lane.
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(s: S, x: S::V) -> S::V {
    let negated = s.min(s.splat(87.0), s.max(s.splat(-87.0), s.sub(s.zero(), x)));
    let (biased, minus_one) = reduce(s, negated);
    let power = s.exp2_biased(biased);
    let e = s.fma(power, minus_one, power);
    s.quick_div(s.splat(1.0), s.add(s.splat(1.0), e))
}

macro_rules! in_place {
    ($(#[$doc:meta])* $name:ident, $kernel:ident, $function:path) => {
        struct $kernel<'a>(&'a mut [f32]);

        impl Kernel for $kernel<'_> {
            type Output = ();
            #[inline(always)]
            fn call<S: Simd>(self, s: S) {
                // A loop in place of a closure: a closure of this size would be compiled without the vector
                // instructions.
                for at in (0..self.0.len()).step_by(S::LANES) {
                    let x = s.load_at(self.0, at);
                    s.store_at(self.0, at, $function(s, x));
                }
            }
        }

        $(#[$doc])*
        pub fn $name(x: &mut [f32]) {
            run(Level::current(), $kernel(x));
        }

        #[cfg(test)]
        pub(super) mod $name {
            pub(in crate::simd) fn at(level: super::Level, x: &mut [f32]) {
                super::run(level, super::$kernel(x));
            }
        }
    };
}

in_place! {
    /// Replaces every `x` by `e^x`, to within 1 unit in the last place, on the calling thread.
    ///
    /// ```
    /// let mut x = [0.0, 1.0, f32::NEG_INFINITY];
    /// regard_kernels::simd::exp_in_place(&mut x);
    /// assert_eq!(x, [1.0, std::f32::consts::E, 0.0]);
    /// ```
    exp_in_place, Exp, exp
}
in_place! {
    /// Replaces every `x` by `tanh x`, to within 2 units in the last place, on the calling thread.
    ///
    /// ```
    /// let mut x = [0.0, 20.0, -20.0];
    /// regard_kernels::simd::tanh_in_place(&mut x);
    /// assert_eq!(x, [0.0, 1.0, -1.0]);
    /// ```
    tanh_in_place, Tanh, tanh
}
in_place! {
    /// Replaces every `x` by `1 / (1 + e^{-x})`, to within 2.5 units in the last place down to -87, on the
    /// calling thread. Below, the result stays what it is there, 1.65e-38.
    ///
    /// ```
    /// let mut x = [0.0, 100.0];
    /// regard_kernels::simd::sigmoid_in_place(&mut x);
    /// assert_eq!(x, [0.5, 1.0]);
    /// ```
    sigmoid_in_place, Sigmoid, sigmoid
}
