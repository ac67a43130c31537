//! Whole architectures, and generation with them.
//!
//! | model | module | attention |
//! |---|---|---|
//! | [`Seq2Seq`](seq2seq::Seq2Seq) | [`seq2seq`] | none: the baseline (Cho's GRU, Sutskever's LSTM) |
//! | [`RnnSearch`](rnnsearch::RnnSearch) | [`rnnsearch`] | additive, on the previous state (Bahdanau 2014) |
//! | [`Luong`](luong::Luong) | [`luong`] | dot, general, concat or location; global or local (Luong 2015) |
//! | [`Gnmt`](gnmt::Gnmt) | [`gnmt`] | additive, with the bottom layer of a deep stack as query (Wu 2016) |
//! | [`LstmnTranslation`](lstmn_translation::LstmnTranslation) | [`lstmn_translation`] | each side to its own earlier words, and to the source, beside or inside the cell (Cheng 2016) |
//! | [`Transformer`](transformer::Transformer) | [`transformer`] | many heads in every layer of encoder and decoder (Vaswani 2017) |
//! | [`language`] models | [`language`] | self-attention (GPT, BERT), an LSTMN's tape, or none |
//! | [`image`] networks | [`image`] | over channels, positions or patches of an image (Hu 2017, Wang 2018, Dosovitskiy 2020) |
//! | [`SentenceClassifier`](sentence::SentenceClassifier) | [`sentence`] | an LSTMN's tape (Cheng 2016), pooling (Lin 2017), or none |
//!
//! The role of a model is what it does: a [`Generator`] writes tokens from a source, a [`TextModel`] predicts tokens of a text, a
//! [`Classifier`] gives a sentence a label, an [`ImageClassifier`] an image; a [`Captioner`] writes a sentence about an
//! image, a [`QuestionAnswerer`] answers questions about it, a [`Detector`] finds its objects. An
//! architecture is a configuration that documents itself ([`regard_config::config!`]), the model that it draws, and the role of
//! that model; a program can add its own. [`AnyGenerator`], [`AnyTextModel`] and [`AnyClassifier`] are models whose architecture is chosen at run
//! time.
//!
//! [`pretrained`] opens models that others have trained; [`scoring`] says how well a language model predicts a text.
//!
//! Sequences of ids are time-major inside, `[time, batch]`; a [`Vocabulary`] says which ids are marks.
#![deny(missing_docs)]

pub mod attention;
pub mod batch;
pub mod classifier;
mod erased;
mod error;
pub mod former;
pub mod generate;
pub mod generator;
pub mod gnmt;
pub mod gradient;
mod guard;
pub mod image;
pub mod language;
pub mod lstmn;
pub mod lstmn_translation;
pub mod luong;
mod packed;
pub mod pretrained;
pub mod recurrent;
pub mod rnnsearch;
pub mod role;
pub mod scoring;
pub mod sentence;
pub mod seq2seq;
pub mod tables;
pub mod text;
mod text_model;
pub mod transformer;
mod vocabulary;

pub use batch::{SourceBatch, TargetBatch, TextBatch};
pub use classifier::{Classified, Classifier, ClassifierMap, ClassifierSizes};
pub use erased::{
    AnyClassifier, AnyDetector, AnyGenerator, AnyImageClassifier, AnyQuestionAnswerer, AnyState,
    AnyTextModel,
};
pub use error::ModelError;
pub use generator::{AttentionMaps, DecoderState, Generator, Output, Packed, Scored, Stepper};
pub use gnmt::GnmtConfig;
pub use guard::is_guarded;
pub use image::{
    Captioner, Detector, DetectorSizes, ImageClassifier, ImageSizes, QuestionAnswerer,
    QuestionBatch, QuestionLook, QuestionSizes, binary_cross_entropy, guided_attention,
};
pub use lstmn_translation::LstmnTranslationConfig;
pub use luong::LuongConfig;
pub use rnnsearch::RnnSearchConfig;
pub use role::{AnyModelConfig, ModelConfig, Role, RoleOf, Sizes};
pub use seq2seq::Seq2SeqConfig;
pub use text_model::{Objective, TextModel};
pub use transformer::TransformerConfig;
pub use vocabulary::{Vocabularies, Vocabulary};

/// The object-safe traits of models whose architecture is chosen at run time. They have a module of their own because their
/// methods have the same names as those of the roles.
pub mod any {
    pub use crate::erased::{
        DynClassifier, DynDetector, DynGenerator, DynImageClassifier, DynQuestionAnswerer,
        DynTextModel,
    };
}

/// The crate with which configurations are declared.
pub use regard_config as config;

/// The example of the README runs as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
