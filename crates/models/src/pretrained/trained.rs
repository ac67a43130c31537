//! Models that were trained here, in the form of those that others have trained: so all that reads, writes and looks works on both.

use std::sync::Arc;

use regard_kernels::stack::Product;
use regard_nn::bridge::OutputWeights;

use super::{
    classify::ClassScores,
    embedding::{Embedding, Positions},
    encoder::{GlobalTokens, Head, Heads, TextEncoder},
    language_model::LanguageModel,
};
use crate::{
    language::TextTransformer,
    packed::{norm, numbers, packed, packed_output},
};

/// Texts of a model whose positions have no end are no longer than this.
pub(crate) const LONGEST: usize = 1 << 20;

/// A model of text with packed weights.
#[derive(Debug, Clone)]
pub enum PackedText {
    /// A causal one.
    Writes(Box<LanguageModel>),
    /// One for masked words.
    Reads(Box<TextEncoder>),
}

impl PackedText {
    /// The packed weights of `model`, if the kernel serves its blocks, with its `output` layer. `context` is the most tokens that it
    /// reads if it adds positions to its embeddings.
    pub(crate) fn of(
        model: &TextTransformer,
        output: OutputWeights,
        context: usize,
    ) -> Option<Self> {
        let [vocabulary, size] = model.tokens.weight.dims();
        let table = |values: &[f32], rows| Product::transposed(values, size, rows, None).ok();
        let positions = match (&model.positions, &model.sinusoidal) {
            (Some(learned), _) => Positions::Table {
                table: table(&numbers(learned.table.weight.val()), context)?,
                first: 0,
            },
            (None, Some(_)) => Positions::Sines { interleaved: true },
            (None, None) => Positions::None,
        };
        let embedding = Embedding {
            tokens: Arc::new(table(&numbers(model.tokens.weight.val()), vocabulary)?),
            scale: model.embedding_scale as f32,
            context: match positions {
                Positions::None => LONGEST,
                _ => context,
            },
            positions,
            padding: None,
            types: None,
            norm: model.norm.as_ref().map(norm),
        };
        let stack = packed(&model.stack)?;
        let output = Some(packed_output(output)?);
        Some(match stack.sizes().causal {
            true => Self::Writes(Box::new(LanguageModel {
                embedding,
                stack,
                output,
                output_scale: 1.0,
                softcap: None,
            })),
            false => Self::Reads(Box::new(TextEncoder {
                embedding,
                stack,
                pooler: None,
                head: Some(Head {
                    purpose: Heads::MaskedTokens,
                    dense: None,
                    activation: None,
                    norm: None,
                    output,
                    bias: None,
                }),
                output_bias: None,
                vector: None,
                scores: ClassScores::Softmax,
                global: GlobalTokens::None,
                on_card: None,
            })),
        })
    }
}
