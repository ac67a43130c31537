//! Causal mask: no query sees the future (Vaswani 2017, section 3.2.3). `j <= pos(i)`.
//!
//! With as many queries as keys, `pos(i) = i`. With fewer queries than keys there are two conventions, and libraries
//! have changed theirs silently (FlashAttention in 2.1), so here the convention has a name: [`Alignment`].
//!
//! Use it where position `t` may only depend on what came before: language models, decoders. Not for
//! encoders, and not between a decoder and its source. Cost: a kernel skips the half that lies in the future.
//!
//! ```
//! use regard_nn::mask::{Alignment, Mask};
//!
//! assert_eq!(Mask::causal().picture(2, 4), "■■■·\n■■■■\n");
//! assert_eq!(Mask::causal_aligned(Alignment::UpperLeft).picture(2, 4), "■···\n■■··\n");
//! ```

use regard_kernels::SequencePosition;

use super::{Mask, Row, Rule};

/// The position of query `i` of `Lq` among `Lk` keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Alignment {
    /// `pos(i) = i + Lk - Lq`: the last query stands at the last key, as in decoding with a cache.
    #[default]
    LowerRight,
    /// `pos(i) = first_query + i`: the first query stands at the first key ([`crate::AttentionOptions::first_query`] is
    /// usually 0).
    UpperLeft,
}

impl Mask {
    /// No query sees the future; the last query stands at the last key.
    pub fn causal() -> Self {
        Self::causal_aligned(Alignment::LowerRight)
    }

    /// No query sees the future; `alignment` says which positions the queries have.
    pub fn causal_aligned(alignment: Alignment) -> Self {
        Self(Rule::Causal(alignment))
    }
}

/// Sees keys up to its own position.
pub(super) fn fill(alignment: Alignment, row: &Row, seen: &mut [bool]) {
    row.fill_to(
        row.position(alignment) + SequencePosition::saturating(1),
        seen,
    );
}
