//! DETR against what the original library computes (`../golden/pretrained_detr_golden.py`).

use std::fs;

use burn::tensor::{Device, Tensor, TensorData};
use regard_models::{
    AnyDetector, AnyModelConfig,
    pretrained::{DetectorModel, Folder, Resizing},
};
use regard_nn::weights;

use super::{Golden, close, copied, open};

const CASES: [&str; 3] = ["detr", "detr-timm", "detr-dilation"];

fn model(found: &DetectorModel) -> AnyDetector {
    let config: &dyn AnyModelConfig<AnyDetector> = &found.config;
    let built = config.build_without_values(&found.sizes, &found.arrays, &Device::flex());
    weights::apply(built.unwrap(), found.arrays.clone()).unwrap()
}

#[test]
fn boxes_classes_masks_and_weights_are_those_of_transformers() {
    for case in CASES {
        let found = DetectorModel::open(&open(case)).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(found.labels, ["N/A", "person", "bicycle", "N/A"], "{case}");
        let golden = Golden::of(case);
        let (shape, pixels) = &golden.numbers["pixels"];
        let pixels = TensorData::new(pixels.clone(), shape.clone());
        let pixels = Tensor::<4>::from_data(pixels, &Device::flex());
        let model = model(&found);
        let look = model.look(pixels);
        let numbers = |data: TensorData| data.iter::<f32>().collect::<Vec<f32>>();
        let expect = |name: &str, found: TensorData, bound: f32| {
            let expected = &golden.numbers[name].1;
            close(&format!("{case} {name}"), &numbers(found), expected, bound);
        };
        let last = look.found.last();
        expect("logits", last.logits.clone().into_data(), 1e-4);
        expect("boxes", last.boxes.clone().into_data(), 1e-4);
        for (kind, layers) in [
            ("encoder", look.encoder),
            ("decoder", look.decoder),
            ("cross", look.cross),
        ] {
            assert_eq!(layers.len(), 2, "{case} {kind}");
            for (layer, weights) in layers.into_iter().enumerate() {
                expect(&format!("{kind}.{layer}"), weights.into_data(), 1e-5);
            }
        }
        let grid = found.config.backbone.grid([shape[2], shape[3]]);
        assert_eq!(look.grid, grid, "{case}");
        assert_eq!(model.has_masks(), case == "detr-timm");
        if let Some((shape, _)) = golden.numbers.get("masks") {
            let all: Vec<[usize; 2]> = (0..2)
                .flat_map(|image| (0..5).map(move |query| [image, query]))
                .collect();
            let masks = model.masks(&look.found, &all, [shape[2], shape[3]]);
            expect("masks", masks.unwrap().into_data(), 1e-4);
        }
    }
}

#[test]
fn preprocessors_are_read_in_all_their_forms() {
    for (case, resizing, size) in [
        (
            "detr",
            Resizing::Within {
                shorter: 64,
                longer: 88,
            },
            [88, 88],
        ),
        (
            "detr-timm",
            Resizing::Within {
                shorter: 64,
                longer: 80,
            },
            [80, 80],
        ),
        ("detr-dilation", Resizing::Stretch([70, 90]), [70, 90]),
    ] {
        let found = DetectorModel::open(&open(case)).unwrap();
        let preparation = &found.preparation;
        assert_eq!(
            (preparation.resizing, found.sizes.size),
            (resizing, size),
            "{case}"
        );
        assert!(!preparation.bicubic, "{case}");
        assert_eq!(preparation.mean, [0.48, 0.45, 0.4], "{case}");
    }
    let prepared = |preprocessor: &str| {
        let copy = copied("detr");
        fs::write(copy.path().join("preprocessor_config.json"), preprocessor).unwrap();
        DetectorModel::open(&Folder::open(copy.path()).unwrap()).unwrap()
    };
    for (preprocessor, shorter, longer) in [
        (r#"{"size": 64}"#, 64, 1333),
        // Only of effect beside a size.
        (r#"{"max_size": 80}"#, 800, 1333),
        // Images that are not padded.
        (r#"{"pad_size": 90, "do_pad": false}"#, 800, 1333),
        (
            r#"{"pad_size": 90, "pad_and_return_pixel_mask": false}"#,
            800,
            1333,
        ),
    ] {
        let resizing = Resizing::Within { shorter, longer };
        let found = prepared(preprocessor).preparation.resizing;
        assert_eq!(found, resizing, "{preprocessor}");
    }
    let found = prepared(r#"{"size": {"max_height": 64, "max_width": 80}}"#);
    assert_eq!(found.preparation.resizing, Resizing::Inside([64, 80]));
    assert_eq!(found.sizes.size, [64, 80]);
    let found = prepared(r#"{"size": [64, 80]}"#).preparation.resizing;
    assert_eq!(found, Resizing::Stretch([64, 80]));
    // What `DetrImageProcessor` does without being told.
    let found = prepared("{}");
    let resizing = Resizing::Within {
        shorter: 800,
        longer: 1333,
    };
    assert_eq!(found.preparation.resizing, resizing);
    assert!(!found.preparation.bicubic);
    assert_eq!(found.preparation.mean, [0.485, 0.456, 0.406]);
    assert_eq!(found.preparation.deviation, [0.229, 0.224, 0.225]);
}

/// As `DetrConfig` of transformers 5.24 writes and reads it.
#[test]
fn dilation_is_that_of_the_backbone_s_own_section() {
    for (stride, dilation) in [("16", true), ("32", false), ("null", false)] {
        let copy = copied("detr-dilation");
        let path = copy.path().join("config.json");
        let text = fs::read_to_string(&path).unwrap();
        let section = format!(
            r#""backbone_config": {{"model_type": "timm_backbone", "backbone": "resnet50", "output_stride": {stride}}}"#
        );
        let changed = text.replace("\"backbone_config\": null", &section);
        assert_ne!(changed, text);
        fs::write(&path, changed).unwrap();
        let found = DetectorModel::open(&Folder::open(copy.path()).unwrap()).unwrap();
        assert_eq!(found.config.backbone.dilation, dilation, "{stride}");
    }
}

/// As `attribute_map` of `DetrConfig` has them (transformers 5.24): they go before the usual names.
#[test]
fn sizes_may_have_their_other_names() {
    for (from, to) in [
        ("\"d_model\": 16", "\"hidden_size\": 16"),
        ("\"d_model\": 16", "\"d_model\": 8, \"hidden_size\": 16"),
        (
            "\"encoder_attention_heads\": 2",
            "\"num_attention_heads\": 2",
        ),
        (
            "\"encoder_layers\": 2",
            "\"encoder_layers\": 1, \"num_hidden_layers\": 2",
        ),
        ("\"d_model\": 16", "\"d_model\": 16, \"hidden_size\": null"),
    ] {
        let copy = copied("detr");
        let path = copy.path().join("config.json");
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{from}: {text}");
        fs::write(&path, text.replace(from, to)).unwrap();
        let found = DetectorModel::open(&Folder::open(copy.path()).unwrap());
        let config = found.unwrap_or_else(|error| panic!("{to}: {error}")).config;
        let sizes = [config.d_model, config.heads, config.encoder_layers];
        assert_eq!(sizes, [16, 2, 2], "{to}");
    }
}

#[test]
fn wrong_folders_are_refused_by_key() {
    let refused = |case: &str, file: &str, from: &str, to: &str| {
        let copy = copied(case);
        let path = copy.path().join(file);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{from}: {text}");
        fs::write(&path, text.replace(from, to)).unwrap();
        let error = DetectorModel::open(&Folder::open(copy.path()).unwrap()).unwrap_err();
        // With every difference, of which the message shows the first.
        format!("{error} {error:?}")
    };
    let preprocessor = "preprocessor_config.json";
    for (case, from, to, message) in [
        (
            "detr",
            "\"model_type\": \"detr\"",
            "\"model_type\": \"detx\"",
            "model_type: found \"detx\"",
        ),
        (
            "detr",
            "\"d_model\": 16",
            "\"d_model\": 0",
            "d_model: found 0",
        ),
        (
            "detr",
            "\"d_model\": 16",
            "\"d_model\": 18",
            "d_model: found 18; expected a multiple of 4",
        ),
        (
            "detr",
            "\"d_model\": 16",
            "\"hidden_size\": 18",
            "hidden_size: found 18; expected a multiple of 4",
        ),
        (
            "detr",
            "\"d_model\": 16",
            "\"d_model\": 16777216",
            "encoder_attention_heads: found 2; expected a divisor of d_model",
        ),
        (
            "detr",
            "\"d_model\": 16",
            "\"d_model\": 20",
            "[20, 64, 1, 1]",
        ),
        (
            "detr",
            "\"encoder_layers\": 2",
            "\"encoder_layers\": 16777216",
            "encoder_layers: found 16777216; expected at most 362",
        ),
        (
            "detr",
            "\"decoder_layers\": 2",
            "\"decoder_layers\": 3",
            "decoder.layers.2.encoder_attn.q_proj.weight",
        ),
        (
            "detr",
            "\"decoder_layers\": 2",
            "\"decoder_layers\": 1",
            "decoder.layers.1.fc1.weight",
        ),
        (
            "detr",
            "\"encoder_attention_heads\": 2",
            "\"encoder_attention_heads\": 3",
            "encoder_attention_heads: found 3",
        ),
        (
            "detr",
            "\"decoder_attention_heads\": 2",
            "\"decoder_attention_heads\": 4",
            "decoder_attention_heads: found 4; expected as many",
        ),
        (
            "detr",
            "\"decoder_ffn_dim\": 20",
            "\"decoder_ffn_dim\": 24",
            "decoder_ffn_dim: found 24; expected the size of",
        ),
        (
            "detr",
            "\"activation_function\": \"relu\"",
            "\"activation_function\": \"gelu\"",
            "activation_function: found \"gelu\"",
        ),
        (
            "detr",
            "\"sine\"",
            "\"learned\"",
            "position_embedding_type: found \"learned\"",
        ),
        (
            "detr",
            "\"auxiliary_loss\": false",
            "\"auxiliary_loss\": true",
            "auxiliary_loss: found true; expected false",
        ),
        (
            "detr",
            "\"num_queries\": 5",
            "\"num_queries\": 16777216",
            "[16777216, 16]",
        ),
        (
            "detr",
            "\"dilation\": false",
            "\"dilation\": true",
            "dilation: found true",
        ),
        (
            "detr",
            "\"model_type\": \"resnet\"",
            "\"model_type\": \"swin\"",
            "backbone_config.model_type: found \"swin\"",
        ),
        (
            "detr",
            "\"embedding_size\": 2",
            "\"embedding_size\": 3",
            "backbone_config.hidden_sizes",
        ),
        (
            "detr",
            "\"embedding_size\": 2",
            "\"embedding_size\": 16777216",
            "backbone_config.hidden_sizes",
        ),
        (
            "detr",
            "\"num_channels\": 3,\n  \"num_queries\"",
            "\"num_channels\": 1,\n  \"num_queries\"",
            "image_mean",
        ),
        (
            "detr-timm",
            "\"resnet18\"",
            "\"resnet19\"",
            "backbone: found \"resnet19\"",
        ),
        (
            "detr-timm",
            "\"resnet18\"",
            "\"resnet34\"",
            "layer1.2.conv1.weight",
        ),
        (
            "detr-timm",
            "\"dilation\": false",
            "\"dilation\": true",
            "dilation: found true; expected false, or a backbone of timm",
        ),
        (
            "detr-timm",
            "\"use_timm_backbone\": true",
            "\"use_timm_backbone\": false",
            "backbone_config: found nothing; expected that of a ResNet",
        ),
        (
            "detr-dilation",
            "\"backbone_config\": null",
            "\"backbone_config\": {\"model_type\": \"timm_backbone\", \"output_stride\": 8}",
            "backbone_config.output_stride: found 8; expected 32",
        ),
        (
            "detr-timm",
            "\"backbone_config\": null",
            "\"backbone_config\": {\"model_type\": \"timm_backbone\", \"backbone\": \"resnet18\", \"output_stride\": 16}",
            "backbone_config.output_stride: found 16; expected 32",
        ),
    ] {
        let found = refused(case, "config.json", from, to);
        assert!(found.contains(message), "{case}, {to}: {found}");
    }
    for (case, from, to, message) in [
        (
            "detr",
            "\"shortest_edge\": 64",
            "\"shortest_edge\": 0",
            "size.shortest_edge: found 0",
        ),
        (
            "detr",
            "\"longest_edge\": 88",
            "\"longest_edge\": \"x\"",
            "size.longest_edge: found \"x\"",
        ),
        (
            "detr-timm",
            "\"max_size\": 80",
            "\"max_size\": -1",
            "max_size: found -1",
        ),
        (
            "detr-timm",
            "\"size\": 64",
            "\"size\": \"large\"",
            "size: found \"large\"",
        ),
        (
            "detr",
            "\"do_resize\": true",
            "\"do_resize\": false",
            "do_resize: found false; expected true",
        ),
        (
            "detr-dilation",
            "\"width\": 90",
            "\"wide\": 90",
            "size: found {\"height\":70,\"wide\":90}; expected height and width",
        ),
        (
            "detr",
            "\"longest_edge\": 88",
            "\"longest_edge\": null",
            "expected shortest_edge with longest_edge",
        ),
        (
            "detr",
            "\"shortest_edge\": 64",
            "\"shortest_edge\": null",
            "expected height and width, or shortest_edge (of a detector with longest_edge, or max_height and max_width)",
        ),
        (
            "detr-timm",
            "\"size\": 64",
            "\"size\": {}",
            "size: found {}; expected height and width",
        ),
        (
            "detr-timm",
            "\"size\": 64",
            "\"size\": {\"max_height\": 64, \"width\": 80}",
            "size: found {\"max_height\":64,\"width\":80}; expected height and width",
        ),
        (
            "detr-timm",
            "\"size\": 64",
            "\"pad_size\": {\"height\": 90, \"width\": 90}",
            "pad_size: found {\"height\":90,\"width\":90}; expected null, or do_pad = false",
        ),
        (
            "detr-dilation",
            "\"do_resize\": true",
            "\"do_resize\": false",
            "do_resize: found false; expected true",
        ),
        (
            "detr-timm",
            "DetrFeatureExtractor",
            "YolosFeatureExtractor",
            "feature_extractor_type: found \"YolosFeatureExtractor\"; expected one of DetrImageProcessor",
        ),
    ] {
        let found = refused(case, preprocessor, from, to);
        assert!(found.contains(message), "{case}, {to}: {found}");
    }
}
