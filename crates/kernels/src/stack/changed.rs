//! Heads that are switched off, made uniform, get other weights, or lose one, to see whether they matter (Michel et al. 2019,
//! arXiv:1905.10650; Jain and Wallace 2019, arXiv:1902.10186).

use std::sync::Arc;

use super::Stack;
use super::attend::{Pass, Place};
use crate::error::{KernelError, check_size, check_value};

/// What is done to a head.
#[derive(Debug, Clone, PartialEq)]
pub enum HeadChange {
    /// Its context is 0: it reads nothing.
    Off,
    /// Its queries are 0, so that all keys that it sees have the same score, but for what distances add.
    Uniform,
    /// The query at one position does not see the key at another: the weight of the pair is 0, and the others of its row are divided
    /// by what is left of their sum. A position that is not there changes nothing; a query that sees no other key reads 0.
    Hide {
        /// The position of the query.
        query: usize,
        /// The position of the key.
        key: usize,
    },
    /// Its weights are these, by position: `w_ij = g_ij / Σ_l g_il` over the keys `l` that query `i` sees and that have a given weight,
    /// so that masks stay as they are. A query without given weights keeps its own; one whose given weights are all 0 or unseen reads 0.
    Replace(Arc<GivenWeights>),
}

/// Weights of a head, such as those that it has for another text.
#[derive(Debug, Clone, PartialEq)]
pub struct GivenWeights {
    /// `[queries, keys]`
    weights: Vec<f32>,
    keys: usize,
}

impl GivenWeights {
    /// `weights [queries, keys]`.
    ///
    /// # Errors
    /// [`KernelError`] for another number of weights, or one that is negative or not finite.
    pub fn new(weights: Vec<f32>, queries: usize, keys: usize) -> Result<Self, KernelError> {
        let reason = "a weight for each query and key";
        let expected = queries.saturating_mul(keys);
        check_size("weights", "pairs", expected, weights.len(), reason)?;
        for &weight in &weights {
            let holds = weight.is_finite() && weight >= 0.0;
            check_value("weights", "finite and at least 0", weight.into(), holds)?;
        }
        Ok(Self { weights, keys })
    }

    /// The weights of the query at a position, of the first keys; `None` beyond the last query.
    pub fn row(&self, query: usize) -> Option<&[f32]> {
        let rows = self.weights.len().checked_div(self.keys).unwrap_or(0);
        (query < rows).then(|| &self.weights[query * self.keys..][..self.keys])
    }
}

/// A head that is changed.
#[derive(Debug, Clone, PartialEq)]
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
    /// Zeros in the queries of uniform heads and of those whose weights are given: `queries [positions, width]` begins with them.
    pub(super) fn flatten(&self, layer: usize, cross: bool, queries: &mut [f32], width: usize) {
        self.clear(layer, cross, &HeadChange::Uniform, queries, width);
        let positions = self.counts.iter().enumerate().flat_map(|(row, &count)| {
            let length = self.length(row);
            length - count..length
        });
        let head = self.sizes.head;
        for (position, queries) in positions.zip(queries.chunks_exact_mut(width)) {
            for (changed, given) in self.given(layer, cross) {
                if given.row(position).is_some() {
                    queries[changed * head..][..head].fill(0.0);
                }
            }
        }
    }

    /// Zeros in what heads that are switched off have read, `[positions, heads · head]`.
    pub(super) fn silence(&self, layer: usize, cross: bool, read: &mut [f32]) {
        let width = self.sizes.heads * self.sizes.head;
        self.clear(layer, cross, &HeadChange::Off, read, width);
    }

    /// What is done to heads of this attention.
    fn here(&self, layer: usize, cross: bool) -> impl Iterator<Item = (usize, &HeadChange)> {
        let here = move |one: &&ChangedHead| (one.layer, one.cross) == (layer, cross);
        let changed = self.changed.iter().filter(here);
        changed.map(|one| (one.head, &one.change))
    }

    /// The heads of this attention whose weights are given.
    fn given(&self, layer: usize, cross: bool) -> impl Iterator<Item = (usize, &GivenWeights)> {
        let changed = self.here(layer, cross);
        changed.filter_map(|(head, change)| match change {
            HeadChange::Replace(given) => Some((head, &**given)),
            _ => None,
        })
    }

    /// The pairs of positions (head, query, key) that heads of this attention do not see.
    pub(super) fn hidden(
        &self,
        layer: usize,
        cross: bool,
    ) -> impl Iterator<Item = (usize, usize, usize)> {
        self.here(layer, cross)
            .filter_map(|(head, change)| match *change {
                HeadChange::Hide { query, key } => Some((head, query, key)),
                _ => None,
            })
    }

    /// Whether one of the positions of this pass has a hidden key, or weights that are given.
    pub(super) fn changes_pairs(&self, layer: usize, cross: bool) -> bool {
        let changed = |query: usize| {
            let hides = self.hidden(layer, cross).any(|(_, at, _)| at == query);
            hides
                || self
                    .given(layer, cross)
                    .any(|(_, given)| given.row(query).is_some())
        };
        let mut rows = self.counts.iter().enumerate();
        rows.any(|(row, &count)| {
            let length = self.length(row);
            self.here(layer, cross).next().is_some() && (length - count..length).any(changed)
        })
    }

    /// What is added to the scores, `[heads, queries, keys]`, so that heads have the weights that are given: of a query that is 0 the
    /// scores are their logarithms. `padded` queries stand in front.
    pub(super) fn logarithms(
        &self,
        place: &Place<'_>,
        padded: usize,
        [queries, keys]: [usize; 2],
    ) -> Option<Vec<f32>> {
        let mut bias = None;
        for (head, given) in self.given(place.layer, place.cross) {
            for row in padded..queries {
                let query = place.queries.of(row - padded);
                let Some(weights) = given.row(query) else {
                    continue;
                };
                let bias = bias.get_or_insert_with(|| vec![0.0; self.sizes.heads * queries * keys]);
                let bias = &mut bias[(head * queries + row) * keys..][..keys];
                for (column, bias) in bias.iter_mut().enumerate() {
                    let key = place.keys.of(column);
                    let score = weights.get(key).map_or(f32::NEG_INFINITY, |w| w.ln());
                    *bias = score - self.added(place, head, [query, key]);
                }
            }
        }
        bias
    }

    fn clear(
        &self,
        layer: usize,
        cross: bool,
        change: &HeadChange,
        numbers: &mut [f32],
        width: usize,
    ) {
        let head = self.sizes.head;
        for (changed, _) in self.here(layer, cross).filter(|(_, is)| *is == change) {
            for row in numbers.chunks_exact_mut(width) {
                row[changed * head..][..head].fill(0.0);
            }
        }
    }
}
