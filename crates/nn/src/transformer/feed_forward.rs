//! The small network that follows attention, applied to every position separately.
//!
//! ```text
//! plain   W_2 dropout(φ(W_1 x + b_1)) + b_2
//! gated   W_2 dropout(φ(W_g x + b_g) ∘ (W_1 x + b_1)) + b_2
//!
//! ReLU(x) = max(x, 0)    GELU(x) = x Φ(x) ≈ x (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2    SiLU(x) = x σ(x)
//! ```
//! `W_1, W_g [model, inner]`, `W_2 [inner, model]`. Sources: Vaswani et al. 2017, section 3.3; Hendrycks & Gimpel 2016 (GELU,
//! SiLU); Shazeer 2020 (gated, whose `inner` is two thirds of the plain ones' for the same number of weights).
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::{dropout::DropoutRng, initialize::Initializer, transformer::{Activation, FeedForward}};
//!
//! let layer = FeedForward::new(Activation::Swiglu, [4, 6], true, 0.0, &mut Initializer::new(1, &Device::flex()));
//! let y = layer.forward(Tensor::ones([2, 3, 4], &Device::flex()), &mut DropoutRng::none());
//! assert_eq!(y.dims(), [2, 3, 4]);
//! ```

use burn::{
    module::{Module, Param},
    nn::Linear,
    tensor::Tensor,
};
use serde::{Deserialize, Serialize};

use crate::{
    bridge::{ActivationKind, activate, feed_forward, feeds_forward, linear, relu_dropout},
    dropout::DropoutRng,
    heads::glorot,
    initialize::Initializer,
    record::{is_recording, report},
};

/// The activation between the two products: `φ`, and whether it is a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Activation {
    /// `max(x, 0)` (the paper, T5).
    #[default]
    Relu,
    /// `x Φ(x)` (BERT).
    Gelu,
    /// GELU by the formula with tanh (GPT-2).
    GeluTanh,
    /// `x σ(x)`, also called swish.
    Silu,
    /// `x σ(1.702 x)`, which is near GELU (CLIP).
    QuickGelu,
    /// ReLU of the gate.
    Reglu,
    /// GELU of the gate.
    Geglu,
    /// GELU with tanh of the gate (T5 1.1, Gemma).
    GegluTanh,
    /// SiLU of the gate (Llama).
    Swiglu,
}

impl Activation {
    /// Whether `φ` acts on a gate that multiplies `W_1 x + b_1`.
    pub fn is_gated(self) -> bool {
        matches!(
            self,
            Self::Reglu | Self::Geglu | Self::GegluTanh | Self::Swiglu
        )
    }

    /// `φ`, whether it acts on a gate or not.
    pub fn kind(self) -> ActivationKind {
        match self {
            Self::Relu | Self::Reglu => ActivationKind::Relu,
            Self::Gelu | Self::Geglu => ActivationKind::Gelu,
            Self::GeluTanh | Self::GegluTanh => ActivationKind::GeluTanh,
            Self::Silu | Self::Swiglu => ActivationKind::Silu,
            Self::QuickGelu => ActivationKind::QuickGelu,
        }
    }

    /// `φ(x)`, number by number.
    pub fn apply<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        activate(self.kind(), false, x, None, 0.0, &mut DropoutRng::none())
    }
}

/// Two products and an activation.
#[derive(Module, Debug)]
pub struct FeedForward {
    /// `W_1 [model, inner]`; with a gate `W_g | W_1 [model, 2 inner]`.
    pub inner: Linear,
    /// `W_2 [inner, model]`
    pub outer: Linear,
    #[module(skip)]
    activation: Activation,
    #[module(skip)]
    dropout: f64,
}

impl FeedForward {
    /// A layer of `[model, inner]` features, drawn as in Glorot & Bengio 2010; `dropout` acts on the activations.
    pub fn new(
        activation: Activation,
        [model, inner]: [usize; 2],
        bias: bool,
        dropout: f64,
        initializer: &mut Initializer,
    ) -> Self {
        let gate = activation
            .is_gated()
            .then(|| glorot(model, inner, bias, initializer));
        let first = glorot(model, inner, bias, initializer);
        Self {
            inner: match gate {
                Some(gate) => initializer.side_by_side(&[gate, first]),
                None => first,
            },
            outer: glorot(inner, model, bias, initializer),
            activation,
            dropout,
        }
    }

    /// The activation between the products.
    pub fn activation(&self) -> Activation {
        self.activation
    }

    /// `x [batch, length, model]`, each position separately: of the same shape.
    ///
    /// # Panics
    /// If `x` has another size than the layer, or the layer's dropout is not in `[0, 1)`.
    pub fn forward(&self, x: Tensor<3>, noise: &mut DropoutRng) -> Tensor<3> {
        let (y, bias) = self.forward_without_bias(x, noise);
        match bias {
            Some(bias) => y + bias.unsqueeze::<3>(),
            None => y,
        }
    }

    /// As [`FeedForward::forward`] without `b_2`, and `b_2`: the residual sum adds it in the same pass.
    pub(super) fn forward_without_bias(
        &self,
        x: Tensor<3>,
        noise: &mut DropoutRng,
    ) -> (Tensor<3>, Option<Tensor<1>>) {
        let [first, second] = [&self.inner, &self.outer].map(|layer| layer.weight.val());
        let [bias, last_bias] =
            [&self.inner, &self.outer].map(|it| it.bias.as_ref().map(Param::val));
        let (kind, gated) = (self.activation.kind(), self.activation.is_gated());
        if feeds_forward(&x) && !is_recording() {
            let weights = [first, second];
            let y = feed_forward(kind, gated, x, weights, bias, self.dropout, noise);
            return (y, last_bias);
        }
        let x = linear(x, first, None);
        let activated = match self.activation {
            Activation::Relu => relu_dropout(x, bias, self.dropout, noise),
            _ => activate(kind, gated, x, bias, self.dropout, noise),
        };
        report("activations", || activated.clone());
        (linear(activated, second, None), last_bias)
    }
}
