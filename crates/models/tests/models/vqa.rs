//! Models that answer questions about images: numbers against PyTorch (`../golden/vqa_golden.py`), and what must hold for any of them.

use burn::tensor::{Device, Tensor, TensorData};
use regard_models::{
    AnyModelConfig, AnyQuestionAnswerer, ModelConfig, QuestionAnswerer, QuestionBatch,
    QuestionSizes, SourceBatch, Vocabulary, binary_cross_entropy, guided_attention,
    image::{
        BackboneConfig, VqaConfig,
        vqa::{BottomUpConfig, RegionAttention, StackedConfig},
    },
};
use regard_nn::{bridge::without_kernels, dropout::DropoutRng, initialize::Initializer, weights};
use serde_json::Value;

use crate::support::{GoldenFile, device, numbers, values};

const SIZES: QuestionSizes = QuestionSizes {
    channels: 3,
    size: [20, 12],
    vocabulary: Vocabulary::new(9),
    answers: 4,
};

/// As in the script.
fn questions() -> Vec<Vec<u32>> {
    vec![vec![5, 7, 4], vec![6], vec![8, 5, 5, 3]]
}

fn asked(questions: &[Vec<u32>], images: Vec<usize>) -> QuestionBatch {
    QuestionBatch {
        words: SourceBatch::new(questions, &SIZES.vocabulary, &device()),
        images,
    }
}

fn config(attention: RegionAttention) -> VqaConfig {
    VqaConfig::tiny(attention)
}

fn bottom_up(looks: usize, counts: bool) -> RegionAttention {
    RegionAttention::BottomUp(BottomUpConfig {
        dimension: 7,
        looks,
        counts,
    })
}

fn stacked(looks: usize) -> RegionAttention {
    RegionAttention::Stacked(StackedConfig {
        dimension: 7,
        looks,
    })
}

#[test]
fn answers_looks_and_gradients_are_those_of_pytorch() {
    let golden = GoldenFile::read(include_bytes!("../golden/vqa.safetensors"));
    let cases = golden.cases("vqa");
    assert_eq!(cases.len(), 5);
    for mut case in cases {
        let looks = || case.number("looks") as usize;
        let attention = match case.text("attention") {
            "bottom-up" => bottom_up(looks(), case.description["counts"] == Value::Bool(true)),
            "stacked" => stacked(looks()),
            _ => RegionAttention::QuestionOnly,
        };
        let sees = attention != RegionAttention::QuestionOnly;
        let model = config(attention).draw(&SIZES, &mut Initializer::new(1, &device()));
        let model = case.fill(model.unwrap());
        let shape = [2, 3, 20, 12];
        let images = match sees {
            true => case.leaf("images", shape),
            false => Tensor::zeros(shape, &device()),
        };
        let asked = asked(&questions(), vec![0, 1, 0]);
        let look = model.look(images.clone(), &asked);
        for (place, weights) in look.looks.iter().enumerate() {
            case.output(&format!("look.{place}"), weights);
        }
        assert_eq!(look.grid, if sees { [3, 2] } else { [0, 0] });
        let logits = model
            .forward(images.clone(), &asked, &mut DropoutRng::none())
            .logits;
        case.output("logits", &logits);
        let third = 1.0 / 3.0;
        let targets = [
            1.0,
            0.0,
            third,
            0.0,
            0.0,
            0.0,
            0.0,
            0.0,
            0.0,
            2.0 * third,
            0.0,
            1.0,
        ];
        let targets = TensorData::new(targets.to_vec(), [3, 4]).convert::<f32>();
        let targets = Tensor::from_data(targets, &device());
        let loss = binary_cross_entropy(logits, targets) / 3.0;
        let gradients = loss.backward();
        case.gradients(&model, &gradients);
        if sees {
            case.gradient("images", &images, &gradients);
        }
        case.close();
    }
}

/// One of each kind, by a name for messages.
fn models() -> Vec<(&'static str, VqaConfig)> {
    vec![
        ("bottom-up", config(bottom_up(1, false))),
        ("bottom-up, two looks", config(bottom_up(2, true))),
        ("stacked", config(stacked(2))),
        ("question-only", config(RegionAttention::QuestionOnly)),
    ]
}

fn model(config: &VqaConfig) -> AnyQuestionAnswerer {
    AnyModelConfig::build(config, &SIZES, 3, &device().inner()).unwrap()
}

fn images(count: usize) -> Tensor<4> {
    let drawn = values("images", count * 3 * 20 * 12, 1.0);
    Tensor::from_data(
        TensorData::new(drawn, [count, 3, 20, 12]),
        &device().inner(),
    )
}

fn on_inner(batch: QuestionBatch) -> QuestionBatch {
    let ids = batch.words.ids.inner();
    let keep = batch.words.keep;
    let keep =
        regard_nn::mask::PaddingMask::from_lengths(keep.lengths(), ids.dims()[0], &ids.device());
    QuestionBatch {
        words: SourceBatch { ids, keep },
        images: batch.images,
    }
}

#[test]
fn a_question_is_answered_as_alone_and_weights_sum_to_1() {
    for (name, config) in models() {
        let model = model(&config);
        let images = images(3);
        let about = [2, 0, 2];
        let batch = on_inner(asked(&questions(), about.to_vec()));
        let look = model.look(images.clone(), &batch);
        let together = numbers(&look.logits);
        let scores = model.forward(images.clone(), &batch, &mut DropoutRng::none());
        assert_eq!(numbers(&scores.logits), together, "{name}");
        for (row, question) in questions().into_iter().enumerate() {
            let image = images.clone().narrow(0, about[row], 1);
            let alone = on_inner(asked(&[question], vec![0]));
            let alone = numbers(&model.look(image, &alone).logits);
            for (a, b) in alone.iter().zip(&together[row * 4..]) {
                assert!((a - b).abs() <= 1e-5 * (1.0 + b.abs()), "{name}: {a} {b}");
            }
        }
        for weights in &look.looks {
            assert_eq!(weights.dims(), [3, 6], "{name}");
            for sum in numbers(&weights.clone().sum_dim(1)) {
                assert!((sum - 1.0).abs() < 1e-5, "{name}: {sum}");
            }
        }
        let plain = without_kernels(|| model.look(images, &batch).logits);
        for (a, b) in numbers(&plain).into_iter().zip(together) {
            assert!((a - b).abs() <= 1e-4 * (1.0 + b.abs()), "{name}: {a} {b}");
        }
    }
}

#[test]
fn only_models_that_see_depend_on_the_image() {
    for (name, config) in models() {
        let model = model(&config);
        let both = on_inner(asked(&[vec![5, 4], vec![5, 4]], vec![0, 1]));
        let rows = numbers(&model.look(images(2), &both).logits);
        assert_eq!(rows[..4] == rows[4..], name == "question-only", "{name}");
    }
}

#[test]
fn stored_weights_make_the_same_model() {
    for (name, config) in models() {
        let first = model(&config);
        let arrays = weights::collect(&first);
        let device = device().inner();
        let empty = AnyModelConfig::build_without_values(&config, &SIZES, &arrays, &device);
        let second = weights::apply(empty.unwrap(), arrays).unwrap();
        let batch = on_inner(asked(&questions(), vec![0, 1, 1]));
        let of = |model: AnyQuestionAnswerer| numbers(&model.look(images(2), &batch).logits);
        assert_eq!(of(first), of(second), "{name}");
    }
}

#[test]
fn impossible_sizes_are_refused() {
    let message = |config: &VqaConfig, sizes: QuestionSizes| {
        let refused = ModelConfig::init(config, &sizes, 1, &device().inner());
        refused.map(|_| ()).unwrap_err().to_string()
    };
    let config = config(stacked(2));
    let one = QuestionSizes {
        answers: 1,
        ..SIZES
    };
    assert!(message(&config, one).contains("the number of answers is 1"));
    let two = QuestionSizes {
        channels: 2,
        ..SIZES
    };
    assert!(message(&config, two).contains("images of 2 channels"));
    let flat = QuestionSizes {
        size: [0, 8],
        ..SIZES
    };
    assert!(message(&config, flat).contains("images of 0 x 8 pixels"));
    let blind = VqaConfig {
        attention: bottom_up(0, true),
        ..config.clone()
    };
    assert!(message(&blind, SIZES).contains("expected 1 to 8"));
    let deep = VqaConfig {
        backbone: BackboneConfig {
            blocks: 64,
            ..BackboneConfig::tiny()
        },
        ..config.clone()
    };
    let arrays = weights::collect(&model(&config));
    let refused = ModelConfig::without_values(&deep, &SIZES, &arrays, &device().inner());
    assert!(refused.unwrap_err().to_string().contains("layers is 193"));
}

#[test]
fn guided_attention_is_the_logarithm_of_the_weight_inside() {
    let device = Device::flex().autodiff();
    let weights = [[0.5, 0.25, 0.25, 0.0], [0.0, 0.0, 1.0, 0.0]];
    let weights = Tensor::<2>::from_data(weights, &device).require_grad();
    let cover = Tensor::<2>::from_data([[1.0, 0.5, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]], &device);
    let loss = guided_attention(weights.clone(), cover);
    let expected = -(0.625f32 + 1e-6).ln() - 1e-6f32.ln();
    let found = loss.clone().into_scalar::<f32>();
    assert!((found - expected).abs() < 1e-5 * expected, "{found}");
    let gradients = loss.backward();
    let gradient = numbers(&weights.grad(&gradients).unwrap());
    let slopes = [1.0, 0.5, 0.0, 0.0].map(|cover| -cover / (0.625 + 1e-6));
    // Where nothing is inside the gradient is large, and finite.
    let steep = [1.0, 1.0, 0.0, 0.0].map(|cover| -cover * 1e6);
    for (found, expected) in gradient.iter().zip([slopes, steep].concat()) {
        assert!(
            (found - expected).abs() <= 1e-4 * expected.abs(),
            "{found} {expected}"
        );
    }
}
