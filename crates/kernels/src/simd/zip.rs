//! Loops over slices that the kernels share.
//!
//! ```text
//! | vector | vector | .. | rest |      whole vectors by plain loads and stores; the rest by partial ones, so that a number
//!                                      has the same bits wherever it lies
//! ```

use super::Simd;

/// `out[o][i] = f(in[..][i], out[..][i])[o]` for every position `i`.
///
/// All slices have the length of the first output; shorter ones panic.
#[inline(always)]
pub(crate) fn zip_map<S: Simd, const I: usize, const O: usize>(
    s: S,
    mut inputs: [&[f32]; I],
    mut outputs: [&mut [f32]; O],
    f: impl Fn([S::V; I], [S::V; O]) -> [S::V; O],
) {
    let length = outputs.first().map_or(0, |out| out.len());
    for input in &mut inputs {
        *input = &input[..length];
    }
    for out in &mut outputs {
        assert_eq!(out.len(), length, "outputs of one length");
    }
    let whole = length / S::LANES * S::LANES;
    let mut at = 0;
    while at < whole {
        // Loops, as closures for `array::from_fn` are not always inlined, and then do without the vector unit.
        let (mut from, mut before) = ([s.zero(); I], [s.zero(); O]);
        for (x, input) in from.iter_mut().zip(&inputs) {
            *x = s.load(&input[at..]);
        }
        for (x, out) in before.iter_mut().zip(&outputs) {
            *x = s.load(&out[at..]);
        }
        for (out, x) in outputs.iter_mut().zip(f(from, before)) {
            s.store(&mut out[at..], x);
        }
        at += S::LANES;
    }
    if at < length {
        let (mut from, mut before) = ([s.zero(); I], [s.zero(); O]);
        for (x, input) in from.iter_mut().zip(&inputs) {
            *x = s.load_partial(&input[at..]);
        }
        for (x, out) in before.iter_mut().zip(&outputs) {
            *x = s.load_partial(&out[at..]);
        }
        for (out, x) in outputs.iter_mut().zip(f(from, before)) {
            s.store_partial(&mut out[at..], x);
        }
    }
}

/// `Σ a_i b_i`
#[inline(always)]
pub(crate) fn dot<S: Simd>(s: S, a: &[f32], b: &[f32]) -> f32 {
    let length = a.len();
    let b = &b[..length];
    let mut sums = [s.zero(); 4];
    let mut at = 0;
    while at + 4 * S::LANES <= length {
        for (k, sum) in sums.iter_mut().enumerate() {
            let from = at + k * S::LANES;
            *sum = s.fma(s.load(&a[from..]), s.load(&b[from..]), *sum);
        }
        at += 4 * S::LANES;
    }
    while at < length {
        sums[0] = s.fma(s.load_at(a, at), s.load_at(b, at), sums[0]);
        at += S::LANES;
    }
    s.reduce_add(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])))
}

/// `y_i += factor · x_i`
#[inline(always)]
pub(crate) fn axpy<S: Simd>(s: S, factor: f32, x: &[f32], y: &mut [f32]) {
    let factor = s.splat(factor);
    zip_map(s, [x], [y], |[x], [y]| [s.fma(factor, x, y)]);
}

/// `x_i *= factor`
#[inline(always)]
pub(crate) fn scale<S: Simd>(s: S, factor: f32, x: &mut [f32]) {
    let factor = s.splat(factor);
    zip_map(s, [], [x], |[], [x]| [s.mul(factor, x)]);
}

/// The largest number; `-∞` if there is none.
#[inline(always)]
pub(crate) fn max<S: Simd>(s: S, x: &[f32]) -> f32 {
    let mut largest = [s.splat(f32::NEG_INFINITY); 4];
    let mut chunks = x.chunks_exact(4 * S::LANES);
    for chunk in &mut chunks {
        for (k, largest) in largest.iter_mut().enumerate() {
            *largest = s.max(s.load(&chunk[k * S::LANES..]), *largest);
        }
    }
    let vector = s.max(s.max(largest[0], largest[1]), s.max(largest[2], largest[3]));
    chunks
        .remainder()
        .iter()
        .copied()
        .fold(s.reduce_max(vector), f32::max)
}

/// `Σ x`, as [`sum_f64`]; all in `f64` where a block is beyond the largest `f32`.
#[inline(always)]
pub(crate) fn sum<S: Simd>(s: S, x: &[f32]) -> f64 {
    let sum = sum_f64(
        s,
        x,
        #[inline(always)]
        |x| x,
    );
    if sum.is_finite() {
        sum
    } else {
        all_in_f64(x, |x| x)
    }
}

/// `Σ x²`, as [`sum_f64`]; all in `f64` where a block is beyond the largest `f32`. The squares of numbers below 1.1e-19 lose
/// precision, those of numbers below 2.6e-23 are 0.
#[inline(always)]
pub(crate) fn sum_of_squares<S: Simd>(s: S, x: &[f32]) -> f64 {
    let sum = sum_f64(
        s,
        x,
        #[inline(always)]
        |x| s.mul(x, x),
    );
    if sum.is_finite() {
        sum
    } else {
        all_in_f64(x, |x| x * x)
    }
}

#[cold]
#[inline(never)]
fn all_in_f64(x: &[f32], f: fn(f64) -> f64) -> f64 {
    x.iter().map(|&x| f(f64::from(x))).sum()
}

/// The sum of `f` in blocks of `f32`, the blocks added in `f64`.
#[inline(always)]
pub(crate) fn sum_f64<S: Simd>(s: S, x: &[f32], f: impl Fn(S::V) -> S::V) -> f64 {
    const BLOCK: usize = 512;
    let mut total = 0.0;
    for block in x.chunks(BLOCK) {
        let mut sums = [s.zero(); 2];
        let whole = block.len() / (2 * S::LANES) * (2 * S::LANES);
        let mut at = 0;
        while at < whole {
            sums[0] = s.add(sums[0], f(s.load(&block[at..])));
            sums[1] = s.add(sums[1], f(s.load(&block[at + S::LANES..])));
            at += 2 * S::LANES;
        }
        while at < block.len() {
            // `f` of a padding zero must be 0.
            sums[0] = s.add(sums[0], f(s.load_at(block, at)));
            at += S::LANES;
        }
        total += f64::from(s.reduce_add(s.add(sums[0], sums[1])));
    }
    total
}
