//! Which fused kernel serves a reading, if any.
//!
//! | score | normaliser | mask | kernel |
//! |---|---|---|---|
//! | additive, weight-normed additive | softmax | padding | [`bridge::additive_attention`] |

use burn::tensor::Tensor;

use super::{Attended, Attention, check::Problem, observe};
use crate::{
    bridge,
    mask::{Keep, Rule},
    normalize::Normalize,
    score::Score,
};

/// The answer of a kernel, or what no kernel serves.
pub(super) fn solve(problem: &Problem<'_>, attention: &Attention) -> Result<Attended, String> {
    additive(problem, attention)
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
        Rule::Padding(keep) if keep.batch() == problem.grid.batch => Some(keep),
        _ => return Err("a mask other than padding".to_owned()),
    };
    for (unserved, what) in [
        (attention.predictor.is_some(), "local-p"),
        (attention.softcap.is_some(), "a softcap"),
        (
            attention.dropout > 0.0 && problem.call.noise.is_some(),
            "dropout on the weights",
        ),
        (problem.call.differentiable, "differentiable observations"),
        (problem.grid.heads != 1, "more than one head"),
    ] {
        if unserved {
            return Err(what.to_owned());
        }
    }
    if !bridge::serves(&problem.query) {
        return Err("tensors other than f32 on the Flex backend".to_owned());
    }
    let [batch, _, queries, keys] = problem.sizes();
    let one_head = |x: &Tensor<4>| x.clone().squeeze_dim::<3>(1);
    let key = one_head(&problem.key);
    let key = match problem.prepared {
        true => key,
        false => {
            let key = keep.map_or(key.clone(), |keep| keep.zero_padding(key));
            attention.score.keys(key)
        }
    };
    let bias = problem
        .call
        .bias
        .as_ref()
        .map(|bias| one_head(&bias.clone().expand([batch, 1, queries, keys])));
    let (context, weights) = bridge::additive_attention(
        query.forward(one_head(&problem.query)),
        key,
        vector,
        one_head(&problem.value),
        keep.map(Keep::tensor),
        bias,
    );
    let (context, weights) = (context.unsqueeze_dim(1), weights.unsqueeze_dim(1));
    Ok(observe::report(context, weights, &problem.call.observe))
}
