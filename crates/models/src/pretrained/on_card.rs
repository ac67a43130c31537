//! The blocks of an encoder on a graphics card, as those of a model that is trained here, without looking.
//!
//! ```text
//! X [texts, longest, d] = embeddings, 0 behind the end of a text          masked there
//! S [texts, longest, d] = stack(X)
//! ```
//! Texts that are read together are of similar lengths, so that at most half of `X` is padding.

use burn::tensor::{Device, Tensor, TensorData};
use regard_kernels::stack::Stack;
use regard_nn::{
    dropout::DropoutRng,
    mask::{Mask, PaddingMask},
    transformer::{self, StackOptions},
};

use super::trainable::{Refused, stack_on};
use crate::generator::expect_valid;

/// The most positions of one `X`, unless one text is longer: the inner states of its feed-forward network, of 4,096 numbers each, take
/// 512 MiB.
const MOST_POSITIONS: usize = 1 << 15;

/// Blocks on a card.
#[derive(Debug, Clone)]
pub(super) struct OnCard {
    stack: transformer::Stack,
    size: usize,
    device: Device,
}

impl OnCard {
    /// The blocks of `stack` on `device`.
    ///
    /// # Errors
    /// A part that no model has that is trained here.
    pub(super) fn new(stack: &Stack, device: &Device) -> Result<Self, Refused> {
        Ok(Self {
            stack: stack_on(device, stack)?,
            size: stack.sizes().model,
            device: device.clone(),
        })
    }

    /// The states of texts of `counts` tokens, `[tokens of all, d]` as `embedded`.
    pub(super) fn forward(&self, embedded: &[f32], counts: &[usize]) -> Vec<f32> {
        let mut first = 0;
        let texts = counts.iter().map(|count| {
            let text = first..first + count * self.size;
            first = text.end;
            text
        });
        let mut texts: Vec<_> = texts.collect(); // places in `embedded`
        texts.retain(|text| !text.is_empty());
        texts.sort_by_key(|text| std::cmp::Reverse(text.len()));
        let mut states = vec![0.0; embedded.len()];
        let mut rest = &texts[..];
        // Lengths are of numbers here, `d` for each token.
        while let Some(longest) = rest.first().map(|text| text.len()) {
            let most = (MOST_POSITIONS * self.size / longest).max(1);
            let alike = rest.partition_point(|text| 2 * text.len() >= longest);
            let (batch, after) = rest.split_at(alike.min(most));
            rest = after;
            let mut padded = vec![0.0; batch.len() * longest];
            for (row, text) in padded.chunks_exact_mut(longest).zip(batch) {
                row[..text.len()].copy_from_slice(&embedded[text.clone()]);
            }
            let lengths: Vec<usize> = batch.iter().map(|text| text.len() / self.size).collect();
            let read = self.read(padded, &lengths);
            for (row, text) in read.chunks_exact(longest).zip(batch) {
                states[text.clone()].copy_from_slice(&row[..text.len()]);
            }
        }
        states
    }

    /// `padded [texts, longest, d]`, of which each text has its length.
    fn read(&self, padded: Vec<f32>, lengths: &[usize]) -> Vec<f32> {
        let longest = padded.len() / (lengths.len() * self.size);
        let shape = [lengths.len(), longest, self.size];
        let x = Tensor::<3>::from_data(TensorData::new(padded, shape), &self.device);
        let keep = PaddingMask::from_lengths(lengths, longest, &self.device);
        let options = match keep.is_full() {
            true => StackOptions::default(),
            false => StackOptions::default().mask(Mask::padding(keep)),
        };
        let read = self
            .stack
            .forward(x, None, &options, &mut DropoutRng::none());
        expect_valid(read).states.into_data().iter().collect()
    }
}
