//! Grouped-query attention: several query heads share the keys and values of one head (Ainslie et al.
//! 2023).
//!
//! `head_i = Attention(Q W_i^Q, K W^K_{⌊i g / h⌋}, V W^V_{⌊i g / h⌋})` for `h` query heads and `g`
//! key/value heads; `g = h` is multi-head attention, `g = 1` is multi-query attention
//! ([`MultiHeadConfig::multi_query`]). Neighbouring query heads share.
//!
//! A decoder that writes one token at a time spends its time on reading the cache. With `g` heads in
//! it, the cache is smaller by a factor of `h / g`; the paper finds quality close to multi-head and
//! speed close to multi-query (Llama 3, Mistral 7B: 32 query heads, 8 key/value heads).
//!
//! - **Shapes**: queries `[batch, h, queries, d]`, keys `[batch, g, keys, d]`.
//! - **When**: decoders that generate. **When not**: encoders, where nothing is cached and only
//!   parameters are saved.
//! - **Cost**: as multi-head attention, with `g / h` of its cache and of its `W^K`, `W^V`.
//!
//! ```
//! use burn::tensor::Device;
//! use regard_nn::{heads::MultiHeadConfig, initialize::Initializer};
//!
//! let mut initializer = Initializer::new(1, &Device::flex());
//! let layer = MultiHeadConfig::grouped_query(64, 8, 2).init(&mut initializer)?;
//! assert_eq!((layer.heads(), layer.key_value_heads()), (8, 2));
//! let error = MultiHeadConfig::grouped_query(64, 8, 3).init(&mut initializer).unwrap_err();
//! assert!(error.to_string().contains("`key_value_heads` is 3"));
//! # Ok::<(), regard_nn::AttentionError>(())
//! ```

use super::MultiHeadConfig;

impl MultiHeadConfig {
    /// Grouped-query attention of `heads` query heads over `key_value_heads` key/value heads.
    pub fn grouped_query(d_model: usize, heads: usize, key_value_heads: usize) -> Self {
        Self {
            key_value_heads,
            ..Self::new(d_model, heads)
        }
    }
}
