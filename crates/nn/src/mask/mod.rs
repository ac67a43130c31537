//! What a query may see. A mask is a type, never a bare boolean whose meaning must be remembered: it says
//! who may **see** whom.
//!
//! | page | mask | query `i` sees key `j` when | source |
//! |---|---|---|---|
//! | | [`Mask::all`] | always | |
//! | [causal] | [`Mask::causal`] | `j <= pos(i)` | Vaswani 2017 |
//! | [padding](keep) | [`Mask::padding`] | position `j` of the sentence is real | |
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
//! `pos(i)` is where query `i` stands among the keys; [`Alignment`] names it, as the two usual answers differ
//! when there are fewer queries than keys.
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
//! Cost: the plain path writes one boolean for each (query, key) that the mask tells apart; the fused path
//! skips tiles in which nothing may be seen.

pub mod block;
pub mod causal;
pub mod combine;
pub mod document;
pub mod function;
pub mod keep;
mod kernel;
pub mod local;
pub mod longformer;
mod picture;
pub mod prefix;
pub mod window;

use burn::tensor::{Bool, Device, Tensor, TensorData};

use crate::attention::AttentionError;

pub use causal::Alignment;
pub use function::Place;
pub use keep::Keep;
pub(crate) use kernel::KernelMask;
pub use local::{Locality, PositionPredictor};

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

/// The rules behind [`Mask`], for those that compile them into kernels.
#[derive(Debug, Clone, Default)]
pub(crate) enum Rule {
    #[default]
    All,
    Causal(Alignment),
    Padding(Keep),
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

/// The sizes over which a mask is spread, and the number of the first query (for alignments that count from
/// the first key).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Independent problems.
    pub batch: usize,
    /// Query heads.
    pub heads: usize,
    /// Queries.
    pub queries: usize,
    /// Keys.
    pub keys: usize,
    /// The number of the first query, see [`crate::Call::first_query`].
    pub first_query: usize,
}

/// One row of a grid.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    grid: Grid,
    batch: usize,
    head: usize,
    query: usize,
}

impl Row {
    /// Where the query stands among the keys; may lie outside of them.
    fn position(&self, alignment: Alignment) -> isize {
        self.query as isize
            + match alignment {
                Alignment::LowerRight => self.grid.keys as isize - self.grid.queries as isize,
                Alignment::UpperLeft => self.grid.first_query as isize,
            }
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

    /// Whether query `query` of head `head` of batch row `batch` sees key `key`: the definition of the mask.
    ///
    /// # Errors
    /// When the mask does not fit `grid`, such as the padding of another batch; or the place lies outside.
    pub fn sees(&self, grid: &Grid, place: Place) -> Result<bool, AttentionError> {
        self.check(grid)?;
        for (field, found, size) in [
            ("place.batch", place.batch, grid.batch),
            ("place.head", place.head, grid.heads),
            ("place.query", place.query, grid.queries),
            ("place.key", place.key, grid.keys),
        ] {
            if found >= size {
                return Err(AttentionError::value(
                    field,
                    found,
                    format!("less than {size}"),
                    "places count from 0 inside the grid",
                ));
            }
        }
        Ok(self.row(grid, place.batch, place.head, place.query)[place.key])
    }

    /// The mask as a tensor, true where a key may be seen: `[batch, heads, queries, keys]`, where each of the
    /// first three is 1 if the mask does not depend on it.
    ///
    /// # Errors
    /// When the mask does not fit `grid`.
    pub fn tensor(&self, grid: &Grid, device: &Device) -> Result<Tensor<4, Bool>, AttentionError> {
        self.check(grid)?;
        if let Rule::Padding(keep) = &self.0 {
            return Ok(keep.tensor().unsqueeze_dims::<4>(&[1, 2]));
        }
        let (seen, shape) = self.0.table(grid);
        Ok(Tensor::from_data(TensorData::new(seen, shape), device))
    }

    /// The true length of each sentence, as far as the mask knows: that of a padding mask that always applies, else
    /// the number of keys. One for each batch row.
    pub(crate) fn lengths(&self, grid: &Grid) -> Vec<usize> {
        match self.0.padding().map(Keep::lengths) {
            Some([length]) => vec![*length; grid.batch],
            Some(lengths) => lengths.to_vec(),
            None => vec![grid.keys; grid.batch],
        }
    }

    /// The leading `reach` keys alone.
    pub(crate) fn reach(reach: usize) -> Self {
        Self(Rule::Reach(reach))
    }

    /// Checks that the mask fits the sizes.
    ///
    /// # Errors
    /// A padding mask, documents, prefixes or centres of another batch or length.
    pub fn check(&self, grid: &Grid) -> Result<(), AttentionError> {
        self.0.check(grid)
    }

    /// What a row of queries sees, one entry a key.
    pub(crate) fn row(&self, grid: &Grid, batch: usize, head: usize, query: usize) -> Vec<bool> {
        let mut seen = vec![false; grid.keys];
        let row = Row {
            grid: *grid,
            batch,
            head,
            query,
        };
        self.0.fill(&row, &mut seen);
        seen
    }
}

/// Which sizes a rule tells apart (all tell keys apart).
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

    /// The batch a rule is bound to; 1 where any fits.
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

    /// The padding that hides keys whatever else the rule says.
    pub(crate) fn padding(&self) -> Option<&Keep> {
        match self {
            Self::Padding(keep) => Some(keep),
            Self::And(a, b) => a.padding().or_else(|| b.padding()),
            _ => None,
        }
    }

    /// What is seen on a checked grid: `[batch, heads, queries, keys]`, where each of the first three is 1 if the rule
    /// does not depend on it.
    pub(crate) fn table(&self, grid: &Grid) -> (Vec<bool>, [usize; 4]) {
        let varies = self.varies();
        let size = |varies: bool, size: usize| if varies { size } else { size.min(1) };
        let batch = size(varies.batch, grid.batch);
        let heads = size(varies.heads, grid.heads);
        let queries = size(varies.queries, grid.queries);
        let mut seen = vec![false; batch * heads * queries * grid.keys];
        for (i, seen) in seen.chunks_exact_mut(grid.keys.max(1)).enumerate() {
            let (batch, rest) = (i / (heads * queries), i % (heads * queries));
            let row = Row {
                grid: *grid,
                batch,
                head: rest / queries,
                query: rest % queries,
            };
            self.fill(&row, seen);
        }
        (seen, [batch, heads, queries, grid.keys])
    }

    /// Writes what the row sees to `seen`, one entry a key.
    fn fill(&self, row: &Row, seen: &mut [bool]) {
        match self {
            Self::All => seen.fill(true),
            Self::Causal(alignment) => causal::fill(row.position(*alignment), seen),
            Self::Padding(keep) => keep.fill(row.batch, seen),
            Self::Reach(reach) => causal::fill(*reach as isize - 1, seen),
            Self::Window(window) => window.fill(row, seen),
            Self::Global(positions, alignment) => {
                longformer::fill_global(positions, row.position(*alignment), seen);
            }
            Self::Local(centres) => centres.fill(row, seen),
            Self::Blocks(blocks) => blocks.fill(row, seen),
            Self::Chunked {
                size,
                left,
                alignment,
            } => block::fill_chunk(*size, *left, row.position(*alignment), seen),
            Self::Documents(documents) => documents.fill(row, seen),
            Self::Prefix(lengths, alignment) => {
                causal::fill(row.position(*alignment), seen);
                prefix::fill(lengths, row.batch, seen);
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

/// A batch size that fits: that of the grid, or 1 for all.
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
