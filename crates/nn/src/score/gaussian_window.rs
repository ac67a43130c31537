//! The soft window of handwriting synthesis (Graves 2013, section 5.1):
//! `φ(t, u) = Σ_k a_k exp(-b_k (κ_k - u)²)`, `κ_t = κ_{t-1} + e^{κ̂_t}`.
//!
//! A mixture of `K` Gaussians moves over the text, forward only: each query determines the heights `a`, the
//! sharpnesses `b` and the steps of the centres `κ`, all by an exponential. Positions `u` count from 0.
//!
//! `φ` is the weight itself: use it with [`crate::normalize::Normalize::identity`]; the weights of a row need
//! not sum to 1. The centres continue from query to query; a decoder that runs step by step passes them on
//! through [`crate::Attended::carried`]. They move on with every query, also with one that sees no key.
//!
//! Use it where the reading order is monotonic and an explicit position is wanted (handwriting, speech
//! synthesis). Not for translation: it never goes back, and does not depend on the content that it reads.
//!
//! Cost: `Lq · Lk · K` exponentials.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::{initialize::Initializer, score::GaussianWindow};
//!
//! let device = Device::flex();
//! let window = GaussianWindow::new(4, 3, &mut Initializer::new(1, &device));
//! let (weights, centres) = window.forward(Tensor::ones([2, 1, 5, 4], &device), None, 7);
//! assert_eq!((weights.dims(), centres.dims()), ([2, 1, 5, 7], [2, 1, 1, 3]));
//! ```

use burn::{
    module::Module,
    nn::Linear,
    tensor::{DType, Int, Tensor},
};

use super::{ScoreFunction, Sizes};
use crate::{
    attention::AttentionError,
    bridge::{apply, zeros_of},
    initialize::Initializer,
    normalize::Normalize,
    record::report,
};

/// `Σ_k a_k exp(-b_k (κ_k - u)²)`.
#[derive(Module, Debug)]
pub struct GaussianWindow {
    /// Computes `â | b̂ | κ̂`, `[query size, 3 K]`, with bias.
    pub parameters: Linear,
}

impl GaussianWindow {
    /// A mixture of `components` Gaussians from queries of `query_size`.
    pub fn new(query_size: usize, components: usize, initializer: &mut Initializer) -> Self {
        Self {
            parameters: initializer.linear(query_size, 3 * components, true),
        }
    }

    /// `K`.
    pub fn components(&self) -> usize {
        self.parameters.weight.dims()[1] / 3
    }

    /// Weights `[batch, heads, queries, keys]` of `query [batch, heads, queries, query size]`, and the centres
    /// after the last query, `[batch, heads, 1, K]`. `centres` are those before the first query, of the same
    /// shape; `None` for 0.
    pub fn forward(
        &self,
        query: Tensor<4>,
        centres: Option<Tensor<4>>,
        keys: usize,
    ) -> (Tensor<4>, Tensor<4>) {
        let [batch, heads, queries, _] = query.dims();
        if [batch, heads, queries].contains(&0) {
            let options = (&query.device(), query.dtype());
            let none = zeros_of(
                Tensor::zeros([batch, heads, queries, keys], options),
                &query,
            );
            let start = || Tensor::zeros([batch, heads, 1, self.components()], options);
            return (none, centres.unwrap_or_else(start));
        }
        let exponentials = apply(&self.parameters, query).exp(); // [batch, heads, queries, 3 K]
        let mut parts = exponentials.chunk(3, 3);
        let (steps, sharpness, height) = (parts.remove(2), parts.remove(1), parts.remove(0));
        let mut centre = steps.cumsum(2); // [batch, heads, queries, K]
        if let Some(before) = centres {
            centre = centre + before;
        }
        report("heights", || height.clone());
        report("sharpnesses", || sharpness.clone());
        report("centres", || centre.clone());
        let last = centre.clone().narrow(2, queries - 1, 1); // [batch, heads, 1, K]
        if keys == 0 {
            let none = Tensor::zeros([batch, heads, queries, 0], (&last.device(), last.dtype()));
            return (zeros_of(none, &last), last);
        }
        let positions = Tensor::<1, Int>::arange(0..keys as i64, &centre.device())
            .float()
            .cast(centre.dtype())
            .unsqueeze_dims::<5>(&[0, 1, 2, 3]);
        let of_component = |x: Tensor<4>| x.unsqueeze_dim::<5>(4); // [batch, heads, queries, K, 1]
        let distance = of_component(centre) - positions; // [batch, heads, queries, K, keys]
        let bumps = (of_component(sharpness).neg() * distance.powi_scalar(2)).exp();
        let weights = (of_component(height) * bumps).sum_dim(3).squeeze_dim(3);
        (weights, last)
    }
}

impl ScoreFunction for GaussianWindow {
    fn name(&self) -> &'static str {
        "Gaussian window"
    }

    fn sizes(&self) -> Sizes {
        Sizes::Query(self.parameters.weight.dims()[0])
    }

    /// Scores with centres that start at 0.
    fn score(&self, query: Tensor<4>, keys: Tensor<4>) -> Tensor<4> {
        self.forward(query, None, keys.dims()[2]).0
    }

    fn score_after(
        &self,
        query: Tensor<4>,
        keys: Tensor<4>,
        carried: Option<Tensor<4>>,
    ) -> (Tensor<4>, Option<Tensor<4>>) {
        let (weights, centres) = self.forward(query, carried, keys.dims()[2]);
        (weights, Some(centres))
    }

    fn carried_size(&self) -> Option<usize> {
        Some(self.components())
    }

    fn counts_positions(&self) -> bool {
        true
    }

    fn check(&self, normalize: &Normalize, _dtype: DType) -> Result<(), AttentionError> {
        match normalize {
            Normalize::Identity(_) => Ok(()),
            other => Err(AttentionError::combination(
                "score",
                self.name(),
                format!("the {} normaliser", other.name()),
                "its weights are final; use Normalize::identity",
            )),
        }
    }
}
