//! What recurrent models share: dropout, encoders of two directions, steps that attend to the source, selection of states.

use burn::{
    module::Module,
    tensor::{Bool, Device, Int, Tensor, TensorData},
};
use regard_config::{Check, FRACTION, config};
use regard_nn::{
    Attention, Memory,
    attention::Sampled,
    bridge::{PoolKind, Windows, pool},
    dropout::DropoutRng,
    initialize::Initializer,
    recurrent::{Direction, LstmStack, LstmState},
};

use crate::{attention::SourceReader, generator::expect_valid};

config! {
    /// Shares of units set to zero in training, by place.
    pub struct LayerDropout {
        /// On word vectors, in [0, 1).
        embedding: f64 = 0.2, in FRACTION;
        /// On the encoder's annotations, in [0, 1).
        annotation: f64 = 0.2, in FRACTION;
        /// On what the output projection reads, in [0, 1).
        output: f64 = 0.2, in FRACTION;
    }
}

impl LayerDropout {
    /// No dropout.
    pub fn none() -> Self {
        Self {
            embedding: 0.0,
            annotation: 0.0,
            output: 0.0,
        }
    }
}

config! {
    /// Shares of units set to zero in training, by place, with stacked layers.
    pub struct StackDropout {
        /// On word vectors, in [0, 1).
        embedding: f64 = 0.2, in FRACTION;
        /// Between stacked layers, in [0, 1); not on recurrent connections.
        layers: f64 = 0.2, in FRACTION;
        /// On the encoder's annotations, or the one summary vector of cell "gru-context", in [0, 1).
        annotation: f64 = 0.0, in FRACTION;
        /// On what the output projection reads, in [0, 1).
        output: f64 = 0.2, in FRACTION;
    }
}

impl StackDropout {
    /// No dropout.
    pub fn none() -> Self {
        Self {
            embedding: 0.0,
            layers: 0.0,
            annotation: 0.0,
            output: 0.0,
        }
    }
}

/// An LSTM in one direction, or two side by side.
#[derive(Module, Debug)]
pub struct LstmEncoder {
    /// One for each direction.
    pub directions: Vec<LstmStack>,
}

impl LstmEncoder {
    /// Layers of `hidden` units for inputs of `input`, in 1 or 2 `directions`, which share the units.
    pub(crate) fn new(
        directions: usize,
        [input, hidden, layers]: [usize; 3],
        init: &mut Initializer,
    ) -> Self {
        let units = hidden / directions;
        let stack = |_| expect_valid(LstmStack::new(layers, input, units, init));
        Self {
            directions: (0..directions).map(stack).collect(),
        }
    }

    /// The top states, `[time, batch, hidden]`, and the last of them; each direction reads as `reading` says.
    pub(crate) fn sequence(
        &self,
        x: Tensor<3>,
        keep: Option<Tensor<2, Bool>>,
        reading: [Direction; 2],
        dropout_probability: f64,
        noise: &mut DropoutRng,
    ) -> (Tensor<3>, LstmState) {
        let (mut states, mut hidden, mut cell) = (vec![], vec![], vec![]);
        for (stack, direction) in self.directions.iter().zip(reading) {
            let (x, keep) = (x.clone(), keep.clone());
            let read = stack.sequence(x, None, keep, direction, dropout_probability, noise);
            let (top, mut layers) = expect_valid(read);
            states.push(top);
            let last = layers.pop().expect("a stack has a layer");
            hidden.push(last.hidden);
            cell.push(last.cell);
        }
        let last = LstmState {
            hidden: Tensor::cat(hidden, 1),
            cell: Tensor::cat(cell, 1),
        };
        (Tensor::cat(states, 2), last)
    }
}

/// Checks that two directions can share `hidden` units.
pub(crate) fn check_halves(hidden: usize, check: &mut Check) {
    let expected = "an even number: each direction has half of the units";
    check.require(hidden.is_multiple_of(2), "hidden", hidden, expected);
}

/// What one step of a decoder reads of the source.
pub(crate) struct Asked {
    pub(crate) context: Tensor<2>, // [rows, size]
    pub(crate) weights: Tensor<2>, // [rows, source]
    pub(crate) sampled: Option<Sampled>,
}

/// What the state `hidden [rows, n]` asks `source` for.
pub(crate) fn ask(
    attention: &Attention,
    hidden: &Tensor<2>,
    source: &mut SourceReader,
    noise: &mut DropoutRng,
) -> Asked {
    let query = hidden.clone().unsqueeze_dim::<3>(1); // [rows, 1, n]
    let reading = source.read(attention, query, noise);
    Asked {
        context: reading.context.squeeze_dim(1),
        weights: reading.weights.squeeze_dim(1),
        sampled: reading.sampled,
    }
}

/// All steps of a decoder's layer that asks the source.
pub(crate) struct Decoded {
    pub(crate) hidden: Tensor<3>,   // [time, batch, n]
    pub(crate) contexts: Tensor<3>, // [time, batch, size]
    pub(crate) weights: Tensor<3>,  // [time, batch, source]
    pub(crate) sampled: Option<Sampled>,
}

impl Decoded {
    /// Of each step the state and what was read.
    pub(crate) fn of(steps: impl Iterator<Item = (Tensor<2>, Asked)>) -> Self {
        let (hidden, asked): (_, Vec<Asked>) = steps.unzip();
        let stacked = |of: fn(&Asked) -> &Tensor<2>| {
            Tensor::stack(asked.iter().map(|step| of(step).clone()).collect(), 0)
        };
        Self {
            hidden: Tensor::stack(hidden, 0),
            contexts: stacked(|step| &step.context),
            weights: stacked(|step| &step.weights),
            sampled: Sampled::all_steps(asked.iter().map(|step| step.sampled.clone())),
        }
    }
}

/// The larger of each two neighbours: `[rows, 2l]` -> `[rows, l]`.
pub(crate) fn maxout(pairs: Tensor<2>) -> Tensor<2> {
    let [rows, double] = pairs.dims();
    let windows = Windows {
        kind: PoolKind::Max,
        kernel: [1, 2],
        stride: [1, 2],
        padding: [0, 0],
        ceil: false,
    };
    pool(windows, pairs.reshape([rows, 1, 1, double])).reshape([rows, double / 2])
}

/// The numbers of rows that are to be kept, as a tensor: what [`DecoderState::select`](crate::DecoderState::select) needs.
pub fn index(rows: &[usize], device: &Device) -> Tensor<1, Int> {
    let values: Vec<i32> = rows.iter().map(|&row| row as i32).collect();
    Tensor::from_data(TensorData::new(values, [rows.len()]), device)
}

/// The rows at `index` of the states of all layers.
pub(crate) fn select_layers(layers: Vec<LstmState>, index: &Tensor<1, Int>) -> Vec<LstmState> {
    let layers = layers.into_iter();
    layers.map(|layer| layer.select(index.clone())).collect()
}

/// The memory of the rows at `rows`; unchanged if every row keeps its source.
pub(crate) fn select_memory(memory: Memory, rows: &[usize], same_sources: bool) -> Memory {
    match same_sources {
        true => memory,
        false => expect_valid(memory.select(rows)),
    }
}
