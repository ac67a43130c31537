//! Long short-term memory (Hochreiter & Schmidhuber 1997, with a forget gate):
//!
//! `[i, f, g, o] = W x + U h + b`,
//! `c' = σ(f) ∘ c + σ(i) ∘ tanh(g)`, `h' = σ(o) ∘ tanh(c')`
//!
//! Gates are stored side by side in the order `i | f | g | o` (PyTorch's) in `W [input, 4n]`, `U [n, 4n]`.
//!
//! **Use it** where information must be kept over many steps, stacked in encoders and decoders. Not where a [`Gru`](super::Gru)
//! is enough: an LSTM has a third more weights. Cost of a step: `4 n (input + n)` multiplications; `W x` of a whole sequence is
//! one product.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::{dropout::DropoutRng, initialize::Initializer, recurrent::{Direction, LstmStack}};
//!
//! let device = Device::flex();
//! let stack = LstmStack::new(2, 4, 6, &mut Initializer::new(1, &device))?;
//! let x = Tensor::<3>::ones([5, 3, 4], &device); // [time, batch, input]
//! let (top, last) = stack.sequence(x, None, None, Direction::Forward, 0.0, &mut DropoutRng::none())?;
//! assert_eq!(top.dims(), [5, 3, 6]);
//! assert_eq!(last.len(), 2);
//! # Ok::<(), regard_nn::AttentionError>(())
//! ```

use burn::{
    module::{Module, Param},
    nn::Linear,
    tensor::{Bool, Device, Int, Tensor},
};

use super::{Direction, at, carry, check_shape, no_states, real_steps};
use crate::{
    attention::AttentionError,
    bridge::{
        self, matmul,
        sequence::{self, LayerFields, Unit},
    },
    dropout::{DropoutRng, check_probability, dropout},
    initialize::Initializer,
    precision::{check_precision, check_weights},
};

/// The state of one layer: hidden `h [batch, n]` and cell `c [batch, n]`.
#[derive(Debug, Clone)]
pub struct LstmState {
    /// `h`
    pub hidden: Tensor<2>,
    /// `c`
    pub cell: Tensor<2>,
}

impl LstmState {
    /// All zeros.
    pub fn zeros(batch: usize, size: usize, device: &Device) -> Self {
        Self {
            hidden: Tensor::zeros([batch, size], device),
            cell: Tensor::zeros([batch, size], device),
        }
    }

    /// `h | c [batch, 2n]`, as the fused operations read it.
    pub fn joined(self) -> Tensor<2> {
        Tensor::cat(vec![self.hidden, self.cell], 1)
    }

    /// The rows at `index`, in that order.
    pub fn select(self, index: Tensor<1, Int>) -> Self {
        Self {
            hidden: self.hidden.select(0, index.clone()),
            cell: self.cell.select(0, index),
        }
    }
}

const STATE: &str = "[batch, units]";

/// One LSTM layer of `n` units.
#[derive(Module, Debug)]
pub struct Lstm {
    /// `W [input, 4n]` and its bias.
    pub input: Linear,
    /// `U [n, 4n]`.
    pub recurrent: Param<Tensor<2>>,
}

impl Lstm {
    /// A layer with all weights from `U(-1/√size, 1/√size)`.
    pub fn new(input: usize, size: usize, initializer: &mut Initializer) -> Self {
        let bound = 1.0 / (size.max(1) as f32).sqrt();
        Self {
            input: Linear {
                weight: initializer.uniform([input, 4 * size], bound),
                bias: Some(initializer.uniform([4 * size], bound)),
            },
            recurrent: initializer.uniform([size, 4 * size], bound),
        }
    }

    /// `n`.
    pub fn size(&self) -> usize {
        // Also called before there are values, while a file is read.
        self.recurrent.lazy_shape()[0]
    }

    /// The size of an input.
    pub fn input_size(&self) -> usize {
        self.input.weight.lazy_shape()[0]
    }

    /// A state of zeros, in the precision of the weights.
    pub fn zeros(&self, batch: usize, device: &Device) -> LstmState {
        let zeros = || Tensor::zeros([batch, self.size()], (device, self.recurrent.dtype()));
        LstmState {
            hidden: zeros(),
            cell: zeros(),
        }
    }

    /// Checks that `state` belongs to this layer and has `batch` rows.
    pub(super) fn check_state(
        &self,
        state: &LstmState,
        batch: usize,
    ) -> Result<(), AttentionError> {
        let expected = [batch, self.size()];
        check_shape("state.hidden", state.hidden.dims(), expected, STATE)?;
        check_shape("state.cell", state.cell.dims(), expected, STATE)?;
        for (field, x) in [("state.hidden", &state.hidden), ("state.cell", &state.cell)] {
            check_precision(field, x.dtype(), self.recurrent.dtype(), "the weights")?;
        }
        Ok(())
    }

    /// `W x + b` for a whole sequence or one step: `[.., input]` -> `[.., 4n]`.
    ///
    /// # Panics
    /// If the last size of `x` is not the input size.
    pub fn project<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        bridge::apply(&self.input, x)
    }

    /// One step: from `x [batch, 4n]` (projected) and the state before the step, the state after it.
    ///
    /// # Panics
    /// If the shapes do not fit together.
    pub fn step(&self, x: Tensor<2>, state: LstmState) -> LstmState {
        let product = matmul(state.hidden.clone(), self.recurrent.val());
        let (hidden, cell) = bridge::lstm_step(x, product, state.hidden, state.cell, None);
        LstmState { hidden, cell }
    }

    /// A whole sequence: `x [time, batch, 4n]` (projected), the state before the first step and
    /// `keep [time, batch]` (true = real step); returns every hidden state, `[time, batch, n]`, and the state after the last
    /// step.
    ///
    /// # Panics
    /// If the shapes do not fit together.
    pub fn sequence(
        &self,
        x: Tensor<3>,
        state: LstmState,
        keep: Option<Tensor<2, Bool>>,
        direction: Direction,
    ) -> (Tensor<3>, LstmState) {
        if let Some(none) = no_states(&x, &state.hidden) {
            return (none, state);
        }
        if !sequence::is_fused(&x) {
            return self.sequence_plain(x, state, keep, direction);
        }
        let length = x.dims()[0];
        let n = self.size();
        let inputs = LayerFields {
            x_projection: x.into(),
            recurrent: self.recurrent.val().into(),
            initial: state.joined().into(),
        };
        let reverse = direction == Direction::Backward;
        let states = sequence::layer(Unit::Lstm, inputs, keep, reverse); // [time, batch, 2n]
        let last = match direction {
            Direction::Forward => at(&states, length - 1),
            Direction::Backward => at(&states, 0),
        };
        let last = LstmState {
            hidden: last.clone().narrow(1, 0, n),
            cell: last.narrow(1, n, n),
        };
        (states.narrow(2, 0, n), last)
    }

    /// The same by plain tensor operations, step by step: the definition.
    ///
    /// # Panics
    /// If the shapes do not fit together.
    pub fn sequence_plain(
        &self,
        x: Tensor<3>,
        mut state: LstmState,
        keep: Option<Tensor<2, Bool>>,
        direction: Direction,
    ) -> (Tensor<3>, LstmState) {
        if let Some(none) = no_states(&x, &state.hidden) {
            return (none, state);
        }
        let length = x.dims()[0];
        let x = real_steps(x, keep.as_ref());
        let mut states = vec![state.hidden.clone(); length];
        for t in direction.steps(length) {
            let new = self.step(at(&x, t), state.clone());
            state = LstmState {
                hidden: carry(keep.as_ref(), t, new.hidden, state.hidden),
                cell: carry(keep.as_ref(), t, new.cell, state.cell),
            };
            states[t] = state.hidden.clone();
        }
        (Tensor::stack(states, 0), state)
    }
}

/// Layers of LSTM on top of one another, with dropout between them (Zaremba 2014).
#[derive(Module, Debug)]
pub struct LstmStack {
    /// The layers, bottom first.
    pub layers: Vec<Lstm>,
}

impl LstmStack {
    /// `layers` layers of `size` units, the bottom one reading inputs of `input`.
    ///
    /// # Errors
    /// If `layers` is 0.
    pub fn new(
        layers: usize,
        input: usize,
        size: usize,
        initializer: &mut Initializer,
    ) -> Result<Self, AttentionError> {
        if layers == 0 {
            let advice = "a stack without layers has no state to give";
            return Err(AttentionError::value("layers", 0, "at least 1", advice));
        }
        Ok(Self {
            layers: (0..layers)
                .map(|layer| Lstm::new(if layer == 0 { input } else { size }, size, initializer))
                .collect(),
        })
    }

    /// The units of one layer.
    pub fn size(&self) -> usize {
        self.layers.last().map_or(0, Lstm::size)
    }

    /// The size of an input.
    pub fn input_size(&self) -> usize {
        self.layers.first().map_or(0, Lstm::input_size)
    }

    /// A state of zeros for every layer.
    pub fn zeros(&self, batch: usize, device: &Device) -> Vec<LstmState> {
        self.layers
            .iter()
            .map(|layer| layer.zeros(batch, device))
            .collect()
    }

    /// One step of every layer: `x [batch, input]`; returns the top hidden state `[batch, n]` and all states. `masks[l]`, if
    /// any, multiplies the output of layer `l` before the layer above.
    ///
    /// # Errors
    /// An input or mask of another size; states of another batch or size, or not one for each layer.
    pub fn step(
        &self,
        x: Tensor<2>,
        states: Vec<LstmState>,
        masks: &[Tensor<2>],
    ) -> Result<(Tensor<2>, Vec<LstmState>), AttentionError> {
        let [batch, _] = x.dims();
        let meaning = "[batch, input]";
        check_shape("x", x.dims(), [batch, self.input_size()], meaning)?;
        check_weights("x", x.dtype(), self)?;
        self.check_states(&states, batch)?;
        for (mask, layer) in masks.iter().zip(&self.layers) {
            check_shape("masks", mask.dims(), [batch, layer.size()], STATE)?;
        }
        let mut below = x;
        let mut next = Vec::with_capacity(states.len());
        for (l, (layer, state)) in self.layers.iter().zip(states).enumerate() {
            let state = layer.step(layer.project(below), state);
            below = match masks.get(l) {
                Some(mask) => state.hidden.clone() * mask.clone(),
                None => state.hidden.clone(),
            };
            next.push(state);
        }
        Ok((below, next))
    }

    /// A whole sequence: `x [time, batch, input]`; returns the top hidden states `[time, batch, n]` and each layer's last
    /// state. `states` are those before the first step, zeros if not given; `keep [time, batch]` is true at real steps. Dropout
    /// acts between layers.
    ///
    /// # Errors
    /// An input of another size; states or `keep` of another batch, length or size; not one state for each layer; a
    /// probability outside of `[0, 1)`.
    pub fn sequence(
        &self,
        x: Tensor<3>,
        states: Option<Vec<LstmState>>,
        keep: Option<Tensor<2, Bool>>,
        direction: Direction,
        dropout_probability: f64,
        noise: &mut DropoutRng,
    ) -> Result<(Tensor<3>, Vec<LstmState>), AttentionError> {
        let [time, batch, _] = x.dims();
        let meaning = "[time, batch, input]";
        check_shape("x", x.dims(), [time, batch, self.input_size()], meaning)?;
        check_weights("x", x.dtype(), self)?;
        if let Some(keep) = &keep {
            check_shape("keep", keep.dims(), [time, batch], "[time, batch]")?;
        }
        check_probability("dropout_probability", dropout_probability)?;
        let states = states.unwrap_or_else(|| self.zeros(batch, &x.device()));
        self.check_states(&states, batch)?;
        let mut below = x;
        let mut last = Vec::with_capacity(self.layers.len());
        for (l, (layer, state)) in self.layers.iter().zip(states).enumerate() {
            if l > 0 {
                below = dropout(below, dropout_probability, noise.batch_axis(1));
            }
            let (hidden, state) =
                layer.sequence(layer.project(below), state, keep.clone(), direction);
            below = hidden;
            last.push(state);
        }
        Ok((below, last))
    }

    /// Checks that `states` has one state for each layer, of `batch` rows.
    pub(super) fn check_states(
        &self,
        states: &[LstmState],
        batch: usize,
    ) -> Result<(), AttentionError> {
        if states.len() != self.layers.len() {
            return Err(AttentionError::value(
                "states",
                states.len(),
                format!("{}, one for each layer", self.layers.len()),
                "begin with `LstmStack::zeros`, or give a state to every layer",
            ));
        }
        let mut both = self.layers.iter().zip(states);
        both.try_for_each(|(layer, state)| layer.check_state(state, batch))
    }
}
