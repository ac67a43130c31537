//! BART (Lewis et al. 2019) and Marian (Junczys-Dowmunt et al. 2018): post-norm blocks with biases, whose encoder and decoder may
//! differ in their sizes, and a bias of the logits.
//!
//! | `model_type` | positions | norm of the embeddings | factor of the embeddings | activation |
//! |---|---|---|---|---|
//! | `bart` | learned, from row 2 on | yes | usually none | GELU |
//! | `marian` | sines, then cosines | no | usually `√model` | SiLU |

use regard_kernels::stack::{
    Activation, Block, CrossAttention, FeedForward, Norms, SelfAttention, Sizes,
};

use super::{
    embedding::{EmbeddingSource, Positions},
    error::PretrainedError,
    families::activation,
    folder::{Folder, Names},
    language_model::LanguageModelSource,
    seq2seq::Seq2SeqSource,
    source::{Matrix, Norm, StackSource, expect_layers},
};

/// Files have tables that are not used: former ones that of tokens up to four times, and Marian's sines; untied ones `shared`.
const BART: Names<'static> = Names {
    prefixes: &["model."],
    renamed: &[],
    ignored: &[
        "*embed_tokens.weight",
        "*shared.weight",
        "lm_head.weight",
        "*coder.version",
    ],
};
const MARIAN: Names<'static> = Names {
    ignored: &[
        "*embed_tokens.weight",
        "*shared.weight",
        "*embed_positions.weight",
        "lm_head.weight",
        "*coder.version",
    ],
    ..BART
};
/// The rows of the table of positions before the first one.
const OFFSET: usize = 2;
const EPSILON: f64 = 1e-5;
const BIAS: &str = "final_logits_bias";

/// What encoder and decoder have in common.
struct Common {
    model: usize,
    activation: Activation,
    scale: f32,
    context: usize,
    marian: bool,
}

/// BART of a configuration.
pub(super) fn bart(folder: &Folder) -> Result<Seq2SeqSource, PretrainedError> {
    seq2seq(folder, false)
}

/// Marian of a configuration.
pub(super) fn marian(folder: &Folder) -> Result<Seq2SeqSource, PretrainedError> {
    seq2seq(folder, true)
}

fn seq2seq(folder: &Folder, marian: bool) -> Result<Seq2SeqSource, PretrainedError> {
    let config = folder.config();
    let model = config.size("d_model")?;
    let common = Common {
        model,
        activation: activation(config, "activation_function", "gelu")?,
        scale: match config.flag_or("scale_embedding", false)? {
            true => (model as f64).sqrt() as f32,
            false => 1.0,
        },
        context: config.size_or("max_position_embeddings", 1024)?,
        marian,
    };
    let names = if marian { MARIAN } else { BART };
    let joined = !marian || config.flag_or("share_encoder_decoder_embeddings", true)?;
    let tied = config.flag_or("tie_word_embeddings", true)?;
    let [read, written, head] = ["encoder.embed_tokens", "decoder.embed_tokens", "lm_head"];
    // Untied files of transformers 5 have `shared` too, which that library does not use; former ones have it alone.
    let own = !joined || !tied && folder.find(&format!("{read}.weight"), &names).is_some();
    let [read, written, head] = match (own, tied) {
        (true, _) => {
            let (table, output) = folder.shared([written, head], tied, &names)?;
            [read, table, output.unwrap_or(table)]
        }
        (false, false) => ["shared", "shared", head],
        // Each may differ all the same. In the order of transformers, in which the first that is there stands for a missing `shared`.
        (false, true) => {
            let (mut table, mut differing) = ("shared", [None; 3]);
            for (other, name) in differing.iter_mut().zip([head, written, read]) {
                (table, *other) = folder.shared([table, name], tied, &names)?;
            }
            let [head, written, read] = differing.map(|other| other.unwrap_or(table));
            [read, written, head]
        }
    };
    let vocabulary = config.size("vocab_size")?;
    let classes = match joined {
        true => vocabulary,
        false => config.size_or("decoder_vocab_size", vocabulary)?,
    };
    // The bias is that of the output layer, which is the table of tokens or another one.
    let biased = |matrix: Matrix| match folder.find(BIAS, &names) {
        Some(_) => matrix.with_bias(BIAS, &[1, classes]),
        None => matrix,
    };
    let tokens = Matrix::table(written, [classes, model]);
    let (tokens, output) = match head == written {
        true => (biased(tokens), None),
        false => {
            let output = Matrix::linear(head, [model, classes], false);
            (tokens, Some(biased(output)))
        }
    };
    let of_encoder = match read == written {
        true => tokens.clone(),
        false => Matrix::table(read, [vocabulary, model]),
    };
    Ok(Seq2SeqSource {
        embedding: common.embedding("encoder", of_encoder),
        encoder: common.stack(folder, "encoder")?,
        decoder: LanguageModelSource {
            embedding: common.embedding("decoder", tokens),
            stack: common.stack(folder, "decoder")?,
            output,
            output_scale: 1.0,
            softcap: None,
            names,
        },
    })
}

impl Common {
    fn embedding(&self, side: &str, tokens: Matrix) -> EmbeddingSource {
        let (model, context) = (self.model, self.context);
        let plain = EmbeddingSource {
            scale: self.scale,
            positions: Positions::Sines { interleaved: false },
            ..EmbeddingSource::new(tokens, context)
        };
        match self.marian {
            true => plain,
            false => EmbeddingSource {
                positions: Positions::Table {
                    table: Matrix::table(
                        &format!("{side}.embed_positions"),
                        [context + OFFSET, model],
                    ),
                    first: OFFSET,
                },
                norm: Some(self.norm(format!("{side}.layernorm_embedding"))),
                ..plain
            },
        }
    }

    fn stack(&self, folder: &Folder, side: &str) -> Result<StackSource, PretrainedError> {
        let config = folder.config();
        let key = |name: &str| format!("{side}_{name}");
        let (layers, heads) = (key("layers"), key("attention_heads"));
        let count = config.size(&layers)?;
        expect_layers(folder, config, &layers, count)?;
        let divisor = config.size(&heads)?;
        if !self.model.is_multiple_of(divisor) {
            let expected = format!("a divisor of d_model ({})", self.model);
            return Err(config.refuse(&heads, expected));
        }
        let inner = config.size(&key("ffn_dim"))?;
        let decoder = side == "decoder";
        Ok(StackSource {
            sizes: Sizes {
                causal: decoder,
                ..Sizes::new(self.model, divisor, divisor, self.model / divisor)
            },
            blocks: (0..count)
                .map(|layer| self.block(&format!("{side}.layers.{layer}"), inner, decoder))
                .collect(),
            last_norm: None,
            rotations: vec![],
            relative: None,
        })
    }

    fn norm(&self, name: String) -> Norm {
        Norm::layer(name, self.model, EPSILON)
    }

    fn block(&self, at: &str, inner: usize, decoder: bool) -> Block<Matrix, Norm> {
        let model = self.model;
        let norms = |name: &str| Norms::after(self.norm(format!("{at}.{name}")));
        let matrix = |name: &str, sizes| Matrix::linear(&format!("{at}.{name}"), sizes, true);
        let square = |name: &str| matrix(name, [model; 2]);
        let own = |name: &str| square(&format!("self_attn.{name}"));
        let cross = |name: &str| square(&format!("encoder_attn.{name}"));
        Block {
            attention: SelfAttention {
                query_key_value: own("q_proj").beside(own("k_proj")).beside(own("v_proj")),
                output: own("out_proj"),
                query_norm: None,
                key_norm: None,
                scale: None,
                window: None,
                rotation: None,
                global: None,
                norms: norms("self_attn_layer_norm"),
            },
            cross: decoder.then(|| CrossAttention {
                query: cross("q_proj"),
                key_value: cross("k_proj").beside(cross("v_proj")),
                output: cross("out_proj"),
                scale: None,
                norms: norms("encoder_attn_layer_norm"),
            }),
            feed_forward: FeedForward {
                inner: matrix("fc1", [model, inner]),
                activation: self.activation,
                gated: false,
                outer: matrix("fc2", [inner, model]),
                norms: norms("final_layer_norm"),
                parallel: false,
            },
        }
    }
}
