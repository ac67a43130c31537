//! Every level against `f64`, over all magnitudes.

use super::*;

type InPlace = fn(Level, &mut [f32]);

/// A dense sweep: every exponent with many mantissas, both signs, and a fine grid near zero.
fn sweep() -> Vec<f32> {
    let mut all = vec![0.0, -0.0, f32::MIN_POSITIVE, f32::MAX, f32::MIN];
    let mut state = 12345u32;
    for exponent in 0..255u32 {
        for _ in 0..400 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let bits = exponent << 23 | state >> 9;
            all.extend([f32::from_bits(bits), f32::from_bits(bits | 1 << 31)]);
        }
    }
    all.extend((-110_000..110_000).map(|i| i as f32 * 1e-3));
    all
}

/// The largest error in units in the last place of the true result, and where it stands.
fn worst(level: Level, f: InPlace, truth: fn(f64) -> f64, smallest: f32) -> (f64, f32) {
    let x = sweep();
    let mut y = x.clone();
    f(level, &mut y);
    let mut worst = (0.0, 0.0);
    for (&x, &y) in x.iter().zip(&y) {
        let exact = truth(f64::from(x));
        let nearest = exact as f32;
        let error = if nearest.is_infinite() || nearest == 0.0 && y == 0.0 {
            if y == nearest { 0.0 } else { f64::INFINITY }
        } else {
            let unit = f64::from(nearest.abs().max(smallest).next_up())
                - f64::from(nearest.abs().max(smallest));
            (f64::from(y) - exact).abs() / unit
        };
        if error > worst.0 || error.is_nan() {
            worst = (error, x);
        }
    }
    worst
}

/// Below -87 the kernel stays where it is, at 2⁻¹²⁶; `extremes` looks at that part.
fn clamped_sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x.max(-87.0)).exp())
}

#[test]
fn functions_stay_within_their_stated_error_on_every_level() {
    for &level in Level::available() {
        for (name, f, truth, smallest, bound) in [
            (
                "exp",
                math::exp_in_place::at as InPlace,
                f64::exp as fn(f64) -> f64,
                0.0,
                1.0,
            ),
            ("tanh", math::tanh_in_place::at, f64::tanh, 0.0, 2.0),
            (
                "sigmoid",
                math::sigmoid_in_place::at,
                clamped_sigmoid,
                0.0,
                2.5,
            ),
        ] {
            let (error, x) = worst(level, f, truth, smallest);
            println!("{level:?} {name}: {error:.3} ulp at {x:e}");
            assert!(error <= bound, "{name} on {level:?}: {error} ulp at {x:e}");
        }
    }
}

#[test]
fn extremes() {
    for &level in Level::available() {
        let mut x = [f32::NEG_INFINITY, f32::INFINITY, -200.0, 88.7, f32::NAN];
        math::exp_in_place::at(level, &mut x);
        assert_eq!(x[..3], [0.0, f32::INFINITY, 0.0]);
        assert!(x[3].is_finite() && x[4].is_nan());
        let mut x = [f32::NEG_INFINITY, f32::INFINITY, f32::NAN];
        math::tanh_in_place::at(level, &mut x);
        assert_eq!(x[..2], [-1.0, 1.0]);
        assert!(x[2].is_nan());
        let mut x = [f32::NEG_INFINITY, f32::INFINITY, f32::NAN];
        math::sigmoid_in_place::at(level, &mut x);
        assert!(x[0] < f32::MIN_POSITIVE * 2.0 && x[1] == 1.0 && x[2].is_nan());
    }
}

struct Sums<'a>(&'a [f32], &'a [f32]);

impl Kernel for Sums<'_> {
    type Output = (f32, f32, f64);
    #[inline(always)]
    fn call<S: Simd>(self, s: S) -> Self::Output {
        (
            dot(s, self.0, self.1),
            max(s, self.0),
            sum_f64(s, self.0, |x| s.mul(x, x)),
        )
    }
}

#[test]
fn reductions_take_every_length() {
    for &level in Level::available() {
        for length in (0..70).chain([511, 512, 513, 1500]) {
            // Whole numbers, so that every order of summation gives the same bits.
            let a: Vec<f32> = (0..length).map(|i| (i * 7 % 13) as f32 - 6.0).collect();
            let b: Vec<f32> = (0..length).map(|i| (i * 5 % 11) as f32 - 5.0).collect();
            let (product, largest, squares) = run(level, Sums(&a, &b));
            assert_eq!(product, a.iter().zip(&b).map(|(a, b)| a * b).sum::<f32>());
            assert_eq!(largest, a.iter().copied().fold(f32::NEG_INFINITY, f32::max));
            assert_eq!(squares, a.iter().map(|&a| f64::from(a * a)).sum::<f64>());
        }
    }
}
