//! What holds for any attention: observing changes nothing, rows and groups give the same as alone, keys have no order;
//! and known mistakes of other libraries, one test each.
#![allow(
    clippy::disallowed_methods,
    reason = "definitions in Burn's own products; nothing is empty here"
)]

use burn::tensor::{DType, Tensor, TensorData};
use proptest::prelude::*;
use regard_nn::{
    Attention, AttentionOptions, Observe, Path,
    dropout::DropoutRng,
    initialize::Initializer,
    mask::{Alignment, Grid, Locality, Mask, PaddingMask, Place, PositionPredictor},
    normalize::{Addressing, Form, Monotonic, Normalize},
    score::{Additive, Cosine, Distance, GaussianWindow, ScaledDot, Score},
};

use crate::{
    mechanisms::{
        SIZE, attend, drawn, inputs, magnitude, mechanisms, named, normalisers, same_bits,
    },
    support::{device, numbers, values},
};

/// Whatever is observed, the context has the same bits, and what is reported follows from the weights.
#[test]
fn observing_changes_no_number() {
    let x = inputs(2, 1, 3, 6);
    let padding =
        || Mask::padding(PaddingMask::from_lengths(&[6, 4], 6, &device())) & Mask::causal();
    for attention in mechanisms(2) {
        let name = named(&attention);
        let seen = |observe| {
            attend(
                &attention,
                &x,
                AttentionOptions::new(observe).mask(padding()),
            )
        };
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
        let attended = attend(&attention, &leaves, AttentionOptions::new(Observe::Weights));
        let is_window = matches!(attention.score, Score::GaussianWindow(_));
        let finite = numbers(&attended.context).iter().all(|x| x.is_finite());
        // The window's exponentials of ±100 overflow; in practice its queries are outputs of a layer.
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
                    let mut noise = DropoutRng::seeded(3);
                    let call = AttentionOptions::new(observe.clone()).noise(&mut noise);
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

/// The requested alignment is used, whatever the batch (candle's meaning depends on the batch size).
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

/// Dropout changes the context, not what is observed; without noise nothing is dropped; the same seed drops the same.
#[test]
fn dropout_acts_on_what_is_read() {
    let x = inputs(2, 2, 3, 6);
    let attention = Attention::new(Score::scaled_dot()).with_dropout(0.5);
    let quiet = attend(&attention, &x, AttentionOptions::new(Observe::Weights));
    let with_seed = |seed| {
        let mut noise = DropoutRng::seeded(seed);
        attend(
            &attention,
            &x,
            AttentionOptions::new(Observe::Weights).noise(&mut noise),
        )
    };
    let (a, b, c) = (with_seed(1), with_seed(1), with_seed(2));
    assert!(same_bits(&a.context, &b.context));
    assert!(!same_bits(&a.context, &c.context));
    assert!(same_bits(&a.weights.unwrap(), &quiet.weights.unwrap()));
    let plain = Attention::new(Score::scaled_dot());
    assert!(same_bits(
        &attend(&plain, &x, AttentionOptions::default()).context,
        &quiet.context
    ));
    let mean = (0..400)
        .map(|seed| with_seed(seed).context)
        .fold(quiet.context.zeros_like(), |sum, x| sum + x)
        / 400.0;
    let worst = (mean - quiet.context).abs().max().into_scalar::<f32>();
    assert!(worst < 0.25, "{worst}");
}

/// The bias is added after the softcap, and its sizes of 1 broadcast.
#[test]
fn bias_and_softcap() {
    let x = inputs(2, 2, 3, 4);
    let attention = Attention::new(Score::dot())
        .with_softcap(1.5)
        .with_normalize(Normalize::identity());
    let scores = numbers(
        &attention
            .scores(x[0].clone(), x[1].clone(), AttentionOptions::default())
            .unwrap(),
    );
    let raw = numbers(&Score::dot().forward(x[0].clone(), x[1].clone()));
    for (found, raw) in scores.iter().zip(&raw) {
        assert!((found - 1.5 * (raw / 1.5).tanh()).abs() < 1e-6);
    }
    let bias = drawn("bias", [1, 2, 1, 4], 3.0);
    let call = AttentionOptions::default().bias(bias.clone());
    let biased = attention.scores(x[0].clone(), x[1].clone(), call).unwrap();
    let expected = Tensor::<4>::from_data(TensorData::new(scores, [2, 2, 3, 4]), &device()) + bias;
    assert!(same_bits(&biased, &expected));
}

/// One call of three queries equals three calls of one, for the mechanisms that continue from query to query.
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
            AttentionOptions::default(),
        );
        let mut carried = None;
        let mut steps = vec![];
        for t in 0..3 {
            let step = [query.clone().narrow(2, t, 1), key.clone(), value.clone()];
            let attended = attend(
                &attention,
                &step,
                AttentionOptions::default().carried(carried),
            );
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

/// A batch of one equals that row of the batch; grouped heads are repeated heads.
#[test]
fn rows_and_groups() {
    for attention in mechanisms(4) {
        let name = named(&attention);
        let x = inputs(4, 2, 3, 5);
        let both = attend(&attention, &x, AttentionOptions::default()).context;
        let second = x.clone().map(|x| x.narrow(0, 1, 1));
        let alone = attend(&attention, &second, AttentionOptions::default()).context;
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
            AttentionOptions::default(),
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
        let attended = attend(&attention, &x, AttentionOptions::default());
        if by_place || attended.carried.is_some() {
            continue;
        }
        let x = [query.clone(), reorder(key.clone()), reorder(value.clone())];
        let other = attend(&attention, &x, AttentionOptions::default());
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
            let padding = Mask::padding(PaddingMask::from_lengths(&lengths, keys, &device()));
            let mask = padding & Mask::causal_aligned(Alignment::UpperLeft);
            let grid = Grid { batch: 2, heads, queries, keys, ..Grid::default() };
            let mut noise = DropoutRng::seeded(seed);
            let call = AttentionOptions::new(Observe::Weights).mask(mask.clone()).noise(&mut noise);
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
            let padding = Mask::padding(PaddingMask::from_lengths(&lengths, keys, &device()));
            let run = |path| attend(&attention, &x, AttentionOptions::default().mask(padding.clone()).path(path));
            let (auto, plain) = (run(Path::Auto).context, run(Path::Plain).context);
            let worst = (auto - plain).abs().max().into_scalar::<f32>();
            prop_assert!(worst <= 32.0 * f32::EPSILON, "{}: {worst}", named(&attention));
        }
    }
}

/// Attention over scores that `f32` holds exactly, in f64.
struct Exact {
    weights: Vec<f64>,
    context: Vec<f64>,
    /// With respect to query, key, value and bias.
    gradients: [Vec<f64>; 4],
}

const BATCH: usize = 2;
const VALUE: usize = 3;

/// One head: `scores [batch, queries, keys]`, `None` where a key is hidden.
fn exact(
    scores: &[Option<f32>],
    x: &[Vec<f64>; 3],
    upstream: &[f64],
    queries: usize,
    keys: usize,
) -> Exact {
    let [query, key, value] = x;
    let mut all = Exact {
        weights: vec![0.0; BATCH * queries * keys],
        context: vec![0.0; BATCH * queries * VALUE],
        gradients: [query.len(), key.len(), value.len(), scores.len()]
            .map(|count| vec![0.0; count]),
    };
    for i in 0..BATCH * queries {
        let first = i / queries * keys;
        let scores = &scores[i * keys..][..keys];
        let most = scores
            .iter()
            .flatten()
            .fold(f64::NEG_INFINITY, |most, &s| most.max(s.into()));
        let exponential = |score: &Option<f32>| score.map_or(0.0, |s| (f64::from(s) - most).exp());
        let sum: f64 = scores.iter().map(exponential).sum();
        let upstream = &upstream[i * VALUE..][..VALUE];
        let of_value = |j: usize| -> f64 {
            let value = &value[(first + j) * VALUE..][..VALUE];
            upstream.iter().zip(value).map(|(u, v)| u * v).sum()
        };
        let weights: Vec<f64> = scores
            .iter()
            .map(|score| exponential(score) / sum.max(1e-300))
            .collect();
        let mean: f64 = weights
            .iter()
            .enumerate()
            .map(|(j, w)| w * of_value(j))
            .sum();
        for (j, &weight) in weights.iter().enumerate() {
            let slope = weight * (of_value(j) - mean);
            all.weights[i * keys + j] = weight;
            all.gradients[3][i * keys + j] = slope;
            for c in 0..SIZE {
                all.gradients[0][i * SIZE + c] += slope * key[(first + j) * SIZE + c];
                all.gradients[1][(first + j) * SIZE + c] += slope * query[i * SIZE + c];
            }
            for c in 0..VALUE {
                all.context[i * VALUE + c] += weight * value[(first + j) * VALUE + c];
                all.gradients[2][(first + j) * VALUE + c] += weight * upstream[c];
            }
        }
    }
    all
}

/// A bias for a row of scores.
fn bias_row(keys: usize) -> impl Strategy<Value = Vec<f32>> {
    prop_oneof![
        magnitude().prop_map(move |x| vec![x; keys]),
        (magnitude(), 0..keys).prop_map(move |(x, at)| {
            let mut row = vec![0.0; keys];
            row[at] = x;
            row
        }),
        prop::collection::vec(magnitude(), keys),
        (magnitude(), prop::collection::vec(-1.0f32..1.0, keys))
            .prop_map(|(x, small)| small.into_iter().map(|y| x * 1e-3 * y).collect()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..Default::default() })]

    /// Scores of any size that `f32` holds, with or without a bias, some hidden: fused, plain and query by query, the
    /// context, weights and gradients are those of a softmax in f64 over the same scores.
    #[test]
    fn scores_of_any_size(
        ((queries, keys), bias) in (1usize..20, 1usize..40).prop_flat_map(|sizes| {
            let row = bias_row(sizes.1);
            (Just(sizes), prop::option::of(prop::collection::vec(row, BATCH * sizes.0)))
        }),
        exponents in prop_oneof![2 => Just([0, 0]), 1 => [-20..60i32, -20..60i32]],
        mask in 0usize..3,
    ) {
        // Products of small whole numbers and powers of 2 are exact in any order, so that all paths have the same scores.
        let exponents = match bias {
            Some(_) => [0, 0],
            None => exponents,
        };
        let scales = exponents.map(|exponent| f64::from(exponent).exp2());
        let whole = |name, length, scale: f64| -> Vec<f32> {
            let drawn = values(name, BATCH * length * SIZE, 2.5);
            drawn.iter().map(|x| x.round() * scale as f32).collect()
        };
        let host = [
            whole("query", queries, scales[0]),
            whole("key", keys, scales[1]),
            values("value", BATCH * keys * VALUE, 2.0),
        ];
        let shapes = [[BATCH, 1, queries, SIZE], [BATCH, 1, keys, SIZE], [BATCH, 1, keys, VALUE]];
        let bias: Option<Vec<f32>> = bias.map(|rows| rows.concat());
        let mask = [
            Mask::all(),
            Mask::causal_aligned(Alignment::UpperLeft),
            Mask::padding(PaddingMask::from_lengths(&[keys, keys / 2], keys, &device())),
        ][mask].clone();
        let grid = Grid { batch: BATCH, heads: 1, queries, keys, ..Grid::default() };
        let scores: Vec<Option<f32>> = (0..BATCH * queries * keys)
            .map(|at| {
                let (row, key) = (at / keys, at % keys);
                let place = Place { batch: row / queries, head: 0, query: row % queries, key };
                let key = &host[1][(row / queries * keys + key) * SIZE..][..SIZE];
                let product: f32 = host[0][row * SIZE..][..SIZE].iter().zip(key).map(|(q, k)| q * k).sum();
                let score = product + bias.as_ref().map_or(0.0, |bias| bias[at]);
                mask.sees(&grid, place).unwrap().then_some(score)
            })
            .collect();
        prop_assume!(scores.iter().flatten().all(|score| score.is_finite()));
        let upstream = values("upstream", BATCH * queries * VALUE, 1.0);
        let wide = |x: &Vec<f32>| -> Vec<f64> { x.iter().map(|&x| x.into()).collect() };
        let truth = exact(&scores, &host.each_ref().map(wide), &wide(&upstream), queries, keys);

        let tensor = |x: &[f32], shape| Tensor::<4>::from_data(TensorData::new(x.to_vec(), shape), &device());
        let near = |what: &str, found: Vec<f32>, expected: &[f64], size: f64| {
            prop_assert_eq!(found.len(), expected.len());
            for (at, (&found, expected)) in found.iter().zip(expected).enumerate() {
                let off = (f64::from(found) - expected).abs() / size;
                prop_assert!(off <= f64::from(f32::EPSILON), "{what}[{at}] is {found}, expected {expected}");
            }
            Ok(())
        };
        // The weights of 40 keys are sums of some 40 roundings; gradients are sums of up to 40 terms, each of up to 6.
        let (of_weights, of_gradients) = (64.0, 4096.0);
        for path in [Path::Fused, Path::Plain] {
            let leaves: Vec<Tensor<4>> = host
                .iter()
                .zip(shapes)
                .map(|(x, shape)| tensor(x, shape).require_grad())
                .collect();
            let bias = bias.as_ref().map(|bias| tensor(bias, [BATCH, 1, queries, keys]).require_grad());
            let attention = Attention::new(Score::dot());
            let attend = |query: Tensor<4>, bias: Option<Tensor<4>>, first: usize| {
                let call = AttentionOptions { bias, ..AttentionOptions::new(Observe::Weights).mask(mask.clone()) };
                let call = call.first_query(first).path(path);
                attend(&attention, &[query, leaves[1].clone(), leaves[2].clone()], call)
            };
            let attended = attend(leaves[0].clone(), bias.clone(), 0);
            near("weights", numbers(&attended.weights.unwrap()), &truth.weights, of_weights)?;
            near("context", numbers(&attended.context), &truth.context, 2.0 * of_weights)?;
            let all = (attended.context * tensor(&upstream, [BATCH, 1, queries, VALUE])).sum().backward();
            let sizes = [scales[1], scales[0], 1.0];
            for (i, (leaf, size)) in leaves.iter().zip(sizes).enumerate() {
                let found = numbers(&leaf.grad(&all).unwrap());
                near("gradient", found, &truth.gradients[i], size * of_gradients)?;
            }
            if let Some(bias) = &bias {
                near("bias", numbers(&bias.grad(&all).unwrap()), &truth.gradients[3], of_gradients)?;
            }
            let steps = (0..queries).map(|t| {
                let bias = bias.clone().map(|bias| bias.narrow(2, t, 1));
                attend(leaves[0].clone().narrow(2, t, 1), bias, t).context
            });
            let steps = Tensor::cat(steps.collect(), 2);
            near("steps", numbers(&steps), &truth.context, 2.0 * of_weights)?;
        }
    }
}

/// A bias of one huge number on all keys, or on one, for every mechanism that a kernel serves: the same as in the plain
/// path.
#[test]
fn huge_biases_on_every_kernel() {
    let (queries, keys) = (3, 20);
    let x = inputs(2, 1, queries, keys);
    let mut checked = 0;
    for attention in mechanisms(2) {
        // A score of up to 20 is lost in the rounding of the smallest of these.
        for huge in [-1e9, -1e30, f32::MIN, 1e20] {
            for alone in [false, true] {
                let bias = Tensor::<4>::zeros([1, 1, queries, keys], &device());
                let places = if alone { 4..5 } else { 0..keys };
                let bias = bias.slice_fill([0..1, 0..1, 0..queries, places], huge);
                let run = |path| {
                    let call = AttentionOptions::new(Observe::Weights)
                        .bias(bias.clone())
                        .path(path);
                    let [query, key, value] = x.clone();
                    attention.forward_with(query, key, value, call)
                };
                let Ok(fused) = run(Path::Fused) else {
                    continue;
                };
                let plain = run(Path::Plain).unwrap();
                let name = named(&attention);
                for (a, b) in [
                    (fused.context, plain.context),
                    (fused.weights.unwrap(), plain.weights.unwrap()),
                ] {
                    let worst = (a - b).abs().max().into_scalar::<f32>();
                    assert!(
                        worst <= 64.0 * f32::EPSILON,
                        "{name}, {huge}, {alone}: {worst}"
                    );
                }
                checked += 1;
            }
        }
    }
    assert_eq!(checked, (6 * 3 + 2) * 8);
}

/// One number for all keys of a row: it hides the row, or raises it above a sink, or changes nothing.
#[test]
fn a_bias_may_be_shared_by_the_keys() {
    let x = inputs(2, 1, 3, 6);
    let row = Tensor::<4>::from_data([[[[0.5], [f32::NEG_INFINITY], [-2.0]]]], &device());
    let full = row.clone().expand([1, 1, 3, 6]);
    let mut checked = 0;
    for attention in mechanisms(2) {
        if !matches!(
            attention.normalize,
            Normalize::Softmax(_) | Normalize::Sink(_) | Normalize::Sparsemax(_)
        ) {
            continue;
        }
        for path in [Path::Fused, Path::Plain] {
            let run = |bias: &Tensor<4>| {
                let bias = bias.clone().require_grad();
                let call = AttentionOptions::new(Observe::Weights)
                    .bias(bias.clone())
                    .path(path);
                let [query, key, value] = x.clone();
                let attended = attention.forward_with(query, key, value, call).ok()?;
                let upstream = drawn("upstream", attended.context.dims(), 1.0);
                let all = (attended.context.clone() * upstream).sum().backward();
                Some([attended.context, attended.weights?, bias.grad(&all)?])
            };
            let (Some(shared), Some(expected)) = (run(&row), run(&full)) else {
                continue;
            };
            let [context, weights, gradient] = expected;
            for (found, expected) in shared.iter().zip([context, weights, gradient.sum_dim(3)]) {
                assert_eq!(found.dims(), expected.dims());
                for (found, expected) in numbers(found).iter().zip(numbers(&expected)) {
                    let off = (found - expected).abs();
                    assert!(
                        off <= 32.0 * f32::EPSILON,
                        "{} {path:?}: {off}",
                        named(&attention)
                    );
                }
            }
            checked += 1;
        }
    }
    assert_eq!(checked, 10 * 4 + 6 * 3 + 2);
}

/// No keys to read, or no queries.
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
            let attended = attend(&attention, &x, AttentionOptions::default().mask(mask));
            assert_eq!(
                attended.context.dtype(),
                DType::F64,
                "{}",
                named(&attention)
            );
        }
    }
}

/// Documents that are packed into one row are read as each alone, or their mask is refused.
#[test]
fn packed_documents_are_each_alone() {
    let (first, length) = (2, 5);
    let packed = Mask::document(&[vec![0, 0, 1, 1, 1]]) & Mask::causal();
    let init = &mut Initializer::new(6, &device());
    let predictor = PositionPredictor::new(SIZE, 2, init);
    let mut all = mechanisms(2);
    all.push(Attention::new(Score::dot()).with_predictor(predictor));
    let mut refused = 0;
    for attention in all {
        let name = named(&attention);
        let x = inputs(2, 2, length, length);
        let [query, key, value] = x.clone();
        let call = AttentionOptions::default().mask(packed.clone());
        let together = match attention.forward_with(query, key, value, call) {
            Ok(attended) => attended.context,
            Err(error) => {
                let error = error.to_string();
                assert!(error.contains("`mask` is one of documents"), "{error}");
                refused += 1;
                continue;
            }
        };
        for part in [0..first, first..length] {
            let own = |x: Tensor<4>| x.narrow(2, part.start, part.len());
            let call = AttentionOptions::default().mask(Mask::causal());
            let alone = attend(&attention, &x.clone().map(own), call).context;
            let size = alone.clone().abs().max().into_scalar::<f32>();
            let off = own(together.clone()) - alone;
            let worst = off.abs().max().into_scalar::<f32>();
            assert!(
                worst <= 64.0 * f32::EPSILON * (1.0 + size),
                "{name}: {worst}"
            );
        }
    }
    // Every score with the monotonic normalisers and NTM addressing; location with all others; the Gaussian window; local-p.
    assert_eq!(refused, 10 * 4 + 11 + 1 + 1);
}

/// The window of a locality is joined with the mask that there is.
#[test]
fn a_locality_hides_beside_a_mask() {
    let init = &mut Initializer::new(6, &device());
    let locality = Locality::Monotonic { half_width: 1 };
    let attention = Attention::new(Score::dot())
        .with_mask(Mask::causal())
        .with_locality(locality, SIZE, init);
    assert_eq!(attention.mask().picture(3, 3), "■··\n■■·\n·■■\n");
    assert_eq!(attention.locality(), locality);
}

/// Weights that are looked at belong to scores that are computed once more. One query is read by a kernel that adds up a score in
/// another order: with a large scale its sum of exponentials is not theirs, and rows summed to 0 or to more than 1.
#[test]
fn observed_rows_of_one_query_sum_to_one_at_any_scale() {
    for exponent in [0, 4, 8, 16, 30] {
        let scale = 10f64.powi(exponent);
        let attention = Attention::new(Score::ScaledDot(ScaledDot::with_scale(scale)));
        for case in 0..40 {
            // Where gradients are recorded, another kernel reads.
            let of = |name: &str, shape| drawn(&format!("{name} {case}"), shape, 2.0).inner();
            let x = [
                of("query", [2, 4, 1, 40]),
                of("key", [2, 2, 7, 40]),
                of("value", [2, 2, 7, 3]),
            ];
            let attended = attend(&attention, &x, AttentionOptions::new(Observe::Weights));
            for row in numbers(&attended.weights.unwrap()).chunks(7) {
                let sum: f32 = row.iter().sum();
                assert!((sum - 1.0).abs() < 1e-5, "scale {scale}: {row:?}");
            }
            let entropy = attend(&attention, &x, AttentionOptions::new(Observe::Entropy)).entropy;
            let most = 7f32.ln() + 1e-4;
            for h in numbers(&entropy.unwrap()) {
                assert!((-1e-4..=most).contains(&h), "scale {scale}: {h}");
            }
        }
    }
}
