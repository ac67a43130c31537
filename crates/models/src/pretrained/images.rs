//! Classifiers of images that others have trained: ViT (Dosovitskiy et al. 2020), DeiT (Touvron et al. 2020) and ResNet (He et al.
//! 2015), read into the networks that are trained here, so that they are looked at and trained on like those.
//!
//! | `model_type` | here | told apart |
//! |---|---|---|
//! | `vit` | [`VisionTransformer`](crate::image::vit::VisionTransformer) | |
//! | `deit` | the same | a distillation token with scores of its own; token and position are added up |
//! | `resnet` | [`ResNet`](crate::image::resnet::ResNet) | blocks of two 3x3 or of 1x1, 3x3, 1x1 convolutions |
//!
//! How pixels become numbers stands in `preprocessor_config.json`: size, filter, what is cut out, means and deviations.

use regard_config::AnyConfig;
use regard_kernels::{
    matmul::Storage,
    stack::{Activation, Block, FeedForward, Norms, SelfAttention, Sizes},
};
use regard_nn::weights::{Array, Arrays};

use super::{
    config::Config,
    error::PretrainedError,
    families::activation,
    folder::{Folder, Names},
    source::{Expected, Matrix, Norm, StackSource, expect_layers},
    trainable,
};
use crate::image::{ImageSizes, ResNetConfig, VisionTransformerConfig};

/// The values of `model_type`.
const KINDS: [&str; 3] = ["vit", "deit", "resnet"];

const PREPROCESSOR: &str = "preprocessor_config.json";

const VIT: Names<'static> = Names {
    prefixes: &["vit.", "deit."],
    renamed: &[],
    ignored: &["*pooler.*", "*mask_token"],
};
const RESNET: Names<'static> = Names {
    prefixes: &["resnet."],
    renamed: &[],
    ignored: &["*num_batches_tracked"],
};

/// A classifier of images as it is read from a folder.
#[derive(Debug)]
pub struct ImageModel {
    /// The name of its architecture here: `vit` or `resnet`.
    pub kind: &'static str,
    /// A [`VisionTransformerConfig`] or a [`ResNetConfig`].
    pub config: Box<dyn AnyConfig>,
    /// Images and number of classes.
    pub sizes: ImageSizes,
    /// The names of the classes.
    pub labels: Vec<String>,
    /// The weights, by their names here.
    pub arrays: Arrays,
    /// How pixels become numbers.
    pub preparation: ImagePreparation,
}

/// How an image is brought to a size and becomes numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct ImagePreparation {
    /// What is done to get the size.
    pub resizing: Resizing,
    /// Whether it is resized by bicubic interpolation, in place of bilinear.
    pub bicubic: bool,
    /// The mean of each channel, of pixels from 0 to 1.
    pub mean: Vec<f32>,
    /// The deviation of each channel.
    pub deviation: Vec<f32>,
}

/// How an image gets its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resizing {
    /// It is stretched to the size.
    Stretch,
    /// Its shorter side gets this length, and the middle is cut out.
    Shorter(usize),
}

/// Whether a folder has a classifier of images.
pub fn holds_images(folder: &Folder) -> bool {
    let kind = folder.config().text("model_type");
    kind.is_ok_and(|kind| KINDS.contains(&kind))
}

impl ImageModel {
    /// Reads a folder.
    ///
    /// # Errors
    /// [`PretrainedError`]: another `model_type`, a network that has no form here, weights that are missing, left over or misshapen.
    pub fn open(folder: &Folder) -> Result<Self, PretrainedError> {
        let config = folder.config();
        let kind = config.one_of("model_type", &KINDS)?;
        let channels = config.size_or("num_channels", 3)?;
        if !matches!(channels, 1 | 3) {
            return Err(config.refuse("num_channels", "1 (grey) or 3 (red, green, blue)"));
        }
        let labels = config.labels()?;
        let processor = Config::read_file(folder.path().join(PREPROCESSOR))?;
        match kind {
            0 => vision_transformer(folder, &processor, channels, labels, false),
            1 => vision_transformer(folder, &processor, channels, labels, true),
            _ => residual_network(folder, &processor, channels, labels),
        }
    }
}

impl ImagePreparation {
    /// Reads the configuration of a preprocessor, and the size of the images that it gives.
    fn of(config: &Config, channels: usize) -> Result<(Self, [usize; 2]), PretrainedError> {
        let (shorter, stretched) = size(config, "size")?;
        let crop = match config.flag_or("do_center_crop", config.has("crop_size"))? {
            true => size(config, "crop_size")?.1,
            false => None,
        };
        // ConvNext's preprocessor, which ResNet has too: small sizes are cut out of the middle of a larger image.
        let share = config.positive_or("crop_pct", 0.875)?;
        let (resizing, size) = match (shorter, stretched, crop) {
            (Some(shorter), _, Some(crop)) => (Resizing::Shorter(shorter), crop),
            (Some(shorter), _, None) if shorter < 384 => {
                let larger = (shorter as f64 / share) as usize;
                (Resizing::Shorter(larger), [shorter; 2])
            }
            (Some(shorter), _, None) => (Resizing::Stretch, [shorter; 2]),
            (None, Some([height, width]), Some(crop)) if height == width => {
                (Resizing::Shorter(height), crop)
            }
            (None, Some(size), None) => (Resizing::Stretch, size),
            _ => return Err(config.refuse("size", "a size, or that of the shorter side")),
        };
        let filter = config.count_or("resample", 2)?;
        if !matches!(filter, 2 | 3) {
            return Err(config.refuse("resample", "2 (bilinear) or 3 (bicubic)"));
        }
        let usual = 1.0 / 255.0;
        let factor = config.positive_or("rescale_factor", usual)?;
        if (factor / usual - 1.0).abs() > 1e-3 || !config.flag_or("do_rescale", true)? {
            return Err(config.refuse("rescale_factor", "1 / 255, with do_rescale"));
        }
        let normalized = config.flag_or("do_normalize", true)?;
        let numbers = |key: &str, default: f64| {
            let found = match normalized {
                true => config.floats(key)?,
                false => vec![default; channels],
            };
            match found.len() == channels {
                true => Ok(found.into_iter().map(|number| number as f32).collect()),
                false => {
                    Err(config.refuse(key, format!("{channels} numbers, one for each channel")))
                }
            }
        };
        let preparation = Self {
            resizing,
            bicubic: filter == 3,
            mean: numbers("image_mean", 0.0)?,
            deviation: numbers("image_std", 1.0)?,
        };
        Ok((preparation, size))
    }
}

/// The length of the shorter side, or height and width, that a key names.
fn size(
    config: &Config,
    key: &str,
) -> Result<(Option<usize>, Option<[usize; 2]>), PretrainedError> {
    if config.value(key).is_some_and(serde_json::Value::is_u64) {
        return Ok((None, Some([config.size(key)?; 2])));
    }
    let Some(section) = config.section(key)? else {
        return Err(config.refuse(key, "a size in pixels"));
    };
    match section.has("shortest_edge") {
        true => Ok((Some(section.size("shortest_edge")?), None)),
        false => Ok((
            None,
            Some([section.size("height")?, section.size("width")?]),
        )),
    }
}

fn vision_transformer(
    folder: &Folder,
    processor: &Config,
    channels: usize,
    labels: Vec<String>,
    distilled: bool,
) -> Result<ImageModel, PretrainedError> {
    let config = folder.config();
    let (preparation, size) = ImagePreparation::of(processor, channels)?;
    let model = config.size("hidden_size")?;
    let layers = config.size("num_hidden_layers")?;
    expect_layers(folder, "num_hidden_layers", layers)?;
    let heads = config.size("num_attention_heads")?;
    if !model.is_multiple_of(heads) {
        let expected = format!("a divisor of hidden_size ({model})");
        return Err(config.refuse("num_attention_heads", expected));
    }
    let inner = config.size("intermediate_size")?;
    let epsilon = config.positive_or("layer_norm_eps", 1e-12)?;
    if activation(config, "hidden_act", "gelu")? != Activation::Gelu {
        return Err(config.refuse("hidden_act", "\"gelu\""));
    }
    let patch = config.size("patch_size")?;
    let trained = config.size("image_size")?;
    let sides = [trained, size[0], size[1]];
    if size != [trained; 2] || sides.iter().any(|side| !side.is_multiple_of(patch)) {
        let expected =
            format!("a multiple of patch_size ({patch}), and the size in {PREPROCESSOR}");
        return Err(config.refuse("image_size", expected));
    }
    let bias = config.flag_or("qkv_bias", true)?;
    let block = |layer: usize| {
        let at = |name: &str| format!("encoder.layer.{layer}.{name}");
        let square = |name: &str, bias| Matrix::linear(&at(name), [model; 2], bias);
        let norms = |name: &str| Norms::before(Norm::layer(at(name), model, epsilon));
        Block {
            attention: SelfAttention {
                query_key_value: square("attention.attention.query", bias)
                    .beside(square("attention.attention.key", bias))
                    .beside(square("attention.attention.value", bias)),
                output: square("attention.output.dense", true),
                query_norm: None,
                key_norm: None,
                scale: None,
                window: None,
                rotation: None,
                global: None,
                norms: norms("layernorm_before"),
            },
            cross: None,
            feed_forward: FeedForward {
                inner: Matrix::linear(&at("intermediate.dense"), [model, inner], true),
                activation: Activation::Gelu,
                gated: false,
                outer: Matrix::linear(&at("output.dense"), [inner, model], true),
                norms: norms("layernorm_after"),
                parallel: false,
            },
        }
    };
    let stack = StackSource {
        sizes: Sizes {
            causal: false,
            ..Sizes::new(model, heads, heads, model / heads)
        },
        blocks: (0..layers).map(block).collect(),
        last_norm: Some(Norm::layer("layernorm", model, epsilon)),
        rotations: vec![],
        relative: None,
    };
    stack.expect_head(folder)?;
    let head = |name: &str| Matrix::linear(name, [model, labels.len()], true);
    let heads_of = match distilled {
        true => vec![head("cls_classifier"), head("distillation_classifier")],
        false => vec![head("classifier")],
    };
    let patches = (trained / patch).pow(2);
    let marks = heads_of.len();
    let mut expected = Expected::default().stack(&stack);
    for head in &heads_of {
        expected = expected.matrix(Some(head));
    }
    let mut single =
        |name: &str, shape: &[usize]| expected.0.push((name.to_owned(), shape.to_vec()));
    single("embeddings.cls_token", &[1, 1, model]);
    if distilled {
        single("embeddings.distillation_token", &[1, 1, model]);
    }
    single(
        "embeddings.position_embeddings",
        &[1, marks + patches, model],
    );
    let projection = "embeddings.patch_embeddings.projection";
    single(
        &format!("{projection}.weight"),
        &[model, channels, patch, patch],
    );
    single(&format!("{projection}.bias"), &[model]);
    let weights = expected.weights(folder, &VIT)?;

    let numbers = |name: &str| -> Result<Vec<f32>, PretrainedError> {
        Ok(weights.read(name)?.values.into_f32())
    };
    let mut arrays = Arrays::new();
    let mut put = |name: &str, shape: &[usize], values: Vec<f32>| {
        let shape = shape.to_vec();
        arrays.insert(name.to_owned(), Array { shape, values });
    };
    let positions = numbers("embeddings.position_embeddings")?;
    let (class, rest) = positions.split_at(model);
    let patched = [class, &rest[(marks - 1) * model..]].concat();
    put("embedding.positions", &[1 + patches, model], patched);
    put(
        "embedding.class_token",
        &[model],
        numbers("embeddings.cls_token")?,
    );
    if distilled {
        let token = numbers("embeddings.distillation_token")?;
        let token = token
            .iter()
            .zip(rest)
            .map(|(token, position)| token + position);
        put("distillation.token", &[model], token.collect());
    }
    let window = channels * patch * patch;
    let kernel = transposed(&numbers(&format!("{projection}.weight"))?, window);
    put("embedding.projection.weight", &[window, model], kernel);
    put(
        "embedding.projection.bias",
        &[model],
        numbers(&format!("{projection}.bias"))?,
    );
    let storage = Some(Storage::F32);
    let problem = |problem: String| PretrainedError::malformed(config.path(), problem);
    for (name, head) in ["head", "distillation.head"].iter().zip(&heads_of) {
        let head = head.read(&weights, storage)?;
        trainable::product(&mut arrays, name, &head, true).map_err(problem)?;
    }
    let stack = stack.read(&weights, storage)?;
    trainable::blocks(&mut arrays, "stack", &stack, true).map_err(problem)?;
    Ok(ImageModel {
        kind: "vit",
        config: Box::new(VisionTransformerConfig {
            patch,
            d_model: model,
            layers,
            heads,
            feed_forward: Some(inner),
            distillation: distilled,
            norm_epsilon: epsilon,
            ..VisionTransformerConfig::default()
        }),
        sizes: ImageSizes {
            channels,
            size,
            classes: labels.len(),
        },
        labels,
        arrays,
        preparation,
    })
}

/// `[columns, rows]` of `[rows, columns]`.
fn transposed(values: &[f32], columns: usize) -> Vec<f32> {
    let column = |column: usize| values[column..].iter().step_by(columns).copied();
    (0..columns).flat_map(column).collect()
}

fn residual_network(
    folder: &Folder,
    processor: &Config,
    channels: usize,
    labels: Vec<String>,
) -> Result<ImageModel, PretrainedError> {
    let config = folder.config();
    let (preparation, size) = ImagePreparation::of(processor, channels)?;
    let depths = config.sizes("depths")?;
    let bottleneck = config.one_of("layer_type", &["basic", "bottleneck"])? == 1;
    let depth = match (bottleneck, &depths[..]) {
        (false, [2, 2, 2, 2]) => 18,
        (false, [3, 4, 6, 3]) => 34,
        (true, [3, 4, 6, 3]) => 50,
        (true, [3, 4, 23, 3]) => 101,
        _ => return Err(config.refuse("depths", "those of ResNet-18, 34, 50 or 101")),
    };
    let stem = config.size_or("embedding_size", 64)?;
    let expansion = if bottleneck { 4 } else { 1 };
    let widths: Vec<usize> = (0..4).map(|stage| (stem << stage) * expansion).collect();
    if config.sizes("hidden_sizes")? != widths {
        let expected = format!("{widths:?}, from embedding_size ({stem})");
        return Err(config.refuse("hidden_sizes", expected));
    }
    for key in ["downsample_in_first_stage", "downsample_in_bottleneck"] {
        if config.flag_or(key, false)? {
            return Err(config.refuse(key, "false"));
        }
    }
    if activation(config, "hidden_act", "relu")? != Activation::Relu {
        return Err(config.refuse("hidden_act", "\"relu\""));
    }
    // Convolutions with their norms: names there and here, inputs, outputs, size of the kernel.
    let mut convolutions = vec![(
        "embedder.embedder".to_owned(),
        ["conv1".to_owned(), "bn1".to_owned()],
        [stem, channels, 7, 7],
    )];
    let mut inputs = stem;
    for (stage, (&blocks, &outputs)) in depths.iter().zip(&widths).enumerate() {
        let inside = outputs / expansion;
        for block in 0..blocks {
            let there = format!("encoder.stages.{stage}.layers.{block}");
            let here = format!("stages.{stage}.{block}");
            let mut add = |there: String, here: String, shape| {
                let names = [format!("{here}.conv"), format!("{here}.norm")];
                convolutions.push((there, names, shape));
            };
            let branch = match bottleneck {
                true => vec![
                    [inside, inputs, 1, 1],
                    [inside, inside, 3, 3],
                    [outputs, inside, 1, 1],
                ],
                false => vec![[outputs, inputs, 3, 3], [outputs, outputs, 3, 3]],
            };
            for (index, shape) in branch.into_iter().enumerate() {
                let (there, here) = (
                    format!("{there}.layer.{index}"),
                    format!("{here}.branch.{index}"),
                );
                add(there, here, shape);
            }
            if inputs != outputs || (stage > 0 && block == 0) {
                let shape = [outputs, inputs, 1, 1];
                add(format!("{there}.shortcut"), format!("{here}.skip"), shape);
            }
            inputs = outputs;
        }
    }
    const NORM: [(&str, &str); 4] = [
        ("weight", "gamma"),
        ("bias", "beta"),
        ("running_mean", "running_mean"),
        ("running_var", "running_var"),
    ];
    let mut expected = Expected::default();
    for (there, _, shape) in &convolutions {
        expected
            .0
            .push((format!("{there}.convolution.weight"), shape.to_vec()));
        for (name, _) in NORM {
            expected
                .0
                .push((format!("{there}.normalization.{name}"), vec![shape[0]]));
        }
    }
    let head = Matrix::linear("classifier.1", [inputs, labels.len()], true);
    let weights = expected.matrix(Some(&head)).weights(folder, &RESNET)?;
    let mut arrays = Arrays::new();
    let mut put = |name: String, here: String| -> Result<(), PretrainedError> {
        let stored = weights.read(&name)?;
        let array = Array {
            shape: stored.shape,
            values: stored.values.into_f32(),
        };
        arrays.insert(here, array);
        Ok(())
    };
    for (there, [conv, norm], _) in &convolutions {
        put(
            format!("{there}.convolution.weight"),
            format!("{conv}.weight"),
        )?;
        for (name, here) in NORM {
            put(
                format!("{there}.normalization.{name}"),
                format!("{norm}.{here}"),
            )?;
        }
    }
    let head = head.read(&weights, Some(Storage::F32))?;
    let problem = |problem: String| PretrainedError::malformed(config.path(), problem);
    trainable::product(&mut arrays, "fc", &head, true).map_err(problem)?;
    Ok(ImageModel {
        kind: "resnet",
        config: Box::new(ResNetConfig {
            depth,
            width: stem as f64 / 64.0,
            ..ResNetConfig::default()
        }),
        sizes: ImageSizes {
            channels,
            size,
            classes: labels.len(),
        },
        labels,
        arrays,
        preparation,
    })
}
