//! Longformer's pattern (Beltagy, Peters, Cohan 2020): a window for everybody, and a few global positions
//! that see all and are seen by all.
//!
//! `i` sees `j` when `j` lies in `i`'s (dilated) window, or `i ∈ G`, or `j ∈ G`.
//!
//! Use it for documents of thousands of tokens with a few positions that gather: a class token, the tokens
//! of a question. (The paper gives global positions projections of their own; here they share.) Not where any token
//! may need any other in one layer. Cost: in the plain path as full attention; the kernel reads it as a table.
//!
//! ```
//! use regard_nn::mask::Mask;
//!
//! assert_eq!(Mask::longformer(2, 1, &[0])?.picture(5, 5), "\
//! ■■■■■
//! ■■■··
//! ■■■■·
//! ■·■■■
//! ■··■■
//! ");
//! # Ok::<(), regard_nn::AttentionError>(())
//! ```

use super::{Alignment, Mask, Rule};
use crate::attention::AttentionError;

impl Mask {
    /// The `positions` see every key and are seen by every query; nothing else.
    pub fn global(positions: &[usize]) -> Self {
        Self(Rule::Global(positions.into(), Alignment::LowerRight))
    }

    /// A window of `width` keys to each side (the own one counted), dilated, and global `positions`.
    ///
    /// # Errors
    /// When `width` or `dilation` is 0.
    pub fn longformer(
        width: usize,
        dilation: usize,
        positions: &[usize],
    ) -> Result<Self, AttentionError> {
        Ok(Self::dilated_window(width, dilation)? | Self::global(positions))
    }
}

pub(super) fn fill_global(positions: &[usize], position: isize, seen: &mut [bool]) {
    let is_global = positions.iter().any(|&global| global as isize == position);
    seen.fill(is_global);
    for &global in positions {
        if let Some(seen) = seen.get_mut(global) {
            *seen = true;
        }
    }
}
