//! Documents packed into one row: a query sees the keys of its own document.
//!
//! `i` sees `j` when `document(i) = document(j)`. With [`Mask::causal`], each document is processed as if it were alone;
//! no padding is computed. Mechanisms that go on from query to query (monotonic, NTM addressing, the Gaussian window) or count
//! positions from the beginning of a row (location, local-p) would not do so, and refuse it.
//!
//! Use it to train on texts of very different lengths. Not where documents should see each other. Cost: a number for
//! each position; a kernel skips tiles without a common document.
//!
//! ```
//! use regard_nn::mask::Mask;
//!
//! let mask = Mask::document(&[vec![0, 0, 1]]) & Mask::causal();
//! assert_eq!(mask.picture(3, 3), "■··\n■■·\n··■\n");
//! ```

use std::sync::Arc;

use super::{Grid, Mask, Row, Rule, check_batch};
use crate::attention::AttentionError;

/// The document of every query and key from the beginning of their sequences, `[batch][position]`.
#[derive(Debug, Clone)]
pub(crate) struct Documents {
    pub(crate) queries: Arc<[Vec<usize>]>,
    pub(crate) keys: Arc<[Vec<usize>]>,
}

impl Mask {
    /// Self-attention over packed rows: `documents[b][i]` names the document of position `i` of row `b` (one
    /// row for the whole batch if only one is given).
    pub fn document(documents: &[Vec<usize>]) -> Self {
        Self::documents(documents, documents)
    }

    /// The same for queries and keys of different sequences.
    pub fn documents(queries: &[Vec<usize>], keys: &[Vec<usize>]) -> Self {
        Self(Rule::Documents(Documents {
            queries: queries.into(),
            keys: keys.into(),
        }))
    }
}

impl Documents {
    pub(super) fn batch(&self) -> usize {
        self.queries.len().max(self.keys.len())
    }

    pub(super) fn fill(&self, row: &Row, seen: &mut [bool]) {
        let of = |rows: &Arc<[Vec<usize>]>| row.batch.min(rows.len() - 1);
        let own = self.queries[of(&self.queries)][row.number()];
        let keys = &self.keys[of(&self.keys)][row.first_key..];
        for (seen, &document) in seen.iter_mut().zip(keys) {
            *seen = document == own;
        }
    }

    pub(super) fn check(&self, grid: &Grid) -> Result<(), AttentionError> {
        for (field, rows, size) in [
            (
                "documents of the queries",
                &self.queries,
                grid.queries_so_far(),
            ),
            ("documents of the keys", &self.keys, grid.keys_so_far()),
        ] {
            check_batch(field, rows.len(), grid)?;
            for row in rows.iter() {
                if row.len() != size {
                    return Err(AttentionError::value(
                        field,
                        row.len(),
                        format!("{size} positions in every row"),
                        "name the document of every position",
                    ));
                }
            }
        }
        Ok(())
    }
}
