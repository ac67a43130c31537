//! What attention returns.

use burn::tensor::{Int, Tensor};

use super::observe::Observed;

/// The result of attention: the context, and what was observed of the weights.
///
/// What is observed has no gradient, unless [`super::AttentionOptions::differentiable`] asked for it.
#[derive(Debug, Clone)]
pub struct Attended {
    /// The weighted sum of the values: `[batch, heads, queries, value size]`.
    pub context: Tensor<4>,
    /// One row a query, `[batch, heads, queries (or chosen rows), keys]`, before dropout. Under softmax a
    /// row sums to 1, or is 0 where nothing may be seen.
    pub weights: Option<Tensor<4>>,
    /// `ln Σ_i e^{s_i}` over the seen keys (and the sink), `[batch, heads, queries]`; -∞ where nothing may be
    /// seen. Only of the softmax normalisers.
    pub lse: Option<Tensor<3>>,
    /// `[batch, heads, queries]`, in nats; includes the share of a sink.
    pub entropy: Option<Tensor<3>>,
    /// `[batch, heads, keys]`.
    pub column_sums: Option<Tensor<3>>,
    /// The most attended keys.
    pub top: Option<Top>,
    /// The keys that hard attention drew.
    pub sampled: Option<Sampled>,
    /// State for the next reading: pass it to [`super::AttentionOptions::carried`].
    pub carried: Option<Tensor<4>>,
}

/// The most attended keys of each query, best first; of equal weights the earlier key.
#[derive(Debug, Clone)]
pub struct Top {
    /// `[batch, heads, queries, k]`; -1 where the weight is 0.
    pub keys: Tensor<4, Int>,
    /// `[batch, heads, queries, k]`.
    pub weights: Tensor<4>,
}

/// What hard attention drew, and what its gradient estimator needs.
#[derive(Debug, Clone)]
pub struct Sampled {
    /// The drawn keys, `[batch, heads, queries]`, also of rows where the softmax was read in place of the draw
    /// ([`Estimator::Reinforce`](crate::normalize::Estimator::Reinforce) with `soften`); -1 where there are none to draw from.
    pub keys: Tensor<3, Int>,
    /// `ln p` of each draw, with gradient into the scores: `[batch, heads, queries]`; 0 where the softmax was read in its place.
    pub log_probability: Tensor<3>,
    /// `H[α]` of the distribution drawn from, with gradient: `[batch, heads, queries]`.
    pub entropy: Tensor<3>,
}

impl Sampled {
    /// What was drawn at all steps of a decoder, each for the queries after those of the step before; `None` if there are no steps, or
    /// nothing was drawn at one of them.
    pub fn all_steps(steps: impl IntoIterator<Item = Option<Self>>) -> Option<Self> {
        let steps: Option<Vec<Self>> = steps.into_iter().collect();
        let steps = steps.filter(|steps| !steps.is_empty())?;
        let joined = |of: fn(&Self) -> &Tensor<3>| {
            Tensor::cat(steps.iter().map(|step| of(step).clone()).collect(), 2)
        };
        Some(Self {
            keys: Tensor::cat(steps.iter().map(|step| step.keys.clone()).collect(), 2),
            log_probability: joined(|step| &step.log_probability),
            entropy: joined(|step| &step.entropy),
        })
    }
}

impl Attended {
    /// The context, and what was observed.
    pub(crate) fn of(context: Tensor<4>, observed: Observed) -> Self {
        Self {
            context,
            weights: observed.weights,
            lse: None,
            entropy: observed.entropy,
            column_sums: observed.column_sums,
            top: observed.top,
            sampled: None,
            carried: None,
        }
    }
}
