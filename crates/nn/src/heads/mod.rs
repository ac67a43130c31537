//! Several attentions side by side: each head has its own projections for scoring and reading.
//!
//! `MultiHead(X, Y) = Concat(head_1, .., head_h) W^O`,
//! `head_i = Attention(X W_i^Q, Y W_i^K, Y W_i^V)` (Vaswani 2017, section 3.2.2)
//!
//! | mechanism | where | source |
//! |---|---|---|
//! | multi-head | [`MultiHeadConfig::new`] | Vaswani 2017 |
//! | [grouped-query](grouped_query) | [`MultiHeadConfig::grouped_query`] | Ainslie 2023 |
//! | [multi-query](multi_query) | [`MultiHeadConfig::multi_query`] | Shazeer 2019 |
//! | self-attention | [`MultiHead::forward`]; bidirectional as it is, causal with [`Mask::causal`] | Vaswani 2017 |
//! | cross-attention | [`MultiHead::source`] once, then [`MultiHead::forward_source`] | Vaswani 2017 |
//! | decoding with a cache | [`MultiHead::forward_cached`] with a [`KeyValueCache`] | |
//! | [one matrix or three](projection) | [`ProjectionLayout`] | |
//! | positions | [`crate::position`] | |
//! | [query-key norm](query_key_norm) | [`QueryKeyNorm`] | Henry 2020; Dehghani 2023 |
//! | [talking heads](talking_heads) | [`TalkingHeads`] | Shazeer 2020 |
//! | [gated output](output_gate) | [`OutputGate`] | Qiu 2025 |
//!
//! **Why several**: one softmax averages; with several, one head can follow syntax and another the
//! previous word, at the same total cost, as each head has `1 / h` of the features.
//!
//! **Cost** for queries `L`, keys `S`, model size `d`: `4 L d²` multiplications for the matrices and
//! `2 L S d` for scores and reading; memory `L S h` for the weights unless a kernel computes them.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::{AttentionOptions, Observe, heads::MultiHeadConfig, initialize::Initializer, mask::Mask};
//!
//! let device = Device::flex();
//! let layer = MultiHeadConfig::new(16, 4).init(&mut Initializer::new(1, &device))?;
//! let x = Tensor::<3>::ones([2, 5, 16], &device);
//! let read = layer.forward(x, AttentionOptions::new(Observe::Weights).mask(Mask::causal()))?;
//! assert_eq!(read.output.dims(), [2, 5, 16]); // [batch, queries, model]
//! assert_eq!(read.attended.weights.unwrap().dims(), [2, 4, 5, 5]); // [batch, heads, queries, keys]
//! # Ok::<(), regard_nn::AttentionError>(())
//! ```
//!
//! [`Mask::causal`]: crate::mask::Mask::causal
//! [`KeyValueCache`]: crate::cache::KeyValueCache

mod config;
pub mod grouped_query;
mod multi_head;
pub mod multi_query;
pub mod output_gate;
pub mod projection;
pub mod query_key_norm;
pub mod talking_heads;

pub use config::MultiHeadConfig;
pub use multi_head::{AddedPositions, MultiHead, MultiHeadOutput};
pub use output_gate::{Gate, OutputGate};
pub use projection::{Fused, KeyValues, Projection, ProjectionLayout, Separate};
pub(crate) use projection::{glorot, row_index};
pub use query_key_norm::{L2QueryKeyNorm, QueryKeyNorm, QueryKeyNormKind, RmsQueryKeyNorm};
pub use talking_heads::TalkingHeads;
