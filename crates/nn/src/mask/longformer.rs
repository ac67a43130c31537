//! Longformer's pattern (Beltagy, Peters, Cohan 2020): a window for every query, and a few global positions that see all and
//! are seen by all.
//!
//! `i` sees `j` when `j` lies in `i`'s (dilated) window, or `i ∈ G`, or `j ∈ G`.
//!
//! Use it for documents of thousands of tokens with a few positions that collect information: a class token, the tokens of a
//! question. (The paper gives global positions projections of their own; here they share.) Not where any token may need any
//! other in one layer. Cost: in the plain path as full attention; the kernel reads it as a table.
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

use regard_kernels::SequencePosition;

use super::{Alignment, Grid, Mask, Row, Rule};
use crate::attention::AttentionError;

impl Mask {
    /// The `positions` see every key and are seen by every query; nothing else.
    pub fn global(positions: &[usize]) -> Self {
        Self(Rule::Global(positions.into(), Alignment::LowerRight))
    }

    /// A window of `width` keys to each side (its own position included), dilated, and global `positions`.
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

pub(super) fn fill_global(positions: &[usize], alignment: Alignment, row: &Row, seen: &mut [bool]) {
    let own = Some(row.position(alignment));
    seen.fill(
        positions
            .iter()
            .any(|&global| SequencePosition::exact(global) == own),
    );
    for &global in positions {
        let key = global.checked_sub(row.first_key);
        if let Some(seen) = key.and_then(|key| seen.get_mut(key)) {
            *seen = true;
        }
    }
}

impl Mask {
    /// The position of a key before the first key of a checked `grid` that a query sees only because one of the two is
    /// global: without that key, the rows of the grid cannot be computed.
    pub(crate) fn lost_global(&self, grid: &Grid) -> Option<usize> {
        if grid.first_key == 0 || !self.0.has_global() {
            return None;
        }
        let near = self.0.without_global();
        let [mut seen, mut seen_near] = [0, 1].map(|_| vec![false; grid.first_key]);
        self.0.rows(grid).0.find_map(|row| {
            let row = Row {
                first_key: 0,
                ..row
            };
            self.0.fill(&row, &mut seen);
            near.fill(&row, &mut seen_near);
            seen.iter()
                .zip(&seen_near)
                .position(|(all, near)| *all && !near)
        })
    }
}

impl Rule {
    fn has_global(&self) -> bool {
        match self {
            Self::Global(..) => true,
            Self::And(a, b) | Self::Or(a, b) => a.has_global() || b.has_global(),
            Self::Not(a) => a.has_global(),
            _ => false,
        }
    }

    /// The same rule without global positions.
    fn without_global(&self) -> Self {
        let of = |rule: &Self| Box::new(rule.without_global());
        match self {
            Self::Global(_, alignment) => Self::Global([].into(), *alignment),
            Self::And(a, b) => Self::And(of(a), of(b)),
            Self::Or(a, b) => Self::Or(of(a), of(b)),
            Self::Not(a) => Self::Not(of(a)),
            rule => rule.clone(),
        }
    }
}
