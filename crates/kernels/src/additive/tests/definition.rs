//! Shapes, masks, heads and magnitudes, within the bound of a naive computation; and the definition against
//! finite differences.

use super::*;

#[test]
#[cfg_attr(miri, ignore = "large")]
fn error_is_bounded_by_the_naive_computation() {
    let mut checked = 0;
    let dims = [1, 7, 40, 59, 64, 111, 128, 256];
    let lengths = [(1, 1, 64), (2, 3, 1), (17, 1, 59), (97, 1, 130)];
    for &dim in &dims {
        for &(keys, queries, value_dim) in &lengths {
            // Many rows, because the largest error of only a few varies by chance.
            let batch = 40.max(240 / dim);
            let shape = [batch, queries, keys, dim, value_dim];
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
    let lengths = [(2, 2), (5, 4), (16, 3), (17, 9), (33, 1), (35, 50)];
    let dims = [13, 48, 80];
    for &(queries, keys) in unless_miri(&lengths[..], &lengths[1..2]) {
        for &dim in unless_miri(&dims[..], &[5]) {
            let shape = [unless_miri(40, 2), queries, keys, dim, unless_miri(20, 3)];
            checked += check(Problem::new(shape).with_lengths().with_bias());
        }
    }
    assert_eq!(
        checked,
        unless_miri(6 * 3, 1) * NAMES.len() * Level::available().len()
    );
}

#[test]
#[cfg_attr(miri, ignore = "large")]
fn heads_have_score_vectors_of_their_own() {
    let mut checked = 0;
    for (heads, dim) in [(2, 64), (4, 13), (8, 40)] {
        let problem = || Problem::new([40, 5, 9, dim, 20]).with_heads(heads);
        checked += check(problem());
        checked += check(problem().with_mask().with_bias());
        // Each head alone must give the same.
        let (all, level) = (problem().run(Level::current()), Level::current());
        for head in 0..heads {
            let mut alone = problem();
            alone.v = row(&alone.v, head, dim).to_vec();
            let alone = alone.run(level);
            for b in (head..40).step_by(heads) {
                for (i, width) in [(0, 5 * 20), (1, 5 * 9), (2, 5 * dim), (3, 9 * dim), (7, 5)] {
                    let name = NAMES[i];
                    assert_eq!(row(&all[i], b, width), row(&alone[i], b, width), "{name}");
                }
            }
        }
    }
    assert_eq!(checked, 3 * 2 * NAMES.len() * Level::available().len());
}

/// The two halves of the keys, merged by their `lse`, must equal the whole.
#[test]
#[cfg_attr(miri, ignore = "large")]
fn lse_puts_parts_together() {
    let shape = [6, 4, 10, 33, 8];
    let whole = Problem::new(shape);
    let part = |from: usize| {
        let mut part = Problem::new(shape);
        let kept = |i: usize| u8::from(i % 10 / 5 * 5 == from);
        part.mask = Some((0..60).map(kept).collect());
        part.run(Level::current())
    };
    let (all, first, second) = (whole.run(Level::current()), part(0), part(5));
    for row in 0..6 * 4 {
        let share = |part: &[Vec<f32>]| (part[7][row] - all[7][row]).exp();
        for c in row * 8..(row + 1) * 8 {
            let sum = share(&first) * first[0][c] + share(&second) * second[0][c];
            assert!((sum - all[0][c]).abs() < 1e-5, "{sum} {}", all[0][c]);
        }
    }
}

/// Numbers whose exponentials overflow, and pairs of them that cancel.
#[test]
#[cfg_attr(miri, ignore = "large")]
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
#[cfg_attr(miri, ignore = "large")]
fn small_numbers_keep_their_gradients() {
    let mut problem = Problem::new([40, 3, 9, 64, 12]);
    problem.query.iter_mut().for_each(|q| *q *= 1e-3);
    problem.key.iter_mut().for_each(|k| *k *= 1e-3);
    check(problem);
}

#[test]
#[cfg_attr(miri, ignore = "computes nothing but definitions")]
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
    for (which, gradient) in truth[2..7].iter().enumerate() {
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
