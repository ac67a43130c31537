//! GNMT's bottom decoder layer as one differentiable operation, on the CPU backend.
//!
//! See [`regard_kernels::sequence::additive_lstm`] for the formulas, and [`super::sequence`] for
//! where the fused operations run.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::bridge::sequence::{AdditiveLstmInput, additive_lstm_decoder};
//!
//! let device = Device::flex();
//! let (steps, batch, sources, n, attention, value) = (4, 2, 3, 5, 6, 7);
//! let output = additive_lstm_decoder(AdditiveLstmInput {
//!     x_projection: Tensor::zeros([steps, batch, 4 * n], &device),
//!     initial_hidden: Tensor::zeros([batch, n], &device),
//!     initial_cell: Tensor::zeros([batch, n], &device),
//!     keys: Tensor::zeros([batch, sources, attention], &device),
//!     values: Tensor::ones([batch, sources, value], &device),
//!     query_weight: Tensor::zeros([n, attention], &device),
//!     score: Tensor::ones([attention], &device),
//!     recurrent: Tensor::zeros([n, 4 * n], &device),
//!     context_weight: Tensor::zeros([value, 4 * n], &device),
//!     keep_source: None,
//! });
//! assert_eq!(output.states_and_contexts.dims(), [steps, batch, n + value]);
//! assert_eq!(output.weights.dims(), [steps, batch, sources]);
//! ```

use burn::tensor::{Bool, Tensor};
use regard_kernels::{
    KernelError,
    sequence::additive_lstm::{
        AdditiveLstmDecoder, AdditiveLstmGradients, AdditiveLstmResult, AdditiveLstmSaved,
    },
};

use super::{
    expect_dims,
    fused::{self, FlexTensor, Forward, Operation, numbers, tensor},
    sequence::mask,
    sequence_ops::{made, shaped, slices, zeros_like},
};

/// The tensors of [`additive_lstm_decoder`]. `T` = target steps, `B` = batch, `S` = sources, `n` =
/// state, `a` = alignment model, `d` = value.
#[derive(Debug, Clone)]
pub struct AdditiveLstmInput {
    /// Input part of the gates `i | f | g | o`, biases included, `[T, B, 4n]`.
    pub x_projection: Tensor<3>,
    /// Hidden state before the first step, `[B, n]`.
    pub initial_hidden: Tensor<2>,
    /// Cell state before the first step, `[B, n]`.
    pub initial_cell: Tensor<2>,
    /// Projected keys `U_a h_j` (bias included), `[B, S, a]`.
    pub keys: Tensor<3>,
    /// Values `h_j`, `[B, S, d]`.
    pub values: Tensor<3>,
    /// Query weights `W_a`, `[n, a]`.
    pub query_weight: Tensor<2>,
    /// Score vector `v`, `[a]`.
    pub score: Tensor<1>,
    /// Recurrent weights, `[n, 4n]`.
    pub recurrent: Tensor<2>,
    /// Context weights, `[d, 4n]`.
    pub context_weight: Tensor<2>,
    /// `[B, S]`, `true` where a source position may be attended to.
    pub keep_source: Option<Tensor<2, Bool>>,
}

/// What [`additive_lstm_decoder`] gives.
#[derive(Debug, Clone)]
pub struct AdditiveLstmOutput {
    /// `h_t | a_t`, `[T, B, n + d]`: one differentiable tensor to slice.
    pub states_and_contexts: Tensor<3>,
    /// Attention, `[T, B, S]`, untracked.
    pub weights: Tensor<3>,
}

/// An LSTM that attends to a source with its former state and reads the context in its gates, over a whole target
/// sequence, teacher forced; see [`regard_kernels::sequence::additive_lstm`]. Gradients flow to every float
/// argument.
///
/// # Panics
/// If a shape does not fit, or off the Flex backend.
pub fn additive_lstm_decoder(input: AdditiveLstmInput) -> AdditiveLstmOutput {
    let AdditiveLstmInput {
        x_projection,
        initial_hidden,
        initial_cell,
        keys,
        values,
        query_weight,
        score,
        recurrent,
        context_weight,
        keep_source,
    } = input;
    let [steps, batch, _] = x_projection.dims();
    let [hidden, attention] = query_weight.dims();
    let [_, sources, value] = values.dims();
    let (wide, state) = (4 * hidden, [batch, hidden]);
    expect_dims("x_projection", x_projection.dims(), [steps, batch, wide]);
    expect_dims("initial_hidden", initial_hidden.dims(), state);
    expect_dims("initial_cell", initial_cell.dims(), state);
    expect_dims("keys", keys.dims(), [batch, sources, attention]);
    expect_dims("values", values.dims(), [batch, sources, value]);
    expect_dims("score", score.dims(), [attention]);
    expect_dims("recurrent", recurrent.dims(), [hidden, wide]);
    expect_dims("context_weight", context_weight.dims(), [value, wide]);
    let operation = AdditiveLstm {
        steps,
        batch,
        sources,
        hidden,
        attention,
        value,
        keep_source: mask("keep_source", keep_source, [batch, sources]),
    };
    let inputs = vec![
        x_projection.into_dispatch(),
        initial_hidden.into_dispatch(),
        initial_cell.into_dispatch(),
        keys.into_dispatch(),
        values.into_dispatch(),
        query_weight.into_dispatch(),
        score.into_dispatch(),
        recurrent.into_dispatch(),
        context_weight.into_dispatch(),
    ];
    let (output, weights) = fused::run(operation, inputs);
    let weights = weights.expect("the decoder gives its weights beside the output");
    AdditiveLstmOutput {
        states_and_contexts: Tensor::from_dispatch(output),
        weights: Tensor::from_dispatch(weights),
    }
}

/// `x_projection, initial_hidden, initial_cell, keys, values, query_weight, score, recurrent, context_weight`.
#[derive(Debug)]
struct AdditiveLstm {
    steps: usize,
    batch: usize,
    sources: usize,
    hidden: usize,
    attention: usize,
    value: usize,
    keep_source: Option<Vec<bool>>,
}

impl AdditiveLstm {
    fn kernel<'a>(&'a self, inputs: &[&'a [f32]]) -> AdditiveLstmDecoder<'a> {
        let [
            x_projection,
            initial_hidden,
            initial_cell,
            keys,
            values,
            query_weight,
            score,
            recurrent,
            context_weight,
        ] = *inputs
        else {
            unreachable!("nine inputs")
        };
        AdditiveLstmDecoder {
            steps: self.steps,
            batch: self.batch,
            sources: self.sources,
            hidden: self.hidden,
            attention: self.attention,
            value: self.value,
            x_projection,
            initial_hidden,
            initial_cell,
            keys,
            values,
            query_weight,
            score,
            recurrent,
            context_weight,
            keep_source: self.keep_source.as_deref(),
        }
    }
}

impl Operation for AdditiveLstm {
    fn forward(&self, inputs: Vec<FlexTensor>, tracked: bool) -> Result<Forward, KernelError> {
        let slices = slices(&inputs);
        let (cells, n) = (self.steps * self.batch, self.hidden);
        let mut output = vec![0.0; cells * (n + self.value)];
        let mut weights = vec![0.0; cells * self.sources];
        // Without a backward pass nothing is saved and the buffers stay empty.
        let room = |numbers: usize| vec![0.0; if tracked { numbers } else { 0 }];
        let mut gates = room(cells * 4 * n);
        let mut states = room(cells * 2 * n);
        let mut queries = room(cells * self.attention);
        let saving = tracked.then_some(AdditiveLstmSaved {
            gates: &mut gates,
            states: &mut states,
            queries: &mut queries,
        });
        self.kernel(&slices)
            .forward(&mut output, &mut weights, saving)?;
        let output = tensor(output, [self.steps, self.batch, n + self.value]);
        let weights = tensor(weights, [self.steps, self.batch, self.sources]);
        let for_backward = vec![gates, states, queries];
        Ok(made(inputs, output, Some(weights), for_backward))
    }

    fn backward(
        &self,
        saved: Vec<FlexTensor>,
        gradient: FlexTensor,
        _wanted: &[bool],
    ) -> Result<Vec<Option<FlexTensor>>, KernelError> {
        let slices = slices(&saved);
        let (inputs, made) = slices.split_at(9);
        let mut gradients = zeros_like(inputs);
        let [
            x_projection,
            initial_hidden,
            initial_cell,
            keys,
            values,
            query_weight,
            score,
            recurrent,
            context_weight,
        ] = &mut gradients[..]
        else {
            unreachable!("nine inputs")
        };
        let [output, weights, gates, states, queries] = *made else {
            unreachable!("forward saved five tensors")
        };
        let result = AdditiveLstmResult {
            output,
            weights,
            gates,
            states,
            queries,
        };
        let into = AdditiveLstmGradients {
            x_projection,
            initial_hidden,
            initial_cell,
            keys,
            values,
            query_weight,
            score,
            recurrent,
            context_weight,
        };
        self.kernel(inputs)
            .backward(result, numbers(&gradient), into)?;
        Ok(shaped(gradients, &saved))
    }
}
