//! GPT-2 (Radford et al. 2019): pre-norm blocks, learned positions, GELU by tanh, matrices stored `[inputs, outputs]`, the output
//! layer tied to the table of tokens.

use regard_kernels::stack::{Block, FeedForward, Norms, SelfAttention, Sizes};

use super::{
    embedding::{EmbeddingSource, Positions},
    error::PretrainedError,
    families::activation,
    folder::{Folder, Names},
    language_model::LanguageModelSource,
    source::{Matrix, Norm, StackSource, expect_layers},
};

const NAMES: Names<'static> = Names {
    prefixes: &["transformer."],
    renamed: &[],
    ignored: &["*.attn.bias", "*.attn.masked_bias", "lm_head.weight"],
};

/// The model of a configuration.
pub(super) fn language_model(folder: &Folder) -> Result<LanguageModelSource, PretrainedError> {
    let config = folder.config();
    let model = config.size("n_embd")?;
    let layers = config.size("n_layer")?;
    expect_layers(folder, config, "n_layer", layers)?;
    let heads = config.size("n_head")?;
    if !model.is_multiple_of(heads) {
        return Err(config.refuse("n_head", format!("a divisor of n_embd ({model})")));
    }
    let inner = config.size_or("n_inner", 4 * model)?;
    let epsilon = config.positive_or("layer_norm_epsilon", 1e-5)?;
    let activation = activation(config, "activation_function", "gelu_new")?;
    let scaled = config.flag_or("scale_attn_weights", true)?;
    let by_layer = config.flag_or("scale_attn_by_inverse_layer_idx", false)?;
    let head = model / heads;
    let block = |layer: usize| {
        let at = |name: &str| format!("h.{layer}.{name}");
        let norms = |name: &str| Norms::before(Norm::layer(at(name), model, epsilon));
        let scale = if scaled {
            1.0 / (head as f64).sqrt()
        } else {
            1.0
        };
        let divided = if by_layer {
            scale / (layer + 1) as f64
        } else {
            scale
        };
        Block {
            attention: SelfAttention {
                query_key_value: Matrix::convolution(&at("attn.c_attn"), [model, 3 * model]),
                output: Matrix::convolution(&at("attn.c_proj"), [model, model]),
                query_norm: None,
                key_norm: None,
                scale: (by_layer || !scaled).then_some(divided as f32),
                window: None,
                rotation: None,
                global: None,
                norms: norms("ln_1"),
            },
            cross: None,
            feed_forward: FeedForward {
                inner: Matrix::convolution(&at("mlp.c_fc"), [model, inner]),
                activation,
                gated: false,
                outer: Matrix::convolution(&at("mlp.c_proj"), [inner, model]),
                norms: norms("ln_2"),
                parallel: false,
            },
        }
    };
    let vocabulary = config.size("vocab_size")?;
    let context = config.size("n_positions")?;
    let tied = config.flag_or("tie_word_embeddings", true)?;
    let (table, output) = folder.shared(["wte", "lm_head"], tied, &NAMES)?;
    Ok(LanguageModelSource {
        embedding: EmbeddingSource {
            positions: Positions::Table {
                table: Matrix::table("wpe", [context, model]),
                first: 0,
            },
            ..EmbeddingSource::new(Matrix::table(table, [vocabulary, model]), context)
        },
        stack: StackSource {
            sizes: Sizes::new(model, heads, heads, head),
            blocks: (0..layers).map(block).collect(),
            last_norm: Some(Norm::layer("ln_f", model, epsilon)),
            rotations: vec![],
            relative: None,
        },
        output: output.map(|name| Matrix::linear(name, [model, vocabulary], false)),
        output_scale: 1.0,
        softcap: None,
        names: NAMES,
    })
}
