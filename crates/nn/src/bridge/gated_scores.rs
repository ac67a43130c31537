//! Scores of keys by a layer of gated hyperbolic tangents in one operation, without `[batch, queries, keys, dim]`, forward or backward:
//! `s_ij = Σ_d w_d tanh(q_id + k_jd) σ(q'_id + k'_jd)`; see [`regard_kernels::gated_scores`].

use burn::tensor::Tensor;
use regard_kernels::{
    KernelError,
    gated_scores::{GatedScores, Gradients},
};

use super::{
    expect_dims,
    fused::{self, FlexTensor, Forward, Operation, dims, numbers, tensor},
    linear, memory, sigmoid, zeros_of,
};

/// The scores `[batch, queries, keys]` of `query [batch, queries, 2 dim]` and `key [batch, keys, 2 dim]`, whose rows are values and as
/// many gates, with the score vector `vector [dim]`. Fused for `f32` on the Flex backend, [`gated_scores_plain`] elsewhere.
///
/// # Panics
/// If the shapes do not fit together.
pub fn gated_scores(query: Tensor<3>, key: Tensor<3>, vector: Tensor<1>) -> Tensor<3> {
    check(&query, &key, &vector);
    if !fused::takes(&query) {
        return gated_scores_plain(query, key, vector);
    }
    let inputs = vec![
        query.into_dispatch(),
        key.into_dispatch(),
        vector.into_dispatch(),
    ];
    Tensor::from_dispatch(fused::run(Operator, inputs).0)
}

/// The same by plain tensor operations, on any device: the definition.
///
/// # Panics
/// If the shapes do not fit together.
pub fn gated_scores_plain(query: Tensor<3>, key: Tensor<3>, vector: Tensor<1>) -> Tensor<3> {
    check(&query, &key, &vector);
    let ([batch, queries, _], [_, keys, _]) = (query.dims(), key.dims());
    let [dim] = vector.dims();
    if [batch, queries, keys, dim].contains(&0) {
        let options = (&query.device(), query.dtype());
        let scores = Tensor::zeros([batch, queries, keys], options);
        return zeros_of(zeros_of(zeros_of(scores, &query), &key), &vector);
    }
    let sums = query.unsqueeze_dim::<4>(2) + key.unsqueeze_dim::<4>(1); // [batch, queries, keys, 2 dim]
    let value = sums.clone().narrow(3, 0, dim).tanh();
    let gate = sigmoid(sums.narrow(3, dim, dim));
    linear(value * gate, vector.reshape([dim, 1]), None).squeeze_dim(3)
}

fn check(query: &Tensor<3>, key: &Tensor<3>, vector: &Tensor<1>) {
    let ([batch, queries, _], [_, keys, _]) = (query.dims(), key.dims());
    let [dim] = vector.dims();
    expect_dims("query", query.dims(), [batch, queries, 2 * dim]);
    expect_dims("key", key.dims(), [batch, keys, 2 * dim]);
}

#[derive(Debug)]
struct Operator;

fn shape(inputs: &[FlexTensor]) -> GatedScores {
    let ([batch, queries, _], [_, keys, _]) = (dims(&inputs[0]), dims(&inputs[1]));
    let [dim] = dims(&inputs[2]);
    GatedScores {
        batch,
        queries,
        keys,
        dim,
    }
}

impl Operation for Operator {
    fn forward(&self, inputs: Vec<FlexTensor>, tracked: bool) -> Result<Forward, KernelError> {
        let shape = shape(&inputs);
        let GatedScores {
            batch,
            queries,
            keys,
            ..
        } = shape;
        let mut scores = memory::zeros(batch * queries * keys);
        let [query, key, vector] = [0, 1, 2].map(|input| numbers(&inputs[input]));
        shape.forward(query, key, vector, &mut scores)?;
        Ok(Forward {
            output: tensor(scores, [batch, queries, keys]),
            beside: None,
            saved: if tracked { inputs } else { vec![] },
        })
    }

    fn backward(
        &self,
        saved: Vec<FlexTensor>,
        gradient: FlexTensor,
        _wanted: &[bool],
    ) -> Result<Vec<Option<FlexTensor>>, KernelError> {
        let [query, key, vector] = [0, 1, 2].map(|input| numbers(&saved[input]));
        let mut found = [query, key, vector].map(|input| memory::zeros(input.len()));
        let [d_query, d_key, d_vector] = &mut found;
        let gradients = Gradients {
            query: d_query,
            key: d_key,
            vector: d_vector,
        };
        shape(&saved).backward(query, key, vector, numbers(&gradient), gradients)?;
        let shaped = found.into_iter().zip(&saved);
        let shaped =
            shaped.map(|(gradient, input)| Some(tensor(gradient, input.layout().shape().clone())));
        Ok(shaped.collect())
    }
}
