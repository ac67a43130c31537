//! Recurrent cells, and attention for them.
//!
//! | page | module | what | source |
//! |---|---|---|---|
//! | [gru], [lstm] | [`Gru`], [`Lstm`], [`LstmStack`] | the cells, and stacks of them | Cho 2014; Hochreiter & Schmidhuber 1997 |
//! | [lstmn] | [`Lstmn`] | a cell that reads all its earlier states by attention | Cheng 2016 |
//! | [decoder] | [`AttentiveDecoder`] | any cell with attention over a source | Bahdanau 2014, Luong 2015 |
//! | [coverage] | [`Coverage`] | past attention enters the score | See 2017, Tu 2016 |
//! | [copy](mod@copy) | [`PointerGenerator`] | words copied from the source beside words of the vocabulary | See 2017 |
//! | [pooling] | [`AttentivePooling`] | a sequence as a few weighted means | Lin 2017 |
//! | [wrap] | [`WithAttention`], [`WithPooling`] | any network of yours, with attention | |
//!
//! Sequences are time-major, `[time, batch, size]`. A padded step carries the state through unchanged,
//! so that a padded batch gives the same numbers as each sentence alone, and the contents of the padding (NaN included)
//! influence neither a state nor a gradient.
//!
//! [`Gru`] and [`Lstm`] are building blocks: like Burn's own operations they panic when shapes do not fit, and name the shapes.
//! Everything else here returns an [`AttentionError`].

pub mod copy;
pub mod coverage;
pub mod decoder;
pub mod gru;
pub mod lstm;
pub mod lstmn;
pub mod pooling;
pub mod wrap;

use burn::tensor::{Bool, Tensor};

use crate::{
    AttentionError,
    bridge::{spread, zeros_of},
};

pub use copy::PointerGenerator;
pub use coverage::Coverage;
pub use decoder::{AttentiveDecoder, AttentiveOutput, AttentiveState, AttentiveStep, Wiring};
pub use gru::{Gru, Reset};
pub use lstm::{Lstm, LstmStack, LstmState};
pub use lstmn::{DeepFusion, Lstmn, LstmnOutput, LstmnStep, PreparedSource, SourceTape, Tape};
pub use pooling::{AttentivePooling, Pooled};
pub use wrap::{FeatureMap, RecurrentCell, Unrolled, WithAttention, WithPooling, positions};

/// The direction in which time runs through a sequence.
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

/// `x [time, batch, size]` with zeros at the steps that are padding, so that a NaN there reaches no gradient by a product with
/// 0.
pub(crate) fn real_steps(x: Tensor<3>, keep: Option<&Tensor<2, Bool>>) -> Tensor<3> {
    match keep {
        None => x,
        Some(keep) => {
            let shape = x.dims();
            let padded = keep.clone().bool_not().unsqueeze_dim::<3>(2);
            x.mask_fill(spread(padded, shape), 0.0)
        }
    }
}

/// The states `[time, batch, size]` where there are no steps, no sentences or no units: an empty tensor that depends on the
/// inputs in the graph.
pub(crate) fn no_states(x: &Tensor<3>, state: &Tensor<2>) -> Option<Tensor<3>> {
    let ([time, _, _], [batch, size]) = (x.dims(), state.dims());
    let shape = [time, batch, size];
    shape.contains(&0).then(|| {
        let none = Tensor::zeros(shape, (&state.device(), state.dtype()));
        zeros_of(zeros_of(none, x), state)
    })
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
            let kept = keep.clone().narrow(0, step, 1).swap_dims(0, 1); // [batch, 1]
            let shape = new.dims();
            old.mask_where(spread(kept, shape), new)
        }
    }
}

/// Checks the shape of an argument; `meaning` says what its dimensions are.
pub(crate) fn check_shape<const D: usize>(
    field: &'static str,
    found: [usize; D],
    expected: [usize; D],
    meaning: &'static str,
) -> Result<(), AttentionError> {
    match found == expected {
        true => Ok(()),
        false => {
            let expected = format!("{expected:?}");
            Err(AttentionError::shape(field, &found, expected, meaning))
        }
    }
}

/// Step `t` of `[time, batch, size]` as `[batch, size]`.
pub(crate) fn at(sequence: &Tensor<3>, t: usize) -> Tensor<2> {
    sequence.clone().narrow(0, t, 1).squeeze_dim(0)
}
