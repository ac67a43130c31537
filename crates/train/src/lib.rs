//! Corpora, recipes and training of attention models.
//!
//! - [`corpus`]: parallel text, labelled sentences and synthetic tasks, filtered and batched by length;
//! - [`tokenizer`]: sub-words that lose nothing;
//! - [`recipe`]: one experiment as a commented TOML file;
//! - [`learner`]: the training loop, with checkpoints and exact resume;
//! - [`translator`] and [`model_file`]: a trained model at work; [`sentence_classifier`] and
//!   [`classifier_file`]: a trained classifier;
//! - [`compare`]: several recipes under one budget.
//!
//! Scores of what they write are in `regard-evaluate`.
#![deny(missing_docs)]

pub mod classifier_file;
pub mod compare;
pub mod corpus;
pub mod files;
pub mod learner;
pub mod model_file;
pub mod recipe;
pub mod sentence_classifier;
pub mod tokenizer;
pub mod translator;

pub use sentence_classifier::{Classification, SentenceClassifier};
pub use translator::{Translated, Translation, Translator};

/// The example of the README runs as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
