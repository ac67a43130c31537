//! Corpora, recipes and training of attention models.
//!
//! - [`corpus`]: parallel text, labelled sentences and synthetic tasks, filtered and batched by length;
//! - [`tokenizer`]: sub-words that keep every text without loss;
//! - [`recipe`]: one experiment as a commented TOML file;
//! - [`Registry`]: the architectures that recipes and model files may name; a program can add its own;
//! - [`tasks`]: what models are trained for: translation, classification of sentences and images, captions, questions about images,
//!   detection of objects, language modelling;
//! - [`learner`]: the training loop, with checkpoints and exact resume;
//! - [`ranks`]: several processes that work as one, each on its share;
//! - [`translator`], [`sentence_classifier`], [`image_classifier`], [`captioner`], [`question_answerer`], [`detector`] and
//!   [`model_file`]: a trained model at work, and its file;
//! - [`image_encoder`]: images as vectors in the space of texts;
//! - [`opened`] and [`text_to_text`]: models of text by a path or a name, those that others have trained included;
//! - [`familiarity`]: which sentences are far from a model's training text;
//! - [`compare`]: several recipes under one budget;
//! - [`experiments`]: what a mechanism does, shown in minutes.
//!
//! The scores of a model's output are in `regard-evaluate`.
#![deny(missing_docs)]

pub mod captioner;
pub mod compare;
pub mod corpus;
pub mod detector;
mod error;
pub mod experiments;
pub mod familiarity;
pub mod files;
pub mod image_classifier;
pub mod image_encoder;
pub mod learner;
pub mod model_file;
pub mod opened;
pub mod question_answerer;
pub mod ranks;
pub mod recipe;
mod registry;
pub mod sentence_classifier;
pub mod tasks;
pub mod text_to_text;
pub mod tokenizer;
pub mod translator;

pub use captioner::ImageCaptioner;
pub use detector::{DetectedObject, Detector, LEAST_PROBABILITY};
pub use error::TrainError;
pub use image_classifier::{ClassifiedImage, ImageClassifier, LayerGradients};
pub use image_encoder::ImageEncoder;
pub use opened::{Opened, TextModel};
pub use question_answerer::{Answered, QuestionAnswerer};
pub use registry::{Architecture, Registry, model_from_bytes};
pub use sentence_classifier::{Classification, SentenceClassifier};
pub use text_to_text::TextToText;
pub use translator::{ReadAndWritten, Translated, Translation, Translator};

/// The example of the README runs as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
