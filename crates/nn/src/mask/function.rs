//! A mask of your own: any function of query and key.
//!
//! Use it for a pattern that has no name here; another crate adds a mask in the same way. There is no trait for masks, as it
//! would have only this function and a name. A kernel reads the function's answers as a table, so the call stays fused. Not
//! where a combination of the named masks says the same: a kernel knows those tile by tile. Cost: one call for each batch row,
//! head, query and key, and a flag for each.
//!
//! ```
//! use regard_nn::mask::Mask;
//!
//! let diagonal = Mask::function("not itself", |place| place.query != place.key);
//! assert_eq!(diagonal.picture(2, 2), "·■\n■·\n");
//! ```

use std::{fmt, sync::Arc};

use super::{Mask, Row, Rule};

/// One place of the scores. Query and key count from 0 at the beginning of their sequences, even where a call has only a part
/// of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The batch row.
    pub batch: usize,
    /// The query head.
    pub head: usize,
    /// The query: its number, [`AttentionOptions::first_query`](crate::AttentionOptions::first_query) for the first of a call.
    pub query: usize,
    /// The key: its position, [`AttentionOptions::first_key`](crate::AttentionOptions::first_key) for the first of a call.
    pub key: usize,
}

/// A user's function with a name.
#[derive(Clone)]
pub(crate) struct Function {
    name: Arc<str>,
    sees: Arc<dyn Fn(Place) -> bool + Send + Sync>,
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Function({:?})", self.name)
    }
}

impl Mask {
    /// A query sees a key where `sees` says so. `name` is what the mask is called when printed for debugging.
    pub fn function(name: &str, sees: impl Fn(Place) -> bool + Send + Sync + 'static) -> Self {
        Self(Rule::Function(Function {
            name: name.into(),
            sees: Arc::new(sees),
        }))
    }
}

impl Function {
    pub(super) fn fill(&self, row: &Row, seen: &mut [bool]) {
        for (key, seen) in (row.first_key..).zip(seen) {
            *seen = (self.sees)(Place {
                batch: row.batch,
                head: row.head,
                query: row.number(),
                key,
            });
        }
    }
}
