//! Softmax with a sink: `α_i = e^{s_i} / (e^{sink} + Σ_j e^{s_j})`.
//!
//! The denominator has one more score, which has no value, so that a row may sum to less than 1: a head that finds
//! nothing can give its weight to the sink instead of the first token (Xiao 2024). The sink is one learned number for
//! each head (gpt-oss), or fixed; 0 is Miller's "softmax off by one" (2023).
//!
//! Use it to train decoders whose heads put much weight on the first token, or to load models that were trained with
//! it; not to load others, as weights become smaller. A row in which nothing may be seen gives weights 0. Cost: as
//! softmax.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::normalize::Sink;
//!
//! let zeros = Tensor::<4>::zeros([1, 1, 1, 3], &Device::flex());
//! let weights = Sink::fixed(0.0).forward(zeros, None).weights;
//! assert_eq!(weights.into_data().into_vec::<f32>().unwrap(), [0.25; 3]);
//! ```

use burn::{
    module::{Module, Param},
    tensor::{Bool, DType, Tensor},
};

use super::{NormalizeFunction, NormalizeOptions, Normalized, softmax::Parts};
use crate::{
    attention::{AttentionError, check_finite},
    initialize::Initializer,
};

/// `e^{s_i} / (e^{sink} + Σ_j e^{s_j})`.
#[derive(Module, Debug)]
pub struct Sink {
    /// The sink's score in each head, `[heads]`; `None` for a fixed one.
    pub logits: Option<Param<Tensor<1>>>,
    #[module(skip)]
    fixed: f64,
}

impl Sink {
    /// The same sink in every head, not trained.
    pub fn fixed(score: f64) -> Self {
        Self {
            logits: None,
            fixed: score,
        }
    }

    /// A learned sink for each of `heads`, 0 at the start.
    pub fn learned(heads: usize, initializer: &mut Initializer) -> Self {
        Self {
            logits: Some(initializer.zeros([heads])),
            fixed: 0.0,
        }
    }

    /// The number of heads a learned sink is made for.
    pub fn heads(&self) -> Option<usize> {
        self.logits.as_ref().map(|logits| logits.dims()[0])
    }

    /// The sink as `[1, heads or 1, 1, 1]` beside `scores`.
    pub(crate) fn score(&self, scores: &Tensor<4>) -> Tensor<4> {
        let options = (&scores.device(), scores.dtype());
        match &self.logits {
            Some(logits) if logits.dims() != [0] => logits.val().unsqueeze_dims(&[0, 2, 3]),
            Some(_) => Tensor::zeros([1, 0, 1, 1], options),
            None => Tensor::full([1, 1, 1, 1], self.fixed, options),
        }
    }

    /// Weights and `lse` (including the sink) of scores `[batch, heads, queries, keys]`.
    pub fn forward(&self, scores: Tensor<4>, seen: Option<Tensor<4, Bool>>) -> Normalized {
        let sink = self.score(&scores);
        let parts = Parts::new(scores, seen, Some(sink.clone())).reported();
        let lse = parts.lse();
        Normalized {
            lse: Some(lse.clone().squeeze_dim(3)),
            log_sink: Some((sink - lse).squeeze_dim(3)),
            ..Normalized::new(parts.weights())
        }
    }
}

impl NormalizeFunction for Sink {
    fn name(&self) -> &'static str {
        "softmax with a sink"
    }

    fn normalize(&self, scores: Tensor<4>, options: NormalizeOptions<'_>) -> Normalized {
        self.forward(scores, options.seen)
    }

    fn check(&self, heads: usize, dtype: DType) -> Result<(), AttentionError> {
        check_finite("sink", self.fixed, dtype)?;
        match self.heads() {
            Some(found) if found != heads && found != 1 => Err(AttentionError::value(
                "sink heads",
                found,
                format!("{heads} (the query's heads) or 1"),
                "make one sink a head",
            )),
            _ => Ok(()),
        }
    }
}
