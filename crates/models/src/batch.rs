//! Sentences of ids, padded into tensors.
//!
//! ```
//! use burn::tensor::Device;
//! use regard_models::{SourceBatch, TargetBatch, Vocabulary};
//!
//! let (device, vocabulary) = (Device::flex(), Vocabulary::new(20));
//! let source = SourceBatch::new(&[vec![5, 6, 7], vec![8]], &vocabulary, &device); // </s> is added
//! assert_eq!(source.ids.dims(), [4, 2]);
//! assert_eq!(source.keep.lengths(), &[4, 2]);
//! let target = TargetBatch::new(&[vec![9], vec![9, 10]], &vocabulary, &device);
//! assert_eq!(target.inputs.dims(), [3, 2]); // <s> first
//! assert_eq!(target.tokens, 5); // outputs end with </s>
//! ```

use std::ops::Range;

use burn::tensor::{Device, Int, Tensor, TensorData};
use regard_nn::mask::PaddingMask;

use crate::vocabulary::Vocabulary;

/// Source sentences, each ended by `</s>`; a model reads at least one.
#[derive(Debug, Clone)]
pub struct SourceBatch {
    /// `[time, batch]`.
    pub ids: Tensor<2, Int>,
    /// Which positions are real, `[batch, time]`.
    pub keep: PaddingMask,
}

/// Target sentences as the decoder's inputs (`<s>` first) and expected outputs (`</s>` last).
#[derive(Debug, Clone)]
pub struct TargetBatch {
    /// What the decoder reads, `[time, batch]`: `<s> y_1 .. y_n`.
    pub inputs: Tensor<2, Int>,
    /// What it should predict, `[time · batch]`, time-major: `y_1 .. y_n </s>`, then padding.
    pub outputs: Tensor<1, Int>,
    /// The lengths of the outputs, `</s>` included.
    pub lengths: Vec<usize>,
    /// The number of outputs that are not padding.
    pub tokens: usize,
}

impl SourceBatch {
    /// Pads `sentences`, to which `</s>` is added.
    pub fn new(sentences: &[Vec<u32>], vocabulary: &Vocabulary, device: &Device) -> Self {
        let end = vocabulary.end;
        let sentences = sentences.iter().map(|s| ended(s, end)).collect();
        Self::whole(sentences, vocabulary, device)
    }

    /// Pads `sentences`, to which `<s>` and `</s>` are added.
    pub fn with_start(sentences: &[Vec<u32>], vocabulary: &Vocabulary, device: &Device) -> Self {
        let Vocabulary { start, end, .. } = *vocabulary;
        let sentences = sentences.iter().map(|s| started(&ended(s, end), start));
        Self::whole(sentences.collect(), vocabulary, device)
    }

    fn whole(sentences: Vec<Vec<u32>>, vocabulary: &Vocabulary, device: &Device) -> Self {
        let lengths: Vec<usize> = sentences.iter().map(Vec::len).collect();
        let length = lengths.iter().copied().max().unwrap_or(0);
        Self {
            ids: time_major(&sentences, length, vocabulary.padding, device),
            keep: PaddingMask::from_lengths(&lengths, length, device),
        }
    }

    /// The sentences at `rows`, padded as before.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn rows(self, rows: Range<usize>) -> Self {
        if rows == (0..self.len()) {
            return self;
        }
        Self {
            ids: columns(self.ids, &rows),
            keep: self.keep.select(&rows.collect::<Vec<_>>()),
        }
    }

    /// The number of sentences.
    pub fn len(&self) -> usize {
        self.ids.dims()[1]
    }

    /// True when there is no sentence.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl TargetBatch {
    /// Pads `sentences`, adding `<s>` to the inputs and `</s>` to the outputs.
    pub fn new(sentences: &[Vec<u32>], vocabulary: &Vocabulary, device: &Device) -> Self {
        let Vocabulary {
            padding,
            start,
            end,
            ..
        } = *vocabulary;
        let outputs: Vec<Vec<u32>> = sentences.iter().map(|s| ended(s, end)).collect();
        let inputs: Vec<Vec<u32>> = sentences.iter().map(|s| started(s, start)).collect();
        let lengths: Vec<usize> = outputs.iter().map(Vec::len).collect();
        let length = lengths.iter().copied().max().unwrap_or(0);
        Self {
            inputs: time_major(&inputs, length, padding, device),
            outputs: time_major(&outputs, length, padding, device).flatten(0, 1),
            tokens: lengths.iter().sum(),
            lengths,
        }
    }

    /// The sentences at `rows`, padded as before.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn rows(self, rows: Range<usize>) -> Self {
        if rows == (0..self.lengths.len()) {
            return self;
        }
        let lengths = self.lengths[rows.clone()].to_vec();
        Self {
            outputs: flat_columns(self.outputs, self.inputs.dims(), &rows),
            inputs: columns(self.inputs, &rows),
            tokens: lengths.iter().sum(),
            lengths,
        }
    }

    /// The same targets read through other `inputs [time, batch]` (scheduled sampling).
    pub fn with_inputs(self, inputs: Tensor<2, Int>) -> Self {
        Self { inputs, ..self }
    }
}

/// Texts and what a model should predict at each of their positions.
#[derive(Debug, Clone)]
pub struct TextBatch {
    /// What the model reads, `[time, batch]`.
    pub inputs: Tensor<2, Int>,
    /// What it should predict, `[time · batch]`, time-major; padding does not count.
    pub outputs: Tensor<1, Int>,
    /// Which positions are real, `[batch, time]`.
    pub keep: PaddingMask,
}

impl TextBatch {
    /// Pads `texts`, each the ids that are read and as many that are predicted.
    pub fn new(texts: &[(Vec<u32>, Vec<u32>)], vocabulary: &Vocabulary, device: &Device) -> Self {
        let (inputs, outputs): (Vec<_>, Vec<_>) = texts.iter().cloned().unzip();
        let lengths: Vec<usize> = inputs.iter().map(Vec::len).collect();
        let length = lengths.iter().copied().max().unwrap_or(0);
        let padding = vocabulary.padding;
        Self {
            inputs: time_major(&inputs, length, padding, device),
            outputs: time_major(&outputs, length, padding, device).flatten(0, 1),
            keep: PaddingMask::from_lengths(&lengths, length, device),
        }
    }

    /// The texts at `rows`, padded as before.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn rows(self, rows: Range<usize>) -> Self {
        if rows == (0..self.keep.batch()) {
            return self;
        }
        Self {
            outputs: flat_columns(self.outputs, self.inputs.dims(), &rows),
            inputs: columns(self.inputs, &rows),
            keep: self.keep.select(&rows.collect::<Vec<_>>()),
        }
    }
}

/// `x [time, batch]` for some of the batch.
fn columns(x: Tensor<2, Int>, rows: &Range<usize>) -> Tensor<2, Int> {
    x.narrow(1, rows.start, rows.len())
}

/// `x [time · batch]` for some of the batch.
fn flat_columns(x: Tensor<1, Int>, shape: [usize; 2], rows: &Range<usize>) -> Tensor<1, Int> {
    columns(x.reshape(shape), rows).flatten(0, 1)
}

fn ended(sentence: &[u32], end: u32) -> Vec<u32> {
    sentence.iter().copied().chain([end]).collect()
}

fn started(sentence: &[u32], start: u32) -> Vec<u32> {
    [start]
        .into_iter()
        .chain(sentence.iter().copied())
        .collect()
}

fn time_major(
    sentences: &[Vec<u32>],
    length: usize,
    padding: u32,
    device: &Device,
) -> Tensor<2, Int> {
    let values: Vec<i32> = (0..length)
        .flat_map(|t| {
            sentences
                .iter()
                .map(move |s| s.get(t).copied().unwrap_or(padding) as i32)
        })
        .collect();
    Tensor::from_data(TensorData::new(values, [length, sentences.len()]), device)
}
