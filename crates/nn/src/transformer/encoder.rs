//! The encoder: every position reads every other.

use burn::{module::Module, tensor::Tensor};

use super::{
    FeedForward, Norm,
    block::{Residual, check_states},
};
use crate::{
    attention::{Attended, AttentionError, Call},
    dropout::Noise,
    heads::MultiHead,
    mask::Mask,
};

/// Self-attention, then feed-forward.
#[derive(Module, Debug)]
pub struct EncoderLayer {
    /// Self-attention.
    pub attention: MultiHead,
    /// What stands around it.
    pub attention_block: Residual,
    /// Feed-forward.
    pub feed_forward: FeedForward,
    /// What stands around it.
    pub feed_forward_block: Residual,
}

/// A stack of [`EncoderLayer`]s.
#[derive(Module, Debug)]
pub struct Encoder {
    /// First layer first.
    pub layers: Vec<EncoderLayer>,
    /// After the last layer, where norms stand before the blocks.
    pub norm: Option<Norm>,
    #[module(skip)]
    pub(super) window: Option<usize>,
}

/// What an [`Encoder`] gives.
#[derive(Debug, Clone)]
pub struct Encoded {
    /// `[batch, length, model]`
    pub states: Tensor<3>,
    /// What each layer's heads read, and what was asked of their weights.
    pub attended: Vec<Attended>,
}

impl Encoder {
    /// Encodes `x [batch, length, model]` (embeddings that know their positions, or layers with positions of their own). The
    /// padding goes into `call`'s mask, which holds for every layer, as does what it observes; its noise and bias are not read.
    ///
    /// # Errors
    /// As [`MultiHead::forward`].
    pub fn forward(
        &self,
        mut x: Tensor<3>,
        call: Call<'_>,
        noise: &mut Noise,
    ) -> Result<Encoded, AttentionError> {
        let of_norm = || self.norm.as_ref().map(Norm::size);
        let size = self.layers.first().map(EncoderLayer::size).or_else(of_norm);
        check_states("x", &x, size, self)?;
        let mut mask = call.mask;
        if let Some(window) = self.window {
            mask = mask & Mask::window(window)?;
        }
        let mut attended = Vec::with_capacity(self.layers.len());
        for layer in &self.layers {
            let call = Call {
                observe: call.observe.clone(),
                mask: mask.clone(),
                path: call.path,
                ..Call::default()
            };
            let (next, looked) = layer.forward(x, call, noise)?;
            x = next;
            attended.push(looked);
        }
        let states = match &self.norm {
            Some(norm) => norm.forward(x),
            None => x,
        };
        Ok(Encoded { states, attended })
    }
}

impl EncoderLayer {
    /// The size of a state.
    fn size(&self) -> usize {
        self.attention_block.norm.size()
    }

    /// One layer over `x [batch, length, model]`: the same shape, and what its heads read.
    ///
    /// # Errors
    /// As [`MultiHead::forward`].
    pub fn forward<'a>(
        &self,
        x: Tensor<3>,
        call: Call<'a>,
        noise: &'a mut Noise,
    ) -> Result<(Tensor<3>, Attended), AttentionError> {
        check_states("x", &x, Some(self.size()), self)?;
        let read = self.attention.forward(
            self.attention_block.enter(&x),
            Call {
                noise: Some(&mut *noise),
                ..call
            },
        )?;
        let x = self.attention_block.leave(x, read.output, None, noise);
        let inner = self.feed_forward_block.enter(&x);
        let (y, bias) = self.feed_forward.forward_without_bias(inner, noise);
        Ok((
            self.feed_forward_block.leave(x, y, bias, noise),
            read.attended,
        ))
    }
}
