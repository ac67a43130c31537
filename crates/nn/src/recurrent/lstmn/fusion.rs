//! Deep fusion (Cheng, Dong & Lapata 2016, section 4): the cell reads the tape of a source.
//!
//! `c_t = r ∘ α̃_t + f ∘ c̃_t + i ∘ ĉ`, `r = σ(W_r [γ̃_t, x_t])`; see the [module page](super).

use burn::{
    module::{Module, Param},
    nn::Linear,
    tensor::{Bool, Int, Tensor},
};

use super::{Tape, check_shape};
use crate::{AttentionError, mask::PaddingMask, precision::check_weights, score::Additive};

/// The parameters that deep fusion adds.
#[derive(Module, Debug)]
pub struct DeepFusion {
    /// How the source is read: the query is `[x_t; γ̃_{t-1}]`.
    pub attention: Additive,
    /// `W_r`'s rows of `x_t`, `[input, n]`, and the gate's bias.
    pub input: Linear,
    /// `W_r`'s rows of `γ̃_t`, `[m, n]`.
    pub recurrent: Param<Tensor<2>>,
}

/// The states of a source sequence, which deep fusion reads as its memory.
#[derive(Debug, Clone)]
pub struct SourceTape {
    /// `γ_j`, `[batch, source, m]`.
    pub hidden: Tensor<3>,
    /// `α_j`, `[batch, source, n]`.
    pub cell: Tensor<3>,
    /// Which positions are real.
    pub keep: PaddingMask,
}

/// A [`SourceTape`] with the keys of its positions, computed once for all steps; made by
/// [`Lstmn::source`](super::Lstmn::source).
#[derive(Debug, Clone)]
pub struct PreparedSource {
    /// `W_γ γ_j`, `[batch, source, a]`.
    pub(super) keys: Tensor<3>,
    /// `γ_j | α_j`, `[batch, source, m + n]`.
    pub(super) states: Tensor<3>,
    /// `[batch, source]`; `None` where all positions are real.
    pub(super) keep: Option<Tensor<2, Bool>>,
}

impl PreparedSource {
    /// The sources at `index`, in that order, to go with [`Tape::select`].
    pub fn select(&self, index: Tensor<1, Int>) -> Self {
        Self {
            keys: self.keys.clone().select(0, index.clone()),
            states: self.states.clone().select(0, index.clone()),
            keep: self.keep.clone().map(|keep| keep.select(0, index)),
        }
    }
}

impl DeepFusion {
    /// Checks a source for `batch` sequences of a network of `n` units, and computes its keys.
    pub(super) fn prepare(
        &self,
        source: &SourceTape,
        batch: usize,
        n: usize,
    ) -> Result<PreparedSource, AttentionError> {
        let [_, positions, _] = source.hidden.dims();
        let [m, _] = self.recurrent.dims();
        let hidden = [batch, positions, m];
        let meaning = "[batch, source, source units]";
        check_shape("source.hidden", source.hidden.dims(), hidden, meaning)?;
        let cell = [batch, positions, n];
        let meaning = "[batch, source, units]";
        check_shape("source.cell", source.cell.dims(), cell, meaning)?;
        let (kept, meaning) = (source.keep.tensor().dims(), "[batch, source]");
        check_shape("source.keep", kept, [batch, positions], meaning)?;
        check_weights("source.hidden", source.hidden.dtype(), self)?;
        check_weights("source.cell", source.cell.dtype(), self)?;
        let hidden = source.keep.zero_padding(source.hidden.clone());
        let cell = source.keep.zero_padding(source.cell.clone());
        Ok(PreparedSource {
            keys: self.attention.keys(hidden.clone()),
            states: Tensor::cat(vec![hidden, cell], 2),
            keep: (!source.keep.is_full()).then(|| source.keep.tensor()),
        })
    }

    /// Checks that a prepared source and a tape belong to a network of `n` units with this fusion.
    pub(super) fn check(
        &self,
        source: &PreparedSource,
        tape: &Tape,
        n: usize,
    ) -> Result<(), AttentionError> {
        let ([batch, _], [m, _]) = (tape.summary.dims(), self.recurrent.dims());
        let [_, positions, _] = source.states.dims();
        let states = [batch, positions, m + n];
        let meaning = "[batch, source, source units and units]";
        check_shape("source", source.states.dims(), states, meaning)?;
        let keys = [batch, positions, self.attention.vector.dims()[0]];
        let meaning = "[batch, source, attention size]";
        check_shape("source", source.keys.dims(), keys, meaning)?;
        check_weights("source", source.states.dtype(), self)?;
        match &tape.source_summary {
            Some(before) => check_shape(
                "tape",
                before.dims(),
                [batch, m],
                "[batch, source units] of what was read before",
            ),
            None => Err(AttentionError::combination(
                "fusion",
                "deep",
                "a tape of a network without",
                "begin with the `tape` of this network",
            )),
        }
    }
}

/// The error for deep fusion without a source.
pub(super) fn unsourced() -> AttentionError {
    AttentionError::combination(
        "fusion",
        "deep",
        "no source",
        "give the source that the network is to read: a SourceTape, or what `Lstmn::source` makes of it",
    )
}

/// The error for a source without deep fusion.
pub(super) fn unread() -> AttentionError {
    AttentionError::combination(
        "fusion",
        "absent",
        "a source",
        "make the network with `with_fusion`, or wrap it in an AttentiveDecoder for shallow fusion",
    )
}
