//! Language models: which token comes next, or which stood behind a mask.
//!
//! | configuration | what carries the past | source |
//! |---|---|---|
//! | [`TransformerLmConfig`] | self-attention, causal or in both directions | GPT (Radford 2018), BERT (Devlin 2018) |
//! | [`LstmLmConfig`] | the state of an LSTM | Mikolov 2010, Zaremba 2014 |
//! | [`LstmnLmConfig`] | a tape of all states, searched by attention | Cheng 2016 |
//!
//! ```text
//! causal:  L = -1/T Σ_t log p(w_{t+1} | w_1 .. w_t)
//! masked:  L = -1/|M| Σ_{t in M} log p(w_t | w with M replaced)
//! perplexity = exp(L),   bits per byte = L T / (bytes ln 2)
//! ```
//!
//! ```
//! use burn::tensor::Device;
//! use regard_models::{TextBatch, TextModel, ModelConfig, Vocabulary, language::LstmLmConfig};
//! use regard_nn::dropout::DropoutRng;
//!
//! let (device, vocabulary) = (Device::flex(), Vocabulary::new(20));
//! let model = LstmLmConfig::tiny().init(&vocabulary, 1, &device)?;
//! let batch = TextBatch::new(&[(vec![5, 6, 7], vec![6, 7, 8])], &vocabulary, &device);
//! let scored = model.forward(batch.inputs, &batch.keep, &mut DropoutRng::none());
//! assert_eq!(scored.logits().dims(), [3, 20]); // [time · batch, vocabulary]
//! # Ok::<(), regard_models::ModelError>(())
//! ```

mod plain;
mod recurrent;
mod transformer;

#[cfg(test)]
mod tests;

pub use plain::PlainTextModel;
pub use recurrent::{LmDropout, LstmLm, LstmLmConfig, LstmnLm, LstmnLmConfig, LstmnLmState};
pub use transformer::{TextTransformer, TextTransformerConfig, TransformerLm, TransformerLmConfig};
