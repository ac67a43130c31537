//! Sinusoidal positions: sines and cosines of wavelengths from 2π to 2π · 10000, added to the
//! embeddings (Vaswani et al. 2017, section 3.5).
//!
//! `PE(p, 2i) = sin(p / 10000^{2i/d})`, `PE(p, 2i+1) = cos(p / 10000^{2i/d})`
//!
//! The idea of the paper: the vector of `p + k` is a fixed linear map of the vector of `p`, so that a
//! layer can learn to look a fixed number of positions back.
//!
//! - **Shapes**: `x [batch, length, d]` -> the same. For odd `d` the last sine has no cosine.
//! - **When**: to reproduce the original Transformer; where nothing should be trained and any length
//!   must be accepted. **When not**: for a new decoder [`super::Rotary`] is the better choice, as the
//!   sum mixes position and content.
//! - **Cost**: `length · d` sines a call, no parameters.
//!
//! Other codebases put all sines before all cosines (tensor2tensor); a trained model needs the order
//! it was trained with. Here it is the paper's: sine and cosine of a wavelength are adjacent.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::position::Sinusoidal;
//!
//! let device = Device::flex();
//! let sinusoidal = Sinusoidal::new(4)?;
//! let x = sinusoidal.forward(Tensor::zeros([1, 2, 4], &device), 0)?;
//! let x = x.into_data().into_vec::<f32>().unwrap();
//! assert_eq!(x[..4], [0.0, 1.0, 0.0, 1.0]); // position 0
//! assert!((x[4] - 1f32.sin()).abs() < 1e-6 && (x[6] - 0.01f32.sin()).abs() < 1e-6); // position 1
//! # Ok::<(), regard_nn::AttentionError>(())
//! ```

use burn::{
    module::Module,
    tensor::{DType, Device, Tensor, TensorData},
};

use super::{expect_last, expect_positive};
use crate::attention::AttentionError;

/// `PE(p, 2i) = sin(p / 10000^{2i/d})`, `PE(p, 2i+1) = cos(p / 10000^{2i/d})`.
#[derive(Module, Debug)]
pub struct Sinusoidal {
    #[module(skip)]
    frequencies: Vec<f64>,
    #[module(skip)]
    size: usize,
}

impl Sinusoidal {
    /// Positions for embeddings of `size`, with the paper's base of 10000.
    ///
    /// # Errors
    /// If `size` is 0.
    pub fn new(size: usize) -> Result<Self, AttentionError> {
        Self::with_base(size, 10000.0)
    }

    /// The same with wavelengths from 2π to 2π · `base`.
    ///
    /// # Errors
    /// If `size` is 0, or `base` is not a positive number.
    pub fn with_base(size: usize, base: f64) -> Result<Self, AttentionError> {
        expect_positive("size", size)?;
        if !(base > 0.0 && base.is_finite()) {
            let advice = "give the ratio of the longest wavelength to the shortest";
            return Err(AttentionError::value(
                "base",
                base,
                "a positive number",
                advice,
            ));
        }
        let frequencies = (0..size.div_ceil(2))
            .map(|i| base.powf(-2.0 * i as f64 / size as f64))
            .collect();
        Ok(Self { frequencies, size })
    }

    /// The vectors of the positions `first..first + length`: `[length, d]`.
    pub fn table(&self, first: usize, length: usize, device: &Device, dtype: DType) -> Tensor<2> {
        let mut values = Vec::with_capacity(length * self.size);
        for row in 0..length {
            let position = first as f64 + row as f64;
            let row = self.frequencies.iter().flat_map(|frequency| {
                let (sine, cosine) = (position * frequency).sin_cos();
                [sine, cosine]
            });
            values.extend(row.take(self.size));
        }
        Tensor::from_data(
            TensorData::new(values, [length, self.size]),
            (device, dtype),
        )
    }

    /// `x [batch, length, d]`, whose first token stands at position `first`, with its positions added.
    ///
    /// # Errors
    /// If the last dimension of `x` is not `d`.
    pub fn forward(&self, x: Tensor<3>, first: usize) -> Result<Tensor<3>, AttentionError> {
        expect_last("x", &x.dims(), self.size)?;
        let length = x.dims()[1];
        if length == 0 {
            return Ok(x);
        }
        let table = self.table(first, length, &x.device(), x.dtype());
        Ok(x + table.unsqueeze::<3>())
    }
}
