//! Hard attention: one key, not a mixture.
//!
//! - [`Hardmax`]: the best key, `α = one-hot(argmax s)`; of equal scores the first. No gradient reaches the scores: for
//!   evaluation, or where scores are trained by other means.
//! - [`HardSample`]: a key drawn from `softmax(s)` (Xu 2015, section 4.1: stochastic "hard" attention), with one of
//!   three gradient estimators ([`Estimator`]):
//!
//! | estimator | forward | gradient into the scores | source |
//! |---|---|---|---|
//! | straight-through | one-hot draw | that of the softmax | Bengio 2013 |
//! | Gumbel | one-hot draw | that of `softmax((s + g) / τ)`, `g` the Gumbel noise of the draw | Jang 2017 |
//! | REINFORCE | one-hot draw, or `α` itself with probability ½ | none through the weights: [`Reinforce`](super::Reinforce) adds it to the loss | Xu 2015 |
//!
//! Straight-through and Gumbel are biased but steady; REINFORCE is unbiased and noisy, hence its baseline.
//! Without noise (inference) all pick the most probable key.
//!
//! Use it where only the chosen key may be computed or shown (a glimpse of an image, a row of a memory). Not where a mixture
//! serves as well: it trains more slowly and with more variance.
//!
//! Cost: a softmax and, in training, a random number for each row (Gumbel: for each score).
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::normalize::Hardmax;
//!
//! let scores = Tensor::<4>::from_floats([[[[2.0, 3.0, 0.1]]]], &Device::flex());
//! let weights = Hardmax.forward(scores, None).weights;
//! assert_eq!(weights.into_data().into_vec::<f32>().unwrap(), [0.0, 1.0, 0.0]);
//! ```

use std::convert::identity;

use burn::{
    module::Module,
    tensor::{Bool, DType, Int, Tensor},
};

use super::{NormalizeFunction, NormalizeOptions, Normalized, softmax::Parts};
use crate::{
    attention::{AttentionError, Sampled, check_divisor},
    bridge::{spread, zeros_of},
    dropout::DropoutRng,
};

/// The best key alone.
#[derive(Module, Debug, Default)]
pub struct Hardmax;

/// A drawn key.
#[derive(Module, Debug)]
pub struct HardSample {
    #[module(skip)]
    estimator: Estimator,
}

/// How the gradient of a draw is estimated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Estimator {
    /// With the gradient of the softmax.
    StraightThrough,
    /// With the gradient of the relaxed draw.
    Gumbel {
        /// `τ`: lower is closer to the draw, and noisier.
        temperature: f64,
    },
    /// By the loss of [`super::Reinforce`]. With `soften`, a call uses `α` in place of the draw with probability ½ (one
    /// decision for each batch row), as in Xu 2015.
    Reinforce {
        /// Whether to take `α` half of the time.
        soften: bool,
    },
}

impl Hardmax {
    /// Weights of scores `[batch, heads, queries, keys]`.
    pub fn forward(&self, scores: Tensor<4>, seen: Option<Tensor<4, Bool>>) -> Normalized {
        if scores.dims().contains(&0) {
            return Normalized::new(scores);
        }
        let best = best(&scores, &seen);
        Normalized::new(super::hide(one_hot(best, &scores), &seen))
    }
}

impl HardSample {
    /// A sampler with `estimator`.
    pub fn new(estimator: Estimator) -> Self {
        Self { estimator }
    }

    /// How the gradient of a draw is estimated.
    pub fn estimator(&self) -> Estimator {
        self.estimator
    }

    /// Weights of scores `[batch, heads, queries, keys]`, and what was drawn.
    pub fn forward(
        &self,
        scores: Tensor<4>,
        seen: Option<Tensor<4, Bool>>,
        noise: Option<&mut DropoutRng>,
    ) -> Normalized {
        let shape = scores.dims();
        if shape.contains(&0) {
            let [batch, heads, queries, _] = shape;
            let rows = [batch, heads, queries];
            let zeros = Tensor::zeros(rows, (&scores.device(), scores.dtype()));
            let zeros = zeros_of(zeros, &scores);
            let sampled = Sampled {
                keys: Tensor::full(rows, -1, &scores.device()),
                log_probability: zeros.clone(),
                entropy: zeros,
            };
            return Normalized {
                sampled: Some(sampled),
                ..Normalized::new(scores)
            };
        }
        let device = scores.device();
        let dtype = scores.dtype();
        let mut softened = None; // where α itself is read, [batch, 1, 1, 1]
        let gumbel = noise.and_then(|noise| {
            if let Estimator::Reinforce { soften: true } = self.estimator {
                let uniform = noise.uniform([shape[0], 1, 1, 1], &device);
                softened = uniform.map(|uniform| uniform.lower_elem(0.5));
            }
            let uniform = noise.uniform(shape, &device)?; // at lower precision it could round to 1
            Some(uniform.log().neg().log().neg().cast(dtype)) // -ln(-ln u)
        });
        let perturbed = match gumbel {
            // argmax(s + g) is a draw from softmax(s) (Gumbel 1954).
            Some(gumbel) => scores.clone() + gumbel,
            None => scores.clone(),
        };
        let drawn = best(&perturbed, &seen);
        let hard = super::hide(one_hot(drawn.clone(), &scores), &seen);
        let soft = Parts::new(scores.clone(), seen.clone(), None);
        let log_probabilities = super::hide(scores - soft.lse(), &seen); // 0 where unseen
        let soft = soft.weights();
        let log_probability = log_probabilities.clone().gather(3, drawn.clone());
        let rows = log_probability.dims();
        // A draw that is not read has no part in the result: its reward would be noise.
        let log_probability = match &softened {
            None => log_probability,
            Some(softened) => log_probability.mask_fill(softened.clone().expand(rows), 0.0),
        };
        let keys = match &seen {
            None => drawn.clone(),
            Some(seen) => {
                let blind = spread(seen.clone().any_dim(3).bool_not(), rows);
                drawn.clone().mask_fill(blind, -1)
            }
        };
        let entropy = (soft.clone() * log_probabilities).sum_dim(3).neg();
        let straight = |soft: Tensor<4>| hard.clone() + soft.clone() - soft.detach();
        let weights = match self.estimator {
            Estimator::StraightThrough => straight(soft),
            Estimator::Gumbel { temperature } => {
                // Differences first: however low the temperature, the best is then 0, and the others are below it, at worst -∞.
                let best = perturbed.clone().detach().gather(3, drawn.clone());
                let scores = (perturbed - best) * (1.0 / temperature);
                straight(super::masked_softmax(scores, seen))
            }
            Estimator::Reinforce { .. } => match softened {
                None => hard,
                Some(softened) => hard.mask_where(softened.expand(shape), soft),
            },
        };
        Normalized {
            sampled: Some(Sampled {
                keys: keys.squeeze_dim(3),
                log_probability: log_probability.squeeze_dim(3),
                entropy: entropy.squeeze_dim(3),
            }),
            ..Normalized::new(weights)
        }
    }
}

/// The best seen key of each row, `[batch, heads, queries, 1]`; of equal scores the first.
fn best(scores: &Tensor<4>, seen: &Option<Tensor<4, Bool>>) -> Tensor<4, Int> {
    let scores = scores.clone().detach();
    let shape = scores.dims();
    let scores = match seen {
        None => scores,
        Some(seen) => {
            let unseen = seen.clone().bool_not().expand(shape);
            scores.mask_fill(unseen, f32::NEG_INFINITY)
        }
    };
    scores.argmax(3)
}

/// 1 at `keys [batch, heads, queries, 1]`, like `scores`.
fn one_hot(keys: Tensor<4, Int>, scores: &Tensor<4>) -> Tensor<4> {
    let shape = scores.dims();
    let positions = Tensor::<1, Int>::arange(0..shape[3] as i64, &scores.device())
        .cast(keys.dtype())
        .unsqueeze_dims::<4>(&[0, 1, 2])
        .expand(shape);
    positions
        .equal(keys.expand(shape))
        .float()
        .cast(scores.dtype())
}

impl NormalizeFunction for Hardmax {
    fn name(&self) -> &'static str {
        "hardmax"
    }

    fn normalize(&self, scores: Tensor<4>, options: NormalizeOptions<'_>) -> Normalized {
        self.forward(scores, options.seen)
    }
}

impl NormalizeFunction for HardSample {
    fn name(&self) -> &'static str {
        "hard sample"
    }

    fn normalize(&self, scores: Tensor<4>, options: NormalizeOptions<'_>) -> Normalized {
        self.forward(scores, options.seen, options.noise)
    }

    fn check(&self, _heads: usize, dtype: DType) -> Result<(), AttentionError> {
        match self.estimator {
            Estimator::Gumbel { temperature } => {
                let advice = "1 is usual; lower is nearer to the draw";
                check_divisor("Gumbel temperature", temperature, identity, dtype, advice)
            }
            _ => Ok(()),
        }
    }
}
