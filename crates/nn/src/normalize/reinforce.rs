//! The learning rule of stochastic hard attention (Xu 2015, section 4.1 and appendix).
//!
//! The gradient of the expected log-likelihood, estimated from draws `s̃ ~ Multinoulli(α)`:
//!
//! ```text
//! (1/N) Σ_n [ ∂ log p(y|s̃) + λ_r (log p(y|s̃) - b) ∂ log p(s̃|a) + λ_e ∂ H[s̃] ]
//! b_k = 0.9 b_{k-1} + 0.1 log p(y|s̃_k)
//! ```
//!
//! The first term is the ordinary gradient of the loss through the drawn context. [`Reinforce::loss`] gives a number
//! whose gradient is the (negated) rest, to be added to the negative log-likelihood. The baseline `b` reduces the variance
//! and adds no bias; the entropy `H` keeps the draws from settling early.
//!
//! Use it where the true gradient of sampled attention is needed. Try straight-through first, which is simpler and often as
//! good. Cost: that of the draws' log-probabilities, negligible beside the forward pass; but many updates, as its noise is
//! large.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::{attention::Sampled, normalize::Reinforce};
//!
//! let device = Device::flex();
//! let sampled = Sampled {
//!     keys: Tensor::zeros([2, 1, 3], &device),
//!     log_probability: Tensor::full([2, 1, 3], -1.0, &device),
//!     entropy: Tensor::zeros([2, 1, 3], &device),
//! };
//! let mut rule = Reinforce { baseline: -5.0, ..Reinforce::default() };
//! let loss = rule.loss(Tensor::from_floats([-4.0, -6.0], &device), &sampled); // advantages 1 and -1
//! assert_eq!(loss.into_scalar::<f32>(), 0.0);
//! assert_eq!(rule.baseline, -5.0);
//! ```

use burn::tensor::Tensor;

use crate::{
    attention::Sampled,
    bridge::{mean, zeros_of},
};

/// The state and the weights of the learning rule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reinforce {
    /// `b`, the running mean of `log p(y|s̃)`.
    pub baseline: f64,
    /// The share of its past that the baseline keeps at an update (paper: 0.9).
    pub memory: f64,
    /// `λ_r`.
    pub reward: f64,
    /// `λ_e`.
    pub entropy: f64,
}

impl Default for Reinforce {
    fn default() -> Self {
        Self {
            baseline: 0.0,
            memory: 0.9,
            reward: 1.0,
            entropy: 0.01,
        }
    }
}

impl Reinforce {
    /// The loss to add to the mean negative log-likelihood of the batch: `log_likelihood [batch]` is
    /// `log p(y|s̃)` of each row, whose gradient is not used. Returns `[1]`, and updates the baseline.
    pub fn loss(&mut self, log_likelihood: Tensor<1>, sampled: &Sampled) -> Tensor<1> {
        let log_likelihood = log_likelihood.detach();
        if log_likelihood.dims() == [0] {
            // The mean over no rows is undefined.
            return zeros_of(log_likelihood.zeros_like().sum(), &sampled.log_probability);
        }
        let of_row =
            |x: &Tensor<3>| -> Tensor<1> { x.clone().sum_dim(2).sum_dim(1).squeeze_dims(&[1, 2]) };
        let advantage = log_likelihood.clone() - self.baseline;
        let of_batch: f64 = mean(log_likelihood).into_scalar();
        self.baseline = self.memory * self.baseline + (1.0 - self.memory) * of_batch;
        let score = advantage * of_row(&sampled.log_probability) * self.reward;
        -mean(score + of_row(&sampled.entropy) * self.entropy)
    }
}
