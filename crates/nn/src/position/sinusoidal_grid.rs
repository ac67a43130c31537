//! Sinusoidal positions of the cells of a grid: sines and cosines of the row, then those of the column (Carion et al. 2020,
//! appendix A.4).
//!
//! ```text
//! y = 2π (row + 1) / rows,   x = 2π (column + 1) / columns
//! PE = [S(y), S(x)]          S(t)_{2i} = sin(t / 10000^{2i/h}),  S(t)_{2i+1} = cos(t / 10000^{2i/h}),  h = d / 2
//! ```
//! Coordinates are shares of the grid, so that the same place in an image has the same position whatever the size of the grid. With
//! [`SinusoidalGrid::of_cells`] they are the numbers of row and column, `y = row`, `x = column`, so that neighbours differ by as much
//! in a large grid as in a small one (Beyer, Zhai, Kolesnikov 2022, *Better plain ViT baselines for ImageNet-1k*).
//!
//! - **Shapes**: rows and columns -> `[rows · columns, d]`, row by row; `d` is even.
//! - **When**: cells of an image that attention reads as a sequence, with positions added to queries and keys
//!   ([`StackOptions::positions`](crate::transformer::StackOptions)), or to the patches of a vision Transformer. **When not**: images
//!   of one fixed size and much data, from which positions can be learned.
//! - **Cost**: `rows · columns · d` sines a call, no parameters.
//!
//! ```
//! use burn::tensor::{DType, Device};
//! use regard_nn::position::SinusoidalGrid;
//!
//! let table = SinusoidalGrid::new(4)?.table([1, 2], &Device::flex(), DType::F32);
//! let table = table.into_data().into_vec::<f32>().unwrap();
//! assert!((table[2] - std::f32::consts::PI.sin()).abs() < 1e-5); // the first of two columns: x = π
//! assert!((table[6] - 0.0).abs() < 1e-5 && (table[7] - 1.0).abs() < 1e-5); // the second: x = 2π
//! # Ok::<(), regard_nn::AttentionError>(())
//! ```

use std::f64::consts::TAU;

use burn::tensor::{DType, Device, Tensor, TensorData};

use super::expect_positive;
use crate::attention::AttentionError;

/// Added to the number of rows and of columns by the original, against an empty grid.
const EPSILON: f64 = 1e-6;

/// Positions of the cells of a grid (see the [module's page](self)).
#[derive(Debug, Clone)]
pub struct SinusoidalGrid {
    frequencies: Vec<f64>,
    /// Whether coordinates are shares of the grid.
    shares: bool,
}

impl SinusoidalGrid {
    /// Positions of `size` features.
    ///
    /// # Errors
    /// If `size` is 0 or not a multiple of 4: rows and columns have as many sines as cosines.
    pub fn new(size: usize) -> Result<Self, AttentionError> {
        expect_positive("size", size)?;
        if !size.is_multiple_of(4) {
            return Err(AttentionError::value(
                "size",
                size,
                "a multiple of 4",
                "rows and columns have as many sines as cosines",
            ));
        }
        let pairs = size / 4;
        let frequency = |pair: usize| 10000f64.powf(-(pair as f64) / pairs as f64);
        Ok(Self {
            frequencies: (0..pairs).map(frequency).collect(),
            shares: true,
        })
    }

    /// Positions of `size` features, by the numbers of row and column.
    ///
    /// # Errors
    /// As [`SinusoidalGrid::new`].
    pub fn of_cells(size: usize) -> Result<Self, AttentionError> {
        Ok(Self {
            shares: false,
            ..Self::new(size)?
        })
    }

    /// The vectors of all cells, `[rows · columns, d]`.
    pub fn table(&self, [rows, columns]: [usize; 2], device: &Device, dtype: DType) -> Tensor<2> {
        let size = 4 * self.frequencies.len();
        let waves = |place: usize, length: usize| {
            let angle = match self.shares {
                true => TAU * (place + 1) as f64 / (length as f64 + EPSILON),
                false => place as f64,
            };
            let waves = self.frequencies.iter().map(move |f| (angle * f).sin_cos());
            waves.flat_map(|(sine, cosine)| [sine, cosine])
        };
        let mut values = Vec::with_capacity(rows * columns * size);
        for row in 0..rows {
            for column in 0..columns {
                values.extend(waves(row, rows).chain(waves(column, columns)));
            }
        }
        let data = TensorData::new(values, [rows * columns, size]);
        Tensor::from_data(data, (device, dtype))
    }
}
