//! Cross-entropy with label smoothing over the target tokens of a batch.

use burn::tensor::{Int, Tensor};
use regard_models::tokens::PADDING;
use regard_nn::bridge;

pub use bridge::CrossEntropy;

/// The mean loss per target token of `logits [time · batch, vocabulary]` against
/// `outputs [time · batch]`, padding left out, with label `smoothing`.
pub fn loss(logits: Tensor<2>, outputs: Tensor<1, Int>, smoothing: f64) -> CrossEntropy {
    bridge::cross_entropy_mean(logits, outputs, PADDING as usize, smoothing as f32)
}
