use burn::tensor::{Device, Tensor, Tolerance};
use regard_nn::{
    dropout::DropoutRng,
    transformer::{Activation, NormPlace},
};

use super::*;
use crate::{Generator, ModelConfig, SourceBatch, TargetBatch, Vocabularies, tables::Tie};

const VOCABULARIES: Vocabularies = Vocabularies::new(16, 16);

const SOURCES: [&[u32]; 3] = [&[5, 6, 7, 8], &[9], &[4, 5]];
const TARGETS: [&[u32]; 3] = [&[8, 9, 10], &[7, 5, 4, 11, 12], &[5]];

fn batch(device: &Device) -> (SourceBatch, TargetBatch) {
    let own = |sentences: [&[u32]; 3]| sentences.map(<[u32]>::to_vec);
    (
        SourceBatch::new(&own(SOURCES), &VOCABULARIES.source, device),
        TargetBatch::new(&own(TARGETS), &VOCABULARIES.target, device),
    )
}

/// One of each choice.
fn variants() -> Vec<TransformerConfig> {
    let tiny = TransformerConfig::tiny;
    let with = |change: &dyn Fn(&mut TransformerConfig)| {
        let mut config = tiny();
        change(&mut config);
        config
    };
    vec![
        tiny(),
        with(&|c| c.norm_place = NormPlace::Post),
        with(&|c| {
            c.activation = Activation::Swiglu;
            c.norm = Norm::Rms;
            c.norm_epsilon = 1e-6;
            c.bias = false;
            c.positions = Positions::Rotary;
        }),
        with(&|c| {
            c.activation = Activation::Gelu;
            c.positions = Positions::Learned;
            c.max_length = 8;
            c.tie = Tie::Target;
        }),
        with(&|c| {
            c.key_value_heads = Some(1);
            c.window = Some(2);
            c.tie = Tie::All;
        }),
        with(&|c| {
            c.positions = Positions::Relative;
            c.max_distance = 3;
        }),
        with(&|c| c.positions = Positions::Buckets),
        with(&|c| c.positions = Positions::Alibi),
        with(&|c| c.positions = Positions::None),
        with(&|c| {
            c.d_model = 16;
            c.positions = Positions::Rotary;
            c.rotary_scaling = RotaryScalingConfig::Ntk(StretchConfig { factor: 3.0 });
            c.query_key_norm = true;
            c.softcap = Some(2.0);
            c.window = Some(2);
            c.full_every = Some(2);
            c.window_rotary_base = Some(20.0);
            c.score_scale = Some(0.7);
        }),
    ]
}

/// Single steps with cached keys and values give the numbers of a pass over the whole target.
#[test]
fn cached_steps_are_the_whole_target_at_once() {
    let device = Device::flex();
    let (source, target) = batch(&device);
    for config in variants() {
        let model = config.init(&VOCABULARIES, 3, &device).unwrap();
        let whole = model
            .forward(&source, &target, &mut DropoutRng::none())
            .logits();
        let [length, rows] = target.inputs.dims();
        let mut state = model.encode(&source, &mut DropoutRng::none());
        for t in 0..length {
            let previous = target.inputs.clone().narrow(0, t, 1).squeeze_dim(0);
            let (output, next) = model.step(previous, state, true);
            state = next;
            let expected = whole.clone().narrow(0, t * rows, rows);
            let close = Tolerance::rel_abs(1e-4, 1e-5);
            output
                .logits
                .into_data()
                .assert_approx_eq::<f32>(&expected.into_data(), close);
            let sums = output.weights.unwrap().sum_dim(1).into_data();
            sums.assert_approx_eq::<f32>(&Tensor::<2>::ones([rows, 1], &device).into_data(), close);
        }
    }
}

/// Neither padding nor the other sentences of a batch change the numbers of a sentence.
#[test]
fn a_batch_gives_what_each_sentence_gives_alone() {
    let device = Device::flex();
    let (source, target) = batch(&device);
    for config in variants() {
        let model = config.init(&VOCABULARIES, 4, &device).unwrap();
        let together = model
            .forward(&source, &target, &mut DropoutRng::none())
            .logits();
        for (row, (one, two)) in SOURCES.iter().zip(TARGETS).enumerate() {
            let source = SourceBatch::new(&[one.to_vec()], &VOCABULARIES.source, &device);
            let target = TargetBatch::new(&[two.to_vec()], &VOCABULARIES.target, &device);
            let alone = model
                .forward(&source, &target, &mut DropoutRng::none())
                .logits();
            for t in 0..=two.len() {
                let expected = together.clone().narrow(0, t * SOURCES.len() + row, 1);
                alone
                    .clone()
                    .narrow(0, t, 1)
                    .into_data()
                    .assert_approx_eq::<f32>(&expected.into_data(), Tolerance::rel_abs(1e-4, 1e-5));
            }
        }
    }
}

/// Looking changes nothing and shows every head: rows sum to 1, no target looks ahead, padding has no weight.
#[test]
fn every_head_of_every_layer_can_be_looked_at() {
    let device = Device::flex();
    let (source, target) = batch(&device);
    for config in variants() {
        let model = config.init(&VOCABULARIES, 5, &device).unwrap();
        let looks = model.look(&source, &target).unwrap();
        let (read, written) = (source.keep.lengths(), &target.lengths[..]);
        let all = [
            (&looks.encoder, read),
            (&looks.decoder, written),
            (&looks.cross, written),
        ];
        for (layers, lengths) in all {
            assert_eq!(layers.len(), 2);
            for weights in layers {
                for (row, &length) in lengths.iter().enumerate() {
                    let real = weights.clone().narrow(0, row, 1).narrow(2, 0, length);
                    let sums = real.sum_dim(3).into_data();
                    let ones = Tensor::<4>::ones([1, 2, length, 1], &device).into_data();
                    sums.assert_approx_eq::<f32>(&ones, Tolerance::rel_abs(1e-5, 1e-6));
                }
            }
        }
        let ahead = looks.decoder[1]
            .clone()
            .triu(1)
            .abs()
            .sum()
            .into_scalar::<f32>();
        assert_eq!(ahead, 0.0);
        // The second sentence has two positions: a word and its end.
        let padding = looks.cross[1].clone().narrow(0, 1, 1).narrow(3, 2, 3);
        assert_eq!(padding.abs().sum().into_scalar::<f32>(), 0.0);
    }
}

/// The same with kernels and without, dropout included: logits and the gradient of every weight.
#[test]
fn dropout_replays_and_falls_where_it_is_asked_for() {
    let device = Device::flex().autodiff();
    let (source, target) = batch(&device);
    let mut config = TransformerConfig::tiny();
    config.dropout = TransformerDropout {
        embedding: 0.2,
        residual: 0.2,
        attention: 0.2,
        activation: 0.2,
    };
    let model = config.init(&VOCABULARIES, 6, &device).unwrap();
    let run = |seed: u64| {
        let logits = model
            .forward(&source, &target, &mut DropoutRng::seeded(seed))
            .logits();
        logits.inner().into_data().try_into_vec::<f32>().unwrap()
    };
    let still = model
        .forward(&source, &target, &mut DropoutRng::none())
        .logits();
    let still = still.inner().into_data().try_into_vec::<f32>().unwrap();
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
    assert_ne!(run(1), still);
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let device = Device::flex();
    let refuse = |change: &dyn Fn(&mut TransformerConfig)| {
        let mut config = TransformerConfig::tiny();
        change(&mut config);
        config
            .init(&VOCABULARIES, 1, &device)
            .map(|_| ())
            .unwrap_err()
            .to_string()
    };
    assert!(refuse(&|c| c.heads = 3).contains("heads: found 3"));
    assert!(refuse(&|c| c.window = Some(0)).contains("window: found 0"));
    assert!(refuse(&|c| c.feed_forward = 0).contains("feed_forward: found 0"));
    assert!(refuse(&|c| c.dropout.residual = 1.0).contains("dropout.residual: found 1"));
    assert!(refuse(&|c| c.softcap = Some(0.0)).contains("softcap: found 0"));
    for beyond in [1e-300, 1e300] {
        assert!(refuse(&|c| c.softcap = Some(beyond)).contains("softcap: found"));
        assert!(refuse(&|c| c.score_scale = Some(beyond)).contains("score_scale: found"));
    }
    let ntk = RotaryScalingConfig::Ntk(StretchConfig { factor: 2.0 });
    let of_two = |c: &mut TransformerConfig| {
        (c.heads, c.positions, c.rotary_scaling) = (4, Positions::Rotary, ntk.clone());
    };
    assert!(refuse(&of_two).contains("heads of at least 4 features"));
    let llama3 = RotaryScalingConfig::Llama3(Llama3Config {
        low_frequency_factor: 4.0,
        ..Llama3Config::default()
    });
    let error = refuse(&|c| {
        (c.positions, c.rotary_scaling) = (Positions::Rotary, llama3.clone());
    });
    assert!(
        error.contains("rotary_scaling.high_frequency_factor: found 4"),
        "{error}"
    );
    assert!(refuse(&|c| c.decoder_layers = 0).contains("decoder_layers: found 0"));
}
