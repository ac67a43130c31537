//! What must hold for any numbers: weights' rows, windows, padding, empty rows, order of the keys.

use crate::{
    mechanisms::magnitude,
    support::{device, gradients, numbers, values},
};
use burn::tensor::{Bool, Tensor, TensorData};
use proptest::prelude::*;
use regard_nn::{
    Attention, AttentionOptions, Memory, Path, Reading,
    initialize::Initializer,
    mask::{Locality, PaddingMask},
    normalize::masked_softmax,
    score::{Additive, General, Location, Score},
};

const QUERY: usize = 5;
const SCORES: [&str; 4] = ["dot", "general", "additive", "location"];

fn floats<const D: usize>(values: &[f32], shape: [usize; D]) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values.to_vec(), shape), &device())
}

fn drawn<const D: usize>(name: &str, shape: [usize; D], scale: f32) -> Tensor<D> {
    floats(&values(name, shape.iter().product(), scale), shape)
}

/// Attention with a score by name; queries and annotations are of size [`QUERY`].
fn attention(score: &str, locality: Locality) -> Attention {
    let init = &mut Initializer::new(7, &device());
    let score = match score {
        "dot" => Score::dot(),
        "general" => Score::General(General::new(QUERY, QUERY, init)),
        "additive" => Score::Additive(Additive::new(QUERY, QUERY, 3, init)),
        "location" => Score::Location(Location::new(QUERY, 4, init)),
        other => panic!("{other}"),
    };
    Attention::new(score).with_locality(locality, QUERY, init)
}

fn read(attention: &Attention, query: Tensor<3>, memory: &Memory, first_step: usize) -> Reading {
    let call = AttentionOptions::default().first_query(first_step);
    attention.read(query, memory, call).unwrap()
}

fn localities() -> [Locality; 3] {
    [
        Locality::Global,
        Locality::Monotonic { half_width: 1 },
        Locality::Predictive { half_width: 2 },
    ]
}

fn rows(tensor: &Tensor<3>) -> Vec<Vec<f32>> {
    let width = tensor.dims()[2];
    numbers(tensor).chunks(width).map(<[f32]>::to_vec).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]

    /// Softmax over what may be seen, against the definition in f64; the contents of hidden places are not
    /// read.
    #[test]
    fn masked_softmax_is_softmax_of_what_is_seen(
        (scores, seen) in (1usize..12).prop_flat_map(|keys| (
            prop_oneof![
                3 => prop::collection::vec(prop_oneof![3 => -30.0f32..30.0, 1 => magnitude()], 3 * keys),
                1 => magnitude().prop_map(move |score| vec![score; 3 * keys]),
            ],
            prop::collection::vec(any::<bool>(), 3 * keys),
        )),
        poison in prop_oneof![Just(f32::NAN), Just(f32::INFINITY), Just(f32::NEG_INFINITY), Just(1e30)],
    ) {
        let keys = scores.len() / 3;
        let shape = [1, 3, keys];
        let mask = || Tensor::<3, Bool>::from_data(TensorData::new(seen.clone(), shape), &device());
        let clean = floats(&scores, shape).require_grad();
        let weights = masked_softmax(clean.clone(), Some(mask()));

        for ((row, scores), seen) in rows(&weights).iter().zip(scores.chunks(keys)).zip(seen.chunks(keys)) {
            let of_seen = || scores.iter().zip(seen).filter(|(_, seen)| **seen).map(|(s, _)| f64::from(*s));
            let most = of_seen().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = of_seen().map(|s| (s - most).exp()).sum();
            for ((&weight, &score), &seen) in row.iter().zip(scores).zip(seen) {
                let expected = if seen { (f64::from(score) - most).exp() / sum } else { 0.0 };
                // e^(s - max) carries the rounding of s - max, at most half an ulp of |s - max|.
                let spread = if seen { most - f64::from(score) } else { 0.0 };
                let tolerance = f64::from(f32::EPSILON) * (keys as f64 + 4.0 + spread) * expected + 1e-37;
                prop_assert!((f64::from(weight) - expected).abs() <= tolerance, "{weight} {expected}");
            }
        }

        let upstream = drawn("upstream", shape, 1.0);
        let slope = clean.grad(&(weights.clone() * upstream).sum().backward()).unwrap();
        let slope = numbers(&slope);
        for (slope, seen) in slope.iter().zip(&seen) {
            prop_assert!(slope.is_finite() && (*seen || *slope == 0.0));
        }

        let poisoned: Vec<f32> =
            scores.iter().zip(&seen).map(|(s, seen)| if *seen { *s } else { poison }).collect();
        let poisoned = masked_softmax(floats(&poisoned, shape), Some(mask()));
        prop_assert_eq!(numbers(&poisoned), numbers(&weights));
    }

    /// Every mechanism: rows sum to 1 (at most 1 under local-p's Gaussian), there is no weight outside the
    /// source, the window or the reach of the score, and the fused form equals the plain one.
    #[test]
    fn rows_of_weights(
        lengths in prop::collection::vec(1usize..9, 1..4),
        queries in 1usize..6,
        first_step in 0usize..4,
        score in prop::sample::select(SCORES.to_vec()),
        half_width in 1usize..4,
        kind in 0usize..3,
    ) {
        let (batch, keys) = (lengths.len(), lengths.iter().copied().max().unwrap());
        let locality = [
            Locality::Global,
            Locality::Monotonic { half_width },
            Locality::Predictive { half_width },
        ][kind];
        let attention = attention(score, locality);
        let keep = PaddingMask::from_lengths(&lengths, keys, &device());
        let query = drawn("query", [batch, queries, QUERY], 2.0);
        let memory = attention.memory(drawn("annotations", [batch, keys, QUERY], 2.0), keep.clone()).unwrap();
        let call = || AttentionOptions::default().first_query(first_step);
        let attended = attention.read(query.clone(), &memory, call()).unwrap();
        let plain = attention.read(query.clone(), &memory, call().path(Path::Plain)).unwrap();
        let close = |a: &Tensor<3>, b: &Tensor<3>| {
            let worst = (a.clone() - b.clone()).abs().max().into_scalar::<f32>();
            worst <= 16.0 * f32::EPSILON
        };
        prop_assert!(close(&attended.weights, &plain.weights));
        prop_assert!(close(&attended.context, &plain.context));

        let centres = attention
            .predictor
            .as_ref()
            .map(|p| numbers(&p.forward(query.unsqueeze_dim(1), keep.lengths())));
        for (i, row) in rows(&attended.weights).iter().enumerate() {
            let (b, t) = (i / queries, i % queries);
            let centre = match locality {
                Locality::Global => None,
                Locality::Monotonic { .. } => Some((first_step + t) as f32),
                Locality::Predictive { .. } => centres.as_ref().map(|centres| centres[i]),
            };
            let seen = |s: usize| {
                s < lengths[b]
                    && (score != "location" || s < 4)
                    && centre.is_none_or(|centre| (s as f32 - centre).abs() <= half_width as f32)
            };
            for (s, &weight) in row.iter().enumerate() {
                prop_assert!(weight >= 0.0 && (seen(s) || weight == 0.0), "{s} of {row:?}");
                // Scores of these sizes are far from underflow, so visible keys have weight.
                prop_assert!(!seen(s) || weight > 0.0, "{s} of {row:?}");
            }
            let sum: f32 = row.iter().sum();
            match (0..keys).any(seen) {
                false => prop_assert_eq!(sum, 0.0),
                true if kind < 2 => prop_assert!((sum - 1.0).abs() <= 8.0 * f32::EPSILON, "{sum}"),
                true => prop_assert!(sum <= 1.0 + 8.0 * f32::EPSILON, "{sum}"),
            }
        }
    }
}

/// The contents of the padding influence neither weights nor context nor any gradient.
#[test]
fn padding_does_not_leak() {
    let (batch, keys, queries) = (3, 6, 4);
    let lengths = [6, 2, 4];
    let keep = PaddingMask::from_lengths(&lengths, keys, &device());
    let mut checked = 0;
    for score in SCORES {
        for locality in localities() {
            let attention = attention(score, locality);
            let run = |poison: f32| {
                let mut numbers_ = values("annotations", batch * keys * QUERY, 2.0);
                for (i, value) in numbers_.iter_mut().enumerate() {
                    if i / QUERY % keys >= lengths[i / QUERY / keys] {
                        *value = poison;
                    }
                }
                let annotations = floats(&numbers_, [batch, keys, QUERY]).require_grad();
                let query = drawn("query", [batch, queries, QUERY], 2.0).require_grad();
                let memory = attention.memory(annotations.clone(), keep.clone()).unwrap();
                let Reading {
                    context, weights, ..
                } = read(&attention, query.clone(), &memory, 0);
                let upstream = drawn("upstream", context.dims(), 1.0);
                let all = (context.clone() * upstream).sum().backward();
                (
                    numbers(&context),
                    numbers(&weights),
                    numbers(&annotations.grad(&all).unwrap()),
                    query.grad(&all).map(|gradient| numbers(&gradient)),
                    gradients(&attention, &all),
                )
            };
            let clean = run(0.0);
            for (i, slope) in clean.2.iter().enumerate() {
                let padded = i / QUERY % keys >= lengths[i / QUERY / keys];
                assert!(
                    slope.is_finite() && (!padded || *slope == 0.0),
                    "{score} {locality:?}"
                );
            }
            for poison in [f32::NAN, f32::INFINITY, -1e30] {
                assert!(run(poison) == clean, "{score} {locality:?}: {poison} leaks");
                checked += 1;
            }
        }
    }
    assert_eq!(checked, 36);
}

/// A sentence of no words, and a window beyond the sentence: weights, context and gradients are 0.
#[test]
fn nothing_to_see_gives_zeros() {
    for score in SCORES {
        for (lengths, locality, first_step) in [
            ([0, 3], Locality::Global, 0),
            ([0, 3], Locality::Monotonic { half_width: 1 }, 0),
            ([0, 3], Locality::Predictive { half_width: 2 }, 0),
            ([1, 9], Locality::Monotonic { half_width: 1 }, 7),
        ] {
            let attention = attention(score, locality);
            let keys = lengths[1];
            let query = drawn("query", [2, 1, QUERY], 2.0).require_grad();
            let annotations = drawn("annotations", [2, keys, QUERY], 2.0).require_grad();
            let keep = PaddingMask::from_lengths(&lengths, keys, &device());
            let memory = attention.memory(annotations.clone(), keep).unwrap();
            let attended = read(&attention, query.clone(), &memory, first_step);
            let what = format!("{score} {locality:?}");
            assert_eq!(
                numbers(&attended.weights)[..keys],
                vec![0.0; keys],
                "{what}"
            );
            assert_eq!(numbers(&attended.context)[..QUERY], [0.0; QUERY], "{what}");
            let all = attended.context.sum().backward();
            let mut slopes = vec![numbers(&annotations.grad(&all).unwrap())];
            assert_eq!(slopes[0][..keys * QUERY], vec![0.0; keys * QUERY], "{what}");
            if let Some(slope) = query.grad(&all) {
                assert_eq!(numbers(&slope)[..QUERY], [0.0; QUERY], "{what}");
                slopes.push(numbers(&slope));
            }
            slopes.extend(
                gradients(&attention, &all)
                    .into_values()
                    .map(|array| array.values),
            );
            assert!(
                slopes.iter().flatten().all(|slope| slope.is_finite()),
                "{what}"
            );
        }
    }
}

/// D = 0: local-m sees its own position alone; local-p sees a position only if it predicts it exactly, and
/// neither gives a NaN.
#[test]
fn windows_of_no_width() {
    for locality in [
        Locality::Monotonic { half_width: 0 },
        Locality::Predictive { half_width: 0 },
    ] {
        let attention = attention("general", locality);
        let keep = PaddingMask::from_lengths(&[4, 2], 4, &device());
        // A query of zeros predicts the middle of the sentence, a whole number here.
        let query = (drawn("query", [2, 3, QUERY], 2.0) * floats(&[1.0, 0.0, 1.0], [1, 3, 1]))
            .require_grad();
        let annotations = drawn("annotations", [2, 4, QUERY], 2.0).require_grad();
        let memory = attention.memory(annotations.clone(), keep).unwrap();
        let attended = read(&attention, query.clone(), &memory, 0);
        let weights = rows(&attended.weights);
        let expected: [&[f32]; 3] = match locality {
            Locality::Monotonic { .. } => [&[1., 0., 0., 0.], &[0., 1., 0., 0.], &[0., 0., 1., 0.]],
            _ => [&[0.; 4], &[0., 0., 1., 0.], &[0.; 4]],
        };
        for (found, expected) in weights.iter().zip(expected) {
            // A kernel's weight is e^(s - lse), which rounds; 0 is exact.
            let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 4.0 * f32::EPSILON * b;
            assert!(
                found.iter().zip(expected).all(near),
                "{locality:?}: {found:?}"
            );
        }
        let all = attended.context.sum().backward();
        let mut slopes = vec![numbers(&annotations.grad(&all).unwrap())];
        slopes.extend(query.grad(&all).map(|slope| numbers(&slope)));
        slopes.extend(
            gradients(&attention, &all)
                .into_values()
                .map(|array| array.values),
        );
        assert!(
            slopes.iter().flatten().all(|slope| slope.is_finite()),
            "{locality:?}"
        );
    }
}

/// Wherever a sentence is in its batch row, attention gives the same as for the sentence alone.
#[test]
fn a_sentence_behind_padding() {
    let (words, queries) = (4, 3);
    for half_width in [1, 2, 5] {
        for score in ["dot", "general", "additive"] {
            let attention = attention(score, Locality::Predictive { half_width });
            let query = drawn("query", [1, queries, QUERY], 2.0);
            let sentence = drawn("annotations", [1, words, QUERY], 2.0);
            let attend = |annotations: Tensor<3>, keep| {
                read(
                    &attention,
                    query.clone(),
                    &attention.memory(annotations, keep).unwrap(),
                    0,
                )
            };
            let alone = attend(
                sentence.clone(),
                PaddingMask::from_lengths(&[words], words, &device()),
            );
            assert!(
                rows(&alone.weights)
                    .iter()
                    .all(|row| row.iter().any(|&weight| weight > 0.0))
            );
            for [before, after] in [[0, 3], [3, 0], [2, 2]] {
                let length = before + words + after;
                let padding = |length| Tensor::<3>::full([1, length, QUERY], f32::NAN, &device());
                let parts = [padding(before), sentence.clone(), padding(after)];
                let parts: Vec<_> = parts
                    .into_iter()
                    .filter(|part| part.dims()[1] > 0)
                    .collect();
                let flags = (0..length).map(|i| (before..before + words).contains(&i));
                let keep = PaddingMask::from_flags(&[flags.collect()], &device()).unwrap();
                let found = attend(Tensor::cat(parts, 1), keep);
                let close = |a: Tensor<3>, b: Tensor<3>| {
                    let worst = (a - b).abs().max().into_scalar::<f32>();
                    assert!(
                        worst <= 32.0 * f32::EPSILON,
                        "{score} {half_width} {before}: {worst}"
                    );
                };
                close(
                    found.weights.narrow(2, before, words),
                    alone.weights.clone(),
                );
                close(found.context, alone.context.clone());
            }
        }
    }
}

/// Reordering the source reorders the weights and does not change the context, for scores without
/// positions.
#[test]
fn keys_in_another_order() {
    let order = [3usize, 0, 4, 1, 2];
    for score in ["dot", "general", "additive"] {
        let attention = attention(score, Locality::Global);
        let keep = PaddingMask::from_lengths(&[5], 5, &device());
        let query = drawn("query", [1, 2, QUERY], 2.0);
        let annotations = drawn("annotations", [1, 5, QUERY], 2.0);
        let parts = order.map(|i| annotations.clone().narrow(1, i, 1));
        let reordered = Tensor::cat(parts.to_vec(), 1);
        let attend = |annotations| {
            let memory = attention.memory(annotations, keep.clone()).unwrap();
            read(&attention, query.clone(), &memory, 0)
        };
        let (a, b) = (attend(annotations), attend(reordered));
        for (a, b) in rows(&a.weights).iter().zip(rows(&b.weights)) {
            for (place, &i) in order.iter().enumerate() {
                assert!((a[i] - b[place]).abs() <= 4.0 * f32::EPSILON, "{score}");
            }
        }
        let worst = (a.context - b.context).abs().max().into_scalar::<f32>();
        assert!(worst <= 16.0 * f32::EPSILON, "{score}: {worst}");
    }
}

/// The worked numbers of the formula sheet: three words as vectors, and their dot products.
#[test]
fn worked_dot_products() {
    let words = [[0.71, 0.14, 0.51], [0.69, 0.15, 0.48], [0.16, 0.59, 0.49]].concat();
    let words = floats(&words, [1, 1, 3, 3]);
    let scores = numbers(&Score::dot().forward(words.clone(), words));
    for (found, expected) in [
        (scores[1], 0.7557f32),
        (scores[2], 0.4461),
        (scores[5], 0.4341),
    ] {
        assert!(
            (found - expected).abs() < 5e-5,
            "{found}, expected {expected}"
        );
    }
}
