//! Bad configurations and bad input: every refusal names its field, what was found and what was expected.

use crate::{
    mechanisms::{all, close, drawn, init},
    support::{device, numbers},
};
use burn::tensor::DType;
use regard_nn::{
    Attention, AttentionError, AttentionOptions, Observe, Path,
    cache::KeyValueCache,
    dropout::DropoutRng,
    heads::{MultiHeadConfig, ProjectionLayout, QueryKeyNormKind},
    initialize::Initializer,
    mask::{Mask, PaddingMask, PositionPredictor},
    normalize::{Addressing, Form, Monotonic, Normalize},
    position::{
        Alibi, Learned, PositionConfig, Positions, Relative, RelativeBuckets,
        RelativeBucketsConfig, RotaryConfig, Scaling, Sinusoidal,
    },
    score::{GaussianWindow, Score},
    transformer::{StackCache, StackConfig, StackOptions},
};

/// Each error names its field, what was found, and what would be accepted.
fn check<const N: usize>(refusals: [(AttentionError, &str, &str); N]) {
    for (error, field, found) in refusals {
        let message = error.to_string();
        let says = |what: &str| assert!(message.contains(what), "{what}: {message}");
        says(&format!("`{field}`"));
        says(found);
        assert!(
            message.contains("expected") || message.contains("combined"),
            "{message}"
        );
    }
}

#[test]
fn of_keys_of_another_precision_than_the_cached() {
    let mut cache = KeyValueCache::growing();
    let keys = drawn("keys", [1, 1, 2, 3], 1.0);
    cache.append(keys.clone(), keys.clone()).unwrap();
    let half = keys.clone().cast(DType::F16);
    let error = cache.append(half.clone(), half.clone()).unwrap_err();
    let values = cache.append(keys.clone(), half).unwrap_err();
    check([(error, "keys", "f16"), (values, "values", "f16")]);
    assert_eq!(cache.append(keys.clone(), keys).unwrap().keys.dims()[2], 4);
}

#[test]
fn of_positions() {
    let init = &mut Initializer::new(1, &device());
    let rotary = RotaryConfig::new(6);
    let llama = |high: f64, original_length| Scaling::Llama3 {
        factor: 8.0,
        low_frequency_factor: 2.0,
        high_frequency_factor: high,
        original_length,
    };
    let buckets = |buckets, max_distance, bidirectional| RelativeBucketsConfig {
        buckets,
        max_distance,
        bidirectional,
    };
    let scaled = |scaling| RotaryConfig { scaling, ..rotary }.init().unwrap_err();
    let three = Positions::lower_right(3, 5);
    let relative = Relative::new(2, 4, None, init).unwrap();
    assert!(
        relative
            .context(drawn("w", [1, 1, 3, 5], 1.0), &three)
            .unwrap()
            .is_none()
    );
    let both = Relative::new(2, 4, Some(4), init).unwrap();
    let rotation = rotary.init().unwrap().rotation(0, 3, &device(), DType::F32);
    let learned = Learned::new(8, 4, init).unwrap();
    let refusals = [
        (RotaryConfig::new(7).init().unwrap_err(), "rotary.size", "7"),
        (RotaryConfig::new(0).init().unwrap_err(), "rotary.size", "0"),
        (
            RotaryConfig {
                base: 1.0,
                ..rotary
            }
            .init()
            .unwrap_err(),
            "rotary.base",
            "1",
        ),
        (
            RotaryConfig {
                base: f64::NAN,
                ..rotary
            }
            .init()
            .unwrap_err(),
            "rotary.base",
            "NaN",
        ),
        (
            scaled(Scaling::Linear { factor: 0.5 }),
            "scaling.factor",
            "0.5",
        ),
        (
            scaled(Scaling::Ntk {
                factor: f64::INFINITY,
            }),
            "scaling.factor",
            "inf",
        ),
        (scaled(llama(2.0, 10)), "scaling.high_frequency_factor", "2"),
        (scaled(llama(4.0, 0)), "scaling.original_length", "0"),
        (
            RotaryConfig {
                scaling: Scaling::Ntk { factor: 2.0 },
                ..RotaryConfig::new(2)
            }
            .init()
            .unwrap_err(),
            "rotary.size",
            "2",
        ),
        (
            rotation.apply(drawn("x", [1, 1, 3, 5], 1.0)).unwrap_err(),
            "x",
            "[1, 1, 3, 5]",
        ),
        (
            rotation.apply(drawn("x", [1, 1, 2, 6], 1.0)).unwrap_err(),
            "x",
            "[1, 1, 2, 6]",
        ),
        (Alibi::new(0).unwrap_err(), "heads", "0"),
        (
            RelativeBuckets::new(&buckets(3, 9, true), 2, init).unwrap_err(),
            "buckets",
            "3",
        ),
        (
            RelativeBuckets::new(&buckets(7, 9, true), 2, init).unwrap_err(),
            "buckets",
            "7",
        ),
        (
            RelativeBuckets::new(&buckets(1, 9, false), 2, init).unwrap_err(),
            "buckets",
            "1",
        ),
        (
            RelativeBuckets::new(&buckets(8, 4, false), 2, init).unwrap_err(),
            "max_distance",
            "4",
        ),
        (
            RelativeBuckets::new(&buckets(8, 9, false), 0, init).unwrap_err(),
            "heads",
            "0",
        ),
        (
            Relative::new(0, 4, None, init).unwrap_err(),
            "max_distance",
            "0",
        ),
        (Relative::new(2, 0, None, init).unwrap_err(), "size", "0"),
        (
            relative
                .scores(drawn("q", [1, 1, 3, 5], 1.0), &three)
                .unwrap_err(),
            "query",
            "[1, 1, 3, 5]",
        ),
        (
            relative
                .scores(drawn("q", [1, 1, 2, 4], 1.0), &three)
                .unwrap_err(),
            "query",
            "[1, 1, 2, 4]",
        ),
        (
            both.context(drawn("w", [1, 1, 3, 4], 1.0), &three)
                .unwrap_err(),
            "weights",
            "[1, 1, 3, 4]",
        ),
        (
            both.context(drawn("w", [1, 1, 2, 5], 1.0), &three)
                .unwrap_err(),
            "weights",
            "[1, 1, 2, 5]",
        ),
        (Learned::new(0, 4, init).unwrap_err(), "positions", "0"),
        (Learned::new(4, 0, init).unwrap_err(), "size", "0"),
        (
            learned.forward(drawn("x", [1, 3, 4], 1.0), 6).unwrap_err(),
            "first + length",
            "9",
        ),
        (
            learned.forward(drawn("x", [1, 3, 5], 1.0), 0).unwrap_err(),
            "x",
            "[1, 3, 5]",
        ),
        (Sinusoidal::new(0).unwrap_err(), "size", "0"),
        (
            Sinusoidal::new(4)
                .unwrap()
                .forward(drawn("x", [1, 3, 5], 1.0), 0)
                .unwrap_err(),
            "x",
            "[1, 3, 5]",
        ),
    ];
    check(refusals);
}

#[test]
fn of_heads() {
    let plain = MultiHeadConfig::new(12, 4);
    let refused = |config: MultiHeadConfig| {
        config
            .init(&mut Initializer::new(3, &device()))
            .unwrap_err()
    };
    let rotary = |size| PositionConfig::Rotary(RotaryConfig::new(size));
    let layer = init(&plain);
    let x = |shape: [usize; 3]| drawn("x", shape, 1.0);
    let cross = init(&MultiHeadConfig {
        source_size: Some(7),
        ..plain.clone()
    });
    let placed = init(&MultiHeadConfig {
        position: PositionConfig::Alibi,
        ..plain.clone()
    });
    let source = layer.source(x([2, 3, 12])).unwrap();
    let talking = init(&MultiHeadConfig {
        talking_heads: true,
        ..plain.clone()
    });
    let mut cache = KeyValueCache::growing();
    layer
        .forward_cached(x([2, 3, 12]), &mut cache, AttentionOptions::default())
        .unwrap();
    let refusals = [
        (refused(MultiHeadConfig::new(12, 5)), "heads", "5"),
        (refused(MultiHeadConfig::new(0, 1)), "d_model", "0"),
        (refused(MultiHeadConfig::new(12, 0)), "heads", "0"),
        (
            refused(MultiHeadConfig::grouped_query(12, 4, 3)),
            "key_value_heads",
            "3",
        ),
        (
            refused(MultiHeadConfig::grouped_query(12, 4, 8)),
            "key_value_heads",
            "8",
        ),
        (
            refused(MultiHeadConfig::grouped_query(12, 4, 0)),
            "key_value_heads",
            "0",
        ),
        (
            refused(MultiHeadConfig {
                head_size: Some(0),
                ..plain.clone()
            }),
            "head_size",
            "0",
        ),
        (
            refused(MultiHeadConfig {
                value_size: Some(0),
                ..plain.clone()
            }),
            "value_size",
            "0",
        ),
        (
            refused(MultiHeadConfig {
                source_size: Some(0),
                ..plain.clone()
            }),
            "source_size",
            "0",
        ),
        (
            refused(MultiHeadConfig {
                source_size: Some(7),
                projection: ProjectionLayout::Fused,
                ..plain.clone()
            }),
            "source_size",
            "7",
        ),
        (
            refused(MultiHeadConfig {
                position: rotary(3),
                ..plain.clone()
            }),
            "rotary.size",
            "3",
        ),
        (
            refused(MultiHeadConfig {
                position: rotary(4),
                ..plain.clone()
            }),
            "rotary.size",
            "4",
        ),
        (
            refused(MultiHeadConfig {
                query_key_norm: Some(QueryKeyNormKind::Rms { epsilon: 0.0 }),
                ..plain.clone()
            }),
            "query_key_norm.epsilon",
            "0",
        ),
        (
            refused(MultiHeadConfig {
                query_key_norm: Some(QueryKeyNormKind::L2 { length: 1 }),
                ..plain.clone()
            }),
            "query_key_norm.length",
            "1",
        ),
        (
            layer
                .forward(x([2, 3, 11]), AttentionOptions::default())
                .unwrap_err(),
            "x",
            "[2, 3, 11]",
        ),
        (
            layer.source(x([2, 3, 7])).unwrap_err(),
            "source",
            "[2, 3, 7]",
        ),
        (
            layer
                .forward_source(x([2, 3, 7]), &source, AttentionOptions::default())
                .unwrap_err(),
            "x",
            "[2, 3, 7]",
        ),
        (
            layer
                .forward_source(x([1, 3, 12]), &source, AttentionOptions::default())
                .unwrap_err(),
            "key",
            "[2, 4, 3, 3]",
        ),
        (source.select(&[2]).unwrap_err(), "rows", "2"),
        (
            cross
                .forward(x([2, 3, 12]), AttentionOptions::default())
                .unwrap_err(),
            "source_size",
            "7",
        ),
        (
            placed
                .forward_source(x([2, 3, 12]), &source, AttentionOptions::default())
                .unwrap_err(),
            "position",
            "distance",
        ),
        (
            placed
                .forward(
                    x([2, 3, 12]),
                    AttentionOptions::default().bias(drawn("b", [1, 1, 3, 2], 1.0)),
                )
                .unwrap_err(),
            "bias",
            "[1, 1, 3, 2]",
        ),
        (
            talking
                .forward(x([2, 3, 12]), AttentionOptions::new(Observe::Entropy))
                .unwrap_err(),
            "observe",
            "Entropy",
        ),
        (
            talking
                .forward(x([2, 3, 12]), AttentionOptions::default().path(Path::Fused))
                .unwrap_err(),
            "path",
            "Fused",
        ),
        (
            layer
                .forward_cached(x([1, 1, 12]), &mut cache, AttentionOptions::default())
                .unwrap_err(),
            "keys",
            "[1, 4, 1, 3]",
        ),
    ];
    check(refusals);
}

/// The input of a layer must have its precision, and what the layer reads again must have been made by
/// it.
#[test]
fn of_precisions_and_of_what_others_made() {
    let wide = |shape: [usize; 3]| drawn("x", shape, 1.0).cast(DType::F64);
    let x = |shape: [usize; 3]| drawn("x", shape, 1.0);
    let config = MultiHeadConfig::new(12, 4);
    let layer = init(&config);
    let narrow = init(&MultiHeadConfig {
        value_size: Some(2),
        ..config.clone()
    });
    let placed = init(&MultiHeadConfig {
        position: PositionConfig::Buckets(RelativeBucketsConfig::default()),
        ..config
    });
    let bias = || drawn("b", [1, 1, 3, 3], 1.0).cast(DType::F64);
    let init = &mut Initializer::new(3, &device());
    let stack = StackConfig::new(12, 4);
    let options = &StackOptions::default();
    let encoder = stack.encoder(2, init).unwrap();
    let (decoder, deeper) = (
        stack.decoder(2, init).unwrap(),
        stack.decoder(3, init).unwrap(),
    );
    let noise = &mut DropoutRng::none();
    let source = layer.source(x([2, 3, 12])).unwrap();
    check([
        (
            layer
                .forward(wide([2, 3, 12]), AttentionOptions::default())
                .unwrap_err(),
            "x",
            "f64",
        ),
        (layer.source(wide([2, 3, 12])).unwrap_err(), "source", "f64"),
        (
            layer
                .forward_cross(x([2, 3, 12]), wide([2, 3, 12]), AttentionOptions::default())
                .unwrap_err(),
            "source",
            "f64",
        ),
        (
            layer
                .forward(x([2, 3, 12]), AttentionOptions::default().bias(bias()))
                .unwrap_err(),
            "bias",
            "f64",
        ),
        (
            placed
                .forward(x([2, 3, 12]), AttentionOptions::default().bias(bias()))
                .unwrap_err(),
            "bias",
            "f64",
        ),
        (
            narrow
                .forward_source(x([2, 3, 12]), &source, AttentionOptions::default())
                .unwrap_err(),
            "source.values",
            "[2, 4, 3, 3]",
        ),
        (
            encoder
                .forward(x([2, 3, 11]), None, options, noise)
                .unwrap_err(),
            "x",
            "[2, 3, 11]",
        ),
        (
            encoder
                .forward(wide([2, 3, 12]), None, options, noise)
                .unwrap_err(),
            "x",
            "f64",
        ),
        (
            decoder
                .forward(x([2, 3, 11]), Some(x([2, 3, 12])), options, noise)
                .unwrap_err(),
            "x",
            "[2, 3, 11]",
        ),
        (
            decoder
                .forward_cached(
                    x([2, 1, 12]),
                    &mut deeper.cache(Some(x([2, 3, 12]))).unwrap(),
                    options,
                )
                .unwrap_err(),
            "cache layers",
            "3",
        ),
    ]);
}

/// A cache keeps neither what goes on from query to query nor the number of all keys.
#[test]
fn of_a_cache_for_what_needs_all_positions() {
    let init = &mut Initializer::new(3, &device());
    let dot = || Attention::new(Score::scaled_dot());
    let monotonic = Normalize::Monotonic(Monotonic::new(Form::Recursive));
    let addressing = Normalize::Addressing(Addressing::new(4, 1, init));
    let window = Score::GaussianWindow(GaussianWindow::new(4, 2, init));
    let window = Attention::new(window).with_normalize(Normalize::identity());
    let predictor = PositionPredictor::new(4, 2, init);
    for (attention, name) in [
        (dot().with_normalize(monotonic), "the monotonic normaliser"),
        (
            dot().with_normalize(addressing),
            "the NTM addressing normaliser",
        ),
        (window, "the Gaussian window score"),
        (dot().with_predictor(predictor), "local-p"),
    ] {
        let layer = MultiHeadConfig::new(8, 2);
        let layer = layer.init_with(attention, init).unwrap();
        let x = || drawn("x", [2, 3, 8], 1.0);
        let call = AttentionOptions::default().mask(Mask::causal());
        layer.forward(x(), call).unwrap();
        let mut cache = KeyValueCache::growing();
        let error = layer
            .forward_cached(x(), &mut cache, AttentionOptions::default())
            .unwrap_err();
        check([(error, "cache", name)]);
        assert_eq!(cache.next_position(), 0, "{name}");
    }
}

/// A call that is refused leaves the cache as it was; or, if some blocks had read the new positions, no later call can go on.
#[test]
fn of_a_cache_after_a_call_that_failed() {
    let x = || drawn("x", [2, 1, 12], 1.0);
    let layer = init(&MultiHeadConfig::new(12, 4));
    let step = |cache: &mut KeyValueCache, call: AttentionOptions<'_>| {
        let read = layer.forward_cached(x(), cache, call);
        read.map(|read| numbers(&read.output))
    };
    let plain = AttentionOptions::default;
    let expected = step(&mut KeyValueCache::growing(), plain()).unwrap();
    let alibi = Alibi::new(3).unwrap();
    for (call, field) in [
        (AttentionOptions::new(Observe::TopK(2)), "top k"),
        (plain().bias(drawn("b", [1, 1, 1, 2], 1.0)), "bias"),
        (plain().alibi(&alibi), "alibi heads"),
    ] {
        let mut cache = KeyValueCache::growing();
        let error = step(&mut cache, call).unwrap_err().to_string();
        assert!(error.contains(field), "{error}");
        assert_eq!(step(&mut cache, plain()).unwrap(), expected, "{field}");
    }

    // That no kernel serves is found when keys and values are there.
    let talking = init(&MultiHeadConfig {
        talking_heads: true,
        ..MultiHeadConfig::new(12, 4)
    });
    for window in [None, Some(1), Some(3)] {
        for (past, new) in [(0, 1), (0, 40), (2, 1), (2, 40), (30, 1), (30, 5)] {
            let mut cache = match window {
                Some(window) => KeyValueCache::rolling(window).unwrap(),
                None => KeyValueCache::growing(),
            };
            let x = |batch, name, length| drawn(name, [batch, length, 12], 1.0);
            if past > 0 {
                let before = x(2, "before", past);
                talking.forward_cached(before, &mut cache, plain()).unwrap();
            }
            let mut spared = cache.clone();
            let call = plain().path(Path::Fused);
            let error = talking.forward_cached(x(2, "refused", new), &mut cache, call);
            check([(error.unwrap_err(), "path", "Fused")]);
            assert_eq!(cache.next_position(), past);
            // An empty cache takes another batch, too.
            let batch = if past == 0 { 3 } else { 2 };
            let [found, expected] = [&mut cache, &mut spared].map(|cache| {
                let read = talking.forward_cached(x(batch, "after", 4), cache, plain());
                read.unwrap().output
            });
            assert!(close(&found, &expected), "{window:?} {past} {new}");
        }
    }

    let stack = StackConfig::new(12, 4);
    let stack = stack
        .decoder(2, &mut Initializer::new(3, &device()))
        .unwrap();
    let cache = || stack.cache(Some(drawn("source", [2, 3, 12], 1.0))).unwrap();
    let options = StackOptions::default();
    let step = |cache: &mut StackCache, options: &StackOptions| {
        let read = stack.forward_cached(x(), cache, options);
        read.map(|read| numbers(&read.states))
    };
    let expected = step(&mut cache(), &options).unwrap();
    let mut used = cache();
    step(&mut used, &StackOptions::new(Observe::TopK(2))).unwrap_err();
    assert_eq!(step(&mut used, &options).unwrap(), expected);
    // This is found after self-attention of the first block.
    let shorter = PaddingMask::from_lengths(&[1, 1], 2, &device());
    let unfit = StackOptions::default().source_mask(Mask::padding(shorter));
    let mut used = cache();
    step(&mut used, &unfit).unwrap_err();
    let error = step(&mut used, &options).unwrap_err();
    check([(error, "cache", "a failed call")]);
}

/// A configuration reads back as it was written, and an unknown word is refused.
#[test]
fn configurations_are_plain_data() {
    for (_, config) in all() {
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(
            serde_json::from_str::<MultiHeadConfig>(&text).unwrap(),
            config
        );
        let unknown = text.replace("separate", "apart").replace("fused", "apart");
        assert!(serde_json::from_str::<MultiHeadConfig>(&unknown).is_err());
    }
}
