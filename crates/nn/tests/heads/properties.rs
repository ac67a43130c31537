//! What must hold of multi-head attention for any numbers: caching, order, causality, batching, groups,
//! observation.

use crate::{
    mechanisms::{all, causal, close, distance, drawn, init, largest, mechanisms, shaken},
    support::{device, gradients, numbers},
};
use burn::tensor::{DType, Int, Tensor};
use proptest::prelude::*;
use regard_nn::{
    Attention, AttentionOptions, Observe,
    cache::KeyValueCache,
    dropout::DropoutRng,
    heads::{MultiHead, MultiHeadConfig, ProjectionLayout, QueryKeyNormKind},
    initialize::Initializer,
    mask::{Mask, PaddingMask},
    normalize::Normalize,
    position::{Alibi, PositionConfig, Positions},
    score::Score,
    weights,
};

fn part(x: &Tensor<3>, first: usize, length: usize) -> Tensor<3> {
    x.clone().narrow(1, first, length)
}

/// Token by token, in chunks or at once, growing or rolling: the same numbers.
#[test]
fn cached_equals_uncached() {
    let (length, window) = (13, 4);
    let mut checked = 0;
    for (name, config) in all() {
        let layer = shaken(&config);
        let x = drawn("x", [2, length, 10], 1.0);
        for window in [None, Some(window)] {
            let mut call = causal();
            if let Some(window) = window {
                call = call.mask(Mask::window(window).unwrap());
            }
            let whole = layer.forward(x.clone(), call).unwrap().output;
            for chunks in [vec![1; length], vec![7, 1, 1, 4], vec![13], vec![2, 11]] {
                let mut cache = match window {
                    Some(window) => KeyValueCache::rolling(window).unwrap(),
                    None => KeyValueCache::growing(),
                };
                let mut first = 0;
                for chunk in chunks {
                    let new = part(&x, first, chunk);
                    let call = AttentionOptions::new(Observe::Nothing);
                    let read = layer.forward_cached(new, &mut cache, call).unwrap();
                    let expected = part(&whole, first, chunk);
                    assert!(
                        close(&read.output, &expected),
                        "{name}, window {window:?}, at {first}: off by {}",
                        distance(&read.output, &expected)
                    );
                    first += chunk;
                    checked += 1;
                }
            }
        }
    }
    assert_eq!(checked, 7 * 13 * 2 * (13 + 4 + 1 + 2));
}

/// Changing a token changes nothing before it, and something from it on.
#[test]
fn no_token_sees_the_future() {
    for (name, config) in all() {
        let layer = shaken(&config);
        let x = drawn("x", [1, 6, 10], 1.0);
        let changed = x
            .clone()
            .slice_assign([0..1, 3..4, 0..10], drawn("other", [1, 1, 10], 1.0));
        let run = |x: Tensor<3>| layer.forward(x, causal()).unwrap().output;
        let (before, after) = (run(x), run(changed));
        assert_eq!(
            numbers(&part(&before, 0, 3)),
            numbers(&part(&after, 0, 3)),
            "{name}"
        );
        for t in 3..6 {
            assert!(
                distance(&part(&before, t, 1), &part(&after, t, 1)) > 0.0,
                "{name} {t}"
            );
        }
    }
}

/// Without positions, tokens are a set: permuting them permutes the result. With positions, it does
/// not.
#[test]
fn order_counts_with_positions_alone() {
    let order = [4, 0, 3, 1, 2];
    let index = Tensor::<1, Int>::from_ints(order, &device());
    for (name, config) in all() {
        let layer = shaken(&config);
        let x = drawn("x", [2, 5, 10], 1.0);
        let run = |x: Tensor<3>| {
            layer
                .forward(x, AttentionOptions::default())
                .unwrap()
                .output
        };
        let expected = run(x.clone()).select(1, index.clone());
        let found = run(x.select(1, index.clone()));
        match config.position {
            PositionConfig::None => assert!(close(&found, &expected), "{name}"),
            _ => assert!(!close(&found, &expected), "{name}"),
        }
    }
}

/// A row of a batch gives the same as alone, whatever its padding contains.
#[test]
fn a_row_of_a_batch_is_itself_alone() {
    let lengths = [6, 3, 1];
    let mut checked = 0;
    for (name, config) in all() {
        let layer = shaken(&config);
        let x = drawn("x", [3, 6, 10], 1.0);
        for poison in [0.0, 1e30, f32::NAN] {
            let mut batch = x.clone();
            for (b, &length) in lengths.iter().enumerate().skip(1) {
                batch = batch.slice_fill([b..b + 1, length..6, 0..10], poison);
            }
            let padding = Mask::padding(PaddingMask::from_lengths(&lengths, 6, &device()));
            let call = AttentionOptions::new(Observe::Nothing).mask(padding);
            let batch = layer.forward(batch, call).unwrap().output;
            for (b, length) in lengths.into_iter().enumerate() {
                let alone = part(&x.clone().narrow(0, b, 1), 0, length);
                let alone = layer
                    .forward(alone, AttentionOptions::default())
                    .unwrap()
                    .output;
                let found = part(&batch.clone().narrow(0, b, 1), 0, length);
                assert!(close(&found, &alone), "{name}, row {b}, {poison}");
                checked += 1;
            }
        }
    }
    assert_eq!(checked, 7 * 13 * 3 * 3);
}

/// Key/value heads that are copied for every query head of their group give multi-head attention.
#[test]
fn groups_share_keys_and_values() {
    for (heads, groups) in [(8, 8), (8, 4), (8, 1), (6, 2)] {
        let size = 3;
        let config = |groups| MultiHeadConfig {
            head_size: Some(size),
            ..MultiHeadConfig::grouped_query(10, heads, groups)
        };
        let grouped = init(&config(groups));
        let mut arrays = weights::collect(&grouped);
        for name in [
            "projection.Separate.key.weight",
            "projection.Separate.value.weight",
        ] {
            let array = arrays.get_mut(name).unwrap();
            let columns = |row: &[f32]| -> Vec<f32> {
                (0..heads * size)
                    .map(|column| row[column / size / (heads / groups) * size + column % size])
                    .collect()
            };
            array.values = array
                .values
                .chunks(groups * size)
                .flat_map(columns)
                .collect();
            array.shape[1] = heads * size;
        }
        let copied = weights::apply(init(&config(heads)), arrays).unwrap();
        let x = drawn("x", [2, 4, 10], 1.0);
        let run = |layer: &MultiHead| layer.forward(x.clone(), causal()).unwrap().output;
        assert!(close(&run(&grouped), &run(&copied)), "{heads} / {groups}");
    }
}

/// One matrix or three, from one seed: the same layer. So is cross-attention with the input as its own
/// source.
#[test]
fn layouts_start_alike() {
    for input_bias in [false, true] {
        let layer = |projection| {
            init(&MultiHeadConfig {
                projection,
                input_bias,
                value_size: Some(5),
                ..MultiHeadConfig::grouped_query(12, 4, 2)
            })
        };
        let x = drawn("x", [2, 5, 12], 1.0);
        let three = layer(ProjectionLayout::Separate);
        let expected = three
            .forward(x.clone(), AttentionOptions::default())
            .unwrap()
            .output;
        for layer in [three, layer(ProjectionLayout::Fused)] {
            let found = layer
                .forward(x.clone(), AttentionOptions::default())
                .unwrap()
                .output;
            assert!(close(&found, &expected));
            let source = layer.source(x.clone()).unwrap();
            let crossed = layer
                .forward_source(x.clone(), &source, AttentionOptions::default())
                .unwrap();
            assert!(close(&crossed.output, &expected));
            let rows = source.select(&[1, 1]).unwrap();
            let crossed = layer
                .forward_source(x.clone(), &rows, AttentionOptions::default())
                .unwrap();
            let second = crossed.output.narrow(0, 1, 1);
            assert!(close(&second, &expected.clone().narrow(0, 1, 1)));
        }
    }
}

/// One matrix holds the three side by side.
#[test]
fn one_matrix_is_three_side_by_side() {
    let config = |projection| MultiHeadConfig {
        projection,
        input_bias: true,
        value_size: Some(5),
        ..MultiHeadConfig::grouped_query(12, 4, 2)
    };
    let fused = shaken(&config(ProjectionLayout::Fused));
    let mut arrays = weights::collect(&fused);
    for kind in ["weight", "bias"] {
        let joint = arrays
            .remove(&format!("projection.Fused.query_key_value.{kind}"))
            .unwrap();
        let width = *joint.shape.last().unwrap();
        assert_eq!(width, 4 * 3 + 2 * 3 + 2 * 5);
        for (name, columns) in [("query", 0..12), ("key", 12..18), ("value", 18..28)] {
            let mut shape = joint.shape.clone();
            *shape.last_mut().unwrap() = columns.len();
            let rows = joint.values.chunks(width);
            let values = rows.flat_map(|row| row[columns.clone()].to_vec()).collect();
            arrays.insert(
                format!("projection.Separate.{name}.{kind}"),
                weights::Array { shape, values },
            );
        }
    }
    let separate = weights::apply(init(&config(ProjectionLayout::Separate)), arrays).unwrap();
    let x = drawn("x", [2, 5, 12], 1.0);
    let run = |layer: &MultiHead| layer.forward(x.clone(), causal()).unwrap().output;
    assert!(close(&run(&separate), &run(&fused)));
}

/// New talking heads give the same as heads without mixing.
#[test]
fn talking_heads_start_silent() {
    let config = MultiHeadConfig::new(12, 4);
    let talking = MultiHeadConfig {
        talking_heads: true,
        ..config.clone()
    };
    let x = drawn("x", [2, 5, 12], 1.0);
    let run = |config| init(config).forward(x.clone(), causal()).unwrap().output;
    assert!(close(&run(&talking), &run(&config)));
}

/// A bias of -∞ hides a key from its head alone: mixing takes it to no other head, and makes no gradient NaN.
#[test]
fn talking_heads_keep_what_a_bias_hides() {
    let config = MultiHeadConfig::new(12, 4);
    let talking = init(&MultiHeadConfig {
        talking_heads: true,
        ..config.clone()
    });
    let x = drawn("x", [2, 5, 12], 1.0);
    // The second key, from the first head.
    let bias = Tensor::<4>::zeros([1, 4, 5, 5], &device())
        .slice_fill([0..1, 0..1, 0..5, 1..2], f32::NEG_INFINITY)
        .require_grad();
    let call = || AttentionOptions::new(Observe::Weights).bias(bias.clone());
    let silent = init(&config).forward(x.clone(), call()).unwrap();
    let read = talking.forward(x, call()).unwrap();
    let [found, expected] = [&read, &silent].map(|read| read.attended.weights.clone().unwrap());
    assert!(close(&found, &expected));
    let all = read.output.sum().backward();
    for (name, slope) in gradients(&talking, &all) {
        let finite = slope.values.iter().all(|slope| slope.is_finite());
        assert!(finite, "{name}");
    }
    let of_hidden = bias.grad(&all).unwrap().narrow(1, 0, 1).narrow(3, 1, 1);
    assert!(numbers(&of_hidden).iter().all(|&slope| slope == 0.0));
}

/// Asking for weights changes no number, with and without dropout, on every path.
#[test]
fn observing_changes_nothing() {
    let mut checked = 0;
    for (name, config) in mechanisms(4, 2, 4) {
        for dropout in [0.0, 0.5] {
            let score = match config.query_key_norm {
                Some(QueryKeyNormKind::L2 { .. }) => Score::dot(),
                _ => Score::scaled_dot(),
            };
            let attention = Attention::new(score).with_dropout(dropout);
            let layer = config
                .init_with(attention, &mut Initializer::new(3, &device()))
                .unwrap();
            let x = drawn("x", [2, 5, 10], 1.0);
            let mut expected = None;
            for observe in [
                Observe::Nothing,
                Observe::Weights,
                Observe::Rows(vec![1, 4]),
                Observe::ColumnSums,
                Observe::TopK(2),
                Observe::Entropy,
            ] {
                if config.talking_heads && observe == Observe::Entropy {
                    continue;
                }
                let noise = &mut DropoutRng::seeded(5);
                let call = AttentionOptions::new(observe)
                    .mask(Mask::causal())
                    .noise(noise);
                let output = numbers(&layer.forward(x.clone(), call).unwrap().output);
                assert_eq!(
                    expected.get_or_insert(output.clone()),
                    &output,
                    "{name} {dropout}"
                );
                checked += 1;
            }
            let rest = layer.forward(x, causal()).unwrap().output;
            assert_eq!(
                numbers(&rest) == expected.unwrap(),
                dropout == 0.0,
                "{name}"
            );
        }
    }
    assert_eq!(checked, 13 * 2 * 6 - 2);
}

/// A query that may see nothing: heads read 0, and no gradient is NaN.
#[test]
fn nothing_seen_gives_nothing() {
    for (name, config) in mechanisms(4, 2, 4) {
        let layer = shaken(&config);
        let x = drawn("x", [2, 4, 10], 1.0).require_grad();
        let none = Mask::padding(PaddingMask::from_lengths(&[4, 0], 4, &device()));
        let call = AttentionOptions::new(Observe::Weights).mask(none);
        let read = layer.forward(x.clone(), call).unwrap();
        let second = read.attended.context.narrow(0, 1, 1);
        assert!(numbers(&second).iter().all(|&value| value == 0.0), "{name}");
        let gradients = read.output.sum().backward();
        let gradient = numbers(&x.grad(&gradients).unwrap());
        assert!(gradient.iter().all(|value| value.is_finite()), "{name}");
    }
}

/// No tokens: no output, from every method.
#[test]
fn no_tokens_give_no_output() {
    for (name, config) in mechanisms(4, 2, 4) {
        let layer = init(&config);
        let none = drawn("x", [2, 0, 10], 1.0);
        let output = layer.forward(none.clone(), causal()).unwrap().output;
        assert_eq!(output.dims(), [2, 0, 10], "{name}");
        for mut cache in [
            KeyValueCache::rolling(3).unwrap(),
            KeyValueCache::growing().stored(DType::BF16).unwrap(),
        ] {
            for length in [0, 2, 0, 5, 0] {
                let x = drawn("x", [2, length, 10], 1.0);
                let read = layer
                    .forward_cached(x, &mut cache, AttentionOptions::default())
                    .unwrap();
                assert_eq!(read.output.dims(), [2, length, 10], "{name}");
            }
        }
        if config.position == PositionConfig::None {
            let source = layer.source(none).unwrap();
            let x = drawn("x", [2, 3, 10], 1.0);
            let read = layer
                .forward_source(x, &source, AttentionOptions::default())
                .unwrap();
            assert!(
                numbers(&read.attended.context)
                    .iter()
                    .all(|&value| value == 0.0),
                "{name}"
            );
        }
    }
}

/// A bias of the caller is added to that of the positions.
#[test]
fn biases_add_up() {
    let plain = MultiHeadConfig::new(12, 4);
    let config = MultiHeadConfig {
        position: PositionConfig::Alibi,
        ..plain.clone()
    };
    let x = drawn("x", [2, 5, 12], 1.0);
    let alibi = Alibi::new(4).unwrap();
    let bias = alibi.bias(&Positions::lower_right(5, 5), &device(), DType::F32);
    let expected = init(&plain).forward(x.clone(), causal()).unwrap().output;
    let call = causal().bias(bias.neg());
    let found = init(&config).forward(x, call).unwrap().output;
    assert!(close(&found, &expected));
}

/// Any score, mask and normaliser works under several heads.
#[test]
fn heads_take_any_attention() {
    let init = &mut Initializer::new(3, &device());
    let config = MultiHeadConfig::new(12, 3);
    let attention = Attention::new(Score::dot())
        .with_normalize(Normalize::sparsemax())
        .with_mask(Mask::window(2).unwrap());
    let layer = config.init_with(attention, init).unwrap();
    let x = drawn("x", [1, 5, 12], 2.0);
    let read = layer
        .forward(x, AttentionOptions::new(Observe::Weights))
        .unwrap();
    let found = numbers(&read.attended.weights.unwrap());
    for (i, weight) in found.iter().enumerate() {
        let (query, key) = (i / 5 % 5, i % 5);
        assert!(query.abs_diff(key) < 2 || *weight == 0.0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..Default::default() })]

    /// Text that starts later in the sequence, with nothing before it to be seen: nothing changes, as
    /// the positions inside a layer depend on distances alone.
    #[test]
    fn a_later_start_changes_nothing(
        kind in 0usize..13,
        before in 1usize..40,
        length in 1usize..7,
    ) {
        let (name, config) = mechanisms(4, 2, 6).swap_remove(kind);
        let layer = shaken(&config);
        let x = drawn("x", [1, length, 10], 1.0);
        let expected = layer.forward(x.clone(), causal()).unwrap().output;
        let mut cache = KeyValueCache::growing();
        layer.forward_cached(drawn("before", [1, before, 10], 1.0), &mut cache, AttentionOptions::default()).unwrap();
        let all = before + length;
        let hidden: Vec<bool> = (0..all).map(|key| key >= before).collect();
        let keep = PaddingMask::from_flags(&[hidden], &device()).unwrap();
        let call = AttentionOptions::default().mask(Mask::padding(keep));
        let found = layer.forward_cached(x, &mut cache, call).unwrap().output;
        // Rotary angles are rounded to f32 at other positions.
        let tolerance = 512.0 * f32::EPSILON * largest(&expected).max(1.0);
        prop_assert!(distance(&found, &expected) <= tolerance, "{name}: {}", distance(&found, &expected));
    }
}
