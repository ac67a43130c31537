//! DETR (Carion et al. 2020): detectors that others have trained, read into [`Detr`](crate::image::detr::Detr).
//!
//! | part | names of its weights |
//! |---|---|
//! | backbone | timm's (`use_timm_backbone`), or those of the ResNet of transformers |
//! | boxes and classes | `DetrForObjectDetection` |
//! | masks | `DetrForSegmentation`: the same with `mask_head` and `bbox_attention` |
//!
//! Norms of the backbone are frozen there; used without training, as here, they are the same.

use regard_kernels::{MAX_DIM, stack::Activation};
use regard_nn::weights::Arrays;

use super::{
    config::Config,
    copies::Copies,
    error::PretrainedError,
    families::activation,
    folder::{Folder, Names},
    images::{ImagePreparation, channels, processor},
    resnet::{Library, Residual},
    source::expect_layers,
};
use crate::image::{BackboneConfig, DetectorSizes, DetrConfig};

/// The value of `model_type`.
pub(super) const KIND: &str = "detr";
/// More channels than the first convolution of any backbone has.
const MOST_CHANNELS: usize = 1024;
/// Before the names of the backbone's weights.
const BACKBONE: &str = "backbone.conv_encoder.model.";

const NAMES: Names<'static> = Names {
    prefixes: &["detr.model.", "model.", "detr."],
    renamed: &[],
    ignored: &["*num_batches_tracked"],
};

/// A detector as it is read from a folder.
#[derive(Debug)]
pub struct DetectorModel {
    /// Sizes and choices.
    pub config: DetrConfig,
    /// Images and number of classes. Images are at most so large; a model whose preparation is
    /// [`Within`](super::Resizing::Within) or [`Inside`](super::Resizing::Inside) reads them in their own shape.
    pub sizes: DetectorSizes,
    /// The names of the classes.
    pub labels: Vec<String>,
    /// The weights, by their names here.
    pub arrays: Arrays,
    /// How pixels become numbers.
    pub preparation: ImagePreparation,
}

/// Whether a folder has a detector.
pub fn holds_detector(folder: &Folder) -> bool {
    folder
        .config()
        .text("model_type")
        .is_ok_and(|kind| kind == KIND)
}

impl DetectorModel {
    /// Reads a folder.
    ///
    /// # Errors
    /// [`PretrainedError`]: another `model_type`, a network that has no form here, weights that are missing, left over or misshapen.
    pub fn open(folder: &Folder) -> Result<Self, PretrainedError> {
        let config = folder.config();
        config.one_of("model_type", &[KIND])?;
        let channels = channels(config)?;
        let processor = processor(folder)?;
        let (preparation, size) = ImagePreparation::of_detector(folder, &processor, channels)?;
        let labels = config.labels()?;
        let (network, library, dilation) = backbone(folder)?;
        let model = stated(config, "d_model");
        let d = config.size_or(model, 256)?;
        if !d.is_multiple_of(4) {
            return Err(config.refuse(model, "a multiple of 4"));
        }
        let [encoder, decoder] = ["encoder", "decoder"].map(|side| -> Result<_, PretrainedError> {
            let [layers, heads, inner] =
                ["layers", "attention_heads", "ffn_dim"].map(|end| format!("{side}_{end}"));
            let [layers, heads] = [&layers, &heads].map(|key| stated(config, key));
            let count = config.size_or(layers, 6)?;
            expect_layers(folder, config, layers, count)?;
            let found = config.size_or(heads, 8)?;
            if !d.is_multiple_of(found) || d / found > MAX_DIM {
                let expected =
                    format!("a divisor of {model} ({d}), with heads of at most {MAX_DIM} features");
                return Err(config.refuse(heads, expected));
            }
            Ok([count, found, config.size_or(&inner, 2048)?])
        });
        let ([encoder_layers, heads, inner], [decoder_layers, decoder_heads, decoder_inner]) =
            (encoder?, decoder?);
        if decoder_heads != heads {
            let of_encoder = stated(config, "encoder_attention_heads");
            let expected = format!("as many as {of_encoder} ({heads})");
            return Err(config.refuse("decoder_attention_heads", expected));
        }
        if decoder_inner != inner {
            let expected = format!("the size of encoder_ffn_dim ({inner})");
            return Err(config.refuse("decoder_ffn_dim", expected));
        }
        if activation(config, "activation_function", "relu")? != Activation::Relu {
            return Err(config.refuse("activation_function", "\"relu\""));
        }
        if config.text_or("position_embedding_type", "sine")? != "sine" {
            return Err(config.refuse("position_embedding_type", "\"sine\""));
        }
        const AUXILIARY: &str = "auxiliary_loss";
        if config.flag_or(AUXILIARY, false)? {
            let expected = "false: with true, transformers norms the states between the layers of the decoder, which is not supported";
            return Err(config.refuse(AUXILIARY, expected));
        }
        let queries = config.size_or("num_queries", 100)?;
        let masks = folder.find("mask_head.lay1.weight", &NAMES).is_some();
        let found = DetrConfig {
            d_model: d,
            encoder_layers,
            decoder_layers,
            heads,
            feed_forward: inner,
            queries,
            masks,
            backbone: BackboneConfig {
                channels: network.stem,
                depth: Some(network.depth),
                dilation,
                ..BackboneConfig::default()
            },
            ..DetrConfig::default()
        };

        let mut copies = Copies::default();
        let here = [
            "backbone.stem.conv",
            "backbone.stem.norm",
            "backbone.stages",
        ];
        network.copy(channels, (library, BACKBONE), here, &mut copies);
        let maps = network.widths();
        let features = maps.last().copied().unwrap_or(network.stem);
        let one = |name: &str| [name.to_owned()];
        let input = one("input_projection");
        copies.linear(&input, "input_projection", [features, d], &[1, 1]);
        let objects = "query_position_embeddings.weight";
        copies.same(objects, "query_positions", &[queries, d]);
        for (side, layers) in [("encoder", encoder_layers), ("decoder", decoder_layers)] {
            for layer in 0..layers {
                block(
                    &format!("{side}.layers.{layer}"),
                    side == "decoder",
                    [d, inner],
                    &mut copies,
                );
            }
        }
        copies.norm("decoder.layernorm", "decoder_norm", NORM, d);
        let classes = one("class_labels_classifier");
        copies.linear(&classes, "class_head", [d, labels.len() + 1], &[]);
        for (layer, outputs) in [d, d, 4].into_iter().enumerate() {
            let there = [format!("bbox_predictor.layers.{layer}")];
            copies.linear(&there, &format!("box_head.{layer}"), [d, outputs], &[]);
        }
        if masks {
            mask_head(d, heads, &maps, &mut copies);
        }
        Ok(Self {
            config: found,
            sizes: DetectorSizes {
                channels,
                size,
                classes: labels.len(),
            },
            labels,
            arrays: copies.read(folder, &NAMES)?,
            preparation,
        })
    }
}

/// The key by which a configuration states what is usually called `key`: where it has the other name that transformers knows
/// (`attribute_map`), by that, even beside the usual one.
fn stated<'a>(config: &Config, key: &'a str) -> &'a str {
    let other = match key {
        "d_model" => "hidden_size",
        "encoder_attention_heads" => "num_attention_heads",
        "encoder_layers" => "num_hidden_layers",
        _ => return key,
    };
    if config.has(other) { other } else { key }
}

/// What weight and bias of a norm in a Transformer are called here.
const NORM: [&str; 2] = ["weight", "bias"];

/// The residual network of a configuration, who named its weights, and whether its last stage has dilation in place of a stride.
fn backbone(folder: &Folder) -> Result<(Residual, Library, bool), PretrainedError> {
    const UNDILATED: &str = "false, or a backbone of timm: resnet50 or resnet101";
    let config = folder.config();
    let mut dilation = config.flag_or("dilation", false)?;
    let section = config.section("backbone_config")?;
    if let Some(section) = &section {
        const KINDS: [&str; 2] = ["resnet", "timm_backbone"];
        if section.one_of("model_type", &KINDS)? == 0 {
            return match dilation {
                true => Err(config.refuse("dilation", UNDILATED)),
                false => Ok((Residual::of(section)?, Library::Transformers, false)),
            };
        }
        // In place of `dilation`, as transformers builds it.
        dilation = match section.size_or("output_stride", 32)? {
            32 => false,
            16 => true,
            _ => return Err(section.refuse("output_stride", "32, or 16 (dilation)")),
        };
    } else if !config.flag_or("use_timm_backbone", true)? {
        return Err(config.refuse("backbone_config", "that of a ResNet"));
    }
    let of = section
        .as_ref()
        .filter(|section| section.has("backbone"))
        .unwrap_or(config);
    let depth = match of.text_or("backbone", "resnet50")? {
        "resnet18" => 18,
        "resnet34" => 34,
        "resnet50" => 50,
        "resnet101" => 101,
        _ => 0,
    };
    // Its name does not say how wide it is; what cannot be is found by the shapes of the others.
    let first = folder.find(&format!("{BACKBONE}conv1.weight"), &NAMES);
    let stem = first.and_then(|first| first.shape.first().copied());
    let stem = stem.filter(|stem| (1..=MOST_CHANNELS).contains(stem));
    let expected = "resnet18, resnet34, resnet50 or resnet101";
    let network = Residual::new(depth, stem.unwrap_or(64));
    let network = network.ok_or_else(|| of.refuse("backbone", expected))?;
    if dilation && network.depth < 50 {
        return Err(match &section {
            Some(section) => section.refuse("output_stride", "32, or resnet50 or resnet101"),
            None => config.refuse("dilation", UNDILATED),
        });
    }
    Ok((network, Library::Timm, dilation))
}

/// A block of the encoder, or of the decoder, which is called the same here.
fn block(name: &str, of_decoder: bool, [d, inner]: [usize; 2], copies: &mut Copies) {
    let at = |part: &str| format!("{name}.{part}");
    let parts =
        |attention: &str| ["q", "k", "v"].map(|part| at(&format!("{attention}.{part}_proj")));
    let joint = at("attention.projection.Fused.query_key_value");
    copies.linear(&parts("self_attn"), &joint, [d, d], &[]);
    let output = [at("self_attn.out_proj")];
    copies.linear(&output, &at("attention.output"), [d, d], &[]);
    copies.norm(
        &at("self_attn_layer_norm"),
        &at("attention_block.norm"),
        NORM,
        d,
    );
    if of_decoder {
        let separate = ["query", "key", "value"];
        for (there, here) in parts("encoder_attn").into_iter().zip(separate) {
            let here = at(&format!("cross_attention.projection.Separate.{here}"));
            copies.linear(&[there], &here, [d, d], &[]);
        }
        let output = [at("encoder_attn.out_proj")];
        copies.linear(&output, &at("cross_attention.output"), [d, d], &[]);
        copies.norm(
            &at("encoder_attn_layer_norm"),
            &at("cross_block.norm"),
            NORM,
            d,
        );
    }
    copies.linear(&[at("fc1")], &at("feed_forward.inner"), [d, inner], &[]);
    copies.linear(&[at("fc2")], &at("feed_forward.outer"), [inner, d], &[]);
    copies.norm(
        &at("final_layer_norm"),
        &at("feed_forward_block.norm"),
        NORM,
        d,
    );
}

/// The mask head over maps of these channels, from the largest map to the smallest.
fn mask_head(d: usize, heads: usize, maps: &[usize], copies: &mut Copies) {
    for (there, here) in [("q", "query"), ("k", "key")] {
        let there = [format!("bbox_attention.{there}_linear")];
        copies.linear(&there, &format!("mask_head.{here}"), [d, d], &[]);
    }
    let mut inputs = d + heads;
    for step in 0..=maps.len() {
        let outputs = if step == 0 { inputs } else { d >> step };
        let [conv, norm] = ["lay", "gn"].map(|name| format!("mask_head.{name}{}", step + 1));
        let here = format!("mask_head.steps.{step}");
        copies.convolution(&conv, &format!("{here}.conv"), [inputs, outputs], 3);
        copies.norm(&norm, &format!("{here}.norm"), ["gamma", "beta"], outputs);
        inputs = outputs;
    }
    for (place, &channels) in maps.iter().rev().skip(1).enumerate() {
        let there = format!("mask_head.adapter{}", place + 1);
        let here = format!("mask_head.adapters.{place}");
        copies.convolution(&there, &here, [channels, d >> (place + 1)], 1);
    }
    copies.convolution("mask_head.out_lay", "mask_head.output", [inputs, 1], 3);
}
