//! Scheduled sampling (Bengio et al. 2015): in training, some of the decoder's inputs are its own
//! predictions in place of the reference.
//!
//! At update `t` each input is replaced with probability `p(t) = p_final · min(1, t / decay)`. The
//! decoder runs step by step without gradient, as no gradient passes through a chosen token; the
//! resulting inputs then go through the ordinary, teacher-forced pass.

use burn::tensor::{Int, Tensor, TensorData};
use regard_models::{AnyGenerator, SourceBatch, TargetBatch};
use regard_nn::dropout::DropoutRng;

use crate::{corpus::Random, recipe::ScheduledSampling, tasks::Update};

/// The probability of sampling at update `step`.
pub fn probability(settings: &ScheduledSampling, step: u64) -> f64 {
    settings.final_probability * (step as f64 / settings.decay_steps.max(1) as f64).min(1.0)
}

/// `target`, the rows of `update` that this process computes, with some inputs replaced by what `model` (without autodiff, like
/// `source`) predicts.
pub fn mix(
    model: &AnyGenerator,
    source: &SourceBatch,
    target: TargetBatch,
    probability: f64,
    random: &mut Random,
    update: &Update<'_>,
) -> TargetBatch {
    let device = update.device;
    let [length, batch] = target.inputs.dims();
    let reference: Vec<i32> = target.inputs.clone().inner().into_data().iter().collect();
    let mut inputs = reference.clone();
    let vocabularies = model.vocabularies();
    let padding = vocabularies.target.padding as i32;
    let mut state = model.encode(source, &mut DropoutRng::none());
    for t in 0..length.saturating_sub(1) {
        let previous = &inputs[t * batch..(t + 1) * batch];
        let previous = Tensor::from_data(TensorData::new(previous.to_vec(), [batch]), device);
        let (output, next) = model.step(previous, state, false);
        state = next;
        let predicted: Tensor<1, Int> = output.logits.argmax(1).squeeze_dim(1);
        let predicted: Vec<i32> = predicted.into_data().iter().collect();
        // One draw for each position, padding and the rows of other processes included, so that the draws of a batch depend neither on
        // its lengths nor on who computes it.
        let draws: Vec<f64> = update.rows.iter().map(|_| random.uniform()).collect();
        let draws = &draws[update.share.clone()];
        for (b, (&prediction, &draw)) in predicted.iter().zip(draws).enumerate() {
            let place = (t + 1) * batch + b;
            if draw < probability && reference[place] != padding {
                inputs[place] = prediction;
            }
        }
    }
    let inputs = Tensor::from_data(TensorData::new(inputs, [length, batch]), update.training);
    target.with_inputs(inputs)
}
