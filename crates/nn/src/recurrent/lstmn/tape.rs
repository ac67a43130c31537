//! The tape of a long short-term memory-network: all states so far, `h_i | c_i`, where an LSTM keeps only the last one.
//!
//! `[batch, steps, 2n]`, growing by one step at a time; with it the summaries `h̃`, `γ̃`, which are part of the next
//! step's queries.

use burn::tensor::{Int, Tensor};

use super::super::LstmState;

/// Everything an LSTMN has read so far.
#[derive(Debug, Clone)]
pub struct Tape {
    /// `h_i | c_i` of every step, `[batch, steps, 2n]`, and its keys, `[batch, steps, a]`; `None` before the first step.
    pub(super) written: Option<(Tensor<3>, Tensor<3>)>,
    /// `h̃_{t-1}`, `[batch, n]`.
    pub(super) summary: Tensor<2>,
    /// `γ̃_{t-1}`, `[batch, m]`, with deep fusion.
    pub(super) source_summary: Option<Tensor<2>>,
    /// `h_{t-1}, c_{t-1}`.
    pub(super) last: LstmState,
}

impl Tape {
    /// The last state, `h_t` and `c_t`, each `[batch, n]`; zeros before the first step.
    pub fn last(&self) -> &LstmState {
        &self.last
    }

    /// The number of steps written.
    pub fn steps(&self) -> usize {
        self.written
            .as_ref()
            .map_or(0, |(states, _)| states.dims()[1])
    }

    /// The sequences at `index`, in that order: in beam search, hypotheses survive, fork and end.
    pub fn select(self, index: Tensor<1, Int>) -> Self {
        let rows = |x: Tensor<3>| x.select(0, index.clone());
        Self {
            written: self
                .written
                .map(|(states, keys)| (rows(states), rows(keys))),
            summary: self.summary.select(0, index.clone()),
            source_summary: self.source_summary.map(|x| x.select(0, index.clone())),
            last: self.last.select(index),
        }
    }
}
