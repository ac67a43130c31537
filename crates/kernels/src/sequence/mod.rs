//! Whole sequences of recurrent steps as single [`Operation`](crate::Operation)s, forward and backward.
//!
//! | operation | computes |
//! |---|---|
//! | [`Layer`] | `h_t = unit(x_t, h_{t-1})` for each [`Unit`]: GRU by Cho's and PyTorch's conventions, LSTM |
//! | [`AdditiveDecoder`] | a layer that attends with its previous state, context in all gates: Bahdanau's decoder, GNMT's bottom layer |
//! | [`InputFeedingDecoder`] | Luong's decoder: stacked LSTMs, attention on the current state, input feeding |
//!
//! All tensors are contiguous and time-major, `[steps, batch, ..]`. The part of every step that
//! does not depend on the previous one (the input projection) is one large product and is done outside; these operations take
//! its result.
//!
//! **How it runs.** A task takes a block of batch rows through *all* steps, so tasks never wait for
//! each other; the packed weights stay in the core's second-level cache, and the rows' state never
//! leaves the first-level cache. The backward pass writes the gradients of all pre-activations and turns them into weight
//! gradients with one large product at the end.
//!
//! **Padding.** `keep` (`true` = a real step) carries the state, and its gradient, through a padded step unchanged; whatever
//! `x_projection` holds there has no influence, NaN included.
//!
//! **Determinism.** No number depends on how rows are grouped into tasks: a row alone gives the
//! bits it gives inside a batch, on any number of threads. (Weight gradients are sums over rows, in
//! an order that depends on nothing but the shapes.)

pub mod additive_decoder;
mod attend;
pub mod input_feeding;
pub mod layer;
pub mod reference;
mod rows;
mod unit;

#[cfg(test)]
mod tests;

pub use additive_decoder::{AdditiveDecoder, AdditiveFields, AdditiveWritten};
pub use input_feeding::{InputFeedingDecoder, InputFeedingFields, InputFeedingWritten, Score};
pub use layer::{Layer, LayerFields, LayerWritten};
pub use unit::Unit;
