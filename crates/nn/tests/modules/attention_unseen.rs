//! Hidden positions have no influence, whatever they contain and however they are hidden; NaN in visible positions stays
//! visible.

use burn::tensor::{Bool, Tensor};
use regard_nn::{
    Attention, AttentionOptions, Observe, Path,
    bridge::additive_attention_plain,
    initialize::Initializer,
    mask::{Alignment, Mask, PaddingMask, PositionPredictor},
    normalize::{Addressing, Estimator, Form, HardSample, Monotonic, Normalize, Sink},
    score::{Additive, General, Score},
};

use crate::{
    mechanisms::{SIZE, attend, drawn, inputs, mechanisms, named},
    support::{device, numbers},
};

/// The contents of hidden positions (NaN, infinities, huge numbers) influence neither context nor weights nor gradients:
/// under padding, where no query sees them, and under causality, where some queries do and others do not.
#[test]
fn unseen_places_reach_nothing() {
    let (queries, keys) = (3, 5);
    for attention in mechanisms(2) {
        let name = named(&attention);
        let run = |poison: Option<f32>| {
            let [query, key, value] = inputs(2, 2, queries, keys);
            let spoil = |x: Tensor<4>| match poison {
                // The last key: in the padding of row 1, and in the future of all queries but the last.
                Some(poison) => x.slice_fill([0..2, 0..2, keys - 1..keys, 0..3], poison),
                None => x,
            };
            let leaves = [query, spoil(key), spoil(value)].map(Tensor::require_grad);
            let padding = Mask::padding(PaddingMask::from_lengths(&[5, 4], keys, &device()));
            let call = AttentionOptions::new(Observe::Weights).mask(padding & Mask::causal());
            let attended = attend(&attention, &leaves, call);
            // The last query of the unpadded row does see the last key.
            let blind = |x: Tensor<4>| {
                let of_padded = numbers(&x.clone().narrow(0, 1, 1));
                let of_earlier = numbers(&x.narrow(0, 0, 1).narrow(2, 0, queries - 1));
                [of_padded, of_earlier].concat()
            };
            let upstream = drawn("upstream", [2, 2, queries, 3], 1.0)
                .slice_fill([0..1, 0..2, queries - 1..queries, 0..3], 0.0);
            let context = attended.context.clone();
            // A NaN context times 0 would be NaN: those rows are cut off.
            let kept = context
                .clone()
                .slice_fill([0..1, 0..2, queries - 1..queries, 0..3], 0.0);
            let all = (kept * upstream + leaves[0].clone().narrow(3, 0, 3) * 0.0)
                .sum()
                .backward();
            // In row 0 the last query sees the poison, which reaches every gradient of that row.
            let gradients: Vec<Option<Vec<f32>>> = leaves
                .iter()
                .map(|leaf| Some(numbers(&leaf.grad(&all)?.narrow(0, 1, 1))))
                .collect();
            (blind(context), blind(attended.weights.unwrap()), gradients)
        };
        let clean = run(None);
        for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e4] {
            let found = run(Some(poison));
            // With poisoned keys, calls take the plain path where the poison would reach the weights that prepare keys,
            // and Burn adds the parts of a gradient in another order: the last bits may differ.
            let close = |found: &[f32], clean: &[f32]| {
                let near =
                    |(a, b): (&f32, &f32)| (a - b).abs() <= 8.0 * f32::EPSILON * (1.0 + b.abs());
                found.len() == clean.len() && found.iter().zip(clean).all(near)
            };
            assert!(
                close(&found.0, &clean.0),
                "{name}: {poison} reaches the context"
            );
            assert!(
                close(&found.1, &clean.1),
                "{name}: {poison} reaches the weights"
            );
            for (found, clean) in found.2.iter().flatten().zip(clean.2.iter().flatten()) {
                assert!(close(found, clean), "{name}: {poison} reaches a gradient");
            }
        }
    }
}

/// A sentence is read alike whether it stands alone or, padded at its end or its beginning, beside a longer one.
#[test]
fn padding_changes_no_number() {
    let (length, padded) = (4, 7);
    let causal = || Mask::causal_aligned(Alignment::UpperLeft);
    let cases = [
        (0, Mask::all()),
        (0, causal()),
        (padded - length, Mask::all()),
        (padded - length, Mask::causal()),
    ];
    for attention in mechanisms(2) {
        let name = named(&attention);
        // These count keys from the left, whatever stands there.
        let by_place = matches!(
            attention.score,
            Score::Location(_) | Score::GaussianWindow(_)
        );
        for (start, mask) in &cases {
            if by_place && *start > 0 {
                continue;
            }
            let [query, key, value] = inputs(2, 2, 3, padded);
            let call = |mask| AttentionOptions::new(Observe::Weights).mask(mask);
            let own = |x: &Tensor<4>| x.clone().narrow(0, 1, 1).narrow(2, *start, length);
            let alone = [query.clone().narrow(0, 1, 1), own(&key), own(&value)];
            let alone = attend(&attention, &alone, call(mask.clone()));
            let real = |key| (*start..start + length).contains(&key);
            let flags = [vec![true; padded], (0..padded).map(real).collect()];
            let keep = PaddingMask::from_flags(&flags, &device()).unwrap();
            let both = call(mask.clone() & Mask::padding(keep));
            let beside = attend(&attention, &[query, key, value], both);
            let of_row = |x: Tensor<4>| x.narrow(0, 1, 1);
            let weights = of_row(beside.weights.unwrap()).narrow(3, *start, length);
            let pairs = [
                (alone.context, of_row(beside.context)),
                (alone.weights.unwrap(), weights),
            ];
            for (alone, beside) in pairs {
                let worst = (alone - beside).abs().max().into_scalar::<f32>();
                assert!(
                    worst <= 16.0 * f32::EPSILON,
                    "{name}, from {start}: {worst}"
                );
            }
        }
    }
}

/// A seen NaN is not hidden: the queries that see it get NaN, the others do not.
#[test]
fn a_seen_nan_stays_visible() {
    let x = inputs(1, 1, 3, 3);
    let [query, key, value] = x;
    let value = value.slice_fill([0..1, 0..1, 1..2, 0..1], f32::NAN);
    let attention = Attention::new(Score::scaled_dot()).with_mask(Mask::causal());
    let context = attend(
        &attention,
        &[query, key, value],
        AttentionOptions::default(),
    )
    .context;
    let rows: Vec<bool> = numbers(&context)
        .chunks(3)
        .map(|row| row[0].is_nan())
        .collect();
    assert_eq!(rows, [false, true, true, false, false, false]);
}

/// An infinity that is seen acts as in plain arithmetic, with a mask too: that of a value on its own feature, that of a key on its own
/// score.
#[test]
fn a_seen_infinity_is_no_nan() {
    let attention = Attention::new(Score::scaled_dot());
    let [query, key, value] = inputs(1, 1, 3, 3);
    let query = query.abs() + 1.0;
    for path in [Path::Auto, Path::Plain] {
        let read = |key: Tensor<4>, value: Tensor<4>, mask: Mask| {
            let call = AttentionOptions::default().mask(mask).path(path);
            numbers(&attend(&attention, &[query.clone(), key, value], call).context)
        };
        let infinite = value
            .clone()
            .slice_fill([0..2, 0..1, 0..1, 0..1], f32::INFINITY);
        for row in read(key.clone(), infinite, Mask::causal()).chunks(3) {
            let finite = row[1..].iter().all(|x| x.is_finite());
            assert!(row[0] == f32::INFINITY && finite, "{path:?} {row:?}");
        }
        // The scores of the first key are -∞, so that only the second one is read.
        let infinite = key
            .clone()
            .slice_fill([0..2, 0..1, 0..1, 0..SIZE], f32::NEG_INFINITY);
        let mask = Mask::function("not the last", |place| place.key != 2);
        let found = read(infinite, value.clone(), mask);
        let expected = numbers(&value.clone().narrow(2, 1, 1).expand([2, 1, 3, 3]));
        let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-6;
        assert!(
            found.iter().zip(&expected).all(near),
            "{path:?}: {found:?}, expected {expected:?}"
        );
    }
}

/// Rows in which nothing is seen give zeros and finite gradients, and do not affect other rows (PyTorch 41508).
#[test]
fn a_row_that_sees_nothing() {
    for attention in mechanisms(2) {
        let name = named(&attention);
        let leaves = inputs(2, 2, 2, 4).map(Tensor::require_grad);
        let first_is_blind = Mask::function("second query", |place| place.query == 1);
        let call = AttentionOptions::new(Observe::Weights).mask(first_is_blind);
        let attended = attend(&attention, &leaves, call);
        // The second query reads as if it were alone; the window moves on with every query.
        if !matches!(attention.score, Score::GaussianWindow(_)) {
            let [query, key, value] = leaves.clone();
            let alone = [query.narrow(2, 1, 1), key, value];
            let alone = attend(&attention, &alone, AttentionOptions::new(Observe::Weights));
            let pairs = [
                (attended.context.clone(), alone.context),
                (attended.weights.clone().unwrap(), alone.weights.unwrap()),
            ];
            for (found, alone) in pairs {
                let size = alone.clone().abs().max().into_scalar::<f32>();
                let off = found.narrow(2, 1, 1) - alone;
                let worst = off.abs().max().into_scalar::<f32>();
                assert!(
                    worst <= 64.0 * f32::EPSILON * (1.0 + size),
                    "{name}: {worst}"
                );
            }
        }
        let first = |x: &Tensor<4>| numbers(&x.clone().narrow(2, 0, 1));
        assert!(first(&attended.context).iter().all(|x| *x == 0.0), "{name}");
        assert!(
            first(&attended.weights.unwrap()).iter().all(|x| *x == 0.0),
            "{name}"
        );
        let all = (attended.context.sum() + leaves[0].clone().sum() * 0.0).backward();
        for leaf in &leaves {
            let slope = leaf
                .grad(&all)
                .map(|slope| numbers(&slope))
                .unwrap_or_default();
            assert!(slope.iter().all(|x| x.is_finite()), "{name}");
        }
        // A query that sees nothing gets no gradient, if the normaliser has no memory.
        let goes_on = attended.carried.is_some();
        let slope = leaves[0].grad(&all).unwrap();
        assert!(goes_on || first(&slope).iter().all(|x| *x == 0.0), "{name}");
    }
}

/// What goes on from query to query goes past those that see nothing, at the start and later.
#[test]
fn a_query_that_sees_nothing_is_passed_over() {
    let init = &mut Initializer::new(6, &device());
    let normalisers = [
        Normalize::Monotonic(Monotonic::new(Form::Parallel)),
        Normalize::Monotonic(Monotonic::new(Form::Recursive)),
        Normalize::Monotonic(Monotonic::new(Form::Hard)),
        Normalize::Addressing(Addressing::new(SIZE, 1, init)),
    ];
    let [blind, sees] = [[false; 3], [false, true, true]];
    let seen = [[[blind, sees, blind, sees]]];
    let seen = Tensor::<4, Bool>::from_data(seen, &device());
    let scores = Tensor::<4>::zeros([1, 1, 4, 3], &device());
    let query = drawn("query", [1, 1, 4, SIZE], 2.0);
    let some =
        |x: Tensor<4>| Tensor::cat([1, 3].map(|row| x.clone().narrow(2, row, 1)).to_vec(), 2);
    for normalize in normalisers {
        let name = normalize.name();
        let all = normalize.forward(scores.clone(), Some(seen.clone()), &query, None, None);
        let alone = normalize.forward(
            some(scores.clone()),
            Some(seen.clone().narrow(2, 1, 1)),
            &some(query.clone()),
            None,
            None,
        );
        let off = some(all.weights.clone()) - alone.weights;
        let worst = off.abs().max().into_scalar::<f32>();
        assert!(worst <= 16.0 * f32::EPSILON, "{name}: {worst}");
        let rows = numbers(&all.weights);
        let is_zero = |row: &[f32]| row.iter().all(|weight| *weight == 0.0);
        assert!(is_zero(&rows[..3]) && is_zero(&rows[6..9]), "{name}");
        if name == "monotonic" && rows[4] != 1.0 {
            for (found, expected) in rows[3..6].iter().zip([0.0, 0.5, 0.25]) {
                assert!((found - expected).abs() <= 1e-6, "{rows:?}");
            }
        }
    }
}

/// A bias of -∞ hides as a mask does: the same numbers, forward and backward, and hidden keys have no influence.
#[test]
fn a_bias_of_minus_infinity_is_a_mask() {
    let (queries, keys) = (3, 5);
    let mut checked = 0;
    for attention in mechanisms(2) {
        for poison in [None, Some(f32::NAN), Some(f32::INFINITY)] {
            // The last key is hidden from all queries, the second from the first query, and everything from the last one.
            let hidden = move |query: usize, key: usize| {
                key == keys - 1 || (query == 0 && key == 1) || query == queries - 1
            };
            let mask = Mask::function("not hidden", move |at| !hidden(at.query, at.key));
            let rows = (0..queries * keys).map(|i| match hidden(i / keys, i % keys) {
                true => f32::NEG_INFINITY,
                false => 0.0,
            });
            let rows: Vec<f32> = rows.collect();
            let bias =
                Tensor::<1>::from_floats(rows.as_slice(), &device()).reshape([1, 1, queries, keys]);
            let run = |by_bias: bool| {
                let [query, key, value] = inputs(2, 2, queries, keys);
                let spoil = |x: Tensor<4>| match poison {
                    Some(poison) => x.slice_fill([0..2, 0..2, keys - 1..keys, 0..3], poison),
                    None => x,
                };
                let leaves = [query, spoil(key), spoil(value)].map(Tensor::require_grad);
                let bias = bias.clone().require_grad();
                let call = AttentionOptions::new(Observe::Weights);
                let call = match by_bias {
                    true => call.bias(bias.clone()),
                    false => call.mask(mask.clone()),
                };
                let attended = attend(&attention, &leaves, call);
                let upstream = drawn("upstream", attended.context.dims(), 1.0);
                let tied = leaves[0].clone().sum() * 0.0;
                let all = ((attended.context.clone() * upstream).sum() + tied).backward();
                let mut found = vec![
                    numbers(&attended.context),
                    numbers(&attended.weights.unwrap()),
                ];
                found.extend(leaves.iter().map(|leaf| {
                    let slope = leaf.grad(&all);
                    slope.map_or(vec![], |slope| numbers(&slope))
                }));
                let of_bias = bias.grad(&all).map_or(vec![], |slope| numbers(&slope));
                (found, of_bias)
            };
            let ((by_bias, of_bias), (by_mask, _)) = (run(true), run(false));
            let name = format!("{} {poison:?}", named(&attention));
            for (tensor, (a, b)) in by_bias.iter().zip(&by_mask).enumerate() {
                assert_eq!(a.len(), b.len(), "{name}");
                for (a, b) in a.iter().zip(b) {
                    let near = (a - b).abs() <= 8.0 * f32::EPSILON * (1.0 + b.abs());
                    assert!(near, "{name}, tensor {tensor}: {a} by bias, {b} by mask");
                }
            }
            for (i, slope) in of_bias.iter().enumerate() {
                let zero = !hidden(i / keys, i % keys) || *slope == 0.0;
                assert!(slope.is_finite() && zero, "{name}: bias {i} gets {slope}");
            }
            checked += 1;
        }
    }
    assert_eq!(checked, 3 * mechanisms(2).len());
}

/// The kernel alone cannot tell a poisoned sum from a hidden one: with [`Path::Fused`] the call is refused, with
/// [`Path::Auto`] it takes the plain path.
#[test]
fn poison_behind_a_bias_is_no_case_for_the_kernel() {
    let init = &mut Initializer::new(4, &device());
    for score in [
        Score::scaled_dot(),
        Score::General(General::new(SIZE, SIZE, init)),
        Score::Additive(Additive::new(SIZE, SIZE, 3, init)),
    ] {
        let attention = Attention::new(score);
        // The hidden key; with queries of 1, its products overflow.
        let hidden = behind_a_bias(&attention, 2, f32::NAN);
        assert!(
            hidden.iter().all(|x| x.is_finite()),
            "{}",
            named(&attention)
        );
        if matches!(attention.score, Score::ScaledDot(_)) {
            let hidden = behind_a_bias(&attention, 2, 3e38);
            assert!(
                hidden.iter().all(|x| x.is_finite()),
                "{}",
                named(&attention)
            );
            // A visible key.
            behind_a_bias(&attention, 1, 3e38);
        }
    }
}

/// The context where one key of three is `poison`, and the third is hidden.
fn behind_a_bias(attention: &Attention, poisoned: usize, poison: f32) -> Vec<f32> {
    let [query, key, value] = inputs(1, 1, 2, 3);
    let query = query.abs() + 1.0;
    let key = key.slice_fill([0..1, 0..1, poisoned..poisoned + 1, 0..SIZE], poison);
    let bias = Tensor::<4>::zeros([1, 1, 1, 3], &device())
        .slice_fill([0..1, 0..1, 0..1, 2..3], f32::NEG_INFINITY);
    let run = |path| {
        let call = AttentionOptions::new(Observe::Weights)
            .bias(bias.clone())
            .path(path);
        attention.forward_with(query.clone(), key.clone(), value.clone(), call)
    };
    let name = format!("{} of {poison}", named(attention));
    let error = run(Path::Fused).unwrap_err().to_string();
    assert!(error.contains("a bias of -inf"), "{name}: {error}");
    let attended = run(Path::Auto).unwrap();
    let hidden = numbers(&attended.weights.unwrap().narrow(3, 2, 1));
    assert!(hidden.iter().all(|&x| x == 0.0), "{name}: {hidden:?}");
    numbers(&attended.context)
}

/// A visible key has more weight than any hidden one, however low its score.
#[test]
fn the_lowest_scores_are_above_what_is_hidden() {
    let [query, key, value] = inputs(1, 1, 2, 4);
    for lowest in [-1e30, -2e30, f32::MIN] {
        for normalize in [
            Normalize::softmax(),
            Normalize::sparsemax(),
            Normalize::entmax15(),
            Normalize::hardmax(),
            Normalize::HardSample(HardSample::new(Estimator::StraightThrough)),
        ] {
            let attention = Attention::new(Score::dot()).with_normalize(normalize);
            let name = format!("{lowest} {}", named(&attention));
            let mask = Mask::function("the last two", |place| place.key >= 2);
            let bias = Tensor::<4>::full([1, 1, 1, 4], lowest, &device());
            let call = AttentionOptions::new(Observe::Weights)
                .mask(mask)
                .bias(bias)
                .path(Path::Plain);
            let attended = attend(
                &attention,
                &[query.clone(), key.clone(), value.clone()],
                call,
            );
            for row in numbers(&attended.weights.unwrap()).chunks(4) {
                assert_eq!(row[..2], [0.0; 2], "{name}");
                assert!((row[2] + row[3] - 1.0).abs() < 1e-6, "{name}: {row:?}");
            }
        }
    }
    let (x, keys) = (
        Tensor::<3>::zeros([1, 1, 2], &device()),
        Tensor::zeros([1, 4, 2], &device()),
    );
    let keep = Tensor::<2, Bool>::from_data([[false, false, true, true]], &device());
    let bias = Tensor::<3>::full([1, 1, 4], f32::MIN, &device());
    let vector = Tensor::<1>::ones([2], &device());
    let (_, weights) =
        additive_attention_plain(x, keys.clone(), vector, keys, Some(keep), Some(bias));
    assert_eq!(
        weights.into_data().try_into_vec::<f32>().unwrap(),
        [0.0, 0.0, 0.5, 0.5]
    );
}

/// A weight of 0 stays 0 beside a NaN too, on both paths.
#[test]
fn a_hidden_weight_is_0_beside_a_seen_nan() {
    let scaled = |normalize| Attention::new(Score::scaled_dot()).with_normalize(normalize);
    let [query, key, value] = inputs(1, 1, 2, 3);
    let key = key.slice_fill([0..2, 0..1, 0..1, 0..1], f32::NAN);
    for path in [Path::Auto, Path::Plain] {
        for attention in [
            scaled(Normalize::softmax()),
            scaled(Normalize::Sink(Sink::fixed(0.0))),
            scaled(Normalize::Monotonic(Monotonic::new(Form::Recursive))),
            scaled(Normalize::Monotonic(Monotonic::new(Form::Parallel))),
        ] {
            let mask = Mask::function("not the last", |place| place.key != 2);
            let call = AttentionOptions::new(Observe::Weights)
                .mask(mask)
                .path(path);
            let leaves = [query.clone(), key.clone(), value.clone()];
            let name = named(&attention);
            for row in numbers(&attend(&attention, &leaves, call).weights.unwrap()).chunks(3) {
                assert!(row[0].is_nan() && row[2] == 0.0, "{path:?} {name} {row:?}");
            }
        }
    }
    // For a query of NaN, the window has no position.
    let init = &mut Initializer::new(4, &device());
    let local = scaled(Normalize::softmax()).with_predictor(PositionPredictor::new(SIZE, 1, init));
    let mask = Mask::function("not the last", |place| place.key != 2);
    let leaves = inputs(1, 1, 2, 3).map(|x| x * f32::NAN);
    let weights = attend(
        &local,
        &leaves,
        AttentionOptions::new(Observe::Weights).mask(mask),
    )
    .weights;
    for row in numbers(&weights.unwrap()).chunks(3) {
        assert_eq!(row[2], 0.0, "local-p: {row:?}");
    }
}
