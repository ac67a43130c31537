//! Which families of models can be opened. To add one, write a file that makes a [`LanguageModelSource`] or a
//! [`TextEncoderSource`](super::TextEncoderSource) from a folder's configuration, and a line in [`FAMILIES`].

use regard_kernels::stack::Activation;

use super::{
    config::Config, encoder::TextEncoderSource, error::PretrainedError, folder::Folder,
    language_model::LanguageModelSource,
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
}

const fn writes(name: &'static str, source: Make<LanguageModelSource>) -> Family {
    Family {
        name,
        language_model: Some(source),
        encoder: None,
    }
}

const fn reads(name: &'static str, source: Make<TextEncoderSource>) -> Family {
    Family {
        name,
        language_model: None,
        encoder: Some(source),
    }
}

/// All families.
pub const FAMILIES: [Family; 11] = [
    reads("bert", super::bert::bert),
    reads("roberta", super::bert::roberta),
    reads("distilbert", super::bert::distilbert),
    writes("gpt2", super::gpt2::language_model),
    writes("llama", super::llama::language_model),
    writes("mistral", super::llama::language_model),
    writes("qwen2", super::llama::language_model),
    writes("qwen3", super::llama::language_model),
    writes("phi3", super::llama::language_model),
    writes("gemma2", super::llama::language_model),
    writes("gemma3_text", super::llama::language_model),
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
    const NAMES: [(&str, Activation); 7] = [
        ("gelu", Activation::Gelu),
        ("gelu_new", Activation::GeluTanh),
        ("gelu_pytorch_tanh", Activation::GeluTanh),
        ("gelu_fast", Activation::GeluTanh),
        ("relu", Activation::Relu),
        ("silu", Activation::Silu),
        ("swish", Activation::Silu),
    ];
    let names = NAMES.map(|(name, _)| name);
    let found = match config.has(key) {
        true => config.one_of(key, &names)?,
        false => names.iter().position(|name| *name == usual).unwrap_or(0),
    };
    Ok(NAMES[found].1)
}
