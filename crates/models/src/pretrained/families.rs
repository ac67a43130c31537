//! Which families of models can be opened. To add one, write a file that makes a [`LanguageModelSource`] or a
//! [`TextEncoderSource`](super::TextEncoderSource) or a [`Seq2SeqSource`](super::Seq2SeqSource) from a folder's configuration, and a
//! line in [`FAMILIES`].
//!
//! Models of images have no line there: [`ImageModel`](super::ImageModel), [`DetectorModel`](super::DetectorModel), [`ClipImages`](super::ClipImages) (whose texts the encoder here reads)
//! know theirs.

use regard_kernels::stack::Activation;

use super::{
    config::Config, encoder::TextEncoderSource, error::PretrainedError, folder::Folder,
    language_model::LanguageModelSource, seq2seq::Seq2SeqSource,
};

/// Makes the source of a model from a folder's configuration.
pub type Make<T> = fn(&Folder) -> Result<T, PretrainedError>;

/// A `model_type` and what can be made of it.
#[derive(Debug, Clone, Copy)]
pub struct Family {
    /// The `model_type` of its configurations.
    pub name: &'static str,
    /// Makes a causal language model.
    pub language_model: Option<Make<LanguageModelSource>>,
    /// Makes an encoder of texts.
    pub encoder: Option<Make<TextEncoderSource>>,
    /// Makes an encoder-decoder.
    pub seq2seq: Option<Make<Seq2SeqSource>>,
}

const fn named(name: &'static str) -> Family {
    Family {
        name,
        language_model: None,
        encoder: None,
        seq2seq: None,
    }
}

const fn writes(name: &'static str, source: Make<LanguageModelSource>) -> Family {
    Family {
        language_model: Some(source),
        ..named(name)
    }
}

const fn reads(name: &'static str, source: Make<TextEncoderSource>) -> Family {
    Family {
        encoder: Some(source),
        ..named(name)
    }
}

const fn reads_and_writes(name: &'static str, source: Make<Seq2SeqSource>) -> Family {
    Family {
        seq2seq: Some(source),
        ..named(name)
    }
}

/// All families.
pub const FAMILIES: [Family; 16] = [
    reads("bert", super::bert::bert),
    reads("roberta", super::bert::roberta),
    reads("distilbert", super::bert::distilbert),
    reads("longformer", super::longformer::longformer),
    reads("clip", super::clip::text),
    writes("gpt2", super::gpt2::language_model),
    writes("llama", super::llama::language_model),
    writes("mistral", super::llama::language_model),
    writes("qwen2", super::llama::language_model),
    writes("qwen3", super::llama::language_model),
    writes("phi3", super::llama::language_model),
    writes("gemma2", super::llama::language_model),
    writes("gemma3_text", super::llama::language_model),
    reads_and_writes("t5", super::t5::seq2seq),
    reads_and_writes("bart", super::bart::bart),
    reads_and_writes("marian", super::bart::marian),
];

/// The family of a folder.
///
/// # Errors
/// A `model_type` that is not among [`FAMILIES`], with the nearest of them.
pub fn of(folder: &Folder) -> Result<&'static Family, PretrainedError> {
    let names = FAMILIES.map(|family| family.name);
    Ok(&FAMILIES[folder.config().one_of("model_type", &names)?])
}

/// The activation that a key names.
pub(super) fn activation(
    config: &Config,
    key: &str,
    usual: &str,
) -> Result<Activation, PretrainedError> {
    activation_named(config, key, config.text_or(key, usual)?)
}

/// The activation `name`, a part of the value of a key.
pub(super) fn activation_named(
    config: &Config,
    key: &str,
    name: &str,
) -> Result<Activation, PretrainedError> {
    const NAMES: [(&str, Activation); 8] = [
        ("gelu", Activation::Gelu),
        ("gelu_new", Activation::GeluTanh),
        ("gelu_pytorch_tanh", Activation::GeluTanh),
        ("gelu_fast", Activation::GeluTanh),
        ("relu", Activation::Relu),
        ("silu", Activation::Silu),
        ("swish", Activation::Silu),
        ("quick_gelu", Activation::QuickGelu),
    ];
    let found = NAMES.iter().find(|(known, _)| *known == name);
    found.map(|(_, activation)| *activation).ok_or_else(|| {
        let names = NAMES.map(|(name, _)| name);
        let near = regard_config::nearest(name, &names);
        let near = near.map_or_else(String::new, |near| format!("; did you mean {near:?}?"));
        config.refuse(key, format!("one of {}{near}", names.join(", ")))
    })
}
