//! Steps that a mechanism adds between those of [`Attention`]: after the score, after the normaliser,
//! beside the values. They take the plain path, as no kernel knows them.

use burn::tensor::{Bool, Tensor};

use super::{Attended, Attention, AttentionError, AttentionOptions};

/// The added steps; by default there are none.
pub(crate) trait Between {
    /// Before the mask: scores, capped and biased, `[batch, heads, queries, keys]` -> the same. Where a key may not be `seen` (each of
    /// the four sizes or 1; `None` where all may be), a score may be anything.
    fn scores(&self, scores: Tensor<4>, _seen: &Option<Tensor<4, Bool>>) -> Tensor<4> {
        scores
    }

    /// After the normaliser: weights `[batch, heads, queries, keys]` -> the same.
    fn weights(&self, weights: Tensor<4>) -> Tensor<4> {
        weights
    }

    /// What the weights read beside the values, after dropout: `[batch, heads, queries, value size]`.
    fn beside_values(&self, _weights: &Tensor<4>) -> Result<Option<Tensor<4>>, AttentionError> {
        Ok(None)
    }
}

/// No added steps.
pub(super) struct Nothing;

impl Between for Nothing {}

impl Attention {
    /// [`Attention::forward_with`], with the added steps of `between`.
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
