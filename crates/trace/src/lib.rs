//! What a model looked at: tokens, layers, heads and weights, in one file format.
//!
//! Attention answers "where did the model look when it wrote this?" with a table of weights
//! `α [heads, queries, keys]`: row `q` says how much query `q` took from every key. This crate
//! holds such tables together with the texts they belong to, checks them on entry, folds subwords
//! into words, reads word alignments off them, and stores them in a file that any
//! [safetensors](https://docs.rs/safetensors) reader opens. It depends on no tensor library and
//! draws no pictures; models fill a [`Trace`], `regard-view` shows it.
//!
//! | type | what it is |
//! |---|---|
//! | [`Token`], [`Tokens`] | a piece of text as shown, and the word it belongs to |
//! | [`Axis`] | rows or columns of the table: tokens, cells or boxes of an image, bare positions |
//! | [`Image`], [`Region`] | the image that was looked at, and boxes in it |
//! | [`AttentionMap`] | weights `[heads, queries, keys]` with both axes, checked |
//! | [`Trace`] | one output of a model: texts, score, all of its maps |
//! | [`Alignment`] | links between source and target, written in Pharaoh format |
//! | [`write()`], [`read()`] | several traces in one file |
//! | [`LongTrace`] | queries and keys of a text that is too long for its weights |
//! | [`diagnose`] | what the heads did: sinks, diagonals, rollout and flow, in numbers and words |
//!
//! ```
//! use regard_trace::{AttentionMap, Kind, Token, Tokens, Trace};
//!
//! // "unseen" was cut into two subwords, so both name word 1.
//! let source = Tokens::from(vec![
//!     Token::new("things").in_word(0),
//!     Token::new("un").in_word(1),
//!     Token::new("seen").in_word(1),
//!     Token::special("</s>"),
//! ]);
//! let target = Tokens::from_words("Ungesehenes");
//! let map = AttentionMap::new(Kind::Cross, target, source, 1, vec![0.1, 0.3, 0.5, 0.1])?
//!     .named("decoder.cross");
//! let trace = Trace::new("rnnsearch", "things unseen", "Ungesehenes").with_map(map);
//!
//! let words = trace.merge_words();
//! assert_eq!(words.maps[0].keys().labels(), ["things", "unseen", "</s>"]);
//! assert_eq!(words.maps[0].row(0, 0), [0.1, 0.8, 0.1]);
//! assert_eq!(words.maps[0].align_argmax().to_string(), "1-0");
//! # Ok::<(), regard_trace::TraceError>(())
//! ```
//!
//! # Reading a file from Python
//!
//! The file is plain safetensors: the weights are `f32` tensors `map.0.weights`, `map.1.weights`, …
//! and everything else is one JSON string in its metadata (see [the file format](mod@file)).
//!
//! ```python
//! import json; from safetensors import safe_open
//! with safe_open("look.safetensors", "numpy") as f:
//!     head = json.loads(f.metadata()["regard.trace"])
//!     m = head["traces"][0]["maps"][0]
//!     weights = f.get_tensor(m["tensor"])          # [heads, queries, keys]
//!     keys = [t["text"] for t in head["axes"][m["keys"]]["tokens"]]
//! ```
#![deny(missing_docs)]

pub mod alignment;
mod axis;
pub mod diagnose;
mod error;
pub mod file;
pub mod image;
pub mod long;
mod map;
mod merge;
pub mod region;
mod token;
mod trace;

pub use alignment::Alignment;
pub use axis::Axis;
pub use error::TraceError;
pub use file::{from_bytes, read, to_bytes, write};
pub use image::Image;
pub use long::{LongHead, LongMap, LongTrace, LongWriter, Opened, open, open_bytes};
pub use map::{AttentionMap, Kind, ROW_SUM_TOLERANCE};
pub use region::{Bounds, Mask, Region, Regions};
pub use token::{Token, Tokens};
pub use trace::Trace;

/// The example of the README runs as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
