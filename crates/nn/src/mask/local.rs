//! Luong's local attention (Luong, Pham, Manning 2015, section 3.2): which part of the source a
//! decoder step sees.
//!
//! - local-m: `p_t = t`
//! - local-p: `p_t = S · σ(v_pᵀ tanh(W_p h_t))`, and the weights inside the window are multiplied by
//!   `exp(-(s - p_t)² / 2σ²)`, `σ = D/2`, and not renormalised, so that `p_t` is trained
//!
//! Positions `s` count from 0; the window is `[p_t - D, p_t + D]`, cut at the sentence's ends, and the
//! softmax runs inside it. `S` is the true length of each sentence.

use burn::{
    module::{Module, Param},
    nn::Linear,
    tensor::{Bool, Device, Int, Tensor, TensorData, activation},
};
use serde::{Deserialize, Serialize};

use super::Keep;
use crate::initialize::Initializer;

/// Which part of the source a decoder step may see.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum Locality {
    /// The whole source.
    #[default]
    Global,
    /// local-m: the window `[t - D, t + D]` around the decoder step's own number.
    Monotonic {
        /// `D`, in source positions.
        half_width: usize,
    },
    /// local-p: the window `[p_t - D, p_t + D]` around a predicted position.
    Predictive {
        /// `D`, in source positions.
        half_width: usize,
    },
}

/// Predicts the centre of attention: `p = S · σ(v_pᵀ tanh(W_p h))`.
#[derive(Module, Debug)]
pub struct PositionPredictor {
    /// `W_p`, `[query size, query size]`, no bias.
    pub hidden: Linear,
    /// `v_p`, `[query size]`.
    pub vector: Param<Tensor<1>>,
}

impl PositionPredictor {
    /// A predictor for queries of size `query_size`.
    pub fn new(query_size: usize, initializer: &mut Initializer) -> Self {
        let bound = 1.0 / (query_size as f32).sqrt();
        Self {
            hidden: initializer.linear(query_size, query_size, false),
            vector: initializer.uniform([query_size], bound),
        }
    }

    /// The centre `p` for each query. `query` is `[batch, queries, size]`; the result
    /// `[batch, queries, 1]`, in source positions of each sentence.
    pub fn forward(&self, query: Tensor<3>, keep: &Keep) -> Tensor<3> {
        let device = query.device();
        let hidden = self.hidden.forward(query).tanh(); // [batch, queries, size]
        let vector = self.vector.val().unsqueeze_dims::<3>(&[0, 1]); // [1, 1, size]
        let share = activation::sigmoid((hidden * vector).sum_dim(2)); // [batch, queries, 1]
        share * source_lengths(keep, &device)
    }
}

/// `[batch, 1, 1]`.
fn source_lengths(keep: &Keep, device: &Device) -> Tensor<3> {
    let lengths: Vec<f32> = keep.lengths().iter().map(|&n| n as f32).collect();
    let batch = lengths.len();
    Tensor::from_data(TensorData::new(lengths, [batch, 1, 1]), device)
}

/// Source positions `0..length` as `[1, 1, length]`.
fn positions(length: usize, device: &Device) -> Tensor<3> {
    Tensor::<1, Int>::arange(0..length as i64, device)
        .float()
        .unsqueeze_dims::<3>(&[0, 1])
}

/// Where `|s - centre| <= half_width`; `centre` is `[batch or 1, queries, 1]`, the result
/// `[batch or 1, queries, length]`.
fn window(centre: Tensor<3>, half_width: usize, length: usize) -> Tensor<3, Bool> {
    let positions = positions(length, &centre.device());
    (positions - centre)
        .abs()
        .lower_equal_scalar(half_width as f32)
}

/// local-m: `[1, queries, length]`, the queries being decoder steps `first_step..`.
pub(crate) fn monotonic_window(
    first_step: usize,
    queries: usize,
    half_width: usize,
    length: usize,
    device: &Device,
) -> Tensor<3, Bool> {
    let steps: Vec<f32> = (first_step..first_step + queries)
        .map(|t| t as f32)
        .collect();
    let centre = Tensor::from_data(TensorData::new(steps, [1, queries, 1]), device);
    window(centre, half_width, length)
}

/// local-p: the window and the Gaussian factor, both `[batch, queries, length]`.
pub(crate) fn predictive_window(
    centre: Tensor<3>,
    half_width: usize,
    length: usize,
) -> (Tensor<3, Bool>, Tensor<3>) {
    // A window of no width has no deviation; this one is 0 to any position but the centre.
    let deviation = (half_width as f32 / 2.0).max(1e-3);
    let distance = positions(length, &centre.device()) - centre.clone();
    let gaussian = (distance.powi_scalar(2) / (-2.0 * deviation * deviation)).exp();
    (window(centre.detach(), half_width, length), gaussian)
}
