//! Longformer (Beltagy et al. 2020): RoBERTa for long texts, in which a token sees the tokens in a window around it and a few global
//! ones, which see all tokens by projections of their own.
//!
//! | head | global tokens |
//! |---|---|
//! | classes of texts | the first one |
//! | span of an answer | those before the first separator: the question |
//! | others, none | those that [`Input::global`](super::Input::global) names |

use regard_kernels::stack::GlobalAttention;

use super::{
    bert::roberta_named,
    config::Config,
    encoder::{GlobalTokens, Heads, TextEncoderSource},
    error::PretrainedError,
    folder::{Folder, Names},
    source::Matrix,
};

const NAMES: Names<'static> = Names {
    prefixes: &["longformer."],
    renamed: &[],
    ignored: &[
        "*position_ids",
        "lm_head.*",
        "pooler.*",
        "longformer.pooler.*",
    ],
};

/// Longformer of a configuration.
pub(super) fn longformer(folder: &Folder) -> Result<TextEncoderSource, PretrainedError> {
    let config = folder.config();
    let mut source = roberta_named(folder, NAMES)?;
    let model = source.stack.sizes.model;
    let blocks = &mut source.stack.blocks;
    let windows = windows(config, blocks.len())?;
    for (layer, (block, window)) in blocks.iter_mut().zip(windows).enumerate() {
        let own = |part: &str| {
            let name = format!("encoder.layer.{layer}.attention.self.{part}_global");
            Matrix::linear(&name, [model; 2], true)
        };
        block.attention.window = Some(window / 2);
        block.attention.global = Some(GlobalAttention {
            query: own("query"),
            key_value: own("key").beside(own("value")),
        });
    }
    source.global = match source.head.as_ref().map(|head| &head.purpose) {
        Some(Heads::Classes(_)) => GlobalTokens::First,
        Some(Heads::Span) => match config.ids_or("sep_token_id", vec![2])?[..] {
            [separator] => GlobalTokens::Before(separator),
            _ => return Err(config.refuse("sep_token_id", "the id of a token")),
        },
        _ => GlobalTokens::None,
    };
    Ok(source)
}

/// The window of each layer, both sides together: one size for all, or a list.
fn windows(config: &Config, layers: usize) -> Result<Vec<usize>, PretrainedError> {
    const KEY: &str = "attention_window";
    let windows = match config.value(KEY) {
        Some(value) if value.is_array() => config.sizes(KEY)?,
        _ => vec![config.size_or(KEY, 512)?; layers],
    };
    match windows.len() == layers && windows.iter().all(|window| window.is_multiple_of(2)) {
        true => Ok(windows),
        false => {
            let expected = format!("an even number, or a list of one for each of {layers} layers");
            Err(config.refuse(KEY, expected))
        }
    }
}
