//! Additive attention on numpy arrays (Bahdanau 2014).

use numpy::{PyArrayDyn, PyReadonlyArrayDyn, PyUntypedArrayMethods};
use pyo3::prelude::*;
use regard_kernels::additive::{Gradients, Input, PaddingMask, Shape, backward, forward};

use crate::{
    arrays::{array, refused, shaped, slice, zeros},
    threads::kernel,
};

/// What is read, all contiguous: `query [batch, queries, dim]`, `key [batch, keys, dim]`, `v [dim]` or `[heads, dim]` (the batch is then
/// sentences times heads, the head innermost), `value [batch, keys, value_dim]`; `mask [batch, keys]` and `bias [batch, queries, keys]` if
/// there are any.
#[derive(FromPyObject)]
pub struct Arguments<'py> {
    query: PyReadonlyArrayDyn<'py, f32>,
    key: PyReadonlyArrayDyn<'py, f32>,
    v: PyReadonlyArrayDyn<'py, f32>,
    value: PyReadonlyArrayDyn<'py, f32>,
    mask: Option<PyReadonlyArrayDyn<'py, u8>>,
    bias: Option<PyReadonlyArrayDyn<'py, f32>>,
}

impl Arguments<'_> {
    fn input(&self) -> PyResult<Input<'_>> {
        let three = |name: &str, shape: &[usize]| {
            <[usize; 3]>::try_from(shape).map_err(|_| {
                refused(format!(
                    "`{name}` has the shape {shape:?}, expected three axes: [batch, length, dim]"
                ))
            })
        };
        let [batch, queries, dim] = three("query", self.query.shape())?;
        let [_, keys, _] = three("key", self.key.shape())?;
        let [_, _, value_dim] = three("value", self.value.shape())?;
        let of_mask = |mask| shaped("mask", mask, "[batch, keys]", &[batch, keys]);
        let of_bias = |bias| {
            let shape = [batch, queries, keys];
            shaped("bias", bias, "[batch, queries, keys]", &shape)
        };
        let mask = self.mask.as_ref().map(of_mask).transpose()?;
        Ok(Input {
            shape: Shape {
                batch,
                queries,
                keys,
                dim,
                value_dim,
            },
            query: slice("query", &self.query)?,
            key: shaped("key", &self.key, "[batch, keys, dim]", &[batch, keys, dim])?,
            v: self.score_vectors(batch, dim)?,
            value: shaped(
                "value",
                &self.value,
                "[batch, keys, value_dim]",
                &[batch, keys, value_dim],
            )?,
            keep: mask.map_or(PaddingMask::All, PaddingMask::Mask),
            bias: self.bias.as_ref().map(of_bias).transpose()?,
        })
    }

    /// `v`: one vector for all, or one for each head.
    fn score_vectors(&self, batch: usize, dim: usize) -> PyResult<&[f32]> {
        let found = self.v.shape();
        let fits = match *found {
            [of_all] => of_all == dim,
            [heads, of_head] => of_head == dim && heads > 0 && batch.is_multiple_of(heads),
            _ => false,
        };
        if !fits {
            return Err(refused(format!(
                "`v` has the shape {found:?}, expected [{dim}], or [heads, {dim}] with a number of heads that divides the batch of {batch}"
            )));
        }
        slice("v", &self.v)
    }
}

/// Hyperbolic tangents, of which each takes about as long as a multiply-add of a product.
fn products(shape: Shape) -> f64 {
    let sizes = [shape.batch, shape.queries, shape.keys, shape.dim];
    sizes.map(|size| size as f64).iter().product()
}

type Array<'py> = Bound<'py, PyArrayDyn<f32>>;

/// Context `[batch, queries, value_dim]` and weights `[batch, queries, keys]`.
#[pyfunction]
pub fn additive_forward<'py>(
    py: Python<'py>,
    arguments: Arguments<'py>,
) -> PyResult<(Array<'py>, Array<'py>)> {
    let input = arguments.input()?;
    let Shape {
        batch,
        queries,
        keys,
        value_dim,
        ..
    } = input.shape;
    let (of_context, of_weights) = ([batch, queries, value_dim], [batch, queries, keys]);
    let (mut context, mut weights) = (zeros(&of_context)?, zeros(&of_weights)?);
    kernel(py, products(input.shape), || {
        forward(&input, &mut context, &mut weights)
    })?;
    Ok((
        array(py, context, &of_context)?,
        array(py, weights, &of_weights)?,
    ))
}

/// The gradients of query, key, v and value, and of the bias if there is one.
#[pyfunction]
pub fn additive_backward<'py>(
    py: Python<'py>,
    arguments: Arguments<'py>,
    weights: PyReadonlyArrayDyn<'py, f32>,
    d_context: PyReadonlyArrayDyn<'py, f32>,
    d_weights: Option<PyReadonlyArrayDyn<'py, f32>>,
) -> PyResult<([Array<'py>; 4], Option<Array<'py>>)> {
    let input = arguments.input()?;
    let shapes = [
        arguments.query.shape(),
        arguments.key.shape(),
        arguments.v.shape(),
        arguments.value.shape(),
    ];
    let (weights, d_context) = (slice("weights", &weights)?, slice("d_context", &d_context)?);
    let d_weights = d_weights
        .as_ref()
        .map(|d| slice("d_weights", d))
        .transpose()?;
    let [mut query, mut key, mut v, mut value] = [
        zeros(shapes[0])?,
        zeros(shapes[1])?,
        zeros(shapes[2])?,
        zeros(shapes[3])?,
    ];
    let mut bias = input.bias.map(|bias| vec![0.0; bias.len()]);
    kernel(py, products(input.shape), || {
        let mut gradients = Gradients {
            query: &mut query,
            key: &mut key,
            v: &mut v,
            value: &mut value,
            bias: bias.as_deref_mut(),
            accumulate: false,
        };
        backward(&input, weights, d_context, d_weights, &mut gradients)
    })?;
    let bias = bias.zip(arguments.bias.as_ref().map(|bias| bias.shape()));
    let bias = bias.map(|(numbers, shape)| array(py, numbers, shape));
    let [query, key, v, value] = [(query, 0), (key, 1), (v, 2), (value, 3)]
        .map(|(numbers, at)| array(py, numbers, shapes[at]));
    Ok(([query?, key?, v?, value?], bias.transpose()?))
}
