//! Transformer layers (Vaswani et al. 2017): attention, then a small network at every position, each with a residual
//! connection and a norm.
//!
//! > Attention alone carries information between positions; everything else happens at each position by itself, so all
//! > positions of a layer are computed at once.
//!
//! ```text
//! post (the paper)      x ← norm(x + dropout(f(x)))
//! pre (GPT-2, Llama)    x ← x + dropout(f(norm(x))),          and one norm after the last block
//! both (Gemma 2)        x ← x + dropout(norm'(f(norm(x)))),   and one norm after the last block
//! parallel (GPT-J)      x ← x + attention(norm(x)) + feed_forward(norm(x)),  and one norm after the last block
//!
//! f = self-attention, then cross-attention to a source if there is one, then feed-forward
//! feed-forward    W_2 φ(W_1 x + b_1) + b_2,  or gated  W_2 (φ(W_g x + b_g) ∘ (W_1 x + b_1)) + b_2
//! ```
//!
//! | made by | blocks | models |
//! |---|---|---|
//! | [`StackConfig::encoder`] | every position sees every other, feed-forward | BERT, ViT, encoder of T5 |
//! | [`StackConfig::decoder`] | causal self-attention, cross-attention, feed-forward | decoder of the paper, of T5 |
//! | [`StackConfig::parallel_decoder`] | every position sees every other, cross-attention, feed-forward | decoder of DETR |
//! | [`StackConfig::decoder_only`] | causal self-attention, feed-forward | GPT, Llama |
//!
//! All are a [`Stack`] of [`Block`]s. A causal one also goes step by step, with a [`StackCache`]: the same numbers.
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
//! use regard_nn::{dropout::DropoutRng, initialize::Initializer, transformer::{StackConfig, StackOptions}};
//!
//! let device = Device::flex();
//! let config = StackConfig::new(8, 2);
//! let encoder = config.encoder(2, &mut Initializer::new(1, &device))?;
//! let decoder = config.decoder(2, &mut Initializer::new(2, &device))?;
//! let (options, noise) = (StackOptions::default(), &mut DropoutRng::none());
//! let source = encoder.forward(Tensor::ones([1, 3, 8], &device), None, &options, noise)?.states;
//! let target = Tensor::ones([1, 4, 8], &device);
//! let decoded = decoder.forward(target, Some(source), &options, noise)?;
//! assert_eq!(decoded.states.dims(), [1, 4, 8]);
//! # Ok::<(), regard_nn::AttentionError>(())
//! ```
//!
//! Source: Vaswani et al. 2017, "Attention Is All You Need", sections 3.1 and 3.3; pre-norm: Xiong et al. 2020; norms on
//! both sides: Ding et al. 2021, Gemma Team 2024; parallel: Wang & Komatsuzaki 2021; gates: Shazeer 2020.

mod config;
mod feed_forward;
mod norm;
mod residual;
mod stack;

pub use config::{Biases, LayerChoice, StackConfig, StackDropout};
pub use feed_forward::{Activation, FeedForward};
pub use norm::{Norm, NormConfig, NormPlace};
pub use residual::Residual;
pub use stack::{Block, Stack, StackCache, StackOptions, StackOutput};
