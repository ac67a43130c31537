//! The role of models of text: at every position of one sequence, a distribution over the vocabulary.
//!
//! | objective | position `t` sees | and gives the distribution of |
//! |---|---|---|
//! | causal (Bengio 2003, GPT) | tokens `1 .. t` | token `t + 1` |
//! | masked (Devlin 2018, BERT) | all tokens, some of them replaced | the token that stood at `t` |
//!
//! A causal model also goes step by step, so that it can write. Its [`ModelConfig`](crate::ModelConfig) is the section `[model]` of a recipe, and
//! stands in a model file beside the weights.

use burn::{
    module::Module,
    tensor::{Device, Int, Tensor},
};
use regard_nn::{dropout::DropoutRng, mask::PaddingMask};
use serde::{Deserialize, Serialize};

use crate::{
    generator::{DecoderState, Output, Scored},
    pretrained::PackedText,
    vocabulary::Vocabulary,
};

/// What a model of text predicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Objective {
    /// The next token, from those before it.
    #[default]
    Causal,
    /// Tokens that were replaced, from all others.
    Masked,
}

/// A model of text.
pub trait TextModel: Module + Sync + 'static {
    /// The state that a causal model carries from step to step.
    type State: DecoderState;

    /// Its vocabulary.
    fn vocabulary(&self) -> Vocabulary;

    /// The longest text that it can read, in tokens; `None` for no limit.
    fn longest(&self) -> Option<usize> {
        None
    }

    /// Reads `ids [time, batch]`, of which `keep` are real; the readouts of all positions are time-major, `[time · batch, n]`.
    fn forward(&self, ids: Tensor<2, Int>, keep: &PaddingMask, noise: &mut DropoutRng) -> Scored;

    /// The state of `rows` texts before their first token; `None` for a masked model.
    fn begin(&self, rows: usize, device: &Device) -> Option<Self::State>;

    /// Reads one token of each row, `ids [rows]`, and gives the logits of the next.
    fn step(&self, ids: Tensor<1, Int>, state: Self::State) -> (Output, Self::State);

    /// Reads `ids [time, rows]` and gives the state after them, as consecutive steps do; a network that reads a whole sequence at once
    /// does that.
    fn read(&self, ids: Tensor<2, Int>, state: Self::State) -> Self::State {
        ids.iter_dim(0).fold(state, |state, ids| {
            let ids = ids.squeeze_dim(0);
            self.step(ids, state).1
        })
    }

    /// Every weight of every head while it reads `ids`, by layer from the first: each `[batch, heads, queries, keys]`. Empty for a
    /// model without attention.
    fn look(&self, _ids: Tensor<2, Int>, _keep: &PaddingMask) -> Vec<Tensor<4>> {
        vec![]
    }

    /// Whether these weights sum to 1.
    fn is_normalized(&self) -> bool {
        true
    }

    /// A copy of the weights in the order in which inference reads them, if there is a kernel for the model.
    fn pack(&self) -> Option<PackedText> {
        None
    }
}
