//! Gated recurrent unit (Cho et al. 2014), with input `x`, state `h` and optionally a context `c`:
//!
//! - [`Reset::BeforeProduct`], Bahdanau 2014, App. A:
//!   `z, r = σ(W x + U h + C c)`, `h̃ = tanh(W x + U [r ∘ h] + C c)`, `h' = (1 - z) ∘ h + z ∘ h̃`
//! - [`Reset::AfterProduct`], Cho 2014's decoder and PyTorch:
//!   `z, r = σ(W x + U h + C c)`, `h̃ = tanh(W x + r ∘ (U h + C c))`, `h' = (1 - z) ∘ h̃ + z ∘ h`
//!
//! Gates are stored side by side in the order `z | r | h̃` in `W [input, 3n]`, `U [n, 3n]`, `C [context, 3n]`. Biases are
//! part of `W x` (the papers leave them out of their formulas).
//!
//! **Use it** as encoder or decoder cell where an LSTM's second state is not needed; [`Reset::BeforeProduct`] to follow
//! the paper, [`Reset::AfterProduct`] to load weights from PyTorch. Not for long sequences on a GPU: each step waits for
//! the one before. Cost of a step: `3 n (input + n)` multiplications; `W x` of a whole sequence is one product.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::{initialize::Initializer, recurrent::{Direction, Gru, Reset}};
//!
//! let device = Device::flex();
//! let gru = Gru::new(4, 6, Reset::BeforeProduct, &mut Initializer::new(1, &device));
//! let x = gru.project(Tensor::<3>::ones([5, 2, 4], &device)); // [time, batch, 3n]
//! let states = gru.sequence(x, Tensor::zeros([2, 6], &device), None, Direction::Forward);
//! assert_eq!(states.dims(), [5, 2, 6]);
//! ```

use burn::{
    module::{Module, Param},
    nn::Linear,
    tensor::{Bool, Tensor},
};

use super::{Direction, at, carry, no_states, real_steps};
use crate::{
    bridge::{
        self, matmul,
        sequence::{self, LayerFields, Unit},
    },
    initialize::Initializer,
};

/// Where the reset gate acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reset {
    /// On the state, before the recurrent product (Bahdanau 2014); `z` weights the new state.
    BeforeProduct,
    /// On the recurrent product (Cho 2014's decoder, PyTorch); `z` weights the old state.
    AfterProduct,
}

/// A gated recurrent unit of `n` units.
#[derive(Module, Debug)]
pub struct Gru {
    /// `W [input, 3n]` and its bias.
    pub input: Linear,
    /// `U [n, 3n]`.
    pub recurrent: Param<Tensor<2>>,
    #[module(skip)]
    reset: Reset,
}

impl Gru {
    /// A unit with all weights from `U(-1/√size, 1/√size)`.
    pub fn new(input: usize, size: usize, reset: Reset, initializer: &mut Initializer) -> Self {
        let bound = 1.0 / (size.max(1) as f32).sqrt();
        Self {
            input: initializer.linear(input, 3 * size, true),
            recurrent: initializer.uniform([size, 3 * size], bound),
            reset,
        }
    }

    /// Initialised as Bahdanau 2014, App. B: recurrent matrices orthogonal, others `N(0, 0.01²)`, biases 0.
    pub fn as_in_paper(
        input: usize,
        size: usize,
        reset: Reset,
        initializer: &mut Initializer,
    ) -> Self {
        Self {
            input: initializer.normal_linear(input, 3 * size, true, 0.01),
            recurrent: initializer.orthogonal(size, 3),
            reset,
        }
    }

    /// `n`.
    pub fn size(&self) -> usize {
        self.recurrent.lazy_shape()[0]
    }

    /// Where the reset gate acts.
    pub fn reset(&self) -> Reset {
        self.reset
    }

    /// `W x + b` for a whole sequence or one step: `[.., input]` -> `[.., 3n]`.
    ///
    /// # Panics
    /// If the last size of `x` is not the input size.
    pub fn project<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        bridge::apply(&self.input, x)
    }

    /// One step: `x [batch, 3n]` (projected), `h [batch, n]`, and `C c [batch, 3n]` if there is a
    /// context; returns `h' [batch, n]`.
    ///
    /// # Panics
    /// If the shapes do not fit together.
    pub fn step(&self, x: Tensor<2>, h: Tensor<2>, context: Option<Tensor<2>>) -> Tensor<2> {
        let n = self.size();
        let u = self.recurrent.val();
        match self.reset {
            Reset::BeforeProduct => {
                let x = match context {
                    Some(context) => x + context,
                    None => x,
                };
                let product = matmul(h.clone(), u.clone().narrow(1, 0, 2 * n));
                let reset = bridge::gru_reset(x.clone(), product.clone(), h.clone(), None);
                let candidate = matmul(reset, u.narrow(1, 2 * n, n));
                bridge::gru_update(x, product, candidate, h, None)
            }
            Reset::AfterProduct => {
                let product = matmul(h.clone(), u);
                let product = match context {
                    Some(context) => product + context,
                    None => product,
                };
                bridge::gru_step(x, product, h, None)
            }
        }
    }

    /// A whole sequence: `x [time, batch, 3n]` (projected), `h [batch, n]` before the first step, and
    /// `keep [time, batch]` (true = real step); returns every state, `[time, batch, n]`.
    ///
    /// # Panics
    /// If the shapes do not fit together.
    pub fn sequence(
        &self,
        x: Tensor<3>,
        h: Tensor<2>,
        keep: Option<Tensor<2, Bool>>,
        direction: Direction,
    ) -> Tensor<3> {
        if let Some(none) = no_states(&x, &h) {
            return none;
        }
        if !sequence::is_fused(&x) {
            return self.sequence_plain(x, h, keep, direction);
        }
        let unit = match self.reset {
            Reset::BeforeProduct => Unit::ChoGru,
            Reset::AfterProduct => Unit::PyTorchGru,
        };
        let inputs = LayerFields {
            x_projection: x.into(),
            recurrent: self.recurrent.val().into(),
            initial: h.into(),
        };
        sequence::layer(unit, inputs, keep, direction == Direction::Backward)
    }

    /// The same by plain tensor operations, step by step: the definition.
    ///
    /// # Panics
    /// If the shapes do not fit together.
    pub fn sequence_plain(
        &self,
        x: Tensor<3>,
        mut h: Tensor<2>,
        keep: Option<Tensor<2, Bool>>,
        direction: Direction,
    ) -> Tensor<3> {
        if let Some(none) = no_states(&x, &h) {
            return none;
        }
        let length = x.dims()[0];
        let x = real_steps(x, keep.as_ref());
        let mut states = vec![h.clone(); length];
        for t in direction.steps(length) {
            let new = self.step(at(&x, t), h.clone(), None);
            h = carry(keep.as_ref(), t, new, h);
            states[t] = h.clone();
        }
        Tensor::stack(states, 0)
    }
}
