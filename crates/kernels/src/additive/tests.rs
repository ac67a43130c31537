//! Against the reference in `f64`, with the naive `f32` loops as the measure of what rounding costs.

use proptest::prelude::*;

use super::{backward::backward_at, forward::forward_at, *};
use crate::reference::{Additive, AdditiveGradients};
use crate::simd::Level;
use crate::testing::{assert_close, difference, on_every_pool, probe, random, wide};

/// Everything one problem needs, owned.
struct Problem {
    shape: Shape,
    query: Vec<f32>,
    key: Vec<f32>,
    v: Vec<f32>,
    value: Vec<f32>,
    bias: Option<Vec<f32>>,
    d_context: Vec<f32>,
    d_weights: Option<Vec<f32>>,
    lengths: Option<Vec<u32>>,
    mask: Option<Vec<u8>>,
}

impl Problem {
    fn new([batch, queries, keys, dim, value_dim]: [usize; 5]) -> Self {
        let shape = Shape {
            batch,
            queries,
            keys,
            dim,
            value_dim,
        };
        Problem {
            shape,
            query: random(1, batch * queries * dim, 2.0),
            key: random(2, batch * keys * dim, 2.0),
            v: random(3, dim, 1.0),
            value: random(4, batch * keys * value_dim, 1.0),
            bias: None,
            d_context: random(5, batch * queries * value_dim, 1.0),
            d_weights: None,
            lengths: None,
            mask: None,
        }
    }

    fn with_lengths(mut self) -> Self {
        let keys = self.shape.keys as u32;
        self.lengths = Some(
            (0..self.shape.batch as u32)
                .map(|b| b * 7 % (keys + 1))
                .collect(),
        );
        self
    }

    fn with_mask(mut self) -> Self {
        let count = self.shape.batch * self.shape.keys;
        let mut mask: Vec<u8> = (0..count).map(|i| u8::from(i * 5 % 7 > 2)).collect();
        mask[..self.shape.keys].fill(0);
        self.mask = Some(mask);
        self
    }

    fn with_bias(mut self) -> Self {
        let count = self.shape.batch * self.shape.queries * self.shape.keys;
        self.bias = Some(random(6, count, 1.0));
        self.d_weights = Some(random(7, count, 1.0));
        self
    }

    fn keep(&self) -> Keep<'_> {
        match (&self.lengths, &self.mask) {
            (Some(lengths), _) => Keep::Lengths(lengths),
            (None, Some(mask)) => Keep::Mask(mask),
            (None, None) => Keep::All,
        }
    }

    fn kept(&self, row: usize, key: usize) -> bool {
        match self.keep() {
            Keep::All => true,
            Keep::Lengths(lengths) => key < lengths[row] as usize,
            Keep::Mask(mask) => mask[row * self.shape.keys + key] != 0,
        }
    }

    /// Puts NaN and infinities wherever nothing may be seen.
    fn poison(&mut self) {
        let Shape {
            batch,
            keys,
            dim,
            value_dim,
            ..
        } = self.shape;
        for b in 0..batch {
            for j in 0..keys {
                if !self.kept(b, j) {
                    row_mut(&mut self.key, b * keys + j, dim).fill(f32::NAN);
                    row_mut(&mut self.value, b * keys + j, value_dim).fill(f32::INFINITY);
                }
            }
        }
    }

    fn input(&self) -> Input<'_> {
        Input {
            shape: self.shape,
            query: &self.query,
            key: &self.key,
            v: &self.v,
            value: &self.value,
            keep: self.keep(),
            bias: self.bias.as_deref(),
        }
    }

    /// Context, weights, and the gradients of query, key, v, value, bias; all buffers start as NaN.
    fn run(&self, level: Level) -> Vec<Vec<f32>> {
        let input = self.input();
        let nan = |like: &[f32]| vec![f32::NAN; like.len()];
        let Shape {
            batch,
            queries,
            keys,
            ..
        } = self.shape;
        let mut context = nan(&self.d_context);
        let mut weights = vec![f32::NAN; batch * queries * keys];
        forward_at(level, &input, &mut context, &mut weights).unwrap();
        let (mut query, mut key) = (nan(&self.query), nan(&self.key));
        let (mut v, mut value, mut bias) = (nan(&self.v), nan(&self.value), nan(&weights));
        let mut gradients = Gradients {
            query: &mut query,
            key: &mut key,
            v: &mut v,
            value: &mut value,
            bias: Some(&mut bias),
            accumulate: false,
        };
        let d_weights = self.d_weights.as_deref();
        backward_at(
            level,
            &input,
            &weights,
            &self.d_context,
            d_weights,
            &mut gradients,
        )
        .unwrap();
        vec![context, weights, query, key, v, value, bias]
    }

    /// The same by the reference, in the order of [`Self::run`].
    fn reference<T: crate::reference::Real>(&self) -> Vec<Vec<T>> {
        let cast = |x: &[f32]| -> Vec<T> { x.iter().map(|&x| T::of(f64::from(x))).collect() };
        let (query, key, v, value) = (
            cast(&self.query),
            cast(&self.key),
            cast(&self.v),
            cast(&self.value),
        );
        let bias = self.bias.as_deref().map(cast);
        let kept = |row, key| self.kept(row, key);
        let problem = Additive {
            shape: self.shape,
            query: &query,
            key: &key,
            v: &v,
            value: &value,
            kept: &kept,
            bias: bias.as_deref(),
        };
        let (context, weights) = problem.forward();
        let d_weights = self.d_weights.as_deref().map(cast);
        let AdditiveGradients {
            query,
            key,
            v,
            value,
            bias,
        } = problem.backward(&cast(&self.d_context), d_weights.as_deref());
        vec![context, weights, query, key, v, value, bias]
    }
}

const NAMES: [&str; 7] = [
    "context", "weights", "d_query", "d_key", "d_v", "d_value", "d_bias",
];

/// Checks one problem on every level; gives the number of comparisons.
fn check(mut problem: Problem) -> usize {
    problem.poison();
    let (naive, truth) = (problem.reference::<f32>(), problem.reference::<f64>());
    for &level in Level::available() {
        let fast = problem.run(level);
        for (i, name) in NAMES.iter().enumerate() {
            let factor = if i < 2 { 2.0 } else { 3.0 };
            let name = format!("{name} {:?} {level:?}", problem.shape);
            assert_close(&name, &fast[i], &naive[i], &truth[i], factor);
        }
    }
    NAMES.len() * Level::available().len()
}

#[test]
fn error_is_bounded_by_the_naive_computation() {
    let mut checked = 0;
    for dim in [1, 7, 40, 59, 64, 111, 128, 256] {
        for (keys, queries, value_dim) in [(1, 1, 64), (2, 3, 1), (17, 1, 59), (97, 1, 130)] {
            // Many rows, because the largest error of a handful of them is a matter of luck.
            let shape = [40.max(240 / dim), queries, keys, dim, value_dim];
            checked += check(Problem::new(shape));
            checked += check(Problem::new(shape).with_mask().with_bias());
            checked += check(Problem::new(shape).with_lengths());
        }
    }
    assert_eq!(checked, 8 * 4 * 3 * NAMES.len() * Level::available().len());
}

#[test]
fn blocks_of_queries_and_keys_have_their_edges() {
    let mut checked = 0;
    for (queries, keys) in [(2, 2), (5, 4), (16, 3), (17, 9), (33, 1), (35, 50)] {
        for dim in [13, 48, 80] {
            let shape = [40, queries, keys, dim, 20];
            checked += check(Problem::new(shape).with_lengths().with_bias());
        }
    }
    assert_eq!(checked, 6 * 3 * NAMES.len() * Level::available().len());
}

/// Numbers whose exponentials overflow, and pairs of them that cancel.
#[test]
fn large_numbers_are_no_exception() {
    let mut checked = 0;
    for scale in [3.0, 10.0, 21.0, 50.0, 1e4] {
        let mut problem = Problem::new([9, 5, 7, 40, 12]).with_mask();
        problem
            .query
            .iter_mut()
            .step_by(7)
            .for_each(|q| *q *= scale);
        for (b, keys) in problem.key.chunks_exact_mut(7 * 40).enumerate() {
            for key in keys.chunks_exact_mut(40) {
                let query = row(&problem.query, b * 5, 40);
                for (k, q) in key.iter_mut().zip(query).step_by(3) {
                    *k -= q;
                }
            }
        }
        checked += check(problem);
    }
    let mut problem = Problem::new([9, 5, 7, 40, 12]);
    problem.v.iter_mut().step_by(5).for_each(|v| *v *= 1e9);
    checked += check(problem);
    assert_eq!(checked, 6 * NAMES.len() * Level::available().len());
}

#[test]
fn small_numbers_keep_their_gradients() {
    let mut problem = Problem::new([40, 3, 9, 64, 12]);
    problem.query.iter_mut().for_each(|q| *q *= 1e-3);
    problem.key.iter_mut().for_each(|k| *k *= 1e-3);
    check(problem);
}

#[test]
fn what_is_no_number_shows() {
    for at in [0, 39] {
        let mut problem = Problem::new([2, 2, 3, 40, 4]);
        problem.query[at] = f32::NAN;
        let results = problem.run(Level::current());
        assert!(
            results[0][..4].iter().all(|x| x.is_nan()),
            "the query's context"
        );
        assert!(results[0][4..].iter().all(|x| x.is_finite()), "no other's");
    }
}

#[test]
fn empty_shapes_are_fine() {
    for shape in [
        [0, 1, 2, 3, 4],
        [2, 0, 2, 3, 4],
        [2, 1, 0, 3, 4],
        [2, 1, 2, 0, 4],
        [2, 1, 2, 3, 0],
    ] {
        for &level in Level::available() {
            let results = Problem::new(shape).run(level);
            assert!(results.iter().flatten().all(|x| x.is_finite()), "{shape:?}");
        }
    }
}

#[test]
fn bits_do_not_depend_on_threads_or_on_neighbours() {
    for &level in Level::available() {
        let mut problem = Problem::new([37, 2, 23, 64, 96]).with_lengths().with_bias();
        problem.poison();
        let all = on_every_pool(|| problem.run(level));
        assert_eq!(all, problem.run(level), "from run to run");

        let b = 12;
        let mut alone = Problem::new([1, 2, 23, 64, 96]);
        alone.query = row(&problem.query, b, 2 * 64).to_vec();
        alone.key = row(&problem.key, b, 23 * 64).to_vec();
        alone.value = row(&problem.value, b, 23 * 96).to_vec();
        alone.d_context = row(&problem.d_context, b, 2 * 96).to_vec();
        alone.bias = problem
            .bias
            .as_ref()
            .map(|bias| row(bias, b, 2 * 23).to_vec());
        alone.d_weights = problem
            .d_weights
            .as_ref()
            .map(|d| row(d, b, 2 * 23).to_vec());
        alone.lengths = problem.lengths.as_ref().map(|lengths| vec![lengths[b]]);
        let alone = alone.run(level);
        for (i, width) in [
            (0, 2 * 96),
            (1, 2 * 23),
            (2, 2 * 64),
            (3, 23 * 64),
            (5, 23 * 96),
        ] {
            assert_eq!(row(&all[i], b, width), alone[i], "{}", NAMES[i]);
        }
    }
}

#[test]
fn accumulating_adds_to_what_is_there() {
    let problem = Problem::new([5, 1, 9, 20, 12]).with_mask();
    let level = Level::current();
    let once = problem.run(level);
    let (mut query, mut key) = (vec![f32::NAN; once[2].len()], vec![1.0; once[3].len()]);
    let (mut v, mut value) = (vec![1.0; once[4].len()], vec![1.0; once[5].len()]);
    let mut gradients = Gradients {
        query: &mut query,
        key: &mut key,
        v: &mut v,
        value: &mut value,
        bias: None,
        accumulate: true,
    };
    backward(
        &problem.input(),
        &once[1],
        &problem.d_context,
        None,
        &mut gradients,
    )
    .unwrap();
    assert_eq!(query, once[2]);
    for (sum, plain) in [(key, &once[3]), (v, &once[4]), (value, &once[5])] {
        for (sum, plain) in sum.iter().zip(plain) {
            assert!(
                (sum - 1.0 - plain).abs() <= 4e-7 * (1.0 + plain.abs()),
                "{sum} {plain}"
            );
        }
    }
}

#[test]
fn a_bias_of_minus_infinity_shuts_out() {
    let mut problem = Problem::new([1, 2, 3, 8, 4]);
    problem.bias = Some(vec![
        f32::NEG_INFINITY,
        0.0,
        0.0,
        f32::NEG_INFINITY,
        f32::NEG_INFINITY,
        f32::NEG_INFINITY,
    ]);
    let results = problem.run(Level::current());
    assert_eq!(results[1][0], 0.0);
    assert!((results[1][1] + results[1][2] - 1.0).abs() < 1e-6);
    assert_eq!(results[1][3..], [0.0; 3]);
    assert!(results.iter().flatten().all(|x| x.is_finite()));
}

#[test]
fn the_reference_passes_finite_differences() {
    let problem = Problem::new([2, 2, 3, 4, 3]).with_lengths().with_bias();
    let truth = problem.reference::<f64>();
    let weights_of_loss = [
        wide(&problem.d_context),
        wide(problem.d_weights.as_ref().unwrap()),
    ]
    .concat();
    let inputs = [
        wide(&problem.query),
        wide(&problem.key),
        wide(&problem.v),
        wide(&problem.value),
        wide(problem.bias.as_ref().unwrap()),
    ];
    for (which, gradient) in truth[2..].iter().enumerate() {
        for (index, expected) in gradient.iter().enumerate() {
            let slope = difference(&inputs[which], index, |moved| {
                let mut all: Vec<&[f64]> = inputs.iter().map(Vec::as_slice).collect();
                all[which] = moved;
                let kept = |row, key| problem.kept(row, key);
                let (context, weights) = Additive {
                    shape: problem.shape,
                    query: all[0],
                    key: all[1],
                    v: all[2],
                    value: all[3],
                    kept: &kept,
                    bias: Some(all[4]),
                }
                .forward();
                probe(&[context, weights].concat(), &weights_of_loss)
            });
            assert!(
                (slope - expected).abs() < 1e-8,
                "{}[{index}]",
                NAMES[which + 2]
            );
        }
    }
}

#[test]
fn the_door_names_what_is_wrong() {
    let problem = Problem::new([2, 1, 3, 4, 5]);
    let (mut context, mut weights) = (vec![0.0; 10], vec![0.0; 6]);
    let mut input = problem.input();
    input.key = &problem.key[1..];
    let error = forward(&input, &mut context, &mut weights).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`key` holds 23 numbers, expected 24 ([batch, keys, dim]): pass a contiguous slice of \
         exactly that shape"
    );
    let mut input = problem.input();
    input.keep = Keep::Lengths(&[3, 4]);
    let error = forward(&input, &mut context, &mut weights).unwrap_err();
    assert_eq!(
        error.to_string(),
        "`keep` holds 4 at position 1, expected a length of at most 3 keys"
    );
    let input = problem.input();
    let error = forward(&input, &mut context[1..], &mut weights).unwrap_err();
    assert!(matches!(
        error,
        KernelError::Length {
            argument: "context",
            expected: 10,
            found: 9,
            ..
        }
    ));
    let huge = Input {
        shape: Shape {
            keys: usize::MAX,
            ..problem.shape
        },
        ..problem.input()
    };
    let error = forward(&huge, &mut context, &mut weights).unwrap_err();
    assert!(matches!(
        error,
        KernelError::TooLarge {
            argument: "key",
            ..
        }
    ));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn weights_of_a_query_with_a_key_sum_to_one(
        batch in 1usize..4, queries in 1usize..4, keys in 1usize..40, dim in 1usize..50,
        scale in 0.01f32..1e4,
    ) {
        let mut problem = Problem::new([batch, queries, keys, dim, 3]).with_lengths();
        problem.v.iter_mut().for_each(|v| *v *= scale);
        let weights = &problem.run(Level::current())[1];
        for (at, row) in weights.chunks_exact(keys).enumerate() {
            let length = problem.lengths.as_ref().unwrap()[at / queries];
            let sum: f32 = row.iter().sum();
            let expected = if length == 0 { 0.0 } else { 1.0 };
            prop_assert!((sum - expected).abs() < 1e-5);
            prop_assert!(row.iter().all(|&w| (0.0..=1.0 + 1e-6).contains(&w)));
        }
    }

    #[test]
    fn order_of_the_keys_does_not_matter(keys in 1usize..30, dim in 1usize..40) {
        let problem = Problem::new([1, 1, keys, dim, 5]);
        let mut turned = Problem::new([1, 1, keys, dim, 5]);
        for j in 0..keys {
            let from = (j * 7 + 3) % keys;
            if keys % 7 != 0 {
                row_mut(&mut turned.key, j, dim).copy_from_slice(row(&problem.key, from, dim));
                row_mut(&mut turned.value, j, 5).copy_from_slice(row(&problem.value, from, 5));
            }
        }
        let (a, b) = (problem.run(Level::current()), turned.run(Level::current()));
        for (a, b) in a[0].iter().zip(&b[0]) {
            prop_assert!((a - b).abs() < 1e-5);
        }
    }
}
