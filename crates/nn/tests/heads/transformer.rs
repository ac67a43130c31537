//! Transformer layers: fused in f32 against plain in f64, gradients included and dropout replayed; and the plain ones against
//! finite differences.

use crate::{
    finite_differences::{check_gradients, double, doubles, weights},
    support::{device, values},
};
use burn::tensor::{DType, Int, Tensor, TensorData};
use regard_nn::{
    Call,
    bridge::{OutputWeights, cross_entropy_mean, output_cross_entropy_mean},
    dropout::Noise,
    initialize::Initializer,
    mask::{Keep, Mask},
    position::{PositionConfig, RotaryConfig},
    transformer::{
        Activation, Decoder, Encoder, NormConfig, NormPlace, TransformerConfig, TransformerDropout,
    },
};

fn variants() -> Vec<(&'static str, TransformerConfig)> {
    let base = TransformerConfig {
        feed_forward: 5,
        dropout: TransformerDropout {
            residual: 0.2,
            attention: 0.2,
            activation: 0.2,
        },
        ..TransformerConfig::new(4, 2)
    };
    vec![
        ("pre", base.clone()),
        (
            "post, gelu, one key head",
            TransformerConfig {
                norm_place: NormPlace::Post,
                activation: Activation::Gelu,
                key_value_heads: 1,
                ..base.clone()
            },
        ),
        (
            "rms, swiglu, rotary, window, no bias",
            TransformerConfig {
                norm: NormConfig::Rms { epsilon: 1e-5 },
                activation: Activation::Swiglu,
                position: PositionConfig::Rotary(RotaryConfig::new(2)),
                window: Some(2),
                bias: false,
                ..base
            },
        ),
    ]
}

/// Two sentences of 3 and 1 words read, 2 written.
fn loss(
    (encoder, decoder): &(Encoder, Decoder),
    x: Tensor<3>,
    y: Tensor<3>,
    upstream: Tensor<3>,
) -> Tensor<1> {
    let keep = Keep::from_lengths(&[3, 1], 3, &x.device());
    let call = || Call::default().mask(Mask::padding(keep.clone()));
    let noise = &mut Noise::seeded(5);
    let read = encoder.forward(x, call(), noise).unwrap().states;
    let decoded = decoder.forward(y, read, call(), noise).unwrap();
    (decoded.states * upstream).sum()
}

fn modules(config: &TransformerConfig) -> (Encoder, Decoder) {
    let device = device();
    let mut initializer = Initializer::new(3, &device);
    (
        config.encoder(1, &mut initializer).unwrap(),
        config.decoder(1, &mut initializer).unwrap(),
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

#[test]
fn fused_in_f32_is_plain_in_f64() {
    let all = inputs();
    for (name, config) in variants() {
        let module = modules(&config);
        let wide = double(module.clone());
        let narrow: [Tensor<3>; 3] = std::array::from_fn(|i| {
            let shape = [2, if i == 0 { 3 } else { 2 }, 4];
            Tensor::from_data(TensorData::new(all[i].clone(), shape), &device())
        });
        let exact = narrow.clone().map(|tensor| tensor.cast(DType::F64));
        let [x, y, u] = narrow;
        let found = loss(&module, x, y, u);
        let [x, y, u] = exact;
        let expected = loss(&wide, x, y, u);
        let (a, b) = (
            found.clone().into_scalar::<f32>(),
            expected.clone().into_scalar::<f64>(),
        );
        assert!(
            (f64::from(a) - b).abs() <= 2e-6 * (1.0 + b.abs()),
            "{name}: {a} {b}"
        );
        let found = weights(&module, &found.backward());
        let expected = weights(&wide, &expected.backward());
        assert_eq!(found.len(), expected.len());
        let largest = expected
            .iter()
            .flat_map(|(_, gradient)| gradient)
            .fold(1.0f64, |most, g| most.max(g.abs()));
        for ((weight, found), (_, expected)) in found.iter().zip(&expected) {
            for (a, b) in found.iter().zip(expected) {
                assert!((a - b).abs() <= 2e-6 * largest, "{name}: {weight}: {a} {b}");
            }
        }
    }
}

/// The output layer with its loss, many classes and few, tied and not: what two steps give, and the same gradients.
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
                // Twice the loss, so that what comes from above is not 1.
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
