//! Learned positions: one trained vector for each position, added to the embeddings (Gehring et al.
//! 2017, section 3.1; BERT, GPT-2).
//!
//! `x_p' = x_p + P_p`, `P [positions, d]`
//!
//! - **Shapes**: `x [batch, length, d]` -> the same, for at most `positions` tokens.
//! - **When**: to reproduce BERT, GPT-2 or ViT; for short inputs of bounded length, images among them.
//!   **When not**: for texts longer than those of training: a position that was never trained has a
//!   random vector, and beyond the table there is none.
//! - **Cost**: `positions · d` parameters; one addition a token.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::{AttentionError, initialize::Initializer, position::Learned};
//!
//! let device = Device::flex();
//! let learned = Learned::new(16, 4, &mut Initializer::new(1, &device))?;
//! assert_eq!(learned.forward(Tensor::zeros([2, 5, 4], &device), 11)?.dims(), [2, 5, 4]);
//! assert!(learned.forward(Tensor::zeros([2, 5, 4], &device), 12).is_err()); // beyond the table
//! # Ok::<(), AttentionError>(())
//! ```

use burn::{module::Module, nn::Embedding, tensor::Tensor};

use super::{expect_last, expect_positive};
use crate::{attention::AttentionError, initialize::Initializer, precision::check_weights};

/// The standard deviation of the initial vectors (BERT, GPT-2).
const DEVIATION: f32 = 0.02;

/// One trained vector for each position.
#[derive(Module, Debug)]
pub struct Learned {
    /// `P`, `[positions, d]`.
    pub table: Embedding,
}

impl Learned {
    /// Vectors of `size` for `positions` positions, from `N(0, 0.02²)`.
    ///
    /// # Errors
    /// If `positions` or `size` is 0.
    pub fn new(
        positions: usize,
        size: usize,
        initializer: &mut Initializer,
    ) -> Result<Self, AttentionError> {
        expect_positive("positions", positions)?;
        expect_positive("size", size)?;
        Ok(Self {
            table: initializer.embedding(positions, size, DEVIATION),
        })
    }

    /// `x [batch, length, d]`, whose first token stands at position `first`, with its positions added.
    ///
    /// # Errors
    /// If the last dimension of `x` is not `d`, or if `first + length` is more than `positions`.
    pub fn forward(&self, x: Tensor<3>, first: usize) -> Result<Tensor<3>, AttentionError> {
        let [positions, size] = self.table.weight.dims();
        expect_last("x", &x.dims(), size)?;
        check_weights("x", x.dtype(), self)?;
        let length = x.dims()[1];
        if length == 0 {
            return Ok(x);
        }
        let end = first.saturating_add(length);
        if end > positions {
            return Err(AttentionError::value(
                "first + length",
                end,
                format!("at most {positions}, the positions that have a vector"),
                "cut the text, or make the table with more positions and train it",
            ));
        }
        let vectors = self.table.weight.val().narrow(0, first, length);
        Ok(x + vectors.unsqueeze::<3>())
    }
}
