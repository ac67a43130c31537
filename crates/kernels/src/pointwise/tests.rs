use proptest::prelude::*;

use super::*;
use crate::testing::{on_every_pool, random, unless_miri};

const MASK: DropoutMask = DropoutMask {
    probability: 0.3,
    seed: 0x1234_5678_9abc_def0,
    part: None,
};

fn factors(dropout: Option<DropoutMask>, count: usize) -> Vec<f32> {
    let mut factors = vec![1.0; count];
    if let Some(mask) = dropout {
        mask.factors(&mut factors).unwrap();
    }
    factors
}

fn spec<'a>(rows: usize, width: usize, bias: &'a [f32], dropped: bool) -> Pointwise<'a> {
    Pointwise {
        rows,
        width,
        bias: (!bias.is_empty()).then_some(bias),
        dropout: dropped.then_some(MASK),
    }
}

/// Compares every step and gradient, on every level and pool, with one line of plain arithmetic
/// each.
fn check(rows: usize, width: usize, biased: bool, dropped: bool) {
    let count = rows * width;
    let [x, residual, gradient] = [1, 2, 3].map(|seed| random(seed, count, 1.0));
    let bias = random(4, if biased { width } else { 0 }, 1.0);
    let spec = spec(rows, width, &bias, dropped);
    let m = factors(spec.dropout, count);
    let biased_x: Vec<f32> = (0..count)
        .map(|i| x[i] + bias.get(i % width.max(1)).unwrap_or(&0.0))
        .collect();
    for &level in Level::available() {
        let all = on_every_pool(|| {
            let (mut relu, mut linear, mut sum) = (x.clone(), x.clone(), residual.clone());
            spec.forward(level, Step::Relu, &mut relu).unwrap();
            spec.forward(level, Step::Linear, &mut linear).unwrap();
            spec.forward(level, Step::AddTo(&x), &mut sum).unwrap();
            let mut in_place_of_x = x.clone();
            let step = Step::Residual(&residual);
            spec.forward(level, step, &mut in_place_of_x).unwrap();
            assert_eq!(in_place_of_x, sum);
            let (mut d_relu, mut d_linear) = (gradient.clone(), gradient.clone());
            let mut biases = [vec![f32::NAN; width], vec![f32::NAN; width]];
            let [of_relu, of_linear] = &mut biases;
            spec.backward(level, Some(&relu), &mut d_relu, Some(of_relu))
                .unwrap();
            spec.backward(level, None, &mut d_linear, Some(of_linear))
                .unwrap();
            let [of_relu, of_linear] = biases;
            let mut sums = vec![f32::NAN; width];
            spec.column_sums(level, &d_linear, &mut sums).unwrap();
            assert_eq!(sums, of_linear);
            vec![relu, linear, sum, d_relu, d_linear, of_relu, of_linear]
        });
        for i in 0..count {
            assert_eq!(all[0][i], biased_x[i].max(0.0) * m[i]);
            assert_eq!(all[1][i], biased_x[i] * m[i]);
            let sum = f64::from(residual[i]) + f64::from(biased_x[i]) * f64::from(m[i]);
            assert!((f64::from(all[2][i]) - sum).abs() <= 3e-7 * (1.0 + sum.abs()));
            let open = f32::from(biased_x[i] > 0.0);
            assert_eq!(all[3][i], gradient[i] * m[i] * open);
            assert_eq!(all[4][i], gradient[i] * m[i]);
        }
        for (d_bias, d_x) in [(&all[5], &all[3]), (&all[6], &all[4])] {
            for (column, &found) in d_bias.iter().enumerate() {
                let of_rows = d_x.iter().skip(column).step_by(width);
                let sum: f64 = of_rows.clone().map(|&d| f64::from(d)).sum();
                let size: f64 = of_rows.map(|&d| f64::from(d.abs())).sum();
                assert!((f64::from(found) - sum).abs() <= 1e-6 * (size + 0.1));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(unless_miri(24, 1)))]
    #[test]
    fn every_step_is_its_formula(rows in 0usize..40, width in 1usize..unless_miri(600, 40), biased: bool, dropped: bool) {
        check(rows, width, biased, dropped);
    }
}

#[test]
fn residual_sums_of_extremes_have_the_same_bits_in_either_place() {
    let extremes = [
        f32::MAX,
        -1e30,
        f32::NAN,
        f32::INFINITY,
        -0.0,
        1e-45,
        f32::MIN,
    ];
    let pairs = || extremes.iter().flat_map(|&x| extremes.map(|y| (x, y)));
    let (x, residual): (Vec<f32>, Vec<f32>) = pairs().unzip();
    for dropped in [false, true] {
        let spec = spec(extremes.len(), extremes.len(), &extremes, dropped);
        let (mut sum, mut in_place_of_x) = (residual.clone(), x.clone());
        add_to(&spec, &x, &mut sum).unwrap();
        add_residual(&spec, &mut in_place_of_x, &residual).unwrap();
        for (&a, &b) in sum.iter().zip(&in_place_of_x) {
            assert!(a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan());
        }
    }
    for [rows, width] in [[0, usize::MAX], [usize::MAX, 0], [0, 0]] {
        add_residual(&spec(rows, width, &[], true), &mut [], &[]).unwrap();
    }
}

#[test]
fn relu_keeps_nan() {
    let spec = spec(1, 3, &[], false);
    for &level in Level::available() {
        let mut y = [2.0, f32::NAN, -2.0];
        spec.forward(level, Step::Relu, &mut y).unwrap();
        assert!(y[0] == 2.0 && y[1].is_nan() && y[2] == 0.0, "{y:?}");
        let mut gradient = [3.0; 3];
        spec.backward(level, Some(&y), &mut gradient, None).unwrap();
        assert_eq!(gradient, [3.0, 3.0, 0.0]);
    }
}

#[test]
#[cfg_attr(miri, ignore = "large")]
fn large_ones_go_over_the_threads() {
    check(700, 384, true, true);
}

#[test]
#[cfg_attr(miri, ignore = "large")]
fn the_share_and_the_mean_of_factors_are_right() {
    for probability in [0.1, 0.3, 0.5, 0.9] {
        let mask = DropoutMask {
            probability,
            ..MASK
        };
        let factors = factors(Some(mask), 200_000);
        let mean = factors.iter().sum::<f32>() / 200_000.0;
        assert!((mean - 1.0).abs() < 0.03, "{probability}: {mean}");
    }
}

/// A part's factors are those of the whole tensor in its places, on any level and for chunks that begin anywhere.
#[test]
fn a_part_has_the_factors_of_the_whole() {
    let [blocks, batch, inner] = [5, 7, 12];
    let whole = factors(Some(MASK), blocks * batch * inner);
    for (first, rows) in [(0, 7), (0, 3), (3, 4), (6, 1)] {
        let part = Part {
            held: rows * inner,
            of: batch * inner,
            first: first * inner,
        };
        let mask = DropoutMask {
            part: Some(part),
            ..MASK
        };
        let expected: Vec<f32> = (0..blocks)
            .flat_map(|block| &whole[block * part.of + part.first..][..part.held])
            .copied()
            .collect();
        assert_eq!(factors(Some(mask), expected.len()), expected);
        for begin in [1, 11, part.held + 5] {
            let mut some = vec![f32::NAN; (expected.len() - begin).min(30)];
            mask.fill(begin, &mut some);
            assert_eq!(some, expected[begin..begin + some.len()]);
        }
    }
    for part in [[0, 4, 0], [3, 4, 2], [1, 4, usize::MAX]] {
        let [held, of, first] = part;
        let part = Some(Part { held, of, first });
        let refused = DropoutMask { part, ..MASK }.factors(&mut [0.0]);
        assert!(refused.unwrap_err().to_string().contains("dropout.part"));
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let mut x = [1.0, 2.0, 3.0];
    let refused = |spec: Pointwise<'_>, x: &mut [f32]| relu(&spec, x).unwrap_err().to_string();
    let message = refused(spec(2, 2, &[], false), &mut x);
    assert!(
        message.starts_with("`x` holds 3 numbers, expected 4"),
        "{message}"
    );
    let message = refused(spec(1, 3, &[1.0], false), &mut x);
    assert!(
        message.starts_with("`bias` holds 1 numbers, expected 3"),
        "{message}"
    );
    for probability in [1.0, -0.1, f64::NAN] {
        let dropout = Some(DropoutMask {
            probability,
            seed: 1,
            part: None,
        });
        let message = refused(
            Pointwise {
                dropout,
                ..spec(1, 3, &[], false)
            },
            &mut x,
        );
        assert!(message.contains("dropout.probability"), "{message}");
    }
    assert_eq!(x, [1.0, 2.0, 3.0]);
    for refused in [
        add_to(&spec(1, 3, &[], false), &x.clone(), &mut [1.0]),
        add_residual(&spec(1, 3, &[], false), &mut x, &[1.0]),
    ] {
        let message = refused.unwrap_err().to_string();
        assert!(
            message.starts_with("`residual` holds 1 numbers, expected 3"),
            "{message}"
        );
    }
    let error = relu_backward(&spec(1, 3, &[], false), &[1.0], &mut x, None).unwrap_err();
    assert!(
        error.to_string().starts_with("`output` holds 1 numbers"),
        "{error}"
    );
}
