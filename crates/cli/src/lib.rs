//! Every attention mechanism, fast, and in plain sight.
//!
//! The library facade: one dependency, whose features choose the crates (floors) that it re-exports.
//!
//! | feature | module | what |
//! |---|---|---|
//! | `kernels` | [`kernels`] | fused kernels on plain slices, no framework |
//! | `trace` | [`trace`] | what a model looked at, and its file format |
//! | `evaluate` | [`evaluate`] | BLEU, chrF, bootstrap, alignment error rate, scores by length |
//! | `images` | [`images`] | decoding, transforms and data sets of images; scenes with known answers |
//! | `nn` | [`nn`] | attention mechanisms as Burn modules |
//! | `view` | [`view`] | pictures: terminal, SVG, PNG, HTML |
//! | `models` | [`models`] | whole architectures and generation |
//! | `train` | [`train`] | corpora, recipes, training, translation |
//!
//! The features on by default are `cli`, which is the command `regard` and brings all of these (together: `full`), and `hub`. A program
//! names the floors that it uses:
//!
//! ```toml
//! regard = { version = "0.1", default-features = false, features = ["nn"] }
//! ```
//!
//! | feature | what it adds |
//! |---|---|
//! | `hub` | models by name from the Hugging Face hub (`hf:NAME`), downloaded |
//! | `wgpu`, `cuda` | computing on graphics cards: by Vulkan, Metal or DirectX; by NVIDIA's CUDA |
//! | `mpi` | the command as several processes, on one machine or several; needs an MPI library and libclang to build |
//!
//! ```
//! use regard::{trace::{AttentionMap, Kind, Tokens, Trace}, view::terminal};
//!
//! let map = AttentionMap::new(
//!     Kind::Cross,
//!     Tokens::from_words("ein Hund"),
//!     Tokens::from_words("a dog"),
//!     1,
//!     vec![0.9, 0.1, 0.2, 0.8],
//! )?;
//! let trace = Trace::new("by hand", "a dog", "ein Hund").with_map(map);
//! println!("{}", terminal::trace(&trace, &terminal::TerminalOptions::default()));
//! # Ok::<(), regard::trace::TraceError>(())
//! ```
#![deny(missing_docs)]

#[cfg(feature = "evaluate")]
pub use regard_evaluate as evaluate;
#[cfg(feature = "images")]
pub use regard_images as images;
#[cfg(feature = "kernels")]
pub use regard_kernels as kernels;
#[cfg(feature = "models")]
pub use regard_models as models;
#[cfg(feature = "nn")]
pub use regard_nn as nn;
#[cfg(feature = "trace")]
pub use regard_trace as trace;
#[cfg(feature = "train")]
pub use regard_train as train;
#[cfg(feature = "view")]
pub use regard_view as view;
