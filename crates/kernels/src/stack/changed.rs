//! Heads that are switched off, made uniform, or lose one weight, to see whether they matter (Michel et al. 2019, arXiv:1905.10650; Jain and Wallace
//! 2019, arXiv:1902.10186).

use super::Stack;
use super::attend::Pass;
use crate::error::{KernelError, check_value};

/// What is done to a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadChange {
    /// Its context is 0: it reads nothing.
    Off,
    /// Its queries are 0, so that all keys that it sees have the same score, but for biases of relative positions.
    Uniform,
    /// The query at one position does not see the key at another: the weight of the pair is 0, and the others of its row are divided
    /// by what is left of their sum. A position that is not there changes nothing; a query that sees no other key reads 0.
    Hide {
        /// The position of the query.
        query: usize,
        /// The position of the key.
        key: usize,
    },
}

/// A head that is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChangedHead {
    /// Its block.
    pub layer: usize,
    /// Whether it attends to the source.
    pub cross: bool,
    /// Its number in the block.
    pub head: usize,
    /// What is done to it.
    pub change: HeadChange,
}

impl Stack {
    /// Changes these heads from now on, and no others: an empty list restores the stack.
    ///
    /// # Errors
    /// [`KernelError`] for a head that is not there, or one that is to be more than switched off beside
    /// [`GlobalAttention`](super::GlobalAttention), which has queries of its own.
    pub fn change_heads(&mut self, changed: Vec<ChangedHead>) -> Result<(), KernelError> {
        for one in &changed {
            let block = self.blocks.get(one.layer);
            let expected = "a block of the stack, with cross-attention where that is meant";
            let there = block.is_some_and(|block| !one.cross || block.cross.is_some());
            check_value("layer", expected, one.layer as f64, there)?;
            let heads = self.sizes.heads;
            check_value(
                "head",
                "one of the block's",
                one.head as f64,
                one.head < heads,
            )?;
            let global = block.is_some_and(|block| block.attention.global.is_some());
            let served = one.change == HeadChange::Off || !global;
            let expected = "switched off, and not changed otherwise, where positions are global";
            check_value("head", expected, one.head as f64, served)?;
        }
        self.changed = changed;
        Ok(())
    }
}

impl Pass<'_> {
    /// Zeros in the queries of uniform heads: `queries [positions, width]` begins with them.
    pub(super) fn flatten(&self, layer: usize, cross: bool, queries: &mut [f32], width: usize) {
        self.clear(layer, cross, HeadChange::Uniform, queries, width);
    }

    /// Zeros in what heads that are switched off have read, `[positions, heads · head]`.
    pub(super) fn silence(&self, layer: usize, cross: bool, read: &mut [f32]) {
        let width = self.sizes.heads * self.sizes.head;
        self.clear(layer, cross, HeadChange::Off, read, width);
    }

    /// The pairs of positions (head, query, key) that heads of this attention do not see.
    pub(super) fn hidden(
        &self,
        layer: usize,
        cross: bool,
    ) -> impl Iterator<Item = (usize, usize, usize)> {
        let here = move |one: &&ChangedHead| (one.layer, one.cross) == (layer, cross);
        let changed = self.changed.iter().filter(here);
        changed.filter_map(|one| match one.change {
            HeadChange::Hide { query, key } => Some((one.head, query, key)),
            _ => None,
        })
    }

    /// Whether one of the positions of this pass has a hidden key.
    pub(super) fn hides(&self, layer: usize, cross: bool) -> bool {
        let mut hidden = self.hidden(layer, cross);
        hidden.any(|(_, query, _)| {
            let mut rows = self.counts.iter().enumerate();
            rows.any(|(row, &count)| {
                let length = self.length(row);
                (length - count..length).contains(&query)
            })
        })
    }

    fn clear(
        &self,
        layer: usize,
        cross: bool,
        change: HeadChange,
        numbers: &mut [f32],
        width: usize,
    ) {
        let head = self.sizes.head;
        let meant =
            |one: &&ChangedHead| (one.layer, one.cross, one.change) == (layer, cross, change);
        for one in self.changed.iter().filter(meant) {
            for row in numbers.chunks_exact_mut(width) {
                row[one.head * head..][..head].fill(0.0);
            }
        }
    }
}
