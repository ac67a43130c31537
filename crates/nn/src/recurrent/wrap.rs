//! Attention for networks of your own, which were made without it.
//!
//! - A **recurrent cell** that implements [`RecurrentCell`] becomes a decoder with attention by
//!   [`AttentiveDecoder`](super::AttentiveDecoder), and, by [`Unrolled`], an encoder all of whose states can be attended to.
//! - A network that computes **features** of several positions (the states of an RNN, the grid of a CNN) implements
//!   [`FeatureMap`]; [`WithAttention`] reads its positions with a given query, [`WithPooling`] with learned queries.
//!
//! A CNN that was made for something else, read with a query that says where to look:
//! ```
//! use burn::{module::Module, nn::conv::{Conv2d, Conv2dConfig}, tensor::{Device, Tensor}};
//! use regard_nn::{
//!     Attention, AttentionOptions, initialize::Initializer, mask::PaddingMask,
//!     recurrent::{FeatureMap, WithAttention, positions}, score::{Additive, Score},
//! };
//!
//! #[derive(Module, Debug)]
//! struct Eye { conv: Conv2d }
//!
//! impl FeatureMap<Tensor<4>> for Eye {
//!     fn size(&self) -> usize { 6 }
//!     fn features(&self, image: Tensor<4>) -> Tensor<3> { positions(self.conv.forward(image)) }
//! }
//!
//! let device = Device::flex();
//! let eye = Eye { conv: Conv2dConfig::new([3, 6], [3, 3]).init(&device) };
//! let score = Additive::new(5, 6, 8, &mut Initializer::new(1, &device));
//! let eye = WithAttention::new(eye, Attention::new(Score::Additive(score)));
//! let memory = eye.memory(Tensor::ones([2, 3, 6, 6], &device), None)?; // 4 x 4 positions
//! let query = Tensor::<3>::ones([2, 1, 5], &device);
//! let seen = eye.attention.read(query, &memory, AttentionOptions::default())?;
//! assert_eq!(seen.context.dims(), [2, 1, 6]);
//! assert_eq!(seen.weights.dims(), [2, 1, 16]);
//! # Ok::<(), regard_nn::AttentionError>(())
//! ```

use std::fmt::Debug;

use burn::{
    module::{Module, ModuleDisplay},
    tensor::{Device, Int, Tensor},
};

use super::{
    AttentivePooling, Gru, Lstm, LstmStack, LstmState, Lstmn, Pooled, Tape, check_shape, no_states,
};
use crate::{
    Attention, AttentionError, Memory, bridge::transposed, mask::PaddingMask,
    precision::check_weights,
};

/// A cell that takes one input after the other. Its caller checks sizes beforehand ([`RecurrentCell::check`]): like Burn's
/// own operations, a cell panics when shapes do not fit.
pub trait RecurrentCell: Module + ModuleDisplay {
    /// The state that it carries from step to step.
    type State: Clone + Debug;

    /// The size of an input.
    fn input_size(&self) -> usize;

    /// The size of [`hidden`](Self::hidden).
    fn hidden_size(&self) -> usize;

    /// The state before the first step of `batch` sequences.
    fn start(&self, batch: usize, device: &Device) -> Self::State;

    /// The state after the input `x [batch, input size]`.
    fn advance(&self, x: Tensor<2>, state: Self::State) -> Self::State;

    /// The part of a state that other modules use, `[batch, hidden size]`.
    fn hidden(&self, state: &Self::State) -> Tensor<2>;

    /// The sequences at `index`, in that order: in beam search, hypotheses survive, fork and end.
    fn select(&self, state: Self::State, index: Tensor<1, Int>) -> Self::State;

    /// Checks that `state` belongs to this cell and has `batch` sequences, before it is advanced. By default only
    /// [`hidden`](Self::hidden) is checked.
    ///
    /// # Errors
    /// A state of another size, batch or precision.
    fn check(&self, state: &Self::State, batch: usize) -> Result<(), AttentionError> {
        let hidden = self.hidden(state);
        let expected = [batch, self.hidden_size()];
        check_shape("state", hidden.dims(), expected, "[batch, units]")?;
        check_weights("state", hidden.dtype(), self)
    }
}

impl RecurrentCell for Gru {
    type State = Tensor<2>;

    fn input_size(&self) -> usize {
        self.input.weight.dims()[0]
    }

    fn hidden_size(&self) -> usize {
        self.size()
    }

    fn start(&self, batch: usize, device: &Device) -> Tensor<2> {
        Tensor::zeros([batch, self.size()], (device, self.recurrent.dtype()))
    }

    fn advance(&self, x: Tensor<2>, state: Tensor<2>) -> Tensor<2> {
        self.step(self.project(x), state, None)
    }

    fn hidden(&self, state: &Tensor<2>) -> Tensor<2> {
        state.clone()
    }

    fn select(&self, state: Tensor<2>, index: Tensor<1, Int>) -> Tensor<2> {
        state.select(0, index)
    }
}

impl RecurrentCell for Lstm {
    type State = LstmState;

    fn input_size(&self) -> usize {
        Lstm::input_size(self)
    }

    fn hidden_size(&self) -> usize {
        self.size()
    }

    fn start(&self, batch: usize, device: &Device) -> LstmState {
        self.zeros(batch, device)
    }

    fn advance(&self, x: Tensor<2>, state: LstmState) -> LstmState {
        self.step(self.project(x), state)
    }

    fn hidden(&self, state: &LstmState) -> Tensor<2> {
        state.hidden.clone()
    }

    fn select(&self, state: LstmState, index: Tensor<1, Int>) -> LstmState {
        state.select(index)
    }

    fn check(&self, state: &LstmState, batch: usize) -> Result<(), AttentionError> {
        self.check_state(state, batch)
    }
}

/// The hidden state is that of the top layer.
impl RecurrentCell for LstmStack {
    type State = Vec<LstmState>;

    fn input_size(&self) -> usize {
        LstmStack::input_size(self)
    }

    fn hidden_size(&self) -> usize {
        self.size()
    }

    fn start(&self, batch: usize, device: &Device) -> Vec<LstmState> {
        self.zeros(batch, device)
    }

    fn advance(&self, x: Tensor<2>, state: Vec<LstmState>) -> Vec<LstmState> {
        match self.step(x, state, &[]) {
            Ok((_, next)) => next,
            Err(error) => panic!("{error}"),
        }
    }

    fn hidden(&self, state: &Vec<LstmState>) -> Tensor<2> {
        match state.last() {
            Some(top) => top.hidden.clone(),
            None => panic!("a state of no layers"),
        }
    }

    fn select(&self, state: Vec<LstmState>, index: Tensor<1, Int>) -> Vec<LstmState> {
        let layers = state.into_iter();
        layers.map(|layer| layer.select(index.clone())).collect()
    }

    fn check(&self, state: &Vec<LstmState>, batch: usize) -> Result<(), AttentionError> {
        self.check_states(state, batch)
    }
}

/// Shallow fusion (Cheng 2016): the network's own attention inside, a source outside.
///
/// # Panics
/// If the network has deep fusion, which needs its source at every step: use [`Lstmn::step`] or [`Lstmn::sequence`].
impl RecurrentCell for Lstmn {
    type State = Tape;

    fn input_size(&self) -> usize {
        Lstmn::input_size(self)
    }

    fn hidden_size(&self) -> usize {
        self.size()
    }

    fn start(&self, batch: usize, device: &Device) -> Tape {
        self.tape(batch, device)
    }

    fn advance(&self, x: Tensor<2>, state: Tape) -> Tape {
        match self.step(x, state, None) {
            Ok(step) => step.tape,
            Err(error) => panic!("{error}"),
        }
    }

    fn hidden(&self, state: &Tape) -> Tensor<2> {
        state.last().hidden.clone()
    }

    fn select(&self, state: Tape, index: Tensor<1, Int>) -> Tape {
        state.select(index)
    }

    fn check(&self, state: &Tape, batch: usize) -> Result<(), AttentionError> {
        self.check_tape(state, batch)
    }
}

/// A network that computes one vector for each of several positions of its input.
pub trait FeatureMap<Input>: Module + ModuleDisplay {
    /// The size of a vector.
    fn size(&self) -> usize;

    /// The vectors, `[batch, positions, size]`.
    fn features(&self, input: Input) -> Tensor<3>;
}

/// The positions of a grid `[batch, channels, height, width]`, row by row:
/// `[batch, height · width, channels]`.
pub fn positions(grid: Tensor<4>) -> Tensor<3> {
    transposed(grid.flatten(2, 3), 1)
}

/// A cell run over a whole sequence `[time, batch, input]`: its features are all of its states.
#[derive(Module, Debug)]
pub struct Unrolled<C: Module> {
    /// The cell.
    pub cell: C,
}

impl<C: RecurrentCell> FeatureMap<Tensor<3>> for Unrolled<C> {
    fn size(&self) -> usize {
        self.cell.hidden_size()
    }

    fn features(&self, input: Tensor<3>) -> Tensor<3> {
        let [time, batch, _] = input.dims();
        let device = input.device();
        let mut state = self.cell.start(batch, &device);
        if let Some(none) = no_states(&input, &self.cell.hidden(&state)) {
            return none.swap_dims(0, 1);
        }
        let mut states = Vec::with_capacity(time);
        for t in 0..time {
            state = self.cell.advance(super::at(&input, t), state);
            states.push(self.cell.hidden(&state));
        }
        Tensor::stack(states, 1)
    }
}

/// A network whose positions are read with a query.
#[derive(Module, Debug)]
pub struct WithAttention<F: Module> {
    /// The network.
    pub network: F,
    /// How its positions are read.
    pub attention: Attention,
}

impl<F: Module> WithAttention<F> {
    /// `network` read by `attention`, whose score takes keys of the network's size.
    pub fn new(network: F, attention: Attention) -> Self {
        Self { network, attention }
    }

    /// Runs the network and prepares its features; `keep` says which positions are real, all of them if
    /// it is left out. Read it with [`Attention::read`], or decode from it with an
    /// [`AttentiveDecoder`](super::AttentiveDecoder).
    ///
    /// # Errors
    /// A mask of another batch or length than the features have; features of another size than the score takes.
    pub fn memory<I>(&self, input: I, keep: Option<PaddingMask>) -> Result<Memory, AttentionError>
    where
        F: FeatureMap<I>,
    {
        let features = self.network.features(input);
        let keep = checked(keep, &features)?;
        self.attention.memory(features, keep)
    }
}

/// A network whose positions are pooled by attention.
#[derive(Module, Debug)]
pub struct WithPooling<F: Module> {
    /// The network.
    pub network: F,
    /// How its positions are pooled.
    pub pooling: AttentivePooling,
}

impl<F: Module> WithPooling<F> {
    /// `network` pooled by `pooling`, which was made for features of the network's size.
    pub fn new(network: F, pooling: AttentivePooling) -> Self {
        Self { network, pooling }
    }

    /// Runs the network and pools its features; `keep` says which positions are real, all of them if it
    /// is left out.
    ///
    /// # Errors
    /// A mask or a pooling of another size than the features have.
    pub fn forward<I>(&self, input: I, keep: Option<PaddingMask>) -> Result<Pooled, AttentionError>
    where
        F: FeatureMap<I>,
    {
        let features = self.network.features(input);
        let keep = checked(keep, &features)?;
        self.pooling.forward(features, &keep)
    }
}

fn checked(keep: Option<PaddingMask>, features: &Tensor<3>) -> Result<PaddingMask, AttentionError> {
    let [batch, positions, _] = features.dims();
    match keep {
        None => Ok(PaddingMask::from_lengths(
            &vec![positions; batch],
            positions,
            &features.device(),
        )),
        Some(keep) => {
            let found = [keep.batch(), keep.length()];
            check_shape("keep", found, [batch, positions], "[batch, positions]")?;
            Ok(keep)
        }
    }
}
