//! Location-based score (Luong 2015): `a_t = softmax(W s_t)`. The score of position `i` depends on the
//! query alone. `W` knows a fixed number of positions; as in the paper, words beyond it are ignored.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::{initialize::Initializer, score::Location};
//!
//! let device = Device::flex();
//! let score = Location::new(4, 50, &mut Initializer::new(1, &device));
//! assert_eq!(score.forward(Tensor::ones([2, 3, 4], &device), 7).dims(), [2, 3, 7]);
//! ```

use burn::{module::Module, nn::Linear, tensor::Tensor};

use crate::initialize::Initializer;

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

    /// `query [batch, queries, query size]` -> `[batch, queries, keys]`; keys beyond
    /// [`Location::positions`] score 0 and are for the caller to mask.
    pub fn forward(&self, query: Tensor<3>, keys: usize) -> Tensor<3> {
        let [batch, queries, _] = query.dims();
        let known = self.positions().min(keys);
        let scores = self.weight.forward(query).narrow(2, 0, known);
        if known == keys {
            return scores;
        }
        let rest = Tensor::zeros([batch, queries, keys - known], &scores.device());
        Tensor::cat(vec![scores, rest], 2)
    }
}
