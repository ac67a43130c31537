//! A Transformer prepared for generation: the weights that every step multiplies by are packed once, not at every step.
//!
//! Steps run on [`regard_kernels::stack`], except for models that this kernel does not serve (such as those with biases of
//! relative positions inside self-attention). The numbers are the same up to rounding.

use burn::tensor::{Device, Int, Tensor, TensorData};
use regard_kernels::{
    Kind, loss,
    stack::{Product, Stack, State},
};

use super::model::Transformer;
use crate::{
    batch::SourceBatch,
    generator::{Packed, Stepper},
    packed::{packed, packed_output},
    vocabulary::Vocabulary,
};

/// A Transformer with the weights of its decoder packed.
#[derive(Debug)]
pub(super) struct PackedTransformer {
    model: Transformer,
    decoder: Stack,
    output: Product,
}

impl PackedTransformer {
    /// The packed weights of `model`, if the kernel serves its decoder.
    pub(super) fn of(model: &Transformer) -> Option<Self> {
        Some(Self {
            decoder: packed(&model.decoder)?,
            output: packed_output(model.tables.output_weights())?,
            model: model.clone(),
        })
    }
}

impl Packed for PackedTransformer {
    fn begin<'a>(&'a self, source: &SourceBatch) -> Box<dyn Stepper + 'a> {
        let states = self.model.states(source);
        let device = states.device();
        let [_, length, _] = states.dims();
        let numbers: Vec<f32> = states.into_data().iter().collect();
        let lengths = source.keep.lengths();
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
