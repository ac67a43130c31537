//! Padding: sentences of a batch have different lengths, and the positions that fill them up may not be
//! seen. `keep[b, i]` is true where position `i` of sentence `b` is real.
//!
//! Use it with every padded batch. With very different lengths, packing documents into a row
//! ([`Mask::document`]) wastes less. Cost: `[batch, length]` flags; where padding is at the end, a kernel
//! stops at each sentence's length.
//!
//! ```
//! use burn::tensor::Device;
//! use regard_nn::mask::{PaddingMask, Mask};
//!
//! let keep = PaddingMask::from_lengths(&[3, 1], 3, &Device::flex());
//! assert_eq!(keep.lengths(), &[3, 1]);
//! assert_eq!(keep.tensor().dims(), [2, 3]);
//! assert_eq!(Mask::padding(keep.select(&[1])).picture(2, 3), "■··\n■··\n");
//! ```

use std::{ops::Range, sync::Arc};

use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use regard_kernels::SequencePosition;

use super::{Grid, Mask, Row, Rule, check_batch};
use crate::{attention::AttentionError, bridge::spread};

/// Which positions of a padded batch may be seen: `[batch, length]`, true = may be seen.
///
/// From lengths, sentences are left-aligned: position `i` of row `b` is real when `i < lengths[b]`. From
/// flags, real positions may lie anywhere.
#[derive(Debug, Clone)]
pub struct PaddingMask {
    tensor: Tensor<2, Bool>,
    lengths: Vec<usize>,
    /// `[batch, length]`; `None` where sentences are left-aligned.
    flags: Option<Arc<[bool]>>,
}

impl Mask {
    /// Every query of batch row `b` sees the real positions of sentence `b`.
    pub fn padding(keep: PaddingMask) -> Self {
        Self(Rule::Padding(keep))
    }
}

impl PaddingMask {
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
            flags: None,
        }
    }

    /// The mask of the given `flags [batch, length]`, true = may be seen.
    ///
    /// # Errors
    /// When the rows differ in length.
    pub fn from_flags(flags: &[Vec<bool>], device: &Device) -> Result<Self, AttentionError> {
        let length = flags.first().map_or(0, Vec::len);
        if let Some(row) = flags.iter().find(|row| row.len() != length) {
            return Err(AttentionError::value(
                "row of keep flags",
                row.len(),
                format!("{length} flags, as in the first row"),
                "pad every row to one length",
            ));
        }
        let values = flags.concat();
        let data = TensorData::new(values.clone(), [flags.len(), length]);
        Ok(Self {
            tensor: Tensor::from_data(data, device),
            lengths: flags
                .iter()
                .map(|row| row.iter().filter(|&&real| real).count())
                .collect(),
            flags: Some(values.into()),
        })
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

    /// The number of sentences.
    pub fn batch(&self) -> usize {
        self.lengths.len()
    }

    /// The padded length.
    pub fn length(&self) -> usize {
        self.tensor.dims()[1]
    }

    /// Whether the real positions of every sentence come first.
    pub(crate) fn is_left_aligned(&self) -> bool {
        self.flags.is_none()
    }

    /// True when no position is padding.
    pub fn is_full(&self) -> bool {
        let length = self.length();
        self.lengths.iter().all(|&n| n == length)
    }

    /// The sentences at `rows`, in that order (rows may repeat).
    ///
    /// # Panics
    /// If a row is not there.
    pub fn select(&self, rows: &[usize]) -> Self {
        let device = self.tensor.device();
        let index: Vec<i32> = rows.iter().map(|&row| row as i32).collect();
        let index = Tensor::<1, Int>::from_data(TensorData::new(index, [rows.len()]), &device);
        let length = self.length();
        Self {
            tensor: self.tensor.clone().select(0, index),
            lengths: rows.iter().map(|&row| self.lengths[row]).collect(),
            flags: self.flags.as_ref().map(|flags| {
                let of_row = |&row: &usize| &flags[row * length..(row + 1) * length];
                rows.iter().flat_map(of_row).copied().collect()
            }),
        }
    }

    /// `values [batch, length, dim]` with zeros where nothing may be seen, so that the contents of the
    /// padding (NaN included) influence neither a result nor a gradient.
    pub fn zero_padding(&self, values: Tensor<3>) -> Tensor<3> {
        if self.is_full() {
            return values;
        }
        let hidden = self.tensor.clone().bool_not().unsqueeze_dim::<3>(2);
        let shape = values.dims();
        values.mask_fill(spread(hidden, shape), 0.0)
    }

    /// Sentence `batch` (the only one, if there is one for all), from its first real position to its last.
    pub(super) fn sentence(&self, batch: usize) -> Range<usize> {
        let row = batch.min(self.batch() - 1);
        let Some(flags) = &self.flags else {
            return 0..self.lengths[row];
        };
        let flags = &flags[row * self.length()..][..self.length()];
        let first = flags.iter().position(|&real| real).unwrap_or(0);
        first
            ..flags
                .iter()
                .rposition(|&real| real)
                .map_or(first, |last| last + 1)
    }

    /// Writes what the sentence of the row may see (the only one, if there is one for all).
    pub(super) fn fill(&self, row: &Row, seen: &mut [bool]) {
        let sentence = row.batch.min(self.batch() - 1);
        match &self.flags {
            None => row.fill_to(SequencePosition::saturating(self.lengths[sentence]), seen),
            Some(flags) => {
                let first = sentence * self.length() + row.first_key;
                seen.copy_from_slice(&flags[first..][..seen.len()]);
            }
        }
    }

    pub(super) fn check(&self, grid: &Grid) -> Result<(), AttentionError> {
        check_batch("padding batch", self.batch(), grid)?;
        if self.length() == grid.keys_so_far() {
            return Ok(());
        }
        let expected = match grid.first_key {
            0 => "the number of keys".to_owned(),
            first => format!("the number of keys, the first of them at position {first}"),
        };
        Err(AttentionError::value(
            "padding length",
            self.length(),
            format!("{} ({expected})", grid.keys_so_far()),
            "make the padding mask of the keys that are read",
        ))
    }
}
