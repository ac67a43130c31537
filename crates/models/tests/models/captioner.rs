//! Captioners: numbers against PyTorch (`../golden/images_golden.py`), and what must hold for any of them.

use std::collections::HashMap;

use burn::tensor::{Device, Tensor, TensorData};
use regard_models::{
    ModelConfig, TargetBatch, Vocabulary,
    attention::{NormalizerConfig, ReinforceConfig},
    generate::{BeamConfig, caption},
    image::{
        BackboneConfig, Captioner, CaptionerConfig, CaptionerSizes, captioner::CaptionDecoderKind,
    },
};
use regard_nn::{bridge::without_kernels, dropout::DropoutRng, weights};

use crate::support::{GoldenFile, device, numbers, values};

const DECODERS: [CaptionDecoderKind; 2] = [
    CaptionDecoderKind::ShowAttendTell,
    CaptionDecoderKind::TopDown,
];

const SIZES: CaptionerSizes = CaptionerSizes {
    channels: 3,
    size: [12, 10],
    vocabulary: Vocabulary::new(9),
};

fn captions() -> [Vec<u32>; 2] {
    [vec![4, 6], vec![7, 5, 6, 4]]
}

#[test]
fn captioners_equal_pytorch() {
    let golden = GoldenFile::read(include_bytes!("../golden/images.safetensors"));
    let cases = golden.cases("captioner");
    assert_eq!(cases.len(), 4);
    for mut case in cases {
        let config = CaptionerConfig {
            backbone: BackboneConfig {
                channels: 4,
                stages: 2,
                blocks: 1,
                ..BackboneConfig::default()
            },
            decoder: match case.text("decoder") {
                "ShowAttendTell" => CaptionDecoderKind::ShowAttendTell,
                _ => CaptionDecoderKind::TopDown,
            },
            positions: case.description["positions"] == true,
            embedding: 6,
            hidden: 7,
            attention_dimension: 5,
            penalty: case.number("penalty"),
            entropy: case.number("entropy"),
            ..CaptionerConfig::tiny()
        };
        let model = case.fill(config.init(&SIZES, 1, &device()).unwrap());
        let images = case.leaf("images", [2, 3, 12, 10]);
        let target = TargetBatch::new(&captions(), &SIZES.vocabulary, &device());
        let scored = model.forward(images.clone(), &target, &mut DropoutRng::none());
        let [steps, batch] = target.inputs.dims();
        let logits: Tensor<3> = scored.logits().reshape([steps, batch, 9]);
        case.output("logits", &logits.swap_dims(0, 1));
        let looks = scored.weights.clone().unwrap();
        case.output("weights", &looks);
        let penalty = model.penalty(&looks, &target);
        assert_eq!(penalty.is_some(), config.penalty + config.entropy > 0.0);
        let loss = scored.cross_entropy(target.outputs, 0.0).loss;
        let gradients = match penalty {
            Some(penalty) => (loss + penalty).backward(),
            None => loss.backward(),
        };
        case.gradients(&model, &gradients);
        case.gradient("images", &images, &gradients);
        case.close();
    }
}

fn images(count: usize) -> Tensor<4> {
    let drawn = values("images", count * 3 * 12 * 10, 1.0);
    Tensor::from_data(
        TensorData::new(drawn, [count, 3, 12, 10]),
        &device().inner(),
    )
}

fn model(config: &CaptionerConfig) -> Captioner {
    config.init(&SIZES, 3, &device().inner()).unwrap()
}

fn close(a: &[f32], b: &[f32], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}");
    for (a, b) in a.iter().zip(b) {
        assert!((a - b).abs() <= 1e-4 * (1.0 + b.abs()), "{what}: {a} {b}");
    }
}

#[test]
fn batching_and_kernels_change_no_number_and_rows_of_weights_sum_to_one() {
    for decoder in DECODERS {
        for normalizer in [NormalizerConfig::Softmax, NormalizerConfig::Sparsemax] {
            let config = CaptionerConfig {
                decoder,
                normalizer,
                ..CaptionerConfig::tiny()
            };
            let (model, device) = (model(&config), device().inner());
            let target = |rows: &[Vec<u32>]| TargetBatch::new(rows, &SIZES.vocabulary, &device);
            let score = |images, rows: &[Vec<u32>]| {
                let scored = model.forward(images, &target(rows), &mut DropoutRng::none());
                (scored.logits(), scored.weights.unwrap())
            };
            let (logits, looks) = score(images(2), &captions());
            for sum in numbers(&looks.clone().sum_dim(2)) {
                assert!((sum - 1.0).abs() < 1e-5, "{sum}");
            }
            let (plain, _) = without_kernels(|| score(images(2), &captions()));
            close(&numbers(&plain), &numbers(&logits), "kernels");
            let logits: Tensor<3> = logits.reshape([5, 2, 9]);
            for (row, alone) in captions().into_iter().enumerate() {
                let real = alone.len() + 1;
                let one = images(2).narrow(0, row, 1);
                let (alone, looked) = score(one, &[alone]);
                let within = logits.clone().narrow(1, row, 1).narrow(0, 0, real);
                close(&numbers(&alone), &numbers(&within), "batch");
                let within = looks.clone().narrow(0, row, 1).narrow(1, 0, real);
                close(&numbers(&looked), &numbers(&within), "looks of a batch");
            }
        }
    }
}

#[test]
fn a_caption_that_was_searched_has_the_score_and_the_looks_of_teacher_forcing() {
    for decoder in DECODERS {
        for beam in [1, 3] {
            let config = CaptionerConfig {
                decoder,
                ..CaptionerConfig::tiny()
            };
            let model = model(&config);
            let search = BeamConfig {
                size: beam,
                n_best: beam,
                ..BeamConfig::default()
            };
            let found = caption(&model, images(3), &search);
            assert_eq!(found.len(), 3);
            for (row, n_best) in found.iter().enumerate() {
                for one in n_best {
                    let image = images(3).narrow(0, row, 1);
                    let caption = std::slice::from_ref(&one.tokens);
                    let target = TargetBatch::new(caption, &SIZES.vocabulary, &device().inner());
                    let scored = model.forward(image, &target, &mut DropoutRng::none());
                    let looks = numbers(scored.weights.as_ref().unwrap());
                    let written = one.weights.concat();
                    close(&written, &looks[..written.len()], "looks");
                    if one.finished {
                        let nll = scored.cross_entropy(target.outputs, 0.0).nll;
                        assert!((nll + one.log_probability).abs() < 1e-3 * (1.0 + nll));
                    }
                }
            }
        }
    }
    let model = model(&CaptionerConfig::tiny());
    let none = Tensor::zeros([0, 3, 12, 10], &device().inner());
    assert!(caption(&model, none, &BeamConfig::greedy()).is_empty());
}

/// Words that may not see the state are read from the regions; without noise every word sees it.
#[test]
fn a_hidden_state_has_no_gradient_and_a_search_sees_it() {
    let hidden = CaptionerConfig {
        state_dropout: 0.999_999,
        ..CaptionerConfig::tiny()
    };
    let found =
        |config: &CaptionerConfig| caption(&model(config), images(2), &BeamConfig::greedy());
    assert_eq!(found(&hidden), found(&CaptionerConfig::tiny()));

    let gradients = |config: &CaptionerConfig| {
        let model = config.init(&SIZES, 3, &device()).unwrap();
        let target = TargetBatch::new(&captions(), &SIZES.vocabulary, &device());
        let shown = Tensor::from_data(images(2).into_data(), &device());
        let scored = model.forward(shown, &target, &mut DropoutRng::seeded(5));
        let loss = scored.cross_entropy(target.outputs, 0.0).loss;
        let all = crate::support::gradients(&model, &loss.backward());
        ["readout_state", "readout_context"].map(|layer| {
            let gradient = &all[&format!("decoder.ShowAttendTell.{layer}.weight")];
            gradient.values.iter().any(|&value| value != 0.0)
        })
    };
    assert_eq!(gradients(&CaptionerConfig::tiny()), [true, true]);
    assert_eq!(gradients(&hidden), [false, true]);
}

#[test]
fn hard_attention_looks_at_one_region_and_learns_by_reward() {
    for decoder in DECODERS {
        let config = CaptionerConfig {
            decoder,
            normalizer: NormalizerConfig::HardReinforce(ReinforceConfig {
                soften: false,
                ..ReinforceConfig::default()
            }),
            ..CaptionerConfig::tiny()
        };
        let found = caption(&model(&config), images(1), &BeamConfig::greedy());
        for row in &found[0][0].weights {
            assert_eq!(row.iter().filter(|&&weight| weight == 1.0).count(), 1);
            assert_eq!(row.iter().sum::<f32>(), 1.0);
        }
        let model = config.init(&SIZES, 3, &device()).unwrap();
        let target = TargetBatch::new(&captions(), &SIZES.vocabulary, &device());
        let shown = Tensor::from_data(images(2).into_data(), &device());
        let scored = model.forward(shown, &target, &mut DropoutRng::seeded(5));
        let (term, _) = scored.reinforced(&target, Some(-3.0)).unwrap();
        let gradients = crate::support::gradients(&model, &term.backward());
        let of_query = &gradients["attention.score.Additive.query.weight"];
        assert!(of_query.values.iter().any(|&gradient| gradient != 0.0));
    }
}

/// The mean of the estimated gradients is that of `E[r] = Σ_s p(s) r(s)` over every sequence `s` of drawn regions, `r` the mean
/// log-likelihood of a token. A term of one row gives `ln p(s)`; the slope of `E[r]` in a weight is a difference of two such sums.
#[test]
fn estimates_of_drawn_captions_have_the_exact_mean() {
    const QUERY: &str = "attention.score.Additive.query.weight";
    const BASELINE: f32 = -2.0;
    const ROWS: usize = 2_000;
    const BATCHES: usize = 24;
    let config = CaptionerConfig {
        normalizer: NormalizerConfig::HardReinforce(ReinforceConfig {
            soften: false,
            entropy: 0.0,
            memory: 0.0,
            ..ReinforceConfig::default()
        }),
        ..CaptionerConfig::tiny()
    };
    let caption = vec![4]; // two steps with the mark of the end
    let score = |model: &Captioner, rows: usize, seed: u64, device: &Device| {
        let target = TargetBatch::new(&vec![caption.clone(); rows], &SIZES.vocabulary, device);
        let shown = Tensor::from_data(images(1).into_data(), device).repeat_dim(0, rows);
        let scored = model.forward(shown, &target, &mut DropoutRng::seeded(seed));
        let (term, reward) = scored.reinforced(&target, Some(BASELINE)).unwrap();
        (term, reward, scored.weights.unwrap())
    };
    // Larger weights than drawn ones, so that it matters which region is read.
    let mut arrays = weights::collect(&model(&config));
    for array in arrays.values_mut() {
        array.values.iter_mut().for_each(|value| *value *= 2.0);
    }
    let with = |arrays: &weights::Arrays, device: &Device| {
        let drawn = config.init(&SIZES, 3, device).unwrap();
        weights::apply(drawn, arrays.clone()).unwrap()
    };
    let expected = |arrays: &weights::Arrays| {
        let device = device();
        let model = with(arrays, &device);
        let mut sequences = HashMap::new();
        let mut seen = 0.0;
        for seed in 0..20_000 {
            let (term, reward, looks) = score(&model, 1, seed, &device);
            let looks: Vec<u32> = looks.into_data().iter::<f32>().map(f32::to_bits).collect();
            let log_p = term.into_scalar::<f32>() / (BASELINE - reward);
            let p = f64::from(log_p).exp();
            if sequences.insert(looks, p * f64::from(reward)).is_none() {
                seen += p;
            }
            if seen > 0.999_999 {
                break;
            }
        }
        assert!(
            (seen - 1.0).abs() < 1e-5,
            "{seen} of all sequences were seen"
        );
        sequences.into_values().sum::<f64>()
    };

    let trained = with(&arrays, &device());
    let estimates = (0..BATCHES).map(|batch| {
        let (term, ..) = score(&trained, ROWS, 1 << 40 | batch as u64, &device());
        let gradients = crate::support::gradients(&trained, &term.backward());
        gradients[QUERY].values.clone()
    });
    let estimates: Vec<Vec<f32>> = estimates.collect();
    let mut slopes = vec![];
    for place in 0..6 {
        let moved = |by: f32| {
            let mut arrays = arrays.clone();
            arrays.get_mut(QUERY).unwrap().values[place] += by;
            expected(&arrays)
        };
        let exact = (moved(0.02) - moved(-0.02)) / 0.04;
        let of_place = || estimates.iter().map(|of| -f64::from(of[place]));
        let count = BATCHES as f64;
        let mean = of_place().sum::<f64>() / count;
        let squares = of_place().map(|x| (x - mean).powi(2)).sum::<f64>();
        let standard_error = (squares / (count - 1.0) / count).sqrt();
        assert!(
            (mean - exact).abs() <= 4.0 * standard_error + 1e-4,
            "weight {place}: {mean}, expected {exact} within {standard_error}"
        );
        slopes.push((exact.abs(), standard_error));
    }
    assert!(
        slopes.iter().any(|(slope, error)| *slope > 10.0 * error),
        "{slopes:?} would prove little"
    );
}

#[test]
fn what_no_captioner_can_be_is_refused() {
    let refused = |config: CaptionerConfig, sizes: &CaptionerSizes| {
        let error = config.init(sizes, 1, &device().inner()).unwrap_err();
        error.to_string()
    };
    let hard = CaptionerConfig {
        normalizer: NormalizerConfig::HardReinforce(ReinforceConfig::default()),
        penalty: 1.0,
        ..CaptionerConfig::tiny()
    };
    let error = refused(hard, &SIZES);
    assert!(
        error.contains("penalty: found 1; expected 0.0 with hard-reinforce"),
        "{error}"
    );
    let blind = CaptionerConfig {
        decoder: CaptionDecoderKind::TopDown,
        state_dropout: 0.5,
        ..CaptionerConfig::tiny()
    };
    assert!(refused(blind, &SIZES).contains("state_dropout: found 0.5"));
    let odd = CaptionerConfig {
        backbone: BackboneConfig {
            channels: 3,
            stages: 2,
            ..BackboneConfig::tiny()
        },
        ..CaptionerConfig::tiny()
    };
    assert!(refused(odd, &SIZES).contains("positions: found true, with 6 features"));
    for sizes in [
        CaptionerSizes {
            channels: 2,
            ..SIZES
        },
        CaptionerSizes {
            size: [0, 10],
            ..SIZES
        },
        CaptionerSizes {
            size: [1 << 20, 10],
            ..SIZES
        },
        CaptionerSizes {
            vocabulary: Vocabulary::new(1),
            ..SIZES
        },
    ] {
        let error = refused(CaptionerConfig::tiny(), &sizes);
        assert!(error.contains("expected"), "{error}");
    }
    let huge = CaptionerConfig {
        hidden: 1 << 20,
        embedding: 1 << 20,
        ..CaptionerConfig::tiny()
    };
    assert!(refused(huge, &SIZES).contains("weights"));
    // A description that asks for more layers than the file has weights.
    let model = model(&CaptionerConfig::tiny());
    let deep = CaptionerConfig {
        backbone: BackboneConfig {
            stages: 6,
            blocks: 64,
            ..BackboneConfig::tiny()
        },
        ..CaptionerConfig::tiny()
    };
    let arrays = weights::collect(&model);
    let error = deep.without_values(&SIZES, &arrays, &device().inner());
    assert!(error.unwrap_err().to_string().contains("damaged"));
    // The same weights give the same model.
    let again = CaptionerConfig::tiny().without_values(&SIZES, &arrays, &device().inner());
    let again = weights::apply(again.unwrap(), arrays).unwrap();
    let found = |model| caption(model, images(2), &BeamConfig::greedy());
    assert_eq!(found(&again), found(&model));
}
