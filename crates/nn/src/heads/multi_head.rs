//! Multi-head attention as a layer.

use burn::{
    module::{Module, Param},
    nn::Linear,
    tensor::{Bool, Tensor},
};

use super::{
    KeyValues, OutputGate, Projection, QueryKeyNorm, TalkingHeads,
    projection::{Sizes, join_heads},
};
use crate::{
    attention::{
        Asked, Attended, Attention, AttentionError, AttentionOptions, Between, KernelPlan, Observe,
        Observed, Unserved,
    },
    bridge::{self, ProjectedInputs, reshaped},
    cache::KeyValueCache,
    changed,
    mask::{Grid, Mask},
    normalize::hide,
    position::{Alibi, Position, Positions, Relative},
    precision::{check_precision, check_weights},
    record::report,
    recurrent::check_shape,
    score::KernelForm,
};

/// Several attentions side by side; see the [module page](super). Made by
/// [`MultiHeadConfig::init`](super::MultiHeadConfig::init).
#[derive(Module, Debug)]
pub struct MultiHead {
    /// How each head scores, masks and normalises.
    pub attention: Attention,
    /// `W^Q`, `W^K`, `W^V`.
    pub projection: Projection,
    /// `W^O`, `[h · d_v, model]`.
    pub output: Linear,
    /// How the heads are told the positions of tokens.
    pub position: Option<Position>,
    /// Normalises queries and keys to one length.
    pub query_key_norm: Option<QueryKeyNorm>,
    /// Mixes scores and weights among heads.
    pub talking_heads: Option<TalkingHeads>,
    /// A gate applied to the heads' output.
    pub gate: Option<OutputGate>,
    #[module(skip)]
    pub(super) sizes: Sizes,
}

/// What multi-head attention returns.
#[derive(Debug, Clone)]
pub struct MultiHeadOutput {
    /// `Concat(head_1, .., head_h) W^O`: `[batch, queries, model]`.
    pub output: Tensor<3>,
    /// What each head read, before gate and output matrix, and what was observed of the weights. With talking heads, these are
    /// the mixed weights, by which values are read.
    pub attended: Attended,
}

/// Positions that are added to the states from which queries and keys are computed, and not to those of values: they say where to
/// read, and are not read (Carion et al. 2020).
#[derive(Debug, Clone, Default)]
pub struct AddedPositions {
    /// For queries, `[batch or 1, queries, model]`.
    pub query: Option<Tensor<3>>,
    /// For keys, `[batch or 1, keys, source size]`.
    pub key: Option<Tensor<3>>,
}

impl MultiHead {
    /// `h`: the number of query heads.
    pub fn heads(&self) -> usize {
        self.sizes.heads
    }

    /// `g`: the number of key/value heads.
    pub fn key_value_heads(&self) -> usize {
        self.sizes.key_value_heads
    }

    /// `d`: the features of a query and of a key.
    pub fn head_size(&self) -> usize {
        self.sizes.head
    }

    /// `d_v`: the features of a value.
    pub fn value_size(&self) -> usize {
        self.sizes.value
    }

    /// Self-attention: every token of `x [batch, length, model]` reads all that the masks let it see.
    /// Bidirectional as it is; causal with [`Mask::causal`] in `call` or in the attention.
    ///
    /// The numbers at a hidden position (NaN included) influence no other token. The gradient of the matrices does include
    /// them: where padding may not be finite, zero it first
    /// ([`PaddingMask::zero_padding`](crate::mask::PaddingMask::zero_padding)).
    ///
    /// # Errors
    /// If `x` has another size than the layer, if the layer reads a source of another size, or as
    /// [`Attention::forward`].
    pub fn forward(
        &self,
        x: Tensor<3>,
        mut call: AttentionOptions<'_>,
    ) -> Result<MultiHeadOutput, AttentionError> {
        self.expect_self(&x)?;
        let length = x.dims()[1];
        if let Some(read) = self.read_projected(&x, None, &mut call)? {
            return Ok(read);
        }
        let (query, source) = self.projection.all(x.clone(), &self.sizes);
        let query = self.placed_query(query, 0)?;
        let source = self.placed_source(source, 0)?;
        let positions = Positions::lower_right(length, length);
        self.read(x, query, source, Some(positions), call)
    }

    /// Cross-attention in one call: `x [batch, queries, model]` reads `source [batch, length, source size]`. The numbers are
    /// those of [`MultiHead::source`] and [`MultiHead::forward_source`], which a decoder calls step by step; where a kernel
    /// serves, projections and attention are one operation.
    ///
    /// # Errors
    /// As those.
    pub fn forward_cross(
        &self,
        x: Tensor<3>,
        source: Tensor<3>,
        mut call: AttentionOptions<'_>,
    ) -> Result<MultiHeadOutput, AttentionError> {
        self.expect("x", &x, self.projection.d_model())?;
        self.expect("source", &source, self.projection.source_size())?;
        if let Some(read) = self.read_projected(&x, Some(&source), &mut call)? {
            return Ok(read);
        }
        let source = self.source(source)?;
        self.forward_source(x, &source, call)
    }

    /// Attention of `x [batch, queries, model]` to `source [batch, length, source size]`, or to `x` itself without one, with
    /// positions `p` and `p'` that only queries and keys know:
    /// `Q = (X + p) W^Q`, `K = (Y + p') W^K`, `V = Y W^V`.
    ///
    /// # Errors
    /// If positions are of another shape than the states that they belong to, if the layer has positions of its own, or as
    /// [`MultiHead::forward`] and [`MultiHead::forward_cross`].
    pub fn forward_added(
        &self,
        x: Tensor<3>,
        source: Option<Tensor<3>>,
        added: &AddedPositions,
        call: AttentionOptions<'_>,
    ) -> Result<MultiHeadOutput, AttentionError> {
        if self.position.is_some() {
            return Err(AttentionError::combination(
                "position",
                "those of the layer",
                "positions that are added to queries and keys",
                "make the layer with `PositionConfig::None`",
            ));
        }
        match &source {
            None => self.expect_self(&x)?,
            Some(source) => {
                self.expect("x", &x, self.projection.d_model())?;
                self.expect("source", source, self.projection.source_size())?;
            }
        }
        let source = source.unwrap_or_else(|| x.clone());
        let at = placed("positions of queries", x.clone(), &added.query)?;
        let keys = placed("positions of keys", source.clone(), &added.key)?;
        let query = self.placed_query(self.projection.query(at, &self.sizes), 0)?;
        let source = self.projection.keys_and_values(keys, source, &self.sizes);
        let source = self.placed_source(source, 0)?;
        self.read(x, query, source, None, call)
    }

    /// The keys and values of `source [batch, length, source size]`, to be read by
    /// [`MultiHead::forward_source`] any number of times.
    ///
    /// # Errors
    /// If the layer was made for a source of another size.
    pub fn source(&self, source: Tensor<3>) -> Result<KeyValues, AttentionError> {
        self.expect("source", &source, self.projection.source_size())?;
        let source = self.projection.source(source, &self.sizes);
        self.placed_source(source, 0)
    }

    /// Cross-attention: `x [batch, queries, model]` reads `source`.
    ///
    /// # Errors
    /// If the layer has positions, as those of `x` and of a source are not of one sequence; if sizes do
    /// not fit, or as [`Attention::forward`].
    pub fn forward_source(
        &self,
        x: Tensor<3>,
        source: &KeyValues,
        call: AttentionOptions<'_>,
    ) -> Result<MultiHeadOutput, AttentionError> {
        if self.position.is_some() {
            return Err(AttentionError::combination(
                "position",
                "a distance between tokens",
                "a source of its own",
                "tokens of two sequences have no distance; make the layer with `PositionConfig::None`",
            ));
        }
        self.expect("x", &x, self.projection.d_model())?;
        let [batch, _, length, _] = source.keys.dims();
        for (field, found, size) in [
            ("source.keys", source.keys.dims(), self.sizes.head),
            ("source.values", source.values.dims(), self.sizes.value),
        ] {
            let expected = [batch, self.sizes.key_value_heads, length, size];
            let meaning = "make it with `MultiHead::source` of this layer";
            check_shape(field, found, expected, meaning)?;
        }
        let query = self.projection.query(x.clone(), &self.sizes);
        let query = self.placed_query(query, 0)?;
        self.read(x, query, source.clone(), None, call)
    }

    /// Causal self-attention of new tokens `x [batch, new, model]` to themselves and to all before them,
    /// whose keys and values are in `cache`; theirs are added to it. A rolling cache adds its window to
    /// the masks. The numbers are the same token by token, in chunks or all at once.
    ///
    /// Masks count from the beginning of the sequence ([`crate::mask`]), whatever the cache has dropped. A bias in `call`
    /// covers the keys that [`KeyValueCache::append`] returns: [`KeyValueCache::visible`] of the past and the new ones.
    ///
    /// # Errors
    /// As [`MultiHead::forward`]; if `x` is of another batch than the cache; if a mask needs a global position
    /// ([`Mask::global`]) that a rolling cache has dropped; if the attention goes on from query to query (monotonic, NTM addressing,
    /// the Gaussian window) or depends on the number of all keys (local-p). The cache is then as it was.
    pub fn forward_cached(
        &self,
        x: Tensor<3>,
        cache: &mut KeyValueCache,
        mut call: AttentionOptions<'_>,
    ) -> Result<MultiHeadOutput, AttentionError> {
        self.expect_self(&x)?;
        self.attention.check_cached()?;
        let first = cache.next_position();
        let queries = first..first + x.dims()[1];
        let new = queries.len();
        call.first_query = first;
        call.first_key = first - cache.visible();
        self.check_before_append(&x, &call, cache)?;
        // A single new token sees all keys that the cache returns.
        if new > 1 {
            call = call.mask(Mask::causal());
            if let Some(window) = cache.window() {
                call = call.mask(Mask::window(window)?);
            }
        }
        let (query, source) = self.projection.all(x.clone(), &self.sizes);
        let query = self.placed_query(query, first)?;
        let source = self.placed_source(source, first)?;
        let cached = cache.extend(source.keys, source.values)?;
        let positions = Positions {
            keys: cached.first..queries.end,
            queries,
        };
        let source = KeyValues {
            keys: cached.keys,
            values: cached.values,
        };
        let read = self.read(x, query, source, Some(positions), call);
        match read.is_ok() {
            true => cache.settle(),
            false => cache.take_back(new),
        }
        read
    }

    /// Checks `call` for the new tokens `x` before they are projected and appended to `cache`; and that the masks need no global position
    /// that it has dropped.
    fn check_before_append(
        &self,
        x: &Tensor<3>,
        call: &AttentionOptions<'_>,
        cache: &KeyValueCache,
    ) -> Result<(), AttentionError> {
        let [batch, new, _] = x.dims();
        let grid = self.grid_of([batch, new, cache.visible() + new], call);
        self.check_call(call)?;
        self.attention.check_call(call, &grid, x.dtype())?;
        let mask = self.attention.mask().clone() & call.mask.clone();
        self.attention.check_mask(&mask, &grid)?;
        match mask.lost_global(&grid) {
            None => Ok(()),
            Some(position) => Err(AttentionError::combination(
                "mask",
                format!("global over position {position}"),
                format!("a cache that keeps positions from {} on", grid.first_key),
                "keep all positions with `KeyValueCache::growing`",
            )),
        }
    }

    /// Checks that the layer can do what `call` asks for.
    fn check_call(&self, call: &AttentionOptions<'_>) -> Result<(), AttentionError> {
        if call.alibi.is_some() && self.alibi().is_some() {
            return Err(AttentionError::combination(
                "alibi",
                "that of the call",
                "a layer whose position is ALiBi",
                "leave it out of the call, or make the layer with `PositionConfig::None`",
            ));
        }
        if self.talking_heads.is_some() && call.observe == Observe::Entropy {
            return Err(AttentionError::combination(
                "observe",
                "Entropy",
                "talking heads",
                "mixed weights are no distribution; ask for the weights",
            ));
        }
        Ok(())
    }

    /// Projections and attention as one operation, if a kernel serves all that this layer does.
    fn read_projected(
        &self,
        x: &Tensor<3>,
        source: Option<&Tensor<3>>,
        call: &mut AttentionOptions<'_>,
    ) -> Result<Option<MultiHeadOutput>, AttentionError> {
        let (Ok(KernelPlan::Projected { scale }), Some(weights)) = (
            self.plan(x, source, call),
            self.projection.matrices(source.is_some()),
        ) else {
            return Ok(None);
        };
        let grid = self.grid(x, source, call);
        let Sizes {
            heads,
            key_value_heads,
            head,
            value,
        } = self.sizes;
        let [batch, queries] = [grid.batch, grid.queries];
        let options = self
            .attention
            .projected_options(scale, &grid, self.alibi(), call)?;
        let inputs = ProjectedInputs {
            x: x.clone(),
            y: source.cloned(),
            weights: weights.iter().map(|linear| linear.weight.val()).collect(),
            biases: weights
                .iter()
                .filter_map(|linear| linear.bias.as_ref().map(Param::val))
                .collect(),
            heads,
            key_heads: key_value_heads,
            size: head,
            value_size: value,
            norm: match &self.query_key_norm {
                Some(QueryKeyNorm::Rms(norm)) => {
                    Some(([norm.query.val(), norm.key.val()], norm.epsilon))
                }
                _ => None,
            },
            angles: match &self.position {
                Some(Position::Rotary(rotary)) => Some(rotary.angles(grid.keys)),
                _ => None,
            },
        };
        let (context, lse) = bridge::projected_attention(inputs, options);
        let by_head = reshaped(context.clone(), [batch, queries, heads, value]).swap_dims(1, 2);
        let mut attended = Attended::of(by_head, Observed::default());
        attended.lse = Some(lse);
        Ok(Some(MultiHeadOutput {
            output: self.put_together(context, x),
            attended,
        }))
    }

    /// Queries, normalised and with positions, the first of them at position `first`.
    fn placed_query(&self, query: Tensor<4>, first: usize) -> Result<Tensor<4>, AttentionError> {
        let query = match &self.query_key_norm {
            Some(norm) => norm.query(query),
            None => query,
        };
        match &self.position {
            Some(position) => position.place(query, first),
            None => Ok(query),
        }
    }

    /// Keys, normalised and with positions, the first of them at position `first`.
    fn placed_source(&self, source: KeyValues, first: usize) -> Result<KeyValues, AttentionError> {
        let keys = match &self.query_key_norm {
            Some(norm) => norm.key(source.keys),
            None => source.keys,
        };
        let keys = match &self.position {
            Some(position) => position.place(keys, first)?,
            None => keys,
        };
        Ok(KeyValues { keys, ..source })
    }

    /// What the heads read of `source`, gated and combined.
    fn read(
        &self,
        x: Tensor<3>,
        query: Tensor<4>,
        source: KeyValues,
        positions: Option<Positions>,
        call: AttentionOptions<'_>,
    ) -> Result<MultiHeadOutput, AttentionError> {
        report("queries", || query.clone());
        report("values", || source.values.clone());
        self.check_call(&call)?;
        // Rebound with a shorter lifetime, so that it may borrow from the layer.
        let mut call: AttentionOptions<'_> = call;
        let mut values = None;
        let positions = positions.filter(|positions| !positions.dims().contains(&0));
        if let (Some(position), Some(positions)) = (&self.position, positions) {
            if let Position::Alibi(alibi) = position {
                call.alibi = Some(alibi);
            } else {
                let [batch, heads, queries, _] = query.dims();
                let keys = source.length();
                let grid = self.grid_of([batch, queries, keys], &call);
                let asked = changed::queries(query.clone(), &grid);
                if let Some(bias) = position.bias(&asked, &positions, self.scale())? {
                    call.bias = Some(match call.bias.take() {
                        Some(own) => {
                            expect_bias(&own, [batch, heads, queries, keys])?;
                            check_precision("bias", own.dtype(), bias.dtype(), "the query")?;
                            own + bias
                        }
                        None => bias,
                    });
                }
            }
            values = position.values().map(|relative| (relative, positions));
        }
        let attended = if self.talking_heads.is_none() && values.is_none() {
            self.attention
                .forward_with(query, source.keys, source.values, call)?
        } else {
            let between = OwnWords {
                talking_heads: self.talking_heads.as_ref(),
                values,
            };
            self.attention
                .forward_between(query, source.keys, source.values, call, &between)?
        };
        Ok(MultiHeadOutput {
            output: self.put_together(join_heads(attended.context.clone()), &x),
            attended,
        })
    }

    /// `Concat(..) W^O`, gated, of contexts `[batch, queries, h · d_v]`.
    fn put_together(&self, contexts: Tensor<3>, x: &Tensor<3>) -> Tensor<3> {
        let contexts = match &self.gate {
            Some(gate) => gate.forward(contexts, x.clone()),
            None => contexts,
        };
        let bias = self.output.bias.as_ref().map(Param::val);
        bridge::linear(contexts, self.output.weight.val(), bias)
    }

    /// The factor of the scores, for terms that are added to them.
    fn scale(&self) -> f64 {
        match self.attention.score.form(self.sizes.head) {
            Some(KernelForm::Dot { scale }) => scale,
            _ => 1.0,
        }
    }

    fn alibi(&self) -> Option<&Alibi> {
        match &self.position {
            Some(Position::Alibi(alibi)) => Some(alibi),
            _ => None,
        }
    }

    /// The sizes of a call in which `x` reads itself or a source.
    fn grid(&self, x: &Tensor<3>, source: Option<&Tensor<3>>, call: &AttentionOptions<'_>) -> Grid {
        let [batch, queries, _] = x.dims();
        self.grid_of([batch, queries, source.unwrap_or(x).dims()[1]], call)
    }

    fn grid_of(&self, [batch, queries, keys]: [usize; 3], call: &AttentionOptions<'_>) -> Grid {
        Grid {
            batch,
            heads: self.sizes.heads,
            queries,
            keys,
            first_query: call.first_query,
            first_key: call.first_key,
        }
    }

    /// The kernel that serves [`MultiHead::forward`], or [`MultiHead::forward_cross`] of a source, as far as this can be told without
    /// the numbers.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use regard_nn::{AttentionOptions, KernelPlan, Unserved, heads::MultiHeadConfig, initialize::Initializer};
    ///
    /// let init = &mut Initializer::new(1, &Device::flex());
    /// let config = MultiHeadConfig::new(16, 4);
    /// let talking = MultiHeadConfig { talking_heads: true, ..config.clone() };
    /// let x = Tensor::<3>::ones([2, 5, 16], &Device::flex());
    /// # if cfg!(feature = "kernels") {
    /// let plan = config.init(init)?.plan(&x, None, &AttentionOptions::default());
    /// assert_eq!(plan, Ok(KernelPlan::Projected { scale: 0.5 }));
    /// let plan = talking.init(init)?.plan(&x, None, &AttentionOptions::default());
    /// assert_eq!(plan, Err(Unserved::BetweenWords));
    /// # }
    /// # Ok::<(), regard_nn::AttentionError>(())
    /// ```
    ///
    /// # Errors
    /// The reason why no kernel serves.
    pub fn plan(
        &self,
        x: &Tensor<3>,
        source: Option<&Tensor<3>>,
        call: &AttentionOptions<'_>,
    ) -> Result<KernelPlan, Unserved> {
        let grid = self.grid(x, source, call);
        let of_values = self.position.as_ref().and_then(Position::values);
        let asked = Asked {
            tensors: bridge::serves(x),
            card: bridge::card_serves(x),
            sizes: [self.sizes.head, self.sizes.value],
            mask: &(self.attention.mask().clone() & call.mask.clone()),
            grid: &grid,
            alibi: call.alibi.is_some() || self.alibi().is_some(),
            between: self.talking_heads.is_some() || of_values.is_some(),
        };
        let plan = KernelPlan::of(&self.attention, call, asked)?;
        let placed = match &self.position {
            None => true,
            Some(Position::Alibi(_)) => source.is_none(),
            Some(Position::Rotary(rotary)) => source.is_none() && rotary.size() <= self.sizes.head,
            Some(_) => false,
        };
        let [source_batch, ..] = source.unwrap_or(x).dims();
        let served = placed
            && !matches!(self.query_key_norm, Some(QueryKeyNorm::L2(_)))
            && self.projection.matrices(source.is_some()).is_some()
            && source_batch == grid.batch
            && ![grid.batch, grid.queries, grid.keys].contains(&0);
        Ok(match served {
            true => plan.with_projections(&self.attention, call),
            false => plan,
        })
    }

    /// Checks the size and the precision of an input.
    fn expect(
        &self,
        field: &'static str,
        x: &Tensor<3>,
        size: usize,
    ) -> Result<(), AttentionError> {
        if x.dims()[2] != size {
            return Err(AttentionError::shape(
                field,
                &x.dims(),
                format!("[_, _, {size}]"),
                "make the layer with the size of its input",
            ));
        }
        check_weights(field, x.dtype(), self)
    }

    fn expect_self(&self, x: &Tensor<3>) -> Result<(), AttentionError> {
        let [model, source] = [self.projection.d_model(), self.projection.source_size()];
        if model != source {
            return Err(AttentionError::combination(
                "source_size",
                source,
                format!("self-attention of `d_model` {model}"),
                "read the source with `MultiHead::forward_source`",
            ));
        }
        self.expect("x", x, model)
    }
}

/// The steps that this layer adds to those of [`Attention`].
struct OwnWords<'a> {
    talking_heads: Option<&'a TalkingHeads>,
    values: Option<(&'a Relative, Positions)>,
}

impl Between for OwnWords<'_> {
    fn scores(&self, scores: Tensor<4>, seen: &Option<Tensor<4, Bool>>) -> Tensor<4> {
        match self.talking_heads {
            // A bias of -∞ times a 0 of `P^S` would be NaN for the other heads, and so would the gradient of `P^S`.
            Some(talking_heads) => talking_heads.mix_scores(hide(scores, seen)),
            None => scores,
        }
    }

    fn weights(&self, weights: Tensor<4>) -> Tensor<4> {
        match self.talking_heads {
            Some(talking_heads) => talking_heads.mix_weights(weights),
            None => weights,
        }
    }

    fn beside_values(&self, weights: &Tensor<4>) -> Result<Option<Tensor<4>>, AttentionError> {
        match &self.values {
            Some((relative, positions)) => relative.context(weights.clone(), positions),
            None => Ok(None),
        }
    }
}

/// `x [batch, length, size]` with `positions [batch or 1, length, size]`.
fn placed(
    field: &'static str,
    x: Tensor<3>,
    positions: &Option<Tensor<3>>,
) -> Result<Tensor<3>, AttentionError> {
    let Some(positions) = positions else {
        return Ok(x);
    };
    let [batch, length, size] = x.dims();
    let found = positions.dims();
    let rows = if found[0] == 1 { 1 } else { batch };
    let meaning = "[batch or 1, length, size]: a position for each of the states";
    check_shape(field, found, [rows, length, size], meaning)?;
    check_precision(field, positions.dtype(), x.dtype(), "the states")?;
    Ok(x + positions.clone())
}

/// Checks that a bias can be added to scores of `expected` sizes.
fn expect_bias(bias: &Tensor<4>, expected: [usize; 4]) -> Result<(), AttentionError> {
    let found = bias.dims();
    let fits = |i: usize| found[i] == expected[i] || found[i] == 1;
    if (0..4).all(fits) {
        return Ok(());
    }
    Err(AttentionError::shape(
        "bias",
        &found,
        format!("{expected:?}, each of these or 1"),
        "a bias is added to the scores, one number for each query and key",
    ))
}
