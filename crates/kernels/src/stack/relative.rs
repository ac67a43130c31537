//! What the distance of a key from a query adds to their score in the self-attention of a stack.

use crate::{Attention, RelativeBias, SequencePosition};

/// A number for each head and distance of a key from a query, added to the scores of self-attention (T5; Raffel et al. 2020).
#[derive(Debug, Clone, PartialEq)]
pub struct RelativePositions {
    /// `[heads, distances]`, in the order of the key's position less the query's. Distances beyond either end count as the last
    /// one there.
    pub values: Vec<f32>,
    /// The place of distance 0 among the distances.
    pub zero: usize,
}

impl RelativePositions {
    fn bias(&self) -> RelativeBias<'_> {
        RelativeBias {
            values: &self.values,
            zero: self.zero,
        }
    }
}

/// What distances add in all blocks.
#[derive(Debug, Clone, Default)]
pub(super) struct Distances {
    /// One for each block, or one for all.
    pub(super) relative: Vec<RelativePositions>,
    /// `[heads]`: slopes of ALiBi, for all blocks.
    pub(super) alibi: Option<Vec<f32>>,
}

impl Distances {
    /// As options of the attention of a block.
    pub(super) fn options(&self, layer: usize) -> Attention<'_> {
        let relative = self.relative.get(layer).or(self.relative.first());
        Attention {
            relative: relative.map(RelativePositions::bias),
            alibi: self.alibi.as_deref(),
            ..Attention::default()
        }
    }

    /// What is added to the score of a query and a key, by their positions, in one of `heads` heads of a block.
    pub(super) fn add(
        &self,
        layer: usize,
        [head, heads]: [usize; 2],
        [query, key]: [usize; 2],
    ) -> f32 {
        let of_head = self.options(layer).of_head(heads, head);
        let far = SequencePosition::saturating(key.abs_diff(query)).get();
        let distance = if key < query { -far } else { far };
        let biases = of_head.relative.map_or(0.0, |all| all.at(distance));
        let slope = of_head.alibi.map_or(0.0, |slopes| slopes[0]);
        biases - slope * distance.unsigned_abs() as f32
    }
}
