//! Whole architectures, and generation with them.
//!
//! | model | module | attention |
//! |---|---|---|
//! | [`Seq2Seq`] | [`seq2seq`] | none: the baseline (Cho's GRU, Sutskever's LSTM) |
//! | [`RnnSearch`] | [`rnnsearch`] | additive, on the previous state (Bahdanau 2014) |
//! | [`Luong`] | [`luong`] | dot, general, concat or location; global or local (Luong 2015) |
//! | [`Gnmt`] | [`gnmt`] | additive, asked by the bottom of a deep stack (Wu 2016) |
//! | [`Transformer`] | [`transformer`] | many heads in every layer of encoder and decoder (Vaswani 2017) |
//!
//! Every one of these is a [`TranslationModel`]: it scores a target under teacher forcing, and it steps, for
//! [`generate`]'s greedy and beam search. It can always be asked what it looked at. So can a [`Classifier`] of
//! sentences ([`classifier`]), whose encoder is an LSTMN ([`lstmn`]: Cheng 2016), an LSTM or a self-attentive one
//! (Lin 2017).
//!
//! Sequences of ids are time-major inside, `[time, batch]`, padded with [`tokens::PADDING`].
#![deny(missing_docs)]

pub mod batch;
pub mod classifier;
pub mod generate;
pub mod gnmt;
pub mod lstmn;
pub mod luong;
pub mod model;
pub mod rnnsearch;
pub mod seq2seq;
pub mod tables;
pub mod tokens;
pub mod transformer;

pub use batch::{SourceBatch, TargetBatch};
pub use classifier::{Classified, Classifier, ClassifierConfig};
pub use gnmt::{Gnmt, GnmtConfig};
pub use luong::{Luong, LuongConfig};
pub use model::{DecoderState, ModelConfig, ModelError, Output, Scored, TranslationModel};
pub use rnnsearch::{RnnSearch, RnnSearchConfig};
pub use seq2seq::{Seq2Seq, Seq2SeqConfig};
pub use transformer::{Looks, Transformer, TransformerConfig};

/// The example of the README runs as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
