//! Machine reading with long short-term memory-networks (Cheng, Dong & Lapata 2016): a stack of
//! [`Lstmn`] layers that encodes a sentence.
//!
//! ```text
//! h¹ = LSTMN(x),  hᵏ = LSTMN([hᵏ⁻¹; x])        the input skips to every layer
//! ```
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_models::lstmn::LstmnEncoder;
//! use regard_nn::{dropout::DropoutRng, initialize::Initializer, mask::PaddingMask};
//!
//! let device = Device::flex();
//! let encoder = LstmnEncoder::new(2, 4, 6, 5, &mut Initializer::new(1, &device));
//! let x = Tensor::<3>::ones([7, 2, 4], &device); // [time, batch, embedding]
//! let read = encoder.forward(x, &PaddingMask::from_lengths(&[7, 3], 7, &device), 0.0, &mut DropoutRng::none());
//! assert_eq!(read.hidden.dims(), [7, 2, 6]);
//! assert_eq!(read.weights.len(), 2); // one map a layer
//! ```

use burn::{module::Module, tensor::Tensor};
use regard_nn::{
    dropout::{DropoutRng, dropout},
    initialize::Initializer,
    mask::PaddingMask,
    recurrent::{Lstmn, Tape},
};

use crate::generator::expect_valid;

/// Layers of LSTMN on top of one another.
#[derive(Module, Debug)]
pub struct LstmnEncoder {
    /// The layers, bottom first.
    pub layers: Vec<Lstmn>,
}

/// What the encoder read.
#[derive(Debug, Clone)]
pub struct Reading {
    /// The top layer's states, `[time, batch, n]`.
    pub hidden: Tensor<3>,
    /// For each layer, bottom first, the weights of every word over earlier ones, `[batch, time, time]`.
    pub weights: Vec<Tensor<3>>,
}

impl LstmnEncoder {
    /// `layers` layers of `hidden` units for word vectors of `embedding`, whose tapes are searched in
    /// `attention` dimensions.
    pub fn new(
        layers: usize,
        embedding: usize,
        hidden: usize,
        attention: usize,
        initializer: &mut Initializer,
    ) -> Self {
        Self {
            layers: (0..layers)
                .map(|layer| {
                    let below = if layer == 0 { 0 } else { hidden };
                    Lstmn::new(below + embedding, hidden, attention, initializer)
                })
                .collect(),
        }
    }

    /// Reads `x [time, batch, embedding]`; `dropout_probability` acts between layers.
    ///
    /// # Panics
    /// If `x` is not of the embedding's size, or `keep` is of another batch.
    pub fn forward(
        &self,
        x: Tensor<3>,
        keep: &PaddingMask,
        dropout_probability: f64,
        noise: &mut DropoutRng,
    ) -> Reading {
        let mask = (!keep.is_full()).then(|| keep.time_major());
        let mut hidden = x.clone();
        let mut weights = Vec::with_capacity(self.layers.len());
        for (l, layer) in self.layers.iter().enumerate() {
            let input = match l {
                0 => x.clone(),
                _ => {
                    let below = dropout(hidden, dropout_probability, noise.batch_axis(1));
                    Tensor::cat(vec![below, x.clone()], 2)
                }
            };
            let read = expect_valid(layer.sequence(input, None, mask.clone()));
            hidden = read.hidden;
            weights.push(read.weights);
        }
        Reading { hidden, weights }
    }

    /// Reads one word of each row, `x [batch, embedding]`, on top of the layers' `tapes`; gives the top state `[batch, n]` and the
    /// tapes. Consecutive steps give the states of [`LstmnEncoder::forward`].
    ///
    /// # Panics
    /// If `x` is not of the embedding's size, or the tapes are of another batch or encoder.
    pub fn step(&self, x: Tensor<2>, tapes: Vec<Tape>) -> (Tensor<2>, Vec<Tape>) {
        let mut hidden = x.clone();
        let mut next = Vec::with_capacity(tapes.len());
        for (l, (layer, tape)) in self.layers.iter().zip(tapes).enumerate() {
            let input = match l {
                0 => x.clone(),
                _ => Tensor::cat(vec![hidden, x.clone()], 1),
            };
            let tape = expect_valid(layer.step(input, tape, None)).tape;
            hidden = tape.last().hidden.clone();
            next.push(tape);
        }
        (hidden, next)
    }
}
