//! Attention by the fused kernels, as chosen by a [`KernelPlan`].

use burn::tensor::{DType, Tensor};

use super::{
    Attended, Attention, AttentionError, AttentionOptions, KernelPlan, Observed, Unserved,
    check::Problem, plain::for_each_head,
};
use crate::{
    bridge::{self, DotInputs, DotOptions},
    mask::{Alignment, Grid, Mask, PaddingMask, Rule},
    normalize::Normalize,
    position::Alibi,
};

/// With such scores the kernel gives a row of NaN, hidden keys included.
const OVERFLOWN: Unserved =
    Unserved::NotFinite("scores that are not finite, beside or behind a bias of -inf");

/// Runs the kernel of `plan`, unless the numbers rule it out.
pub(super) fn read(
    plan: KernelPlan,
    problem: &mut Problem<'_>,
    attention: &Attention,
) -> Result<Attended, Unserved> {
    if problem.hides_poison_by_bias() {
        return Err(Unserved::NotFinite(
            "keys or values that are not finite, hidden by a bias of -inf",
        ));
    }
    match plan {
        KernelPlan::Dot { scale }
        | KernelPlan::Projected { scale }
        | KernelPlan::Card { scale } => dot(problem, attention, plan, scale),
        KernelPlan::Additive => additive(problem, attention),
    }
}

impl Attention {
    /// The options of the dot-product kernel. The seed of dropout is drawn here.
    pub(crate) fn dot_options(
        &self,
        scale: f64,
        mask: &Mask,
        grid: &Grid,
        alibi: Option<&Alibi>,
        call: &mut AttentionOptions<'_>,
    ) -> DotOptions {
        DotOptions {
            scale: scale as f32,
            softcap: self.softcap.map(|softcap| softcap as f32),
            // The kernel counts distances and masks from the same position.
            mask: mask.for_kernel(grid, alibi.map(|_| Alignment::LowerRight)),
            alibi: alibi.map(|alibi| alibi.slopes().iter().map(|&slope| slope as f32).collect()),
            dropout: self.draw_dropout(call.noise.as_deref_mut()),
        }
    }

    /// The same for an operation that includes the projections, whose operands are no [`Problem`].
    ///
    /// # Errors
    /// As [`Attention::forward`].
    pub(crate) fn projected_options(
        &self,
        scale: f64,
        grid: &Grid,
        alibi: Option<&Alibi>,
        call: &mut AttentionOptions<'_>,
    ) -> Result<DotOptions, AttentionError> {
        self.check_settings(grid.heads, DType::F32)?;
        let mask = self.mask.clone() & call.mask.clone();
        mask.check(grid)?;
        Ok(self.dot_options(scale, &mask, grid, alibi, call))
    }
}

fn dot(
    problem: &mut Problem<'_>,
    attention: &Attention,
    plan: KernelPlan,
    scale: f64,
) -> Result<Attended, Unserved> {
    let query = attention.score.prepared_query(problem.query.clone());
    let sink = match &attention.normalize {
        Normalize::Sink(sink) => {
            let sink = sink.score(&query).reshape([-1]);
            Some(sink.expand([problem.grid.heads]))
        }
        _ => None,
    };
    // A sink that became NaN in training takes the plain path, which propagates the NaN.
    if let Some(sink) = &sink
        && !sink.clone().is_finite().all().into_scalar::<bool>()
    {
        return Err(Unserved::NotFinite("a sink that is not finite"));
    }
    let key = problem.key.clone();
    let prepared = match problem.prepared {
        true => None,
        false => attention.score.prepared_keys(&key),
    };
    // A NaN in hidden keys would reach the gradient of the weights that prepare keys.
    if prepared.is_some()
        && !problem.mask.is_all()
        && !key.clone().is_finite().all().into_scalar::<bool>()
    {
        return Err(Unserved::NotFinite("keys that are not finite"));
    }
    let inputs = DotInputs {
        query,
        key: prepared.unwrap_or(key),
        value: problem.value.clone(),
        bias: problem.call.bias.clone(),
        sink,
    };
    let before = problem.call.noise.as_deref().cloned();
    let alibi = problem.call.alibi;
    let (mask, grid) = (&problem.mask, &problem.grid);
    let options = attention.dot_options(scale, mask, grid, alibi, &mut problem.call);
    let (context, lse, observed) = match plan {
        #[cfg(feature = "gpu")]
        KernelPlan::Card { .. } => bridge::card::attention(inputs, &options, &problem.call.observe),
        _ => bridge::dot_attention(inputs, options, &problem.call.observe),
    };
    let finite = || {
        let finite = lse.clone().detach().lower_elem(f32::INFINITY);
        finite.all().into_scalar::<bool>()
    };
    if problem.call.bias.is_some() && !finite() && problem.hides_by_bias() {
        // The plain path draws the seed again.
        if let (Some(noise), Some(before)) = (problem.call.noise.as_deref_mut(), before) {
            *noise = before;
        }
        return Err(OVERFLOWN);
    }
    let mut attended = Attended::of(context, observed);
    attended.lse = Some(lse);
    Ok(attended)
}

fn additive(problem: &Problem<'_>, attention: &Attention) -> Result<Attended, Unserved> {
    let score = &attention.score;
    let vector = score.vector().ok_or(Unserved::Score(score.name()))?;
    let keep = match &problem.mask.0 {
        Rule::Padding(keep) => Some(keep),
        _ => None,
    };
    let [batch, heads, queries, keys] = problem.sizes();
    // Heads share the score's weights, so that heads can be folded into the batch.
    let folded = |x: Tensor<4>| {
        let [batch, heads, length, size] = x.dims();
        x.reshape([batch * heads, length, size])
    };
    let key = problem.key.clone();
    let key = match problem.prepared {
        true => key,
        false => {
            let key = keep.map_or(key.clone(), |keep| without_padding(keep, key));
            score.prepared_keys(&key).unwrap_or(key)
        }
    };
    let bias = problem
        .call
        .bias
        .as_ref()
        .map(|bias| folded(bias.clone().expand([batch, heads, queries, keys])));
    let keep = keep.map(|keep| {
        let keep = keep.tensor().unsqueeze_dim::<3>(1);
        keep.expand([batch, heads, keys])
            .reshape([batch * heads, keys])
    });
    let (context, weights) = bridge::additive_attention(
        folded(score.prepared_query(problem.query.clone())),
        folded(for_each_head(key, heads)),
        vector,
        folded(for_each_head(problem.value.clone(), heads)),
        keep,
        bias,
    );
    let finite = || weights.clone().is_finite().all().into_scalar::<bool>();
    if problem.call.bias.is_some() && !finite() && problem.hides_by_bias() {
        return Err(OVERFLOWN);
    }
    let [_, _, value_size] = context.dims();
    let context = context.reshape([batch, heads, queries, value_size]);
    let weights = weights.reshape([batch, heads, queries, keys]);
    let observed = Observed::new(weights, &problem.call.observe);
    Ok(Attended::of(context, observed))
}

/// `x [batch, key heads, keys, size]` with zeros at padding.
fn without_padding(keep: &PaddingMask, x: Tensor<4>) -> Tensor<4> {
    if keep.is_full() {
        return x;
    }
    let shape = x.dims();
    let padding = keep.tensor().bool_not().unsqueeze_dims::<4>(&[1, 3]);
    x.mask_fill(padding.expand(shape), 0.0)
}
