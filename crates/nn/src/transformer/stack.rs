//! A stack of Transformer blocks: encoder, decoder and decoder-only models are configurations of it.

use burn::{
    module::Module,
    tensor::{DType, Tensor},
};

use super::{FeedForward, Norm, NormPlace, Residual, residual::check_states};
use crate::{
    attention::{Attended, AttentionError, AttentionOptions, Observe, Path},
    cache::KeyValueCache,
    changed::{self, Place},
    dropout::DropoutRng,
    heads::{AddedPositions, KeyValues, MultiHead, MultiHeadOutput},
    mask::Mask,
    record::report,
};

/// Self-attention, cross-attention if the stack reads a source, feed-forward.
#[derive(Module, Debug)]
pub struct Block {
    /// Self-attention.
    pub attention: MultiHead,
    /// The residual connection and norms around it.
    pub attention_block: Residual,
    /// Attention to the states of a source.
    pub cross_attention: Option<MultiHead>,
    /// The residual connection and norms around it.
    pub cross_block: Option<Residual>,
    /// Feed-forward.
    pub feed_forward: FeedForward,
    /// The residual connection and norms around it.
    pub feed_forward_block: Residual,
    #[module(skip)]
    pub(super) window: Option<usize>,
}

/// Blocks one after another; made by [`StackConfig`](super::StackConfig).
#[derive(Module, Debug)]
pub struct Stack {
    /// First block first.
    pub layers: Vec<Block>,
    /// The norm after the last block, unless norms follow the sums.
    pub norm: Option<Norm>,
    #[module(skip)]
    pub(super) causal: bool,
}

/// What a pass over a [`Stack`] may see, and what it reports; by default it sees everything and reports nothing.
#[derive(Debug, Clone, Default)]
pub struct StackOptions {
    /// What self-attention may see, besides what the stack itself hides (the future, positions outside of windows): for
    /// padding.
    pub mask: Mask,
    /// What cross-attention may see: the padding of the source.
    pub source_mask: Mask,
    /// Positions that every block adds to the states from which it computes queries and keys of self-attention and queries of
    /// cross-attention, `[batch or 1, length, model]` (DETR).
    pub positions: Option<Tensor<3>>,
    /// The same for the keys of cross-attention, `[batch or 1, source length, model]`.
    pub source_positions: Option<Tensor<3>>,
    /// Whether to return the states after every block.
    pub each_layer: bool,
    /// What to report of the weights of every attention in every block.
    pub observe: Observe,
    /// Which implementation computes.
    pub path: Path,
}

impl StackOptions {
    /// Sees everything, reports `observe`.
    pub fn new(observe: Observe) -> Self {
        Self {
            observe,
            ..Self::default()
        }
    }

    /// Also hides from self-attention what `mask` hides.
    pub fn mask(mut self, mask: Mask) -> Self {
        self.mask = self.mask & mask;
        self
    }

    /// Also hides from cross-attention what `mask` hides.
    pub fn source_mask(mut self, mask: Mask) -> Self {
        self.source_mask = self.source_mask & mask;
        self
    }

    /// Adds positions to queries and keys of self-attention, and to queries of cross-attention.
    pub fn positions(mut self, positions: Tensor<3>) -> Self {
        self.positions = Some(positions);
        self
    }

    /// Adds positions to keys of cross-attention.
    pub fn source_positions(mut self, positions: Tensor<3>) -> Self {
        self.source_positions = Some(positions);
        self
    }

    /// What cross-attention adds to queries and keys, if anything.
    fn added_across(&self) -> Option<AddedPositions> {
        let (query, key) = (self.positions.clone(), self.source_positions.clone());
        (query.is_some() || key.is_some()).then_some(AddedPositions { query, key })
    }

    fn call(&self, mask: Mask) -> AttentionOptions<'static> {
        let call = AttentionOptions::new(self.observe.clone()).mask(mask);
        call.path(self.path)
    }
}

/// The results of a [`Stack`].
#[derive(Debug, Clone)]
pub struct StackOutput {
    /// `[batch, length, model]`
    pub states: Tensor<3>,
    /// The states after each block, before the norm after the last; empty unless asked for.
    pub layers: Vec<Tensor<3>>,
    /// What the heads of each block's self-attention read, and what was observed of their weights.
    pub own: Vec<Attended>,
    /// What the heads of each block's cross-attention read; empty without a source.
    pub cross: Vec<Attended>,
}

/// The keys and values of every block: of the positions so far, and of the source.
#[derive(Debug, Clone)]
pub struct StackCache {
    own: Vec<KeyValueCache>,
    source: Vec<KeyValues>,
    /// Whether a call failed after some blocks had read its positions.
    broken: bool,
}

/// Where a block gets the keys and values of a source from.
enum FromSource<'a> {
    /// From the states of the source.
    States(&'a Tensor<3>),
    /// Keys and values computed before.
    Ready(&'a KeyValues),
}

impl Stack {
    /// Whether a position sees only itself and those before it.
    pub fn is_causal(&self) -> bool {
        self.causal
    }

    /// Whether the blocks read a source.
    pub fn has_source(&self) -> bool {
        self.layers
            .first()
            .is_some_and(|block| block.cross_attention.is_some())
    }

    /// Computes the states of all of `x [batch, length, model]` at once. Positions must be in the embeddings `x`, or in the
    /// blocks. A stack with cross-attention also reads `source [batch, source length, model]`.
    ///
    /// # Errors
    /// If a source is missing, or given to blocks that read none; or as [`MultiHead::forward`].
    pub fn forward(
        &self,
        x: Tensor<3>,
        source: Option<Tensor<3>>,
        options: &StackOptions,
        noise: &mut DropoutRng,
    ) -> Result<StackOutput, AttentionError> {
        self.expect_source(source.is_some())?;
        self.run(x, options.each_layer, |layer, block, x| {
            let mut mask = options.mask.clone();
            if self.causal {
                mask = mask & Mask::causal();
            }
            if let Some(window) = block.window {
                mask = mask & Mask::window(window)?;
            }
            let own = |heads: &MultiHead, x, noise: &mut DropoutRng| {
                let call = options.call(mask).noise(noise);
                match &options.positions {
                    None => heads.forward(x, call),
                    Some(positions) => {
                        let [query, key] = [(); 2].map(|()| Some(positions.clone()));
                        heads.forward_added(x, None, &AddedPositions { query, key }, call)
                    }
                }
            };
            let source = source.as_ref().map(FromSource::States);
            block.forward(x, own, source, options, (layer, noise))
        })
    }

    /// Begins step-by-step generation, from `source [batch, source length, model]` if the blocks read one.
    ///
    /// # Errors
    /// If the stack is not causal; if a source is missing, not read, or of another size than the blocks read.
    pub fn cache(&self, source: Option<Tensor<3>>) -> Result<StackCache, AttentionError> {
        if !self.causal {
            return Err(AttentionError::combination(
                "cache",
                "generation",
                "a stack in which positions see what comes after them",
                "earlier states change with every new position; make the stack with `StackConfig::decoder`",
            ));
        }
        self.expect_source(source.is_some())?;
        let own = |block: &Block| match block.window {
            Some(window) => KeyValueCache::rolling(window),
            None => Ok(KeyValueCache::growing()),
        };
        let source = source.iter().flat_map(|source| {
            let cross = self
                .layers
                .iter()
                .filter_map(|block| block.cross_attention.as_ref());
            cross.map(|heads| heads.source(source.clone()))
        });
        Ok(StackCache {
            own: self.layers.iter().map(own).collect::<Result<_, _>>()?,
            source: source.collect::<Result<_, _>>()?,
            broken: false,
        })
    }

    /// The states of the next positions `x [batch, new, model]` of the sequences whose past is in `cache`: the same numbers as
    /// those of [`Stack::forward`].
    ///
    /// # Errors
    /// If `x` is of another batch than the cache, the cache of another stack, or as [`Stack::forward`]. If some blocks had read the new
    /// positions before the error, as where `options` do not fit the source, later calls with this cache are refused.
    pub fn forward_cached(
        &self,
        x: Tensor<3>,
        cache: &mut StackCache,
        options: &StackOptions,
    ) -> Result<StackOutput, AttentionError> {
        let before = cache.length();
        let StackCache {
            own,
            source,
            broken,
        } = cache;
        let sources = if self.has_source() { own.len() } else { 0 };
        if own.len() != self.layers.len() || source.len() != sources {
            return Err(AttentionError::value(
                "cache layers",
                own.len(),
                format!("{}, those of the stack", self.layers.len()),
                "begin with the `cache` of this stack",
            ));
        }
        if *broken {
            return Err(AttentionError::combination(
                "cache",
                "one that a failed call has left with positions of some blocks",
                "further positions",
                "begin with a new cache",
            ));
        }
        if options.added_across().is_some() {
            return Err(AttentionError::combination(
                "positions",
                "those that are added to queries and keys",
                "a cache",
                "compute all positions at once with `Stack::forward`",
            ));
        }
        let read = self.run(x, options.each_layer, |layer, block, x| {
            let own = |heads: &MultiHead, x, _: &mut DropoutRng| {
                heads.forward_cached(x, &mut own[layer], options.call(options.mask.clone()))
            };
            let source = source.get(layer).map(FromSource::Ready);
            block.forward(x, own, source, options, (layer, &mut DropoutRng::none()))
        });
        *broken = read.is_err() && own.iter().any(|cache| cache.next_position() != before);
        read
    }

    fn run(
        &self,
        mut x: Tensor<3>,
        each_layer: bool,
        mut forward: impl FnMut(usize, &Block, Tensor<3>) -> Result<BlockOutput, AttentionError>,
    ) -> Result<StackOutput, AttentionError> {
        let of_norm = |norm: &Option<Norm>| norm.as_ref().map(Norm::size);
        let first = self.layers.first();
        let of_block = first.and_then(|block| of_norm(&block.attention_block.norm));
        check_states("x", &x, of_block.or_else(|| of_norm(&self.norm)), self)?;
        let (mut layers, mut own, mut cross) = (vec![], vec![], vec![]);
        for (layer, block) in self.layers.iter().enumerate() {
            let output = forward(layer, block, x)?;
            x = output.states;
            if each_layer {
                layers.push(x.clone());
            }
            own.push(output.own);
            cross.extend(output.cross);
        }
        let states = match &self.norm {
            Some(norm) => norm.forward(x),
            None => x,
        };
        Ok(StackOutput {
            states,
            layers,
            own,
            cross,
        })
    }

    fn expect_source(&self, given: bool) -> Result<(), AttentionError> {
        match (self.has_source(), given) {
            (true, false) => Err(AttentionError::combination(
                "source",
                "nothing",
                "blocks with cross-attention",
                "give the states of the source",
            )),
            (false, true) if !self.layers.is_empty() => Err(AttentionError::combination(
                "source",
                "states",
                "blocks without cross-attention",
                "leave the source out, or make the stack with `StackConfig::decoder`",
            )),
            _ => Ok(()),
        }
    }
}

/// The results of a [`Block`].
struct BlockOutput {
    states: Tensor<3>,
    own: Attended,
    cross: Option<Attended>,
}

impl Block {
    /// How many positions to either side self-attention sees, `None` for all; in a causal stack, how many back, including the
    /// position itself.
    pub fn window(&self) -> Option<usize> {
        self.window
    }

    /// `own` is self-attention, over whole sequences or after what a cache holds.
    fn forward(
        &self,
        x: Tensor<3>,
        own: impl FnOnce(
            &MultiHead,
            Tensor<3>,
            &mut DropoutRng,
        ) -> Result<MultiHeadOutput, AttentionError>,
        source: Option<FromSource<'_>>,
        options: &StackOptions,
        (layer, noise): (usize, &mut DropoutRng),
    ) -> Result<BlockOutput, AttentionError> {
        let place = |cross: bool| Place {
            decoder: self.cross_attention.is_some(),
            cross,
            layer,
        };
        let entered = self.attention_block.enter(&x);
        report("attention input", || entered.clone());
        let own = changed::at(place(false), || {
            own(&self.attention, entered.clone(), noise)
        })?;
        report("attention output", || own.output.clone());
        let mut x = self.attention_block.leave(x, own.output, None, noise);
        report("after attention", || x.clone());
        let mut cross = None;
        if let (Some(heads), Some(around), Some(source)) =
            (&self.cross_attention, &self.cross_block, source)
        {
            let (inner, call) = (around.enter(&x), options.call(options.source_mask.clone()));
            let read = changed::at(place(true), || match source {
                FromSource::States(states) => {
                    let (states, call) = (states.clone(), call.noise(noise));
                    match options.added_across() {
                        None => heads.forward_cross(inner, states, call),
                        Some(added) => heads.forward_added(inner, Some(states), &added, call),
                    }
                }
                FromSource::Ready(source) => heads.forward_source(inner, source, call),
            })?;
            x = around.leave(x, read.output, None, noise);
            cross = Some(read.attended);
        }
        let inner = match self.feed_forward_block.place() {
            NormPlace::Parallel => entered,
            _ => self.feed_forward_block.enter(&x),
        };
        report("feed-forward input", || inner.clone());
        let (y, bias) = self.feed_forward.forward_without_bias(inner, noise);
        report("feed-forward output", || match &bias {
            Some(bias) => y.clone() + bias.clone().unsqueeze::<3>(),
            None => y.clone(),
        });
        Ok(BlockOutput {
            states: self.feed_forward_block.leave(x, y, bias, noise),
            own: own.attended,
            cross,
        })
    }
}

impl StackCache {
    /// Stores keys and values of all blocks, including those of the source, as [`KeyValueCache::stored`] says.
    ///
    /// # Errors
    /// As [`KeyValueCache::stored`].
    pub fn stored(self, dtype: DType) -> Result<Self, AttentionError> {
        let own = self.own.into_iter().map(|cache| cache.stored(dtype));
        let stored = |source: KeyValues| KeyValues {
            keys: source.keys.cast(dtype),
            values: source.values.cast(dtype),
        };
        Ok(Self {
            own: own.collect::<Result<_, _>>()?,
            source: self.source.into_iter().map(stored).collect(),
            broken: self.broken,
        })
    }

    /// How many positions there are so far.
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
