//! A Transformer prepared for generation: the weights that every step multiplies by are packed once, not at every step.
//!
//! Steps run on [`regard_kernels::stack`], except for models that this kernel does not serve (such as those with vectors of
//! relative positions inside self-attention). The numbers are the same up to rounding.

use burn::tensor::{Device, Int, Tensor, TensorData};
use regard_kernels::{
    KernelError, Kind, loss,
    stack::{ChangedHead, Observer, Product, Stack, State},
};
use regard_nn::dropout::DropoutRng;

use super::model::Transformer;
use crate::{
    batch::{SourceBatch, TargetBatch},
    generator::{Packed, Stepper, expect_valid},
    packed::{numbers, packed, packed_output},
    vocabulary::Vocabulary,
};

/// A Transformer with the weights of its decoder packed.
#[derive(Debug)]
pub(super) struct PackedTransformer {
    model: Transformer,
    /// Only of a model that was opened: generation reads a source once, which Burn does as fast.
    encoder: Option<Stack>,
    decoder: Stack,
    output: Product,
}

impl PackedTransformer {
    /// The packed weights of `model`, if the kernel serves its decoder.
    pub(super) fn of(model: &Transformer) -> Option<Self> {
        Some(Self {
            encoder: None,
            decoder: packed(&model.decoder)?,
            output: packed_output(model.tables.output_weights())?,
            model: model.clone(),
        })
    }
}

impl PackedTransformer {
    /// The encoder's states `[batch, time, d]`, by the packed encoder if there is one.
    fn states(
        &self,
        source: &SourceBatch,
        observer: Option<&mut (dyn Observer + Send)>,
    ) -> Result<Vec<f32>, KernelError> {
        let Some(encoder) = &self.encoder else {
            return Ok(numbers(self.model.states(source)));
        };
        let embedded = self.model.embed_source(source, &mut DropoutRng::none());
        let [_, length, size] = embedded.dims();
        let mut states = numbers(embedded);
        // The kernel takes positions without padding, one sentence after another.
        let lengths = source.keep.lengths();
        let rows = states.chunks_exact(length * size).zip(lengths);
        let real: Vec<f32> = rows
            .flat_map(|(row, &real)| &row[..real * size])
            .copied()
            .collect();
        let read = encoder.forward(None, &real, lengths, observer)?;
        let mut rest = &read[..];
        for (row, &real) in states.chunks_exact_mut(length * size).zip(lengths) {
            let (of_row, after) = rest.split_at(real * size);
            row[..real * size].copy_from_slice(of_row);
            row[real * size..].fill(0.0);
            rest = after;
        }
        Ok(states)
    }
}

impl Packed for PackedTransformer {
    fn open(&mut self) -> bool {
        if self.encoder.is_none() {
            self.encoder = packed(&self.model.encoder);
        }
        self.encoder.is_some()
    }

    fn change_heads(
        &mut self,
        encoder: Vec<ChangedHead>,
        decoder: Vec<ChangedHead>,
    ) -> Result<(), KernelError> {
        match &mut self.encoder {
            Some(stack) => stack.change_heads(encoder)?,
            None => opened(encoder.len())?,
        }
        self.decoder.change_heads(decoder)
    }

    fn stacks(&self) -> Option<[&Stack; 2]> {
        Some([self.encoder.as_ref()?, &self.decoder])
    }

    fn observe(
        &self,
        source: &SourceBatch,
        target: &TargetBatch,
        encoder: &mut (dyn Observer + Send),
        decoder: &mut (dyn Observer + Send),
    ) -> Result<(), KernelError> {
        if self.encoder.is_none() {
            opened(1)?;
        }
        let states = self.states(source, Some(encoder))?;
        let embedded = self.model.embed_target(target, &mut DropoutRng::none());
        let [_, count, size] = embedded.dims();
        let lengths = &source.keep.lengths()[..1];
        let real = lengths[0];
        let mut state =
            (self.decoder).begin_with_sources(&states[..real * size], real, lengths, Kind::F32)?;
        let embedded = numbers(embedded);
        let x = &embedded[..count * size];
        let done = self
            .decoder
            .forward(Some(&mut state), x, &[count], Some(decoder));
        done.map(|_| ())
    }

    fn begin<'a>(&'a self, source: &SourceBatch) -> Box<dyn Stepper + 'a> {
        let device = source.ids.device();
        let lengths = source.keep.lengths();
        let [length, _] = source.ids.dims();
        // The sizes are those of the model's own embeddings.
        let numbers = expect_valid(self.states(source, None));
        let state = self
            .decoder
            .begin_with_sources(&numbers, length, lengths, Kind::F32);
        Box::new(PackedStepper {
            packed: self,
            device,
            // The sizes are those of the encoder that made the states.
            state: state.unwrap_or_else(|error| unreachable!("{error}")),
        })
    }
}

/// The error for `heads` of an encoder that was not opened.
fn opened(heads: usize) -> Result<(), KernelError> {
    match heads {
        0 => Ok(()),
        found => Err(KernelError::Value {
            argument: "encoder",
            expected: "none before the encoder is opened",
            found: found as f64,
        }),
    }
}

struct PackedStepper<'a> {
    packed: &'a PackedTransformer,
    device: Device,
    state: State,
}

impl Stepper for PackedStepper<'_> {
    fn vocabulary(&self) -> Vocabulary {
        self.packed.model.tables.vocabularies.target
    }

    fn step(&mut self, previous: &[u32], log_probabilities: &mut Vec<f32>) -> Option<Vec<f32>> {
        let PackedTransformer {
            model,
            decoder,
            output,
            ..
        } = self.packed;
        let ids: Vec<i32> = previous.iter().map(|&id| id as i32).collect();
        let ids = Tensor::<1, Int>::from_data(TensorData::new(ids, [previous.len()]), &self.device);
        let embedded = model.embed_step(ids, self.state.length(0));
        let embedded: Vec<f32> = embedded.into_data().iter().collect();
        let (state, counts) = (&mut self.state, vec![1; previous.len()]);
        let done = decoder.last_outputs(state, &embedded, &counts, output, log_probabilities, None);
        if let Err(error) = done {
            unreachable!("one embedding for each row: {error}");
        }
        let [_, classes] = output.sizes();
        loss::log_softmax(log_probabilities, classes);
        None
    }

    fn select(&mut self, rows: &[usize], _same_sources: bool) {
        if let Err(error) = self.state.select(rows) {
            unreachable!("the search keeps rows that there are: {error}");
        }
    }
}
