//! Outputs and gradients of multi-head attention: `../golden/heads_golden.py` and its output.

use crate::support::{Case, GoldenFile, device};
use regard_nn::{
    AttentionOptions, Observe, Path,
    heads::{Gate, MultiHead, MultiHeadConfig, ProjectionLayout, QueryKeyNormKind},
    initialize::Initializer,
    mask::{Mask, PaddingMask},
    position::{Layout, PositionConfig, RelativeBucketsConfig, RotaryConfig},
};

const BATCH: usize = 2;
const LENGTH: usize = 5;
const KEYS: usize = 7;

fn golden() -> GoldenFile {
    GoldenFile::read(include_bytes!("../golden/heads.safetensors"))
}

fn layer(case: &Case, config: &MultiHeadConfig) -> MultiHead {
    case.fill(config.init(&mut Initializer::new(1, &device())).unwrap())
}

fn count(case: &Case, field: &str) -> usize {
    case.number(field) as usize
}

/// `torch.nn.MultiheadAttention`: one matrix or three, with and without biases and masks.
#[test]
fn torch_modules() {
    let golden = golden();
    let cases = golden.cases("torch");
    assert_eq!(cases.len(), 8);
    for mut case in cases {
        let flag = |field: &str| case.description[field].as_bool().unwrap();
        let (fused, bias, masked) = (flag("fused"), flag("bias"), flag("masked"));
        let source_size = case.description["source"]
            .as_u64()
            .map(|size| size as usize);
        let (model, length) = (count(&case, "model"), count(&case, "length"));
        let config = MultiHeadConfig {
            source_size: source_size.filter(|&size| size != model),
            projection: match fused {
                true => ProjectionLayout::Fused,
                false => ProjectionLayout::Separate,
            },
            input_bias: bias,
            output_bias: bias,
            ..MultiHeadConfig::new(model, count(&case, "heads"))
        };
        let layer = layer(&case, &config);
        let x = case.leaf("x", [BATCH, length, model]);
        let mut call = AttentionOptions::new(Observe::Weights);
        let keys = source_size.map_or(length, |_| KEYS);
        if masked {
            call = call.mask(Mask::padding(PaddingMask::from_lengths(
                &[keys, keys - 2],
                keys,
                &device(),
            )));
        }
        let y = source_size.map(|size| case.leaf("y", [BATCH, KEYS, size]));
        let read = match &y {
            None if masked => layer.forward(x.clone(), call.mask(Mask::causal())),
            None => layer.forward(x.clone(), call),
            Some(y) => layer.forward_source(x.clone(), &layer.source(y.clone()).unwrap(), call),
        };
        let read = read.unwrap();
        case.output("output", &read.output);
        case.output("weights", &read.attended.weights.unwrap());
        let loss = read.output * case.constant("loss", [BATCH, length, model]);
        let gradients = loss.sum().backward();
        case.gradients(&layer, &gradients);
        case.gradient("x", &x, &gradients);
        if let Some(y) = y {
            case.gradient("y", &y, &gradients);
        }
        case.close();
    }
}

/// `keras.layers.MultiHeadAttention` and `GroupQueryAttention`.
#[test]
fn keras_layers() {
    let golden = golden();
    let cases = golden.cases("keras");
    assert_eq!(cases.len(), 5);
    for mut case in cases {
        let source_size = case.description["source"]
            .as_u64()
            .map(|size| size as usize);
        let model = count(&case, "model");
        let config = MultiHeadConfig {
            source_size,
            head_size: Some(count(&case, "size")),
            value_size: Some(count(&case, "value_size")),
            ..MultiHeadConfig::grouped_query(model, count(&case, "heads"), count(&case, "groups"))
        };
        let layer = layer(&case, &config);
        let x = case.leaf("x", [BATCH, LENGTH, model]);
        let y = source_size.map(|size| case.leaf("y", [BATCH, KEYS, size]));
        let mut call = AttentionOptions::new(Observe::Weights);
        if case.description["causal"].as_bool().unwrap() {
            call = call.mask(Mask::causal());
        }
        let read = match &y {
            None => layer.forward(x.clone(), call),
            Some(y) => layer.forward_source(x.clone(), &layer.source(y.clone()).unwrap(), call),
        };
        let read = read.unwrap();
        case.output("output", &read.output);
        case.output("weights", &read.attended.weights.unwrap());
        let loss = read.output * case.constant("loss", [BATCH, LENGTH, model]);
        let gradients = loss.sum().backward();
        case.gradients(&layer, &gradients);
        case.gradient("x", &x, &gradients);
        if let Some(y) = y {
            case.gradient("y", &y, &gradients);
        }
        case.close();
    }
}

/// Causal self-attention against a golden output, by the usual path and by plain operations.
fn self_attention(case: &mut Case, config: &MultiHeadConfig, path: Path, weights: bool) {
    let layer = layer(case, config);
    let shape = [BATCH, LENGTH, config.d_model];
    let x = case.leaf("x", shape);
    let observe = if weights {
        Observe::Weights
    } else {
        Observe::Nothing
    };
    let call = AttentionOptions::new(observe)
        .mask(Mask::causal())
        .path(path);
    let read = layer.forward(x.clone(), call).unwrap();
    case.output("output", &read.output);
    if weights {
        case.output("weights", &read.attended.weights.unwrap());
    }
    let gradients = (read.output * case.constant("loss", shape))
        .sum()
        .backward();
    case.gradients(&layer, &gradients);
    case.gradient("x", &x, &gradients);
}

/// `scaled_dot_product_attention(enable_gqa=True)`: heads that share keys and values.
#[test]
fn grouped_queries() {
    let golden = golden();
    for path in [Path::Auto, Path::Plain] {
        let cases = golden.cases("grouped");
        assert_eq!(cases.len(), 7);
        for mut case in cases {
            let config = MultiHeadConfig {
                head_size: Some(count(&case, "size")),
                value_size: Some(count(&case, "value_size")),
                ..MultiHeadConfig::grouped_query(
                    count(&case, "model"),
                    count(&case, "heads"),
                    count(&case, "groups"),
                )
            };
            self_attention(&mut case, &config, path, false);
            case.close();
        }
    }
}

/// Four heads with one addition each: positions, norms, talking heads, gates.
#[test]
fn variants() {
    let golden = golden();
    for path in [Path::Auto, Path::Plain] {
        let cases = golden.cases("variant");
        assert_eq!(cases.len(), 24);
        for mut case in cases {
            let mut config = MultiHeadConfig {
                head_size: Some(6),
                ..MultiHeadConfig::grouped_query(8, 4, count(&case, "groups"))
            };
            let rotary = |layout| {
                PositionConfig::Rotary(RotaryConfig {
                    layout,
                    ..RotaryConfig::new(4)
                })
            };
            let rms = Some(QueryKeyNormKind::Rms { epsilon: 1e-6 });
            match case.text("variant") {
                "rms" => config.query_key_norm = rms,
                "rms-rotary" => {
                    config.query_key_norm = rms;
                    config.position = rotary(Layout::HalfSplit);
                }
                "l2" => config.query_key_norm = Some(QueryKeyNormKind::L2 { length: 9 }),
                "rotary" => config.position = rotary(Layout::HalfSplit),
                "rotary-interleaved" => config.position = rotary(Layout::Interleaved),
                "alibi" => config.position = PositionConfig::Alibi,
                "buckets" => {
                    config.position = PositionConfig::Buckets(RelativeBucketsConfig {
                        buckets: 4,
                        max_distance: 8,
                        bidirectional: false,
                    });
                }
                "relative" => {
                    config.position = PositionConfig::Relative {
                        max_distance: 2,
                        values: true,
                    };
                }
                "relative-keys" => {
                    config.position = PositionConfig::Relative {
                        max_distance: 2,
                        values: false,
                    };
                }
                "talking" => config.talking_heads = true,
                "headwise" => config.gate = Some(Gate::Headwise),
                "elementwise" => config.gate = Some(Gate::Elementwise),
                other => panic!("{other}"),
            }
            self_attention(&mut case, &config, path, true);
            case.close();
        }
    }
}
