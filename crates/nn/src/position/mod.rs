//! Positions of tokens. Attention by itself treats its keys as a set: it gives the same context in whatever order they come.
//! Positions are added in one of these ways.
//!
//! | how | mechanism | what it does | source |
//! |---|---|---|---|
//! | added to the embeddings | [sinusoidal]: [`Sinusoidal`] | sines and cosines of the position, no parameters | Vaswani 2017 |
//! | | [learned]: [`Learned`] | one trained vector for each position | Gehring 2017; GPT-2, BERT |
//! | added to queries and keys | [of a grid](sinusoidal_grid): [`SinusoidalGrid`] | sines and cosines of row and column, no parameters | Carion 2020 |
//! | turns queries and keys | [rotary]: [`Rotary`] | rotates pairs of features by an angle that grows with the position | Su 2021 |
//! | added to the scores | [ALiBi](alibi): [`Alibi`] | a penalty that grows with the distance, no parameters | Press 2021 |
//! | | [T5's buckets](relative_buckets): [`RelativeBuckets`] | one trained number for each head and bucket of distances | Raffel 2019 (T5) |
//! | | [Shaw's vectors](mod@relative): [`Relative`] | a trained vector for each distance, seen by the query and read with the value | Shaw 2018 |
//!
//! The first kind is added by the model before its first layer; that of a grid by every layer of a
//! [`Stack`](crate::transformer::Stack) ([`StackOptions::positions`](crate::transformer::StackOptions)). The others act inside every attention layer: [`PositionConfig`]
//! chooses one, as a field of [`crate::heads::MultiHeadConfig`]. They depend on distances alone, so moving queries and keys by
//! the same number of positions changes nothing.
//!
//! Which one: rotary for a new decoder; ALiBi where texts at inference are longer than those of
//! training; buckets or Shaw's vectors for encoders of bounded length; learned or sinusoidal to
//! reproduce the models that have them.
//!
//! ```
//! use regard_nn::position::Positions;
//!
//! // Two new queries at the end of five keys: they stand at 3 and 4.
//! let positions = Positions::lower_right(2, 5);
//! assert_eq!((positions.queries.clone(), positions.keys.clone()), (3..5, 0..5));
//! let distances: Vec<i64> = positions.distances().collect();
//! assert_eq!(distances, [-3, -2, -1, 0, 1, -4, -3, -2, -1, 0]);
//! ```

pub mod alibi;
mod choice;
pub mod learned;
pub mod relative;
pub mod relative_buckets;
pub mod rotary;
pub mod sinusoidal;
pub mod sinusoidal_grid;

use std::ops::Range;

use crate::attention::AttentionError;

pub use alibi::Alibi;
pub use choice::{Position, PositionConfig};
pub use learned::Learned;
pub use relative::Relative;
pub use relative_buckets::{RelativeBuckets, RelativeBucketsConfig};
pub use rotary::{Layout, Rotary, RotaryConfig, RotaryGrid, Rotation, Scaling};
pub use sinusoidal::Sinusoidal;
pub use sinusoidal_grid::SinusoidalGrid;

/// The positions of the queries and the keys of one call in their sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Positions {
    /// The positions of the queries, counted from 0.
    pub queries: Range<usize>,
    /// The positions of the keys.
    pub keys: Range<usize>,
}

impl Positions {
    /// The last query has the position of the last key, as in a causal mask aligned lower right: the case of self-attention,
    /// over a whole sequence or with the past in a cache.
    pub fn lower_right(queries: usize, keys: usize) -> Self {
        let end = queries.max(keys);
        Self {
            queries: end - queries..end,
            keys: end - keys..end,
        }
    }

    /// Key position minus query position for every pair, row by row (one row for each query): negative where the key is before
    /// the query.
    pub fn distances(&self) -> impl Iterator<Item = i64> + '_ {
        let keys = self.keys.clone();
        self.queries
            .clone()
            .flat_map(move |query| keys.clone().map(move |key| distance(query, key)))
    }

    /// `[queries, keys]`: how many there are of each.
    pub fn dims(&self) -> [usize; 2] {
        [self.queries.len(), self.keys.len()]
    }
}

/// Key position minus query position: exact for any two positions that are less than 2⁶³ apart.
fn distance(query: usize, key: usize) -> i64 {
    key.wrapping_sub(query) as i64
}

/// Checks a size that may not be 0.
fn expect_positive(field: &'static str, found: usize) -> Result<(), AttentionError> {
    match found {
        0 => Err(AttentionError::value(
            field,
            found,
            "at least 1",
            "leave the mechanism out where it is not wanted",
        )),
        _ => Ok(()),
    }
}

/// Checks that the last dimension of an input is the size that the mechanism was made for.
fn expect_last(field: &'static str, found: &[usize], size: usize) -> Result<(), AttentionError> {
    if found.last() == Some(&size) {
        return Ok(());
    }
    let free = vec!["_"; found.len().saturating_sub(1)].join(", ");
    Err(AttentionError::shape(
        field,
        found,
        format!("[{free}, {size}]"),
        "make the mechanism with the size of its input",
    ))
}
