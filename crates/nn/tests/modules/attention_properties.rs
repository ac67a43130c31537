//! What holds for any attention: observing changes nothing, rows and groups are what they are alone, keys have no order;
//! and the mistakes of other libraries, one test each.
#![allow(
    clippy::disallowed_methods,
    reason = "definitions in Burn's own products; nothing is empty here"
)]

use burn::tensor::{DType, Tensor, TensorData};
use proptest::prelude::*;
use regard_nn::{
    Attention, Call, Observe, Path,
    dropout::Noise,
    initialize::Initializer,
    mask::{Alignment, Grid, Keep, Mask, Place},
    normalize::{Addressing, Form, Monotonic, Normalize},
    score::{Additive, Cosine, Distance, GaussianWindow, Score},
};

use crate::{
    mechanisms::{SIZE, attend, drawn, inputs, mechanisms, named, normalisers, same_bits},
    support::{device, numbers},
};

/// Whatever is observed, the context has the same bits, and what is reported follows from the weights.
#[test]
fn observing_changes_no_number() {
    let x = inputs(2, 1, 3, 6);
    let padding = || Mask::padding(Keep::from_lengths(&[6, 4], 6, &device())) & Mask::causal();
    for attention in mechanisms(2) {
        let name = named(&attention);
        let seen = |observe| attend(&attention, &x, Call::new(observe).mask(padding()));
        let all = seen(Observe::Weights);
        let weights = all.weights.clone().unwrap();
        let rows = numbers(&weights);
        for observe in [
            Observe::Nothing,
            Observe::Rows(vec![2, 0]),
            Observe::Entropy,
            Observe::ColumnSums,
            Observe::TopK(2),
        ] {
            let other = seen(observe.clone());
            assert!(
                same_bits(&all.context, &other.context),
                "{name} {observe:?}"
            );
            match observe {
                Observe::Rows(_) => {
                    let picked = Tensor::cat(
                        [2, 0].map(|row| weights.clone().narrow(2, row, 1)).to_vec(),
                        2,
                    );
                    assert!(same_bits(&picked, &other.weights.unwrap()), "{name}");
                }
                Observe::Entropy => {
                    let found = numbers(&other.entropy.unwrap());
                    for (row, found) in rows.chunks(6).zip(found) {
                        let plain = |w: &f32| if *w > 0.0 { -w * w.ln() } else { 0.0 };
                        let mut expected: f32 = row.iter().map(plain).sum();
                        if let Normalize::Sink(_) = attention.normalize {
                            expected += plain(&(1.0 - row.iter().sum::<f32>()));
                        }
                        let negative = row.iter().any(|w| *w < 0.0);
                        assert!(negative || (found - expected).abs() < 1e-5, "{name}");
                    }
                }
                Observe::ColumnSums => {
                    let found = numbers(&other.column_sums.unwrap());
                    for (head, found) in rows.chunks(18).zip(found.chunks(6)) {
                        for (key, found) in found.iter().enumerate() {
                            let expected: f32 = (0..3).map(|row| head[row * 6 + key]).sum();
                            assert!((found - expected).abs() < 1e-5, "{name}");
                        }
                    }
                }
                Observe::TopK(_) => {
                    let top = other.top.unwrap();
                    let keys: Vec<i64> = top.keys.into_data().iter::<i64>().collect();
                    for ((row, keys), best) in rows
                        .chunks(6)
                        .zip(keys.chunks(2))
                        .zip(numbers(&top.weights).chunks(2))
                    {
                        let mut order: Vec<usize> = (0..6).collect();
                        order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
                        let key = |at: usize| if row[at] == 0.0 { -1 } else { at as i64 };
                        assert_eq!(keys, [key(order[0]), key(order[1])], "{name}");
                        assert_eq!(best, [row[order[0]], row[order[1]]], "{name}");
                    }
                }
                _ => {
                    assert!(other.weights.is_none());
                }
            }
        }
    }
}

/// Scores of ±1e4 give no NaN, forward or backward.
#[test]
fn extreme_scores() {
    for attention in mechanisms(1) {
        let name = named(&attention);
        let leaves = inputs(1, 1, 3, 4).map(|x| (x * 100.0).require_grad());
        let attended = attend(&attention, &leaves, Call::new(Observe::Weights));
        let is_window = matches!(attention.score, Score::GaussianWindow(_));
        let finite = numbers(&attended.context).iter().all(|x| x.is_finite());
        // The window's exponentials of ±100 do overflow; its queries are what a layer puts out.
        assert!(is_window || finite, "{name}");
        let all = (attended.context.sum() + leaves[0].clone().sum() * 0.0).backward();
        let slope = numbers(&leaves[0].grad(&all).unwrap());
        assert!(is_window || slope.iter().all(|x| x.is_finite()), "{name}");
    }
}

/// Keras 23038: a causal mask must hold with scores asked for, with dropout, and for one head.
#[test]
fn a_causal_mask_is_never_dropped() {
    let mut checked = 0;
    for heads in [1, 2] {
        for observe in [Observe::Nothing, Observe::Weights] {
            for probability in [0.0, 0.5] {
                let [query, key, value] = inputs(heads, heads, 4, 4);
                let attention = Attention::new(Score::scaled_dot())
                    .with_mask(Mask::causal())
                    .with_dropout(probability);
                let run = |value: Tensor<4>| {
                    let mut noise = Noise::seeded(3);
                    let call = Call::new(observe.clone()).noise(&mut noise);
                    attend(&attention, &[query.clone(), key.clone(), value], call).context
                };
                let future = value.clone().slice_fill([0..2, 0..heads, 3..4, 0..3], 9.0);
                let past = |x: Tensor<4>| x.narrow(2, 0, 3);
                assert!(same_bits(&past(run(value.clone())), &past(run(future))));
                checked += 1;
            }
        }
    }
    assert_eq!(checked, 8);
}

/// Which alignment is asked for is which is given, whatever the batch (candle's means two things by batch size).
#[test]
fn alignments_do_not_depend_on_the_batch() {
    for batch in [1, 2] {
        let ones = |length| Tensor::<4>::ones([batch, 1, length, 2], &device());
        for (alignment, expected) in [
            (
                Alignment::LowerRight,
                [1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0, 0.0, 0.25, 0.25, 0.25, 0.25],
            ),
            (
                Alignment::UpperLeft,
                [1.0, 0.0, 0.0, 0.0, 0.5, 0.5, 0.0, 0.0],
            ),
        ] {
            let attention = Attention::new(Score::dot()).with_mask(Mask::causal_aligned(alignment));
            let attended = attention
                .forward(ones(2), ones(4), ones(4), Observe::Weights)
                .unwrap();
            for row in numbers(&attended.weights.unwrap()).chunks(8) {
                for (found, expected) in row.iter().zip(expected) {
                    assert!((found - expected).abs() < 1e-6);
                }
            }
        }
    }
}

/// Dropout changes the context, not what is reported; without noise nothing is dropped; the same seed drops the same.
#[test]
fn dropout_acts_on_what_is_read() {
    let x = inputs(2, 2, 3, 6);
    let attention = Attention::new(Score::scaled_dot()).with_dropout(0.5);
    let quiet = attend(&attention, &x, Call::new(Observe::Weights));
    let with_seed = |seed| {
        let mut noise = Noise::seeded(seed);
        attend(
            &attention,
            &x,
            Call::new(Observe::Weights).noise(&mut noise),
        )
    };
    let (a, b, c) = (with_seed(1), with_seed(1), with_seed(2));
    assert!(same_bits(&a.context, &b.context));
    assert!(!same_bits(&a.context, &c.context));
    assert!(same_bits(&a.weights.unwrap(), &quiet.weights.unwrap()));
    let plain = Attention::new(Score::scaled_dot());
    assert!(same_bits(
        &attend(&plain, &x, Call::default()).context,
        &quiet.context
    ));
    let mean = (0..400)
        .map(|seed| with_seed(seed).context)
        .fold(quiet.context.zeros_like(), |sum, x| sum + x)
        / 400.0;
    let worst = (mean - quiet.context).abs().max().into_scalar::<f32>();
    assert!(worst < 0.25, "{worst}");
}

/// The bias is added after the softcap, and shared sizes of it broadcast.
#[test]
fn bias_and_softcap() {
    let x = inputs(2, 2, 3, 4);
    let attention = Attention::new(Score::dot())
        .with_softcap(1.5)
        .with_normalize(Normalize::identity());
    let scores = numbers(
        &attention
            .scores(x[0].clone(), x[1].clone(), Call::default())
            .unwrap(),
    );
    let raw = numbers(&Score::dot().forward(x[0].clone(), x[1].clone()));
    for (found, raw) in scores.iter().zip(&raw) {
        assert!((found - 1.5 * (raw / 1.5).tanh()).abs() < 1e-6);
    }
    let bias = drawn("bias", [1, 2, 1, 4], 3.0);
    let call = Call::default().bias(bias.clone());
    let biased = attention.scores(x[0].clone(), x[1].clone(), call).unwrap();
    let expected = Tensor::<4>::from_data(TensorData::new(scores, [2, 2, 3, 4]), &device()) + bias;
    assert!(same_bits(&biased, &expected));
}

/// One reading of three queries is three readings of one, for the mechanisms that go on from query to query.
#[test]
fn carried_readings_are_one_reading() {
    let init = &mut Initializer::new(6, &device());
    let mechanisms = [
        Attention::new(Score::dot())
            .with_normalize(Normalize::Monotonic(Monotonic::new(Form::Parallel))),
        Attention::new(Score::dot())
            .with_normalize(Normalize::Monotonic(Monotonic::new(Form::Recursive))),
        Attention::new(Score::Cosine(Cosine::learned(SIZE, init)))
            .with_normalize(Normalize::Addressing(Addressing::new(SIZE, 1, init))),
        Attention::new(Score::GaussianWindow(GaussianWindow::new(SIZE, 2, init)))
            .with_normalize(Normalize::identity()),
    ];
    let [query, key, value] = inputs(2, 2, 3, 5);
    for attention in mechanisms {
        let whole = attend(
            &attention,
            &[query.clone(), key.clone(), value.clone()],
            Call::default(),
        );
        let mut carried = None;
        let mut steps = vec![];
        for t in 0..3 {
            let step = [query.clone().narrow(2, t, 1), key.clone(), value.clone()];
            let attended = attend(&attention, &step, Call::default().carried(carried));
            carried = attended.carried;
            steps.push(attended.context);
        }
        let worst = (Tensor::cat(steps, 2) - whole.context)
            .abs()
            .max()
            .into_scalar::<f32>();
        assert!(
            worst <= 4.0 * f32::EPSILON,
            "{}: {worst}",
            named(&attention)
        );
    }
}

/// A batch of one is that row of the batch; grouped heads are repeated heads.
#[test]
fn rows_and_groups() {
    for attention in mechanisms(4) {
        let name = named(&attention);
        let x = inputs(4, 2, 3, 5);
        let both = attend(&attention, &x, Call::default()).context;
        let second = x.clone().map(|x| x.narrow(0, 1, 1));
        let alone = attend(&attention, &second, Call::default()).context;
        let close = |a: Tensor<4>, b: Tensor<4>| {
            let worst = (a - b).abs().max().into_scalar::<f32>();
            assert!(worst <= 16.0 * f32::EPSILON, "{name}: {worst}");
        };
        close(both.clone().narrow(0, 1, 1), alone);
        let [query, key, value] = x;
        let repeat = |x: Tensor<4>| {
            let heads = [0, 0, 1, 1].map(|head| x.clone().narrow(1, head, 1));
            Tensor::cat(heads.to_vec(), 1)
        };
        let repeated = attend(
            &attention,
            &[query, repeat(key), repeat(value)],
            Call::default(),
        );
        close(both, repeated.context);
    }
}

/// Without positions the order of the keys does not matter.
#[test]
fn keys_have_no_order() {
    let [query, key, value] = inputs(2, 2, 3, 4);
    let reorder = |x: Tensor<4>| {
        let parts = [2, 0, 3, 1].map(|i| x.clone().narrow(2, i, 1));
        Tensor::cat(parts.to_vec(), 2)
    };
    for attention in mechanisms(2) {
        let by_place = matches!(
            attention.score,
            Score::Location(_) | Score::GaussianWindow(_)
        );
        let x = [query.clone(), key.clone(), value.clone()];
        let attended = attend(&attention, &x, Call::default());
        if by_place || attended.carried.is_some() {
            continue;
        }
        let x = [query.clone(), reorder(key.clone()), reorder(value.clone())];
        let other = attend(&attention, &x, Call::default());
        let worst = (attended.context - other.context)
            .abs()
            .max()
            .into_scalar::<f32>();
        assert!(
            worst <= 16.0 * f32::EPSILON,
            "{}: {worst}",
            named(&attention)
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..Default::default() })]

    /// Rows sum to 1 (at most 1, or anything, where the normaliser says so); no weight where nothing is seen.
    #[test]
    fn rows_of_every_mechanism(
        queries in 1usize..5,
        keys in 1usize..8,
        heads in 1usize..3,
        seed in any::<u64>(),
        lengths in (0usize..8, 1usize..8),
    ) {
        let lengths = [lengths.0.min(keys), lengths.1.min(keys)];
        let x = inputs(heads, 1, queries, keys);
        for attention in mechanisms(heads) {
            let padding = Mask::padding(Keep::from_lengths(&lengths, keys, &device()));
            let mask = padding & Mask::causal_aligned(Alignment::UpperLeft);
            let grid = Grid { batch: 2, heads, queries, keys, first_query: 0 };
            let mut noise = Noise::seeded(seed);
            let call = Call::new(Observe::Weights).mask(mask.clone()).noise(&mut noise);
            let weights = numbers(&attend(&attention, &x, call).weights.unwrap());
            for (i, row) in weights.chunks(keys).enumerate() {
                let (batch, query) = (i / (heads * queries), i % queries);
                let sees = |key| mask.sees(&grid, Place { batch, head: 0, query, key }).unwrap();
                let any = (0..keys).any(sees);
                for (key, weight) in row.iter().enumerate() {
                    prop_assert!(sees(key) || *weight == 0.0, "{}", named(&attention));
                }
                let sum: f32 = row.iter().sum();
                let close = (sum - 1.0).abs() <= 16.0 * f32::EPSILON;
                match &attention.normalize {
                    _ if !any => prop_assert_eq!(sum, 0.0),
                    Normalize::Softmax(_) | Normalize::Sparsemax(_) | Normalize::Entmax15(_)
                    | Normalize::Hardmax(_) | Normalize::HardSample(_) =>
                        prop_assert!(close, "{}: {sum}", named(&attention)),
                    Normalize::Sink(_) | Normalize::Monotonic(_) =>
                        prop_assert!(sum <= 1.0 + 16.0 * f32::EPSILON, "{}: {sum}", named(&attention)),
                    _ => {}
                }
            }
        }
    }

    /// Fused or plain: the same numbers, within twice the distance of plain f32 from plain f64.
    #[test]
    fn both_paths(queries in 1usize..9, keys in 1usize..20, lengths in (1usize..20, 1usize..20)) {
        let lengths = [lengths.0.min(keys), lengths.1.min(keys)];
        let x = inputs(1, 1, queries, keys);
        for attention in mechanisms(1) {
            let padding = Mask::padding(Keep::from_lengths(&lengths, keys, &device()));
            let run = |path| attend(&attention, &x, Call::default().mask(padding.clone()).path(path));
            let (auto, plain) = (run(Path::Auto).context, run(Path::Plain).context);
            let worst = (auto - plain).abs().max().into_scalar::<f32>();
            prop_assert!(worst <= 32.0 * f32::EPSILON, "{}: {worst}", named(&attention));
        }
    }
}

/// Nothing to read, nothing to read with.
#[test]
fn empty_tensors() {
    for attention in [
        Attention::new(Score::scaled_dot()),
        mechanisms(1).remove(60),
    ] {
        for [queries, keys] in [[0, 3], [3, 0], [0, 0]] {
            let query = Tensor::<4>::zeros([2, 1, queries, SIZE], &device());
            let key = Tensor::<4>::zeros([2, 1, keys, SIZE], &device());
            let attended = attention
                .forward(query, key.clone(), key, Observe::Weights)
                .unwrap();
            assert_eq!(attended.context.dims(), [2, 1, queries, SIZE]);
            assert_eq!(attended.weights.unwrap().dims(), [2, 1, queries, keys]);
            assert!(numbers(&attended.context).iter().all(|x| *x == 0.0));
        }
    }
}

/// Luong's concat from its one matrix is the additive score of its two halves.
#[test]
fn concat_is_additive() {
    let weight = drawn("weight", [1, 1, 7, 3], 1.0).squeeze_dims::<2>(&[0, 1]);
    let vector = drawn("vector", [1, 1, 1, 3], 1.0).reshape([3]);
    let score = Additive::concat(4, weight.clone(), vector.clone()).unwrap();
    let query = drawn("query", [2, 1, 2, 4], 2.0);
    let annotations = drawn("annotations", [2, 1, 5, 3], 2.0);
    let found = score.forward(query.clone(), score.keys(annotations.clone()));
    let pair = Tensor::cat(
        vec![
            query.unsqueeze_dim::<5>(3).expand([2, 1, 2, 5, 4]),
            annotations.unsqueeze_dim::<5>(2).expand([2, 1, 2, 5, 3]),
        ],
        4,
    );
    let hidden = pair.matmul(weight.unsqueeze::<5>()).tanh();
    let expected = (hidden * vector.unsqueeze::<5>())
        .sum_dim(4)
        .squeeze_dim::<4>(4);
    let worst = (found - expected).abs().max().into_scalar::<f32>();
    assert!(worst <= 4.0 * f32::EPSILON, "{worst}");
}

/// Double precision goes through every mechanism.
#[test]
fn double_precision() {
    let x = inputs(1, 1, 3, 4).map(|x| x.cast(DType::F64));
    for attention in [
        Score::dot(),
        Score::scaled_dot(),
        Score::Distance(Distance::default()),
    ] {
        for normalize in normalisers(1) {
            if matches!(normalize, Normalize::Addressing(_)) {
                continue; // its weights are f32
            }
            if let Normalize::Sink(sink) = &normalize
                && sink.logits.is_some()
            {
                continue;
            }
            let attention = Attention::new(attention.clone()).with_normalize(normalize);
            let mask = Mask::causal_aligned(Alignment::UpperLeft);
            let attended = attend(&attention, &x, Call::default().mask(mask));
            assert_eq!(
                attended.context.dtype(),
                DType::F64,
                "{}",
                named(&attention)
            );
        }
    }
}
