//! Location-based score: `a_t = softmax(W s_t)` (Luong 2015, section 3.1). The score of position `i` depends on
//! the query alone.
//!
//! `W` has a fixed number of positions; as in the paper, words beyond it are ignored. Use it to see how much is
//! possible without the content; it is the weakest score of the paper.
//!
//! Cost: `Lq · positions · d`.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::{initialize::Initializer, score::Location};
//!
//! let device = Device::flex();
//! let score = Location::new(4, 50, &mut Initializer::new(1, &device));
//! assert_eq!(score.forward(Tensor::ones([2, 1, 3, 4], &device), 7).dims(), [2, 1, 3, 7]);
//! ```

use burn::{module::Module, nn::Linear, tensor::Tensor};

use super::{ScoreFunction, Sizes};
use crate::{
    bridge::{apply, zeros_of},
    initialize::Initializer,
};

/// `(W s)_i` for position `i`.
#[derive(Module, Debug)]
pub struct Location {
    /// `W`, `[query size, positions]`, no bias.
    pub weight: Linear,
}

impl Location {
    /// A score for queries of `query_size` over at most `positions` source positions.
    pub fn new(query_size: usize, positions: usize, initializer: &mut Initializer) -> Self {
        Self {
            weight: initializer.linear(query_size, positions, false),
        }
    }

    /// The number of positions that have a score.
    pub fn positions(&self) -> usize {
        self.weight.weight.dims()[1]
    }

    /// `query [batch, heads, queries, query size]` -> `[batch, heads, queries, keys]`; keys beyond
    /// [`Location::positions`] score 0 and must be masked by the caller ([`ScoreFunction::reach`]).
    pub fn forward(&self, query: Tensor<4>, keys: usize) -> Tensor<4> {
        let [batch, heads, queries, _] = query.dims();
        let known = self.positions().min(keys);
        let options = (&query.device(), query.dtype());
        let zeros = |keys: usize| Tensor::zeros([batch, heads, queries, keys], options);
        match (known, keys - known) {
            // Burn has no slice of nothing.
            (0, rest) => zeros_of(zeros(rest), &query),
            (_, 0) => apply(&self.weight, query).narrow(3, 0, known),
            (_, rest) => {
                let scores = apply(&self.weight, query.clone()).narrow(3, 0, known);
                Tensor::cat(vec![scores, zeros(rest)], 3)
            }
        }
    }
}

impl ScoreFunction for Location {
    fn name(&self) -> &'static str {
        "location"
    }

    fn sizes(&self) -> Sizes {
        Sizes::Query(self.weight.weight.dims()[0])
    }

    fn score(&self, query: Tensor<4>, keys: Tensor<4>) -> Tensor<4> {
        self.forward(query, keys.dims()[2])
    }

    fn counts_positions(&self) -> bool {
        true
    }

    fn reach(&self) -> Option<usize> {
        Some(self.positions())
    }
}
