//! Additive attention in one operation, without `[batch, queries, keys, dim]`, forward or backward.
//!
//! `e_ij = Σ_d v_d tanh(q_id + k_jd) + bias_ij`, `α_i = softmax over the kept keys of e_i`,
//! `c_i = Σ_j α_ij value_j`; see [`regard_kernels::additive`].
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::bridge::additive_attention;
//!
//! let device = Device::flex();
//! let query = Tensor::<3>::ones([2, 1, 8], &device);
//! let key = Tensor::<3>::ones([2, 5, 8], &device);
//! let value = Tensor::<3>::ones([2, 5, 6], &device);
//! let v = Tensor::<1>::ones([8], &device);
//! let (context, weights) = additive_attention(query, key, v, value, None, None);
//! assert_eq!((context.dims(), weights.dims()), ([2, 1, 6], [2, 1, 5]));
//! ```

use burn::tensor::{Bool, Tensor};
use regard_kernels::{
    KernelError,
    additive::{Gradients, Input, PaddingMask, Shape, backward, forward},
};

use super::{
    bytes, expect_dims,
    fused::{self, FlexTensor, Forward, Operation, dims, numbers, tensor},
    matmul, memory, spread, zeros_of,
};
use crate::{normalize::masked_softmax, vary::vary_one};

/// Additive attention of `query [batch, queries, dim]` and `key [batch, keys, dim]`, both
/// projected, with the score vector `v [dim]`, reading `value [batch, keys, value dim]`.
///
/// `keep [batch, keys]` is true where a key may be seen; other keys (NaN included) influence
/// neither a result nor a gradient. `bias [batch, queries, keys]` is added to the scores. Returns
/// the context `[batch, queries, value dim]`, with gradients to every float input, and the weights
/// `[batch, queries, keys]`, without gradient. A query that may see no key gets zeros.
///
/// Fused for `f32` on the Flex backend, [`additive_attention_plain`] elsewhere.
///
/// # Panics
/// If the shapes do not fit together.
pub fn additive_attention(
    query: Tensor<3>,
    key: Tensor<3>,
    v: Tensor<1>,
    value: Tensor<3>,
    keep: Option<Tensor<2, Bool>>,
    bias: Option<Tensor<3>>,
) -> (Tensor<3>, Tensor<3>) {
    check(&query, &key, &v, &value, &keep, &bias);
    if !fused::takes(&query) {
        return additive_attention_plain(query, key, v, value, keep, bias);
    }
    let mut inputs = vec![
        query.into_dispatch(),
        key.into_dispatch(),
        v.into_dispatch(),
        value.into_dispatch(),
    ];
    inputs.extend(bias.map(Tensor::into_dispatch));
    let (context, weights) = fused::run(
        Additive {
            keep: keep.map(bytes),
        },
        inputs,
    );
    let weights = weights.expect("additive attention gives weights beside the context");
    (
        Tensor::from_dispatch(context),
        Tensor::from_dispatch(weights),
    )
}

/// The same by plain tensor operations, on any device: the definition.
///
/// # Panics
/// If the shapes do not fit together.
pub fn additive_attention_plain(
    query: Tensor<3>,
    key: Tensor<3>,
    v: Tensor<1>,
    value: Tensor<3>,
    keep: Option<Tensor<2, Bool>>,
    bias: Option<Tensor<3>>,
) -> (Tensor<3>, Tensor<3>) {
    check(&query, &key, &v, &value, &keep, &bias);
    let [batch, queries, dim] = query.dims();
    let [_, keys, size] = value.dims();
    let options = (&value.device(), value.dtype());
    if [batch, queries, keys, size].contains(&0) {
        let context = Tensor::zeros([batch, queries, size], options);
        let context = zeros_of(zeros_of(context, &query), &key);
        let context = zeros_of(zeros_of(context, &v), &value);
        return (context, Tensor::zeros([batch, queries, keys], options));
    }
    let (mut key, mut value) = (key, value);
    let hidden = keep.map(|keep| keep.bool_not().unsqueeze_dim::<3>(2)); // [batch, keys, 1]
    if let Some(hidden) = &hidden {
        key = key
            .clone()
            .mask_fill(spread(hidden.clone(), key.dims()), 0.0);
        value = value
            .clone()
            .mask_fill(spread(hidden.clone(), value.dims()), 0.0);
    }
    let mut scores = match dim {
        0 => Tensor::zeros([batch, queries, keys], options),
        _ => {
            let sums = query.unsqueeze_dim::<4>(2) + key.unsqueeze_dim::<4>(1); // [batch, queries, keys, dim]
            let terms = sums.tanh() * v.unsqueeze_dims::<4>(&[0, 1, 2]);
            terms.sum_dim(3).squeeze_dim::<3>(3)
        }
    };
    if let Some(bias) = bias {
        scores = scores + bias;
    }
    let seen = hidden.map(|hidden| hidden.bool_not().swap_dims(1, 2)); // [batch, 1, keys]
    let weights = vary_one(masked_softmax(scores, seen));
    (matmul(weights.clone(), value), weights.detach())
}

fn check(
    query: &Tensor<3>,
    key: &Tensor<3>,
    v: &Tensor<1>,
    value: &Tensor<3>,
    keep: &Option<Tensor<2, Bool>>,
    bias: &Option<Tensor<3>>,
) {
    let [batch, queries, dim] = query.dims();
    let [_, keys, _] = key.dims();
    let [_, _, value_dim] = value.dims();
    expect_dims("key", key.dims(), [batch, keys, dim]);
    expect_dims("v", v.dims(), [dim]);
    expect_dims("value", value.dims(), [batch, keys, value_dim]);
    if let Some(keep) = keep {
        expect_dims("keep", keep.dims(), [batch, keys]);
    }
    if let Some(bias) = bias {
        expect_dims("bias", bias.dims(), [batch, queries, keys]);
    }
}

#[derive(Debug)]
struct Additive {
    keep: Option<Vec<u8>>,
}

impl Additive {
    fn input<'a>(&'a self, inputs: &'a [FlexTensor]) -> Input<'a> {
        let [batch, queries, dim] = dims(&inputs[0]);
        let [_, keys, value_dim] = dims(&inputs[3]);
        Input {
            shape: Shape {
                batch,
                queries,
                keys,
                dim,
                value_dim,
            },
            query: numbers(&inputs[0]),
            key: numbers(&inputs[1]),
            v: numbers(&inputs[2]),
            value: numbers(&inputs[3]),
            keep: self
                .keep
                .as_deref()
                .map_or(PaddingMask::All, PaddingMask::Mask),
            bias: inputs.get(4).map(numbers),
        }
    }
}

impl Operation for Additive {
    fn forward(&self, inputs: Vec<FlexTensor>, tracked: bool) -> Result<Forward, KernelError> {
        let input = self.input(&inputs);
        let Shape {
            batch,
            queries,
            keys,
            value_dim,
            ..
        } = input.shape;
        let mut context = memory::zeros(batch * queries * value_dim);
        let mut weights = memory::zeros(batch * queries * keys);
        forward(&input, &mut context, &mut weights)?;
        let weights = tensor(weights, [batch, queries, keys]);
        let mut saved = Vec::new();
        if tracked {
            saved = inputs;
            saved.push(weights.clone());
        }
        let output = tensor(context, [batch, queries, value_dim]);
        Ok(Forward {
            output,
            beside: Some(weights),
            saved,
        })
    }

    fn backward(
        &self,
        mut saved: Vec<FlexTensor>,
        gradient: FlexTensor,
        wanted: &[bool],
    ) -> Result<Vec<Option<FlexTensor>>, KernelError> {
        let weights = saved.pop().expect("the weights were saved last");
        let input = self.input(&saved);
        let wants_bias = wanted.get(4) == Some(&true);
        let mut query = memory::zeros(input.query.len());
        let mut key = memory::zeros(input.key.len());
        let mut v = memory::zeros(input.v.len());
        let mut value = memory::zeros(input.value.len());
        let mut bias = wants_bias.then(|| memory::zeros(numbers(&weights).len()));
        let mut gradients = Gradients {
            query: &mut query,
            key: &mut key,
            v: &mut v,
            value: &mut value,
            bias: bias.as_deref_mut(),
            accumulate: false,
        };
        backward(
            &input,
            numbers(&weights),
            numbers(&gradient),
            None,
            &mut gradients,
        )?;
        let mut all = vec![Some(query), Some(key), Some(v), Some(value), bias];
        all.truncate(saved.len());
        let shaped = all.into_iter().zip(&saved).map(|(gradient, input)| {
            gradient.map(|gradient| tensor(gradient, input.layout().shape().clone()))
        });
        Ok(shaped.collect())
    }
}
