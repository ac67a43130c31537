//! Gradients by finite differences, with dropout on: what the golden files, made without noise, cannot see.
//!
//! For each weight tensor and a direction `d` of ±1: `(L(w + hd) - L(w - hd)) / 2h` against `g · d`. Two step
//! sizes say how far truncation takes the quotient; the rounding of `L`, an f32, adds `ε |L| / h`.

use crate::common::{batch, configs, model};
use burn::tensor::{Device, Tensor};
use regard_models::{
    LuongConfig, ModelConfig, RnnSearchConfig, Seq2SeqConfig, TranslationModel, tokens::PADDING,
};
use regard_nn::{
    bridge::cross_entropy_mean,
    dropout::Noise,
    weights::{self, Arrays},
};

const STEP: f32 = 1.0 / 64.0;

fn noisy(config: ModelConfig) -> ModelConfig {
    match config {
        ModelConfig::RnnSearch(c) => ModelConfig::RnnSearch(RnnSearchConfig {
            embedding_dropout: 0.2,
            annotation_dropout: 0.2,
            output_dropout: 0.2,
            ..c
        }),
        ModelConfig::Luong(c) => ModelConfig::Luong(LuongConfig {
            embedding_dropout: 0.2,
            layer_dropout: 0.2,
            annotation_dropout: 0.2,
            output_dropout: 0.2,
            ..c
        }),
        ModelConfig::Seq2Seq(c) => ModelConfig::Seq2Seq(Seq2SeqConfig {
            embedding_dropout: 0.2,
            layer_dropout: 0.2,
            output_dropout: 0.2,
            ..c
        }),
    }
}

fn loss(model: &TranslationModel, device: &Device) -> Tensor<1> {
    let (source, target) = batch(device);
    let scored = model.forward(&source, &target, &mut Noise::seeded(17));
    cross_entropy_mean(scored.logits, target.outputs, PADDING as usize, 0.1).loss
}

#[test]
fn gradients_with_dropout_by_finite_differences() {
    let (mut checked, mut sharp) = (0, 0);
    for (name, config) in configs() {
        let config = noisy(config);
        let tracked = Device::flex().autodiff();
        let start = model(&config, 11, 1.5, &tracked);
        let gradients = crate::support::gradients(&start, &loss(&start, &tracked).backward());
        let arrays: Arrays = weights::collect(&start);

        let device = Device::flex();
        let plain = model(&config, 11, 1.5, &device);
        for (weight, gradient) in &gradients {
            let signs =
                crate::support::values(&format!("{name}/{weight}"), gradient.values.len(), 1.0);
            let signs: Vec<f32> = signs.iter().map(|sign| sign.signum()).collect();
            // Along all entries of a large tensor the loss would bend too soon.
            let step = STEP / (signs.len() as f32).sqrt();
            let at = |h: f32| {
                let mut moved = arrays.clone();
                let values = &mut moved.get_mut(weight).unwrap().values;
                values
                    .iter_mut()
                    .zip(&signs)
                    .for_each(|(value, sign)| *value += h * step * sign);
                let model = weights::apply(plain.clone(), moved).unwrap();
                f64::from(loss(&model, &device).into_scalar::<f32>())
            };
            let quotient = |h: f32| (at(h) - at(-h)) / f64::from(2.0 * h * step);
            let (near, far) = (quotient(2.0), quotient(4.0));
            let found: f64 = gradient
                .values
                .iter()
                .zip(&signs)
                .map(|(g, sign)| f64::from(g * sign))
                .sum();
            // The loss is near 3; forward passes of this depth round it by a few ulp.
            let rounding = 4.0 * f64::from(f32::EPSILON) * 3.0 / f64::from(2.0 * step);
            let tolerance = (far - near).abs() + rounding;
            assert!(
                (found - near).abs() <= tolerance,
                "{name}: {weight}: gradient {found}, quotients {near} {far}, allowed {tolerance}"
            );
            let norm: f64 = gradient
                .values
                .iter()
                .map(|g| f64::from(g * g))
                .sum::<f64>()
                .sqrt();
            checked += 1;
            sharp += usize::from(tolerance < 0.1 * norm.max(found.abs()));
        }
    }
    assert!(checked > 120, "{checked}");
    // A gradient that is lost or doubled must be seen in most places.
    assert!(sharp * 2 > checked, "{sharp} of {checked}");
}
