use burn::tensor::{Device, Tensor, TensorData, Tolerance};
use regard_nn::dropout::DropoutRng;

use super::*;
use crate::{SourceBatch, TargetBatch, Vocabularies};

/// The fused decoder and the plain one, under the same dropout: outputs, weights, and the gradient
/// of every parameter.
#[test]
fn the_fused_decoder_is_the_plain_one() {
    let device = Device::flex().autodiff();
    let vocabularies = Vocabularies::new(16, 16);
    let sources = [vec![5, 6, 7, 8], vec![9], vec![4, 5]];
    let source = SourceBatch::new(&sources, &vocabularies.source, &device);
    let targets = [vec![8, 9, 10], vec![7], vec![5, 6]];
    let target = TargetBatch::new(&targets, &vocabularies.target, &device);
    let mut checked = 0;
    for score in [LuongScore::Dot, LuongScore::General, LuongScore::Concat] {
        for attention in [LuongAttention::Global, LuongAttention::LocalM] {
            for layers in [1, 2, 3] {
                let config = LuongConfig {
                    score,
                    attention,
                    window: 1,
                    layers,
                    dropout: StackDropout {
                        layers: 0.2,
                        output: 0.3,
                        ..StackDropout::none()
                    },
                    ..LuongConfig::tiny()
                };
                let model = config.init(&vocabularies, 7, &device).unwrap();
                let run = |fused: bool| {
                    let state = model.encode(&source, &mut DropoutRng::none());
                    let embedded = model.tables.embed_target(target.inputs.clone());
                    let [length, batch, _] = embedded.dims();
                    let mut noise = DropoutRng::seeded(3);
                    let masks = model.masks(length, batch, &device, &mut noise);
                    let decoded = match fused {
                        true => model.decode_feeding(embedded, state, &mut DropoutRng::seeded(3)),
                        false => model.decode_plain(embedded, state, masks, &mut noise),
                    };
                    let (attentional, weights) = (decoded.attentional, decoded.weights);
                    let wave =
                        Tensor::arange(0..attentional.shape().num_elements() as i64, &device)
                            .float()
                            .sin()
                            .reshape(attentional.dims());
                    let gradients = (attentional.clone() * wave).sum().backward();
                    let mut all = vec![];
                    for lstm in &model.decoder.layers {
                        all.push(lstm.input.weight.val().grad(&gradients));
                        all.push(lstm.recurrent.val().grad(&gradients));
                    }
                    all.push(model.combine.weight.val().grad(&gradients));
                    all.push(model.tables.target.weight.val().grad(&gradients));
                    all.push(
                        model.encoder[0].directions[0].layers[0]
                            .recurrent
                            .val()
                            .grad(&gradients),
                    );
                    let all: Vec<_> = all.into_iter().map(|g| g.expect("a gradient")).collect();
                    (attentional.inner(), weights.inner(), all)
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
        }
    }
    assert_eq!(checked, 3 * 2 * (5 + 7 + 9));
}
