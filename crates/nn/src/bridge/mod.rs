//! From Burn's autodiff to the fused kernels of `regard-kernels`: one file for each operation.
//!
//! | function | what it fuses |
//! |---|---|
//! | `projected_attention`, behind [`crate::heads::MultiHead`] | the same with the projections of queries, keys and values, their RMS norm and rotary positions |
//! | [`additive_attention`] | Bahdanau's score, mask, softmax and context |
//! | `dot_attention`, behind [`crate::Attention`] | dot-product scores with mask, softcap, bias, sink, softmax, dropout and context |
//! | [`gated_scores`](gated_scores()) | scores by a layer of gated hyperbolic tangents |
//! | [`gru_step`], [`gru_reset`], [`gru_update`] | the pointwise part of a GRU step |
//! | [`lstm_step`] | the pointwise part of an LSTM step |
//! | [`linear`](linear()), [`apply`] | a product with a shared matrix, its bias, and their gradients |
//! | [`embed`] | rows of a table, and the sums of their gradients |
//! | [`matmul`](matmul()) | products of matrices in batches, with a transpose of an operand, and their gradients |
//! | [`norm`](norm()) | layer norm, RMS norm |
//! | [`convolve`] | convolution of maps |
//! | [`batch_norm`](batch_norm()) | batch norm, residual sum and ReLU |
//! | [`pool`](pool()) | the largest number or the mean of windows |
//! | [`resize`](resize()) | maps at another size, by bilinear interpolation |
//! | [`transposed`] | nothing: two axes exchanged, at once |
//! | [`sigmoid`](sigmoid()) | nothing on the CPU; on cards an exponential function, a sum and a reciprocal |
//! | [`activate`] | activation, gate and dropout between products |
//! | `feed_forward`, behind [`FeedForward`](crate::transformer::FeedForward) | the same with both products, of many rows |
//! | [`relu_dropout`], [`add_dropout`] | bias, ReLU, dropout and residual sum between products |
//! | [`cross_entropy`], [`cross_entropy_mean`] | softmax, label smoothing, loss and its gradient |
//! | [`output_cross_entropy_mean`] | the same with the output layer, whose logits are never kept whole |
//!
//! [`EarlyGradients`] hands out the gradients of weights that these operations read while the backward pass still runs.
//!
//! `f32` tensors on the Flex backend take the kernels, without copies where a tensor is contiguous;
//! all others, and everything inside of [`without_kernels`], take the same formula in plain tensor
//! operations; without the feature `kernels` all do. On graphics cards dot-product attention, products of matrices and `eˣ` have kernels of their
//! own (`card.rs`). Both give the same numbers up to rounding. Like Burn's own operations, these panic when shapes do not fit, and say
//! which. [`sum`] adds in one order on every device.

// Without kernels, the type of tensors that they could read has no values: code that handles one is never reached.
#![cfg_attr(
    not(feature = "kernels"),
    allow(
        unreachable_code,
        unused_variables,
        unused_assignments,
        unused_mut,
        dead_code
    )
)]

mod activation;
mod additive;
mod batch_norm;
#[cfg(feature = "gpu")]
pub(crate) mod card;
mod cell;
mod convolution;
mod dot;
#[cfg(feature = "kernels")]
mod early;
mod embedding;
mod empty;
mod exponential;
mod feed_forward;
#[cfg(feature = "kernels")]
mod fused;
#[cfg(not(feature = "kernels"))]
#[path = "absent.rs"]
mod fused;
mod gated_scores;
mod layout;
mod linear;
mod loss;
mod matmul;
mod memory;
mod norm;
mod operation;
mod output_loss;
mod pointwise;
mod pool;
mod product;
mod projected;
mod recurrent;
mod resize;
pub mod sequence;
mod sum;
mod suspended;

pub use activation::{activate, activate_plain};
pub use additive::{additive_attention, additive_attention_plain};
pub use batch_norm::batch_norm;
pub use cell::{gru_reset, gru_step, gru_update, lstm_step};
pub use convolution::convolve;
pub(crate) use dot::{DotInputs, DotOptions, MAX_SIZE, dot_attention};
#[cfg(feature = "kernels")]
pub use early::EarlyGradients;
pub use embedding::embed;
pub(crate) use empty::{reshaped, spread, with_axis, zeros_of};
pub(crate) use exponential::exp;
pub use exponential::sigmoid;
pub(crate) use feed_forward::{feed_forward, feeds_forward};
pub use gated_scores::{gated_scores, gated_scores_plain};
pub use layout::transposed;
pub use linear::{apply, linear};
pub use loss::{CrossEntropy, cross_entropy, cross_entropy_mean};
pub use matmul::matmul;
pub use norm::{norm, norm_plain};
pub use output_loss::{OutputWeights, output_cross_entropy_mean};
pub(crate) use pointwise::dropout;
pub use pointwise::{add_dropout, relu_dropout};
pub use pool::pool;
pub(crate) use projected::{Angles, ProjectedInputs, projected_attention};
pub use regard_kernels::{
    activation::Activation as ActivationKind,
    norm::Kind as NormKind,
    pool::{Kind as PoolKind, Windows},
};
pub use resize::resize;
pub use sum::{mean, sum};
pub use suspended::without_kernels;

use burn::tensor::{Bool, Tensor};

/// Whether the fused operations accept `tensor`: it is `f32` on the Flex backend.
pub(crate) fn serves<const D: usize>(tensor: &Tensor<D>) -> bool {
    fused::takes(tensor)
}

/// Whether the kernel for graphics cards accepts `tensor`.
pub(crate) fn card_serves<const D: usize>(tensor: &Tensor<D>) -> bool {
    #[cfg(feature = "gpu")]
    return card::takes(tensor);
    #[cfg(not(feature = "gpu"))]
    {
        let _ = tensor;
        false
    }
}

/// The flags of a mask, 1 for true.
fn bytes<const D: usize>(mask: Tensor<D, Bool>) -> Vec<u8> {
    mask.into_data().iter::<bool>().map(u8::from).collect()
}

/// `new` where `keep [batch]` is true, `old` elsewhere.
fn keep_old(keep: &Option<Tensor<1, Bool>>, new: Tensor<2>, old: Tensor<2>) -> Tensor<2> {
    match keep {
        None => new,
        Some(keep) => {
            let shape = new.dims();
            old.mask_where(spread(keep.clone().unsqueeze_dim::<2>(1), shape), new)
        }
    }
}

/// `x [batch, size]` with zeros in the rows that are not kept: a gradient of 0 times a NaN there would be NaN.
fn kept_rows(keep: &Option<Tensor<1, Bool>>, x: Tensor<2>) -> Tensor<2> {
    match keep {
        None => x,
        Some(keep) => {
            let shape = x.dims();
            let dropped = keep.clone().bool_not().unsqueeze_dim::<2>(1);
            x.mask_fill(spread(dropped, shape), 0.0)
        }
    }
}

#[track_caller]
fn expect_dims<const D: usize>(argument: &str, found: [usize; D], expected: [usize; D]) {
    assert!(
        found == expected,
        "`{argument}` has shape {found:?}, expected {expected:?}"
    );
}
