//! BERT (Devlin et al. 2018), RoBERTa (Liu et al. 2019) and DistilBERT (Sanh et al. 2019), and sentence encoders such as MiniLM, which
//! are BERT: post-norm blocks, learned positions, GELU.
//!
//! | `model_type` | positions from | token types | pooler | head of masked words |
//! |---|---|---|---|---|
//! | `bert` | 0 | yes | yes | `cls.predictions` |
//! | `roberta` | the padding id + 1 | one | in sentence encoders | `lm_head` |
//! | `distilbert` | 0 | no | no | `vocab_transform`, `vocab_projector` |

use regard_kernels::stack::{Activation, Block, FeedForward, Norms, SelfAttention, Sizes};

use super::{
    config::Config,
    embedding::{EmbeddingSource, Positions},
    encoder::{GlobalTokens, Head, Heads, TextEncoderSource},
    error::PretrainedError,
    families::activation,
    folder::{Folder, Names},
    source::{Matrix, Norm, StackSource, expect_layers},
};

/// The first files of BERT named the weights of norms otherwise.
const RENAMED: [(&str, &str); 2] = [
    ("LayerNorm.gamma", "LayerNorm.weight"),
    ("LayerNorm.beta", "LayerNorm.bias"),
];
const BERT: Names<'static> = Names {
    prefixes: &["bert."],
    renamed: &RENAMED,
    ignored: &["*position_ids", "cls.*", "pooler.*", "bert.pooler.*"],
};
const ROBERTA: Names<'static> = Names {
    prefixes: &["roberta."],
    renamed: &RENAMED,
    ignored: &["*position_ids", "lm_head.*", "pooler.*", "roberta.pooler.*"],
};
const DISTILBERT: Names<'static> = Names {
    prefixes: &["distilbert."],
    renamed: &[],
    ignored: &["*position_ids", "vocab_*"],
};

/// The table of tokens.
const WORDS: &str = "embeddings.word_embeddings";

/// The keys and names by which the families differ.
struct Words {
    model: &'static str,
    layers: &'static str,
    heads: &'static str,
    inner: &'static str,
    activation: &'static str,
    /// What norms add to the variance, if the configuration says it.
    epsilon: Option<&'static str>,
    /// Before the number of a layer.
    layer: &'static str,
    /// Query, key, value, output, its norm, the two products of the feed-forward network, its norm.
    parts: [&'static str; 8],
}

const OF_BERT: Words = Words {
    model: "hidden_size",
    layers: "num_hidden_layers",
    heads: "num_attention_heads",
    inner: "intermediate_size",
    activation: "hidden_act",
    epsilon: Some("layer_norm_eps"),
    layer: "encoder.layer",
    parts: [
        "attention.self.query",
        "attention.self.key",
        "attention.self.value",
        "attention.output.dense",
        "attention.output.LayerNorm",
        "intermediate.dense",
        "output.dense",
        "output.LayerNorm",
    ],
};
const OF_DISTILBERT: Words = Words {
    model: "dim",
    layers: "n_layers",
    heads: "n_heads",
    inner: "hidden_dim",
    activation: "activation",
    epsilon: None,
    layer: "transformer.layer",
    parts: [
        "attention.q_lin",
        "attention.k_lin",
        "attention.v_lin",
        "attention.out_lin",
        "sa_layer_norm",
        "ffn.lin1",
        "ffn.lin2",
        "output_layer_norm",
    ],
};

/// BERT of a configuration.
pub(super) fn bert(folder: &Folder) -> Result<TextEncoderSource, PretrainedError> {
    let mut source = encoder(folder, &OF_BERT, BERT)?;
    let sizes = Own::of(folder, &OF_BERT)?;
    let pooler = Matrix::linear("pooler.dense", [sizes.model; 2], true);
    let has = folder.find("pooler.dense.weight", &BERT).is_some();
    source.head = head(folder, &sizes, |purpose| match purpose {
        Heads::MaskedTokens => Head {
            dense: Some(sizes.square("cls.predictions.transform.dense")),
            activation: Some(sizes.activation),
            norm: Some(sizes.norm("cls.predictions.transform.LayerNorm")),
            bias: Some("cls.predictions.bias".to_owned()),
            ..plain(purpose)
        },
        // Its pooler comes first.
        Heads::Classes(_) => Head {
            dense: Some(pooler.clone()),
            ..plain(purpose)
        },
        _ => plain(purpose),
    })?;
    with_decoder(folder, &mut source, "cls.predictions.decoder")?;
    let in_head = matches!(
        &source.head,
        Some(Head {
            purpose: Heads::Classes(_),
            ..
        })
    );
    source.pooler = (has && !in_head).then_some(pooler);
    Ok(source)
}

/// RoBERTa of a configuration.
pub(super) fn roberta(folder: &Folder) -> Result<TextEncoderSource, PretrainedError> {
    roberta_named(folder, ROBERTA)
}

/// RoBERTa with other names.
pub(super) fn roberta_named(
    folder: &Folder,
    names: Names<'static>,
) -> Result<TextEncoderSource, PretrainedError> {
    let mut source = encoder(folder, &OF_BERT, names)?;
    let sizes = Own::of(folder, &OF_BERT)?;
    let padding = folder.config().count_or("pad_token_id", 1)?;
    let embedding = &mut source.embedding;
    if let Positions::Table { first, .. } = &mut embedding.positions {
        *first = padding + 1;
    }
    embedding.padding = u32::try_from(padding).ok();
    embedding.context = embedding.context.saturating_sub(padding + 1);
    let has = folder.find("pooler.dense.weight", &names).is_some();
    source.pooler = has.then(|| sizes.square("pooler.dense"));
    source.head = head(folder, &sizes, |purpose| match purpose {
        Heads::MaskedTokens => Head {
            dense: Some(sizes.square("lm_head.dense")),
            activation: Some(Activation::Gelu),
            norm: Some(sizes.norm("lm_head.layer_norm")),
            bias: Some("lm_head.bias".to_owned()),
            ..plain(purpose)
        },
        Heads::Classes(ref labels) => Head {
            dense: Some(sizes.square("classifier.dense")),
            output: Some(sizes.linear("classifier.out_proj", labels.len())),
            ..plain(purpose)
        },
        _ => plain(purpose),
    })?;
    with_decoder(folder, &mut source, "lm_head.decoder")?;
    Ok(source)
}

/// DistilBERT of a configuration.
pub(super) fn distilbert(folder: &Folder) -> Result<TextEncoderSource, PretrainedError> {
    let mut source = encoder(folder, &OF_DISTILBERT, DISTILBERT)?;
    let sizes = Own::of(folder, &OF_DISTILBERT)?;
    source.embedding.types = None;
    source.head = head(folder, &sizes, |purpose| match purpose {
        Heads::MaskedTokens => Head {
            dense: Some(sizes.square("vocab_transform")),
            activation: Some(sizes.activation),
            norm: Some(sizes.norm("vocab_layer_norm")),
            bias: Some("vocab_projector.bias".to_owned()),
            ..plain(purpose)
        },
        Heads::Classes(_) => Head {
            dense: Some(sizes.square("pre_classifier")),
            activation: Some(Activation::Relu),
            ..plain(purpose)
        },
        _ => plain(purpose),
    })?;
    with_decoder(folder, &mut source, "vocab_projector")?;
    Ok(source)
}

/// What the parts of a model are made with.
struct Own {
    model: usize,
    epsilon: f64,
    activation: Activation,
}

impl Own {
    fn of(folder: &Folder, words: &Words) -> Result<Self, PretrainedError> {
        let config = folder.config();
        let usual = 1e-12;
        let epsilon = words.epsilon;
        Ok(Self {
            model: config.size(words.model)?,
            epsilon: epsilon.map_or(Ok(usual), |key| config.positive_or(key, usual))?,
            activation: activation(config, words.activation, "gelu")?,
        })
    }

    fn linear(&self, name: &str, outputs: usize) -> Matrix {
        Matrix::linear(name, [self.model, outputs], true)
    }

    fn square(&self, name: &str) -> Matrix {
        self.linear(name, self.model)
    }

    fn norm(&self, name: &str) -> Norm {
        Norm::layer(name, self.model, self.epsilon)
    }
}

/// The head that the architecture's name asks for; `make` adds what comes before its last product.
fn head(
    folder: &Folder,
    sizes: &Own,
    make: impl Fn(Heads) -> Head<Matrix, Norm>,
) -> Result<Option<Head<Matrix, Norm>>, PretrainedError> {
    let config = folder.config();
    let purpose = match purpose(config)? {
        None => return Ok(None),
        Some(purpose) => purpose,
    };
    let outputs = match &purpose {
        Heads::MaskedTokens => None,
        Heads::Classes(labels) | Heads::TokenClasses(labels) => Some(("classifier", labels.len())),
        Heads::Span => Some(("qa_outputs", 2)),
    };
    let mut head = make(purpose);
    if head.output.is_none() {
        head.output = outputs.map(|(name, count)| sizes.linear(name, count));
    }
    Ok(Some(head))
}

/// Gives the head of masked words the output layer `decoder` if the file has one that does not share the table of tokens, and the
/// bias of this name, which files may have beside the one that is named without it.
fn with_decoder(
    folder: &Folder,
    source: &mut TextEncoderSource,
    decoder: &str,
) -> Result<(), PretrainedError> {
    let names = source.names;
    let has = |name: &str| folder.find(name, &names).is_some();
    let head = source.head.as_mut();
    let Some(head) = head.filter(|head| head.purpose == Heads::MaskedTokens) else {
        return Ok(());
    };
    let bias = format!("{decoder}.bias");
    if has(&bias) {
        head.bias = Some(bias);
    }
    if has(&format!("{decoder}.weight")) {
        let tied = folder.config().flag_or("tie_word_embeddings", true)?;
        let (table, output) = folder.shared([WORDS, decoder], tied, &names)?;
        let (model, vocabulary) = (source.stack.sizes.model, source.embedding.tokens.outputs());
        head.output = output.map(|name| Matrix::linear(name, [model, vocabulary], false));
        source.embedding.tokens = Matrix::table(table, [vocabulary, model]);
    }
    Ok(())
}

fn purpose(config: &Config) -> Result<Option<Heads>, PretrainedError> {
    let names = config.texts_or("architectures", vec![])?;
    let Some(name) = names.first() else {
        return Ok(None);
    };
    let ends = |end: &str| name.ends_with(end);
    Ok(match () {
        () if ends("ForMaskedLM") || ends("ForPreTraining") => Some(Heads::MaskedTokens),
        () if ends("ForSequenceClassification") => Some(Heads::Classes(config.labels()?)),
        () if ends("ForTokenClassification") => Some(Heads::TokenClasses(config.labels()?)),
        () if ends("ForQuestionAnswering") => Some(Heads::Span),
        () => None,
    })
}

/// One product.
fn plain(purpose: Heads) -> Head<Matrix, Norm> {
    Head {
        purpose,
        dense: None,
        activation: None,
        norm: None,
        output: None,
        bias: None,
    }
}

fn encoder(
    folder: &Folder,
    words: &Words,
    names: Names<'static>,
) -> Result<TextEncoderSource, PretrainedError> {
    let config = folder.config();
    let sizes = Own::of(folder, words)?;
    let model = sizes.model;
    const DECODER: &str = "is_decoder";
    if config.flag_or(DECODER, false)? {
        let expected = "false: a BERT whose tokens do not see those after them is not supported";
        return Err(config.refuse(DECODER, expected));
    }
    let layers = config.size(words.layers)?;
    expect_layers(folder, config, words.layers, layers)?;
    let heads = config.size(words.heads)?;
    if !model.is_multiple_of(heads) {
        let expected = format!("a divisor of {} ({model})", words.model);
        return Err(config.refuse(words.heads, expected));
    }
    let inner = config.size(words.inner)?;
    let [query, key, value, output, own_norm, first, second, norm] = words.parts;
    let block = |layer: usize| {
        let at = |name: &str| format!("{}.{layer}.{name}", words.layer);
        let square = |name: &str| sizes.square(&at(name));
        let norms = |name: &str| Norms::after(sizes.norm(&at(name)));
        Block {
            attention: SelfAttention {
                query_key_value: square(query).beside(square(key)).beside(square(value)),
                output: square(output),
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
                inner: sizes.linear(&at(first), inner),
                activation: sizes.activation,
                gated: false,
                outer: Matrix::linear(&at(second), [inner, model], true),
                norms: norms(norm),
                parallel: false,
            },
        }
    };
    let vocabulary = config.size("vocab_size")?;
    let positions = config.size("max_position_embeddings")?;
    let table = |name: &str, rows: usize| {
        let name = format!("embeddings.{name}_embeddings");
        Matrix::table(&name, [rows, model])
    };
    Ok(TextEncoderSource {
        embedding: EmbeddingSource {
            positions: Positions::Table {
                table: table("position", positions),
                first: 0,
            },
            types: Some(table("token_type", config.size_or("type_vocab_size", 2)?)),
            norm: Some(sizes.norm("embeddings.LayerNorm")),
            ..EmbeddingSource::new(Matrix::table(WORDS, [vocabulary, model]), positions)
        },
        stack: StackSource {
            sizes: Sizes {
                causal: false,
                ..Sizes::new(model, heads, heads, model / heads)
            },
            blocks: (0..layers).map(block).collect(),
            last_norm: None,
            rotations: vec![],
            relative: None,
        },
        pooler: None,
        head: None,
        vector: None,
        global: GlobalTokens::None,
        names,
    })
}
