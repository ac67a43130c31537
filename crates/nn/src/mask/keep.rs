//! The padding mask of a batch: `keep[b, i]` is true where position `i` of sentence `b` is real.
//!
//! ```
//! use burn::tensor::Device;
//! use regard_nn::mask::Keep;
//!
//! let keep = Keep::from_lengths(&[3, 1], 3, &Device::flex());
//! assert_eq!(keep.lengths(), &[3, 1]);
//! assert_eq!(keep.tensor().dims(), [2, 3]);
//! ```

use burn::tensor::{Bool, Device, Int, Tensor, TensorData};

/// Which positions of a padded batch may be seen: `[batch, length]`, true = may be seen.
///
/// Sentences are left-aligned: position `i` of row `b` is real when `i < lengths[b]`.
#[derive(Debug, Clone)]
pub struct Keep {
    tensor: Tensor<2, Bool>,
    lengths: Vec<usize>,
}

impl Keep {
    /// The mask of sentences of the given `lengths` padded to `length`.
    ///
    /// A length beyond `length` counts as `length`.
    pub fn from_lengths(lengths: &[usize], length: usize, device: &Device) -> Self {
        let lengths: Vec<usize> = lengths.iter().map(|&n| n.min(length)).collect();
        let values: Vec<bool> = lengths
            .iter()
            .flat_map(|&n| (0..length).map(move |i| i < n))
            .collect();
        Self {
            tensor: Tensor::from_data(TensorData::new(values, [lengths.len(), length]), device),
            lengths,
        }
    }

    /// The mask, `[batch, length]`, true = may be seen.
    pub fn tensor(&self) -> Tensor<2, Bool> {
        self.tensor.clone()
    }

    /// The mask with time first, `[length, batch]`.
    pub fn time_major(&self) -> Tensor<2, Bool> {
        self.tensor.clone().swap_dims(0, 1)
    }

    /// The number of real positions of each sentence.
    pub fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    /// The padded length.
    pub fn length(&self) -> usize {
        self.tensor.dims()[1]
    }

    /// True when no position is padding.
    pub fn is_full(&self) -> bool {
        let length = self.length();
        self.lengths.iter().all(|&n| n == length)
    }

    /// The sentences at `rows`, in that order (rows may repeat).
    pub fn select(&self, rows: &[usize]) -> Self {
        let device = self.tensor.device();
        let index: Vec<i32> = rows.iter().map(|&row| row as i32).collect();
        let index = Tensor::<1, Int>::from_data(TensorData::new(index, [rows.len()]), &device);
        Self {
            tensor: self.tensor.clone().select(0, index),
            lengths: rows.iter().map(|&row| self.lengths[row]).collect(),
        }
    }

    /// `values [batch, length, dim]` with zeros where nothing may be seen, so that whatever stands in
    /// the padding (NaN included) reaches neither a result nor a gradient.
    pub fn zero_padding(&self, values: Tensor<3>) -> Tensor<3> {
        if self.is_full() {
            return values;
        }
        let hidden = self.tensor.clone().bool_not().unsqueeze_dim::<3>(2);
        let shape = values.dims();
        values.mask_fill(hidden.expand(shape), 0.0)
    }
}
