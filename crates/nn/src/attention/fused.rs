//! Which fused kernel serves a reading, if any.
//!
//! | score | normaliser | mask | around it | kernel |
//! |---|---|---|---|---|
//! | dot, scaled dot, general, scaled general, cosine | softmax, sink | any | grouped heads, softcap, bias, ALiBi, dropout | `bridge::dot_attention` |
//! | additive, weight-normed additive | softmax | padding | grouped heads, bias | [`bridge::additive_attention`] |
//!
//! Both for `f32` on the Flex backend. Local-p, whose Gaussian acts on the weights, observations with gradient, and
//! a bias of `-∞` with keys, values or scores that are not finite take the plain path.

use burn::tensor::{DType, Tensor};

use super::{
    Attended, Attention, AttentionError, AttentionOptions, Observe, Observed, Path, check::Problem,
    plain::for_each_head,
};
use crate::{
    bridge::{self, DotInputs, DotOptions},
    mask::{Alignment, Grid, PaddingMask, Rule},
    normalize::Normalize,
    score::Score,
};

/// A row of such scores is NaN, what is hidden in it included.
const OVERFLOWN: &str = "scores that are not finite, beside or behind a bias of -inf";

/// The answer of a kernel, or what no kernel serves.
pub(super) fn solve(problem: &mut Problem<'_>, attention: &Attention) -> Result<Attended, String> {
    if !bridge::serves(&problem.query) {
        return Err("tensors other than f32 on the Flex backend".to_owned());
    }
    if attention.predictor.is_some() {
        return Err("local-p".to_owned());
    }
    if problem.call.differentiable {
        return Err("differentiable observations".to_owned());
    }
    if problem.hides_poison_by_bias() {
        return Err("keys or values that are not finite, hidden by a bias of -inf".to_owned());
    }
    match &attention.score {
        Score::Additive(_) | Score::WeightNormAdditive(_) => additive(problem, attention),
        _ => dot(problem, attention),
    }
}

impl Attention {
    /// The kernel's options for heads of these sizes on `grid`, if the kernel serves them with a context and an `lse` as the
    /// only results. The draw of dropout's seed is made then.
    ///
    /// # Errors
    /// As [`Attention::forward`].
    pub(crate) fn kernel_options(
        &self,
        grid: &Grid,
        sizes: [usize; 2],
        call: &mut AttentionOptions<'_>,
    ) -> Result<Option<DotOptions>, AttentionError> {
        let scale = match &self.score {
            Score::Dot(_) => 1.0,
            Score::ScaledDot(score) => score.scale(sizes[0]),
            _ => return Ok(None),
        };
        let served = matches!(self.normalize, Normalize::Softmax(_))
            && call.observe == Observe::Nothing
            && call.path != Path::Plain
            && !call.differentiable
            && call.bias.is_none()
            && call.alibi.is_none()
            && call.carried.is_none()
            && self.predictor.is_none()
            && sizes.iter().all(|&size| size <= bridge::MAX_SIZE);
        if !served {
            return Ok(None);
        }
        self.check_settings(grid.heads, DType::F32, call)?;
        let mask = self.mask.clone() & call.mask.clone();
        mask.check(grid)?;
        let noise = call.noise.as_deref_mut();
        Ok(Some(DotOptions {
            scale: scale as f32,
            softcap: self.softcap.map(|softcap| softcap as f32),
            mask: mask.for_kernel(grid, None),
            alibi: None,
            dropout: self.draw_dropout(noise),
        }))
    }
}

fn dot(problem: &mut Problem<'_>, attention: &Attention) -> Result<Attended, String> {
    let query = problem.query.clone();
    let size = query.dims()[3];
    let (query, scale) = match &attention.score {
        Score::Dot(_) | Score::General(_) => (query, 1.0),
        Score::ScaledDot(score) => (query, score.scale(size)),
        Score::ScaledGeneral(score) => (score.scaled_query(query), 1.0),
        Score::Cosine(score) => (score.sharpened_query(query), 1.0),
        score => return Err(format!("the {} score", score.name())),
    };
    let heads = problem.grid.heads;
    let sink = match &attention.normalize {
        Normalize::Softmax(_) => None,
        Normalize::Sink(sink) => Some(sink.score(&query).reshape([-1]).expand([heads])),
        normalize => return Err(format!("the {} normaliser", normalize.name())),
    };
    let sizes = [query.dims()[3], problem.value.dims()[3]];
    if let Some(size) = sizes.iter().find(|&&size| size > bridge::MAX_SIZE) {
        return Err(format!(
            "a size of {size} (the kernel takes up to {})",
            bridge::MAX_SIZE
        ));
    }
    // A sink that training has driven to NaN goes the plain way, which carries it on.
    if let Some(sink) = &sink
        && !sink.clone().is_finite().all().into_scalar::<bool>()
    {
        return Err("a sink that is not finite".to_owned());
    }
    let key = problem.key.clone();
    let key = match &attention.score {
        _ if problem.prepared => key,
        Score::Dot(_) | Score::ScaledDot(_) => key,
        // What stands in hidden keys would reach the gradient of what prepares them.
        _ if !problem.mask.is_all() && !key.clone().is_finite().all().into_scalar::<bool>() => {
            return Err("keys that are not finite".to_owned());
        }
        score => score.keys(key),
    };
    let inputs = DotInputs {
        query,
        key,
        value: problem.value.clone(),
        bias: problem.call.bias.clone(),
        sink,
    };
    let alibi = problem.call.alibi;
    let before = problem.call.noise.as_deref().cloned();
    let options = DotOptions {
        scale: scale as f32,
        softcap: attention.softcap.map(|softcap| softcap as f32),
        // The kernel counts distances and masks from the same places.
        mask: problem
            .mask
            .for_kernel(&problem.grid, alibi.map(|_| Alignment::LowerRight)),
        alibi: alibi.map(|alibi| alibi.slopes().iter().map(|&slope| slope as f32).collect()),
        dropout: attention.draw_dropout(problem.call.noise.as_deref_mut()),
    };
    let (context, lse, observed) = bridge::dot_attention(inputs, options, &problem.call.observe);
    let finite = || {
        let finite = lse.clone().detach().lower_elem(f32::INFINITY);
        finite.all().into_scalar::<bool>()
    };
    if problem.call.bias.is_some() && !finite() && problem.hides_by_bias() {
        // The plain path draws again.
        if let (Some(noise), Some(before)) = (problem.call.noise.as_deref_mut(), before) {
            *noise = before;
        }
        return Err(OVERFLOWN.to_owned());
    }
    let mut attended = Attended::of(context, observed);
    attended.lse = Some(lse);
    Ok(attended)
}

fn additive(problem: &Problem<'_>, attention: &Attention) -> Result<Attended, String> {
    let Normalize::Softmax(_) = &attention.normalize else {
        return Err(format!("the {} normaliser", attention.normalize.name()));
    };
    let (query, vector) = match &attention.score {
        Score::Additive(score) => (&score.query, score.vector.val()),
        Score::WeightNormAdditive(score) => (&score.query, score.score_vector()),
        score => return Err(format!("the {} score", score.name())),
    };
    let keep = match &problem.mask.0 {
        Rule::All => None,
        Rule::Padding(keep)
            if keep.batch() == problem.grid.batch && problem.grid.first_key == 0 =>
        {
            Some(keep)
        }
        _ => return Err("a mask other than padding".to_owned()),
    };
    for (unserved, what) in [
        (attention.softcap.is_some(), "a softcap"),
        (
            attention.dropout > 0.0 && problem.call.noise.is_some(),
            "dropout on the weights",
        ),
        (problem.call.alibi.is_some(), "ALiBi"),
    ] {
        if unserved {
            return Err(what.to_owned());
        }
    }
    let [batch, heads, queries, keys] = problem.sizes();
    // Heads share the score's weights, so that a head is one more entry of the batch.
    let folded = |x: Tensor<4>| {
        let [batch, heads, length, size] = x.dims();
        x.reshape([batch * heads, length, size])
    };
    let key = problem.key.clone();
    let key = match problem.prepared {
        true => key,
        false => {
            let key = keep.map_or(key.clone(), |keep| without_padding(keep, key));
            attention.score.keys(key)
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
        folded(bridge::apply(query, problem.query.clone())),
        folded(for_each_head(key, heads)),
        vector,
        folded(for_each_head(problem.value.clone(), heads)),
        keep,
        bias,
    );
    let finite = || weights.clone().is_finite().all().into_scalar::<bool>();
    if problem.call.bias.is_some() && !finite() && problem.hides_by_bias() {
        return Err(OVERFLOWN.to_owned());
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
