//! Prefix language model (Raffel 2020, T5, figure 3): the prefix sees itself in both directions, what
//! follows is causal.
//!
//! `i` sees `j` when `j < prefix` or `j <= pos(i)`.
//!
//! Use it where one stack of layers reads an input and then writes the answer after it. Not for plain text, in which no
//! part is given. Cost: as causal, plus half the square of the prefix.
//!
//! ```
//! use regard_nn::mask::Mask;
//!
//! assert_eq!(Mask::prefix(&[2]).picture(4, 4), "■■··\n■■··\n■■■·\n■■■■\n");
//! ```

use regard_kernels::SequencePosition;

use super::{Alignment, Grid, Mask, Row, Rule, check_batch};
use crate::attention::AttentionError;

impl Mask {
    /// The first `lengths[b]` keys of batch row `b` are seen by all queries, the others causally (one length
    /// for the whole batch if only one is given).
    pub fn prefix(lengths: &[usize]) -> Self {
        Self(Rule::Prefix(lengths.into(), Alignment::LowerRight))
    }
}

/// Adds the prefix to what is seen.
pub(super) fn fill(lengths: &[usize], row: &Row, seen: &mut [bool]) {
    let length = SequencePosition::saturating(lengths[row.batch.min(lengths.len() - 1)]);
    let end = row.bound(length, seen);
    seen[..end].fill(true);
}

pub(super) fn check(lengths: &[usize], grid: &Grid) -> Result<(), AttentionError> {
    check_batch("prefix lengths", lengths.len(), grid)
}
