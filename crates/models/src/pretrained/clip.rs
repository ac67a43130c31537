//! CLIP (Radford et al. 2021): images and texts as vectors of one space.
//!
//! ```text
//! text     t = W_t norm(stack(tokens + positions))_e       a token sees those before it; e is the end mark
//! image    v = W_v norm(stack(norm(patches + positions)))_class
//! scores   s · cos(v, t)                                   s: a learned number, kept as its logarithm
//! ```
//! The towers have norms before the parts of their blocks, and as activation `x σ(1.702 x)` or GELU. The text tower is a
//! [`TextEncoder`](super::TextEncoder), the tower of images a [`VisionTransformer`](crate::image::vit::VisionTransformer) whose class scores are the image's vector.
//!
//! Configurations may leave out what is as in the first published model, ViT-B/32.

use super::{
    config::Config,
    embedding::{EmbeddingSource, Positions},
    encoder::{EndMark, EndVector, GlobalTokens, TextEncoderSource},
    error::PretrainedError,
    folder::{Folder, Names},
    images::{ImageModel, processor},
    source::Matrix,
    vit::{self, Blocks, Tower, Usual, Vision},
};

/// The value of `model_type`.
const KIND: &str = "clip";
/// The logarithm of `s`.
const SCALE: &str = "logit_scale";
/// The largest logarithm of `s`: training clips it at that of 100, and `f32` ends at 88.
const LARGEST_SCALE: f32 = 80.0;
/// The end mark of configurations that do not know their tokenizer's.
const UNKNOWN_END: u32 = 2;

const TEXT: Blocks = Blocks {
    layer: "text_model.encoder.layers",
    last_norm: "text_model.final_layer_norm",
    parts: PARTS,
};

const PARTS: [&str; 8] = [
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.out_proj",
    "layer_norm1",
    "mlp.fc1",
    "mlp.fc2",
    "layer_norm2",
];

const IMAGE: Vision = Vision {
    blocks: Blocks {
        layer: "vision_model.encoder.layers",
        last_norm: "vision_model.post_layernorm",
        parts: PARTS,
    },
    patches: ("vision_model.embeddings.patch_embedding", false),
    embedding_norm: Some("vision_model.pre_layrnorm"),
    class_token: "vision_model.embeddings.class_embedding",
    distillation_token: None,
    // A table of embeddings.
    positions: "vision_model.embeddings.position_embedding.weight",
    broadcast: false,
    heads: &["visual_projection"],
    head_biases: false,
    names: Names {
        prefixes: &[],
        renamed: &[],
        ignored: &["*position_ids", "text_model.*", "text_projection.*", SCALE],
    },
};

/// The tower of images as it is read from a folder; that of texts is a [`TextEncoder`](super::TextEncoder).
#[derive(Debug)]
pub struct ClipImages {
    /// A vision Transformer without labels, whose class scores are the vector of an image.
    pub tower: ImageModel,
    /// `s`
    pub scale: f32,
}

/// Whether a folder has a model of images and texts.
pub fn holds_clip(folder: &Folder) -> bool {
    let kind = folder.config().text("model_type");
    kind.is_ok_and(|kind| kind == KIND)
}

impl ClipImages {
    /// Reads a folder.
    ///
    /// # Errors
    /// [`PretrainedError`]: another `model_type`, a network that has no form here, weights of the tower that are missing, left over or
    /// misshapen.
    pub fn open(folder: &Folder) -> Result<Self, PretrainedError> {
        let config = folder.config();
        config.one_of("model_type", &[KIND])?;
        let section = section(config, "vision_config")?;
        let usual = Usual {
            sizes: [768, 12, 12, 3072],
            ..USUAL
        };
        let tower = Tower::of(folder, &section, &usual)?;
        let sides = [
            vit::side(&section, "image_size", 224)?,
            vit::side(&section, "patch_size", 32)?,
        ];
        let processor = processor(folder)?;
        let outputs = (projected(config)?, vec![]);
        let tower = vit::read(folder, &section, &processor, tower, sides, outputs, IMAGE)?;
        let names = Names {
            ignored: &["*_model.*", "*_projection.*"],
            ..Names::default()
        };
        let weights = folder.weights([(SCALE.to_owned(), vec![])], &names)?;
        let logarithm = weights.read(SCALE)?.values.into_f32();
        match logarithm.first() {
            Some(&logarithm) if logarithm.abs() <= LARGEST_SCALE => Ok(Self {
                tower,
                scale: logarithm.exp(),
            }),
            found => {
                let problem = format!(
                    "{SCALE} is {found:?}; expected a number from -{LARGEST_SCALE} to {LARGEST_SCALE}"
                );
                Err(PretrainedError::malformed(folder.path(), problem))
            }
        }
    }
}

/// The text tower of a configuration.
pub(super) fn text(folder: &Folder) -> Result<TextEncoderSource, PretrainedError> {
    let config = folder.config();
    let section = section(config, "text_config")?;
    let tower = Tower::of(folder, &section, &USUAL)?;
    let model = tower.model;
    let vocabulary = section.size_or("vocab_size", 49_408)?;
    let context = section.size_or("max_position_embeddings", 77)?;
    let end = match section.ids_or("eos_token_id", vec![49_407])?[..] {
        [UNKNOWN_END] => EndMark::Largest,
        [end] => EndMark::Id(end),
        _ => return Err(section.refuse("eos_token_id", "the id of a token")),
    };
    let table = |name: &str, rows: usize| {
        let name = format!("text_model.embeddings.{name}_embedding");
        Matrix::table(&name, [rows, model])
    };
    Ok(TextEncoderSource {
        embedding: EmbeddingSource {
            positions: Positions::Table {
                table: table("position", context),
                first: 0,
            },
            ..EmbeddingSource::new(table("token", vocabulary), context)
        },
        stack: tower.stack(&TEXT, true),
        pooler: None,
        head: None,
        vector: Some(EndVector {
            projection: Matrix::linear("text_projection", [model, projected(config)?], false),
            end,
        }),
        global: GlobalTokens::None,
        names: Names {
            prefixes: &[],
            renamed: &[],
            ignored: &[
                "*position_ids",
                "vision_model.*",
                "visual_projection.*",
                SCALE,
            ],
        },
    })
}

/// What the text tower of the first model has.
const USUAL: Usual = Usual {
    sizes: [512, 12, 8, 2048],
    epsilon: 1e-5,
    activation: "quick_gelu",
};

/// A tower's section. Older files may have a second one, whose values, and its usual ones for what it leaves out, replace those of the
/// first.
fn section(config: &Config, key: &str) -> Result<Config, PretrainedError> {
    let found = match config.section(&format!("{key}_dict"))? {
        None => config.section(key)?,
        second => second,
    };
    found.ok_or_else(|| config.refuse(key, "an object with the sizes of the tower"))
}

/// The size of the common space.
fn projected(config: &Config) -> Result<usize, PretrainedError> {
    let size = config.size_or("projection_dim", 512)?;
    match size {
        1 => Err(config.refuse("projection_dim", "at least 2")),
        _ => Ok(size),
    }
}
