//! What a query may see. A mask is a type, not a bare boolean whose meaning must be remembered: it says which keys a query may
//! **see**.
//!
//! | page | mask | query `i` sees key `j` when | source |
//! |---|---|---|---|
//! | | [`Mask::all`] | always | |
//! | [causal] | [`Mask::causal`] | `j <= pos(i)` | Vaswani 2017 |
//! | [padding] | [`Mask::padding`] | position `j` of the sentence is real | |
//! | [window] | [`Mask::window`] | `|pos(i) - j| < width` (with causal: Mistral's sliding window) | Child 2019; Jiang 2023 |
//! | | [`Mask::dilated_window`] | the same at every `dilation`-th key | Beltagy 2020 |
//! | [global and window](longformer) | [`Mask::global`] | `i` or `j` is a global position | Beltagy 2020 |
//! | | [`Mask::longformer`] | dilated window or global | Beltagy 2020 |
//! | [local](mod@local) | [`Mask::local_monotonic`] | `|t - j| <= D`, `t` the decoder step | Luong 2015 |
//! | | [`Mask::local_predictive`] | `|p_t - j| <= D`, `p_t` predicted | Luong 2015 |
//! | [blocks](block) | [`Mask::block`] | both are in the same block | Qiu 2019 |
//! | | [`Mask::block_sparse`] | a table allows their blocks | Child 2019; Zaheer 2020 |
//! | | [`Mask::chunked`] | `j` is in the query's chunk or in one of the `left` before | Zhang 2020 (streaming) |
//! | [documents](document) | [`Mask::document`] | both belong to the same document | packed batches |
//! | [prefix] | [`Mask::prefix`] | `j` is in the prefix, or `j <= pos(i)` | Raffel 2020 (T5) |
//! | [your own](function) | [`Mask::function`] | your function says so | |
//!
//! `pos(i)` is the position of query `i` among the keys; [`Alignment`] names it, as the two usual conventions differ when there
//! are fewer queries than keys.
//!
//! All positions count from the beginning of the sequence, even where a call has only a part of it, as each step of decoding
//! has ([`AttentionOptions::first_query`](crate::AttentionOptions::first_query),
//! [`AttentionOptions::first_key`](crate::AttentionOptions::first_key)): global positions, blocks and chunks, prefixes, and the
//! places of a function. A list with an entry for each position (padding, documents, the table of blocks) covers all positions
//! from the beginning to the last one of the call. So one mask gives the same numbers for a sequence at once and in parts. A
//! distance or size that is larger than any sequence ([`SequencePosition::MAX`]) means no bound.
//!
//! Masks [combine]: `a & b` sees what both see, `a | b` what either sees, `!a` what `a` does not. A mask prints
//! itself ([`Mask::picture`]). A query that may see nothing gets weights 0, context 0 and gradient 0.
//!
//! ```
//! use regard_nn::mask::Mask;
//!
//! let sliding = Mask::window(2)? & Mask::causal();
//! assert_eq!(sliding.picture(4, 4), "\
//! ■···
//! ■■··
//! ·■■·
//! ··■■
//! ");
//! # Ok::<(), regard_nn::AttentionError>(())
//! ```
//!
//! Cost: the plain path writes one boolean for each key and each batch row, head and query that the mask distinguishes; the
//! fused path skips tiles in which nothing may be seen.

pub mod block;
pub mod causal;
pub mod combine;
pub mod document;
pub mod function;
mod kernel;
pub mod local;
pub mod longformer;
pub mod padding;
mod picture;
pub mod prefix;
pub mod window;

use std::ops::Range;

use burn::tensor::{Bool, Device, Tensor, TensorData};
use regard_kernels::SequencePosition;

use crate::attention::AttentionError;

pub use causal::Alignment;
pub use function::Place;
pub(crate) use kernel::KernelMask;
pub use local::{Locality, PositionPredictor};
pub use padding::PaddingMask;

use block::Blocks;
use document::Documents;
use function::Function;
use local::Centres;
use window::Window;

/// What a query may see; see the [module page](self).
///
/// Cheap to clone. Build one from the named constructors and combine with `&`, `|` and `!`.
#[derive(Debug, Clone, Default)]
pub struct Mask(pub(crate) Rule);

/// The rules behind [`Mask`], for code that translates them for kernels.
#[derive(Debug, Clone, Default)]
pub(crate) enum Rule {
    #[default]
    All,
    Causal(Alignment),
    Padding(PaddingMask),
    Reach(usize),
    Window(Window),
    Global(std::sync::Arc<[usize]>, Alignment),
    Local(Centres),
    Blocks(Blocks),
    Chunked {
        size: usize,
        left: usize,
        alignment: Alignment,
    },
    Documents(Documents),
    Prefix(std::sync::Arc<[usize]>, Alignment),
    Function(Function),
    And(Box<Rule>, Box<Rule>),
    Or(Box<Rule>, Box<Rule>),
    Not(Box<Rule>),
}

/// The sizes to which a mask is applied, and where queries and keys begin in their sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Grid {
    /// Independent problems.
    pub batch: usize,
    /// Query heads.
    pub heads: usize,
    /// Queries.
    pub queries: usize,
    /// Keys.
    pub keys: usize,
    /// The number of the first query, see [`crate::AttentionOptions::first_query`].
    pub first_query: usize,
    /// The position of the first key, see [`crate::AttentionOptions::first_key`].
    pub first_key: usize,
}

impl Grid {
    /// The number of queries in their sequence up to the last one of the call.
    fn queries_so_far(&self) -> usize {
        self.first_query.saturating_add(self.queries)
    }

    /// The number of keys in their sequence up to the last one of the call.
    fn keys_so_far(&self) -> usize {
        self.first_key.saturating_add(self.keys)
    }

    /// The position of query `query` among the keys of its sequence; it may lie outside of them.
    fn position(&self, alignment: Alignment, query: usize) -> SequencePosition {
        let [keys, queries, query] =
            [self.keys_so_far(), self.queries, query].map(SequencePosition::saturating);
        match alignment {
            Alignment::LowerRight => keys - queries + query,
            Alignment::UpperLeft => SequencePosition::saturating(self.first_query) + query,
        }
    }

    fn check(&self) -> Result<(), AttentionError> {
        for (field, first, end) in [
            ("first_query", self.first_query, self.queries_so_far()),
            ("first_key", self.first_key, self.keys_so_far()),
        ] {
            if SequencePosition::exact(end).is_none() {
                return Err(AttentionError::value(
                    field,
                    first,
                    format!("positions up to {}", SequencePosition::MAX.get()),
                    "positions count from the beginning of the sequence",
                ));
            }
        }
        Ok(())
    }
}

/// One row of a checked grid, and the first of the keys that are looked up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    grid: Grid,
    batch: usize,
    head: usize,
    /// The index among the queries of the call.
    query: usize,
    /// The position of the first key that is looked up.
    first_key: usize,
}

impl Row {
    fn new(grid: &Grid, batch: usize, head: usize, query: usize) -> Self {
        Self {
            grid: *grid,
            batch,
            head,
            query,
            first_key: grid.first_key,
        }
    }

    /// The number of the query in its sequence.
    fn number(&self) -> usize {
        self.grid.first_query + self.query
    }

    /// The position of the query among the keys of its sequence.
    fn position(&self, alignment: Alignment) -> SequencePosition {
        self.grid.position(alignment, self.query)
    }

    /// The index of `position` in `seen`, the keys that are looked up: between 0 and their number.
    fn bound(&self, position: SequencePosition, seen: &[bool]) -> usize {
        (position - SequencePosition::saturating(self.first_key)).bound(seen.len())
    }

    /// Sets the keys at the positions from `start` to `end` to seen.
    fn fill(&self, start: SequencePosition, end: SequencePosition, seen: &mut [bool]) {
        let [start, end] = [start, end].map(|position| self.bound(position, seen));
        seen.fill(false);
        seen[start.min(end)..end].fill(true);
    }

    /// Sets the keys before position `end` to seen.
    fn fill_to(&self, end: SequencePosition, seen: &mut [bool]) {
        self.fill(SequencePosition::ZERO, end, seen);
    }
}

impl Mask {
    /// Every query sees every key.
    pub fn all() -> Self {
        Self(Rule::All)
    }

    /// Whether this is [`Mask::all`].
    pub fn is_all(&self) -> bool {
        matches!(self.0, Rule::All)
    }

    /// Whether query `query` of head `head` of batch row `batch` sees key `key`: the definition of the mask. Query and
    /// key are counted as in [`Place`].
    ///
    /// # Errors
    /// When the mask does not fit `grid`, such as the padding of another batch; or the place lies outside.
    pub fn sees(&self, grid: &Grid, place: Place) -> Result<bool, AttentionError> {
        self.check(grid)?;
        let (queries, keys) = (
            grid.first_query..grid.queries_so_far(),
            grid.first_key..grid.keys_so_far(),
        );
        for (field, found, range) in [
            ("place.batch", place.batch, 0..grid.batch),
            ("place.head", place.head, 0..grid.heads),
            ("place.query", place.query, queries),
            ("place.key", place.key, keys),
        ] {
            if !range.contains(&found) {
                let from = match range.start {
                    0 => String::new(),
                    start => format!("at least {start} and "),
                };
                return Err(AttentionError::value(
                    field,
                    found,
                    format!("{from}less than {}", range.end),
                    "places count from 0, queries and keys from the beginning of their sequences",
                ));
            }
        }
        let query = place.query - grid.first_query;
        let row = self.row(grid, place.batch, place.head, query);
        Ok(row[place.key - grid.first_key])
    }

    /// The mask as a tensor, true where a key may be seen: `[batch, heads, queries, keys]`, where each of the
    /// first three is 1 if the mask does not depend on it.
    ///
    /// # Errors
    /// When the mask does not fit `grid`.
    pub fn tensor(&self, grid: &Grid, device: &Device) -> Result<Tensor<4, Bool>, AttentionError> {
        self.check(grid)?;
        // Of no keys, Burn's reshape would read the 0 as "as many as before".
        if let Rule::Padding(keep) = &self.0
            && grid.first_key == 0
            && grid.keys > 0
        {
            return Ok(keep.tensor().unsqueeze_dims::<4>(&[1, 2]));
        }
        let (seen, shape) = self.0.table(grid);
        Ok(Tensor::from_data(TensorData::new(seen, shape), device))
    }

    /// The sentence of each batch row, from its first real position to its last, as far as the mask knows: from the padding
    /// that always applies, or else all keys.
    pub(crate) fn sentences(&self, grid: &Grid) -> Vec<Range<usize>> {
        let mut paddings = vec![];
        self.0.paddings(&mut paddings);
        let sentence = |batch: usize| {
            let real = paddings.iter().map(|keep| keep.sentence(batch));
            real.fold(0..grid.keys, |all, real| {
                all.start.max(real.start)..all.end.min(real.end)
            })
        };
        (0..grid.batch).map(sentence).collect()
    }

    /// Only the first `reach` keys.
    pub(crate) fn reach(reach: usize) -> Self {
        Self(Rule::Reach(reach))
    }

    /// Checks that the mask fits the sizes.
    ///
    /// # Errors
    /// A padding mask, documents, prefixes or centres of another batch or length; positions beyond [`SequencePosition::MAX`].
    pub fn check(&self, grid: &Grid) -> Result<(), AttentionError> {
        grid.check()?;
        self.0.check(grid)
    }

    /// What a row of queries sees, one entry a key.
    pub(crate) fn row(&self, grid: &Grid, batch: usize, head: usize, query: usize) -> Vec<bool> {
        let mut seen = vec![false; grid.keys];
        self.0.fill(&Row::new(grid, batch, head, query), &mut seen);
        seen
    }
}

/// Which of batch, heads and queries a rule depends on (all rules depend on keys).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Varies {
    pub(crate) batch: bool,
    pub(crate) heads: bool,
    pub(crate) queries: bool,
}

impl Varies {
    fn or(self, other: Self) -> Self {
        Self {
            batch: self.batch || other.batch,
            heads: self.heads || other.heads,
            queries: self.queries || other.queries,
        }
    }
}

impl Rule {
    pub(crate) fn varies(&self) -> Varies {
        let batch = self.batch() > 1;
        match self {
            Self::All | Self::Reach(_) | Self::Padding(_) => Varies {
                batch,
                ..Varies::default()
            },
            Self::Causal(_)
            | Self::Window(_)
            | Self::Global(..)
            | Self::Blocks(_)
            | Self::Chunked { .. }
            | Self::Documents(_)
            | Self::Prefix(..) => Varies {
                batch,
                heads: false,
                queries: true,
            },
            Self::Local(centres) => Varies {
                batch,
                heads: centres.heads() > 1,
                queries: true,
            },
            Self::Function(_) => Varies {
                batch: true,
                heads: true,
                queries: true,
            },
            Self::And(a, b) | Self::Or(a, b) => a.varies().or(b.varies()),
            Self::Not(a) => a.varies(),
        }
    }

    /// The batch size that a rule requires; 1 where any fits.
    fn batch(&self) -> usize {
        match self {
            Self::Padding(keep) => keep.batch(),
            Self::Local(centres) => centres.batch(),
            Self::Documents(documents) => documents.batch(),
            Self::Prefix(lengths, _) => lengths.len(),
            Self::And(a, b) | Self::Or(a, b) => a.batch().max(b.batch()),
            Self::Not(a) => a.batch(),
            _ => 1,
        }
    }

    /// Whether it tells documents of one row apart.
    pub(crate) fn has_documents(&self) -> bool {
        match self {
            Self::Documents(_) => true,
            Self::And(a, b) | Self::Or(a, b) => a.has_documents() || b.has_documents(),
            Self::Not(a) => a.has_documents(),
            _ => false,
        }
    }

    /// The paddings that hide keys whatever else the rule says.
    fn paddings<'a>(&'a self, paddings: &mut Vec<&'a PaddingMask>) {
        match self {
            Self::Padding(keep) => paddings.push(keep),
            Self::And(a, b) => {
                a.paddings(paddings);
                b.paddings(paddings);
            }
            _ => {}
        }
    }

    /// The rows of a checked grid that the rule distinguishes, and their numbers of batch rows, heads and queries: 1 for each
    /// that it does not depend on.
    fn rows(&self, grid: &Grid) -> (impl Iterator<Item = Row> + use<>, [usize; 3]) {
        let varies = self.varies();
        let size = |varies: bool, size: usize| if varies { size } else { size.min(1) };
        let batch = size(varies.batch, grid.batch);
        let heads = size(varies.heads, grid.heads);
        let queries = size(varies.queries, grid.queries);
        let grid = *grid;
        let row = move |i: usize| {
            let (batch, rest) = (i / (heads * queries), i % (heads * queries));
            Row::new(&grid, batch, rest / queries, rest % queries)
        };
        let rows = (0..batch * heads * queries).map(row);
        (rows, [batch, heads, queries])
    }

    /// What is seen on a checked grid: `[batch, heads, queries, keys]`, where each of the first three is 1 if the rule
    /// does not depend on it.
    pub(crate) fn table(&self, grid: &Grid) -> (Vec<bool>, [usize; 4]) {
        let (rows, [batch, heads, queries]) = self.rows(grid);
        let mut seen = vec![false; batch * heads * queries * grid.keys];
        for (row, seen) in rows.zip(seen.chunks_exact_mut(grid.keys.max(1))) {
            self.fill(&row, seen);
        }
        (seen, [batch, heads, queries, grid.keys])
    }

    /// Writes what the row sees to `seen`, one entry for each key.
    fn fill(&self, row: &Row, seen: &mut [bool]) {
        match self {
            Self::All => seen.fill(true),
            Self::Causal(alignment) => causal::fill(*alignment, row, seen),
            Self::Padding(keep) => keep.fill(row, seen),
            Self::Reach(reach) => row.fill_to(SequencePosition::saturating(*reach), seen),
            Self::Window(window) => window.fill(row, seen),
            Self::Global(positions, alignment) => {
                longformer::fill_global(positions, *alignment, row, seen);
            }
            Self::Local(centres) => centres.fill(row, seen),
            Self::Blocks(blocks) => blocks.fill(row, seen),
            Self::Chunked {
                size,
                left,
                alignment,
            } => block::fill_chunk(*size, *left, *alignment, row, seen),
            Self::Documents(documents) => documents.fill(row, seen),
            Self::Prefix(lengths, alignment) => {
                causal::fill(*alignment, row, seen);
                prefix::fill(lengths, row, seen);
            }
            Self::Function(function) => function.fill(row, seen),
            Self::And(a, b) => combine::fill(a, b, row, seen, |a, b| a && b),
            Self::Or(a, b) => combine::fill(a, b, row, seen, |a, b| a || b),
            Self::Not(a) => {
                a.fill(row, seen);
                seen.iter_mut().for_each(|seen| *seen = !*seen);
            }
        }
    }

    fn check(&self, grid: &Grid) -> Result<(), AttentionError> {
        match self {
            Self::All
            | Self::Causal(_)
            | Self::Reach(_)
            | Self::Window(_)
            | Self::Global(..)
            | Self::Chunked { .. }
            | Self::Function(_) => Ok(()),
            Self::Padding(keep) => keep.check(grid),
            Self::Local(centres) => centres.check(grid),
            Self::Blocks(blocks) => blocks.check(grid),
            Self::Documents(documents) => documents.check(grid),
            Self::Prefix(lengths, _) => prefix::check(lengths, grid),
            Self::And(a, b) | Self::Or(a, b) => a.check(grid).and(b.check(grid)),
            Self::Not(a) => a.check(grid),
        }
    }
}

/// Checks a batch size: that of the grid, or 1 for all.
fn check_batch(field: &'static str, found: usize, grid: &Grid) -> Result<(), AttentionError> {
    if found == 1 || found == grid.batch {
        return Ok(());
    }
    Err(AttentionError::value(
        field,
        found,
        format!("{} (the batch of the query) or 1", grid.batch),
        "make the mask of the batch that is read",
    ))
}
