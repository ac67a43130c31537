//! The decoder: every position reads those before it, and the encoder's states.

use burn::{module::Module, tensor::Tensor};

use super::{
    FeedForward, Norm,
    block::{Residual, check_states},
};
use crate::{
    attention::{Attended, AttentionError, Call},
    cache::KeyValueCache,
    dropout::Noise,
    heads::{MultiHead, Source},
    mask::Mask,
};

/// Causal self-attention, cross-attention, feed-forward.
#[derive(Module, Debug)]
pub struct DecoderLayer {
    /// Causal self-attention.
    pub attention: MultiHead,
    /// What stands around it.
    pub attention_block: Residual,
    /// Attention to the encoder's states.
    pub cross_attention: MultiHead,
    /// What stands around it.
    pub cross_block: Residual,
    /// Feed-forward.
    pub feed_forward: FeedForward,
    /// What stands around it.
    pub feed_forward_block: Residual,
}

/// A stack of [`DecoderLayer`]s.
#[derive(Module, Debug)]
pub struct Decoder {
    /// First layer first.
    pub layers: Vec<DecoderLayer>,
    /// After the last layer, where norms stand before the blocks.
    pub norm: Option<Norm>,
    #[module(skip)]
    pub(super) window: Option<usize>,
}

/// What a [`Decoder`] gives.
#[derive(Debug, Clone)]
pub struct Decoded {
    /// `[batch, length, model]`
    pub states: Tensor<3>,
    /// What each layer's heads read of the target, and what was asked of their weights.
    pub own: Vec<Attended>,
    /// What each layer's heads read of the source.
    pub cross: Vec<Attended>,
}

/// The keys and values of every layer: of the target so far, and of the source.
#[derive(Debug, Clone)]
pub struct DecoderCache {
    own: Vec<KeyValueCache>,
    source: Vec<Source>,
}

/// How a layer comes to the keys and values of target and source.
enum Past<'c> {
    /// All positions are given at once, and the encoder's states.
    Whole { mask: Mask, source: Tensor<3> },
    /// One position, after those that the cache holds; the source's are computed.
    Cached {
        cache: &'c mut KeyValueCache,
        source: &'c Source,
    },
}

impl Decoder {
    /// How many positions a position sees, itself among them, if not all.
    pub fn window(&self) -> Option<usize> {
        self.window
    }

    /// Decodes all of `x [batch, length, model]` at once, teacher-forced: position `t` reads positions up to `t`, and `source
    /// [batch, source length, model]`, of which `call`'s mask hides the padding. What `call` observes is observed of both
    /// attentions in every layer.
    ///
    /// # Errors
    /// As [`MultiHead::forward_source`].
    pub fn forward(
        &self,
        x: Tensor<3>,
        source: Tensor<3>,
        call: Call<'_>,
        noise: &mut Noise,
    ) -> Result<Decoded, AttentionError> {
        let mut mask = Mask::causal();
        if let Some(window) = self.window {
            mask = mask & Mask::window(window)?;
        }
        let past = |_| Past::Whole {
            mask: mask.clone(),
            source: source.clone(),
        };
        let pasts = self.layers.iter().map(past).collect();
        self.run(x, pasts, call, noise)
    }

    /// Begins step-by-step decoding of a target to `source [batch, source length, model]`.
    ///
    /// # Errors
    /// If `source` has another size than the layers read.
    pub fn cache(&self, source: Tensor<3>) -> Result<DecoderCache, AttentionError> {
        let own = |_| match self.window {
            Some(window) => KeyValueCache::rolling(window),
            None => Ok(KeyValueCache::growing()),
        };
        Ok(DecoderCache {
            own: self.layers.iter().map(own).collect::<Result<_, _>>()?,
            source: self.sources(source)?,
        })
    }

    /// The next positions `x [batch, new, model]` of the targets whose past is in `cache`. The numbers are those of
    /// [`Decoder::forward`].
    ///
    /// # Errors
    /// If `x` is of another batch than the cache, the cache of another decoder, or as [`Decoder::forward`].
    pub fn forward_cached(
        &self,
        x: Tensor<3>,
        cache: &mut DecoderCache,
        call: Call<'_>,
    ) -> Result<Decoded, AttentionError> {
        if cache.own.len() != self.layers.len() {
            return Err(AttentionError::value(
                "cache layers",
                cache.own.len(),
                format!("{}, those of the decoder", self.layers.len()),
                "begin with the `cache` of this decoder",
            ));
        }
        let layers = cache.own.iter_mut().zip(&cache.source);
        let pasts = layers.map(|(cache, source)| Past::Cached { cache, source });
        self.run(x, pasts.collect(), call, &mut Noise::none())
    }

    fn sources(&self, source: Tensor<3>) -> Result<Vec<Source>, AttentionError> {
        let of_layer = |layer: &DecoderLayer| layer.cross_attention.source(source.clone());
        self.layers.iter().map(of_layer).collect()
    }

    fn run(
        &self,
        mut x: Tensor<3>,
        pasts: Vec<Past<'_>>,
        call: Call<'_>,
        noise: &mut Noise,
    ) -> Result<Decoded, AttentionError> {
        let of_layer = |layer: &DecoderLayer| layer.attention_block.norm.size();
        let of_norm = || self.norm.as_ref().map(Norm::size);
        let size = self.layers.first().map(of_layer).or_else(of_norm);
        check_states("x", &x, size, self)?;
        let (mut own, mut cross) = (vec![], vec![]);
        for (layer, past) in self.layers.iter().zip(pasts) {
            let step = layer.forward(x, past, &call, noise)?;
            x = step.0;
            own.push(step.1);
            cross.push(step.2);
        }
        let states = match &self.norm {
            Some(norm) => norm.forward(x),
            None => x,
        };
        Ok(Decoded { states, own, cross })
    }
}

impl DecoderLayer {
    fn forward(
        &self,
        x: Tensor<3>,
        past: Past<'_>,
        call: &Call<'_>,
        noise: &mut Noise,
    ) -> Result<(Tensor<3>, Attended, Attended), AttentionError> {
        let new_call = || Call {
            observe: call.observe.clone(),
            path: call.path,
            ..Call::default()
        };
        let to_source = || new_call().mask(call.mask.clone());
        let inner = self.attention_block.enter(&x);
        let (x, own, cross) = match past {
            Past::Whole { mask, source } => {
                let own_call = new_call().mask(mask).noise(noise);
                let own = self.attention.forward(inner, own_call)?;
                let x = self.attention_block.leave(x, own.output, None, noise);
                let (inner, call) = (self.cross_block.enter(&x), to_source().noise(noise));
                let cross = self.cross_attention.forward_cross(inner, source, call)?;
                (x, own.attended, cross)
            }
            Past::Cached { cache, source } => {
                let own = self.attention.forward_cached(inner, cache, new_call())?;
                let x = self.attention_block.leave(x, own.output, None, noise);
                let inner = self.cross_block.enter(&x);
                let cross = self
                    .cross_attention
                    .forward_source(inner, source, to_source())?;
                (x, own.attended, cross)
            }
        };
        let x = self.cross_block.leave(x, cross.output, None, noise);
        let inner = self.feed_forward_block.enter(&x);
        let (y, bias) = self.feed_forward.forward_without_bias(inner, noise);
        let x = self.feed_forward_block.leave(x, y, bias, noise);
        Ok((x, own, cross.attended))
    }
}

impl DecoderCache {
    /// How many positions have been decoded.
    pub fn length(&self) -> usize {
        self.own.first().map_or(0, KeyValueCache::next_position)
    }

    /// Keeps the batch rows at `rows`, in that order (rows may repeat). `same_sources` says that every row keeps the source it
    /// had, so that those need not be copied.
    ///
    /// # Errors
    /// If a row is not there.
    pub fn select(&mut self, rows: &[usize], same_sources: bool) -> Result<(), AttentionError> {
        for cache in &mut self.own {
            cache.select(rows)?;
        }
        if !same_sources {
            for source in &mut self.source {
                *source = source.select(rows)?;
            }
        }
        Ok(())
    }
}
