use burn::tensor::{Device, Tensor, TensorData, Tolerance};
use regard_nn::dropout::DropoutRng;

use super::*;
use crate::{SourceBatch, TargetBatch, Vocabularies};

/// The bottom layer as one operation and step by step: states, contexts, weights, and the gradient of every
/// parameter that takes part.
#[test]
fn the_fused_bottom_layer_is_the_plain_one() {
    let device = Device::flex().autodiff();
    let vocabularies = Vocabularies::new(16, 16);
    let sources = [vec![5, 6, 7, 8], vec![9], vec![4, 5]];
    let source = SourceBatch::new(&sources, &vocabularies.source, &device);
    let targets = [vec![8, 9, 10], vec![7], vec![5, 6]];
    let target = TargetBatch::new(&targets, &vocabularies.target, &device);
    let mut checked = 0;
    for layers in [2, 3, 4] {
        let config = GnmtConfig {
            layers,
            ..GnmtConfig::tiny()
        };
        let model = config.init(&vocabularies, 7, &device).unwrap();
        let run = |fused: bool| {
            let mut state = model.encode(&source, &mut DropoutRng::none());
            let embedded = model.tables.embed_target(target.inputs.clone());
            let first = state.layers.remove(0);
            let bottom = match fused {
                true => model.attend(embedded, first, state.source, &mut DropoutRng::none()),
                false => model.attend_plain(embedded, first, state.source, &mut DropoutRng::none()),
            };
            let both = Tensor::cat(vec![bottom.hidden, bottom.contexts], 2);
            let wave = Tensor::arange(0..both.shape().num_elements() as i64, &device)
                .float()
                .sin()
                .reshape(both.dims());
            let gradients = (both.clone() * wave).sum().backward();
            let Score::Additive(score) = &model.attention.score else {
                unreachable!("the score is additive")
            };
            let all = [
                model.decoder[0].input.weight.val().grad(&gradients),
                model.decoder[0].recurrent.val().grad(&gradients),
                score.query.weight.val().grad(&gradients),
                score.key.weight.val().grad(&gradients),
                model.encoder_backward.recurrent.val().grad(&gradients),
                model.encoder[0].recurrent.val().grad(&gradients),
                model.tables.target.weight.val().grad(&gradients),
            ];
            let all = all.map(|gradient| gradient.expect("a gradient"));
            (both.inner(), bottom.weights.inner(), all)
        };
        let (fused, plain) = (run(true), run(false));
        let tolerance = Tolerance::<f32>::rel_abs(1e-4, 1e-5);
        let check = |a: TensorData, b: TensorData| a.assert_approx_eq::<f32>(&b, tolerance);
        check(fused.0.into_data(), plain.0.into_data());
        check(fused.1.into_data(), plain.1.into_data());
        for (a, b) in fused.2.into_iter().zip(plain.2) {
            check(a.into_data(), b.into_data());
            checked += 1;
        }
    }
    assert_eq!(checked, 3 * 7);
}
