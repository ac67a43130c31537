//! Llama (Touvron et al. 2023) and its kin: RMS norms before the parts, rotary positions, grouped heads, SwiGLU.
//!
//! | `model_type` | differs by |
//! |---|---|
//! | `llama` | |
//! | `mistral` | a window in every layer |
//! | `qwen2` | biases of queries, keys and values; a window from some layer on, if at all |
//! | `qwen3` | RMS norms of each head's queries and keys |
//! | `phi3` | joined matrices, rotary positions on a part of a head |
//! | `gemma2`, `gemma3_text` | norms with `1 + w` on both sides, GELU gates, embeddings times `√d`, softcaps or query and key norms, windows in most layers |

use regard_kernels::{
    MAX_DIM,
    stack::{Block, FeedForward, Norms, Rotation, SelfAttention, Sizes},
};
use serde_json::json;

use super::{
    config::Config,
    embedding::EmbeddingSource,
    error::PretrainedError,
    families::activation,
    folder::{Folder, Names},
    language_model::LanguageModelSource,
    rotary::{base_of, context, plain, rotation},
    source::{Matrix, Norm, StackSource, expect_layers},
};

const NAMES: Names<'static> = Names {
    prefixes: &["model."],
    renamed: &[],
    ignored: &["*.rotary_emb.inv_freq"],
};
const TIED: Names<'static> = Names {
    ignored: &["*.rotary_emb.inv_freq", "lm_head.weight"],
    ..NAMES
};

/// What tells the families apart.
struct Kin {
    gemma: bool,
    joined: bool,
    query_key_norm: bool,
    /// Biases of query, key and value; of the output; of the feed-forward network.
    biases: [bool; 3],
    /// The window of each layer.
    windows: Vec<Option<usize>>,
}

/// The model of a configuration.
pub(super) fn language_model(folder: &Folder) -> Result<LanguageModelSource, PretrainedError> {
    let config = &completed(folder.config())?;
    let layers = config.size("num_hidden_layers")?;
    expect_layers(folder, config, "num_hidden_layers", layers)?;
    let kin = kin(config, layers)?;
    let model = config.size("hidden_size")?;
    let heads = config.size("num_attention_heads")?;
    let groups = config.size_or("num_key_value_heads", heads)?;
    if !heads.is_multiple_of(groups) {
        let expected = format!("a divisor of num_attention_heads ({heads})");
        return Err(config.refuse("num_key_value_heads", expected));
    }
    let head = match config.has("head_dim") {
        true => config.size("head_dim")?,
        false if model.is_multiple_of(heads) => model / heads,
        false => {
            let expected = format!("a divisor of hidden_size ({model}), or head_dim");
            return Err(config.refuse("num_attention_heads", expected));
        }
    };
    if head > MAX_DIM {
        // Before frequencies are made for each of its features.
        let expected = format!("heads of at most {MAX_DIM} features, not {head}");
        return Err(config.refuse("head_dim", expected));
    }
    let inner = config.size("intermediate_size")?;
    let epsilon = config.positive_or("rms_norm_eps", 1e-6)?;
    let (key, usual) = match kin.gemma {
        true => ("hidden_activation", "gelu_pytorch_tanh"),
        false => ("hidden_act", "silu"),
    };
    let activation = activation(config, key, usual)?;
    let scale = match config.has("query_pre_attn_scalar") {
        true => Some((1.0 / config.positive("query_pre_attn_scalar")?.sqrt()) as f32),
        false => None,
    };
    let mut rotations: Vec<Rotation> = vec![];
    let mut places = vec![];
    for window in &kin.windows {
        let rotation = rotation_of(config, &kin, head, window.is_some())?;
        places.push(crate::packed::place_of(rotation, &mut rotations));
    }
    let [of_three, of_output, of_inner] = kin.biases;
    let (query, key) = (heads * head, groups * head);
    let rms = |name: String, size| Norm {
        plus_one: kin.gemma,
        ..Norm::rms(name, size, epsilon)
    };
    let block = |layer: usize| {
        let at = |name: &str| format!("layers.{layer}.{name}");
        let own = |name: &str| at(&format!("self_attn.{name}"));
        let three = |name, size| Matrix::linear(&own(name), [model, size], of_three);
        let of_head = |name| kin.query_key_norm.then(|| rms(own(name), head));
        let norm = |name: &str| rms(at(name), model);
        let after = "post_attention_layernorm";
        let [own_norms, inner_norms] = match kin.gemma {
            true => [
                Norms {
                    inside: Some(norm(after)),
                    ..Norms::before(norm("input_layernorm"))
                },
                Norms {
                    inside: Some(norm("post_feedforward_layernorm")),
                    ..Norms::before(norm("pre_feedforward_layernorm"))
                },
            ],
            false => [
                Norms::before(norm("input_layernorm")),
                Norms::before(norm(after)),
            ],
        };
        Block {
            attention: SelfAttention {
                query_key_value: match kin.joined {
                    true => three("qkv_proj", query + 2 * key),
                    false => three("q_proj", query)
                        .beside(three("k_proj", key))
                        .beside(three("v_proj", key)),
                },
                output: Matrix::linear(&own("o_proj"), [query, model], of_output),
                query_norm: of_head("q_norm"),
                key_norm: of_head("k_norm"),
                scale,
                window: kin.windows[layer],
                rotation: Some(places[layer]),
                global: None,
                norms: own_norms,
            },
            cross: None,
            feed_forward: FeedForward {
                inner: match kin.joined {
                    true => Matrix::linear(&at("mlp.gate_up_proj"), [model, 2 * inner], of_inner),
                    false => Matrix::linear(&at("mlp.gate_proj"), [model, inner], of_inner)
                        .beside(Matrix::linear(&at("mlp.up_proj"), [model, inner], of_inner)),
                },
                activation,
                gated: true,
                outer: Matrix::linear(&at("mlp.down_proj"), [inner, model], of_inner),
                norms: inner_norms,
                parallel: false,
            },
        }
    };
    let cap = |key: &str| match config.has(key) {
        true => config.positive(key).map(|cap| Some(cap as f32)),
        false => Ok(None),
    };
    let context = context(config)?;
    let vocabulary = config.size("vocab_size")?;
    let tied = config.flag_or("tie_word_embeddings", kin.gemma)?;
    let names = if tied { TIED } else { NAMES };
    let (table, output) = folder.shared(["embed_tokens", "lm_head"], tied, &names)?;
    Ok(LanguageModelSource {
        embedding: EmbeddingSource {
            scale: match kin.gemma {
                true => (model as f32).sqrt(),
                false => 1.0,
            },
            ..EmbeddingSource::new(Matrix::table(table, [vocabulary, model]), context)
        },
        stack: StackSource {
            sizes: Sizes {
                softcap: cap("attn_logit_softcapping")?,
                ..Sizes::new(model, heads, groups, head)
            },
            blocks: (0..layers).map(block).collect(),
            last_norm: Some(rms("norm".to_owned(), model)),
            rotations,
            relative: None,
        },
        output: output.map(|name| Matrix::linear(name, [model, vocabulary], false)),
        output_scale: 1.0,
        softcap: cap("final_logit_softcapping")?,
        names,
    })
}

/// The configuration with what a missing key means to the family's class in transformers 5.24, where that is not what it means to
/// Llama's. (A sliding window that is `null` is none.)
fn completed(config: &Config) -> Result<Config, PretrainedError> {
    let defaults = match config.text("model_type")? {
        "mistral" => json!({"num_key_value_heads": 8, "sliding_window": 4096}),
        "qwen2" => json!({
            "num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28,
        }),
        "qwen3" => json!({
            "num_key_value_heads": 32, "head_dim": 128, "sliding_window": 4096, "max_window_layers": 28,
        }),
        "phi3" => json!({"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096}),
        "gemma2" => json!({
            "num_key_value_heads": 4, "head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096,
            "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
        }),
        "gemma3_text" => json!({
            "num_key_value_heads": 4, "head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096,
            "rope_theta": 1e6, "rope_local_base_freq": 1e4,
        }),
        _ => json!({}),
    };
    Ok(config.completed(&defaults))
}

fn kin(config: &Config, layers: usize) -> Result<Kin, PretrainedError> {
    const BOTH_WAYS: &str = "use_bidirectional_attention";
    let kind = config.text("model_type")?;
    let gemma = kind.starts_with("gemma");
    if gemma && config.flag_or(BOTH_WAYS, false)? {
        let expected =
            "false: a Gemma whose tokens see those after them (EmbeddingGemma) is not supported";
        return Err(config.refuse(BOTH_WAYS, expected));
    }
    let attention_bias = config.flag_or("attention_bias", false)?;
    let biases = match kind {
        "qwen2" => [true, false, false],
        _ => [
            attention_bias,
            attention_bias,
            config.flag_or("mlp_bias", false)?,
        ],
    };
    Ok(Kin {
        gemma,
        joined: kind == "phi3",
        query_key_norm: matches!(kind, "qwen3" | "gemma3_text"),
        biases,
        windows: windows(config, kind, layers)?,
    })
}

/// The window of each layer: `layer_types` says which have one, or each family's rule.
fn windows(
    config: &Config,
    kind: &str,
    layers: usize,
) -> Result<Vec<Option<usize>>, PretrainedError> {
    let qwen = kind.starts_with("qwen");
    let used = !qwen || config.flag_or("use_sliding_window", false)?;
    if !used || !config.has("sliding_window") || kind == "llama" {
        return Ok(vec![None; layers]);
    }
    let window = config.size("sliding_window")?;
    let types = config.texts_or("layer_types", vec![])?;
    if !types.is_empty() && types.len() != layers {
        let expected = format!("a list of {layers} types, one for each layer");
        return Err(config.refuse("layer_types", expected));
    }
    let pattern = config.size_or("sliding_window_pattern", 6)?;
    let first = config.count_or("max_window_layers", layers)?;
    let has = |layer: usize| match (types.get(layer), kind) {
        (Some(kind), _) => kind == "sliding_attention",
        (None, "gemma2") => layer.is_multiple_of(2),
        (None, "gemma3_text") => !(layer + 1).is_multiple_of(pattern),
        (None, _) if qwen => layer >= first,
        _ => true,
    };
    Ok((0..layers)
        .map(|layer| has(layer).then_some(window))
        .collect())
}

/// The rotation of a layer: in Gemma 3 layers with a window have their own base.
fn rotation_of(
    config: &Config,
    kin: &Kin,
    head: usize,
    window: bool,
) -> Result<Rotation, PretrainedError> {
    let layer = match window {
        true => "sliding_attention",
        false => "full_attention",
    };
    // Newer files have a section for each type of layer instead.
    let own = match config.section("rope_parameters")? {
        Some(sections) => sections.section(layer)?,
        None => None,
    };
    let own = own.is_some_and(|own| own.has("rope_theta"));
    if kin.gemma && window && !own && config.has("rope_local_base_freq") {
        let base = base_of(config, "rope_local_base_freq")?;
        return plain(config, base, head);
    }
    rotation(config, head, Some(layer))
}
