//! Transformer layers: fused in f32 against plain in f64, gradients included and dropout replayed; and the plain ones against
//! finite differences.

use crate::{
    finite_differences::{check_gradients, double, doubles, weights},
    support::{device, values},
};
use burn::tensor::{DType, Int, Tensor, TensorData};
use regard_nn::{
    bridge::{OutputWeights, cross_entropy_mean, output_cross_entropy_mean, without_kernels},
    dropout::DropoutRng,
    heads::QueryKeyNormKind,
    initialize::Initializer,
    mask::{Mask, PaddingMask},
    position::{PositionConfig, RotaryConfig},
    transformer::{
        Activation, Biases, LayerChoice, NormConfig, NormPlace, Stack, StackConfig, StackDropout,
        StackOptions,
    },
};

fn variants() -> Vec<(&'static str, StackConfig)> {
    let base = StackConfig {
        feed_forward: 5,
        dropout: StackDropout {
            residual: 0.2,
            attention: 0.2,
            activation: 0.2,
        },
        ..StackConfig::new(4, 2)
    };
    vec![
        ("pre", base.clone()),
        (
            "post, gelu, one key head",
            StackConfig {
                norm_place: NormPlace::Post,
                activation: Activation::Gelu,
                key_value_heads: 1,
                ..base.clone()
            },
        ),
        (
            "rms, swiglu, rotary, window, no bias",
            StackConfig {
                norm: NormConfig::Rms { epsilon: 1e-5 },
                activation: Activation::Swiglu,
                position: PositionConfig::Rotary(RotaryConfig::new(2)),
                window: Some(2),
                biases: Biases::NONE,
                ..base.clone()
            },
        ),
        (
            "both sides, geglu, own head size, query-key norm, softcap, scale, layers that differ",
            StackConfig {
                norm_place: NormPlace::Both,
                activation: Activation::GegluTanh,
                head_size: Some(6),
                query_key_norm: Some(QueryKeyNormKind::Rms { epsilon: 1e-6 }),
                softcap: Some(2.0),
                scale: Some(0.3),
                layers: vec![
                    LayerChoice {
                        window: Some(2),
                        position: PositionConfig::Rotary(RotaryConfig::new(4)),
                    },
                    LayerChoice {
                        window: None,
                        position: PositionConfig::None,
                    },
                ],
                biases: Biases {
                    query_key_value: true,
                    attention_output: false,
                    feed_forward: true,
                },
                ..base
            },
        ),
    ]
}

/// The loss of two sentences that read 3 and 1 words and write 2.
fn loss(
    (encoder, decoder): &(Stack, Stack),
    x: Tensor<3>,
    y: Tensor<3>,
    upstream: Tensor<3>,
) -> Tensor<1> {
    let keep = PaddingMask::from_lengths(&[3, 1], 3, &x.device());
    let padding = Mask::padding(keep);
    let noise = &mut DropoutRng::seeded(5);
    let options = StackOptions::default().mask(padding.clone());
    let read = encoder.forward(x, None, &options, noise).unwrap().states;
    let options = StackOptions::default().source_mask(padding);
    let decoded = decoder.forward(y, Some(read), &options, noise).unwrap();
    (decoded.states * upstream).sum()
}

fn modules(config: &StackConfig) -> (Stack, Stack) {
    let device = device();
    let mut initializer = Initializer::new(3, &device);
    (
        config
            .encoder(config.layers.len().max(1), &mut initializer)
            .unwrap(),
        config
            .decoder(config.layers.len().max(1), &mut initializer)
            .unwrap(),
    )
}

fn inputs() -> [Vec<f32>; 3] {
    [
        values("x", 24, 1.0),
        values("y", 16, 1.0),
        values("u", 16, 1.0),
    ]
}

#[test]
fn gradients_equal_finite_differences() {
    let mut checked = 0;
    let [x, y, u] = inputs();
    for (name, config) in variants() {
        let module = double(modules(&config));
        let all = [doubles(&x, [2, 3, 4]), doubles(&y, [2, 2, 4])];
        let upstream = doubles(&u, [2, 2, 4]);
        checked += check_gradients(name, &module, &all, |module, inputs| {
            let [x, y] = inputs else {
                unreachable!("two inputs")
            };
            loss(module, x.clone(), y.clone(), upstream.clone())
        });
    }
    assert!(checked > 900, "{checked}");
}

/// The distance from the same computation in f64 is at most twice that of plain operations in f32, plus rounding.
#[test]
fn fused_in_f32_is_plain_in_f64() {
    let all = inputs();
    for (name, config) in variants() {
        let module = modules(&config);
        let narrow: [Tensor<3>; 3] = std::array::from_fn(|i| {
            let shape = [2, if i == 0 { 3 } else { 2 }, 4];
            Tensor::from_data(TensorData::new(all[i].clone(), shape), &device())
        });
        let run = |module: &(Stack, Stack), [x, y, u]: [Tensor<3>; 3]| {
            let loss = loss(module, x, y, u);
            let value = loss.clone().into_data().iter::<f64>().next().unwrap();
            (value, weights(module, &loss.backward()))
        };
        let exact = narrow.clone().map(|tensor| tensor.cast(DType::F64));
        let (expected, expected_gradients) = run(&double(module.clone()), exact);
        let (fused, fused_gradients) = run(&module, narrow.clone());
        let (plain, plain_gradients) = without_kernels(|| run(&module, narrow));
        let far = |found: f64| (found - expected).abs();
        assert!(
            far(fused) <= 2.0 * far(plain) + 2e-6 * (1.0 + expected.abs()),
            "{name}: {fused} {plain} {expected}"
        );
        assert_eq!(fused_gradients.len(), expected_gradients.len());
        let numbers = expected_gradients.iter().flat_map(|(_, gradient)| gradient);
        let largest = numbers.fold(1.0f64, |most, g| most.max(g.abs()));
        for (at, (weight, expected)) in expected_gradients.iter().enumerate() {
            let far = |gradients: &[(String, Vec<f64>)]| {
                let pairs = gradients[at].1.iter().zip(expected);
                pairs.fold(0.0f64, |most, (a, b)| most.max((a - b).abs()))
            };
            let (fused, plain) = (far(&fused_gradients), far(&plain_gradients));
            assert!(
                fused <= 2.0 * plain + 2e-6 * largest,
                "{name}: {weight}: {fused} {plain}"
            );
        }
    }
}

/// The output layer with its loss, many classes and few, tied and not: the same result and gradients as in two steps.
#[test]
fn the_output_layer_with_its_loss_is_both_in_turn() {
    let device = device();
    for (rows, inputs, classes) in [(7, 5, 11), (40, 3, 300_000), (1, 1, 1)] {
        for (is_table, biased) in [(true, true), (false, true), (true, false)] {
            let run = |fused: bool| {
                let leaf = |name: &str, shape: [usize; 2]| {
                    let numbers = values(name, shape[0] * shape[1], 1.0);
                    Tensor::<2>::from_data(TensorData::new(numbers, shape), &device).require_grad()
                };
                let hidden = leaf("h", [rows, inputs]);
                let weight = leaf(
                    "w",
                    if is_table {
                        [classes, inputs]
                    } else {
                        [inputs, classes]
                    },
                );
                let bias = leaf("b", [1, classes]);
                let output = OutputWeights {
                    weight: weight.clone(),
                    is_table,
                    bias: biased.then(|| bias.clone().squeeze_dim(0)),
                };
                let ids: Vec<i32> = (0..rows).map(|row| (row * 7 % classes) as i32).collect();
                let targets = Tensor::<1, Int>::from_ints(ids.as_slice(), &device);
                let ignore = if rows > 1 { 0 } else { 5 };
                let result = match fused {
                    true => output_cross_entropy_mean(hidden.clone(), output, targets, ignore, 0.1),
                    false => {
                        cross_entropy_mean(output.logits(hidden.clone()), targets, ignore, 0.1)
                    }
                };
                let sums = (result.nll, result.tokens);
                // Twice the loss, so that the incoming gradient is not 1.
                let gradients = (result.loss * 2.0).backward();
                let leaves = [hidden, weight].into_iter().chain(biased.then_some(bias));
                let numbers = |leaf: Tensor<2>| -> Vec<f32> {
                    leaf.grad(&gradients).unwrap().into_data().iter().collect()
                };
                (sums, leaves.map(numbers).collect::<Vec<_>>())
            };
            let ((sums, one), (expected, two)) = (run(true), run(false));
            assert_eq!(sums.1, expected.1);
            assert!((sums.0 - expected.0).abs() <= 1e-5 * (1.0 + expected.0));
            for (one, two) in one.iter().zip(&two) {
                let largest = two.iter().fold(1e-3f32, |most, g| most.max(g.abs()));
                for (a, b) in one.iter().zip(two) {
                    assert!((a - b).abs() <= 4e-6 * largest, "{rows} {classes}: {a} {b}");
                }
            }
        }
    }
}

/// Token by token and in chunks, with cached keys and values, a stack gives the same as for the whole sequence.
#[test]
fn cached_steps_are_the_whole_sequence_at_once() {
    let device = device();
    let parallel = StackConfig {
        norm_place: NormPlace::Parallel,
        activation: Activation::GeluTanh,
        position: PositionConfig::Rotary(RotaryConfig::new(2)),
        ..StackConfig::new(4, 2)
    };
    let [length, source_length] = [7, 3];
    let x = Tensor::<3>::from_data(
        TensorData::new(values("x", 2 * length * 4, 1.0), [2, length, 4]),
        &device,
    );
    let source = Tensor::<3>::from_data(
        TensorData::new(
            values("s", 2 * source_length * 4, 1.0),
            [2, source_length, 4],
        ),
        &device,
    );
    let padding = Mask::padding(PaddingMask::from_lengths(&[3, 1], source_length, &device));
    let options = StackOptions::default().source_mask(padding);
    for config in variants()
        .into_iter()
        .map(|(_, config)| config)
        .chain([parallel])
    {
        let initializer = &mut Initializer::new(3, &device);
        let reads_source = config.norm_place != NormPlace::Parallel;
        let stack = match reads_source {
            true => config.decoder(3, initializer).unwrap(),
            false => config.decoder_only(3, initializer).unwrap(),
        };
        let source = reads_source.then(|| source.clone());
        let noise = &mut DropoutRng::none();
        let whole = stack.forward(x.clone(), source.clone(), &options, noise);
        let whole = whole.unwrap().states.into_data();
        for chunks in [vec![1; length], vec![3, 1, 2, 1], vec![length]] {
            let mut cache = stack.cache(source.clone()).unwrap();
            let mut steps = vec![];
            for new in chunks {
                let x = x.clone().narrow(1, cache.length(), new);
                steps.push(
                    stack
                        .forward_cached(x, &mut cache, &options)
                        .unwrap()
                        .states,
                );
            }
            let steps = Tensor::cat(steps, 1).into_data();
            let close = burn::tensor::Tolerance::rel_abs(1e-5, 1e-6);
            steps.assert_approx_eq::<f32>(&whole, close);
        }
    }
}

#[test]
fn stacks_refuse_what_does_not_go_together() {
    let initializer = &mut Initializer::new(3, &device());
    let config = StackConfig::new(4, 2);
    let x = || Tensor::<3>::ones([1, 2, 4], &device());
    let (options, noise) = (StackOptions::default(), &mut DropoutRng::none());
    let encoder = config.encoder(1, initializer).unwrap();
    let decoder = config.decoder(1, initializer).unwrap();
    let parallel = StackConfig {
        norm_place: NormPlace::Parallel,
        ..config
    };
    for (error, says) in [
        (
            encoder.forward(x(), Some(x()), &options, noise).err(),
            "source",
        ),
        (decoder.forward(x(), None, &options, noise).err(), "source"),
        (decoder.cache(None).err(), "source"),
        (encoder.cache(None).err(), "cache"),
        (parallel.decoder(1, initializer).err(), "norm_place"),
    ] {
        let error = error.expect(says).to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn a_configuration_is_read_as_it_was_written() {
    let config = StackConfig::new(4, 2);
    let file = serde_json::to_value(&config).unwrap();
    assert_eq!(serde_json::from_value::<StackConfig>(file).unwrap(), config);
}
