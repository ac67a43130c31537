//! The fused path against the plain one: every combination that a kernel serves, by both paths, forward and backward; every
//! other combination is refused by name, and never silently computed by something else. The comparison is described in
//! [`both_paths`](crate::both_paths).

use burn::tensor::{DType, Tensor, TensorData};
use regard_nn::{
    Attention, AttentionOptions, Observe, Path,
    initialize::Initializer,
    mask::{Mask, PaddingMask, PositionPredictor},
    normalize::{Normalize, Sink},
    position::{Alibi, Positions},
    score::Score,
};

use crate::{
    both_paths::{BATCH, HEADS, Setting, distance, masks, numbers},
    mechanisms::{SIZE, is_impossible, normalisers, scores},
    support::{device, values},
};

const OBSERVATIONS: [fn() -> Observe; 5] = [
    || Observe::Nothing,
    || Observe::Weights,
    || Observe::Entropy,
    || Observe::ColumnSums,
    || Observe::TopK(2),
];

#[test]
fn every_combination_of_the_dot_kernel() {
    let init = &mut Initializer::new(2, &device());
    let normalisers = [
        Normalize::softmax(),
        Normalize::Sink(Sink::learned(HEADS, init)),
        Normalize::Sink(Sink::fixed(0.5)),
    ];
    let (mut combinations, mut tensors) = (0, 0);
    for score in scores() {
        let served = !matches!(
            score,
            Score::Additive(_)
                | Score::WeightNormAdditive(_)
                | Score::Distance(_)
                | Score::Location(_)
                | Score::GaussianWindow(_)
        );
        if !served {
            continue;
        }
        for normalize in &normalisers {
            for (m, sizes) in [[4, 3, 5], [2, 6, 6], [1, 5, 3]].into_iter().enumerate() {
                for (name, mask) in masks(sizes[1], sizes[2]) {
                    let around = combinations % 8;
                    let mut attention =
                        Attention::new(score.clone()).with_normalize(normalize.clone());
                    if around & 1 == 1 {
                        attention = attention.with_softcap(0.8);
                    }
                    if around & 2 == 2 {
                        attention = attention.with_dropout(0.25);
                    }
                    let shapes = [
                        [BATCH, HEADS, sizes[1], sizes[2]],
                        [1, HEADS, 1, sizes[2]],
                        [1, 1, sizes[1], sizes[2]],
                    ];
                    let setting = Setting {
                        attention: &attention,
                        mask: &mask,
                        sizes,
                        bias: (around & 4 == 4).then_some(shapes[m]),
                        alibi: None,
                        seed: (around & 2 == 2).then_some(combinations as u64),
                        observe: OBSERVATIONS[combinations % 5](),
                        lse: true,
                    };
                    let name = format!("{} {} {name} {around}", score.name(), normalize.name());
                    tensors += setting.compare(&name);
                    combinations += 1;
                }
            }
        }
    }
    assert_eq!(combinations, 6 * 3 * 3 * 22);
    assert!(tensors > 6 * combinations, "{tensors}");
}

/// Softcap, bias, ALiBi and dropout in all their combinations with each mask.
#[test]
fn everything_around_the_scores() {
    let alibi = Alibi::new(HEADS).unwrap();
    let mut combinations = 0;
    for (name, mask) in masks(5, 7) {
        for around in 0..16 {
            let mut attention = Attention::new(Score::scaled_dot());
            if around & 1 == 1 {
                attention = attention.with_softcap(0.8);
            }
            if around & 2 == 2 {
                attention = attention.with_dropout(0.25);
            }
            let setting = Setting {
                attention: &attention,
                mask: &mask,
                sizes: [2, 5, 7],
                bias: (around & 4 == 4).then_some([1, HEADS, 5, 7]),
                alibi: (around & 8 == 8).then_some(&alibi),
                seed: Some(around),
                observe: Observe::Rows(vec![4, 0]),
                lse: true,
            };
            setting.compare(&format!("{name} {around}"));
            combinations += 1;
        }
    }
    assert_eq!(combinations, 22 * 16);
}

/// The same bias on every key of a row, as large as the numbers with which people hide keys, has no effect: on both paths,
/// forward and backward. Products are exact, so that both have the same scores.
#[test]
fn a_bias_of_any_size_on_all_keys() {
    let attention = Attention::new(Score::scaled_dot());
    let (queries, keys, size) = (2, 100, 16);
    let eighths = |name: &str, length: usize| {
        let drawn = values(name, length * size, 2.0);
        let drawn: Vec<_> = drawn.iter().map(|x| (x * 8.0).round() / 8.0).collect();
        let data = TensorData::new(drawn, [1, 1, length, size]);
        Tensor::<4>::from_data(data, &device()).require_grad()
    };
    for bias in [-1e5, -1e6, -1e9, -1e10, -1e12, -1e30, f32::MIN, 1e9, 1e30] {
        let run = |path: Path| {
            let leaves = [
                eighths("query", queries),
                eighths("key", keys),
                eighths("value", keys),
            ];
            let mut call = AttentionOptions::new(Observe::Weights).path(path);
            call.bias = Some(Tensor::full([1, 1, queries, keys], bias, &device()));
            let [query, key, value] = leaves.clone();
            let attended = attention.forward_with(query, key, value, call).unwrap();
            let all = attended.context.clone().powi_scalar(2).sum().backward();
            let mut found = vec![
                numbers(attended.context),
                numbers(attended.weights.unwrap()),
            ];
            found.extend(leaves.iter().map(|leaf| numbers(leaf.grad(&all).unwrap())));
            found
        };
        let (fused, plain) = (run(Path::Fused), run(Path::Plain));
        for (which, (fused, plain)) in fused.iter().zip(&plain).enumerate() {
            let error = distance(fused, plain);
            assert!(error < 1e-5, "bias {bias:e}, tensor {which}: {error:e}");
        }
        let total: f64 = fused[1].iter().sum();
        assert!(
            (total - queries as f64).abs() < 1e-5,
            "bias {bias:e}: {total}"
        );
    }
}

/// The slopes that the kernel takes give the biases of [`Alibi::bias`], with more queries than keys, fewer and as many, also
/// for numbers of heads that are no power of two.
#[test]
fn alibi_is_its_bias() {
    for (heads, key_heads) in [(1, 1), (6, 2), (8, 8), (12, 3)] {
        let alibi = Alibi::new(heads).unwrap();
        for (queries, keys) in [(1, 1), (1, 97), (33, 130), (130, 33), (257, 257)] {
            let drawn = |name: &str, heads: usize, length: usize| {
                let shape = [2, heads, length, 40];
                let data = TensorData::new(values(name, shape.iter().product(), 1.0), shape);
                Tensor::<4>::from_data(data, &device()).require_grad()
            };
            let leaves = [
                drawn("query", heads, queries),
                drawn("key", key_heads, keys),
                drawn("value", key_heads, keys),
            ];
            let attention = Attention::new(Score::scaled_dot()).with_mask(Mask::causal());
            let [as_slopes, as_bias] = [true, false].map(|slopes| {
                let positions = Positions::lower_right(queries, keys);
                let call = AttentionOptions::new(Observe::Weights).path(Path::Fused);
                let call = match slopes {
                    true => call.alibi(&alibi),
                    false => call.bias(alibi.bias(&positions, &device(), DType::F32)),
                };
                let [query, key, value] = leaves.clone();
                let attended = attention.forward_with(query, key, value, call).unwrap();
                let all = (attended.context.clone() * attended.context.clone())
                    .sum()
                    .backward();
                let mut run = vec![
                    numbers(attended.context),
                    numbers(attended.weights.unwrap()),
                ];
                run.extend(leaves.iter().map(|leaf| numbers(leaf.grad(&all).unwrap())));
                run
            });
            for (i, (a, b)) in as_slopes.iter().zip(&as_bias).enumerate() {
                let size = b.iter().fold(0.0f64, |most, x| most.max(x.abs()));
                // A score that is lowered by up to the largest slope times the longest distance is rounded relative to that
                // size.
                let lowered = alibi.slopes()[0] * queries.max(keys) as f64;
                let rounding = 4.0 * f64::from(f32::EPSILON) * (size + 1.0) * (lowered + 1.0);
                let found = distance(a, b);
                assert!(
                    found <= rounding,
                    "{heads} heads, {queries} x {keys}, tensor {i}: {found:e} above {rounding:e}"
                );
            }
        }
    }
    let alibi = Alibi::new(3).unwrap();
    let x = Tensor::<4>::ones([1, 2, 3, SIZE], &device());
    for path in [Path::Auto, Path::Fused, Path::Plain] {
        let call = AttentionOptions::default().alibi(&alibi).path(path);
        let error = Attention::new(Score::dot())
            .forward_with(x.clone(), x.clone(), x.clone(), call)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("`alibi heads` is 3") && error.contains('2'),
            "{error}"
        );
    }
}

/// The additive kernel for several heads, sharing keys or not, with padding and bias.
#[test]
fn every_combination_of_the_additive_kernel() {
    let mut combinations = 0;
    for score in scores() {
        if !matches!(score, Score::Additive(_) | Score::WeightNormAdditive(_)) {
            continue;
        }
        for sizes in [[4, 3, 5], [2, 6, 6], [1, 5, 3], [1, 1, 130]] {
            let [_, queries, keys] = sizes;
            for mask in [
                Mask::all(),
                Mask::padding(PaddingMask::from_lengths(
                    &[keys, keys / 2],
                    keys,
                    &device(),
                )),
                Mask::padding(PaddingMask::from_lengths(&[0, keys], keys, &device())),
            ] {
                for bias in [
                    None,
                    Some([BATCH, HEADS, queries, keys]),
                    Some([1, 1, queries, keys]),
                ] {
                    let attention = Attention::new(score.clone());
                    let setting = Setting {
                        attention: &attention,
                        mask: &mask,
                        sizes,
                        bias,
                        alibi: None,
                        seed: None,
                        observe: OBSERVATIONS[1 + combinations % 4](),
                        lse: false,
                    };
                    setting.compare(&format!("{} {sizes:?} {mask:?} {bias:?}", score.name()));
                    combinations += 1;
                }
            }
        }
    }
    assert_eq!(combinations, 2 * 4 * 3 * 3);
}

/// Sizes around the kernel's panels and tiles, and observations over several blocks of queries.
#[test]
fn awkward_sizes() {
    for (i, (queries, keys)) in [(1, 130), (97, 33), (130, 257), (65, 64)]
        .into_iter()
        .enumerate()
    {
        for mask in [
            Mask::all(),
            Mask::causal(),
            Mask::longformer(9, 1, &[1]).unwrap(),
        ] {
            let attention = Attention::new(Score::scaled_dot());
            let setting = Setting {
                attention: &attention,
                mask: &mask,
                sizes: [2, queries, keys],
                bias: None,
                alibi: None,
                seed: None,
                observe: OBSERVATIONS[1 + i](),
                lse: true,
            };
            setting.compare(&format!("{queries} x {keys} {mask:?}"));
        }
    }
}

/// Of all combinations of scores and normalisers, those that a kernel serves run fused, and for the others the error says
/// what is not served.
#[test]
fn what_no_kernel_serves_is_refused() {
    let (mut served, mut refused, mut impossible) = (0, 0, 0);
    for score in scores() {
        for normalize in normalisers(1) {
            if is_impossible(&score, &normalize) {
                impossible += 1;
                continue;
            }
            let name = normalize.name();
            let attention = Attention::new(score.clone()).with_normalize(normalize);
            let x = Tensor::<4>::ones([1, 1, 3, SIZE], &device());
            let call = AttentionOptions::default().path(Path::Fused);
            match attention.forward_with(x.clone(), x.clone(), x, call) {
                Ok(_) => served += 1,
                Err(error) => {
                    let message = error.to_string();
                    let by_name = message.contains(score.name()) || message.contains(name);
                    assert!(by_name && message.ends_with("use Path::Auto"), "{message}");
                    refused += 1;
                }
            }
        }
    }
    // Six products with three normalisers, two additive scores with softmax.
    assert_eq!((served, refused, impossible), (6 * 3 + 2, 131, 14));

    let init = &mut Initializer::new(2, &device());
    let x = |size| Tensor::<4>::ones([1, 1, 3, size], &device());
    let message = |attention: Attention, x: Tensor<4>, call: AttentionOptions<'_>| {
        let call = call.path(Path::Fused);
        attention
            .forward_with(x.clone(), x.clone(), x, call)
            .unwrap_err()
            .to_string()
    };
    let dot = || Attention::new(Score::dot());
    let predictor = PositionPredictor::new(SIZE, 2, init);
    let found = message(
        dot().with_predictor(predictor),
        x(SIZE),
        AttentionOptions::default(),
    );
    assert!(found.contains("local-p"), "{found}");
    let found = message(dot(), x(257), AttentionOptions::default());
    assert!(
        found.contains("a size of 257 (the kernel takes up to 256)"),
        "{found}"
    );
    let found = message(dot(), x(SIZE).cast(DType::F64), AttentionOptions::default());
    assert!(found.contains("tensors other than f32"), "{found}");
    let additive = Attention::new(scores().remove(4));
    let found = message(
        additive.clone(),
        x(SIZE),
        AttentionOptions::default().mask(Mask::causal()),
    );
    assert!(found.contains("a mask other than padding"), "{found}");
    let found = message(
        additive.with_softcap(1.0),
        x(SIZE),
        AttentionOptions::default(),
    );
    assert!(found.contains("a softcap"), "{found}");
}

/// The same bits on any number of threads, and with memory laid out `[batch, length, heads, size]`.
#[test]
fn layouts_and_threads_change_no_bit() {
    let drawn = |name: &str, shape: [usize; 4]| {
        let data = TensorData::new(values(name, shape.iter().product(), 1.0), shape);
        Tensor::<4>::from_data(data, &device())
    };
    let length_first = ["query", "key", "value"].map(|name| drawn(name, [2, 97, 3, 40]));
    let attention = Attention::new(Score::scaled_dot()).with_mask(Mask::causal());
    let run = |copy: bool, threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .unwrap();
        pool.install(|| {
            let leaves = length_first.clone().map(Tensor::require_grad);
            let [query, key, value] = leaves.clone().map(|x| {
                let x = x.swap_dims(1, 2);
                // Adding 0 writes a contiguous copy.
                if copy { x + 0.0 } else { x }
            });
            let attended = attention
                .forward(query, key, value, Observe::Nothing)
                .unwrap();
            let all = (attended.context.clone() * attended.context.clone())
                .sum()
                .backward();
            let mut bits = vec![numbers(attended.context)];
            bits.extend(leaves.iter().map(|leaf| numbers(leaf.grad(&all).unwrap())));
            bits
        })
    };
    let first = run(true, 1);
    for (copy, threads) in [(false, 1), (true, 2), (false, 3)] {
        assert!(run(copy, threads) == first, "{copy} {threads}");
    }
}
