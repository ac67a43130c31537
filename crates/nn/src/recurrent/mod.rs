//! Recurrent cells: [`Gru`] in the conventions of Bahdanau/Cho and of PyTorch, [`Lstm`], and stacks.
//!
//! Sequences are time-major, `[time, batch, size]`. A padded step carries the state through unchanged,
//! so that a padded batch gives the same numbers as each sentence alone.

mod error;
mod gru;
mod lstm;
mod lstmn;
mod pooling;

use burn::tensor::{Bool, Tensor};

pub use error::RecurrentError;
pub use gru::{Gru, Reset};
pub use lstm::{Lstm, LstmStack, LstmState};
pub use lstmn::{DeepFusion, Lstmn, LstmnOutput, SourceTape, Tape};
pub use pooling::AttentivePooling;

/// Which way time runs through a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the first step to the last.
    Forward,
    /// From the last step to the first.
    Backward,
}

impl Direction {
    /// The steps of a sequence of `length` in this direction.
    pub(crate) fn steps(self, length: usize) -> Box<dyn Iterator<Item = usize>> {
        match self {
            Self::Forward => Box::new(0..length),
            Self::Backward => Box::new((0..length).rev()),
        }
    }
}

/// `new` where `keep [batch]` is true, `old` elsewhere; both `[batch, size]`.
pub(crate) fn carry(
    keep: Option<&Tensor<2, Bool>>,
    step: usize,
    new: Tensor<2>,
    old: Tensor<2>,
) -> Tensor<2> {
    match keep {
        None => new,
        Some(keep) => {
            let [_, batch] = keep.dims();
            let kept = keep.clone().narrow(0, step, 1).reshape([batch, 1]);
            let shape = new.dims();
            old.mask_where(kept.expand(shape), new)
        }
    }
}

/// Step `t` of `[time, batch, size]` as `[batch, size]`.
pub(crate) fn at(sequence: &Tensor<3>, t: usize) -> Tensor<2> {
    sequence.clone().narrow(0, t, 1).squeeze_dim(0)
}
