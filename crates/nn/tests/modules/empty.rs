//! Empty inputs: no sentences, no heads, no queries, no keys, no steps give tensors of the promised shapes, zeros
//! where there are numbers, and gradients of 0; on both paths.

use burn::{
    module::Module,
    tensor::{Bool, DType, Device, Tensor},
};
use regard_nn::{
    Attention, AttentionOptions, Observe, Path,
    bridge::{gated_scores, gated_scores_plain, linear, matmul, without_kernels},
    cache::KeyValueCache,
    dropout::DropoutRng,
    heads::{Gate, MultiHeadConfig, ProjectionLayout, QueryKeyNormKind},
    initialize::Initializer,
    mask::{Mask, PaddingMask},
    normalize::{Normalize, Sink, masked_softmax},
    position::{PositionConfig, RelativeBucketsConfig, RotaryConfig},
    recurrent::{
        AttentiveDecoder, AttentivePooling, Direction, FeatureMap, Gru, Lstm, LstmStack, Lstmn,
        PointerGenerator, RecurrentCell, Reset, SourceTape, Unrolled,
    },
    score::{Additive, Score},
    transformer::{StackConfig, StackOptions},
};

use crate::{
    mechanisms::{SIZE, attend, mechanisms, named},
    support::{device, numbers},
};

fn ones<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::<D>::ones(shape, &device()).require_grad()
}

fn init() -> Initializer {
    Initializer::new(3, &device())
}

/// Checks that gradients flow from `output` to `leaf`, and are 0.
fn flows<const D: usize, const E: usize>(name: &str, output: Tensor<D>, leaf: &Tensor<E>) {
    let gradients = output.sum().backward();
    let slope = leaf
        .grad(&gradients)
        .unwrap_or_else(|| panic!("{name}: no gradient"));
    assert_eq!(slope.dims(), leaf.dims(), "{name}");
    assert!(numbers(&slope).iter().all(|&x| x == 0.0), "{name}");
}

#[test]
fn products() {
    for zero in 0..4 {
        let size = |axis: usize, size: usize| if zero == axis { 0 } else { size };
        let (batch, m, k, n) = (size(0, 2), size(1, 3), size(2, 4), size(3, 5));
        for shared in [batch, 1] {
            let (a, b) = (ones([batch, m, k]), ones([shared, k, n]));
            for (a, b) in [
                (a.clone(), b.clone()),
                (a.cast(DType::F64), b.cast(DType::F64)),
            ] {
                let product = matmul(a.clone(), b.clone());
                assert_eq!(product.dims(), [batch, m, n]);
                assert!(numbers(&product).iter().all(|&x| x == 0.0));
            }
            let (a, b) = (ones([batch, m, k]), ones([shared, k, n]));
            flows("a", matmul(a.clone(), b.clone()), &a);
            flows("b", matmul(a.clone(), b.clone()), &b);
            flows(
                "b a",
                matmul(b.clone().swap_dims(1, 2), a.clone().swap_dims(1, 2)),
                &b,
            );
        }
        let (x, weight, bias) = (ones([batch, m, k]), ones([k, n]), ones([n]));
        let run = || linear(x.clone(), weight.clone(), Some(bias.clone()));
        for y in [run(), without_kernels(run)] {
            assert_eq!(y.dims(), [batch, m, n]);
            assert!(numbers(&y).iter().all(|&x| x == 1.0));
            let gradients = y.sum().backward();
            assert_eq!(x.grad(&gradients).unwrap().dims(), x.dims());
            assert_eq!(weight.grad(&gradients).unwrap().dims(), weight.dims());
            let terms = (batch * m) as f32;
            assert!(
                numbers(&bias.grad(&gradients).unwrap())
                    .iter()
                    .all(|&x| x == terms)
            );
        }
    }
}

/// Sizes beside a size of 0 may be anything: no tensor of these sizes is made, forward or backward.
#[test]
fn sizes_beside_nothing() {
    const HUGE: usize = 1 << 40;
    for [batch, queries, keys] in [[0, HUGE, 3], [0, 3, HUGE], [0, 0, HUGE]] {
        let leaves = [
            ones([batch, 2, queries, SIZE]),
            ones([batch, 2, keys, SIZE]),
            ones([batch, 2, keys, 5]),
        ];
        for path in [Path::Auto, Path::Plain] {
            for leaf in &leaves {
                let attention = Attention::new(Score::scaled_dot());
                let attended = attend(&attention, &leaves, AttentionOptions::default().path(path));
                assert_eq!(attended.context.dims(), [batch, 2, queries, 5]);
                flows("attention", attended.context, leaf);
            }
        }
    }
    let (a, b) = (ones([0, HUGE, 0]), ones([1, 0, HUGE]));
    flows("a", matmul(a.clone(), b.clone()), &a);
    flows("b", matmul(a, b.clone()), &b);
}

#[test]
fn gated_scores_of_nothing() {
    for [batch, queries, keys, dim] in [[0, 2, 3, 4], [2, 0, 3, 4], [2, 2, 0, 4], [2, 2, 3, 0]] {
        for scored in [gated_scores, gated_scores_plain] {
            let query = ones([batch, queries, 2 * dim]);
            let key = ones([batch, keys, 2 * dim]);
            let vector = ones([dim]);
            let run = || scored(query.clone(), key.clone(), vector.clone());
            let scores = run();
            assert_eq!(scores.dims(), [batch, queries, keys]);
            assert!(numbers(&scores).iter().all(|&x| x == 0.0));
            flows("query", run(), &query);
            flows("key", run(), &key);
            flows("vector", run(), &vector);
        }
    }
}

/// Batch, heads, queries and keys, with one of them 0.
const NOTHING: [[usize; 4]; 5] = [
    [0, 2, 3, 4],
    [2, 0, 3, 4],
    [2, 2, 0, 4],
    [2, 2, 3, 0],
    [0, 0, 0, 0],
];

#[test]
fn attention() {
    for attention in mechanisms(2) {
        for [batch, heads, queries, keys] in NOTHING {
            let name = format!("{} {:?}", named(&attention), [batch, heads, queries, keys]);
            if heads == 0
                && matches!(&attention.normalize, Normalize::Sink(sink) if sink.heads().is_some())
            {
                continue; // made for other heads
            }
            let key_heads = heads;
            for path in [Path::Auto, Path::Plain] {
                // The contents of a query do not matter where there is nothing to see.
                let query = (ones([batch, heads, queries, SIZE]) * f32::NAN)
                    .detach()
                    .require_grad();
                let key = ones([batch, key_heads, keys, SIZE]);
                let value = ones([batch, key_heads, keys, 3]);
                let leaves = [query, key, value];
                let run = |observe| {
                    attend(
                        &attention,
                        &leaves,
                        AttentionOptions::new(observe).path(path),
                    )
                };
                let attended = run(Observe::Weights);
                assert_eq!(
                    attended.context.dims(),
                    [batch, heads, queries, 3],
                    "{name}"
                );
                assert!(
                    numbers(&attended.context).iter().all(|&x| x == 0.0),
                    "{name}"
                );
                assert_eq!(
                    attended.weights.unwrap().dims(),
                    [batch, heads, queries, keys]
                );
                for leaf in &leaves {
                    flows(&name, run(Observe::Nothing).context, leaf);
                }
                let rows = Observe::Rows(vec![0; queries.min(1)]);
                let rows = run(rows).weights.unwrap();
                assert_eq!(rows.dims(), [batch, heads, queries.min(1), keys], "{name}");
                let entropy = run(Observe::Entropy).entropy.unwrap();
                assert!(numbers(&entropy).iter().all(|&x| x == 0.0), "{name}");
                assert_eq!(entropy.dims(), [batch, heads, queries], "{name}");
                let sums = run(Observe::ColumnSums).column_sums.unwrap();
                assert!(numbers(&sums).iter().all(|&x| x == 0.0), "{name}");
                assert_eq!(sums.dims(), [batch, heads, keys], "{name}");
                if keys > 0 {
                    let top = run(Observe::TopK(2)).top.unwrap();
                    assert_eq!(top.weights.dims(), [batch, heads, queries, 2], "{name}");
                    assert_eq!(top.keys.dims(), [batch, heads, queries, 2], "{name}");
                }
                let [query, key, _] = leaves.clone();
                let scores = attention
                    .scores(query, key, AttentionOptions::default())
                    .unwrap();
                assert_eq!(scores.dims(), [batch, heads, queries, keys], "{name}");
            }
        }
    }
}

/// The log-sum-exp over no keys is -∞, or the sink's score.
#[test]
fn lse_of_nothing() {
    let [query, key] = [3, 0].map(|length| ones([1, 2, length, SIZE]));
    let lse = |normalize| {
        let attention = Attention::new(Score::dot()).with_normalize(normalize);
        let leaves = [query.clone(), key.clone(), key.clone()];
        numbers(
            &attend(&attention, &leaves, AttentionOptions::default())
                .lse
                .unwrap(),
        )
    };
    assert_eq!(lse(Normalize::softmax()), [f32::NEG_INFINITY; 6]);
    assert_eq!(lse(Normalize::Sink(Sink::fixed(0.5))), [0.5; 6]);
    let scores = ones([1, 2, 3, 0]);
    flows("softmax", masked_softmax(scores.clone(), None), &scores);
    for attention in mechanisms(2) {
        let weights = attention
            .normalize
            .forward(scores.clone(), None, &query, None, None)
            .weights;
        assert_eq!(weights.dims(), [1, 2, 3, 0]);
    }
}

/// A gradient of what is observed is computed too.
#[test]
fn observed_with_gradient() {
    let query = ones([0, 2, 3, SIZE]);
    let attention = Attention::new(Score::scaled_dot());
    let leaves = [query.clone(), query.clone(), query.clone()];
    for observe in [
        Observe::Weights,
        Observe::Entropy,
        Observe::ColumnSums,
        Observe::TopK(2),
    ] {
        let attended = attend(
            &attention,
            &leaves,
            AttentionOptions::new(observe).differentiable(),
        );
        for observed in [attended.entropy, attended.column_sums]
            .into_iter()
            .flatten()
        {
            flows("observed", observed, &query);
        }
        let top = attended.top.map(|top| top.weights);
        for observed in [attended.weights, top].into_iter().flatten() {
            flows("observed", observed, &query);
        }
    }
}

fn layers() -> Vec<MultiHeadConfig> {
    let plain = MultiHeadConfig::new(8, 2);
    let with = |position| MultiHeadConfig {
        position,
        ..plain.clone()
    };
    vec![
        plain.clone(),
        MultiHeadConfig {
            projection: ProjectionLayout::Fused,
            input_bias: true,
            output_bias: true,
            ..plain.clone()
        },
        MultiHeadConfig {
            talking_heads: true,
            ..plain.clone()
        },
        MultiHeadConfig {
            gate: Some(Gate::Elementwise),
            query_key_norm: Some(QueryKeyNormKind::Rms { epsilon: 1e-6 }),
            ..plain.clone()
        },
        MultiHeadConfig {
            gate: Some(Gate::Headwise),
            query_key_norm: Some(QueryKeyNormKind::L2 { length: 9 }),
            ..plain.clone()
        },
        with(PositionConfig::Rotary(RotaryConfig::new(2))),
        with(PositionConfig::Alibi),
        with(PositionConfig::Buckets(RelativeBucketsConfig::default())),
        with(PositionConfig::Relative {
            max_distance: 2,
            values: true,
        }),
    ]
}

#[test]
fn heads() {
    for config in layers() {
        let layer = config.init(&mut init()).unwrap();
        for [batch, length] in [[0, 3], [2, 0], [0, 0]] {
            let name = format!("{config:?} {batch} {length}");
            let x = ones([batch, length, 8]);
            for path in [Path::Auto, Path::Plain] {
                let call = || {
                    AttentionOptions::new(Observe::Nothing)
                        .path(path)
                        .mask(Mask::causal())
                };
                let run = || layer.forward(x.clone(), call()).unwrap().output;
                assert_eq!(run().dims(), [batch, length, 8], "{name}");
                flows(&name, run(), &x);
                flows(&format!("{name} plain"), without_kernels(run), &x);
                let mut cache = KeyValueCache::growing();
                let cached = layer
                    .forward_cached(x.clone(), &mut cache, call())
                    .unwrap()
                    .output;
                assert_eq!(cached.dims(), [batch, length, 8], "{name}");
                flows(&name, cached, &x);
            }
            if config.position == PositionConfig::None {
                let y = ones([batch, 4, 8]);
                let read = |x: &Tensor<3>, y: &Tensor<3>| {
                    layer
                        .forward_cross(x.clone(), y.clone(), AttentionOptions::default())
                        .unwrap()
                        .output
                };
                assert_eq!(read(&x, &y).dims(), [batch, length, 8], "{name}");
                assert_eq!(read(&y, &x).dims(), [batch, 4, 8], "{name}");
                flows(&name, read(&y, &x), &x);
                let source = layer.source(x.clone()).unwrap();
                let read = layer
                    .forward_source(y.clone(), &source, AttentionOptions::default())
                    .unwrap();
                assert_eq!(read.output.dims(), [batch, 4, 8], "{name}");
            }
        }
    }
}

#[test]
fn transformer_layers() {
    let config = StackConfig::new(8, 2);
    let (encoder, decoder) = (
        config.encoder(2, &mut init()).unwrap(),
        config.decoder(2, &mut init()).unwrap(),
    );
    for [batch, length] in [[0, 3], [2, 0]] {
        let x = ones([batch, length, 8]);
        let noise = &mut DropoutRng::none();
        let options = &StackOptions::default();
        let states = encoder
            .forward(x.clone(), None, options, noise)
            .unwrap()
            .states;
        assert_eq!(states.dims(), [batch, length, 8]);
        flows("encoder", states, &x);
        let source = ones([batch, 2, 8]);
        for (target, source) in [(x.clone(), source.clone()), (source, x.clone())] {
            let expected = target.dims();
            let decoded = decoder.forward(target.clone(), Some(source.clone()), options, noise);
            assert_eq!(decoded.unwrap().states.dims(), expected);
            let mut cache = decoder.cache(Some(source)).unwrap();
            let decoded = decoder.forward_cached(target, &mut cache, options);
            assert_eq!(decoded.unwrap().states.dims(), expected);
        }
    }
}

#[test]
fn recurrent_cells() {
    let init = &mut init();
    let grus = [Reset::BeforeProduct, Reset::AfterProduct].map(|reset| Gru::new(3, 5, reset, init));
    let (lstm, stack) = (
        Lstm::new(3, 5, init),
        LstmStack::new(2, 3, 5, init).unwrap(),
    );
    for [time, batch] in [[0, 2], [4, 0], [0, 0]] {
        let x = ones([time, batch, 3]);
        let h = ones([batch, 5]);
        let keep = Tensor::<2, Bool>::full([time, batch], true, &device());
        for direction in [Direction::Forward, Direction::Backward] {
            for gru in &grus {
                let run = || {
                    gru.sequence(
                        gru.project(x.clone()),
                        h.clone(),
                        Some(keep.clone()),
                        direction,
                    )
                };
                for states in [run(), without_kernels(run)] {
                    assert_eq!(states.dims(), [time, batch, 5]);
                    flows("gru", states, &x);
                }
            }
            let run = || {
                let start = lstm.zeros(batch, &device());
                lstm.sequence(lstm.project(x.clone()), start, None, direction)
                    .0
            };
            for states in [run(), without_kernels(run)] {
                assert_eq!(states.dims(), [time, batch, 5]);
                flows("lstm", states, &x);
            }
            let run = || {
                let noise = &mut DropoutRng::seeded(1);
                let keep = Some(keep.clone());
                stack
                    .sequence(x.clone(), None, keep, direction, 0.5, noise)
                    .unwrap()
            };
            for (top, last) in [run(), without_kernels(run)] {
                assert_eq!((top.dims(), last.len()), ([time, batch, 5], 2));
                assert_eq!(last[1].cell.dims(), [batch, 5]);
                flows("stack", top, &x);
            }
        }
        let unrolled = Unrolled {
            cell: grus[0].clone(),
        };
        let features = unrolled.features(x.clone());
        assert_eq!(features.dims(), [batch, time, 5]);
        flows("unrolled", features, &x);
    }
    let empty = stack.advance(ones([0, 3]), stack.start(0, &device()));
    assert_eq!(stack.hidden(&empty).dims(), [0, 5]);
}

#[test]
fn memory_networks() {
    let init = &mut init();
    let (shallow, deep) = (Lstmn::new(3, 5, 4, init), Lstmn::new(3, 5, 4, init));
    let deep = deep.with_fusion(6, 4, init);
    for [time, batch] in [[0, 2], [4, 0]] {
        let x = ones([time, batch, 3]);
        let keep = Tensor::<2, Bool>::full([time, batch], true, &device());
        let read = shallow.sequence(x.clone(), None, Some(keep)).unwrap();
        assert_eq!(read.weights.dims(), [batch, time, time]);
        assert_eq!(read.cell.dims(), [time, batch, 5]);
        flows("lstmn", read.hidden, &x);
        for positions in [0, 3] {
            let source = SourceTape {
                hidden: ones([batch, positions, 6]),
                cell: ones([batch, positions, 5]),
                keep: PaddingMask::from_lengths(&vec![positions; batch], positions, &device()),
            };
            let read = deep.sequence(x.clone(), Some(&source), None).unwrap();
            assert_eq!(
                read.source_weights.unwrap().dims(),
                [batch, time, positions]
            );
            flows("deep lstmn", read.hidden, &x);
        }
    }
}

#[test]
fn memories_and_pooling() {
    let init = &mut init();
    for [batch, positions] in [[0, 3], [2, 0], [0, 0]] {
        let annotations = ones([batch, positions, 6]);
        let keep = || PaddingMask::from_lengths(&vec![positions; batch], positions, &device());
        for score in [Score::dot(), Score::Additive(Additive::new(6, 6, 4, init))] {
            let attention = Attention::new(score);
            let memory = attention.memory(annotations.clone(), keep()).unwrap();
            let memory = memory
                .select(&[])
                .map(|none| (none.keys.dims()[0], memory))
                .unwrap();
            assert_eq!(memory.0, 0);
            let reading = attention
                .read(ones([batch, 2, 6]), &memory.1, AttentionOptions::default())
                .unwrap();
            assert_eq!(reading.context.dims(), [batch, 2, 6]);
            assert_eq!(reading.weights.dims(), [batch, 2, positions]);
            flows("memory", reading.context, &annotations);
        }
        let pooling = AttentivePooling::new(6, 4, 2, init);
        let pooled = pooling.forward(annotations.clone(), &keep()).unwrap();
        assert_eq!(pooled.weights.dims(), [batch, 2, positions]);
        assert_eq!(pooled.context.dims(), [batch, 2, 6]);
        assert!(numbers(&pooled.context).iter().all(|&x| x == 0.0));
        flows("pooling", pooled.context, &annotations);
        assert_eq!(AttentivePooling::redundancy(pooled.weights).dims(), [batch]);

        let cell = LstmStack::new(2, 3 + 6, 5, init).unwrap();
        let attention = Attention::new(Score::Additive(Additive::new(5, 6, 4, init)));
        let decoder = AttentiveDecoder::previous(cell, attention, 6).unwrap();
        let decoder = decoder.with_coverage(init).unwrap();
        let memory = decoder
            .attention
            .memory(annotations.clone(), keep())
            .unwrap();
        let start = decoder.start(&memory);
        let x = ones([2, batch, 3]);
        let decoded = decoder
            .sequence(x, start, &memory, &mut DropoutRng::none())
            .unwrap();
        assert_eq!(decoded.output.dims(), [2, batch, 5]);
        assert_eq!(decoded.weights.dims(), [batch, 2, positions]);
    }
    let pointer = PointerGenerator::new(2, 3, 4, init);
    let gate = pointer
        .generate(ones([0, 2]), ones([0, 3]), ones([0, 4]))
        .unwrap();
    assert_eq!(gate.dims(), [0]);
}

/// The same on a device without autodiff, and in another precision.
#[test]
fn without_autodiff() {
    let device = Device::flex();
    let init = &mut Initializer::new(3, &device);
    let layer = MultiHeadConfig::new(8, 2).init(init).unwrap();
    let x = Tensor::<3>::ones([0, 3, 8], &device);
    assert_eq!(
        layer
            .forward(x, AttentionOptions::default())
            .unwrap()
            .output
            .dims(),
        [0, 3, 8]
    );
    let x = Tensor::<4>::ones([2, 1, 0, 4], (&device, DType::F64));
    let attended = Attention::new(Score::dot()).forward(x.clone(), x.clone(), x, Observe::Weights);
    assert_eq!(attended.unwrap().context.dtype(), DType::F64);
    let gru = Gru::new(3, 5, Reset::AfterProduct, init).fork(&device);
    assert_eq!(
        gru.project(Tensor::<3>::ones([0, 2, 3], &device)).dims(),
        [0, 2, 15]
    );
}
