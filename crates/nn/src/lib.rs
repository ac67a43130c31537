//! Attention mechanisms as Burn modules, in one vocabulary: **score** the query against the keys,
//! **mask** what may not be seen, **normalise** into weights, **read** the values.
//!
//! | word | module | today |
//! |---|---|---|
//! | score | [`score`] | dot, general, additive (concat), location |
//! | mask | [`mask`] | padding, local monotonic, local predictive |
//! | normalise | [`normalize`] | softmax |
//! | read | [`Attention`] | weighted sum |
//!
//! Around them: [`recurrent`] cells and stacks, replayable [`dropout`], seeded [`initialize`]rs, the
//! [`weights`] of any module as safetensors, and the [`bridge`] from Burn's autodiff to the fused
//! kernels of `regard-kernels`.
#![deny(missing_docs)]

pub mod attention;
pub mod bridge;
pub mod dropout;
pub mod initialize;
pub mod mask;
pub mod normalize;
pub mod recurrent;
pub mod score;
pub mod weights;

pub use attention::{Attended, Attention, AttentionError, Call, Memory, Observe, Path, Reading};
