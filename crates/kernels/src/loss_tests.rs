//! Against the reference, with poison in ignored rows.

use super::*;
use crate::reference;
use crate::testing::{assert_close, difference, on_every_pool, random, unless_miri, wide};

struct Problem {
    rows: usize,
    classes: usize,
    targets: Vec<i64>,
    smoothing: f32,
    logits: Vec<f32>,
}

const IGNORE: usize = 1_000_000;

impl Problem {
    fn new(rows: usize, classes: usize, smoothing: f32) -> Self {
        let targets: Vec<i64> = (0..rows)
            .map(|row| {
                if row % 3 == 2 {
                    IGNORE as i64
                } else {
                    (row * 31 % classes) as i64
                }
            })
            .collect();
        let mut logits = random(rows as u64, rows * classes, 8.0);
        for (row, target) in targets.iter().enumerate() {
            if *target == IGNORE as i64 {
                logits[row * classes..(row + 1) * classes].fill(f32::NAN);
            }
        }
        Problem {
            rows,
            classes,
            targets,
            smoothing,
            logits,
        }
    }

    fn spec(&self) -> CrossEntropy<'_, i64> {
        CrossEntropy {
            rows: self.rows,
            classes: self.classes,
            targets: &self.targets,
            ignore: Some(IGNORE),
            smoothing: self.smoothing,
        }
    }

    /// Smoothed losses, plain losses and gradients by the reference.
    fn reference<T: reference::Real>(&self) -> [Vec<T>; 3] {
        let zero = T::of(0.0);
        let mut all = [Vec::new(), Vec::new(), Vec::new()];
        for (row, &target) in self.targets.iter().enumerate() {
            let logits: Vec<T> = self.logits[row * self.classes..(row + 1) * self.classes]
                .iter()
                .map(|&x| T::of(f64::from(x)))
                .collect();
            let (smoothed, nll, gradient) = if target == IGNORE as i64 {
                (zero, zero, vec![zero; self.classes])
            } else {
                reference::cross_entropy(&logits, target as usize, T::of(f64::from(self.smoothing)))
            };
            all[0].push(smoothed);
            all[1].push(nll);
            all[2].extend(gradient);
        }
        all
    }
}

#[test]
fn error_is_bounded_by_the_naive_computation() {
    for &level in Level::available() {
        for &classes in unless_miri(&[1, 7, 40, 59, 64, 111, 513, 2000][..], &[1, 20]) {
            for &smoothing in unless_miri(&[0.0, 0.1, 1.0][..], &[0.1]) {
                let problem = Problem::new(8, classes, smoothing);
                let (naive, truth) = (problem.reference::<f32>(), problem.reference::<f64>());
                let all = on_every_pool(|| {
                    let mut rows = vec![[f64::NAN; 2]; 8];
                    let spec = problem.spec();
                    let only = forward_at(level, &spec, &problem.logits, Some(&mut rows)).unwrap();
                    let mut gradient = problem.logits.clone();
                    let mut again = vec![[f64::NAN; 2]; 8];
                    let both =
                        forward_backward_at(level, &spec, &mut gradient, 1.0, Some(&mut again))
                            .unwrap();
                    assert_eq!(both.tokens, 6);
                    assert!((both.nll - only.nll).abs() <= 1e-6 * only.nll.abs());
                    let column = |k: usize| again.iter().map(|row| row[k] as f32).collect();
                    vec![
                        column(0),
                        column(1),
                        gradient,
                        vec![both.smoothed as f32, both.nll as f32],
                    ]
                });
                for (i, name) in ["smoothed", "nll", "gradient"].iter().enumerate() {
                    let factor = if i < 2 { 2.0 } else { 3.0 };
                    let name = format!("{name}, {classes} classes, {smoothing}, {level:?}");
                    assert_close(&name, &all[i], &naive[i], &truth[i], factor);
                }
                let sums: Vec<f64> = truth[..2].iter().map(|x| x.iter().sum()).collect();
                for (sum, expected) in all[3].iter().zip(sums) {
                    assert!((f64::from(*sum) - expected).abs() <= 1e-5 * (1.0 + expected.abs()));
                }
            }
        }
    }
}

#[test]
fn the_gradient_is_scaled() {
    let problem = Problem::new(4, 33, 0.1);
    let (mut plain, mut scaled) = (problem.logits.clone(), problem.logits.clone());
    let a = forward_backward(&problem.spec(), &mut plain, 1.0, None).unwrap();
    let b = forward_backward(&problem.spec(), &mut scaled, 0.25, None).unwrap();
    assert_eq!(a, b, "the losses are not");
    for (plain, scaled) in plain.iter().zip(&scaled) {
        assert!((plain * 0.25 - scaled).abs() <= 1e-7);
    }
    scale(&mut plain, 0.25);
    for (plain, scaled) in plain.iter().zip(&scaled) {
        assert!((plain - scaled).abs() <= 1e-7);
    }
}

#[test]
fn the_reference_passes_finite_differences() {
    let x = wide(&random(3, 9, 4.0));
    let (_, _, gradient) = reference::cross_entropy(&x, 4, 0.2);
    for (index, slope) in gradient.iter().enumerate() {
        let measured = difference(&x, index, |x| reference::cross_entropy(x, 4, 0.2).0);
        assert!((measured - slope).abs() < 1e-8);
    }
}

#[test]
fn huge_logits_give_finite_losses() {
    let mut logits = [1e4, -1e4, 0.0, f32::NEG_INFINITY];
    let spec = CrossEntropy {
        rows: 1,
        classes: 4,
        targets: &[0u32],
        ignore: None,
        smoothing: 0.0,
    };
    let losses = forward_backward(&spec, &mut logits, 1.0, None).unwrap();
    assert_eq!(losses.nll, 0.0);
    assert_eq!(logits, [0.0, 0.0, 0.0, 0.0]);
}

#[test]
fn errors_name_what_is_wrong() {
    let spec = CrossEntropy {
        rows: 2,
        classes: 3,
        targets: &[0i64, -1],
        ignore: None,
        smoothing: 0.0,
    };
    let error = forward(&spec, &[0.0; 6], None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`targets` holds -1 at position 1, expected a class from 0 to below 3"
    );
    let spec = CrossEntropy {
        targets: &[0i64, 2],
        smoothing: 1.5,
        ..spec
    };
    let error = forward(&spec, &[0.0; 6], None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`smoothing` is 1.5, expected a number from 0 to 1"
    );
    let spec = CrossEntropy {
        smoothing: 0.0,
        ..spec
    };
    let mut logits = [1.0; 6];
    let error = forward_backward(&spec, &mut logits, f32::NAN, None).unwrap_err();
    assert!(matches!(
        error,
        KernelError::Value {
            argument: "scale",
            ..
        }
    ));
    assert_eq!(logits, [1.0; 6]);
    let empty = CrossEntropy {
        rows: 0,
        classes: 3,
        targets: &[] as &[i64],
        ..spec
    };
    assert_eq!(forward(&empty, &[], None).unwrap(), Losses::default());
}

/// Beside a large number the logarithm of the sum would be lost.
#[test]
fn log_probabilities_keep_their_precision() {
    let half = -std::f32::consts::LN_2;
    for (logits, expected) in [
        ([1e7, 1e7], [half, half]),
        ([-3e38, -3e38], [half, half]),
        ([100.0, 90.0], [-4.539_889_9e-5, -10.000_045]),
        ([0.0, f32::NEG_INFINITY], [0.0, f32::NEG_INFINITY]),
    ] {
        let mut found = logits;
        log_softmax(&mut found, 2);
        for (x, y) in found.into_iter().zip(expected) {
            assert!(x == y || (x - y).abs() <= 1e-6 * y.abs(), "{found:?}");
        }
    }
}
