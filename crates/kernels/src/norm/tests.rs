//! Compares with the reference in `f64`; the error of the reference in `f32` sets the bound.

use proptest::prelude::*;

use super::*;
use crate::reference::{self, Real};
use crate::testing::{assert_close, difference, on_every_pool, probe, random, unless_miri, wide};

struct Problem {
    kind: Kind,
    rows: usize,
    width: usize,
    input: Vec<f32>,
    weight: Option<Vec<f32>>,
    bias: Option<Vec<f32>>,
    d_output: Vec<f32>,
    epsilon: f64,
}

const EPSILON: f64 = 1e-5;
const NAMES: [&str; 4] = ["output", "d_input", "d_weight", "d_bias"];

impl Problem {
    fn new(kind: Kind, rows: usize, width: usize) -> Self {
        Problem {
            kind,
            rows,
            width,
            input: random(1, rows * width, 2.0),
            weight: Some(random(2, width, 1.0)),
            bias: Some(random(3, width, 1.0)),
            d_output: random(4, rows * width, 1.0),
            epsilon: EPSILON,
        }
    }

    fn norm(&self) -> Norm<'_> {
        Norm {
            kind: self.kind,
            rows: self.rows,
            width: self.width,
            weight: self.weight.as_deref(),
            bias: self.bias.as_deref(),
            epsilon: self.epsilon,
        }
    }

    /// Output and gradients; all buffers start as NaN.
    fn run(&self, level: Level) -> Vec<Vec<f32>> {
        let rows = || vec![f32::NAN; self.rows * self.width];
        let (mut output, mut input) = (rows(), self.d_output.clone());
        let mut parameters = [vec![f32::NAN; self.width], vec![f32::NAN; self.width]];
        forward_at(level, &self.norm(), &self.input, fresh(&mut output)).unwrap();
        let [weight, bias] = &mut parameters;
        let mut gradients = Gradients {
            input: &mut input,
            weight: Some(weight),
            bias: Some(bias),
        };
        backward_at(level, &self.norm(), &self.input, &mut gradients).unwrap();
        let [weight, bias] = parameters;
        vec![output, input, weight, bias]
    }

    fn reference<T: Real>(&self) -> Vec<Vec<T>> {
        let cast = |x: &[f32]| -> Vec<T> { x.iter().map(|&x| T::of(x.into())).collect() };
        let or = |x: &Option<Vec<f32>>, other| cast(&x.clone().unwrap_or(vec![other; self.width]));
        let (weight, bias) = (or(&self.weight, 1.0), or(&self.bias, 0.0));
        let mut all = vec![
            vec![],
            vec![],
            vec![T::of(0.0); self.width],
            vec![T::of(0.0); self.width],
        ];
        for row in 0..self.rows {
            let of_row = |x: &[f32]| cast(&x[row * self.width..][..self.width]);
            let d_output = of_row(&self.d_output);
            let epsilon = T::of(self.epsilon);
            let input = of_row(&self.input);
            let row = reference::norm(self.kind, epsilon, &input, &weight, &bias, &d_output);
            all[0].extend(row.output);
            all[1].extend(row.input);
            for (to, from) in [(2, &row.weight), (3, &d_output)] {
                for (sum, &x) in all[to].iter_mut().zip(from) {
                    *sum = *sum + x;
                }
            }
        }
        all
    }
}

const KINDS: [Kind; 2] = [Kind::Layer, Kind::RootMeanSquare];

#[test]
fn error_is_bounded_by_the_naive_computation() {
    let mut checked = 0;
    for kind in KINDS {
        for &width in unless_miri(&[1, 2, 7, 40, 64, 111, 256, 1025][..], &[1, 2, 40]) {
            for (plain, mean) in [(false, 0.0), (true, 0.0), (false, 100.0)] {
                let mut problem = Problem::new(kind, unless_miri(97, 5), width);
                problem.input.iter_mut().for_each(|x| *x += mean);
                if plain {
                    (problem.weight, problem.bias) = (None, None);
                }
                let (naive, truth) = (problem.reference::<f32>(), problem.reference::<f64>());
                for &level in Level::available() {
                    let fast = problem.run(level);
                    // The error of one or two sums over all rows varies by chance.
                    let checks = if width < 7 { 2 } else { NAMES.len() };
                    for (i, name) in NAMES.iter().enumerate().take(checks) {
                        let factor = if i == 0 { 2.0 } else { 3.0 };
                        let name = format!("{name} {kind:?} {width} {mean} {level:?}");
                        assert_close(&name, &fast[i], &naive[i], &truth[i], factor);
                        checked += 1;
                    }
                }
            }
        }
    }
    assert_eq!(
        checked,
        2 * 3 * (unless_miri(6, 1) * NAMES.len() + 2 * 2) * Level::available().len()
    );
}

/// PyTorch's numbers (`tests/golden/norm.py`) against the definition, to the last digits, and against the
/// kernel, within the bound that the definition sets.
#[test]
fn golden_numbers() {
    let mut lines = include_str!("../../tests/golden/norm.txt").lines();
    let mut checked = 0;
    while let Some(head) = lines.next() {
        let [kind, rows, width, epsilon] = head.split(' ').collect::<Vec<_>>()[..] else {
            panic!("`{head}` is not the head of a case");
        };
        let mut next = |name: &str| -> Vec<f64> {
            let mut words = lines.next().unwrap().split(' ');
            assert_eq!(words.next(), Some(name));
            words.map(|x| x.parse().unwrap()).collect()
        };
        let mut single = |name: &str| next(name).into_iter().map(|x| x as f32).collect();
        let problem = Problem {
            kind: if kind == "layer" {
                Kind::Layer
            } else {
                Kind::RootMeanSquare
            },
            rows: rows.parse().unwrap(),
            width: width.parse().unwrap(),
            input: single("input"),
            weight: Some(single("weight")),
            bias: Some(single("bias")),
            d_output: single("d_output"),
            epsilon: epsilon.parse().unwrap(),
        };
        let (naive, definition) = (problem.reference::<f32>(), problem.reference::<f64>());
        for (i, name) in NAMES.iter().enumerate() {
            let golden = next(name);
            for (defined, golden) in definition[i].iter().zip(&golden) {
                let error = (defined - golden).abs();
                assert!(error <= 1e-12 * (1.0 + golden.abs()), "{head} {name}");
            }
            for &level in Level::available() {
                let factor = if i == 0 { 2.0 } else { 3.0 };
                let name = format!("{head} {name} {level:?}");
                assert_close(&name, &problem.run(level)[i], &naive[i], &golden, factor);
                checked += 1;
            }
        }
    }
    assert_eq!(checked, 6 * NAMES.len() * Level::available().len());
}

#[test]
fn the_reference_passes_finite_differences() {
    for kind in KINDS {
        let problem = Problem::new(kind, 1, 5);
        let truth = problem.reference::<f64>();
        let loss = wide(&problem.d_output);
        let inputs = [
            wide(&problem.input),
            wide(problem.weight.as_ref().unwrap()),
            wide(problem.bias.as_ref().unwrap()),
        ];
        for which in 0..3 {
            for (index, &expected) in truth[which + 1].iter().enumerate() {
                let slope = difference(&inputs[which], index, |moved| {
                    let mut all: Vec<&[f64]> = inputs.iter().map(Vec::as_slice).collect();
                    all[which] = moved;
                    let row = reference::norm(kind, EPSILON, all[0], all[1], all[2], &loss);
                    probe(&row.output, &loss)
                });
                assert!(
                    (slope - expected).abs() < 1e-8,
                    "{} {slope} {expected}",
                    NAMES[which + 1]
                );
            }
        }
    }
}

#[test]
fn bits_do_not_depend_on_threads_or_on_neighbours() {
    for kind in KINDS {
        let problem = Problem::new(kind, unless_miri(1000, 40), 100);
        let (level, at) = (Level::current(), unless_miri(700, 300));
        let all = on_every_pool(|| problem.run(level));
        assert_eq!(all, problem.run(level), "from run to run");
        let mut alone = Problem::new(kind, 1, 100);
        alone.input = problem.input[at..at + 100].to_vec();
        alone.d_output = problem.d_output[at..at + 100].to_vec();
        let alone = alone.run(level);
        for i in 0..2 {
            assert_eq!(all[i][at..at + 100], alone[i], "{}", NAMES[i]);
        }
    }
}

#[test]
fn empty_shapes_are_fine() {
    for (rows, width) in [(0, 3), (3, 0), (0, 0)] {
        let results = Problem::new(Kind::Layer, rows, width).run(Level::current());
        assert!(results.iter().flatten().all(|&x| x == 0.0));
    }
}

#[test]
fn errors_name_what_is_wrong() {
    let problem = Problem::new(Kind::Layer, 2, 3);
    let error = forward(&problem.norm(), &problem.input, &mut [0.0; 5]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`output` holds 5 numbers, expected 6 ([rows, width]): pass a contiguous slice of exactly \
         that shape"
    );
    let mut norm = problem.norm();
    norm.epsilon = f64::NAN;
    let error = forward(&norm, &problem.input, &mut [0.0; 6]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`epsilon` is NaN, expected a finite number of at least 0"
    );
    let mut gradients = Gradients {
        input: &mut [0.0; 6],
        weight: Some(&mut [0.0; 2]),
        bias: None,
    };
    let norm = problem.norm();
    let error = backward(&norm, &problem.input, &mut gradients).unwrap_err();
    let argument = "gradients.weight";
    assert!(matches!(error, KernelError::Length { argument: a, .. } if a == argument));
}

#[test]
fn rows_of_nothing_and_extreme_gradients_are_taken() {
    for kind in [Kind::Layer, Kind::RootMeanSquare] {
        let mut norm = Norm {
            kind,
            rows: usize::MAX,
            width: 0,
            weight: None,
            bias: None,
            epsilon: 1e-5,
        };
        let mut gradients = Gradients {
            input: &mut [],
            weight: Some(&mut []),
            bias: Some(&mut []),
        };
        forward(&norm, &[], &mut []).unwrap();
        backward(&norm, &[], &mut gradients).unwrap();
        (norm.rows, norm.width) = (0, usize::MAX);
        (gradients.weight, gradients.bias) = (None, None);
        forward(&norm, &[], &mut []).unwrap();
        backward(&norm, &[], &mut gradients).unwrap();
        (norm.rows, norm.width) = (1, 3);
        let mut input = [-1e30, 1e30, f32::from_bits(1)];
        let (mut weight, mut bias) = ([f32::NAN; 3], [f32::NAN; 3]);
        let mut gradients = Gradients {
            input: &mut input,
            weight: Some(&mut weight),
            bias: Some(&mut bias),
        };
        backward(&norm, &[1.0, 1.0, 1.0], &mut gradients).unwrap();
        assert_eq!(bias, [-1e30, 1e30, f32::from_bits(1)], "{kind:?}");
        let all = input.iter().chain(&weight);
        assert!(all.clone().all(|x| x.is_finite()), "{kind:?} {all:?}");
    }
}

#[test]
fn the_largest_numbers_are_normalised() {
    for &level in Level::available() {
        for kind in KINDS {
            for (largest, width) in [(2e19, 2), (3e38, 2), (f32::MAX, 2), (f32::MAX, 1200)] {
                let mut problem = Problem::new(kind, 1, width);
                (problem.weight, problem.bias, problem.epsilon) = (None, None, 0.0);
                let sign = |at: usize| if at.is_multiple_of(2) { 1.0 } else { -1.0 };
                problem.input = (0..width).map(|at| sign(at) * largest).collect();
                let results: [_; 4] = problem.run(level).try_into().unwrap();
                let [output, input, weight, bias] = results.each_ref();
                for (at, &y) in output.iter().enumerate() {
                    assert!(
                        (y - sign(at)).abs() < 1e-6,
                        "{level:?} {kind:?} {largest} {y}"
                    );
                    let d = problem.d_output[at];
                    assert!((weight[at] - d * sign(at)).abs() < 1e-6 && bias[at] == d);
                }
                // The root is that of the largest number, so that gradients are below 1 / largest.
                assert!(
                    input.iter().all(|d| d.abs() <= 2.0 / largest),
                    "{level:?} {kind:?}"
                );
            }
        }
        // The mean of gradients whose sum is more than an `f32` can hold.
        let mut problem = Problem::new(Kind::RootMeanSquare, 1, 4);
        (problem.weight, problem.bias, problem.epsilon) = (None, None, 0.0);
        (problem.input, problem.d_output) = (vec![1.0; 4], vec![3e38; 4]);
        assert_eq!(problem.run(level)[1], [0.0; 4], "{level:?}");
    }
}

proptest! {
    #[test]
    #[cfg_attr(miri, ignore = "large")]
    fn a_row_keeps_its_norm_under_scale_and_shift(
        width in 2usize..200, scale in 0.5f32..100.0, shift in -10.0f32..10.0,
    ) {
        let mut problem = Problem::new(Kind::Layer, 1, width);
        (problem.weight, problem.bias) = (None, None);
        let plain = problem.run(Level::current());
        problem.input.iter_mut().for_each(|x| *x = scale * (*x + shift));
        let moved = problem.run(Level::current());
        for (a, b) in plain[0].iter().zip(&moved[0]) {
            prop_assert!((a - b).abs() < 1e-3, "{a} {b}");
        }
    }
}
