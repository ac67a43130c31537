//! Long short-term memory (Hochreiter & Schmidhuber 1997, with a forget gate):
//!
//! `[i, f, g, o] = W x + U h + b`,
//! `c' = σ(f) ∘ c + σ(i) ∘ tanh(g)`, `h' = σ(o) ∘ tanh(c')`
//!
//! Gates stand side by side in the order `i | f | g | o` (PyTorch's) in `W [input, 4n]`, `U [n, 4n]`.
//!
//! **Use it** where something must be carried over many steps, stacked in encoders and decoders. Not where a [`Gru`](super::Gru)
//! does: it has a third more weights. Cost of a step: `4 n (input + n)` multiplications; `W x` of a whole sequence is one
//! product.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::{dropout::Noise, initialize::Initializer, recurrent::{Direction, LstmStack}};
//!
//! let device = Device::flex();
//! let stack = LstmStack::new(2, 4, 6, &mut Initializer::new(1, &device));
//! let x = Tensor::<3>::ones([5, 3, 4], &device); // [time, batch, input]
//! let (top, last) = stack.sequence(x, None, None, Direction::Forward, 0.0, &mut Noise::none());
//! assert_eq!(top.dims(), [5, 3, 6]);
//! assert_eq!(last.len(), 2);
//! ```

use burn::{
    module::{Module, Param},
    nn::Linear,
    tensor::{Bool, Device, Int, Tensor},
};

use super::{Direction, at, carry};
use crate::{
    bridge::{self, sequence},
    dropout::{Noise, dropout},
    initialize::Initializer,
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

    /// The rows at `index`, in that order.
    pub fn select(self, index: Tensor<1, Int>) -> Self {
        Self {
            hidden: self.hidden.select(0, index.clone()),
            cell: self.cell.select(0, index),
        }
    }
}

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
        let bound = 1.0 / (size as f32).sqrt();
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
        self.recurrent.dims()[0]
    }

    /// `W x + b` for a whole sequence or one step: `[.., input]` -> `[.., 4n]`.
    pub fn project<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        self.input.forward(x)
    }

    /// One step: `x [batch, 4n]` (projected) and the state before it give the state after it.
    pub fn step(&self, x: Tensor<2>, state: LstmState) -> LstmState {
        let product = state.hidden.clone().matmul(self.recurrent.val());
        let (hidden, cell) = bridge::lstm_step(x, product, state.hidden, state.cell, None);
        LstmState { hidden, cell }
    }

    /// A whole sequence: `x [time, batch, 4n]` (projected), the state before the first step and
    /// `keep [time, batch]` (true = real step); gives every hidden state, `[time, batch, n]`, and the
    /// state after the last step.
    pub fn sequence(
        &self,
        x: Tensor<3>,
        state: LstmState,
        keep: Option<Tensor<2, Bool>>,
        direction: Direction,
    ) -> (Tensor<3>, LstmState) {
        let length = x.dims()[0];
        if length == 0 || !sequence::is_fused(&x) {
            return self.sequence_plain(x, state, keep, direction);
        }
        let n = self.size();
        let states = sequence::lstm_sequence(
            x,
            self.recurrent.val(),
            state.hidden,
            state.cell,
            keep,
            direction == Direction::Backward,
        ); // [time, batch, 2n]
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
    pub fn sequence_plain(
        &self,
        x: Tensor<3>,
        mut state: LstmState,
        keep: Option<Tensor<2, Bool>>,
        direction: Direction,
    ) -> (Tensor<3>, LstmState) {
        let [length, batch, _] = x.dims();
        if length == 0 {
            return (Tensor::zeros([0, batch, self.size()], &x.device()), state);
        }
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
    pub fn new(layers: usize, input: usize, size: usize, initializer: &mut Initializer) -> Self {
        Self {
            layers: (0..layers)
                .map(|layer| Lstm::new(if layer == 0 { input } else { size }, size, initializer))
                .collect(),
        }
    }

    /// The units of one layer.
    pub fn size(&self) -> usize {
        self.layers[0].size()
    }

    /// A state of zeros for every layer.
    pub fn zeros(&self, batch: usize, device: &Device) -> Vec<LstmState> {
        self.layers
            .iter()
            .map(|layer| LstmState::zeros(batch, layer.size(), device))
            .collect()
    }

    /// One step of every layer: `x [batch, input]`; gives the top hidden state `[batch, n]` and all
    /// states. `masks[l]`, if any, multiplies the output of layer `l` on its way up.
    pub fn step(
        &self,
        x: Tensor<2>,
        states: Vec<LstmState>,
        masks: &[Tensor<2>],
    ) -> (Tensor<2>, Vec<LstmState>) {
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
        (below, next)
    }

    /// A whole sequence: `x [time, batch, input]`; gives the top hidden states `[time, batch, n]` and
    /// each layer's last state. Dropout acts between layers.
    pub fn sequence(
        &self,
        x: Tensor<3>,
        states: Option<Vec<LstmState>>,
        keep: Option<Tensor<2, Bool>>,
        direction: Direction,
        dropout_probability: f64,
        noise: &mut Noise,
    ) -> (Tensor<3>, Vec<LstmState>) {
        let [_, batch, _] = x.dims();
        let states = states.unwrap_or_else(|| self.zeros(batch, &x.device()));
        let mut below = x;
        let mut last = Vec::with_capacity(self.layers.len());
        for (l, (layer, state)) in self.layers.iter().zip(states).enumerate() {
            if l > 0 {
                below = dropout(below, dropout_probability, noise);
            }
            let (hidden, state) =
                layer.sequence(layer.project(below), state, keep.clone(), direction);
            below = hidden;
            last.push(state);
        }
        (below, last)
    }
}
