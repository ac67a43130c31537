//! Models that were trained here, in the form of those that others have trained: so all that reads, writes and looks works on both.

use regard_kernels::stack::Product;
use regard_nn::bridge::OutputWeights;

use super::{
    classify::ClassScores,
    encoder::{Head, Heads, TextEncoder},
    language_model::LanguageModel,
};
use crate::{
    language::TextTransformer,
    packed::{norm, numbers, packed, packed_output},
};

/// Texts of a model whose positions have no end are no longer than this.
const LONGEST: usize = 1 << 20;

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
        let positions = match model.position_table(context) {
            Some(values) => Some(table(&numbers(values), context)?),
            None => None,
        };
        let context = positions.as_ref().map_or(LONGEST, |_| context);
        let (stack, tokens) = (
            packed(&model.stack)?,
            table(&numbers(model.tokens.weight.val()), vocabulary)?,
        );
        let norm = model.norm.as_ref().map(norm);
        let output = packed_output(output)?;
        Some(match (stack.sizes().causal, norm) {
            (true, None) => Self::Writes(Box::new(LanguageModel {
                stack,
                tokens,
                positions,
                output: Some(output),
                scale: 1.0,
                softcap: None,
                context,
            })),
            // No kernel normalises the embeddings of a causal model.
            (true, Some(_)) => return None,
            (false, norm) => Self::Reads(Box::new(TextEncoder {
                tokens,
                positions,
                first_position: 0,
                types: None,
                norm,
                stack,
                pooler: None,
                head: Some(Head {
                    purpose: Heads::MaskedTokens,
                    dense: None,
                    activation: None,
                    norm: None,
                    output: Some(output),
                    bias: None,
                }),
                output_bias: None,
                scores: ClassScores::Softmax,
                context,
            })),
        })
    }
}
