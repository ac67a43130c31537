//! Transformer layers (Vaswani et al. 2017): attention, then a small network at every position, each with a residual
//! connection and a norm.
//!
//! > Attention alone carries information between positions; everything else happens at each position by itself, so all
//! > positions of a layer are computed at once.
//!
//! ```text
//! post-norm (the paper)     x ← norm(x + dropout(f(x)))
//! pre-norm  (GPT-2, Llama)  x ← x + dropout(f(norm(x))),  and one norm after the last layer
//!
//! encoder layer   f = self-attention, feed-forward
//! decoder layer   f = causal self-attention, cross-attention to the encoder's states, feed-forward
//! feed-forward    W_2 φ(W_1 x + b_1) + b_2,  φ = ReLU or GELU;  or W_2 (SiLU(W_g x) ∘ W_1 x)
//! ```
//!
//! | type | what |
//! |---|---|
//! | [`Encoder`], [`EncoderLayer`] | bidirectional as it is; with [`Mask::causal`](crate::mask::Mask::causal) a decoder-only stack (GPT) |
//! | [`Decoder`], [`DecoderLayer`] | all steps of a target at once, or step by step with a [`DecoderCache`] |
//! | [`FeedForward`] | ReLU, GELU or SwiGLU |
//! | [`Norm`] | layer norm or RMS norm |
//!
//! **Shapes**: states are `[batch, length, model]` everywhere.
//!
//! **When**: sequences that fit in memory at quadratic cost, and training on many examples. **When not**: tiny data without
//! regularisation, where recurrent models start from better habits; streams without end (give the layers a window).
//!
//! **Cost** of a layer over `n` positions of size `d`: `8 n d² + 4 n d f` for the products with a feed-forward size of `f`,
//! and `4 n² d` for the attention, whose `n × n` weights are never made unless asked for.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::{Call, dropout::Noise, initialize::Initializer, transformer::TransformerConfig};
//!
//! let device = Device::flex();
//! let config = TransformerConfig::new(8, 2);
//! let encoder = config.encoder(2, &mut Initializer::new(1, &device))?;
//! let decoder = config.decoder(2, &mut Initializer::new(2, &device))?;
//! let source = encoder.forward(Tensor::ones([1, 3, 8], &device), Call::default(), &mut Noise::none())?.states;
//! let target = Tensor::ones([1, 4, 8], &device);
//! let decoded = decoder.forward(target, source, Call::default(), &mut Noise::none())?;
//! assert_eq!(decoded.states.dims(), [1, 4, 8]);
//! # Ok::<(), regard_nn::AttentionError>(())
//! ```
//!
//! Source: Vaswani et al. 2017, "Attention Is All You Need", sections 3.1 and 3.3; pre-norm: Xiong et al. 2020; SwiGLU: Shazeer
//! 2020.

mod block;
mod config;
mod decoder;
mod encoder;
mod feed_forward;
mod norm;

pub use block::Residual;
pub use config::{TransformerConfig, TransformerDropout};
pub use decoder::{Decoded, Decoder, DecoderCache, DecoderLayer};
pub use encoder::{Encoded, Encoder, EncoderLayer};
pub use feed_forward::{Activation, FeedForward};
pub use norm::{Norm, NormConfig, NormPlace};
