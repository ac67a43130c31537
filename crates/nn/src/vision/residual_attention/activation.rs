//! How the mask branch turns its scores into a mask (Wang et al. 2017, section 3.2).

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use crate::{bridge::sigmoid, vision::per_channel};

/// How scores `x [batch, channels, height, width]` become a mask of the same shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum MaskActivation {
    /// `σ(x)` for each channel and position alone: the paper's choice.
    #[default]
    Mixed,
    /// `x_i / ‖x_i‖`: the channels of each position as a unit vector, so that positions cannot differ in
    /// weight. Where all channels are 0 the mask is 0.
    Channel,
    /// `σ((x_c - mean_c) / std_c)`, mean and deviation over the positions of each channel of each image,
    /// so that channels cannot differ in weight. As in instance normalisation,
    /// `std² = variance + 10⁻⁵`; the paper does not say what happens to constant channels.
    Spatial,
}

/// Added to the variance of [`MaskActivation::Spatial`].
const EPSILON: f64 = 1e-5;

impl MaskActivation {
    /// The mask of `scores`, in the same shape.
    pub fn forward(self, scores: Tensor<4>) -> Tensor<4> {
        match self {
            Self::Mixed => sigmoid(scores),
            Self::Channel => {
                // Burn has no maximum of nothing.
                if scores.dims().contains(&0) {
                    return scores;
                }
                // Squares of small scores would be 0, of large ones infinite. The mask does not depend on the scale, so that the
                // gradient need not know it.
                let largest = scores.clone().detach().abs().max_dim(1); // [batch, 1, height, width]
                let zero = largest.clone().equal_elem(0.0);
                let scores = scores / largest.mask_fill(zero, 1.0);
                let square = scores.clone().square().sum_dim(1); // [batch, 1, height, width]
                let zero = square.clone().equal_elem(0.0);
                scores / square.mask_fill(zero, 1.0).sqrt()
            }
            Self::Spatial => {
                let shape = scores.dims();
                let values = per_channel(&scores); // [batch, channels, positions]
                let centred = values.clone() - values.mean_dim(2);
                let variance = centred.clone().square().mean_dim(2);
                sigmoid(centred / (variance + EPSILON).sqrt()).reshape(shape)
            }
        }
    }
}
