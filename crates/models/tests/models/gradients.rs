//! Gradients by finite differences, with dropout on: the golden files, made without dropout, do not test this.
//!
//! For each weight tensor and a direction `d` of ±1: `(L(w + hd) - L(w - hd)) / 2h` against `g · d`. Two step
//! sizes say how far truncation takes the quotient. `L` is computed in f64 from the f32 logits, whose rounding
//! (logits near 1, a mean over the tokens) adds `ε / 2h`.

use crate::{
    common::{MARKS, batch, configs, model, numbers, with_dropout},
    support::{gradients, values},
};
use burn::tensor::{Device, Tensor};
use regard_models::AnyGenerator;
use regard_nn::{
    bridge::cross_entropy_mean,
    dropout::DropoutRng,
    weights::{self, Arrays},
};

const STEP: f32 = 1.0 / 256.0;

const SMOOTHING: f32 = 0.1;

fn logits(model: &AnyGenerator, device: &Device) -> Tensor<2> {
    let (source, target) = batch(device);
    model
        .forward(&source, &target, &mut DropoutRng::seeded(17))
        .logits()
}

/// The smoothed cross-entropy, a mean over the tokens, in f64.
fn loss(logits: &Tensor<2>, outputs: &[u32]) -> f64 {
    let vocabulary = logits.dims()[1];
    let smoothing = f64::from(SMOOTHING);
    let (mut sum, mut tokens) = (0.0, 0.0);
    for (row, &output) in numbers(logits).chunks(vocabulary).zip(outputs) {
        if output == MARKS.padding {
            continue;
        }
        let total: f64 = row.iter().map(|&logit| f64::from(logit).exp()).sum();
        let mean = row.iter().map(|&logit| f64::from(logit)).sum::<f64>() / vocabulary as f64;
        let target = f64::from(row[output as usize]);
        sum += total.ln() - (1.0 - smoothing) * target - smoothing * mean;
        tokens += 1.0;
    }
    sum / tokens
}

#[test]
fn gradients_with_dropout_by_finite_differences() {
    let (mut checked, mut sharp) = (0, 0);
    for (name, config) in configs() {
        let config = with_dropout(&*config, 0.2);
        let tracked = Device::flex().autodiff();
        let start = model(&*config, 11, 1.5, &tracked);
        let targets = batch(&tracked).1.outputs;
        let outputs: Vec<u32> = targets.clone().into_data().iter().collect();
        let scored = logits(&start, &tracked);
        let exact = loss(&scored, &outputs);
        let fused = cross_entropy_mean(scored, targets, MARKS.padding as usize, SMOOTHING).loss;
        let error = (f64::from(fused.clone().into_scalar::<f32>()) - exact).abs();
        assert!(
            error < 4.0 * f64::from(f32::EPSILON) * exact,
            "{name}: {error}"
        );
        let gradients = gradients(&start, &fused.backward());
        let arrays: Arrays = weights::collect(&start);

        let device = Device::flex();
        let plain = model(&*config, 11, 1.5, &device);
        for (weight, gradient) in &gradients {
            let signs = values(&format!("{name}/{weight}"), gradient.values.len(), 1.0);
            let signs: Vec<f32> = signs.iter().map(|sign| sign.signum()).collect();
            // The more entries a tensor has, the smaller their step, as the loss would not be linear over a longer way.
            let step = STEP / (signs.len() as f32).sqrt();
            let at = |h: f32| {
                let mut moved = arrays.clone();
                let values = &mut moved.get_mut(weight).unwrap().values;
                values
                    .iter_mut()
                    .zip(&signs)
                    .for_each(|(value, sign)| *value += h * step * sign);
                let model = weights::apply(plain.clone(), moved).unwrap();
                loss(&logits(&model, &device), &outputs)
            };
            let quotient = |h: f32| (at(h) - at(-h)) / f64::from(2.0 * h * step);
            let (near, far) = (quotient(2.0), quotient(4.0));
            let found: f64 = gradient
                .values
                .iter()
                .zip(&signs)
                .map(|(g, sign)| f64::from(g * sign))
                .sum();
            let rounding = f64::from(f32::EPSILON) / f64::from(2.0 * step);
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
    // In most places the test must be sharp enough to see a gradient that is lost or doubled.
    assert!(sharp * 2 > checked, "{sharp} of {checked}");
}
