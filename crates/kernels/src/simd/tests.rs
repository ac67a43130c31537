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

/// The largest error in units in the last place of the true result, and the argument at which it occurs.
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

/// Functions that are not public.
struct Apply<'a, F>(&'a mut [f32], F);

trait Function {
    fn at<S: Simd>(&self, s: S, x: S::V) -> S::V;
}

impl<F: Function> Kernel for Apply<'_, F> {
    type Output = ();
    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        for at in (0..self.0.len()).step_by(S::LANES) {
            let x = s.load_at(self.0, at);
            s.store_at(self.0, at, self.1.at(s, x));
        }
    }
}

struct TanhSmall;

impl Function for TanhSmall {
    #[inline(always)]
    fn at<S: Simd>(&self, s: S, x: S::V) -> S::V {
        math::tanh_small(s, x)
    }
}

struct Exp2;

impl Function for Exp2 {
    #[inline(always)]
    fn at<S: Simd>(&self, s: S, x: S::V) -> S::V {
        math::exp2(s, x)
    }
}

struct Ln;

impl Function for Ln {
    #[inline(always)]
    fn at<S: Simd>(&self, s: S, x: S::V) -> S::V {
        let (n, ln_f) = math::split_ln(s, x);
        s.add(s.mul(n, s.splat(std::f32::consts::LN_2)), ln_f)
    }
}

/// The largest error on `[from, to]`, in units in the last place of the true result or of `smallest` where
/// that is larger; and the argument at which it occurs.
fn worst_between<F: Function>(
    level: Level,
    f: F,
    truth: fn(f64) -> f64,
    [from, to, smallest]: [f32; 3],
) -> (f64, f32) {
    const COUNT: usize = 300_000;
    let x: Vec<f32> = (0..=COUNT)
        .map(|i| from + (to - from) * (i as f32 / COUNT as f32))
        .collect();
    let mut y = x.clone();
    run(level, Apply(&mut y, f));
    let mut worst = (0.0, 0.0);
    for (&x, &y) in x.iter().zip(&y) {
        let exact = truth(f64::from(x));
        let nearest = (exact as f32).abs().max(smallest);
        let error = (f64::from(y) - exact).abs() / f64::from(nearest.next_up() - nearest);
        if error > worst.0 || error.is_nan() {
            worst = (error, x);
        }
    }
    worst
}

#[test]
#[cfg_attr(miri, ignore = "large")]
fn polynomials_stay_within_their_stated_error_on_every_level() {
    for &level in Level::available() {
        // The polynomial takes two thirds of the bound; a multiply-add that rounds twice, as on `Scalar` and `Simd128`, adds
        // to it.
        let fused = !matches!(level, Level::Scalar | Level::Simd128);
        let of_exp2 = if fused { 2.5 } else { 2.75 };
        for (name, (error, x), bound) in [
            (
                "tanh of small",
                worst_between(level, TanhSmall, f64::tanh, [-0.625, 0.625, 1e-30]),
                2.0,
            ),
            (
                "exp2",
                worst_between(level, Exp2, f64::exp2, [-125.0, 126.0, 1e-30]),
                of_exp2,
            ),
            (
                "exp2 below 0",
                worst_between(level, Exp2, f64::exp2, [-1.0, 0.0, 1e-30]),
                of_exp2,
            ),
            // Its result is added to numbers of the size of 1.
            (
                "ln",
                worst_between(level, Ln, f64::ln, [0.01, 300.0, 1.0]),
                2.0,
            ),
        ] {
            println!("{level:?} {name}: {error:.3} ulp at {x:e}");
            assert!(error <= bound, "{name} on {level:?}: {error} ulp at {x:e}");
        }
    }
}

/// Below -87 the kernel keeps the value that it has there, 1.65e-38.
fn clamped_sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x.max(-87.0)).exp())
}

#[test]
#[cfg_attr(miri, ignore = "large")]
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
        let mut x = [-87.0, -1000.0];
        math::sigmoid_in_place::at(level, &mut x);
        assert!(x[0] == x[1] && (1.64e-38..1.65e-38).contains(&x[0]));
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
#[cfg_attr(miri, ignore = "large")]
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

struct SumsOfEach;

impl Kernel for SumsOfEach {
    type Output = ();
    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        fn check<S: Simd, const N: usize>(s: S) {
            // Whole numbers, so that every order of summation gives the same bits.
            let number = |i: usize, lane: usize| (i * 37 % 101 + lane * 11 % 17) as f32 - 40.0;
            let mut vectors = [s.zero(); N];
            let mut expected = [0.0; N];
            for i in 0..N {
                let lanes: Vec<f32> = (0..S::LANES).map(|lane| number(i, lane)).collect();
                vectors[i] = s.load(&lanes);
                expected[i] = lanes.iter().sum();
            }
            assert_eq!(
                s.reduce_add_each(vectors),
                expected,
                "{N} of {} lanes",
                S::LANES
            );
        }
        check::<S, 1>(s);
        check::<S, 4>(s);
        check::<S, 8>(s);
        check::<S, 16>(s);
        check::<S, 27>(s);
        check::<S, 32>(s);
    }
}

struct Dealt;

impl Kernel for Dealt {
    type Output = ();
    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        // Does not start on a cache line; infinities and NaN are among the numbers.
        let bits = |i: usize| (i * 2_657 % 65_536) as u16;
        let numbers: Vec<half::bf16> = (0..2 * S::LANES + 1)
            .map(|i| match i {
                3 => half::bf16::NEG_INFINITY,
                4 => half::bf16::NAN,
                _ => half::bf16::from_bits(bits(i)),
            })
            .collect();
        // SAFETY: there are two vectors of numbers behind the first.
        let halves = unsafe { s.load_bf16_interleaved(numbers[1..].as_ptr()) };
        for (half, x) in halves.into_iter().enumerate() {
            let mut lanes = [0.0; 16];
            s.store(&mut lanes, x);
            for (lane, x) in lanes[..S::LANES].iter().enumerate() {
                let expected = numbers[1 + 2 * lane + half].to_f32();
                assert_eq!(x.to_bits(), expected.to_bits(), "{half}, lane {lane}");
            }
        }
    }
}

#[test]
fn sums_of_each_and_interleaved_numbers_on_every_level() {
    for &level in Level::available() {
        run(level, SumsOfEach);
        run(level, Dealt);
    }
}

/// Pairs of bfloat16, made of two vectors each and multiplied.
struct Pairs {
    a: [[f32; 16]; 2],
    b: [[f32; 16]; 2],
    sum: [f32; 16],
}

impl Kernel for Pairs {
    /// The packed `a` and the sums; `None` where a level of 16 lanes has no pairs.
    type Output = Option<([f32; 16], [f32; 16])>;
    #[inline(always)]
    fn call<S: Simd>(self, s: S) -> Self::Output {
        if S::LANES == 16 && !s.has_pairs() {
            return None;
        }
        // SAFETY: the level has pairs, or fewer lanes and the trait's own methods.
        Some(unsafe { s.outline_pairs(PairsInside(self)) })
    }
}

struct PairsInside(Pairs);

impl Kernel for PairsInside {
    type Output = ([f32; 16], [f32; 16]);
    #[inline(always)]
    fn call<S: Simd>(self, s: S) -> Self::Output {
        let (mut packed, mut sums) = ([0.0; 16], [0.0; 16]);
        let pair = |x: &[[f32; 16]; 2]| {
            // SAFETY: inside a kernel that `outline_pairs` runs.
            unsafe { s.pack_pairs(s.load(&x[0]), s.load(&x[1])) }
        };
        let (a, b) = (pair(&self.0.a), pair(&self.0.b));
        s.store(&mut packed, a);
        // SAFETY: as above.
        let sum = unsafe { s.dot_pairs(a, b, s.load(&self.0.sum)) };
        s.store(&mut sums, sum);
        (packed, sums)
    }
}

#[test]
fn pairs_are_rounded_and_multiplied_on_every_level() {
    let mut checked = 0;
    for &level in Level::available() {
        let lanes = if level == Level::Avx512 { 16 } else { 8 };
        // Rounding, including ties: 1 + 2⁻⁸ lies halfway between two numbers of bfloat16.
        let ties = std::array::from_fn(|i| 1.0 + (2 * i + 1) as f32 / 256.0);
        let any =
            |seed: u32| std::array::from_fn(|i| (seed + 77 * i as u32) as f32 * 0.013_7 - 3.0);
        let pairs = Pairs {
            a: [ties, any(5)],
            b: [any(9), ties],
            sum: any(2),
        };
        let expected: [u32; 16] = std::array::from_fn(|i| {
            let [low, high] = pairs.a.map(|x| half::bf16::from_f32(x[i]).to_bits());
            u32::from(low) | u32::from(high) << 16
        });
        if let Some((packed, _)) = run(level, pairs) {
            for i in 0..lanes {
                assert_eq!(packed[i].to_bits(), expected[i], "{level:?}, lane {i}");
                checked += 1;
            }
        }
        // Small whole numbers, so that no order of summation rounds.
        let whole = |of: usize| std::array::from_fn(|i| (i * of % 19) as f32 - 9.0);
        let pairs = Pairs {
            a: [whole(3), whole(5)],
            b: [whole(7), whole(11)],
            sum: whole(13),
        };
        let expected: [f32; 16] = std::array::from_fn(|i| {
            let product = |k: usize| pairs.a[k][i] * pairs.b[k][i];
            pairs.sum[i] + product(0) + product(1)
        });
        if let Some((_, sums)) = run(level, pairs) {
            assert_eq!(sums[..lanes], expected[..lanes], "{level:?}");
        }
    }
    assert!(checked >= 8 * Level::available().len().min(2));
}
