//! The Transformer, encoder and decoder (Vaswani et al. 2017).
//!
//! ```text
//! x_t    = dropout(√d E w_t + PE(t))              E: one table for source, target and output if tied
//! memory = encoder(x)                             layers: self-attention, feed-forward
//! s      = decoder(y, memory)                     layers: causal self-attention, cross-attention, feed-forward
//! p_t    ∝ exp(W_o s_t)
//! ```
//!
//! The heads' score, normaliser and mask are keys of the configuration ([`crate::attention`]). Layers are those of
//! [`regard_nn::transformer`], with norms before or after the blocks; positions are added to the embeddings (sinusoidal,
//! learned) or act in self-attention (rotary, relative, ALiBi, T5's buckets). Generation caches keys and values: a step computes
//! one token, and its numbers are those of a pass over the whole target.
//!
//! ```
//! use burn::tensor::Device;
//! use regard_models::{
//!     Generator, ModelConfig, TransformerConfig, SourceBatch, TargetBatch, Vocabularies,
//! };
//! use regard_nn::dropout::DropoutRng;
//!
//! let (device, vocabularies) = (Device::flex(), Vocabularies::new(20, 30));
//! let model = TransformerConfig::tiny().init(&vocabularies, 1, &device)?;
//! let source = SourceBatch::new(&[vec![5, 6, 7]], &vocabularies.source, &device);
//! let target = TargetBatch::new(&[vec![8, 9]], &vocabularies.target, &device);
//! let scored = model.forward(&source, &target, &mut DropoutRng::none());
//! assert_eq!(scored.logits().dims(), [3, 30]); // [time · batch, vocabulary]
//! let looks = model.look(&source, &target).unwrap();
//! assert_eq!(looks.cross[0].dims(), [1, 2, 3, 4]); // of the first layer: [batch, heads, target, source]
//! # Ok::<(), regard_models::ModelError>(())
//! ```

mod config;
mod model;
mod packed;
mod rotary;

pub(crate) use config::POSITIVE_F32;
pub use config::{Norm, Positions, TransformerConfig, TransformerDropout};
pub use model::{Transformer, TransformerState};
pub use rotary::{Llama3Config, RotaryScalingConfig, StretchConfig};

#[cfg(test)]
mod tests;
