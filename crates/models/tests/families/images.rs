//! Classifiers of images against what the original library computes (`../golden/pretrained_images_golden.py`).

use std::fs;

use burn::tensor::{Device, Tensor, TensorData};
use regard_models::{
    AnyImageClassifier, AnyModelConfig,
    image::{MapWeights, ResNetConfig, VisionTransformerConfig},
    pretrained::{ClassScores, Folder, ImageModel, PretrainedError, Resizing, holds_images},
};
use regard_nn::{dropout::DropoutRng, weights};
use serde_json::{Value, json};

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

const LABELS: [&str; 5] = ["cat", "dog", "bird", "fish", "frog"];

#[test]
fn logits_and_weights_are_those_of_transformers() {
    for (case, bound) in [
        ("vit", 1e-4),
        ("vit-lists", 1e-4),
        ("deit", 1e-4),
        ("deit-classes", 1e-4),
        ("resnet", 1e-4),
        ("resnet-bottleneck", 1e-4),
    ] {
        let folder = open(case);
        assert!(holds_images(&folder), "{case}");
        let found = ImageModel::open(&folder).unwrap_or_else(|error| panic!("{case}: {error}"));
        let (labels, scores) = match case {
            "vit-lists" => (&["good"][..], ClassScores::Sigmoid),
            "deit-classes" => (&LABELS[..], ClassScores::Sigmoid),
            _ => (&LABELS[..], ClassScores::Softmax),
        };
        assert_eq!(found.labels, labels, "{case}");
        assert_eq!(found.scores, scores, "{case}");
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
                "deit" | "deit-classes" => &["[CLS]", "[DIST]"],
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
        ("vit", Resizing::Stretch([16, 16]), false),
        ("deit", Resizing::Stretch([20, 20]), true),
        // 40 / 0.875
        ("resnet", Resizing::Shorter(45), true),
        // 48 / 0.875
        ("resnet-bottleneck", Resizing::Shorter(54), false),
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

/// A network for images of any size, with this preprocessor.
fn prepared(preprocessor: &Value) -> Result<ImageModel, PretrainedError> {
    let copy = copied("resnet");
    let path = copy.path().join("preprocessor_config.json");
    fs::write(path, preprocessor.to_string()).unwrap();
    ImageModel::open(&Folder::open(copy.path()).unwrap())
}

/// As in `image_processing_*.py` of transformers 5.24.
#[test]
fn what_a_preprocessor_leaves_out_is_as_its_class_has_it() {
    let (half, clip) = ([0.5; 3], [0.48145466, 0.4578275, 0.40821073]);
    for (preprocessor, resizing, size, bicubic, mean) in [
        // The class of the model.
        (json!({}), Resizing::Stretch([384; 2]), [384; 2], true, half),
        (
            json!({"feature_extractor_type": "ConvNextFeatureExtractor", "crop_pct": 0.875, "size": 224}),
            Resizing::Shorter(256),
            [224; 2],
            true,
            half,
        ),
        (
            json!({"size": 383, "resample": 2, "crop_size": 383, "do_center_crop": true}),
            Resizing::Shorter(437),
            [383; 2],
            false,
            half,
        ),
        (
            json!({"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 400}}),
            Resizing::Stretch([400; 2]),
            [400; 2],
            true,
            half,
        ),
        (
            json!({"image_processor_type": "ViTImageProcessorFast", "crop_size": 9}),
            Resizing::Stretch([224; 2]),
            [224; 2],
            false,
            half,
        ),
        (
            json!({"image_processor_type": "BeitImageProcessor", "size": {"height": 20, "width": 30}}),
            Resizing::Stretch([20, 30]),
            [20, 30],
            true,
            half,
        ),
        (
            json!({"feature_extractor_type": "DeiTFeatureExtractor"}),
            Resizing::Stretch([256; 2]),
            [224; 2],
            true,
            half,
        ),
        (
            json!({"image_processor_type": "DeiTImageProcessor", "size": [30, 40], "do_center_crop": false}),
            Resizing::Stretch([30, 40]),
            [30, 40],
            true,
            half,
        ),
        (
            json!({"image_processor_type": "CLIPImageProcessor"}),
            Resizing::Shorter(224),
            [224; 2],
            true,
            clip,
        ),
        (
            json!({"image_processor_type": "BitImageProcessor", "size": 32, "crop_size": [24, 28]}),
            Resizing::Shorter(32),
            [24, 28],
            true,
            clip,
        ),
        (
            json!({"image_processor_type": "CLIPImageProcessor", "size": 32, "default_to_square": true, "crop_size": 24}),
            Resizing::Stretch([32; 2]),
            [24; 2],
            true,
            clip,
        ),
        // Of no effect: the longer side for this class, and a size for images that are not padded.
        (
            json!({"size": {"shortest_edge": 400, "longest_edge": 500}, "pad_size": 600, "default_to_square": false}),
            Resizing::Stretch([400; 2]),
            [400; 2],
            true,
            half,
        ),
    ] {
        let found =
            prepared(&preprocessor).unwrap_or_else(|error| panic!("{preprocessor}: {error}"));
        let preparation = found.preparation;
        assert_eq!(
            (preparation.resizing, found.sizes.size, preparation.bicubic),
            (resizing, size, bicubic),
            "{preprocessor}"
        );
        assert_eq!(preparation.mean, mean, "{preprocessor}");
        assert_eq!(
            preparation.deviation == half,
            mean == half,
            "{preprocessor}"
        );
    }
    for (preprocessor, message) in [
        (
            json!({"image_processor_type": "LevitImageProcessor"}),
            "image_processor_type: found \"LevitImageProcessor\"; expected one of ViTImageProcessor, DeiTImageProcessor",
        ),
        (
            json!({"image_processor_type": "BitImageProcessor", "do_center_crop": false}),
            "do_center_crop: found false; expected true",
        ),
        (
            json!({"size": 40, "do_center_crop": true, "crop_size": 32}),
            "crop_size: found 32; expected that of size (40)",
        ),
        (
            json!({"size": 40, "do_center_crop": true}),
            "crop_size: found nothing; expected a size",
        ),
        (
            json!({"image_processor_type": "CLIPImageProcessor", "crop_size": {"shortest_edge": 9}}),
            "crop_size: found {\"shortest_edge\":9}; expected height and width",
        ),
        (
            json!({"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 32, "longest_edge": 40}}),
            "expected height and width, or shortest_edge alone",
        ),
        (
            json!({"image_processor_type": "CLIPImageProcessor", "size": {"max_height": 32, "max_width": 40}}),
            "expected height and width, or shortest_edge alone",
        ),
        (
            json!({"image_processor_type": "CLIPImageProcessor", "use_square_size": true}),
            "use_square_size: found true; expected false",
        ),
        (
            json!({"image_processor_type": "CLIPImageProcessor", "do_pad": true, "pad_size": 300}),
            "pad_size: found 300; expected null",
        ),
        (
            json!({"size": {"height": 40, "width": 40}}),
            "expected shortest_edge",
        ),
        (
            json!({"size": {"shortest_edge": 40, "height": 40}}),
            "expected height and width, or shortest_edge (",
        ),
        (
            json!({"do_resize": false}),
            "do_resize: found false; expected true",
        ),
        (
            json!({"do_rescale": false}),
            "do_rescale: found false; expected true",
        ),
        (json!({"size": [1, 2, 3]}), "size: found [1,2,3]"),
        (
            json!({"size": 1.5}),
            "size: found 1.5; expected a whole number",
        ),
    ] {
        let found = prepared(&preprocessor).unwrap_err().to_string();
        assert!(found.contains(message), "{preprocessor}: {found}");
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
            "vit-lists",
            "config.json",
            "16,\n    16",
            "16,\n    20",
            "image_size: found [16,20]; expected a number, or two that are equal",
        ),
        (
            "deit-classes",
            "config.json",
            "multi_label",
            "many_label",
            "problem_type: found \"many_label_classification\"",
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
        // The middle of an image as it is, which is not squeezed.
        (
            "vit",
            preprocessor,
            "\"do_resize\": true",
            "\"do_resize\": false, \"do_center_crop\": true, \"crop_size\": 16",
            "do_resize: found false; expected true",
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
        (
            "resnet-bottleneck",
            "config.json",
            "\"downsample_in_bottleneck\": false",
            "\"downsample_in_bottleneck\": true",
            "downsample_in_bottleneck: found true; expected false",
        ),
    ] {
        let found = refused(case, file, from, to);
        assert!(found.contains(message), "{case}: {found}");
    }
}
