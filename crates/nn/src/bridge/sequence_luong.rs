//! Luong's decoder with input feeding as one differentiable operation, on the CPU backend.
//!
//! See [`regard_kernels::sequence::input_feeding`] for the formulas, and [`super::sequence`] for
//! where the fused operations run.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::bridge::sequence::{InputFeedingInput, InputFeedingScore, input_feeding_lstm_decoder};
//!
//! let device = Device::flex();
//! let (steps, batch, sources, n, value) = (4, 2, 3, 5, 6);
//! let output = input_feeding_lstm_decoder(InputFeedingInput {
//!     x_projection: Tensor::zeros([steps, batch, 4 * n], &device),
//!     feed: Tensor::zeros([batch, n], &device),
//!     feed_weight: Tensor::ones([n, 4 * n], &device),
//!     recurrent: Tensor::ones([1, n, 4 * n], &device),
//!     upper: None,
//!     initial_hidden: Tensor::zeros([1, batch, n], &device),
//!     initial_cell: Tensor::zeros([1, batch, n], &device),
//!     keys: Tensor::ones([batch, sources, n], &device),
//!     values: Tensor::ones([batch, sources, value], &device),
//!     score: InputFeedingScore::Dot,
//!     combine_weight: Tensor::ones([value + n, n], &device),
//!     combine_bias: Tensor::zeros([n], &device),
//!     dropout: None,
//!     windows: None,
//!     keep_source: None,
//! });
//! assert_eq!(output.attentional.dims(), [steps, batch, n]);
//! assert_eq!(output.weights.dims(), [steps, batch, sources]);
//! ```

use burn::tensor::{Bool, Tensor, TensorData};
use regard_kernels::KernelError;
use regard_kernels::sequence::input_feeding::{
    InputFeedingDecoder, InputFeedingGradients, InputFeedingResult, InputFeedingSaved, Score,
    ScoreGradients,
};

use super::expect_dims;
use super::fused::{self, FlexTensor, Forward, Operation, numbers, tensor};
use super::sequence::mask;
use super::sequence_ops::{made, shaped, slices, zeros_like};

/// How the decoder scores its state against the keys.
#[derive(Debug, Clone)]
pub enum InputFeedingScore {
    /// `h · key`; Luong's *dot*, and his *general* if the keys are projected outside.
    Dot,
    /// `vᵀ tanh(h W_a + key)`; Luong's *concat* with the keys projected outside.
    Additive {
        /// `W_a`, `[n, a]`
        query_weight: Tensor<2>,
        /// `v`, `[a]`
        vector: Tensor<1>,
    },
}

/// The input weights and biases of the layers above the first.
#[derive(Debug, Clone)]
pub struct UpperLayers {
    /// `[L - 1, n, 4n]`
    pub weight: Tensor<3>,
    /// `[L - 1, 4n]`
    pub bias: Tensor<2>,
}

/// The tensors of [`input_feeding_lstm_decoder`]. `T` = target steps, `B` = batch, `S` = sources,
/// `n` = hidden, `L` = layers, `d` = value. Gates stand in the order `i | f | g | o`.
#[derive(Debug, Clone)]
pub struct InputFeedingInput {
    /// Input part of the first layer's gates, bias included, `[T, B, 4n]`.
    pub x_projection: Tensor<3>,
    /// The attentional vector before the first step, `[B, n]`, normally zeros.
    pub feed: Tensor<2>,
    /// Weights of the fed vector, `[n, 4n]`.
    pub feed_weight: Tensor<2>,
    /// Recurrent weights, `[L, n, 4n]`.
    pub recurrent: Tensor<3>,
    /// The layers above the first; `None` if `L = 1`.
    pub upper: Option<UpperLayers>,
    /// Hidden states before the first step, `[L, B, n]`.
    pub initial_hidden: Tensor<3>,
    /// Cell states before the first step, `[L, B, n]`.
    pub initial_cell: Tensor<3>,
    /// Keys, `[B, S, n]` for a dot score, `[B, S, a]` for an additive one.
    pub keys: Tensor<3>,
    /// Values, `[B, S, d]`.
    pub values: Tensor<3>,
    /// How states are scored against keys.
    pub score: InputFeedingScore,
    /// `W_c`, `[d + n, n]`, the context's rows first.
    pub combine_weight: Tensor<2>,
    /// `b_c`, `[n]`.
    pub combine_bias: Tensor<1>,
    /// Scaled dropout masks (0 or `1 / (1 - p)`), `[T, L, B, n]`: mask `l` falls on layer `l`'s
    /// output on its way up, the last one on the attentional vector. Takes no gradient.
    pub dropout: Option<Tensor<4>>,
    /// The source positions `start..end` that each step may attend to, `T x B` pairs, the steps
    /// outermost (Luong's local-m).
    pub windows: Option<Vec<[usize; 2]>>,
    /// `[B, S]`, `true` where a source position may be attended to.
    pub keep_source: Option<Tensor<2, Bool>>,
}

/// What [`input_feeding_lstm_decoder`] gives.
#[derive(Debug, Clone)]
pub struct InputFeedingOutput {
    /// Attentional vectors `h̃_t` after their dropout, `[T, B, n]`, differentiable.
    pub attentional: Tensor<3>,
    /// Attention, `[T, B, S]`, untracked.
    pub weights: Tensor<3>,
}

/// Luong's stacked-LSTM decoder with input feeding over a whole target sequence, teacher forced.
/// Gradients flow to every float argument but the dropout masks.
///
/// # Panics
/// If a shape does not fit, or off the Flex backend.
pub fn input_feeding_lstm_decoder(input: InputFeedingInput) -> InputFeedingOutput {
    let [steps, batch, _] = input.x_projection.dims();
    let [layers, hidden, _] = input.recurrent.dims();
    let [_, sources, value] = input.values.dims();
    expect_dims(
        "x_projection",
        input.x_projection.dims(),
        [steps, batch, 4 * hidden],
    );
    expect_dims("feed", input.feed.dims(), [batch, hidden]);
    expect_dims(
        "feed_weight",
        input.feed_weight.dims(),
        [hidden, 4 * hidden],
    );
    expect_dims(
        "recurrent",
        input.recurrent.dims(),
        [layers, hidden, 4 * hidden],
    );
    expect_dims(
        "initial_hidden",
        input.initial_hidden.dims(),
        [layers, batch, hidden],
    );
    expect_dims(
        "initial_cell",
        input.initial_cell.dims(),
        [layers, batch, hidden],
    );
    expect_dims("values", input.values.dims(), [batch, sources, value]);
    expect_dims(
        "combine_weight",
        input.combine_weight.dims(),
        [value + hidden, hidden],
    );
    expect_dims("combine_bias", input.combine_bias.dims(), [hidden]);
    let upper = input
        .upper
        .as_ref()
        .map_or(0, |upper| upper.weight.dims()[0]);
    assert!(
        upper + 1 == layers,
        "`upper` has {upper} layers, expected {} below `recurrent`",
        layers - 1
    );
    let mut inputs = vec![
        input.x_projection.into_dispatch(),
        input.feed.into_dispatch(),
        input.feed_weight.into_dispatch(),
        input.recurrent.into_dispatch(),
        input.initial_hidden.into_dispatch(),
        input.initial_cell.into_dispatch(),
    ];
    let attention = match &input.score {
        InputFeedingScore::Dot => None,
        InputFeedingScore::Additive {
            query_weight,
            vector,
        } => {
            let [_, attention] = query_weight.dims();
            expect_dims("query_weight", query_weight.dims(), [hidden, attention]);
            expect_dims("vector", vector.dims(), [attention]);
            Some(attention)
        }
    };
    expect_dims(
        "keys",
        input.keys.dims(),
        [batch, sources, attention.unwrap_or(hidden)],
    );
    inputs.extend([
        input.keys.into_dispatch(),
        input.values.into_dispatch(),
        input.combine_weight.into_dispatch(),
        input.combine_bias.into_dispatch(),
    ]);
    if let Some(UpperLayers { weight, bias }) = input.upper {
        expect_dims("upper.weight", weight.dims(), [upper, hidden, 4 * hidden]);
        expect_dims("upper.bias", bias.dims(), [upper, 4 * hidden]);
        inputs.extend([weight.into_dispatch(), bias.into_dispatch()]);
    }
    if let InputFeedingScore::Additive {
        query_weight,
        vector,
    } = input.score
    {
        inputs.extend([query_weight.into_dispatch(), vector.into_dispatch()]);
    }
    if let Some(windows) = &input.windows {
        let found = windows.len();
        assert!(
            found == steps * batch,
            "`windows` has {found} entries, expected {steps} x {batch}"
        );
    }
    let operation = InputFeeding {
        steps,
        batch,
        sources,
        hidden,
        layers,
        value,
        attention,
        dropout: input.dropout.map(|masks| {
            expect_dims("dropout", masks.dims(), [steps, layers, batch, hidden]);
            masks.into_data().convert::<f32>()
        }),
        windows: input.windows,
        keep_source: mask("keep_source", input.keep_source, [batch, sources]),
    };
    let (output, weights) = fused::run(operation, inputs);
    let weights = weights.expect("the decoder gives its weights beside the output");
    InputFeedingOutput {
        attentional: Tensor::from_dispatch(output),
        weights: Tensor::from_dispatch(weights),
    }
}

/// Inputs: `x_projection, feed, feed_weight, recurrent, initial_hidden, initial_cell, keys, values,
/// combine_weight, combine_bias`, then, with more than one layer, `layer_weight, layer_bias`, then,
/// with an additive score, `query_weight, vector`.
#[derive(Debug)]
struct InputFeeding {
    steps: usize,
    batch: usize,
    sources: usize,
    hidden: usize,
    layers: usize,
    value: usize,
    /// Width of an additive score.
    attention: Option<usize>,
    dropout: Option<TensorData>,
    windows: Option<Vec<[usize; 2]>>,
    keep_source: Option<Vec<bool>>,
}

/// How many inputs every decoder has.
const ALWAYS: usize = 10;

impl InputFeeding {
    fn count(&self) -> usize {
        ALWAYS + 2 * usize::from(self.layers > 1) + 2 * usize::from(self.attention.is_some())
    }

    fn kernel<'a>(&'a self, inputs: &[&'a [f32]]) -> InputFeedingDecoder<'a> {
        let (always, optional) = inputs.split_at(ALWAYS);
        let &[
            x_projection,
            feed,
            feed_weight,
            recurrent,
            initial_hidden,
            initial_cell,
            keys,
            values,
            combine_weight,
            combine_bias,
        ] = always
        else {
            unreachable!("ten inputs that are always there")
        };
        let (upper, additive) = optional.split_at(if self.layers > 1 { 2 } else { 0 });
        let [layer_weight, layer_bias] = upper.try_into().unwrap_or([&[][..]; 2]);
        let score = match (self.attention, additive) {
            (Some(attention), &[query_weight, vector]) => Score::Additive {
                attention,
                query_weight,
                vector,
            },
            _ => Score::Dot,
        };
        InputFeedingDecoder {
            steps: self.steps,
            batch: self.batch,
            sources: self.sources,
            hidden: self.hidden,
            layers: self.layers,
            value: self.value,
            score,
            x_projection,
            feed,
            feed_weight,
            recurrent,
            layer_weight,
            layer_bias,
            initial_hidden,
            initial_cell,
            keys,
            values,
            combine_weight,
            combine_bias,
            dropout: self.dropout.as_ref().map(|masks| {
                masks
                    .as_slice()
                    .unwrap_or_else(|_| unreachable!("the masks were converted to f32"))
            }),
            windows: self.windows.as_deref(),
            keep_source: self.keep_source.as_deref(),
        }
    }
}

impl Operation for InputFeeding {
    fn forward(&self, inputs: Vec<FlexTensor>, tracked: bool) -> Result<Forward, KernelError> {
        let slices = slices(&inputs);
        let (cells, n) = (self.steps * self.batch, self.hidden);
        let mut output = vec![0.0; cells * n];
        let mut weights = vec![0.0; cells * self.sources];
        // Without a backward pass nothing is saved and the buffers stay empty.
        let room = |numbers: usize| vec![0.0; if tracked { numbers } else { 0 }];
        let mut gates = room(self.layers * cells * 4 * n);
        let mut states = room(self.layers * cells * 2 * n);
        let mut contexts = room(cells * self.value);
        let mut combined = room(cells * n);
        let mut queries = room(cells * self.attention.unwrap_or(0));
        let saving = tracked.then_some(InputFeedingSaved {
            gates: &mut gates,
            states: &mut states,
            contexts: &mut contexts,
            combined: &mut combined,
            queries: &mut queries,
        });
        self.kernel(&slices)
            .forward(&mut output, &mut weights, saving)?;
        let output = tensor(output, [self.steps, self.batch, n]);
        let weights = tensor(weights, [self.steps, self.batch, self.sources]);
        Ok(made(
            inputs,
            output,
            Some(weights),
            vec![gates, states, contexts, combined, queries],
        ))
    }

    fn backward(
        &self,
        saved: Vec<FlexTensor>,
        gradient: FlexTensor,
        _wanted: &[bool],
    ) -> Result<Vec<Option<FlexTensor>>, KernelError> {
        let slices = slices(&saved);
        let (inputs, made) = slices.split_at(self.count());
        let mut gradients = zeros_like(inputs);
        let [output, weights, gates, states, contexts, combined, queries] = *made else {
            unreachable!("forward saved seven tensors")
        };
        let result = InputFeedingResult {
            output,
            weights,
            gates,
            states,
            contexts,
            combined,
            queries,
        };
        let (always, optional) = gradients.split_at_mut(ALWAYS);
        let [
            x_projection,
            feed,
            feed_weight,
            recurrent,
            initial_hidden,
            initial_cell,
            keys,
            values,
            combine_weight,
            combine_bias,
        ] = always
        else {
            unreachable!("ten inputs that are always there")
        };
        let (upper, additive) = optional.split_at_mut(if self.layers > 1 { 2 } else { 0 });
        let (layer_weight, layer_bias) = match upper {
            [weight, bias] => (&mut weight[..], &mut bias[..]),
            _ => (&mut [][..], &mut [][..]),
        };
        let score = match additive {
            [query_weight, vector] => Some(ScoreGradients {
                query_weight,
                vector,
            }),
            _ => None,
        };
        let into = InputFeedingGradients {
            x_projection,
            feed,
            feed_weight,
            recurrent,
            layer_weight,
            layer_bias,
            initial_hidden,
            initial_cell,
            keys,
            values,
            combine_weight,
            combine_bias,
            score,
        };
        self.kernel(inputs)
            .backward(result, numbers(&gradient), into)?;
        Ok(shaped(gradients, &saved))
    }
}
