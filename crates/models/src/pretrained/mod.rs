//! Models that others have trained, as the Hugging Face libraries store them: a folder with a configuration, weights, a tokenizer
//! and perhaps a template for chats.
//!
//! | part | type | files |
//! |---|---|---|
//! | which folder | [`resolve`] | a path, a name in the local cache, or `hf:organisation/name` |
//! | configuration and weights | [`Folder`], [`Config`] | `config.json`, `*.safetensors`, `pytorch_model.bin` |
//! | text to ids and back | [`Tokenizer`] | `tokenizer.json`, or `vocab.json` and `merges.txt`, or `vocab.txt` |
//! | writes text | [`LanguageModel`] | |
//! | reads text | [`TextEncoder`] | |
//! | classes of texts and of words | [`TextEncoder::classes`], [`entities`] | |
//! | answers from a text | [`ContextWindows`], [`Answers`] | |
//! | vectors of texts, and of a word at every layer | [`Pooling`], [`WordStates`], [`cosine`] | `modules.json` and the folders that it names, `sentence_bert_config.json`, `config_sentence_transformers.json` |
//! | reads a text and writes another | [`Seq2SeqModel`] | `generation_config.json` |
//! | classifies images | [`ImageModel`] | `processor_config.json` or `preprocessor_config.json` |
//! | finds objects in images | [`DetectorModel`] | the same |
//! | images and texts as vectors of one space | [`ClipImages`], [`TextEncoder::vector`] | the same |
//! | what training begins with | [`Trainable`] | |
//! | a conversation as text | [`ChatTemplate`] | `chat_template.jinja`, or a key of `tokenizer_config.json` |
//!
//! Files are checked before they are used: no memory is allocated by a size that a file states and its bytes do not confirm, and
//! nothing in a folder is executed but a chat template, which can reach nothing outside it and is stopped if it does not end.

mod answer;
mod bart;
mod bert;
mod chat;
mod classify;
mod clip;
mod config;
mod copies;
mod detr;
mod embedding;
mod encoder;
mod error;
mod families;
mod folder;
mod gpt2;
mod gradient;
mod hub;
mod images;
mod json;
mod language_model;
mod llama;
mod longformer;
mod look;
mod on_card;
mod pooling;
mod resnet;
mod rotary;
mod sampling;
mod searching;
mod seq2seq;
mod source;
mod t5;
mod tokenizer;
mod trainable;
mod trained;
mod vit;
mod word_states;

pub use answer::{Answer, Answers, ContextWindows, sentence_around};
pub use chat::{ChatTemplate, Message};
pub use classify::{ClassScores, Entity, entities};
pub use clip::{ClipImages, holds_clip};
pub use config::Config;
pub use detr::{DetectorModel, holds_detector};
pub use embedding::{EmbeddingSource, Positions};
pub use encoder::{
    EndMark, EndVector, GlobalTokens, Head, Heads, Input, Spans, TextEncoder, TextEncoderSource,
};
pub use error::PretrainedError;
pub use families::{FAMILIES, Family, Make, of as family};
pub use folder::{Folder, Names, Stored, StoredTensor, Weights};
pub use gradient::EncoderOutput;
pub use hub::{Hub, HubProgress, resolve};
pub use images::{ImageModel, ImagePreparation, Resizing, holds_images};
pub use language_model::{InputError, LanguageModel, LanguageModelSource, Reading};
pub use look::{Look, LookedAt};
pub use pooling::{Pooling, cosine, normalize};
pub use sampling::sampling;
pub use searching::{Searching, WritingRules};
pub use seq2seq::{Seq2SeqModel, Seq2SeqSource, Writing};
pub use source::{BucketSource, Matrix, Norm, StackSource};
pub use tokenizer::{Encoding, Side, SpecialIds, Tokenizer};
pub use trainable::Trainable;
pub(crate) use trained::LONGEST;
pub use trained::PackedText;
pub use word_states::{WordStates, occurrences};
