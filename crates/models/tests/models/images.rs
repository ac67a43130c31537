//! Networks that read images: numbers against PyTorch (`../golden/images_golden.py`), and what must hold for any of them.

use burn::tensor::{Tensor, TensorData};
use regard_models::{
    AnyImageClassifier, AnyModelConfig, ImageClassifier, ImageSizes, ModelConfig,
    image::{
        ImageMap, MapAttentionConfig, MapWeights, ResNetConfig, ResidualAttentionConfig,
        VisionTransformerConfig,
        map_attention::{AffinityName, HeadsConfig, NonLocalChoice, ReductionConfig},
        residual_attention::{MaskName, ResidualAttention},
        vit::{ImagePooling, ImagePositions, ImageStem},
    },
};
use regard_nn::{bridge::without_kernels, dropout::DropoutRng, initialize::Initializer, weights};
use serde_json::Value;

use crate::support::{Case, GoldenFile, device, frozen, numbers, values};

fn golden() -> GoldenFile {
    GoldenFile::read(include_bytes!("../golden/images.safetensors"))
}

fn shape(case: &Case) -> [usize; 4] {
    let sizes: Vec<usize> = serde_json::from_value(case.description["shape"].clone()).unwrap();
    sizes.try_into().unwrap()
}

fn sizes([_, channels, height, width]: [usize; 4]) -> ImageSizes {
    ImageSizes {
        channels,
        size: [height, width],
        classes: 5,
    }
}

fn attention(name: &str) -> MapAttentionConfig {
    let reduction = || ReductionConfig { reduction: 2 };
    let heads = || HeadsConfig { heads: 2 };
    let non_local = |affinity| MapAttentionConfig::NonLocal(NonLocalChoice { affinity });
    match name {
        "none" => MapAttentionConfig::None,
        "se" => MapAttentionConfig::SqueezeExcite(reduction()),
        "cbam" => MapAttentionConfig::Cbam(reduction()),
        "spatial" => MapAttentionConfig::Spatial,
        "non-local" => non_local(AffinityName::EmbeddedGaussian),
        "gaussian" => non_local(AffinityName::Gaussian),
        "dot" => non_local(AffinityName::Dot),
        "concatenation" => non_local(AffinityName::Concatenation),
        "axial" => MapAttentionConfig::Axial(heads()),
        "self" => MapAttentionConfig::SelfAttention(heads()),
        other => panic!("{other}"),
    }
}

/// Scores, loss and gradients of a case; whether maps are compared too.
fn check<M: ImageClassifier>(mut case: Case, model: M) {
    let mut model = case.fill(model);
    if case.description.get("training") == Some(&Value::Bool(false)) {
        model = frozen(model);
    }
    let images = case.leaf("images", shape(&case));
    let logits = model.forward(images.clone(), &mut DropoutRng::none());
    case.output("logits", &logits);
    let weights = case.constant("loss", logits.dims());
    let gradients = (logits * weights).sum().backward();
    case.gradients(&model, &gradients);
    case.gradient("images", &images, &gradients);
    for (index, map) in model.look(images).maps.into_iter().enumerate() {
        match (case.text("kind"), map.weights) {
            ("vit", MapWeights::Pairs { weights, .. }) => {
                case.output(&format!("weights.{index}"), &weights);
            }
            ("residual-attention", MapWeights::Numbers(mask)) => {
                case.output(&format!("mask.{index}"), &mask);
            }
            _ => {}
        }
    }
    case.close();
}

#[test]
fn residual_networks() {
    let golden = golden();
    let cases = golden.cases("resnet");
    assert_eq!(cases.len(), 16);
    for case in cases {
        let config = ResNetConfig {
            depth: case.number("depth") as usize,
            width: case.number("width"),
            attention: attention(case.text("attention")),
        };
        let model = config.draw(&sizes(shape(&case)), &mut Initializer::new(1, &device()));
        check(case, model.unwrap());
    }
}

#[test]
fn residual_attention_networks() {
    let golden = golden();
    let cases = golden.cases("residual-attention");
    assert_eq!(cases.len(), 4);
    for case in cases {
        let config = ResidualAttentionConfig {
            depth: case.number("depth") as usize,
            width: case.number("width"),
            mask: match case.text("activation") {
                "mixed" => MaskName::Mixed,
                "channel" => MaskName::Channel,
                _ => MaskName::Spatial,
            },
            residual_learning: case.description["learning"] == Value::Bool(true),
        };
        let model = config.draw(&sizes(shape(&case)), &mut Initializer::new(1, &device()));
        check(case, model.unwrap());
    }
}

/// The trunk alone has the weights of the network with masks, but for theirs, and nothing to show.
#[test]
fn a_residual_attention_network_without_masks() {
    let drawn = |mask| {
        let config = ResidualAttentionConfig {
            mask,
            ..ResidualAttentionConfig::tiny()
        };
        let model = config.draw(&sizes([2, 3, 16, 16]), &mut Initializer::new(1, &device()));
        model.unwrap()
    };
    let shapes = |model: &ResidualAttention| {
        let arrays = weights::collect(model).into_iter();
        let shapes = arrays.map(|(name, array)| (name, array.shape));
        shapes.collect::<Vec<_>>()
    };
    let (trunk, masked) = (drawn(MaskName::None), drawn(MaskName::Mixed));
    let mut expected = shapes(&masked);
    expected.retain(|(name, _)| !name.contains(".mask."));
    assert!(expected.len() < shapes(&masked).len());
    assert_eq!(shapes(&trunk), expected);
    let look = trunk.look(Tensor::ones([2, 3, 16, 16], &device()));
    assert!(look.maps.is_empty());
    assert!(numbers(&look.logits).iter().all(|logit| logit.is_finite()));
}

#[test]
fn vision_transformers() {
    let golden = golden();
    let cases = golden.cases("vit");
    assert_eq!(cases.len(), 6);
    for mut case in cases {
        let size = |field: &str| case.number(field) as usize;
        let positions = case.description.get("positions").and_then(Value::as_str);
        let stem = match case.description.get("stem") {
            None => ImageStem::Patches,
            Some(_) => ImageStem::Convolutions,
        };
        let config = VisionTransformerConfig {
            positions: match positions {
                None => ImagePositions::Learned,
                Some("sinusoidal") => ImagePositions::Sinusoidal,
                Some(_) => ImagePositions::Rotary,
            },
            patch: size("patch"),
            stem,
            d_model: size("d"),
            layers: size("layers"),
            heads: size("heads"),
            feed_forward: Some(size("f")),
            pooling: match case.text("pooling") {
                "class" => ImagePooling::Class,
                _ => ImagePooling::Mean,
            },
            distillation: case.description.get("distillation").is_some(),
            ..VisionTransformerConfig::default()
        };
        let model = config.draw(&sizes(shape(&case)), &mut Initializer::new(1, &device()));
        let model = model.unwrap();
        if config.distillation {
            // The model gives the mean of both heads: twice that is one of them, if the other one gives 0.
            for (name, other) in [("class", "distillation.head"), ("distillation", "head")] {
                let filled = case.fill(model.clone());
                let mut arrays = weights::collect(&filled);
                for part in ["weight", "bias"] {
                    let array = arrays.get_mut(&format!("{other}.{part}")).unwrap();
                    array.values.fill(0.0);
                }
                let images = case.constant("images", shape(&case));
                let alone = weights::apply(filled, arrays).unwrap();
                let scores = alone.forward(images, &mut DropoutRng::none()) * 2.0;
                case.output(name, &scores);
            }
        }
        check(case, model);
    }
}

/// One of each kind, by a name for messages.
fn configs() -> Vec<(&'static str, Box<dyn AnyModelConfig<AnyImageClassifier>>)> {
    let resnet = |attention| ResNetConfig {
        attention,
        ..ResNetConfig::tiny()
    };
    let vit = |positions| VisionTransformerConfig {
        positions,
        ..VisionTransformerConfig::tiny()
    };
    let mut all: Vec<(&'static str, Box<dyn AnyModelConfig<AnyImageClassifier>>)> = vec![
        ("vit", Box::new(VisionTransformerConfig::tiny())),
        ("vit sinusoidal", Box::new(vit(ImagePositions::Sinusoidal))),
        (
            "vit convolutions",
            Box::new(VisionTransformerConfig {
                stem: ImageStem::Convolutions,
                ..VisionTransformerConfig::tiny()
            }),
        ),
        ("vit rotary", Box::new(vit(ImagePositions::Rotary))),
        (
            "residual attention",
            Box::new(ResidualAttentionConfig::tiny()),
        ),
    ];
    let names = [
        "none",
        "se",
        "cbam",
        "spatial",
        "non-local",
        "gaussian",
        "dot",
        "concatenation",
        "axial",
        "self",
    ];
    for name in names {
        all.push((name, Box::new(resnet(attention(name)))));
    }
    all
}

const SIZES: ImageSizes = ImageSizes {
    channels: 3,
    size: [12, 8],
    classes: 4,
};

fn model(config: &dyn AnyModelConfig<AnyImageClassifier>) -> AnyImageClassifier {
    config.build(&SIZES, 3, &device().inner()).unwrap()
}

fn images(count: usize) -> Tensor<4> {
    let drawn = values("images", count * 3 * 12 * 8, 1.0);
    Tensor::from_data(TensorData::new(drawn, [count, 3, 12, 8]), &device().inner())
}

#[test]
fn looking_and_batching_change_no_score() {
    for (name, config) in configs() {
        let model = model(&*config);
        let images = images(5);
        let scores = model.forward(images.clone(), &mut DropoutRng::none());
        let look = model.look(images.clone());
        assert_eq!(numbers(&look.logits), numbers(&scores), "{name}");
        for row in 0..5 {
            let alone = model.forward(images.clone().narrow(0, row, 1), &mut DropoutRng::none());
            let within = scores.clone().narrow(0, row, 1);
            for (a, b) in numbers(&alone).into_iter().zip(numbers(&within)) {
                assert!((a - b).abs() <= 1e-5 * (1.0 + b.abs()), "{name}: {a} {b}");
            }
        }
        let plain = without_kernels(|| model.forward(images, &mut DropoutRng::none()));
        for (a, b) in numbers(&plain).into_iter().zip(numbers(&scores)) {
            assert!((a - b).abs() <= 1e-4 * (1.0 + b.abs()), "{name}: {a} {b}");
        }
    }
}

/// Checks the shape of a map, and that what is normalised sums to 1.
fn check_map(name: &str, map: &ImageMap) {
    let weights = match &map.weights {
        MapWeights::Channels(gate) => numbers(gate),
        MapWeights::Positions(gate) => {
            assert_eq!(gate.dims()[0], 2, "{name}");
            numbers(gate)
        }
        MapWeights::Numbers(gate) => numbers(gate),
        MapWeights::Pairs {
            weights,
            marks,
            grid,
            key_grid,
        } => {
            let [batch, _, queries, keys] = weights.dims();
            assert_eq!(
                [batch, queries],
                [2, marks.len() + grid[0] * grid[1]],
                "{name}"
            );
            assert_eq!(keys, marks.len() + key_grid[0] * key_grid[1], "{name}");
            if !["dot", "concatenation"].contains(&name) {
                for sum in numbers(&weights.clone().sum_dim(3)) {
                    assert!((sum - 1.0).abs() < 1e-5, "{name}: {sum}");
                }
            }
            return;
        }
    };
    assert!(
        weights.iter().all(|gate| (0.0..=1.0).contains(gate)),
        "{name}"
    );
}

#[test]
fn maps_have_the_shapes_of_their_layers() {
    for (name, config) in configs() {
        let look = model(&*config).look(images(2));
        let expected = match name {
            "none" => 0,
            "se" | "spatial" => 9,
            "cbam" => 18,
            _ if name.starts_with("vit") => 2,
            "residual attention" => 3,
            _ => 1,
        };
        assert_eq!(look.maps.len(), expected, "{name}");
        for map in &look.maps {
            check_map(name, map);
        }
    }
}

#[test]
fn stored_weights_make_the_same_model() {
    for (name, config) in configs() {
        let first = model(&*config);
        let arrays = weights::collect(&first);
        let empty = config.build_without_values(&SIZES, &arrays, &device().inner());
        let second = weights::apply(empty.unwrap(), arrays).unwrap();
        let [a, b] = [first, second].map(|model| model.forward(images(2), &mut DropoutRng::none()));
        assert_eq!(numbers(&a), numbers(&b), "{name}");
    }
}

#[test]
fn impossible_sizes_are_refused() {
    let message = |config: &dyn AnyModelConfig<AnyImageClassifier>, sizes: ImageSizes| {
        let refused = config.build(&sizes, 1, &device().inner());
        refused.map(|_| ()).unwrap_err().to_string()
    };
    let resnet = ResNetConfig::tiny();
    let vit = VisionTransformerConfig::tiny();
    let no_class = ImageSizes {
        classes: 0,
        ..SIZES
    };
    assert!(message(&resnet, no_class).contains("the number of classes is 0"));
    let two_channels = ImageSizes {
        channels: 2,
        ..SIZES
    };
    assert!(message(&resnet, two_channels).contains("images of 2 channels"));
    let flat = ImageSizes {
        size: [0, 8],
        ..SIZES
    };
    assert!(message(&resnet, flat).contains("images of 0 x 8 pixels"));
    let odd = ImageSizes {
        size: [12, 9],
        ..SIZES
    };
    assert!(message(&vit, odd).contains("expected a patch that divides both sides"));
    let thirds = VisionTransformerConfig {
        patch: 3,
        stem: ImageStem::Convolutions,
        ..vit
    };
    assert!(message(&thirds, SIZES).contains("expected a power of 2 above 1"));
    let unknown = ResNetConfig {
        depth: 21,
        ..resnet.clone()
    };
    assert!(message(&unknown, SIZES).contains("found 21"));
    let reduced = ResNetConfig {
        attention: MapAttentionConfig::SqueezeExcite(ReductionConfig { reduction: 3 }),
        ..resnet
    };
    assert!(message(&reduced, SIZES).contains("`reduction` is 3"));
}
