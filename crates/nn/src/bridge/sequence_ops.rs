//! The sequence operations of `regard-kernels` as the bridge's [`Operation`]s.
//!
//! Each holds its sizes, flags and masks; the tensors come with the call, in the order that its
//! documentation gives. What is saved for the backward pass is the inputs, then what the forward
//! pass made; all of it is shared or moved, nothing is copied.

use regard_kernels::KernelError;
use regard_kernels::sequence::additive_gru::{
    AdditiveGruDecoder, AdditiveGruGradients, AdditiveGruResult, AdditiveGruSaved,
};
use regard_kernels::sequence::gru::{Convention, GruGradients, GruSequence};
use regard_kernels::sequence::lstm::{LstmGradients, LstmSequence};

use super::fused::{FlexTensor, Forward, Operation, numbers, tensor};

/// A GRU over a sequence: `x_projection, recurrent, hidden_bias, initial`.
#[derive(Debug)]
pub(super) struct Gru {
    pub(super) steps: usize,
    pub(super) batch: usize,
    pub(super) hidden: usize,
    pub(super) keep: Option<Vec<bool>>,
    pub(super) reverse: bool,
    pub(super) convention: Convention,
    /// Whether the third input is a bias and not a placeholder.
    pub(super) biased: bool,
}

impl Gru {
    fn kernel<'a>(&'a self, inputs: &[&'a [f32]]) -> GruSequence<'a> {
        let [x_projection, recurrent, bias, initial] = *inputs else {
            unreachable!("four inputs")
        };
        GruSequence {
            steps: self.steps,
            batch: self.batch,
            hidden: self.hidden,
            x_projection,
            recurrent,
            hidden_bias: self.biased.then_some(bias),
            initial,
            keep: self.keep.as_deref(),
            reverse: self.reverse,
            convention: self.convention,
        }
    }
}

impl Operation for Gru {
    fn forward(&self, inputs: Vec<FlexTensor>, tracked: bool) -> Result<Forward, KernelError> {
        let slices = slices(&inputs);
        let kernel = self.kernel(&slices);
        let mut states = vec![0.0; self.steps * self.batch * self.hidden];
        let mut gates = vec![0.0; if tracked { kernel.saved_len() } else { 0 }];
        kernel.forward(&mut states, tracked.then_some(&mut gates))?;
        let output = tensor(states, [self.steps, self.batch, self.hidden]);
        Ok(made(inputs, output, None, vec![gates]))
    }

    fn backward(
        &self,
        saved: Vec<FlexTensor>,
        gradient: FlexTensor,
        _wanted: &[bool],
    ) -> Result<Vec<Option<FlexTensor>>, KernelError> {
        let slices = slices(&saved);
        let (inputs, made) = slices.split_at(4);
        let mut gradients = zeros_like(inputs);
        let [x_projection, recurrent, bias, initial] = &mut gradients[..] else {
            unreachable!("four inputs")
        };
        let hidden_bias = self.biased.then_some(&mut bias[..]);
        let into = GruGradients {
            x_projection,
            recurrent,
            hidden_bias,
            initial,
        };
        let [states, gates] = *made else {
            unreachable!("forward saved two tensors")
        };
        self.kernel(inputs)
            .backward(states, gates, numbers(&gradient), into)?;
        Ok(shaped(gradients, &saved))
    }
}

/// An LSTM over a sequence: `x_projection, recurrent, initial_hidden, initial_cell`.
#[derive(Debug)]
pub(super) struct Lstm {
    pub(super) steps: usize,
    pub(super) batch: usize,
    pub(super) hidden: usize,
    pub(super) keep: Option<Vec<bool>>,
    pub(super) reverse: bool,
}

impl Lstm {
    fn kernel<'a>(&'a self, inputs: &[&'a [f32]]) -> LstmSequence<'a> {
        let [x_projection, recurrent, initial_hidden, initial_cell] = *inputs else {
            unreachable!("four inputs")
        };
        LstmSequence {
            steps: self.steps,
            batch: self.batch,
            hidden: self.hidden,
            x_projection,
            recurrent,
            initial_hidden,
            initial_cell,
            keep: self.keep.as_deref(),
            reverse: self.reverse,
        }
    }
}

impl Operation for Lstm {
    fn forward(&self, inputs: Vec<FlexTensor>, tracked: bool) -> Result<Forward, KernelError> {
        let slices = slices(&inputs);
        let kernel = self.kernel(&slices);
        let mut states = vec![0.0; self.steps * self.batch * 2 * self.hidden];
        let mut gates = vec![0.0; if tracked { kernel.saved_len() } else { 0 }];
        kernel.forward(&mut states, tracked.then_some(&mut gates))?;
        let output = tensor(states, [self.steps, self.batch, 2 * self.hidden]);
        Ok(made(inputs, output, None, vec![gates]))
    }

    fn backward(
        &self,
        saved: Vec<FlexTensor>,
        gradient: FlexTensor,
        _wanted: &[bool],
    ) -> Result<Vec<Option<FlexTensor>>, KernelError> {
        let slices = slices(&saved);
        let (inputs, made) = slices.split_at(4);
        let mut gradients = zeros_like(inputs);
        let [x_projection, recurrent, initial_hidden, initial_cell] = &mut gradients[..] else {
            unreachable!("four inputs")
        };
        let into = LstmGradients {
            x_projection,
            recurrent,
            initial_hidden,
            initial_cell,
        };
        let [states, gates] = *made else {
            unreachable!("forward saved two tensors")
        };
        self.kernel(inputs)
            .backward(states, gates, numbers(&gradient), into)?;
        Ok(shaped(gradients, &saved))
    }
}

/// Bahdanau's decoder: `x_projection, initial, keys, values, query_weight, score, recurrent,
/// context_weight`.
#[derive(Debug)]
pub(super) struct AdditiveGru {
    pub(super) steps: usize,
    pub(super) batch: usize,
    pub(super) sources: usize,
    pub(super) hidden: usize,
    pub(super) attention: usize,
    pub(super) value: usize,
    pub(super) keep_source: Option<Vec<bool>>,
    pub(super) keep: Option<Vec<bool>>,
}

impl AdditiveGru {
    fn kernel<'a>(&'a self, inputs: &[&'a [f32]]) -> AdditiveGruDecoder<'a> {
        let [
            x_projection,
            initial,
            keys,
            values,
            query_weight,
            score,
            recurrent,
            context_weight,
        ] = *inputs
        else {
            unreachable!("eight inputs")
        };
        AdditiveGruDecoder {
            steps: self.steps,
            batch: self.batch,
            sources: self.sources,
            hidden: self.hidden,
            attention: self.attention,
            value: self.value,
            x_projection,
            initial,
            keys,
            values,
            query_weight,
            score,
            recurrent,
            context_weight,
            keep_source: self.keep_source.as_deref(),
            keep: self.keep.as_deref(),
        }
    }
}

impl Operation for AdditiveGru {
    fn forward(&self, inputs: Vec<FlexTensor>, tracked: bool) -> Result<Forward, KernelError> {
        let slices = slices(&inputs);
        let cells = self.steps * self.batch;
        let mut output = vec![0.0; cells * (self.hidden + self.value)];
        let mut weights = vec![0.0; cells * self.sources];
        let (mut gates, mut queries) = (Vec::new(), Vec::new());
        if tracked {
            gates = vec![0.0; cells * 3 * self.hidden];
            queries = vec![0.0; cells * self.attention];
        }
        let saving = tracked.then_some(AdditiveGruSaved {
            gates: &mut gates,
            queries: &mut queries,
        });
        self.kernel(&slices)
            .forward(&mut output, &mut weights, saving)?;
        let output = tensor(output, [self.steps, self.batch, self.hidden + self.value]);
        let weights = tensor(weights, [self.steps, self.batch, self.sources]);
        Ok(made(inputs, output, Some(weights), vec![gates, queries]))
    }

    fn backward(
        &self,
        saved: Vec<FlexTensor>,
        gradient: FlexTensor,
        _wanted: &[bool],
    ) -> Result<Vec<Option<FlexTensor>>, KernelError> {
        let slices = slices(&saved);
        let (inputs, made) = slices.split_at(8);
        let mut gradients = zeros_like(inputs);
        let [
            x_projection,
            initial,
            keys,
            values,
            query_weight,
            score,
            recurrent,
            context_weight,
        ] = &mut gradients[..]
        else {
            unreachable!("eight inputs")
        };
        let [output, weights, gates, queries] = *made else {
            unreachable!("forward saved four tensors")
        };
        let result = AdditiveGruResult {
            output,
            weights,
            gates,
            queries,
        };
        let into = AdditiveGruGradients {
            x_projection,
            initial,
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

/// The numbers of every tensor.
pub(super) fn slices(tensors: &[FlexTensor]) -> Vec<&[f32]> {
    tensors.iter().map(numbers).collect()
}

/// The result of a forward pass. `for_backward` is empty, or holds empty buffers, if no backward
/// pass will follow; then nothing reads what is saved.
pub(super) fn made(
    mut inputs: Vec<FlexTensor>,
    output: FlexTensor,
    beside: Option<FlexTensor>,
    for_backward: Vec<Vec<f32>>,
) -> Forward {
    inputs.push(output.clone());
    inputs.extend(beside.clone());
    inputs.extend(for_backward.into_iter().map(|data| {
        let length = data.len();
        tensor(data, [length])
    }));
    Forward {
        output,
        beside,
        saved: inputs,
    }
}

/// A buffer for the gradient of every input.
pub(super) fn zeros_like(inputs: &[&[f32]]) -> Vec<Vec<f32>> {
    inputs.iter().map(|input| vec![0.0; input.len()]).collect()
}

/// Each gradient as a tensor of its input's shape.
pub(super) fn shaped(gradients: Vec<Vec<f32>>, inputs: &[FlexTensor]) -> Vec<Option<FlexTensor>> {
    gradients
        .into_iter()
        .zip(inputs)
        .map(|(data, input)| Some(tensor(data, input.layout().shape().clone())))
        .collect()
}
