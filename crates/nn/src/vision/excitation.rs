//! The two layers that compute a score for each channel from a summary of each channel, shared by
//! [`SqueezeExcite`](super::SqueezeExcite) and [`ChannelAttention`](super::ChannelAttention).

use burn::{
    module::Module,
    nn::Linear,
    tensor::{Tensor, activation::relu},
};

use super::error::{VisionError, divide};
use crate::{bridge::apply, initialize::Initializer, record::report};

/// `W_2 ReLU(W_1 z)`: a bottleneck of `channels / reduction` units between two layers.
#[derive(Module, Debug)]
pub struct Excitation {
    /// `W_1ᵀ`, `[channels, channels / reduction]`.
    pub reduce: Linear,
    /// `W_2ᵀ`, `[channels / reduction, channels]`.
    pub expand: Linear,
}

impl Excitation {
    pub(super) fn new(
        channels: usize,
        reduction: usize,
        bias: bool,
        initializer: &mut Initializer,
    ) -> Result<Self, VisionError> {
        let hidden = divide(("channels", channels), ("reduction", reduction))?;
        Ok(Self {
            reduce: initializer.linear(channels, hidden, bias),
            expand: initializer.linear(hidden, channels, bias),
        })
    }

    pub(super) fn channels(&self) -> usize {
        self.reduce.weight.dims()[0]
    }

    /// `z [batch, channels]` -> `[batch, channels]`.
    pub(super) fn forward(&self, z: Tensor<2>) -> Tensor<2> {
        report("squeezed", || z.clone());
        let hidden = relu(apply(&self.reduce, z));
        report("hidden", || hidden.clone());
        let scores = apply(&self.expand, hidden);
        report("scores", || scores.clone());
        scores
    }
}
