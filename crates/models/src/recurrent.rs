//! Dropout and state selection, which recurrent models share.

use burn::tensor::{Device, Int, Tensor, TensorData};
use regard_config::{FRACTION, config};
use regard_nn::{Memory, recurrent::LstmState};

use crate::generator::expect_valid;

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
        /// On the encoder's annotations (or the one summary vector), in [0, 1).
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

/// The indices of the rows to keep, as a tensor for [`DecoderState::select`](crate::DecoderState::select).
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
