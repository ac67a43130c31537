//! Attention by plain tensor operations, on every device: the definition against which the fused path is tested.

use std::ops::Range;

use burn::tensor::{Bool, Tensor, TensorData};
use regard_kernels::Dropout;

use super::{
    Attended, Attention, AttentionError, Observe, Top,
    between::{Between, Nothing},
    check::Problem,
    fused,
    observe::Observed,
    plan::{Asked, KernelPlan},
};
use crate::{
    bridge::{self, matmul},
    changed::{self, Computed, Here},
    dropout::DropoutRng,
    mask::{Grid, Mask, local},
    normalize::hide,
    position::Positions,
    record::{recorded, report},
    score::KernelForm,
    vary::vary,
};

impl Problem<'_> {
    /// Computes the result: fused where a kernel serves the call and the path allows it, with the added steps of
    /// `between`.
    pub(super) fn solve(
        mut self,
        attention: &Attention,
        between: Option<&dyn Between>,
    ) -> Result<Attended, AttentionError> {
        if self.is_empty() {
            return Ok(self.nothing(attention));
        }
        let asked = Asked {
            tensors: bridge::serves(&self.query),
            card: bridge::card_serves(&self.query),
            sizes: [self.query.dims()[3], self.value.dims()[3]],
            mask: &self.mask,
            grid: &self.grid,
            alibi: self.call.alibi.is_some(),
            between: between.is_some(),
        };
        let plan = KernelPlan::of(attention, &self.call, asked);
        match plan.and_then(|plan| fused::read(plan, &mut self, attention)) {
            Ok(attended) => Ok(attended),
            Err(unserved) => {
                unserved.refuse_or_tell(attention, self.call.path)?;
                self.plain(attention, between.unwrap_or(&Nothing))
            }
        }
    }

    /// The scores that go into the normaliser.
    pub(super) fn scores(mut self, attention: &Attention) -> Result<Tensor<4>, AttentionError> {
        self.widen();
        if self.is_empty() {
            return Ok(self.zeros(self.sizes()));
        }
        let seen = self.seen(attention)?;
        Ok(self.score(attention, &seen.tensor, None).0)
    }

    fn plain(
        mut self,
        attention: &Attention,
        between: &dyn Between,
    ) -> Result<Attended, AttentionError> {
        self.widen();
        let Seen {
            tensor: seen,
            gaussian,
        } = self.seen(attention)?;
        let changed = changed::here(&self.grid);
        let seen = match &changed {
            Some(changed) => changed.seen(seen, &self.query),
            None => seen,
        };
        let (scores, of_score) = self.score(attention, &seen, changed.as_ref());
        let scores = between.scores(scores, &seen);
        let before = changed::concerns().then(|| scores.clone());
        let carried = self.call.carried.take();
        let noise = self.call.noise.as_deref_mut();
        let normalized =
            attention
                .normalize
                .forward(scores, seen.clone(), &self.query, carried, noise);
        report("normalized", || normalized.weights.clone());
        let mut weights = between.weights(normalized.weights);
        if let Some(gaussian) = gaussian {
            // A centre that is NaN affects only keys that are seen.
            weights = hide(weights * gaussian, &seen);
        }
        if let Some(changed) = &changed {
            weights = changed.weights(weights, &seen);
        }
        let weights = vary(weights);
        report("weights", || weights.clone());
        if let Some(scores) = &before {
            changed::record(&Computed {
                grid: &self.grid,
                tensors: [&self.query, &self.key, &self.value],
                scores,
                weights: &weights,
                seen: &seen,
                scale: match attention.score.form(self.query.dims()[3]) {
                    Some(KernelForm::Dot { scale }) => Some(scale),
                    _ => None,
                },
                softcap: attention.softcap,
            });
        }
        let read = match attention.draw_dropout(self.call.noise.as_deref_mut()) {
            None => weights.clone(),
            Some(dropout) => drop_weights(weights.clone(), dropout),
        };
        let beside = between.beside_values(&read)?;
        let value = self.value.clone();
        let mut context = self.read(read, value, &seen);
        if let Some(beside) = beside {
            context = context + beside;
        }
        if let Some(changed) = &changed {
            context = changed.context(context);
        }
        report("context", || context.clone());
        let call = &self.call;
        let observed = match call.differentiable {
            true => weights,
            false => weights.detach(),
        };
        let mut observed = Observed::new(observed, &call.observe);
        if let Some(log_sink) = normalized.log_sink {
            let log_sink = match call.differentiable {
                true => log_sink,
                false => log_sink.detach(),
            };
            let of_sink = log_sink.clone().exp() * log_sink;
            observed.entropy = observed.entropy.map(|entropy| entropy - of_sink);
        }
        Ok(Attended {
            lse: normalized.lse.map(Tensor::detach),
            sampled: normalized.sampled,
            carried: normalized.carried.or(of_score),
            ..Attended::of(context, observed)
        })
    }

    /// Whether a size is 0, so that there is nothing to compute.
    pub(super) fn is_empty(&self) -> bool {
        self.sizes().contains(&0)
    }

    pub(super) fn sizes(&self) -> [usize; 4] {
        let grid = &self.grid;
        [grid.batch, grid.heads, grid.queries, grid.keys]
    }

    /// The result of an empty call: zeros, where the outputs have numbers at all.
    pub(super) fn nothing(mut self, attention: &Attention) -> Attended {
        self.widen();
        let [batch, heads, queries, _] = self.sizes();
        let mut context = self.zeros([batch, heads, queries, self.value.dims()[3]]);
        if let Some(bias) = &self.call.bias {
            context = bridge::zeros_of(context, bias);
        }
        let observe = std::mem::take(&mut self.call.observe);
        let observed = match self.call.differentiable {
            true => self.observed_nothing(&observe),
            false => self.observed_nothing(&observe).detach(),
        };
        let carried = self.call.carried.take();
        let scores = self.zeros(self.sizes());
        let normalize = &attention.normalize;
        let normalized = normalize.forward(scores, None, &self.query, carried.clone(), None);
        let carried = match attention.score.carried_size() {
            Some(_) => attention.score.score_after(self.query, self.key, carried).1,
            None => normalized.carried,
        };
        Attended {
            lse: normalized.lse.map(Tensor::detach),
            sampled: normalized.sampled,
            carried,
            ..Attended::of(context, observed)
        }
    }

    fn observed_nothing(&self, observe: &Observe) -> Observed {
        let [batch, heads, queries, keys] = self.sizes();
        let mut observed = Observed::default();
        match observe {
            Observe::Nothing => {}
            Observe::Weights => observed.weights = Some(self.zeros(self.sizes())),
            Observe::Rows(rows) => {
                observed.weights = Some(self.zeros([batch, heads, rows.len(), keys]));
            }
            Observe::Entropy => observed.entropy = Some(self.zeros([batch, heads, queries])),
            Observe::ColumnSums => observed.column_sums = Some(self.zeros([batch, heads, keys])),
            Observe::TopK(k) => {
                let shape = [batch, heads, queries, *k];
                observed.top = Some(Top {
                    keys: Tensor::full(shape, -1, &self.query.device()),
                    weights: self.zeros(shape),
                });
            }
        }
        observed
    }

    /// Zeros that depend on query, key and value in the graph.
    fn zeros<const D: usize>(&self, shape: [usize; D]) -> Tensor<D> {
        let options = (&self.query.device(), self.query.dtype());
        let parents = [&self.query, &self.key, &self.value];
        parents
            .into_iter()
            .fold(Tensor::zeros(shape, options), bridge::zeros_of)
    }

    /// All masks that hide keys, as one tensor, and local-p's Gaussian.
    fn seen(&self, attention: &Attention) -> Result<Seen, AttentionError> {
        let mut mask = self.mask.clone();
        let mut gaussian = None;
        if let Some(predictor) = &attention.predictor {
            let sentences = mask.sentences(&self.grid);
            let lengths: Vec<usize> = sentences.iter().map(Range::len).collect();
            let starts: Vec<f32> = sentences.iter().map(|words| words.start as f32).collect();
            let starts = TensorData::new(starts, [self.grid.batch, 1, 1, 1]);
            let options = (&self.query.device(), self.query.dtype());
            let centre = predictor.forward(self.query.clone(), &lengths)
                + Tensor::<4>::from_data(starts, options);
            report("predicted positions", || centre.clone());
            let half_width = predictor.half_width();
            mask = mask & Mask::local_predictive(centre.clone().detach(), half_width);
            let factors = local::gaussian(centre, half_width, self.grid.keys);
            report("Gaussian", || factors.clone());
            gaussian = Some(factors);
        }
        let tensor = match mask.is_all() {
            true => None,
            false => Some(mask.tensor(&self.grid, &self.query.device())?),
        };
        let tensor = match (tensor, self.let_through()) {
            (Some(mask), Some(bias)) => {
                let [mask, bias] = common(mask, bias);
                Some(mask.bool_and(bias))
            }
            (mask, bias) => mask.or(bias),
        };
        if let Some(seen) = &tensor {
            report("seen", || seen.clone().float());
        }
        Ok(Seen { tensor, gaussian })
    }

    /// Where the bias is above `-∞`; `None` where it is everywhere. `[batch or 1, heads or 1, queries or 1, keys]`.
    fn let_through(&self) -> Option<Tensor<4, Bool>> {
        let bias = self.call.bias.clone()?.detach();
        let [batch, heads, queries, _] = bias.dims();
        let bias = bias.expand([batch, heads, queries, self.grid.keys]);
        let hidden = bias.equal_elem(f32::NEG_INFINITY);
        let any = hidden.clone().any().into_scalar::<bool>();
        any.then(|| hidden.bool_not())
    }

    pub(super) fn hides_by_bias(&self) -> bool {
        self.let_through().is_some()
    }

    /// Whether the bias hides keys that may hold numbers that are not finite: in a sum of scores these cannot be
    /// told from the bias.
    pub(super) fn hides_poison_by_bias(&self) -> bool {
        let finite = |x: &Tensor<4>| x.clone().detach().is_finite().all().into_scalar::<bool>();
        self.call.bias.is_some()
            && !(finite(&self.key) && finite(&self.value))
            && self.hides_by_bias()
    }

    /// Scores, capped and biased; and the state that the score carries.
    fn score(
        &mut self,
        attention: &Attention,
        seen: &Option<Tensor<4, Bool>>,
        changed: Option<&Here>,
    ) -> (Tensor<4>, Option<Tensor<4>>) {
        // If the score carries no state, the normaliser may.
        let carried_size = attention.score.carried_size();
        let before = carried_size.and_then(|_| self.call.carried.take());
        let (key, met) = without_poison(self.key.clone(), seen, &self.grid);
        let (mut scores, carried) = self.score_of(attention, key, before.clone());
        if let Some(met) = met {
            // Without a gradient, as that of scores that are not used would be 0 · ∞; and without a second report of the steps.
            let raw = || self.score_of(attention, self.key.clone(), before).0;
            let (raw, _) = recorded(raw);
            scores = scores.mask_where(met, raw.detach());
        }
        report("scores", || scores.clone());
        if let Some(softcap) = attention.softcap {
            // Not `/`: its gradient in Burn 0.22.1 is that of the quotient by an `f32`, in `f64` too. That of
            // `Tensor::<1>::ones([1], (&device, DType::F64)) / 1e-40` is infinite.
            scores = (scores * (1.0 / softcap)).tanh() * softcap;
            report("capped scores", || scores.clone());
        }
        if let Some(changed) = changed {
            scores = changed.scores(scores);
        }
        if let Some(bias) = self.call.bias.take() {
            scores = scores + bias;
        }
        if let Some(alibi) = self.call.alibi {
            let positions = Positions::lower_right(self.grid.queries, self.grid.keys);
            let bias = alibi.bias(&positions, &scores.device(), scores.dtype());
            report("bias", || bias.clone());
            scores = scores + bias;
        }
        (scores, carried)
    }

    /// Scores of `key [batch, key heads, keys, size]`, and the state that the score carries on from that `before`.
    fn score_of(
        &self,
        attention: &Attention,
        key: Tensor<4>,
        before: Option<Tensor<4>>,
    ) -> (Tensor<4>, Option<Tensor<4>>) {
        let key = match self.prepared {
            true => key,
            false => attention.score.prepared_keys(&key).unwrap_or(key),
        };
        report("keys", || key.clone());
        let key = for_each_head(key, self.grid.heads);
        let query = self.query.clone();
        match attention.score.carried_size() {
            Some(_) => attention.score.score_after(query, key, before),
            None => (attention.score.score(query, key), None),
        }
    }

    /// `weights · value`.
    fn read(
        &self,
        weights: Tensor<4>,
        value: Tensor<4>,
        seen: &Option<Tensor<4, Bool>>,
    ) -> Tensor<4> {
        let heads = self.grid.heads;
        let (finite, met) = without_poison(value.clone(), seen, &self.grid);
        let context = matmul(weights.clone(), for_each_head(finite, heads));
        match met {
            None => context,
            Some(met) => context + poison(weights, for_each_head(value, heads), met),
        }
    }
}

/// Two masks, broadcast to common sizes.
fn common(a: Tensor<4, Bool>, b: Tensor<4, Bool>) -> [Tensor<4, Bool>; 2] {
    let (of_a, of_b) = (a.dims(), b.dims());
    let shape: [usize; 4] = std::array::from_fn(|axis| of_a[axis].max(of_b[axis]));
    [a, b].map(|mask| mask.expand(shape))
}

struct Seen {
    /// True where a key may be seen; `None` where all may be. `[batch or 1, heads or 1, queries or 1, keys]`.
    tensor: Option<Tensor<4, Bool>>,
    gaussian: Option<Tensor<4>>,
}

/// Weights with some set to 0 and the others scaled, with the same choice for each place as in the kernel.
fn drop_weights(weights: Tensor<4>, dropout: Dropout) -> Tensor<4> {
    let [batch, heads, queries, keys] = weights.dims();
    let raised = 1.0 / (1.0 - dropout.probability);
    let mut factors = Vec::with_capacity(batch * heads * queries * keys);
    for b in 0..batch {
        for h in 0..heads {
            for i in 0..queries {
                let kept = (0..keys).map(|j| dropout.keeps(b, h, i, j));
                factors.extend(kept.map(|kept| if kept { raised } else { 0.0 }));
            }
        }
    }
    let factors = TensorData::new(factors, weights.dims());
    let factors = Tensor::<4>::from_data(factors, &weights.device()).cast(weights.dtype());
    weights * factors
}

/// `x [batch, key heads, keys, size]` repeated to `heads`.
pub(super) fn for_each_head(x: Tensor<4>, heads: usize) -> Tensor<4> {
    let [batch, key_heads, keys, size] = x.dims();
    match key_heads == heads {
        true => x,
        false => x
            .unsqueeze_dim::<5>(2)
            .expand([batch, key_heads, heads / key_heads, keys, size])
            .reshape([batch, heads, keys, size]),
    }
}

/// For use behind a mask: `x [batch, key heads, keys, size]` with zeros for what is not finite, so that a key that
/// no query sees has no influence; and where queries see keys that were not finite, `[batch, heads, queries, keys]` (`None` where
/// none does).
fn without_poison(
    x: Tensor<4>,
    seen: &Option<Tensor<4, Bool>>,
    grid: &Grid,
) -> (Tensor<4>, Option<Tensor<4, Bool>>) {
    let Some(seen) = seen else {
        return (x, None);
    };
    let finite = x.clone().detach().is_finite();
    if finite.clone().all().into_scalar::<bool>() {
        return (x, None);
    }
    let [batch, key_heads, keys, _] = x.dims();
    let poisoned = finite.clone().all_dim(3).bool_not().swap_dims(2, 3);
    let poisoned = poisoned
        .unsqueeze_dim::<5>(2)
        .expand([batch, key_heads, grid.heads / key_heads, 1, keys])
        .reshape([batch, grid.heads, 1, keys]);
    let shape = [grid.batch, grid.heads, grid.queries, grid.keys];
    let met = poisoned.expand(shape).bool_and(seen.clone().expand(shape));
    let any = met.clone().any().into_scalar::<bool>();
    (x.mask_fill(finite.bool_not(), 0.0), any.then_some(met))
}

/// What the numbers of `value [batch, heads, keys, size]` that are not finite add to the contexts of the queries that have `met` them,
/// as plain arithmetic would give: ∞, -∞ or NaN, and 0 where there are none; without a gradient. The product of the two would be NaN for
/// all queries.
fn poison(weights: Tensor<4>, value: Tensor<4>, met: Tensor<4, Bool>) -> Tensor<4> {
    let (weights, value) = (weights.detach(), value.detach());
    let options = (&weights.device(), weights.dtype());
    let any = |weights: Tensor<4, Bool>, value: &Tensor<4, Bool>| {
        let weights = weights.bool_and(met.clone()).float();
        matmul(weights, value.clone().float()).greater_elem(0.0)
    };
    let positive = weights.clone().greater_elem(0.0);
    let negative = weights.clone().lower_elem(0.0);
    let highest = value.clone().equal_elem(f32::INFINITY);
    let lowest = value.clone().equal_elem(f32::NEG_INFINITY);
    let up = any(positive.clone(), &highest).bool_or(any(negative.clone(), &lowest));
    let down = any(positive, &lowest).bool_or(any(negative, &highest));
    let no_number = any(met.clone(), &value.is_nan())
        .bool_or(any(weights.equal_elem(0.0), &highest.bool_or(lowest)))
        .bool_or(up.clone().bool_and(down.clone()));
    Tensor::<4>::zeros(up.dims(), options)
        .mask_fill(up, f32::INFINITY)
        .mask_fill(down, f32::NEG_INFINITY)
        .mask_fill(no_number, f32::NAN)
}

impl Attention {
    /// The dropout of one call; `None` without noise.
    pub(super) fn draw_dropout(&self, noise: Option<&mut DropoutRng>) -> Option<Dropout> {
        if self.dropout == 0.0 {
            return None;
        }
        let noise = noise?;
        Some(Dropout {
            probability: self.dropout as f32,
            seed: noise.seed()?,
            first_batch: noise.first_row(),
        })
    }
}
