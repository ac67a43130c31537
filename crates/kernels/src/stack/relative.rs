//! Biases of relative positions in self-attention of a stack.

use crate::RelativeBias;

/// A number for each head and distance of a key from a query, added to the scores of self-attention in every block (T5; Raffel et
/// al. 2020).
#[derive(Debug, Clone, PartialEq)]
pub struct RelativePositions {
    /// `[heads, distances]`, in the order of the key's position less the query's. Distances beyond either end count as the last
    /// one there.
    pub values: Vec<f32>,
    /// The place of distance 0 among the distances.
    pub zero: usize,
}

impl RelativePositions {
    pub(super) fn bias(&self) -> RelativeBias<'_> {
        RelativeBias {
            values: &self.values,
            zero: self.zero,
        }
    }
}
