//! What a mechanism does of its own between the words: after the score, after the normaliser, beside
//! the values. It takes the plain path, as no kernel knows it.

use burn::tensor::Tensor;

use super::{Attended, Attention, AttentionError, AttentionOptions};

/// What is done between the words; by default nothing.
pub(crate) trait Between {
    /// Before the mask: scores, capped and biased, `[batch, heads, queries, keys]` -> the same.
    fn scores(&self, scores: Tensor<4>) -> Tensor<4> {
        scores
    }

    /// After the normaliser: weights `[batch, heads, queries, keys]` -> the same.
    fn weights(&self, weights: Tensor<4>) -> Tensor<4> {
        weights
    }

    /// What is read beside the values by the weights, after dropout: `[batch, heads, queries, value size]`.
    fn beside_values(&self, _weights: &Tensor<4>) -> Result<Option<Tensor<4>>, AttentionError> {
        Ok(None)
    }
}

/// Nothing.
pub(super) struct Nothing;

impl Between for Nothing {}

impl Attention {
    /// [`Attention::forward_with`], with `between` done between the words.
    pub(crate) fn forward_between(
        &self,
        query: Tensor<4>,
        key: Tensor<4>,
        value: Tensor<4>,
        call: AttentionOptions<'_>,
        between: &dyn Between,
    ) -> Result<Attended, AttentionError> {
        let problem = self.problem(query, key, value, false, call)?;
        problem.solve(self, Some(between))
    }
}
