//! Classifiers of images against what the original library computes (`../golden/pretrained_images_golden.py`).

use std::fs;

use burn::tensor::{Device, Tensor, TensorData};
use regard_models::{
    AnyImageClassifier, AnyModelConfig,
    image::{MapWeights, ResNetConfig, VisionTransformerConfig},
    pretrained::{Folder, ImageModel, Resizing, holds_images},
};
use regard_nn::{dropout::DropoutRng, weights};

use super::{Golden, close, copied, open};

pub(super) fn model(found: &ImageModel) -> AnyImageClassifier {
    let config: &dyn AnyModelConfig<AnyImageClassifier> = match found.kind {
        "vit" => found
            .config
            .downcast_ref::<VisionTransformerConfig>()
            .unwrap(),
        _ => found.config.downcast_ref::<ResNetConfig>().unwrap(),
    };
    let built = config.build_without_values(&found.sizes, &found.arrays, &Device::flex());
    weights::apply(built.unwrap(), found.arrays.clone()).unwrap()
}

#[test]
fn logits_and_weights_are_those_of_transformers() {
    for (case, bound) in [
        ("vit", 1e-4),
        ("deit", 1e-4),
        ("resnet", 1e-4),
        ("resnet-bottleneck", 1e-4),
    ] {
        let folder = open(case);
        assert!(holds_images(&folder), "{case}");
        let found = ImageModel::open(&folder).unwrap_or_else(|error| panic!("{case}: {error}"));
        assert_eq!(
            found.labels,
            ["cat", "dog", "bird", "fish", "frog"],
            "{case}"
        );
        let golden = Golden::of(case);
        let (shape, pixels) = &golden.numbers["pixels"];
        assert_eq!(found.sizes.size[..], shape[2..], "{case}");
        let pixels = TensorData::new(pixels.clone(), shape.clone());
        let pixels = Tensor::<4>::from_data(pixels, &Device::flex());
        let model = model(&found);
        let logits = model.forward(pixels.clone(), &mut DropoutRng::none());
        let numbers = |data: TensorData| data.iter::<f32>().collect::<Vec<f32>>();
        close(
            case,
            &numbers(logits.into_data()),
            &golden.numbers["logits"].1,
            bound,
        );
        let look = model.look(pixels);
        let expected = golden
            .numbers
            .keys()
            .filter(|name| name.starts_with("attention"));
        assert_eq!(look.maps.len(), expected.count(), "{case}");
        for (layer, map) in look.maps.into_iter().enumerate() {
            let MapWeights::Pairs { weights, marks, .. } = map.weights else {
                panic!("{case}: {}", map.place);
            };
            let names: &[_] = match case {
                "deit" => &["[CLS]", "[DIST]"],
                _ => &["[CLS]"],
            };
            assert_eq!(marks, names);
            let (name, found) = (format!("attention.{layer}"), numbers(weights.into_data()));
            close(
                &format!("{case} {name}"),
                &found,
                &golden.numbers[&name].1,
                1e-5,
            );
        }
    }
}

#[test]
fn preprocessors_are_read_in_all_their_forms() {
    let preparation = |case: &str| ImageModel::open(&open(case)).unwrap().preparation;
    for (case, resizing, bicubic) in [
        ("vit", Resizing::Stretch, false),
        ("deit", Resizing::Shorter(20), true),
        // 40 / 0.875
        ("resnet", Resizing::Shorter(45), true),
        ("resnet-bottleneck", Resizing::Stretch, false),
    ] {
        let found = preparation(case);
        assert_eq!(
            (found.resizing, found.bicubic),
            (resizing, bicubic),
            "{case}"
        );
        assert_eq!(found.mean, [0.5, 0.4, 0.3], "{case}");
        assert_eq!(found.deviation, [0.5, 0.25, 0.2], "{case}");
    }
}

#[test]
fn wrong_folders_are_refused_by_key() {
    let refused = |case: &str, file: &str, from: &str, to: &str| {
        let copy = copied(case);
        let path = copy.path().join(file);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(&path, text.replace(from, to)).unwrap();
        let folder = Folder::open(copy.path()).unwrap();
        ImageModel::open(&folder).unwrap_err().to_string()
    };
    let preprocessor = "preprocessor_config.json";
    for (case, file, from, to, message) in [
        (
            "vit",
            "config.json",
            "\"image_size\": 16",
            "\"image_size\": 32",
            "image_size: found 32",
        ),
        (
            "vit",
            "config.json",
            "\"patch_size\": 4",
            "\"patch_size\": 5",
            "image_size: found 16",
        ),
        (
            "vit",
            "config.json",
            "\"hidden_size\": 24",
            "\"hidden_size\": 25",
            "num_attention_heads: found 3",
        ),
        (
            "vit",
            "config.json",
            "\"hidden_act\": \"gelu\"",
            "\"hidden_act\": \"softsign\"",
            "hidden_act: found \"softsign\"",
        ),
        (
            "vit",
            "config.json",
            "\"num_hidden_layers\": 2",
            "\"num_hidden_layers\": 9000000",
            "num_hidden_layers",
        ),
        (
            "vit",
            "config.json",
            "\"num_hidden_layers\": 2",
            "\"num_hidden_layers\": 3",
            "encoder.layer.2",
        ),
        (
            "vit",
            preprocessor,
            "0.25",
            "\"x\"",
            "image_std: found [0.5,\"x\",0.2]",
        ),
        (
            "vit",
            preprocessor,
            "0.5,\n    0.4,",
            "0.4,",
            "image_mean: found [0.4,0.3]; expected 3 numbers",
        ),
        (
            "vit",
            preprocessor,
            "\"resample\": 2",
            "\"resample\": 0",
            "resample: found 0",
        ),
        (
            "resnet",
            "config.json",
            "\"basic\"",
            "\"bottleneck\"",
            "depths",
        ),
        (
            "resnet",
            "config.json",
            "\"embedding_size\": 4",
            "\"embedding_size\": 6",
            "hidden_sizes",
        ),
    ] {
        let found = refused(case, file, from, to);
        assert!(found.contains(message), "{case}: {found}");
    }
}
