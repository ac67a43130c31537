//! Steps without a gradient use the kernel for few queries, on caches of every storage: the numbers are those of the plain
//! path, whatever the mechanism, the mask, the storage, the batch and the number of threads.

use burn::{
    module::Module,
    tensor::{DType, Tensor},
};
use regard_nn::{
    Attention, AttentionOptions, Observe, Path,
    cache::KeyValueCache,
    heads::{MultiHead, MultiHeadConfig},
    initialize::Initializer,
    mask::{Mask, PaddingMask},
    normalize::{Normalize, Sink},
    position::Alibi,
    score::{General, Score},
    transformer::{StackConfig, StackOptions},
};

use crate::{
    mechanisms::{all, close, distance, drawn, init, largest, shaken},
    support::{device, numbers},
};

const STORAGES: [Option<DType>; 3] = [None, Some(DType::BF16), Some(DType::F16)];

fn cache(window: Option<usize>, storage: Option<DType>) -> KeyValueCache {
    let cache = match window {
        Some(window) => KeyValueCache::rolling(window).unwrap(),
        None => KeyValueCache::growing(),
    };
    match storage {
        Some(dtype) => cache.stored(dtype).unwrap(),
        None => cache,
    }
}

/// The results of steps of `chunks` tokens, side by side.
fn steps(
    layer: &MultiHead,
    x: &Tensor<3>,
    chunks: &[usize],
    mut cache: KeyValueCache,
    call: impl Fn() -> AttentionOptions<'static>,
) -> Tensor<3> {
    let mut first = 0;
    let step = |&chunk: &usize| {
        let new = x.clone().narrow(1, first, chunk);
        first += chunk;
        layer
            .forward_cached(new, &mut cache, call())
            .unwrap()
            .output
    };
    Tensor::cat(chunks.iter().map(step).collect(), 1)
}

fn auto() -> AttentionOptions<'static> {
    AttentionOptions::new(Observe::Nothing)
}

/// Token by token and in chunks of few and many, growing and rolling, in every storage.
#[test]
fn steps_without_gradient_are_those_with_it_and_the_plain_ones() {
    let mut checked = 0;
    for (name, config) in all() {
        let tracked = shaken(&config);
        let layer = tracked.clone().valid();
        let x = drawn("x", [2, 13, 10], 1.0);
        for window in [None, Some(4)] {
            for storage in STORAGES {
                for chunks in [vec![1; 13], vec![6, 1, 2, 4]] {
                    let run = |layer: &MultiHead, x: &Tensor<3>, path| {
                        let cache = cache(window, storage);
                        steps(layer, x, &chunks, cache, || auto().path(path)).inner()
                    };
                    let found = run(&layer, &x.clone().inner(), Path::Auto);
                    for expected in [
                        run(&layer, &x.clone().inner(), Path::Plain),
                        run(&tracked, &x, Path::Auto),
                    ] {
                        let off = distance(&found, &expected);
                        assert!(
                            close(&found, &expected),
                            "{name} {window:?} {storage:?}: {off}"
                        );
                        checked += 1;
                    }
                }
            }
        }
    }
    assert_eq!(checked, 7 * 13 * 2 * 3 * 2 * 2);
}

/// Sinks, softcap, masks of the layer, padding, ALiBi and a bias of the call.
#[test]
fn what_stands_around_the_scores_serves_in_steps() {
    let by_place = Mask::function("by place", |at| at.key * 2 != at.query);
    let attentions = [
        Attention::new(Score::dot()),
        Attention::new(Score::scaled_dot()).with_softcap(0.5),
        Attention::new(Score::scaled_dot()).with_normalize(Normalize::Sink(Sink::fixed(0.3))),
        Attention::new(Score::scaled_dot()).with_mask(Mask::chunked(3, 1).unwrap()),
        Attention::new(Score::scaled_dot()).with_mask(by_place & !Mask::global(&[2])),
        Attention::new(Score::scaled_dot()).with_normalize(Normalize::sparsemax()),
    ];
    let alibi: &'static Alibi = Box::leak(Box::new(Alibi::new(4).unwrap()));
    let keep = PaddingMask::from_lengths(&[9, 4], 9, &device().inner());
    let x = drawn("x", [2, 9, 12], 1.0).inner();
    for (at, attention) in attentions.into_iter().enumerate() {
        let initializer = &mut Initializer::new(3, &device());
        let config = MultiHeadConfig::grouped_query(12, 4, 2);
        let layer = config.init_with(attention, initializer).unwrap().valid();
        for storage in STORAGES {
            let run = |path| {
                let call = || {
                    let mask = Mask::function("padding", |at| at.batch == 0 || at.key < 4);
                    auto().path(path).alibi(alibi).mask(mask)
                };
                steps(&layer, &x, &[1; 9], cache(None, storage), call)
            };
            let (found, expected) = (run(Path::Auto), run(Path::Plain));
            let off = distance(&found, &expected);
            assert!(close(&found, &expected), "{at} {storage:?}: off by {off}");
        }
    }
    // Cross-attention of one query to a padded source whose padding is NaN.
    let layer = init(&MultiHeadConfig::new(12, 4)).valid();
    let source = layer
        .source(drawn("source", [2, 9, 12], 1.0).inner())
        .unwrap();
    let mut poisoned = source.clone();
    poisoned.keys = poisoned.keys.slice_fill([1..2, 0..4, 4..9, 0..3], f32::NAN);
    poisoned.values = poisoned
        .values
        .slice_fill([1..2, 0..4, 4..9, 0..3], f32::NAN);
    let read = |source, path| {
        let call = auto().path(path).mask(Mask::padding(keep.clone()));
        let query = x.clone().narrow(1, 0, 1);
        layer.forward_source(query, source, call).unwrap().output
    };
    let found = read(&poisoned, Path::Auto);
    assert_eq!(numbers(&found), numbers(&read(&source, Path::Auto)));
    assert!(close(&found, &read(&source, Path::Plain)));
}

/// Asking for the weights, more threads, or another row in the batch changes no bit of a step.
#[test]
fn a_step_depends_on_its_row_alone() {
    let attention = Attention::new(Score::scaled_dot());
    let query = drawn("query", [3, 8, 1, 32], 1.0).inner();
    for storage in STORAGES {
        let stored = |name: &str| {
            let x = drawn(name, [3, 2, 3000, 32], 1.0).inner();
            x.cast(storage.unwrap_or(DType::F32))
        };
        let (key, value) = (stored("key"), stored("value"));
        let run = |rows: [usize; 2], observe: Observe, threads: usize| {
            let rows = |x: &Tensor<4>| x.clone().narrow(0, rows[0], rows[1]);
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
            let read = || attention.forward(rows(&query), rows(&key), rows(&value), observe);
            pool.build().unwrap().install(read).unwrap()
        };
        let all = numbers(&run([0, 3], Observe::Nothing, 1).context);
        let seen = run([0, 3], Observe::Weights, 2);
        assert_eq!(all, numbers(&seen.context), "{storage:?}");
        let sums = seen.weights.unwrap().sum_dim(3);
        assert!(close(&sums, &Tensor::ones_like(&sums)), "{storage:?}");
        let seen = run([0, 3], Observe::TopK(1), 3);
        assert_eq!(all, numbers(&seen.context), "{storage:?}");
        for row in 0..3 {
            let alone = numbers(&run([row, 1], Observe::Entropy, 1).context);
            assert_eq!(alone, all[row * 256..][..256], "{storage:?}, row {row}");
        }
    }
}

/// Keys and values in half precision beside queries in `f32`: every score and every number of queries.
#[test]
fn half_width_keys_are_read_as_what_they_hold() {
    let general = || {
        let general = General::new(6, 6, &mut Initializer::new(1, &device()));
        Attention::new(Score::General(general)).valid()
    };
    let dot = Attention::new(Score::dot());
    for dtype in [DType::BF16, DType::F16] {
        let half = |name: &str| drawn(name, [2, 2, 11, 6], 1.0).inner().cast(dtype);
        let (key, value) = (half("key"), half("value"));
        let wide = |x: &Tensor<4>| x.clone().cast(DType::F32);
        let other = match dtype {
            DType::BF16 => DType::F16,
            _ => DType::BF16,
        };
        let pairs = [
            (key.clone(), value.clone()),
            (key.clone(), wide(&value)),
            (wide(&key), value.clone()),
            (key.clone(), value.clone().cast(other)),
        ];
        for (name, attention) in [("dot", dot.clone()), ("general", general())] {
            for queries in [1, 3, 4, 5, 20] {
                let query = drawn("query", [2, 4, queries, 6], 1.0).inner();
                let paths = [Path::Auto, Path::Plain];
                let calls = paths
                    .iter()
                    .flat_map(|&path| pairs.iter().map(move |pair| (path, pair)));
                for (path, (key, value)) in calls {
                    let read = |key: &Tensor<4>, value: &Tensor<4>| {
                        let (query, key, value) = (query.clone(), key.clone(), value.clone());
                        let call = AttentionOptions::new(Observe::Weights).path(path);
                        attention.forward_with(query, key, value, call).unwrap()
                    };
                    let (found, expected) = (read(key, value), read(&wide(key), &wide(value)));
                    assert_eq!(found.context.dtype(), DType::F32);
                    assert!(
                        close(&found.context, &expected.context),
                        "{name} {queries} {path:?}"
                    );
                    let weights = (found.weights.unwrap(), expected.weights.unwrap());
                    assert!(close(&weights.0, &weights.1), "{name} {queries} {path:?}");
                }
            }
        }
        // With a gradient too, which reaches the numbers before rounding.
        let leaf = drawn("key", [2, 2, 11, 6], 1.0).require_grad();
        let query = drawn("query", [2, 4, 1, 6], 1.0);
        let key = leaf.clone().cast(dtype);
        let read = dot
            .forward(query, key.clone(), key, Observe::Nothing)
            .unwrap();
        let gradient = leaf.grad(&read.context.sum().backward()).unwrap();
        assert!(largest(&gradient) > 0.0);
    }
}

/// A stack whose cache, including that of its source, is stored in half precision.
#[test]
fn a_stack_steps_on_half_width() {
    let config = StackConfig::new(8, 2);
    let stack = config
        .decoder(2, &mut Initializer::new(3, &device()))
        .unwrap()
        .valid();
    let source = drawn("source", [1, 5, 8], 1.0).inner();
    let x = drawn("x", [1, 6, 8], 1.0).inner();
    let run = |storage: Option<DType>| {
        let cache = stack.cache(Some(source.clone())).unwrap();
        let mut cache = match storage {
            Some(dtype) => cache.stored(dtype).unwrap(),
            None => cache,
        };
        let options = StackOptions::default();
        let step = |t| stack.forward_cached(x.clone().narrow(1, t, 1), &mut cache, &options);
        Tensor::cat(
            (0..6).map(step).map(|step| step.unwrap().states).collect(),
            1,
        )
    };
    let whole = run(None);
    for (dtype, rounding) in [(DType::BF16, 1.0 / 64.0), (DType::F16, 1.0 / 512.0)] {
        let off = distance(&run(Some(dtype)), &whole);
        assert!(
            0.0 < off && off < rounding * largest(&whole),
            "{dtype:?}: off by {off}"
        );
    }
}

#[test]
fn other_storages_are_refused() {
    let error = KeyValueCache::growing().stored(DType::F64).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("`stored` is f64, expected bf16 or f16"),
        "{error}"
    );
    let mut cache = KeyValueCache::growing();
    let token = drawn("token", [1, 1, 1, 2], 1.0);
    cache.append(token.clone(), token).unwrap();
    let error = cache.stored(DType::BF16).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("`cached tokens` is 1, expected 0"),
        "{error}"
    );
}
