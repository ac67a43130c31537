use proptest::prelude::*;

use super::*;
use crate::reference::Real;
use crate::testing::{assert_close, difference, on_every_pool, probe, random, unless_miri, wide};

/// Inputs of a test, in any precision.
struct Inputs<T> {
    x: Vec<T>,
    residual: Vec<T>,
    weight: Vec<T>,
    bias: Vec<T>,
}

impl Inputs<f32> {
    fn wide(&self) -> Inputs<f64> {
        Inputs {
            x: wide(&self.x),
            residual: wide(&self.residual),
            weight: wide(&self.weight),
            bias: wide(&self.bias),
        }
    }
}

/// Batch, channels, positions.
type Sizes = [usize; 3];

/// The definition: `y`, and mean and variance unless they are given.
fn plain<T: Real>(
    [batch, channels, positions]: Sizes,
    inputs: &Inputs<T>,
    relu: bool,
    given: Option<&[[T; 2]]>,
) -> (Vec<T>, Vec<[T; 2]>) {
    let count = T::of((batch * positions) as f64);
    let zero = T::of(0.0);
    let mut y = vec![zero; inputs.x.len()];
    let mut moments = vec![];
    for c in 0..channels {
        let places = || {
            (0..batch)
                .flat_map(move |n| (0..positions).map(move |p| (n * channels + c) * positions + p))
        };
        let [mean, variance] = given.map_or_else(
            || {
                let mean = places().fold(zero, |sum, at| sum + inputs.x[at]) / count;
                let square = |x: T| (x - mean) * (x - mean);
                let squares = places().fold(zero, |sum, at| sum + square(inputs.x[at]));
                [mean, squares / count]
            },
            |given| given[c],
        );
        let root = (variance + T::of(1e-5)).sqrt();
        for at in places() {
            let normal = (inputs.x[at] - mean) / root;
            let value = normal * inputs.weight[c] + inputs.bias[c] + inputs.residual[at];
            y[at] = if relu && value < zero { zero } else { value };
        }
        moments.push([mean, variance]);
    }
    (y, moments)
}

fn check(sizes: Sizes, relu: bool, with_residual: bool, given: bool) {
    let [batch, channels, positions] = sizes;
    let length = batch * channels * positions;
    let inputs = Inputs {
        // A mean far from 0.
        x: random(1, length, 1.0).iter().map(|x| x + 3.0).collect(),
        residual: match with_residual {
            true => random(2, length, 1.0),
            false => vec![0.0; length],
        },
        weight: random(3, channels, 1.0),
        bias: random(4, channels, 1.0),
    };
    let fixed: Vec<[f32; 2]> = (0..channels).map(|c| [2.0 + c as f32, 0.5]).collect();
    let fixed_wide: Vec<[f64; 2]> = fixed.iter().map(|x| x.map(f64::from)).collect();
    let exact = inputs.wide();
    let (truth, moments) = plain(sizes, &exact, relu, given.then_some(&*fixed_wide));
    let (slow, _) = plain(sizes, &inputs, relu, given.then_some(&*fixed));
    let d_y = random(5, length, 1.0);
    let loss = |inputs: &Inputs<f64>| {
        let (y, _) = plain(sizes, inputs, relu, given.then_some(&*fixed_wide));
        probe(&y, &wide(&d_y))
    };
    let norm = BatchNorm {
        batch,
        channels,
        positions,
        weight: &inputs.weight,
        bias: &inputs.bias,
        epsilon: 1e-5,
        relu,
    };
    let name = format!("{sizes:?} relu {relu} residual {with_residual} given {given}");
    for &level in Level::available() {
        let found = on_every_pool(|| {
            let mut y = vec![f32::NAN; length];
            let known = Moments {
                mean: fixed.iter().map(|x| x[0]).collect(),
                variance: fixed.iter().map(|x| x[1]).collect(),
            };
            let residual = with_residual.then_some(&*inputs.residual);
            let known = given.then_some(&known);
            let moments = norm
                .forward_on(level, &inputs.x, residual, known, fresh(&mut y))
                .unwrap();
            let (mut d_x, mut d_residual) = (d_y.clone(), vec![f32::NAN; length]);
            let (mut d_weight, mut d_bias) = (vec![f32::NAN; channels], vec![f32::NAN; channels]);
            let saved = Saved {
                x: &inputs.x,
                y: if relu && with_residual { &y } else { &[] },
                moments: &moments,
                of_batch: !given,
            };
            let mut gradients = Gradients {
                input: &mut d_x,
                residual: with_residual.then_some(&mut *d_residual),
                weight: &mut d_weight,
                bias: &mut d_bias,
            };
            norm.backward_on(level, &saved, &mut gradients).unwrap();
            vec![
                y,
                moments.mean,
                moments.variance,
                d_x,
                d_residual,
                d_weight,
                d_bias,
            ]
        });
        assert_close(&name, &found[0], &slow, &truth, 3.0);
        for (c, [mean, variance]) in moments.iter().enumerate() {
            assert!(
                (f64::from(found[1][c]) - mean).abs() <= 1e-6 * (1.0 + mean.abs()),
                "{name}"
            );
            assert!(
                (f64::from(found[2][c]) - variance).abs() <= 1e-6 * (1.0 + variance),
                "{name}"
            );
        }
        let close = |what: &str, found: f32, truth: f64| {
            let error = (f64::from(found) - truth).abs();
            assert!(
                error <= 2e-4 * (1.0 + truth.abs()),
                "{name} {what}: {found} {truth}"
            );
        };
        for at in (0..length).step_by(1 + length / 7) {
            // A finite difference is no gradient where the ReLU bends.
            if relu && truth[at].abs() < 1e-3 {
                continue;
            }
            let moved = |x: &[f64]| {
                loss(&Inputs {
                    x: x.to_vec(),
                    ..inputs.wide()
                })
            };
            close("x", found[3][at], difference(&exact.x, at, moved));
            if with_residual {
                let moved = |x: &[f64]| {
                    loss(&Inputs {
                        residual: x.to_vec(),
                        ..inputs.wide()
                    })
                };
                close(
                    "residual",
                    found[4][at],
                    difference(&exact.residual, at, moved),
                );
            }
        }
        for (c, (&of_weight, &of_bias)) in found[5].iter().zip(&found[6]).enumerate() {
            let moved = |x: &[f64]| {
                loss(&Inputs {
                    weight: x.to_vec(),
                    ..inputs.wide()
                })
            };
            close("weight", of_weight, difference(&exact.weight, c, moved));
            let moved = |x: &[f64]| {
                loss(&Inputs {
                    bias: x.to_vec(),
                    ..inputs.wide()
                })
            };
            close("bias", of_bias, difference(&exact.bias, c, moved));
        }
    }
}

#[test]
fn passes_are_their_definition() {
    for sizes in unless_miri(
        &[[2, 3, 5], [4, 2, 16], [3, 1, 49], [64, 1, 1]][..],
        &[[2, 1, 3]],
    ) {
        for choice in 0..8 {
            check(*sizes, choice & 1 > 0, choice & 2 > 0, choice & 4 > 0);
        }
    }
}

#[test]
fn many_numbers_have_the_same_bits_on_any_pool() {
    let (batch, channels, positions) = unless_miri((8, 16, 32 * 33), (1, 2, 8));
    let length = batch * channels * positions;
    let (x, d_y) = (random(1, length, 1.0), random(2, length, 1.0));
    let (weight, bias) = (random(3, channels, 1.0), random(4, channels, 1.0));
    let norm = BatchNorm {
        batch,
        channels,
        positions,
        weight: &weight,
        bias: &bias,
        epsilon: 1e-5,
        relu: true,
    };
    on_every_pool(|| {
        let (mut y, mut input) = (vec![0.0; length], d_y.clone());
        let (mut weight, mut bias) = (vec![0.0; channels], vec![0.0; channels]);
        let moments = norm.train(&x, Some(&d_y), &mut y).unwrap();
        let saved = Saved {
            x: &x,
            y: &y,
            moments: &moments,
            of_batch: true,
        };
        let mut gradients = Gradients {
            input: &mut input,
            residual: None,
            weight: &mut weight,
            bias: &mut bias,
        };
        norm.backward(&saved, &mut gradients).unwrap();
        vec![y, input, weight, bias]
    });
}

#[test]
fn no_maps_are_a_batch_and_wrong_lengths_are_refused() {
    let norm = BatchNorm {
        batch: 0,
        channels: 2,
        positions: 4,
        weight: &[1.0; 2],
        bias: &[0.0; 2],
        epsilon: 1e-5,
        relu: false,
    };
    let moments = norm.train(&[], None, &mut []).unwrap();
    assert_eq!(moments.mean, [0.0; 2]);
    let error = norm.train(&[0.0], None, &mut []).unwrap_err();
    assert!(matches!(error, KernelError::Length { argument: "x", .. }));
    let wrong = BatchNorm {
        epsilon: f64::NAN,
        ..norm
    };
    let error = wrong.train(&[], None, &mut []).unwrap_err();
    assert!(matches!(
        error,
        KernelError::Value {
            argument: "epsilon",
            ..
        }
    ));
}

/// Squares and products of a block that are more than an `f32` can hold, of a variance that it can.
#[test]
fn large_numbers_are_normalised() {
    for (large, count) in [(1e19f32, 1000), (1.8e19, 1000), (1.8e19, 20)] {
        let x: Vec<f32> = (0..count)
            .map(|at| if at % 2 == 0 { large } else { -large })
            .collect();
        let norm = BatchNorm {
            batch: 1,
            channels: 1,
            positions: count,
            weight: &[1.0],
            bias: &[0.0],
            epsilon: 0.0,
            relu: false,
        };
        for &level in Level::available() {
            let mut y = vec![f32::NAN; count];
            let moments = norm
                .forward_on(level, &x, None, None, fresh(&mut y))
                .unwrap();
            let variance = f64::from(moments.variance[0]);
            assert!((variance / f64::from(large).powi(2) - 1.0).abs() < 1e-6);
            let right = y.iter().zip(&x).all(|(y, x)| (y - x.signum()).abs() < 1e-6);
            assert!(right, "{level:?} {large} {count}");
            let saved = Saved {
                x: &x,
                y: &[],
                moments: &moments,
                of_batch: true,
            };
            let mut d = x.iter().map(|x| x.signum() * 1e20).collect::<Vec<_>>();
            let (mut weight, mut bias) = ([f32::NAN], [f32::NAN]);
            let mut gradients = Gradients {
                input: &mut d,
                residual: None,
                weight: &mut weight,
                bias: &mut bias,
            };
            norm.backward_on(level, &saved, &mut gradients).unwrap();
            let right = count as f32 * 1e20;
            assert!(
                (weight[0] / right - 1.0).abs() < 1e-6 && bias == [0.0],
                "{weight:?} {bias:?}"
            );
            assert!(
                d.iter().all(|d| d.abs() < 1e-5),
                "{level:?} {large} {count}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(unless_miri(24, 1)))]

    #[test]
    fn any_batch_norm_is_its_definition(
        batch in 1usize..5, channels in 1usize..4, positions in 2usize..40, choice in 0u32..8,
    ) {
        check([batch, channels, positions], choice & 1 > 0, choice & 2 > 0, choice & 4 > 0);
    }
}
