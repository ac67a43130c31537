//! `eˣ` and `σ(x) = 1 / (1 + e⁻ˣ)`, with the gradient `σ (1 - σ)`, within a few roundings on every device.
//!
//! On graphics cards `eˣ` is ours: what a card computes itself may be `3 + 2 |x|` roundings away. Burn's sigmoid is `exp(-ln(1 + exp(-x)))` there,
//! whose error grows with `|x|`, too.

use burn::tensor::Tensor;

#[cfg(feature = "gpu")]
use super::card;

/// `eˣ` of every number.
pub(crate) fn exp<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    #[cfg(feature = "gpu")]
    if crate::devices::is_card(&x.device()) {
        return card::exp(x);
    }
    x.exp()
}

/// `1 / (1 + exp(-x))` of every number of `x`, in its type.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use regard_nn::bridge::sigmoid;
///
/// let x = Tensor::<1>::from_data([0.0, f32::NEG_INFINITY], &Device::flex());
/// assert_eq!(sigmoid(x).into_data().try_to_vec::<f32>()?, [0.5, 0.0]);
/// # Ok::<(), burn::tensor::DataError>(())
/// ```
pub fn sigmoid<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    #[cfg(feature = "gpu")]
    if crate::devices::is_card(&x.device()) {
        return card::sigmoid(x);
    }
    #[allow(clippy::disallowed_methods)]
    burn::tensor::activation::sigmoid(x)
}
