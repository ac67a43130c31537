//! Pictures of attention: terminal, SVG, PNG and one-file HTML.
//!
//! Every function here is pure: a [`Trace`](regard_trace::Trace) or [`Heatmap`] goes in, text or
//! bytes come out, and the caller prints or saves them. No token, whatever its text, can control a
//! terminal or end a tag: see [`label`].
//!
//! | module | what comes out |
//! |---|---|
//! | [`terminal`] | a heat map in truecolor, 256 colours or ASCII, never wider than a given width |
//! | [`svg`] | a standalone SVG, one heat map or a grid of them |
//! | [`png`] | any SVG as PNG, with fonts built in |
//! | [`html`] | one page with pictures and their numbers |
//! | [`long`] | maps of long texts, each cell the largest weight of a block of them |
//! | [`tree`] | the tree of a search: what was proposed at each step, and what the search went on from |
//! | [`image`](mod@image) | maps over an image, a panel for each word, head or layer; boxes, masks, drawn cells; also in half blocks |
//! | [`gates`] | factors of channels as bars |
//! | [`choice`] | which maps of a trace are shown, and the title that says so |
//! | [`chart`] | a line chart, such as BLEU against source length |
//! | [`training`] | how entropy, diagonality, dead heads and sinks change in a training, as charts |
//! | [`vectors`] | vectors of two numbers as arrows in a plane, of three in space |
//! | [`steps`] | the way from scores to weights: bars for one query, maps for several |
//! | [`mask`] | which keys a mask lets each query see, a square for each pair |
//! | [`label`], [`colour`] | token texts made safe and fitted into a width; colours for numbers |
//!
//! ```
//! use regard_trace::{AttentionMap, Kind, Tokens};
//! use regard_view::{Heatmap, svg, terminal};
//!
//! let (keys, queries) = (Tokens::from_words("a man"), Tokens::from_words("ein Mann"));
//! let map = AttentionMap::new(Kind::Cross, queries, keys, 1, vec![0.9, 0.1, 0.2, 0.8])?;
//! let heatmap = Heatmap::from_map(&map);
//!
//! let options = terminal::TerminalOptions { width: 40, ..Default::default() };
//! println!("{}", terminal::heatmap(&heatmap, &options));
//! assert!(svg::heatmap(&heatmap, &svg::SvgOptions::default()).starts_with("<svg"));
//! # Ok::<(), regard_trace::TraceError>(())
//! ```
#![deny(missing_docs)]

pub mod chart;
pub mod choice;
pub mod colour;
pub mod gates;
mod heatmap;
pub mod html;
pub mod image;
pub mod label;
pub mod long;
pub mod mask;
pub mod png;
pub mod steps;
pub mod svg;
pub mod terminal;
pub mod training;
pub mod tree;
pub mod vectors;

pub use heatmap::Heatmap;

/// The example of the README runs as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
