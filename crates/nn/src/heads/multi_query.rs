//! Multi-query attention: all query heads share one head of keys and values (Shazeer 2019, "Fast
//! Transformer Decoding: One Write-Head is All You Need").
//!
//! `head_i = Attention(Q W_i^Q, K W^K, V W^V)`: grouped-query attention with one group.
//!
//! - **When**: where the cache must be as small as can be: long texts, large batches. **When not**:
//!   where quality counts more; a few groups ([`MultiHeadConfig::grouped_query`]) cost little.
//! - **Cost**: as multi-head attention, with `1 / heads` of its cache.
//!
//! ```
//! use burn::tensor::Device;
//! use regard_nn::{heads::MultiHeadConfig, initialize::Initializer};
//!
//! let layer = MultiHeadConfig::multi_query(64, 8).init(&mut Initializer::new(1, &Device::flex()))?;
//! assert_eq!((layer.heads(), layer.key_value_heads()), (8, 1));
//! # Ok::<(), regard_nn::AttentionError>(())
//! ```

use super::MultiHeadConfig;

impl MultiHeadConfig {
    /// Multi-query attention of `heads` query heads over one key/value head.
    pub fn multi_query(d_model: usize, heads: usize) -> Self {
        Self::grouped_query(d_model, heads, 1)
    }
}
