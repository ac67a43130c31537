//! Outputs and gradients against timm, PyTorch and the papers: `../../golden/vision_golden.py`.

use crate::support::{Case, GoldenFile, device, frozen};
use burn::tensor::Tensor;
use regard_nn::{
    initialize::Initializer,
    mask::PaddingMask,
    vision::{
        Affinity, AnswerHeadConfig, AxialAttentionConfig, CaptionAttentionConfig, CbamConfig,
        MaskActivation, MaskBranchConfig, NonLocalConfig, PatchEmbeddingConfig,
        QuestionAttentionConfig, Regions, SpatialAttentionConfig, SqueezeExciteConfig,
    },
};
use serde_json::Value;

fn golden() -> GoldenFile {
    GoldenFile::read(include_bytes!("../../golden/vision.safetensors"))
}

fn initializer() -> Initializer {
    Initializer::new(1, &device())
}

fn sizes<const D: usize>(value: &Value) -> [usize; D] {
    let sizes: Vec<usize> = serde_json::from_value(value.clone()).unwrap();
    sizes.try_into().unwrap()
}

fn shape(case: &Case) -> [usize; 4] {
    sizes(&case.description["shape"])
}

fn size(case: &Case, field: &str) -> usize {
    case.number(field) as usize
}

fn flag(case: &Case, field: &str) -> bool {
    case.description[field].as_bool().unwrap()
}

/// The loss of a case: its output weighted with fixed numbers.
fn weighted<const D: usize>(case: &Case, output: &Tensor<D>) -> Tensor<1> {
    (output.clone() * case.constant("loss", output.dims())).sum()
}

#[test]
fn squeeze_excite() {
    let golden = golden();
    let cases = golden.cases("squeeze-excite");
    assert_eq!(cases.len(), 6);
    for mut case in cases {
        let module = SqueezeExciteConfig::new(shape(&case)[1])
            .with_reduction(size(&case, "reduction"))
            .with_bias(flag(&case, "bias"))
            .init(&mut initializer());
        let module = case.fill(module.unwrap());
        let map = case.leaf("map", shape(&case));
        let attended = module.attend(map.clone()).unwrap();
        case.output("output", &attended.output);
        case.output("gate", &attended.gate);
        let gradients = weighted(&case, &attended.output).backward();
        case.gradients(&module, &gradients);
        case.gradient("map", &map, &gradients);
        case.close();
    }
}

#[test]
fn spatial_attention() {
    let golden = golden();
    let cases = golden.cases("spatial");
    assert_eq!(cases.len(), 6);
    for mut case in cases {
        let module = SpatialAttentionConfig::new()
            .with_kernel(size(&case, "kernel"))
            .init(&mut initializer());
        let module = case.fill(module.unwrap());
        let map = case.leaf("map", shape(&case));
        let attended = module.attend(map.clone()).unwrap();
        case.output("output", &attended.output);
        case.output("gate", &attended.gate);
        let gradients = weighted(&case, &attended.output).backward();
        case.gradients(&module, &gradients);
        case.gradient("map", &map, &gradients);
        case.close();
    }
}

#[test]
fn cbam() {
    let golden = golden();
    let cases = golden.cases("cbam");
    assert_eq!(cases.len(), 6);
    for mut case in cases {
        let module = CbamConfig::new(shape(&case)[1])
            .with_reduction(size(&case, "reduction"))
            .with_bias(flag(&case, "bias"))
            .with_kernel(size(&case, "kernel"))
            .init(&mut initializer());
        let module = case.fill(module.unwrap());
        let map = case.leaf("map", shape(&case));
        let attended = module.attend(map.clone()).unwrap();
        case.output("output", &attended.output);
        case.output("channel_gate", &attended.channel_gate);
        case.output("spatial_gate", &attended.spatial_gate);
        let gradients = weighted(&case, &attended.output).backward();
        case.gradients(&module, &gradients);
        case.gradient("map", &map, &gradients);
        case.close();
    }
}

fn activation(case: &Case) -> MaskActivation {
    match case.text("activation") {
        "mixed" => MaskActivation::Mixed,
        "channel" => MaskActivation::Channel,
        "spatial" => MaskActivation::Spatial,
        other => panic!("{other}"),
    }
}

#[test]
fn mask_activations() {
    let golden = golden();
    let cases = golden.cases("activation");
    assert_eq!(cases.len(), 3);
    for mut case in cases {
        let scores = case.leaf("scores", [2, 3, 4, 5]);
        let mask = activation(&case).forward(scores.clone());
        case.output("mask", &mask);
        let gradients = weighted(&case, &mask).backward();
        case.gradient("scores", &scores, &gradients);
        case.close();
    }
}

#[test]
fn mask_branch() {
    let golden = golden();
    let cases = golden.cases("mask");
    assert_eq!(cases.len(), 6);
    let mut with_gradients = 0;
    for mut case in cases {
        let training = flag(&case, "training");
        let module = MaskBranchConfig::new(shape(&case)[1])
            .with_levels(size(&case, "levels"))
            .with_units(size(&case, "units"))
            .with_activation(activation(&case))
            .init(&mut initializer());
        let mut module = case.fill(module.unwrap());
        if !training {
            module = frozen(module);
        }
        let map = case.leaf("map", shape(&case));
        let trunk = case.leaf("trunk", shape(&case));
        let attended = module.attend(map.clone(), trunk.clone()).unwrap();
        case.output("output", &attended.output);
        case.output("gate", &attended.gate);
        let gradients = weighted(&case, &attended.output).backward();
        case.gradient("trunk", &trunk, &gradients);
        if !training && activation(&case) == MaskActivation::Mixed {
            case.gradients(&module, &gradients);
            case.gradient("map", &map, &gradients);
            with_gradients += 1;
        }
        case.close();
    }
    assert_eq!(with_gradients, 3);
}

#[test]
fn non_local() {
    let golden = golden();
    let cases = golden.cases("non-local");
    assert_eq!(cases.len(), 16);
    for case in cases {
        match case.description["shape"].as_array().unwrap().len() {
            4 => non_local_case::<4>(case),
            5 => non_local_case::<5>(case),
            other => panic!("{other}"),
        }
    }
}

fn non_local_case<const D: usize>(mut case: Case) {
    let shape: [usize; D] = sizes(&case.description["shape"]);
    let affinity = match case.text("affinity") {
        "gaussian" => Affinity::Gaussian,
        "embedded-gaussian" => Affinity::EmbeddedGaussian,
        "dot" => Affinity::Dot,
        "concatenation" => Affinity::Concatenation,
        other => panic!("{other}"),
    };
    let module = NonLocalConfig::new(shape[1])
        .with_inner(Some(size(&case, "inner")))
        .with_affinity(affinity)
        .with_pool(size(&case, "pool"))
        .with_scaled(flag(&case, "scaled"))
        .init(&mut initializer());
    let module = case.fill(module.unwrap());
    let map = case.leaf("map", shape);
    let attended = module.attend(map.clone()).unwrap();
    case.output("output", &attended.output);
    case.output("weights", &attended.weights);
    let gradients = weighted(&case, &attended.output).backward();
    case.gradients(&module, &gradients);
    case.gradient("map", &map, &gradients);
    case.close();
}

#[test]
fn axial_attention() {
    let golden = golden();
    let cases = golden.cases("axial");
    assert_eq!(cases.len(), 6);
    for mut case in cases {
        let span = case.description["span"].as_u64().map(|span| span as usize);
        let module = AxialAttentionConfig::new(shape(&case)[1])
            .with_heads(size(&case, "heads"))
            .with_span(span)
            .init(&mut initializer());
        let module = case.fill(module.unwrap());
        let map = case.leaf("map", shape(&case));
        let attended = module.attend(map.clone()).unwrap();
        case.output("output", &attended.output);
        case.output("column_weights", &attended.column_weights);
        case.output("row_weights", &attended.row_weights);
        let gradients = weighted(&case, &attended.output).backward();
        case.gradients(&module, &gradients);
        case.gradient("map", &map, &gradients);
        case.close();
    }
}

const FEATURE: usize = 5;
const STATE: usize = 4;
const HIDDEN: usize = 3;
const REGIONS: usize = 4;

/// The regions of a case, and their features as a leaf.
fn regions(case: &Case) -> (Regions, Tensor<3>) {
    let counts: Vec<usize> = serde_json::from_value(case.description["counts"].clone()).unwrap();
    let features = case.leaf("features", [counts.len(), REGIONS, FEATURE]);
    let keep = PaddingMask::from_lengths(&counts, REGIONS, &device());
    (Regions::new(features.clone(), keep).unwrap(), features)
}

#[test]
fn caption_attention() {
    let golden = golden();
    let cases = golden.cases("caption");
    assert_eq!(cases.len(), 3);
    for mut case in cases {
        let module = CaptionAttentionConfig::new(FEATURE, STATE, HIDDEN).init(&mut initializer());
        let module = case.fill(module.unwrap());
        let (regions, features) = regions(&case);
        let state = case.leaf("state", [features.dims()[0], STATE]);
        let prepared = module.prepare(&regions).unwrap();
        let attended = module.forward(state.clone(), &prepared).unwrap();
        case.output("context", &attended.context);
        case.output("weights", &attended.weights);
        let gradients = weighted(&case, &attended.context).backward();
        case.gradients(&module, &gradients);
        case.gradient("features", &features, &gradients);
        case.gradient("state", &state, &gradients);
        case.close();
    }
}

#[test]
fn question_attention() {
    let golden = golden();
    let cases = golden.cases("question");
    assert_eq!(cases.len(), 3);
    for mut case in cases {
        let module = QuestionAttentionConfig::new(FEATURE, STATE, HIDDEN).init(&mut initializer());
        let module = case.fill(module.unwrap());
        let (regions, features) = regions(&case);
        let question = case.leaf("question", [features.dims()[0], STATE]);
        let attended = module.forward(question.clone(), &regions).unwrap();
        case.output("context", &attended.context);
        case.output("weights", &attended.weights);
        let gradients = weighted(&case, &attended.context).backward();
        case.gradients(&module, &gradients);
        case.gradient("features", &features, &gradients);
        case.gradient("question", &question, &gradients);
        case.close();
    }
}

#[test]
fn answers() {
    let golden = golden();
    let mut case = golden.cases("answer").pop().unwrap();
    let module = AnswerHeadConfig::new(STATE, FEATURE, HIDDEN, 6).init(&mut initializer());
    let module = case.fill(module.unwrap());
    let question = case.leaf("question", [3, STATE]);
    let context = case.leaf("context", [3, FEATURE]);
    let answers = module.forward(question.clone(), context.clone()).unwrap();
    let logits = module.logits(question.clone(), context.clone()).unwrap();
    case.output("answers", &answers);
    case.output("logits", &logits);
    let gradients = weighted(&case, &answers).backward();
    case.gradients(&module, &gradients);
    case.gradient("question", &question, &gradients);
    case.gradient("context", &context, &gradients);
    case.close();
}

#[test]
fn patches() {
    let golden = golden();
    let cases = golden.cases("patches");
    assert_eq!(cases.len(), 3);
    for mut case in cases {
        let [image, patch] = ["image", "patch"].map(|field| sizes(&case.description[field]));
        let module = PatchEmbeddingConfig::new(image, patch, 3, 4).init(&mut initializer());
        let module = case.fill(module.unwrap());
        let image = case.leaf("image", [2, 3, image[0], image[1]]);
        let tokens = module.forward(image.clone()).unwrap();
        case.output("tokens", &tokens);
        let gradients = weighted(&case, &tokens).backward();
        case.gradients(&module, &gradients);
        case.gradient("image", &image, &gradients);
        case.close();
    }
}
