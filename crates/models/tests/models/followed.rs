//! Gradients with respect to attention weights equal finite differences, and belong to the weights that a look gives: of networks that
//! read images, and of recurrent models.

use burn::tensor::{Device, Tensor, TensorData, activation::log_sigmoid};
use regard_models::{
    AnyModelConfig, AnyTextModel, DetectorSizes, ImageSizes, ModelConfig, QuestionBatch,
    QuestionSizes, SourceBatch, TargetBatch, Vocabulary,
    gradient::{
        WeightGradients, followable, log_probability, of_generator, of_maps, of_text_model,
    },
    image::{
        CaptionerConfig, CaptionerSizes, DetrConfig, MapWeights, VisionTransformerConfig,
        VqaConfig,
        captioner::CaptionDecoderKind,
        vqa::{BottomUpConfig, RegionAttention, StackedConfig},
    },
    language::{LstmLmConfig, LstmnLmConfig},
};
use regard_nn::{dropout::DropoutRng, vary::varied};

use crate::{
    common::{configs, model},
    support::{device, numbers, values},
};

/// How far a weight is moved; less where ReLUs have a corner nearby.
const STEP: f32 = 1.0 / 128.0;
const NEAR_CORNERS: f32 = 1.0 / 1024.0;

/// How far the log probability of a pass in `f32` is off.
const ROUNDING: f64 = 4e-6;

/// Compares some gradients of each map with `(f(a + h) - f(a - h)) / 2h`, each weight moved alone. Two steps say how far the quotient is off.
fn expect_differences(
    name: &str,
    maps: &[[usize; 3]],
    found: &[WeightGradients],
    step: f32,
    work: impl Fn() -> Tensor<1>,
) {
    let (mut checked, mut largest) = (0, 0.0f64);
    for (call, of_call) in found.iter().enumerate() {
        let count = of_call.gradients.len();
        // The largest gradient, and some others.
        let size = |place: &usize| of_call.gradients[*place].abs();
        let most = (0..count)
            .max_by(|a, b| size(a).total_cmp(&size(b)))
            .unwrap();
        for place in [most, 0, count / 2, count - 1] {
            let at = |step: f32| {
                let added =
                    maps[..=call]
                        .iter()
                        .enumerate()
                        .map(|(other, &[heads, queries, keys])| {
                            let mut values = vec![0.0f32; heads * queries * keys];
                            if other == call {
                                values[place] = step;
                            }
                            let values = TensorData::new(values, [1, heads, queries, keys]);
                            Tensor::<4>::from_data(values, &device())
                        });
                let (output, _) = varied(added.collect(), &work);
                f64::from(numbers(&output)[0])
            };
            let quotient = |step: f32| (at(step) - at(-step)) / f64::from(2.0 * step);
            let (expected, far) = (quotient(step), quotient(2.0 * step));
            let gradient = f64::from(of_call.gradients[place]);
            let error = (gradient - expected).abs();
            assert!(
                error < ROUNDING / f64::from(2.0 * step) + 2.0 * (far - expected).abs(),
                "{name}, call {call}, weight {place}: {gradient} {expected}"
            );
            largest = largest.max(expected.abs());
            checked += 1;
        }
    }
    assert!(checked > 0 && largest > 3e-3, "{name}: {largest}");
}

fn expect_weights(name: &str, found: &WeightGradients, looked: &Tensor<4>) {
    let looked = numbers(looked);
    assert_eq!(found.weights.len(), looked.len(), "{name}");
    for (weight, looked) in found.weights.iter().zip(looked) {
        assert!((weight - looked).abs() < 2e-5, "{name}: {weight} {looked}");
    }
}

fn image(size: [usize; 2], device: &Device) -> Tensor<4> {
    let drawn = values("image", 3 * size[0] * size[1], 1.0);
    Tensor::from_data(TensorData::new(drawn, [1, 3, size[0], size[1]]), device)
}

fn shape(weights: &Tensor<4>) -> [usize; 3] {
    let [_, heads, queries, keys] = weights.dims();
    [heads, queries, keys]
}

#[test]
fn of_image_classifiers() {
    const SIZES: ImageSizes = ImageSizes {
        channels: 3,
        size: [12, 8],
        classes: 4,
    };
    let config = VisionTransformerConfig::tiny();
    let plain = AnyModelConfig::build(&config, &SIZES, 3, &Device::flex()).unwrap();
    let look = plain.look(image(SIZES.size, &Device::flex()));
    let maps: Vec<&Tensor<4>> = (look.maps.iter())
        .map(|map| match &map.weights {
            MapWeights::Pairs { weights, .. } => weights,
            other => panic!("{other:?}"),
        })
        .collect();
    let shapes: Vec<[usize; 3]> = maps.iter().map(|map| shape(map)).collect();
    let model = followable(&plain);
    let work = || {
        let logits = model.forward(image(SIZES.size, &device()), &mut DropoutRng::none());
        log_probability(logits, &[2])
    };
    let (output, found) = of_maps(&model, &shapes, work).unwrap();
    let expected = log_probability(look.logits, &[2]);
    assert!((output - f64::from(numbers(&expected)[0])).abs() < 1e-5);
    for (found, map) in found.iter().zip(maps) {
        expect_weights("vit", found, map);
    }
    expect_differences("vit", &shapes, &found, STEP, work);
    let error = of_maps(&model, &shapes[..1], work).unwrap_err().to_string();
    assert!(error.contains("other places than its maps show"), "{error}");
    let error = of_maps(&model, &[[1 << 20, 1 << 20, 1]], work).unwrap_err();
    assert!(error.to_string().contains("smaller image"), "{error}");
}

#[test]
fn of_detectors() {
    const SIZES: DetectorSizes = DetectorSizes {
        channels: 3,
        size: [24, 20],
        classes: 4,
    };
    let config = DetrConfig {
        masks: false,
        ..DetrConfig::tiny()
    };
    let plain = AnyModelConfig::build(&config, &SIZES, 3, &Device::flex()).unwrap();
    let look = plain.look(image(SIZES.size, &Device::flex()));
    let decoder = look.decoder.iter().zip(&look.cross);
    let decoder = decoder.flat_map(|(own, cross)| [own, cross]);
    let maps: Vec<&Tensor<4>> = look.encoder.iter().chain(decoder).collect();
    let shapes: Vec<[usize; 3]> = maps.iter().map(|map| shape(map)).collect();
    let model = followable(&plain);
    let work = || {
        let found = model.forward(image(SIZES.size, &device()), &mut DropoutRng::none());
        let logits = found.last().logits.clone().squeeze_dim::<2>(0);
        log_probability(logits.narrow(0, 1, 2), &[0, 3])
    };
    let (_, found) = of_maps(&model, &shapes, work).unwrap();
    for (found, map) in found.iter().zip(maps) {
        expect_weights("detr", found, map);
    }
    expect_differences("detr", &shapes, &found, NEAR_CORNERS, work);
    let [heads, queries, keys] = shapes[shapes.len() - 1];
    let last = found.last().unwrap().clone();
    let two = last.clone().of_queries(&[2, 0]);
    assert_eq!(two.shape, [heads, 2, keys]);
    assert_eq!(two.weights[..keys], last.weights[2 * keys..3 * keys]);
    assert_eq!(
        two.gradients[3 * keys..4 * keys],
        last.gradients[queries * keys..][..keys]
    );
}

#[test]
fn of_captioners() {
    const SIZES: CaptionerSizes = CaptionerSizes {
        channels: 3,
        size: [12, 10],
        vocabulary: Vocabulary::new(9),
    };
    for decoder in [
        CaptionDecoderKind::ShowAttendTell,
        CaptionDecoderKind::TopDown,
    ] {
        for penalty in [0.0, 1.0] {
            let config = CaptionerConfig {
                decoder,
                penalty,
                ..CaptionerConfig::tiny()
            };
            let plain = config.init(&SIZES, 3, &Device::flex()).unwrap();
            let [rows, columns] = plain.grid();
            let caption = [vec![4, 6, 7]];
            let target = |device: &Device| TargetBatch::new(&caption, &SIZES.vocabulary, device);
            let read = image(SIZES.size, &Device::flex());
            let scored = plain.forward(read, &target(&Device::flex()), &mut DropoutRng::none());
            let shapes = vec![[1, 1, rows * columns]; 4];
            let model = followable(&plain);
            let work = || {
                let read = image(SIZES.size, &device());
                let scored = model.forward(read, &target(&device()), &mut DropoutRng::none());
                log_probability(scored.logits().narrow(0, 0, 4), &[4, 6, 7, 2])
            };
            let (_, found) = of_maps(&model, &shapes, work).unwrap();
            let name = format!("{decoder:?}, penalty {penalty}");
            let joined = WeightGradients::of_steps(&found, 0, [4, rows * columns]);
            expect_weights(&name, &joined, &scored.weights.unwrap().unsqueeze_dim(1));
            expect_differences(&name, &shapes, &found, STEP, work);
        }
    }
}

#[test]
fn of_models_that_answer_questions() {
    const SIZES: QuestionSizes = QuestionSizes {
        channels: 3,
        size: [20, 12],
        vocabulary: Vocabulary::new(9),
        answers: 4,
    };
    let bottom_up = BottomUpConfig {
        dimension: 7,
        looks: 2,
        counts: true,
    };
    let stacked = StackedConfig {
        dimension: 7,
        looks: 2,
    };
    for attention in [
        RegionAttention::BottomUp(bottom_up),
        RegionAttention::Stacked(stacked),
    ] {
        let name = format!("{attention:?}");
        let config = VqaConfig::tiny(attention);
        let plain = AnyModelConfig::build(&config, &SIZES, 3, &Device::flex()).unwrap();
        let question = |device: &Device| QuestionBatch {
            words: SourceBatch::new(&[vec![5, 7, 4]], &SIZES.vocabulary, device),
            images: vec![0],
        };
        let look = plain.look(
            image(SIZES.size, &Device::flex()),
            &question(&Device::flex()),
        );
        let shapes = vec![[1, 1, look.grid[0] * look.grid[1]]; 2];
        let model = followable(&plain);
        let work = || {
            let read = image(SIZES.size, &device());
            let asked = model.forward(read, &question(&device()), &mut DropoutRng::none());
            // So small a model changes little.
            log_sigmoid(asked.logits.narrow(1, 1, 1)).sum() * 10.0
        };
        let (_, found) = of_maps(&model, &shapes, work).unwrap();
        for (found, looked) in found.iter().zip(look.looks) {
            let looked: Tensor<3> = looked.unsqueeze_dim(1);
            expect_weights(&name, found, &looked.unsqueeze_dim(1));
        }
        expect_differences(&name, &shapes, &found, STEP, work);
    }
}

/// Translators: the weights are those of a look, or of the search, and each model is followed or says why it is not.
#[test]
fn of_translators() {
    let (source, written) = (vec![5u32, 9, 7, 11], vec![6u32, 8, 10]);
    let mut followed = vec![];
    for (name, config) in configs() {
        let plain = model(&*config, 11, 1.5, &Device::flex());
        let found = match of_generator(&plain, &source, &written, true, &Device::flex()) {
            Ok(found) => found,
            Err(error) => {
                assert!(
                    error.to_string().contains("not computed for"),
                    "{name}: {error}"
                );
                continue;
            }
        };
        followed.push(name);
        let vocabularies = plain.vocabularies();
        let reads = SourceBatch::new(
            std::slice::from_ref(&source),
            &vocabularies.source,
            &Device::flex(),
        );
        let writes = TargetBatch::new(
            std::slice::from_ref(&written),
            &vocabularies.target,
            &Device::flex(),
        );
        let expected = match plain.look(&reads, &writes) {
            Some(maps) => [maps.encoder, maps.decoder, maps.cross],
            None => {
                let scored = plain.forward(&reads, &writes, &mut DropoutRng::none());
                let weights = scored.weights.map(|weights| weights.unsqueeze_dim(1));
                [vec![], vec![], weights.into_iter().collect()]
            }
        };
        for (found, expected) in [&found.source, &found.own, &found.cross]
            .into_iter()
            .zip(&expected)
        {
            assert!(
                found.len() == expected.len() || expected.is_empty(),
                "{name}"
            );
            for (found, looked) in found.iter().zip(expected) {
                expect_weights(name, found, looked);
            }
        }
        let gradients = found.cross.iter().flat_map(|map| &map.gradients);
        assert!(
            gradients.fold(0.0f32, |most, g| most.max(g.abs())) > 1e-4,
            "{name}"
        );
    }
    for name in [
        "rnnsearch",
        "gnmt",
        "lstmn deep",
        "lstmn shallow",
        "transformer pre-norm",
    ] {
        assert!(followed.contains(&name), "{name} is not among {followed:?}");
    }
}

#[test]
fn of_recurrent_language_models() {
    let vocabulary = Vocabulary::new(20);
    let build = |config: &dyn AnyModelConfig<AnyTextModel>| -> AnyTextModel {
        config.build(&vocabulary, 3, &Device::flex()).unwrap()
    };
    let text = [5u32, 9, 13, 7, 7, 19];
    let wanted = [(5, 6u32), (2, 7)];
    let lstmn = build(&LstmnLmConfig::tiny());
    let found = of_text_model(&lstmn, &text, &wanted, &Device::flex()).unwrap();
    let ids: Vec<i32> = text.iter().map(|&id| id as i32).collect();
    let ids =
        Tensor::<2, burn::tensor::Int>::from_data(TensorData::new(ids, [6, 1]), &Device::flex());
    let keep = regard_nn::mask::PaddingMask::from_lengths(&[6], 6, &Device::flex());
    let maps = lstmn.look(ids, &keep);
    assert_eq!(found.own.len(), maps.len());
    for (found, looked) in found.own.iter().zip(&maps) {
        expect_weights("lstmn", found, looked);
        assert!(found.gradients.iter().any(|g| g.abs() > 1e-4));
        // What comes after the last place that was asked for is of no use.
        assert_eq!(found.shape, [1, 6, 6]);
    }
    let lstm = of_text_model(
        &build(&LstmLmConfig::tiny()),
        &text,
        &wanted,
        &Device::flex(),
    );
    assert!(lstm.unwrap().own.is_empty());
}
