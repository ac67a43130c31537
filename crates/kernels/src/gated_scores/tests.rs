use super::*;
use crate::testing::{on_every_pool, random};

/// The score in f64.
fn score(query: &[f64], key: &[f64], vector: &[f64]) -> f64 {
    let dim = vector.len();
    let units = (0..dim).map(|d| {
        let gate = 1.0 / (1.0 + (-(query[dim + d] + key[dim + d])).exp());
        vector[d] * (query[d] + key[d]).tanh() * gate
    });
    units.sum()
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| f64::from(x)).collect()
}

/// `Σ ṡ s` in f64, of which the gradients are finite differences.
fn loss(shape: &GatedScores, inputs: &[Vec<f64>; 3], d_scores: &[f64]) -> f64 {
    let [query, key, vector] = inputs;
    let both = 2 * shape.dim;
    let mut sum = 0.0;
    for (place, d) in d_scores.iter().enumerate() {
        let (i, j) = (place / shape.keys, place % shape.keys);
        let j = i / shape.queries * shape.keys + j;
        sum += d * score(&query[i * both..][..both], &key[j * both..][..both], vector);
    }
    sum
}

#[test]
fn scores_and_gradients_are_those_of_plain_arithmetic() {
    for (batch, queries, keys, dim) in [(1, 1, 1, 1), (3, 2, 5, 17), (2, 4, 3, 32), (2, 1, 4, 7)] {
        let shape = GatedScores {
            batch,
            queries,
            keys,
            dim,
        };
        let query = random(1, batch * queries * 2 * dim, 2.0);
        let key = random(2, batch * keys * 2 * dim, 2.0);
        let vector = random(3, dim, 1.0);
        let d_scores = random(4, batch * queries * keys, 1.0);
        let exact = [wide(&query), wide(&key), wide(&vector)];
        for &level in Level::available() {
            let all = on_every_pool(|| {
                let mut scores = vec![f32::NAN; d_scores.len()];
                shape
                    .forward_on(level, &query, &key, &vector, &mut scores)
                    .unwrap();
                let mut found = [&query, &key, &vector].map(|x| vec![f32::NAN; x.len()]);
                let [d_query, d_key, d_vector] = &mut found;
                let gradients = Gradients {
                    query: d_query,
                    key: d_key,
                    vector: d_vector,
                };
                let inputs = [&query[..], &key, &vector, &d_scores];
                shape.backward_on(level, inputs, gradients).unwrap();
                let [d_query, d_key, d_vector] = found;
                vec![scores, d_query, d_key, d_vector]
            });
            for (place, &found) in all[0].iter().enumerate() {
                let mut one = vec![0.0; d_scores.len()];
                one[place] = 1.0;
                let truth = loss(&shape, &exact, &one);
                assert!((f64::from(found) - truth).abs() < 1e-5, "{found} {truth}");
            }
            let weights = wide(&d_scores);
            for input in 0..3 {
                for place in 0..exact[input].len() {
                    let moved = |by: f64| {
                        let mut inputs = exact.clone();
                        inputs[input][place] += by;
                        loss(&shape, &inputs, &weights)
                    };
                    let truth = (moved(1e-5) - moved(-1e-5)) / 2e-5;
                    let found = f64::from(all[1 + input][place]);
                    assert!(
                        (found - truth).abs() < 1e-5 * (1.0 + truth.abs()),
                        "{input} {found} {truth}"
                    );
                }
            }
        }
    }
}

#[test]
fn wrong_lengths_are_refused() {
    let shape = GatedScores {
        batch: 1,
        queries: 1,
        keys: 2,
        dim: 3,
    };
    let mut scores = [0.0; 2];
    let mut refused = |query: usize, key: usize, vector: usize| {
        let [query, key, vector] = [query, key, vector].map(|length| vec![0.0; length]);
        let error = shape
            .forward(&query, &key, &vector, &mut scores)
            .unwrap_err();
        error.to_string()
    };
    assert!(refused(5, 12, 3).contains("query"));
    assert!(refused(6, 11, 3).contains("key"));
    assert!(refused(6, 12, 4).contains("vector"));
}

#[test]
fn empty_sizes_and_the_largest_numbers_have_scores() {
    let sizes = |batch, queries, keys, dim| GatedScores {
        batch,
        queries,
        keys,
        dim,
    };
    let mut scores = [f32::NAN; 6];
    sizes(1, 2, 3, 0)
        .forward(&[], &[], &[], &mut scores)
        .unwrap();
    assert_eq!(scores, [0.0; 6]);
    sizes(0, 2, 3, 1)
        .forward(&[], &[], &[1.0], &mut [])
        .unwrap();
    sizes(usize::MAX, 1, 1, 1)
        .forward(&[], &[], &[1.0], &mut [])
        .unwrap_err();
    for level in Level::available() {
        for x in [f32::MAX, f32::MIN, f32::MIN_POSITIVE] {
            let shape = sizes(1, 1, 1, 1);
            let (mut score, mut d) = ([f32::NAN], [[f32::NAN; 2]; 2]);
            let mut d_vector = [f32::NAN];
            shape
                .forward_on(*level, &[x, x], &[x, x], &[1.0], &mut score)
                .unwrap();
            let [query, key] = &mut d;
            let gradients = Gradients {
                query,
                key,
                vector: &mut d_vector,
            };
            shape
                .backward_on(*level, [&[x, x], &[x, x], &[1.0], &[1.0]], gradients)
                .unwrap();
            // tanh is 1, -1 or 0, the gate 1, 0 or 1/2.
            let truth = if x == f32::MAX { 1.0 } else { 0.0 };
            assert!((score[0] - truth).abs() < 1e-6, "{x}: {score:?}");
            assert!(
                d.as_flattened()
                    .iter()
                    .chain(&d_vector)
                    .all(|d| d.is_finite()),
                "{x}: {d:?}"
            );
        }
    }
}
