//! Learned positions: one trained vector for each position, added to the embeddings (Gehring et al.
//! 2017, section 3.1; BERT, GPT-2).
//!
//! `x_p' = x_p + P_p`, `P [positions, d]`
//!
//! - **Shapes**: `x [batch, length, d]` -> the same, for at most `positions` tokens.
//! - **When**: to reproduce BERT, GPT-2 or ViT; for short inputs of bounded length, images among them.
//!   **When not**: for texts longer than those of training: a position never trained has a random
//!   vector, and past the table there is none.
//! - **Cost**: `positions · d` parameters; one addition a token.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::{initialize::Initializer, position::{Learned, PositionError}};
//!
//! let device = Device::flex();
//! let learned = Learned::new(16, 4, &mut Initializer::new(1, &device))?;
//! assert_eq!(learned.forward(Tensor::zeros([2, 5, 4], &device), 11)?.dims(), [2, 5, 4]);
//! let beyond = learned.forward(Tensor::zeros([2, 5, 4], &device), 12);
//! assert!(matches!(beyond, Err(PositionError::Beyond { last: 16, positions: 16 })));
//! # Ok::<(), PositionError>(())
//! ```

use burn::{module::Module, nn::Embedding, tensor::Tensor};

use super::error::{PositionError, expect_last};
use crate::initialize::Initializer;

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
    ) -> Result<Self, PositionError> {
        for (field, found) in [("positions", positions), ("size", size)] {
            if found == 0 {
                return Err(PositionError::value(field, found, "at least 1"));
            }
        }
        Ok(Self {
            table: initializer.embedding(positions, size, DEVIATION),
        })
    }

    /// `x [batch, length, d]`, whose first token stands at position `first`, with its positions added.
    ///
    /// # Errors
    /// If the last dimension of `x` is not `d`, or if `first + length` is more than `positions`.
    pub fn forward(&self, x: Tensor<3>, first: usize) -> Result<Tensor<3>, PositionError> {
        let [positions, size] = self.table.weight.dims();
        expect_last("x", &x.dims(), size)?;
        let length = x.dims()[1];
        if length == 0 {
            return Ok(x);
        }
        if first + length > positions {
            return Err(PositionError::Beyond {
                last: first + length - 1,
                positions,
            });
        }
        let vectors = self.table.weight.val().narrow(0, first, length);
        Ok(x + vectors.unsqueeze::<3>())
    }
}
