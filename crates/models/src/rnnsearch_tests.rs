use burn::tensor::{Device, Tensor, TensorData, Tolerance};
use regard_nn::dropout::DropoutRng;

use super::*;
use crate::{SourceBatch, TargetBatch, Vocabularies};

/// The fused decoder and the plain one: outputs, weights, and the gradient of every parameter.
#[test]
fn the_fused_decoder_is_the_plain_one() {
    let device = Device::flex().autodiff();
    let vocabularies = Vocabularies::new(16, 16);
    let model = RnnSearchConfig::tiny().init(&vocabularies, 7, &device);
    let model = model.unwrap();
    let sources = [vec![5, 6, 7, 8], vec![9], vec![4, 5]];
    let source = SourceBatch::new(&sources, &vocabularies.source, &device);
    let targets = [vec![8, 9, 10], vec![7], vec![5, 6]];
    let target = TargetBatch::new(&targets, &vocabularies.target, &device);
    let run = |fused: bool| {
        let state = model.encode(&source, &mut DropoutRng::none());
        let embedded = model.tables.embed_target(target.inputs.clone());
        let decoded = match fused {
            true => model.decode(embedded, state, &mut DropoutRng::none()),
            false => model.decode_plain(embedded, state, &mut DropoutRng::none()),
        };
        let both = Tensor::cat(vec![decoded.hidden, decoded.contexts], 2);
        let wave = Tensor::arange(0..both.shape().num_elements() as i64, &device)
            .float()
            .sin()
            .reshape(both.dims());
        let gradients = (both.clone() * wave).sum().backward();
        let Score::Additive(score) = &model.attention.score else {
            unreachable!("rnnsearch aligns additively");
        };
        let weights = [
            &model.decoder.input.weight,
            &model.decoder.recurrent,
            &model.decoder_context.weight,
            &model.initial.weight,
            &score.query.weight,
            &score.key.weight,
            &model.encoder_forward.recurrent,
            &model.encoder_backward.input.weight,
        ];
        let mut all: Vec<TensorData> = weights
            .map(|weight| {
                weight
                    .val()
                    .grad(&gradients)
                    .expect("a gradient")
                    .into_data()
            })
            .into();
        all.push(
            score
                .vector
                .val()
                .grad(&gradients)
                .expect("a gradient")
                .into_data(),
        );
        all.push(both.inner().into_data());
        all.push(decoded.weights.inner().into_data());
        all
    };
    let (fused, plain) = (run(true), run(false));
    assert_eq!(fused.len(), 11);
    for (a, b) in fused.iter().zip(&plain) {
        a.assert_approx_eq::<f32>(b, Tolerance::rel_abs(1e-4, 1e-5));
    }
}
