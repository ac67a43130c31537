//! T5 (Raffel et al. 2020), T5 1.1 and FLAN-T5: RMS norms before the parts, no biases, scores that are not scaled, and no positions
//! but a number for each head and bucket of distances, which all blocks of a stack share.
//!
//! The first T5 multiplies the decoder's states by `1 / √model` before the output layer, which is the table of tokens. Later ones have
//! an output layer of their own (`lm_head`), gated feed-forward networks, and no such factor.

use regard_kernels::stack::{
    Activation, Block, CrossAttention, FeedForward, Norms, SelfAttention, Sizes,
};
use regard_nn::{AttentionError, position::RelativeBucketsConfig};

use super::{
    embedding::EmbeddingSource,
    error::PretrainedError,
    families::activation_named,
    folder::{Folder, Names},
    language_model::LanguageModelSource,
    seq2seq::Seq2SeqSource,
    source::{BucketSource, Matrix, Norm, StackSource, expect_layers},
};

const NAMES: Names<'static> = Names {
    prefixes: &[],
    renamed: &[],
    ignored: &[
        "encoder.embed_tokens.weight",
        "decoder.embed_tokens.weight",
        "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
    ],
};
/// Beyond any distance that a model was trained on.
const FARTHEST: usize = 1 << 16;

/// The sizes of both stacks.
struct T5 {
    model: usize,
    heads: usize,
    head: usize,
    inner: usize,
    gated: bool,
    activation: Activation,
    epsilon: f64,
    buckets: RelativeBucketsConfig,
}

/// The model of a configuration.
pub(super) fn seq2seq(folder: &Folder) -> Result<Seq2SeqSource, PretrainedError> {
    let config = folder.config();
    let projection = config.text_or("feed_forward_proj", "relu")?;
    let (gated, name) = match projection.strip_prefix("gated-") {
        // Which GELU is not said.
        Some("gelu") => (true, "gelu_new"),
        Some(name) => (true, name),
        None => (false, projection),
    };
    let (count, farthest) = (
        "relative_attention_num_buckets",
        "relative_attention_max_distance",
    );
    let buckets = RelativeBucketsConfig {
        buckets: config.size_or(count, 32)?,
        max_distance: config.size_or(farthest, 128)?,
        bidirectional: true,
    };
    if let Err(error) = buckets.check() {
        return Err(match error {
            AttentionError::Value {
                field: "max_distance",
                expected,
                ..
            } => config.refuse(farthest, expected),
            AttentionError::Value { expected, .. } => config.refuse(count, expected),
            other => config.refuse(count, other.to_string()),
        });
    }
    if buckets.max_distance > FARTHEST {
        return Err(config.refuse(farthest, format!("at most {FARTHEST}")));
    }
    let t5 = T5 {
        model: config.size("d_model")?,
        heads: config.size("num_heads")?,
        head: config.size("d_kv")?,
        inner: config.size("d_ff")?,
        gated,
        activation: activation_named(config, "feed_forward_proj", name)?,
        epsilon: config.positive_or("layer_norm_epsilon", 1e-6)?,
        buckets,
    };
    let layers = config.size("num_layers")?;
    expect_layers(folder, config, "num_layers", layers)?;
    let of_decoder = config.size_or("num_decoder_layers", layers)?;
    expect_layers(folder, config, "num_decoder_layers", of_decoder)?;
    // Former files say so of the table, whether it is the output layer or not; those of today, of the factor itself.
    let tied = config.flag_or("tie_word_embeddings", true)?;
    let scaled = config.flag_or("scale_decoder_outputs", tied)?;
    let own_output = folder.find("lm_head.weight", &NAMES).is_some();
    let vocabulary = config.size("vocab_size")?;
    let tokens = Matrix::table("shared", [vocabulary, t5.model]);
    // Attention knows distances of any length.
    let embedding = EmbeddingSource::new(tokens, usize::MAX);
    Ok(Seq2SeqSource {
        encoder: t5.stack("encoder", layers),
        decoder: LanguageModelSource {
            embedding: embedding.clone(),
            stack: t5.stack("decoder", of_decoder),
            output: own_output.then(|| Matrix::linear("lm_head", [t5.model, vocabulary], false)),
            output_scale: match scaled {
                true => (1.0 / (t5.model as f64).sqrt()) as f32,
                false => 1.0,
            },
            softcap: None,
            names: NAMES,
        },
        embedding,
    })
}

impl T5 {
    fn stack(&self, side: &str, layers: usize) -> StackSource {
        let decoder = side == "decoder";
        let sizes = Sizes {
            causal: decoder,
            ..Sizes::new(self.model, self.heads, self.heads, self.head)
        };
        let first = "block.0.layer.0.SelfAttention.relative_attention_bias.weight";
        StackSource {
            sizes,
            blocks: (0..layers)
                .map(|layer| self.block(&format!("{side}.block.{layer}.layer"), decoder))
                .collect(),
            last_norm: Some(self.norm(&format!("{side}.final_layer_norm"))),
            rotations: vec![],
            relative: Some(BucketSource {
                name: format!("{side}.{first}"),
                buckets: RelativeBucketsConfig {
                    bidirectional: !decoder,
                    ..self.buckets
                },
            }),
        }
    }

    fn norm(&self, name: &str) -> Norm {
        Norm::rms(name, self.model, self.epsilon)
    }

    fn block(&self, at: &str, decoder: bool) -> Block<Matrix, Norm> {
        let (model, width) = (self.model, self.heads * self.head);
        let part = |number: usize, name: &str| format!("{at}.{number}.{name}");
        let norms = |number| Norms::before(self.norm(&part(number, "layer_norm")));
        let read = |name: String| Matrix::linear(&name, [model, width], false);
        let own = |name: &str| read(part(0, &format!("SelfAttention.{name}")));
        let cross = |name: &str| part(1, &format!("EncDecAttention.{name}"));
        let last = 1 + usize::from(decoder);
        let dense = |name: &str| part(last, &format!("DenseReluDense.{name}"));
        let inner = |name: &str| Matrix::linear(&dense(name), [model, self.inner], false);
        Block {
            attention: SelfAttention {
                query_key_value: own("q").beside(own("k")).beside(own("v")),
                output: Matrix::linear(&part(0, "SelfAttention.o"), [width, model], false),
                query_norm: None,
                key_norm: None,
                scale: Some(1.0),
                window: None,
                rotation: None,
                global: None,
                norms: norms(0),
            },
            cross: decoder.then(|| CrossAttention {
                query: read(cross("q")),
                key_value: read(cross("k")).beside(read(cross("v"))),
                output: Matrix::linear(&cross("o"), [width, model], false),
                scale: Some(1.0),
                norms: norms(1),
            }),
            feed_forward: FeedForward {
                inner: match self.gated {
                    true => inner("wi_0").beside(inner("wi_1")),
                    false => inner("wi"),
                },
                activation: self.activation,
                gated: self.gated,
                outer: Matrix::linear(&dense("wo"), [self.inner, model], false),
                norms: norms(last),
                parallel: false,
            },
        }
    }
}
