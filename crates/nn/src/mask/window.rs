//! Window: a query sees the keys near it. `|pos(i) - j| < width`.
//!
//! `width` keys to each side, the query's own position included: with `width = 1` it sees itself alone.
//! Together with [`Mask::causal`] it is the sliding window of Mistral 7B (Jiang 2023): the last `width` keys,
//! its own included. Longformer (Beltagy 2020) dilates it: every `dilation`-th key of a `dilation` times wider
//! window.
//!
//! Use it for long sequences whose dependencies are mostly local: cost falls from `Lq · Lk` to `Lq · width`
//! where a kernel skips tiles. What lies further away is reached through layers, `layers · width` positions.
//!
//! ```
//! use regard_nn::mask::Mask;
//!
//! assert_eq!(Mask::window(2)?.picture(3, 3), "■■·\n■■■\n·■■\n");
//! assert_eq!(Mask::dilated_window(2, 2)?.picture(1, 1), "■\n");
//! assert!(Mask::window(0).is_err());
//! # Ok::<(), regard_nn::AttentionError>(())
//! ```

use regard_kernels::SequencePosition;

use super::{Alignment, Mask, Row, Rule};
use crate::attention::AttentionError;

/// `|pos(i) - j| < width · dilation`, and a multiple of `dilation` away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) width: usize,
    pub(crate) dilation: usize,
    pub(crate) alignment: Alignment,
}

impl Mask {
    /// Sees keys less than `width` positions away.
    ///
    /// # Errors
    /// When `width` is 0: nothing would be seen.
    pub fn window(width: usize) -> Result<Self, AttentionError> {
        Self::window_aligned(width, 1, Alignment::LowerRight)
    }

    /// Sees every `dilation`-th key, `width` to each side including its own position.
    ///
    /// # Errors
    /// When `width` or `dilation` is 0.
    pub fn dilated_window(width: usize, dilation: usize) -> Result<Self, AttentionError> {
        Self::window_aligned(width, dilation, Alignment::LowerRight)
    }

    /// The same, where `alignment` says which positions the queries have.
    ///
    /// # Errors
    /// When `width` or `dilation` is 0.
    pub fn window_aligned(
        width: usize,
        dilation: usize,
        alignment: Alignment,
    ) -> Result<Self, AttentionError> {
        positive(
            "window width",
            width,
            "a window of 0 sees nothing; leave the window out to see everything",
        )?;
        positive("window dilation", dilation, "1 means no dilation")?;
        Ok(Self(Rule::Window(Window {
            width,
            dilation,
            alignment,
        })))
    }
}

pub(super) fn positive(
    field: &'static str,
    found: usize,
    advice: &'static str,
) -> Result<(), AttentionError> {
    match found {
        0 => Err(AttentionError::value(field, 0, "at least 1", advice)),
        _ => Ok(()),
    }
}

impl Window {
    pub(super) fn fill(&self, row: &Row, seen: &mut [bool]) {
        let position = row.position(self.alignment);
        let [before, dilation, one] =
            [self.width - 1, self.dilation, 1].map(SequencePosition::saturating);
        let reach = before * dilation;
        let start = row.bound(position - reach, seen);
        let end = row.bound(position + reach + one, seen);
        // The first key from there on whose distance is a multiple of the dilation.
        let distance = position - SequencePosition::saturating(row.first_key + start);
        let dilation = dilation.get();
        let start = start + distance.get().rem_euclid(dilation) as usize;
        seen.fill(false);
        for key in (start..end).step_by(dilation as usize) {
            seen[key] = true;
        }
    }
}
