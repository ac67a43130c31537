//! Talking heads: heads mix their scores before the softmax, and their weights after it (Shazeer et al.
//! 2020, "Talking-Heads Attention").
//!
//! `S' = Σ_i S_i P^S_{ij}`, `A = softmax(mask(S'))`, `A' = Σ_j A_j P^A_{jk}`, with `P^S, P^A [h, h]`; head
//! `k` reads its values with `A'_k`.
//!
//! Small heads compare in few dimensions; with mixing, each softmax gets the scores of all heads. The mask
//! acts after the first mixing, so that a hidden key stays hidden. What is hidden from a head, by a mask or a
//! bias of -∞, is 0 in that mixing, so that it reaches no other head. Mixed weights need not be positive, nor
//! sum to 1.
//!
//! The paper leaves the initial values open; here both matrices start as the identity, so that a new layer
//! is plain multi-head attention. Dropout acts on the mixed weights, as in CaiT's code.
//!
//! - **Shapes**: scores and weights `[batch, heads, queries, keys]`.
//! - **When**: many small heads (CaiT; T5 variants). **When not**: long sequences: between the mixings
//!   all scores of all heads must be in memory, and no kernel serves the call.
//! - **Cost**: `2 h²` parameters; `2 h² L S` multiplications, `L S h` numbers of memory.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::{AttentionOptions, Observe, heads::MultiHeadConfig, initialize::Initializer};
//!
//! let device = Device::flex();
//! let config = MultiHeadConfig { talking_heads: true, ..MultiHeadConfig::new(8, 2) };
//! let layer = config.init(&mut Initializer::new(1, &device))?;
//! let read = layer.forward(Tensor::ones([1, 3, 8], &device), AttentionOptions::new(Observe::Weights))?;
//! assert_eq!(read.attended.weights.unwrap().dims(), [1, 2, 3, 3]);
//! # Ok::<(), regard_nn::AttentionError>(())
//! ```

use burn::{
    module::{Module, Param},
    tensor::{Tensor, TensorData},
};

use crate::{bridge::matmul, initialize::Initializer};

/// `P^S` and `P^A`.
#[derive(Module, Debug)]
pub struct TalkingHeads {
    /// `P^S`, `[h, h]`: from the scores of a head to those of another.
    pub scores: Param<Tensor<2>>,
    /// `P^A`, `[h, h]`: from the weights of a head to those of another.
    pub weights: Param<Tensor<2>>,
}

impl TalkingHeads {
    /// Identity matrices: heads do not mix yet.
    pub fn new(heads: usize, initializer: &mut Initializer) -> Self {
        let mut identity = vec![0.0f32; heads * heads];
        identity
            .iter_mut()
            .step_by(heads + 1)
            .for_each(|x| *x = 1.0);
        let matrix = || {
            let data = TensorData::new(identity.clone(), [heads, heads]);
            Param::from_tensor(Tensor::from_data(data, initializer.device()))
        };
        Self {
            scores: matrix(),
            weights: matrix(),
        }
    }

    /// `S'`, of the shape of `scores`.
    pub fn mix_scores(&self, scores: Tensor<4>) -> Tensor<4> {
        mix(scores, &self.scores)
    }

    /// `A'`, of the shape of `weights`.
    pub fn mix_weights(&self, weights: Tensor<4>) -> Tensor<4> {
        mix(weights, &self.weights)
    }
}

fn mix(x: Tensor<4>, matrix: &Param<Tensor<2>>) -> Tensor<4> {
    let [batch, heads, queries, keys] = x.dims();
    let mixed = matmul(
        matrix.val().transpose().unsqueeze::<3>(),
        x.reshape([batch, heads, queries * keys]),
    );
    mixed.reshape([batch, heads, queries, keys])
}
