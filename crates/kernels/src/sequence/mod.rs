//! Whole sequences of recurrent steps as single operations, forward and backward.
//!
//! | module | computes |
//! |---|---|
//! | [`gru`] | `h_t = GRU(x_t, h_{t-1})`, Cho's and PyTorch's conventions |
//! | [`lstm`] | `h_t, c_t = LSTM(x_t, h_{t-1}, c_{t-1})` |
//! | [`additive_gru`] | Bahdanau's decoder: attention on the previous state, context in all gates |
//! | [`additive_lstm`] | the same around an LSTM: the bottom decoder layer of GNMT |
//! | [`input_feeding`] | Luong's decoder: stacked LSTMs, attention on the current state, input feeding |
//!
//! All tensors are contiguous and time-major, `[steps, batch, ..]`. The part of every step that
//! does not depend on the former one (the input projection) is one large product and is done
//! outside; these operations take its result.
//!
//! **How it runs.** A task takes a block of batch rows through *all* steps, so tasks never wait for
//! each other; the packed weights stay in the core's second-level cache, and the rows' state never
//! leaves the first. The backward pass writes the gradients of all pre-activations and turns them
//! into weight gradients with one large product at the end.
//!
//! **Padding.** `keep` (`true` = a real step) carries the state of a padded step through unchanged,
//! and its gradient too; whatever `x_projection` holds there has no influence, NaN included.
//!
//! **Determinism.** No number depends on how rows are grouped into tasks: a row alone gives the
//! bits it gives inside a batch, on any number of threads. (Weight gradients are sums over rows, in
//! an order that depends on nothing but the shapes.)

mod additive_decoder;
pub mod additive_gru;
pub mod additive_lstm;
mod attend;
pub mod gru;
pub mod input_feeding;
pub mod lstm;
pub mod reference;
mod rows;

#[cfg(test)]
mod tests;
