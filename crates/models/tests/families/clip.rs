//! CLIP against what the original library computes (`../golden/pretrained_clip_golden.py`).

use std::fs;

use burn::tensor::{Device, Tensor, TensorData};
use regard_models::{
    image::MapWeights,
    pretrained::{
        ClipImages, Folder, Input, Pooling, Resizing, TextEncoder, Tokenizer, Trainable, cosine,
        holds_clip, holds_images,
    },
};
use regard_nn::{bridge::without_kernels, dropout::DropoutRng};

use super::{Golden, Weights, close, copied, folder, images, open};

const CASES: [&str; 2] = ["clip", "clip-first"];
const TEXTS: [&str; 4] = [
    "a cat",
    "A photo of   a DOG!",
    "this is the cat's 12th nap, isn't it?",
    "<odd> text?",
];

#[test]
fn texts_have_the_tokens_states_weights_and_vectors_of_transformers() {
    for case in CASES {
        let opened = open(case);
        assert!(holds_clip(&opened) && !holds_images(&opened), "{case}");
        let model = TextEncoder::open(&opened, None).unwrap();
        let tokenizer = Tokenizer::open(folder(case)).unwrap();
        let golden = Golden::of(case);
        let pooling = Pooling::open(folder(case)).unwrap();
        let encoded: Vec<Vec<u32>> = TEXTS
            .iter()
            .map(|text| tokenizer.encode(text, true).unwrap().ids)
            .collect();
        let input = |ids| Input {
            ids,
            ..Default::default()
        };
        let inputs: Vec<Input> = encoded.iter().map(|ids| input(ids)).collect();
        let mut seen = Weights::default();
        let states = model.states(&inputs, Some(&mut seen)).unwrap();
        for (text, (ids, states)) in encoded.iter().zip(&states).enumerate() {
            let what = format!("{case}, text {text}");
            assert_eq!(ids, &golden.rows(&format!("ids.{text}"))[0], "{what}");
            let expected = &golden.numbers[&format!("text_states.{text}")].1;
            close(&what, states, expected, 1e-4);
            let vector = model.vector(ids, states).unwrap();
            close(&what, &vector, golden.row("text_vectors", text), 1e-4);
            let unit = pooling.vector(&model, ids, states);
            let length: f32 = unit.iter().map(|x| x * x).sum();
            assert!((length - 1.0).abs() < 1e-5 && cosine(&unit, &vector) > 0.99999);
            for layer in 0..2 {
                let name = format!("attention.text.{text}.{layer}");
                close(
                    &name,
                    &seen.0[&(layer, text)],
                    &golden.numbers[&name].1,
                    1e-5,
                );
            }
        }
        assert_eq!(model.vector(&[], &[]), None);
        let size = golden.row("text_vectors", 0).len();
        assert_eq!(pooling.vector(&model, &[], &[]), vec![0.0; size]);
        // A text without its end mark is read at its first token, as there.
        if case == "clip" {
            let ids = [3, 5];
            let states = model.states(&[input(&ids)], None).unwrap();
            let first = model.vector(&ids[..1], &states[0]).unwrap();
            assert_eq!(model.vector(&ids, &states[0]), Some(first));
        }
    }
}

#[test]
fn images_have_the_vectors_weights_and_scores_of_transformers() {
    for case in CASES {
        let found = ClipImages::open(&open(case)).unwrap();
        let golden = Golden::of(case);
        let (shape, pixels) = &golden.numbers["pixels"];
        let pixels = TensorData::new(pixels.clone(), shape.clone());
        let pixels = Tensor::<4>::from_data(pixels, &Device::flex());
        let model = images::model(&found.tower);
        let read = || model.forward(pixels.clone(), &mut DropoutRng::none());
        let numbers = |data: TensorData| data.iter::<f32>().collect::<Vec<f32>>();
        let vectors = numbers(read().into_data());
        let plain = numbers(without_kernels(read).into_data());
        close(case, &plain, &vectors, 1e-5);
        close(case, &vectors, &golden.numbers["image_vectors"].1, 1e-4);
        let size = found.tower.sizes.classes;
        let of = |image: usize| &vectors[image * size..][..size];
        let scores = (0..shape[0]).flat_map(|image| {
            let texts = (0..TEXTS.len()).map(move |text| (image, text));
            texts.map(|(image, text)| {
                let text = golden.row("text_vectors", text);
                found.scale * cosine(of(image), text) as f32
            })
        });
        let scores: Vec<f32> = scores.collect();
        close(case, &scores, &golden.numbers["logits"].1, 1e-4);
        let look = model.look(pixels);
        assert_eq!(look.maps.len(), 3, "{case}");
        for (layer, map) in look.maps.into_iter().enumerate() {
            let MapWeights::Pairs {
                weights,
                marks,
                grid: [3, 3],
                ..
            } = map.weights
            else {
                panic!("{case}: {}", map.place);
            };
            assert_eq!(marks, ["[CLS]"]);
            let name = format!("attention.image.{layer}");
            let found = numbers(weights.into_data());
            close(&name, &found, &golden.numbers[&name].1, 1e-5);
        }
        let preparation = &found.tower.preparation;
        assert_eq!(preparation.resizing, Resizing::Shorter(21), "{case}");
        assert!(preparation.bicubic, "{case}");
        assert_eq!(preparation.mean, [0.48, 0.45, 0.4], "{case}");
    }
}

#[test]
fn what_a_configuration_leaves_out_is_as_in_the_first_model() {
    let copy = copied("clip-first");
    for (file, text) in [
        (
            "config.json",
            r#"{"model_type": "clip", "text_config": {}, "vision_config": {}}"#,
        ),
        (
            "preprocessor_config.json",
            r#"{"size": 224, "crop_size": 224, "do_center_crop": true, "resample": 3,
          "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}"#,
        ),
    ] {
        fs::write(copy.path().join(file), text).unwrap();
    }
    let folder = Folder::open(copy.path()).unwrap();
    // Every difference, of which the message shows the first.
    let error = format!("{:?}", TextEncoder::open(&folder, None).unwrap_err());
    for part in [
        "text_model.embeddings.token_embedding.weight",
        "[49408, 512]",
        "[77, 512]",
        "text_model.encoder.layers.11.mlp.fc1.weight",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let error = format!("{:?}", ClipImages::open(&folder).unwrap_err());
    for part in [
        "[768, 3, 32, 32]",
        "[50, 768]",
        "vision_model.encoder.layers.11.self_attn.q_proj.weight",
        "[512, 768]",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn wrong_folders_are_refused_by_key() {
    let texts = |folder: &Folder| match TextEncoder::open(folder, None) {
        Ok(_) => String::new(),
        Err(error) => format!("{error} {error:?}"),
    };
    let images = |folder: &Folder| match ClipImages::open(folder) {
        Ok(_) => String::new(),
        Err(error) => format!("{error} {error:?}"),
    };
    let opened = |file: &str, changes: &[(&str, &str)]| {
        let copy = copied("clip");
        let path = copy.path().join(file);
        let mut text = fs::read_to_string(&path).unwrap();
        for (from, to) in changes {
            assert!(text.contains(from), "{from}: {text}");
            text = text.replace(from, to);
        }
        fs::write(&path, text).unwrap();
        (Folder::open(copy.path()).unwrap(), copy)
    };
    for (from, to, of_text, of_image) in [
        (
            "\"hidden_size\": 24",
            "\"hidden_size\": 0",
            "text_config.hidden_size: found 0",
            "",
        ),
        ("\"hidden_size\": 24", "\"hidden_size\": 16777216", "", ""),
        // Sections of older files, with what they leave out, are read in place of the others.
        (
            "\"projection_dim\": 12",
            "\"text_config_dict\": {\"hidden_size\": 25}, \"vision_config_dict\": {\"patch_size\": 0}",
            "text_config_dict.num_attention_heads: found nothing; expected a divisor",
            "vision_config_dict.patch_size: found 0",
        ),
        (
            "\"hidden_size\": 24",
            "\"hidden_size\": 25",
            "text_config.num_attention_heads: found 3",
            "",
        ),
        (
            "\"hidden_size\": 20",
            "\"hidden_size\": 16777216",
            "",
            "vision_config.num_attention_heads: found 2; expected heads of at most 256 features",
        ),
        (
            "\"num_hidden_layers\": 2",
            "\"num_hidden_layers\": 16777216",
            "text_config.num_hidden_layers: found 16777216",
            "",
        ),
        (
            "\"num_hidden_layers\": 3",
            "\"num_hidden_layers\": 2",
            "",
            "vision_model.encoder.layers.2.mlp.fc1.weight",
        ),
        (
            "\"eos_token_id\": 145",
            "\"eos_token_id\": [1, 2]",
            "text_config.eos_token_id: found [1,2]",
            "",
        ),
        (
            "\"vocab_size\": 146",
            "\"vocab_size\": 147",
            "[147, 24]",
            "",
        ),
        (
            "\"image_size\": 21",
            "\"image_size\": 28",
            "",
            "vision_config.image_size: found 28",
        ),
        (
            "\"image_size\": 21",
            "\"image_size\": [21, 20]",
            "",
            "vision_config.image_size: found [21,20]",
        ),
        (
            "\"patch_size\": 7",
            "\"patch_size\": 0",
            "",
            "vision_config.patch_size: found 0",
        ),
        (
            "\"patch_size\": 7",
            "\"patch_size\": 16777216",
            "",
            "vision_config.image_size: found 21",
        ),
        (
            "\"hidden_act\": \"quick_gelu\"",
            "\"hidden_act\": \"swoosh\"",
            "text_config.hidden_act: found \"swoosh\"",
            "vision_config.hidden_act",
        ),
        (
            "\"projection_dim\": 12",
            "\"projection_dim\": 1",
            "projection_dim: found 1",
            "projection_dim: found 1",
        ),
        (
            "\"projection_dim\": 12",
            "\"projection_dim\": 13",
            "[13, 24]",
            "[13, 20]",
        ),
        (
            "\"text_config\"",
            "\"other_config\"",
            "text_config: found nothing",
            "",
        ),
        (
            "\"vision_config\"",
            "\"other_config\"",
            "",
            "vision_config: found nothing",
        ),
    ] {
        let (folder, _copy) = opened("config.json", &[(from, to)]);
        let found = [texts(&folder), images(&folder)];
        for (found, expected) in found.iter().zip([of_text, of_image]) {
            assert!(found.contains(expected), "{to}: {found}");
        }
        let all = [of_text, of_image]
            .iter()
            .all(|expected| expected.is_empty());
        assert!(!all || found.iter().any(|found| !found.is_empty()), "{to}");
    }
    let (folder, _copy) = opened(
        "processor_config.json",
        &[("\"height\": 21", "\"height\": 14")],
    );
    let found = images(&folder);
    assert!(
        found.contains("vision_config.image_size: found 21"),
        "{found}"
    );
}

#[test]
fn the_processors_file_goes_before_that_of_the_preprocessor() {
    let copy = copied("clip");
    fs::write(copy.path().join("preprocessor_config.json"), "{}").unwrap();
    let preparation = || {
        let found = ClipImages::open(&Folder::open(copy.path()).unwrap());
        found.map(|found| found.tower.preparation.resizing)
    };
    assert_eq!(preparation().unwrap(), Resizing::Shorter(21));
    // One without images' numbers does not.
    fs::write(copy.path().join("processor_config.json"), "{}").unwrap();
    let error = preparation().unwrap_err().to_string();
    assert!(
        error.contains("vision_config.image_size: found 21"),
        "{error}"
    );
}

#[test]
fn vocab_and_merges_alone_are_not_read_as_those_of_another_family() {
    let copy = copied("clip");
    fs::remove_file(copy.path().join("tokenizer.json")).unwrap();
    fs::write(copy.path().join("vocab.json"), "{\"a</w>\": 0}").unwrap();
    fs::write(copy.path().join("merges.txt"), "#version: 0.2\n").unwrap();
    let error = Tokenizer::open(copy.path()).unwrap_err().to_string();
    assert!(error.contains("make a tokenizer.json"), "{error}");
}

#[test]
fn training_can_begin_with_the_text_tower() {
    let trainable = Trainable::open(&open("clip")).unwrap();
    assert!(trainable.causal);
    assert_eq!((trainable.context, trainable.vocabulary()), (40, 146));
}
