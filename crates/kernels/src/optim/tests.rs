//! Compares many steps with the same formulas in `f64`, one number at a time.

use super::clip::squared_norm_at;
use super::*;
use crate::reference;
use crate::testing::{on_every_pool, random, unless_miri};

/// The last tensor is cut into chunks.
const LENGTHS: [usize; 5] = [0, 1, 59, 256, if cfg!(miri) { 300 } else { 40_000 }];

/// The first numbers of `fast` must follow `slow` over many steps, to the rounding of terms of size
/// 1.
#[track_caller]
fn assert_follows(name: &str, fast: &[f32], slow: impl Iterator<Item = f64>) {
    for (i, (fast, slow)) in fast.iter().zip(slow).enumerate() {
        let allowed = 4.0 * f64::from(f32::EPSILON) * (1.0 + slow.abs());
        assert!(
            (f64::from(*fast) - slow).abs() <= allowed,
            "{name}[{i}]: {fast} {slow}"
        );
    }
}

#[test]
fn adam_and_adamw() {
    for decoupled in [false, true] {
        let adam = Adam {
            learning_rate: 0.01,
            weight_decay: 0.1,
            decoupled,
            gradient_scale: 0.5,
            ..Adam::default()
        };
        for length in LENGTHS {
            for &level in Level::available() {
                let all = on_every_pool(|| {
                    let (mut p, mut m, mut v) =
                        (random(1, length, 1.0), vec![0.0; length], vec![0.0; length]);
                    for step in 1..=5 {
                        let g = random(u64::from(step) + 10, length, 2.0);
                        let tensor = AdamTensor {
                            parameters: &mut p,
                            gradients: &g,
                            first: &mut m,
                            second: &mut v,
                        };
                        adam.step_all_at(level, step, [tensor]).unwrap();
                    }
                    vec![p, m, v]
                });
                let start = random(1, length, 1.0);
                let gradients: Vec<Vec<f32>> =
                    (1..=5).map(|step| random(step + 10, length, 2.0)).collect();
                let slow: Vec<(f64, f64, f64)> = (0..length.min(300))
                    .map(|i| {
                        (1..=5).fold((f64::from(start[i]), 0.0, 0.0), |(p, m, v), step| {
                            let g = f64::from(gradients[step as usize - 1][i]);
                            reference::adam(&adam, step, p, g, (m, v))
                        })
                    })
                    .collect();
                assert_follows("p", &all[0], slow.iter().map(|x| x.0));
                assert_follows("m", &all[1], slow.iter().map(|x| x.1));
                assert_follows("v", &all[2], slow.iter().map(|x| x.2));
            }
        }
    }
}

#[test]
fn all_tensors_at_once_are_one_after_the_other() {
    let lengths = unless_miri([3, 0, 40_000, 16_384, 1], [3, 0, 400, 164, 1]);
    let adam = Adam {
        gradient_scale: 0.25,
        ..Adam::default()
    };
    let start = || lengths.map(|length| random(7, length, 1.0));
    let gradients = lengths.map(|length| random(8, length, 2.0));
    let states =
        || lengths.map(|length| random(9, length, 0.1).into_iter().map(f32::abs).collect());
    let (mut p, mut m, mut v): (_, [Vec<f32>; 5], [Vec<f32>; 5]) = (start(), states(), states());
    for i in 0..lengths.len() {
        adam.step(3, &mut p[i], &gradients[i], &mut m[i], &mut v[i])
            .unwrap();
    }
    let all = on_every_pool(|| {
        let (mut p, mut m, mut v): (_, [Vec<f32>; 5], [Vec<f32>; 5]) =
            (start(), states(), states());
        let states = m.iter_mut().zip(&mut v);
        let tensors = p.iter_mut().zip(&gradients).zip(states);
        let tensors = tensors.map(|((parameters, gradients), (first, second))| AdamTensor {
            parameters,
            gradients,
            first,
            second,
        });
        adam.step_all(3, tensors).unwrap();
        [p, m, v].into_iter().flatten().collect()
    });
    assert_eq!(all, [p, m, v].concat());
}

#[test]
fn a_wrong_tensor_leaves_all_untouched() {
    let (mut p, mut q, mut states) = ([1.0; 2], [1.0; 2], [[0.0; 2]; 4]);
    let [a, b, c, d] = &mut states;
    let tensors = [
        AdamTensor {
            parameters: &mut p,
            gradients: &[1.0; 2],
            first: a,
            second: b,
        },
        AdamTensor {
            parameters: &mut q,
            gradients: &[1.0; 1],
            first: c,
            second: d,
        },
    ];
    let error = Adam::default().step_all(1, tensors).unwrap_err();
    assert!(matches!(
        error,
        KernelError::Length {
            argument: "gradients",
            expected: 2,
            found: 1,
            ..
        }
    ));
    assert_eq!((p, states), ([1.0; 2], [[0.0; 2]; 4]));
}

#[test]
fn adadelta() {
    let rule = Adadelta {
        weight_decay: 0.01,
        gradient_scale: 0.5,
        ..Adadelta::default()
    };
    for length in LENGTHS {
        for &level in Level::available() {
            let all = on_every_pool(|| {
                let (mut p, mut a, mut d) =
                    (random(1, length, 1.0), vec![0.0; length], vec![0.0; length]);
                for step in 1..=5 {
                    let g = random(step + 10, length, 2.0);
                    rule.step_at(level, &mut p, &g, &mut a, &mut d).unwrap();
                }
                vec![p, a, d]
            });
            let start = random(1, length, 1.0);
            let gradients: Vec<Vec<f32>> =
                (1..=5).map(|step| random(step + 10, length, 2.0)).collect();
            let slow = (0..length.min(300)).map(|i| {
                let (mut p, mut a, mut d) = (f64::from(start[i]), 0.0, 0.0);
                for gradients in &gradients {
                    let g = 0.5 * f64::from(gradients[i]) + 0.01 * p;
                    a = 0.95 * a + 0.05 * g * g;
                    let update = (d + 1e-6f64).sqrt() / (a + 1e-6f64).sqrt() * g;
                    d = 0.95 * d + 0.05 * update * update;
                    p -= update;
                }
                p
            });
            assert_follows("p", &all[0], slow);
        }
    }
}

#[test]
fn sgd() {
    for nesterov in [false, true] {
        let rule = Sgd {
            learning_rate: 0.1,
            momentum: 0.9,
            nesterov,
            weight_decay: 0.01,
            gradient_scale: 0.5,
        };
        for &level in Level::available() {
            let length = unless_miri(20_001, 201);
            let all = on_every_pool(|| {
                let (mut p, mut b) = (random(1, length, 1.0), vec![0.0; length]);
                for step in 1..=3 {
                    rule.step_at(level, &mut p, &random(step + 10, length, 2.0), &mut b)
                        .unwrap();
                }
                vec![p, b]
            });
            let start = random(1, length, 1.0);
            let gradients: Vec<Vec<f32>> =
                (1..=3).map(|step| random(step + 10, length, 2.0)).collect();
            let slow = (0..300).map(|i| {
                let (mut p, mut b) = (f64::from(start[i]), 0.0);
                for gradients in &gradients {
                    let g = 0.5 * f64::from(gradients[i]) + 0.01 * p;
                    b = 0.9 * b + g;
                    p -= 0.1 * if nesterov { g + 0.9 * b } else { b };
                }
                p
            });
            assert_follows("p", &all[0], slow);
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "large")]
fn the_norm_is_exact_and_repeatable() {
    let (a, b) = (random(1, 100_003, 1.0), random(2, 17, 3.0));
    let exact: f64 = a
        .iter()
        .chain(&b)
        .map(|&x| f64::from(x) * f64::from(x))
        .sum();
    for &level in Level::available() {
        let bits: Vec<u64> = (1..=3)
            .map(|threads| {
                let pool = rayon::ThreadPoolBuilder::new()
                    .num_threads(threads)
                    .build()
                    .unwrap();
                let norm = pool.install(|| squared_norm_at(level, &[&a, &[], &b]));
                assert!((norm - exact).abs() < 1e-6 * exact);
                norm.to_bits()
            })
            .collect();
        assert!(bits.iter().all(|&x| x == bits[0]));
    }
    assert_eq!(squared_norm(&[]), 0.0);
    assert!(squared_norm(&[&[1.0, f32::NAN]]).is_nan());
    assert!(clip_factor(f64::NAN, 1.0).is_nan());
}

#[test]
fn errors_name_what_is_wrong() {
    let adam = Adam::default();
    let (mut p, mut m, mut v) = ([0.0; 3], [0.0; 3], [0.0; 2]);
    let error = adam.step(1, &mut p, &[0.0; 3], &mut m, &mut v).unwrap_err();
    assert!(matches!(
        error,
        KernelError::Length {
            argument: "second",
            expected: 3,
            found: 2,
            ..
        }
    ));
    let error = adam
        .step(0, &mut p, &[0.0; 3], &mut m, &mut [0.0; 3])
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "`step` is 0, expected a number from 1 on"
    );
    let rule = Sgd {
        momentum: 1.0,
        ..Sgd::default()
    };
    let error = rule.step(&mut p, &[0.0; 3], &mut m).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`momentum` is 1, expected a number from 0 to below 1"
    );
    let rule = Adadelta {
        learning_rate: f64::NAN,
        ..Adadelta::default()
    };
    assert!(rule.step(&mut p, &[0.0; 3], &mut m, &mut [0.0; 3]).is_err());
}

#[test]
fn the_norm_of_extremes_is_that_of_the_numbers() {
    for &level in Level::available() {
        for x in [f32::MAX, -2e19] {
            let square = f64::from(x) * f64::from(x);
            for slices in [&[&[x][..], &[1.0, x, 0.0]][..], &[&[x; 1000]]] {
                let count = slices
                    .iter()
                    .flat_map(|of| *of)
                    .filter(|&&y| y == x)
                    .count();
                let norm = squared_norm_at(level, slices) / square;
                assert!(
                    (norm / count as f64 - 1.0).abs() < 1e-12,
                    "{level:?} {norm}"
                );
            }
        }
        assert_eq!(
            squared_norm_at(level, &[&[f32::NEG_INFINITY, 1.0]]),
            f64::INFINITY
        );
        assert!(squared_norm_at(level, &[&[f32::MAX, f32::NAN]]).is_nan());
    }
}
