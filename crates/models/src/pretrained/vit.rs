//! Blocks with norms before their parts, as ViT (Dosovitskiy et al. 2020), DeiT (Touvron et al. 2020) and CLIP (Radford et al. 2021) have
//! them, and the vision Transformers of the three by the names of their weights.

use regard_kernels::{
    MAX_DIM,
    matmul::Storage,
    stack::{Block, FeedForward, Norms, SelfAttention, Sizes},
};
use regard_nn::{
    transformer,
    weights::{Array, Arrays},
};
use serde_json::Value;

use super::{
    classify::ClassScores,
    config::Config,
    copies::transposed,
    error::PretrainedError,
    families::activation,
    folder::{Folder, Names},
    images::{ImageModel, ImagePreparation, channels},
    source::{Expected, Matrix, Norm, StackSource, expect_layers},
    trainable,
};
use crate::image::{ImageSizes, VisionTransformerConfig};

/// How a family names the parts of its blocks.
pub(super) struct Blocks {
    /// Before the number of a block.
    pub(super) layer: &'static str,
    /// Query, key, value, output, the norm before them, the two products of the feed-forward network, the norm before them.
    pub(super) parts: [&'static str; 8],
    /// The norm after the last block.
    pub(super) last_norm: &'static str,
}

/// How a family names the parts of its vision Transformer.
pub(super) struct Vision {
    pub(super) blocks: Blocks,
    /// The convolution that makes tokens of patches, and whether it has a bias.
    pub(super) patches: (&'static str, bool),
    /// The norm of the tokens.
    pub(super) embedding_norm: Option<&'static str>,
    /// The class token.
    pub(super) class_token: &'static str,
    /// The token of distillation.
    pub(super) distillation_token: Option<&'static str>,
    /// The positions.
    pub(super) positions: &'static str,
    /// Whether tokens and positions are stored with further dimensions of 1 in front.
    pub(super) broadcast: bool,
    /// The class scores, and those of distillation; with a token of distillation that no scores are computed from, the first alone.
    pub(super) heads: &'static [&'static str],
    /// Whether these have biases.
    pub(super) head_biases: bool,
    /// How names may differ.
    pub(super) names: Names<'static>,
}

const BLOCKS: Blocks = Blocks {
    layer: "encoder.layer",
    parts: [
        "attention.attention.query",
        "attention.attention.key",
        "attention.attention.value",
        "attention.output.dense",
        "layernorm_before",
        "intermediate.dense",
        "output.dense",
        "layernorm_after",
    ],
    last_norm: "layernorm",
};

pub(super) const VIT: Vision = Vision {
    blocks: BLOCKS,
    patches: ("embeddings.patch_embeddings.projection", true),
    embedding_norm: None,
    class_token: "embeddings.cls_token",
    distillation_token: None,
    positions: "embeddings.position_embeddings",
    broadcast: true,
    heads: &["classifier"],
    head_biases: true,
    names: Names {
        prefixes: &["vit.", "deit."],
        renamed: &[],
        ignored: &["*pooler.*", "*mask_token"],
    },
};

pub(super) const DEIT: Vision = Vision {
    distillation_token: Some("embeddings.distillation_token"),
    heads: &["cls_classifier", "distillation_classifier"],
    ..VIT
};

/// The weight of the head of a DeiT that classifies from the class token alone.
const CLASS_HEAD: &str = "classifier.weight";

/// What a configuration says of blocks.
pub(super) struct Tower {
    pub(super) model: usize,
    layers: usize,
    heads: usize,
    inner: usize,
    epsilon: f64,
    activation: transformer::Activation,
    bias: bool,
}

/// What a key means that a configuration leaves out; sizes of 0 must be there.
pub(super) struct Usual {
    /// `hidden_size`, `num_hidden_layers`, `num_attention_heads`, `intermediate_size`
    pub(super) sizes: [usize; 4],
    pub(super) epsilon: f64,
    pub(super) activation: &'static str,
}

impl Tower {
    /// Of a configuration, or a section of it.
    pub(super) fn of(
        folder: &Folder,
        config: &Config,
        usual: &Usual,
    ) -> Result<Self, PretrainedError> {
        const KEYS: [&str; 4] = [
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "intermediate_size",
        ];
        let mut sizes = [0; 4];
        for ((size, key), usual) in sizes.iter_mut().zip(KEYS).zip(usual.sizes) {
            *size = match usual {
                0 => config.size(key)?,
                usual => config.size_or(key, usual)?,
            };
        }
        let [model, layers, heads, inner] = sizes;
        expect_layers(folder, config, KEYS[1], layers)?;
        if !model.is_multiple_of(heads) {
            let expected = format!("a divisor of hidden_size ({model})");
            return Err(config.refuse(KEYS[2], expected));
        }
        if model / heads > MAX_DIM {
            let expected = format!("heads of at most {MAX_DIM} features of hidden_size ({model})");
            return Err(config.refuse(KEYS[2], expected));
        }
        let kind = activation(config, "hidden_act", usual.activation)?;
        let activation = trainable::ACTIVATIONS
            .into_iter()
            .find(|known| known.kind() == kind && !known.is_gated());
        Ok(Self {
            model,
            layers,
            heads,
            inner,
            epsilon: config.positive_or("layer_norm_eps", usual.epsilon)?,
            activation: activation
                .ok_or_else(|| config.refuse("hidden_act", "one that is trained here"))?,
            bias: config.flag_or("qkv_bias", true)?,
        })
    }

    pub(super) fn norm(&self, name: impl Into<String>) -> Norm {
        Norm::layer(name, self.model, self.epsilon)
    }

    /// The blocks and the norm after them.
    pub(super) fn stack(&self, words: &Blocks, causal: bool) -> StackSource {
        let [query, key, value, output, own_norm, first, second, norm] = words.parts;
        let (model, inner) = (self.model, self.inner);
        let block = |layer: usize| {
            let at = |name: &str| format!("{}.{layer}.{name}", words.layer);
            let square = |name: &str, bias| Matrix::linear(&at(name), [model; 2], bias);
            let norms = |name: &str| Norms::before(self.norm(at(name)));
            Block {
                attention: SelfAttention {
                    query_key_value: square(query, self.bias)
                        .beside(square(key, self.bias))
                        .beside(square(value, self.bias)),
                    output: square(output, true),
                    query_norm: None,
                    key_norm: None,
                    scale: None,
                    window: None,
                    rotation: None,
                    global: None,
                    norms: norms(own_norm),
                },
                cross: None,
                feed_forward: FeedForward {
                    inner: Matrix::linear(&at(first), [model, inner], true),
                    activation: self.activation.kind(),
                    gated: false,
                    outer: Matrix::linear(&at(second), [inner, model], true),
                    norms: norms(norm),
                    parallel: false,
                },
            }
        };
        StackSource {
            sizes: Sizes {
                causal,
                ..Sizes::new(model, self.heads, self.heads, model / self.heads)
            },
            blocks: (0..self.layers).map(block).collect(),
            last_norm: Some(self.norm(words.last_norm)),
            rotations: vec![],
            relative: None,
        }
    }
}

/// The side of a square that a key names by one number or two equal ones; for a missing key the `usual` one, if it is not 0.
pub(super) fn side(config: &Config, key: &str, usual: usize) -> Result<usize, PretrainedError> {
    match config.value(key) {
        None if usual > 0 => Ok(usual),
        Some(Value::Array(_)) => match config.sizes(key)?[..] {
            [height, width] if height == width => Ok(height),
            _ => Err(config.refuse(key, "a number, or two that are equal")),
        },
        _ => config.size(key),
    }
}

/// A classifier of images.
pub(super) fn classifier(
    folder: &Folder,
    processor: &Config,
    labels: Vec<String>,
    mut words: Vision,
) -> Result<ImageModel, PretrainedError> {
    let config = folder.config();
    if folder.find(CLASS_HEAD, &words.names).is_some() {
        words.heads = VIT.heads;
    }
    let usual = Usual {
        sizes: [0; 4],
        epsilon: 1e-12,
        activation: "gelu",
    };
    let tower = Tower::of(folder, config, &usual)?;
    let sides = [
        side(config, "image_size", 0)?,
        side(config, "patch_size", 0)?,
    ];
    let scores = ClassScores::of(config, labels.len())?;
    let outputs = (labels.len(), labels);
    let found = read(folder, config, processor, tower, sides, outputs, words)?;
    Ok(ImageModel { scores, ..found })
}

/// The vision Transformer of a `config`, which may be a section, for images and patches of these `sides`; with so many `outputs`, and
/// their names.
pub(super) fn read(
    folder: &Folder,
    config: &Config,
    processor: &Config,
    tower: Tower,
    sides: [usize; 2],
    (outputs, labels): (usize, Vec<String>),
    words: Vision,
) -> Result<ImageModel, PretrainedError> {
    let channels = channels(config)?;
    let (preparation, size) = ImagePreparation::of(folder, processor, channels)?;
    let [side, patch] = sides;
    if size != [side; 2] || !side.is_multiple_of(patch) {
        let expected = format!(
            "a multiple of patch_size ({patch}), and the size that its image processor gives"
        );
        return Err(config.refuse("image_size", expected));
    }
    let model = tower.model;
    let stack = tower.stack(&words.blocks, false);
    let head = |name: &&str| Matrix::linear(name, [model, outputs], words.head_biases);
    let heads: Vec<Matrix> = words.heads.iter().map(head).collect();
    let embedding_norm = words.embedding_norm.map(|name| tower.norm(name));
    let patches = (side / patch).pow(2);
    let marks = 1 + usize::from(words.distillation_token.is_some());
    let mut expected = Expected::default()
        .stack(&stack)
        .norm(embedding_norm.as_ref());
    for head in &heads {
        expected = expected.matrix(Some(head));
    }
    let mut single = |name: &str, shape: &[usize], ones: usize| {
        let ones = if words.broadcast { ones } else { 0 };
        let shape = [&[1; 2][..ones], shape].concat();
        expected.0.push((name.to_owned(), shape));
    };
    single(words.class_token, &[model], 2);
    if let Some(name) = words.distillation_token {
        single(name, &[model], 2);
    }
    single(words.positions, &[marks + patches, model], 1);
    let (projection, bias) = words.patches;
    let kernel = [format!("{projection}.weight"), format!("{projection}.bias")];
    single(&kernel[0], &[model, channels, patch, patch], 0);
    if bias {
        single(&kernel[1], &[model], 0);
    }
    let weights = expected.weights(folder, &words.names)?;

    let numbers = |name: &str| -> Result<Vec<f32>, PretrainedError> {
        Ok(weights.read(name)?.values.into_f32())
    };
    let mut arrays = Arrays::new();
    let mut put = |name: &str, shape: &[usize], values: Vec<f32>| {
        let shape = shape.to_vec();
        arrays.insert(name.to_owned(), Array { shape, values });
    };
    let positions = numbers(words.positions)?;
    let (class, rest) = positions.split_at(model);
    let patched = [class, &rest[(marks - 1) * model..]].concat();
    put("embedding.positions", &[1 + patches, model], patched);
    let class_token = numbers(words.class_token)?;
    put("embedding.class_token", &[model], class_token);
    if let Some(name) = words.distillation_token {
        let token = numbers(name)?;
        let token = token
            .iter()
            .zip(rest)
            .map(|(token, position)| token + position);
        put("distillation.token", &[model], token.collect());
    }
    let window = channels * patch * patch;
    let flat = transposed(&numbers(&kernel[0])?, window);
    put("embedding.projection.weight", &[window, model], flat);
    let bias = match bias {
        true => numbers(&kernel[1])?,
        false => vec![0.0; model],
    };
    put("embedding.projection.bias", &[model], bias);
    let storage = Some(Storage::F32);
    let problem = |problem: String| PretrainedError::malformed(config.path(), problem);
    for (name, head) in ["head", "distillation.head"].iter().zip(&heads) {
        let head = head.read(&weights, storage)?;
        trainable::product(&mut arrays, name, &head, true).map_err(problem)?;
    }
    if heads.len() < marks {
        // Scores are the mean of both tokens': twice those of the class token, and none of the other.
        for end in ["weight", "bias"] {
            let Some(class) = arrays.get_mut(&format!("head.{end}")) else {
                continue;
            };
            let none = Array {
                shape: class.shape.clone(),
                values: vec![0.0; class.values.len()],
            };
            class.values.iter_mut().for_each(|value| *value *= 2.0);
            arrays.insert(format!("distillation.head.{end}"), none);
        }
    }
    let normed = embedding_norm.is_some();
    let norm = embedding_norm.map(|norm| norm.read(&weights)).transpose()?;
    trainable::norm(&mut arrays, "norm", norm.as_ref());
    let stack = stack.read(&weights, storage)?;
    trainable::blocks(&mut arrays, "stack.", &stack, true).map_err(problem)?;
    Ok(ImageModel {
        kind: "vit",
        config: Box::new(VisionTransformerConfig {
            patch,
            d_model: model,
            layers: tower.layers,
            heads: tower.heads,
            feed_forward: Some(tower.inner),
            distillation: words.distillation_token.is_some(),
            activation: tower.activation,
            embedding_norm: normed,
            norm_epsilon: tower.epsilon,
            ..VisionTransformerConfig::default()
        }),
        sizes: ImageSizes {
            channels,
            size,
            classes: outputs,
        },
        labels,
        scores: ClassScores::Softmax,
        arrays,
        preparation,
    })
}
