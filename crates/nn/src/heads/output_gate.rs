//! Gated output: the heads' output is multiplied by a gate that is computed from the query's own state (Qiu et al. 2025,
//! "Gated Attention for Large Language Models", position G1).
//!
//! `context' = σ(X W_g) ∘ context`, before the output matrix; `W_g [model, h]` gives one number for each
//! head ([`Gate::Headwise`]), `W_g [model, h · d_v]` one for each feature ([`Gate::Elementwise`]).
//!
//! A softmax must put its weight somewhere: a head that has nothing to contribute looks at the first token. With a closed
//! gate it contributes nothing; the paper finds steadier training and no such sinks. The same gate,
//! `β_t = σ(f_β(h_{t-1}))`, scales the context of Xu et al. 2015 (section 4.2.1), with one head.
//!
//! - **When**: training decoders from scratch. **When not**: to load a model trained without.
//! - **Cost**: `model · h` parameters and hardly any time, or elementwise as much as the query matrix.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::{AttentionOptions, Observe, heads::{Gate, MultiHeadConfig}, initialize::Initializer};
//!
//! let device = Device::flex();
//! let config = MultiHeadConfig { gate: Some(Gate::Headwise), ..MultiHeadConfig::new(8, 2) };
//! let layer = config.init(&mut Initializer::new(1, &device))?;
//! assert_eq!(layer.gate.as_ref().unwrap().weight.weight.dims(), [8, 2]);
//! let read = layer.forward(Tensor::ones([1, 3, 8], &device), AttentionOptions::new(Observe::Nothing))?;
//! assert_eq!(read.output.dims(), [1, 3, 8]);
//! # Ok::<(), regard_nn::AttentionError>(())
//! ```

use burn::{module::Module, nn::Linear, tensor::Tensor};
use serde::{Deserialize, Serialize};

use super::projection::glorot;
use crate::{
    bridge::{apply, reshaped, sigmoid, with_axis},
    initialize::Initializer,
};

/// How many numbers the gate has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Gate {
    /// One number for each head.
    Headwise,
    /// One number for each feature of each head.
    Elementwise,
}

/// `σ(X W_g)`.
#[derive(Module, Debug)]
pub struct OutputGate {
    /// `W_g`, `[model, h]` or `[model, h · d_v]`, no bias.
    pub weight: Linear,
}

impl OutputGate {
    /// A gate for `heads` heads whose values are of `value_size`, computed from states of `d_model`.
    pub fn new(
        gate: Gate,
        d_model: usize,
        heads: usize,
        value_size: usize,
        initializer: &mut Initializer,
    ) -> Self {
        let outputs = match gate {
            Gate::Headwise => heads,
            Gate::Elementwise => heads * value_size,
        };
        Self {
            weight: glorot(d_model, outputs, false, initializer),
        }
    }

    /// `contexts [batch, queries, h · d_v]`, head by head in the last dimension, times the gate of
    /// `x [batch, queries, model]`.
    pub fn forward(&self, contexts: Tensor<3>, x: Tensor<3>) -> Tensor<3> {
        let gate = sigmoid(apply(&self.weight, x)); // [batch, queries, h or h · d_v]
        let [batch, queries, numbers] = gate.dims();
        let [_, _, width] = contexts.dims();
        if numbers == width {
            return contexts * gate;
        }
        let by_head = reshaped(contexts, [batch, queries, numbers, width / numbers]);
        let gate = with_axis::<3, 4>(gate, 3);
        reshaped(by_head * gate, [batch, queries, width])
    }
}
