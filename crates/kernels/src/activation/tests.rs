use proptest::prelude::*;

use super::*;
use crate::testing::{on_every_pool, random, unless_miri};

pub(crate) const ALL: [Activation; 5] = [
    Activation::Relu,
    Activation::Gelu,
    Activation::GeluTanh,
    Activation::Silu,
    Activation::QuickGelu,
];

/// `Φ(x)` by the integral of the density from 0, in steps of Simpson's rule.
fn normal_below(x: f64) -> f64 {
    let density = |x: f64| (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let steps = 400;
    let h = x / f64::from(steps);
    let term = |i: i32| density(h * f64::from(i)) * if i % 2 == 1 { 4.0 } else { 2.0 };
    let inner: f64 = (1..steps).map(term).sum();
    0.5 + h / 3.0 * (density(0.0) + inner + density(x))
}

/// `φ(x)` in double precision.
pub(crate) fn truth(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Relu => x.max(0.0),
        Activation::Gelu => x * normal_below(x),
        Activation::GeluTanh => {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            0.5 * x * (1.0 + u.tanh())
        }
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::QuickGelu => x / (1.0 + (-1.702 * x).exp()),
    }
}

fn true_slope(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Relu => f64::from(u8::from(x > 0.0)),
        _ => (truth(activation, x + 1e-5) - truth(activation, x - 1e-5)) / 2e-5,
    }
}

/// Values and gradients on every level and pool against plain f64 arithmetic and its finite differences.
fn check(
    activation: Activation,
    gated: bool,
    [rows, width]: [usize; 2],
    with_bias: bool,
    dropped: bool,
) {
    let inputs = if gated { 2 * width } else { width };
    let b = match with_bias {
        true => random(3, inputs, 1.0),
        false => vec![0.0; inputs],
    };
    let spec = Activated {
        activation,
        gated,
        rows,
        width,
        bias: with_bias.then_some(&*b),
        dropout: dropped.then_some(DropoutMask {
            probability: 0.3,
            seed: 77,
            part: None,
        }),
    };
    let x = random(1, rows * inputs, 4.0);
    let d_y = random(2, rows * width, 1.0);
    let mut m = vec![1.0; rows * width];
    if let Some(mask) = &spec.dropout {
        mask.factors(&mut m).unwrap();
    }
    for &level in Level::available() {
        let all = on_every_pool(|| {
            let (mut y, mut d_x) = (vec![f32::NAN; rows * width], vec![f32::NAN; rows * inputs]);
            let (mut d_b, mut in_place) = (vec![f32::NAN; inputs], d_y.clone());
            spec.forward_on(level, &x, fresh(&mut y)).unwrap();
            let d_bias = Some(&mut *d_b);
            spec.backward_on(level, &x, Some(&d_y), &mut d_x, d_bias)
                .unwrap();
            if !gated {
                spec.backward_on(level, &x, None, &mut in_place, None)
                    .unwrap();
                assert_eq!(in_place, d_x);
            }
            vec![y, d_x, d_b]
        });
        for (column, &found) in all[2].iter().enumerate() {
            let of_rows = all[1].iter().skip(column).step_by(inputs);
            let (sum, size) = of_rows.fold((0.0, 0.0), |(sum, size), &x| {
                (sum + f64::from(x), size + f64::from(x.abs()))
            });
            let error = (f64::from(found) - sum).abs();
            assert!(error <= 1e-6 * size, "{activation:?} bias {found} {sum}");
        }
        for row in 0..rows {
            for column in 0..width {
                let (at, of) = (row * inputs + column, row * width + column);
                // As the kernel adds them, so that only what follows is compared.
                let input = |at: usize, column: usize| f64::from(x[at] + b[column]);
                let g = input(at, column);
                let v = if gated {
                    input(at + width, column + width)
                } else {
                    1.0
                };
                let m = f64::from(m[of]);
                let d = m * f64::from(d_y[of]);
                let close = |found: f32, truth: f64, what: &str| {
                    let error = (f64::from(found) - truth).abs();
                    assert!(
                        error <= 3e-6 * (1.0 + truth.abs()),
                        "{activation:?} {what} {g} {found} {truth}"
                    );
                };
                close(all[0][of], m * truth(activation, g) * v, "y");
                close(all[1][at], d * true_slope(activation, g) * v, "slope");
                if gated {
                    close(all[1][at + width], d * truth(activation, g), "value");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(unless_miri(24, 1)))]

    #[test]
    fn values_and_gradients_are_their_definitions(
        which in 0..5usize, gated: bool, rows in 0..5usize, width in 0..300usize, with_bias: bool, dropped: bool,
    ) {
        check(ALL[which], gated, [rows, width], with_bias, dropped);
    }
}

#[test]
fn many_rows_are_split_among_threads() {
    for activation in unless_miri(&ALL[..], &ALL[1..2]) {
        check(
            *activation,
            true,
            unless_miri([70, 400], [3, 20]),
            true,
            true,
        );
    }
}

#[test]
fn far_numbers_have_their_limits() {
    let x = [
        f32::NEG_INFINITY,
        f32::MIN,
        -200.0,
        200.0,
        f32::MAX,
        f32::INFINITY,
    ];
    for activation in ALL {
        let spec = Activated {
            activation,
            gated: false,
            rows: 1,
            width: x.len(),
            bias: None,
            dropout: None,
        };
        let mut y = [f32::NAN; 6];
        spec.forward(&x, &mut y).unwrap();
        for (found, limit) in y[..3].iter().zip([0.0; 3]) {
            assert!((found - limit).abs() < 1e-30, "{activation:?} {found}");
        }
        assert_eq!(y[3..], [200.0, f32::MAX, f32::INFINITY], "{activation:?}");
        let mut d_x = [f32::NAN; 6];
        spec.backward(&x, Some(&[1.0; 6]), &mut d_x, None).unwrap();
        for (found, limit) in d_x.into_iter().zip([0.0, 0.0, 0.0, 1.0, 1.0, 1.0]) {
            assert!((found - limit).abs() < 1e-30, "{activation:?} {found}");
        }
    }
}

#[test]
fn nan_stays_in_its_place() {
    let x = [1.0, f32::NAN, -1.0];
    for activation in ALL {
        let spec = Activated {
            activation,
            gated: false,
            rows: 1,
            width: 3,
            bias: None,
            dropout: None,
        };
        for &level in Level::available() {
            let (mut y, mut d_x) = ([0.0; 3], [0.0; 3]);
            spec.forward_on(level, &x, fresh(&mut y)).unwrap();
            spec.backward_on(level, &x, Some(&[2.0; 3]), &mut d_x, None)
                .unwrap();
            assert_eq!(y.map(f32::is_nan), [false, true, false], "{activation:?}");
            // A ReLU that gives NaN passes its gradient, as PyTorch's does.
            let expected = activation != Activation::Relu;
            assert_eq!(d_x.map(f32::is_nan), [false, expected, false]);
            assert!(expected || d_x == [2.0, 2.0, 0.0], "{d_x:?}");
        }
        let mut in_place = x;
        activation.apply(&mut in_place);
        assert_eq!(in_place.map(f32::is_nan), [false, true, false]);
    }
}

#[test]
fn gelu_keeps_its_relative_error_in_the_tail() {
    // Φ(-x) by Laplace's continued fraction.
    let truth = |x: f64| {
        let density = (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
        let rest = (1..200).rev().fold(x, |rest, k| x + f64::from(k) / rest);
        -x * density / rest
    };
    let x: Vec<f32> = (0..200).map(|i| -3.0 - 0.05 * i as f32).collect();
    let spec = Activated {
        activation: Activation::Gelu,
        gated: false,
        rows: 1,
        width: x.len(),
        bias: None,
        dropout: None,
    };
    for &level in Level::available() {
        let mut y = vec![f32::NAN; x.len()];
        spec.forward_on(level, &x, fresh(&mut y)).unwrap();
        for (&x, &found) in x.iter().zip(&y) {
            let truth = truth(-f64::from(x));
            let error = (f64::from(found) - truth).abs();
            assert!(
                error <= 1e-5 * truth.abs(),
                "{level:?} {x}: {found} {truth}"
            );
        }
    }
}

#[test]
fn extreme_biases_and_rows_of_nothing_are_taken() {
    let bias = [-1e30, f32::MIN, f32::INFINITY, 1.0, 0.0];
    let x = [0.0, f32::MAX, 0.0, f32::from_bits(1), -0.0];
    for activation in ALL {
        let spec = Activated {
            activation,
            gated: false,
            rows: 1,
            width: 5,
            bias: Some(&bias),
            dropout: None,
        };
        let (mut y, mut d, mut d_bias) = ([f32::NAN; 5], [1.0; 5], [f32::NAN; 5]);
        spec.forward(&x, &mut y).unwrap();
        spec.backward(&x, None, &mut d, Some(&mut d_bias)).unwrap();
        assert!(y[0].abs() < 1e-30 && d[0].abs() < 1e-30, "{activation:?}");
        assert_eq!((y[1], y[2], d[2], y[4]), (0.0, f32::INFINITY, 1.0, 0.0));
        assert_eq!(d_bias, d);
        let none = Activated {
            rows: usize::MAX,
            width: 0,
            bias: None,
            ..spec
        };
        none.forward(&[], &mut []).unwrap();
        none.backward(&[], None, &mut [], Some(&mut [])).unwrap();
    }
}

#[test]
fn lengths_and_probabilities_are_checked() {
    let spec = Activated {
        activation: Activation::Gelu,
        gated: true,
        rows: 2,
        width: 3,
        bias: None,
        dropout: None,
    };
    let message = |error: Result<(), KernelError>| error.unwrap_err().to_string();
    assert!(message(spec.forward(&[0.0; 6], &mut [0.0; 6])).contains("x"));
    assert!(message(spec.forward(&[0.0; 12], &mut [0.0; 5])).contains("y"));
    let backward = |d_y, d_bias| message(spec.backward(&[0.0; 12], d_y, &mut [0.0; 12], d_bias));
    let mut short = [0.0; 6];
    assert!(message(spec.backward(&[0.0; 12], Some(&[0.0; 6]), &mut short, None)).contains("d_x"));
    assert!(backward(None, None).contains("y"), "a gate needs it");
    assert!(backward(Some(&[0.0; 6]), Some(&mut short[..5])).contains("d_bias"));
    let bias = Some(&[0.0; 3][..]);
    assert!(message(Activated { bias, ..spec }.forward(&[0.0; 12], &mut short)).contains("bias"));
    let huge = Activated {
        width: usize::MAX,
        ..spec
    };
    assert!(huge.forward(&[], &mut []).is_err());
    let probability = f64::NAN;
    let dropout = Some(DropoutMask {
        probability,
        seed: 0,
        part: None,
    });
    let spec = Activated { dropout, ..spec };
    assert!(message(spec.forward(&[0.0; 12], &mut [0.0; 6])).contains("probability"));
}
