//! Blocks: positions are cut into blocks of equal size, and whole blocks see each other or not.
//!
//! - [`Mask::block`]: each block sees itself (blockwise attention, Qiu 2019).
//! - [`Mask::block_sparse`]: a table says which block of queries sees which block of keys (Child 2019; Zaheer
//!   2020 with window, global and random blocks).
//! - [`Mask::chunked`]: each chunk sees itself and `left` chunks before (streaming speech recognition, Zhang
//!   2020); with `left = 0` and [`Mask::causal`] the chunked attention of Llama 4.
//!
//! Use them where a kernel should skip whole tiles, or where input arrives in chunks. Not where neighbours on two sides of
//! a border must see each other in one layer. Cost: a table of blocks, and the scores of the blocks that are seen.
//!
//! ```
//! use regard_nn::mask::Mask;
//!
//! assert_eq!(Mask::block(2)?.picture(4, 4), "■■··\n■■··\n··■■\n··■■\n");
//! assert_eq!(Mask::chunked(1, 1)?.picture(3, 3), "■··\n■■·\n·■■\n");
//! let table = [vec![true, false], vec![true, true]];
//! assert_eq!(Mask::block_sparse(2, 2, &table)?.picture(4, 3), "■■·\n■■·\n■■■\n■■■\n");
//! # Ok::<(), regard_nn::AttentionError>(())
//! ```

use std::sync::Arc;

use regard_kernels::SequencePosition;

use super::{Alignment, Grid, Mask, Row, Rule, window::positive};
use crate::attention::AttentionError;

/// Which block of queries sees which block of keys.
#[derive(Debug, Clone)]
pub(crate) struct Blocks {
    pub(crate) query_size: usize,
    pub(crate) key_size: usize,
    pub(crate) table: Arc<[Vec<bool>]>,
}

impl Mask {
    /// Each block of `size` positions sees itself.
    ///
    /// # Errors
    /// When `size` is 0.
    pub fn block(size: usize) -> Result<Self, AttentionError> {
        Self::chunked(size, 0)
    }

    /// Each chunk of `size` positions sees itself and the `left` chunks before it.
    ///
    /// # Errors
    /// When `size` is 0.
    pub fn chunked(size: usize, left: usize) -> Result<Self, AttentionError> {
        positive("chunk size", size, "give the positions of one chunk")?;
        Ok(Self(Rule::Chunked {
            size,
            left,
            alignment: Alignment::LowerRight,
        }))
    }

    /// `table[a][b]` says whether queries `a · query_size ..` see keys `b · key_size ..`. Both count from the
    /// beginning of their sequences.
    ///
    /// # Errors
    /// When a size is 0 or the table's rows differ in length.
    pub fn block_sparse(
        query_size: usize,
        key_size: usize,
        table: &[Vec<bool>],
    ) -> Result<Self, AttentionError> {
        positive(
            "block query size",
            query_size,
            "give the queries of one block",
        )?;
        positive("block key size", key_size, "give the keys of one block")?;
        let width = table.first().map_or(0, Vec::len);
        for row in table {
            if row.len() != width {
                return Err(AttentionError::value(
                    "block table row",
                    row.len(),
                    format!("{width} entries, as in the first row"),
                    "give one entry a block of keys in every row",
                ));
            }
        }
        Ok(Self(Rule::Blocks(Blocks {
            query_size,
            key_size,
            table: table.into(),
        })))
    }
}

impl Blocks {
    pub(super) fn fill(&self, row: &Row, seen: &mut [bool]) {
        let table = &self.table[row.number() / self.query_size];
        for (key, seen) in (row.first_key..).zip(seen) {
            *seen = table[key / self.key_size];
        }
    }

    pub(super) fn check(&self, grid: &Grid) -> Result<(), AttentionError> {
        let found = [self.table.len(), self.table.first().map_or(0, Vec::len)];
        let expected = [
            grid.queries_so_far().div_ceil(self.query_size),
            grid.keys_so_far().div_ceil(self.key_size),
        ];
        if grid.queries == 0 || grid.keys == 0 || found == expected {
            return Ok(());
        }
        Err(AttentionError::shape(
            "block table",
            &found,
            format!(
                "{expected:?} for {} queries and {} keys",
                grid.queries_so_far(),
                grid.keys_so_far()
            ),
            "give one row a block of queries and one column a block of keys",
        ))
    }
}

/// Sees the keys of the query's chunk and of the `left` before.
pub(super) fn fill_chunk(
    size: usize,
    left: usize,
    alignment: Alignment,
    row: &Row,
    seen: &mut [bool],
) {
    let [size, left, one] = [size, left, 1].map(SequencePosition::saturating);
    let chunk = row.position(alignment).block(size);
    row.fill((chunk - left) * size, (chunk + one) * size, seen);
}
