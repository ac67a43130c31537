//! Properties other than the values, and calls that are refused.

use proptest::prelude::*;

use super::*;

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
#[cfg_attr(miri, ignore = "large")]
fn bits_do_not_depend_on_threads_or_on_neighbours() {
    let (dim, value_dim) = (64, 96);
    for &level in Level::available() {
        let mut problem = Problem::new([37, 2, 23, dim, value_dim])
            .with_lengths()
            .with_bias();
        problem.poison();
        let all = on_every_pool(|| problem.run(level));
        assert_eq!(all, problem.run(level), "from run to run");

        let b = 12;
        let mut alone = Problem::new([1, 2, 23, dim, value_dim]);
        alone.query = row(&problem.query, b, 2 * dim).to_vec();
        alone.key = row(&problem.key, b, 23 * dim).to_vec();
        alone.value = row(&problem.value, b, 23 * value_dim).to_vec();
        alone.d_context = row(&problem.d_context, b, 2 * value_dim).to_vec();
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
            (0, 2 * value_dim),
            (1, 2 * 23),
            (2, 2 * dim),
            (3, 23 * dim),
            (5, 23 * value_dim),
        ] {
            assert_eq!(row(&all[i], b, width), alone[i], "{}", NAMES[i]);
        }
    }
}

/// Queries that are scored by exponentials and others that are not, in one block.
#[test]
#[cfg_attr(miri, ignore = "large")]
fn bits_do_not_depend_on_the_queries_beside() {
    let (queries, keys, dim, value_dim) = (20, 9, 24, 12);
    let mut problem = Problem::new([1, queries, keys, dim, value_dim]);
    problem.key.iter_mut().for_each(|k| *k *= 0.05);
    problem.query.iter_mut().for_each(|q| *q *= 0.05);
    for (query, number) in [(3, 50.0), (4, 0.3), (9, f32::NAN), (10, 0.2), (17, -1e9)] {
        problem.query[query * dim + 5] = number;
    }
    let bits = |numbers: &[f32]| numbers.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    for &level in Level::available() {
        let all = problem.run(level);
        for query in 0..queries {
            let mut alone = Problem::new([1, 1, keys, dim, value_dim]);
            alone.key = problem.key.clone();
            alone.query = row(&problem.query, query, dim).to_vec();
            alone.d_context = row(&problem.d_context, query, value_dim).to_vec();
            let alone = alone.run(level);
            for (i, width) in [(0, value_dim), (1, keys), (2, dim)] {
                let found = row(&all[i], query, width);
                assert_eq!(
                    bits(found),
                    bits(&alone[i]),
                    "{} of {query} by {level:?}",
                    NAMES[i]
                );
            }
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
fn errors_name_what_is_wrong() {
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
    input.keep = PaddingMask::Lengths(&[3, 4]);
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
    #[cfg_attr(miri, ignore = "large")]
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
    #[cfg_attr(miri, ignore = "large")]
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
