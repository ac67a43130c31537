//! Who looks at a pass, and what is shown.

use crate::error::KernelError;
use crate::{Attention, View};

/// Told of every attention that it asks for. Nothing that it does changes a result.
pub trait Observer {
    /// Whether attention of block `layer` is wanted: to the source (`cross`) or to the own past.
    fn wants(&self, layer: usize, cross: bool) -> bool;

    /// The attention of one row.
    ///
    /// # Errors
    /// Whatever it finds; the pass ends with it.
    fn see(&mut self, seen: Seen<'_>) -> Result<(), KernelError>;

    /// The states of all positions of the pass at one point of a block. They are there anyway: being told of them costs nothing.
    ///
    /// # Errors
    /// Whatever it finds; the pass ends with it.
    fn states(&mut self, _states: States<'_>) -> Result<(), KernelError> {
        Ok(())
    }
}

/// The states between the parts of a block: after the residual sum, and after the norm where one stands behind the sum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct States<'a> {
    /// The block.
    pub layer: usize,
    /// Where in the block.
    pub point: Point,
    /// How many positions of each row are in this pass.
    pub counts: &'a [usize],
    /// `[positions, model]`, packed by `counts`
    pub states: &'a [f32],
}

/// A point of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Point {
    /// Before its attention: what enters the block, of the first one the embeddings.
    Input,
    /// After its attention to the own past.
    Attention,
    /// After its attention to the source.
    Cross,
    /// After its feed-forward network: what leaves the block.
    FeedForward,
}

/// Positions of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Positions<'a> {
    /// This one, and those after it.
    From(usize),
    /// These.
    At(&'a [usize]),
}

impl Positions<'_> {
    /// The position of the query or key `index`, one of those that they are the positions of.
    pub fn of(self, index: usize) -> usize {
        match self {
            Self::From(first) => first + index,
            Self::At(positions) => positions[index],
        }
    }
}

/// One attention of one row, as [`dot::observe`](crate::dot::observe()) takes it.
///
/// A row with [global positions](super::GlobalAttention) has two in a block, in which positions occur more than once. The weight of
/// a pair of positions is the sum of all that are seen of it; one of them at most is not 0.
#[derive(Debug)]
pub struct Seen<'a> {
    /// The block.
    pub layer: usize,
    /// Whether to the source.
    pub cross: bool,
    /// The row.
    pub row: usize,
    /// Where the queries stand.
    pub queries: Positions<'a>,
    /// Where the keys stand.
    pub keys: Positions<'a>,
    /// Scale, softcap, mask, biases of relative positions.
    pub attention: Attention<'a>,
    /// `[1, heads, queries, head]`
    pub query: View<'a>,
    /// `[1, key_value_heads, keys, head]`
    pub key: View<'a>,
    /// `[1, key_value_heads, keys, head]`
    pub value: View<'a>,
    /// `[1, heads, queries, 3]`
    pub lse: &'a [f32],
}

/// An observer, if there is one.
pub(super) type Observing<'o> = Option<&'o mut (dyn Observer + Send)>;

pub(super) fn wanted(observer: &Observing<'_>, layer: usize, cross: bool) -> bool {
    observer
        .as_ref()
        .is_some_and(|observer| observer.wants(layer, cross))
}

/// The observer of an attention that is wanted.
pub(super) fn told<'o>(
    observer: &'o mut Observing<'_>,
    wanted: bool,
) -> Option<&'o mut (dyn Observer + Send + 'o)> {
    match wanted {
        true => observer.as_mut().map(|observer| &mut **observer as _),
        false => None,
    }
}
