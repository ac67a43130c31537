//! The heads of multi-head attention in one operation, projections included.
//!
//! `Q = X W^Q + b^Q`, `K = Y W^K + b^K`, `V = Y W^V + b^V`, and dot-product attention of every head; `Y = X` in self-attention,
//! where the three matrices may be stored side by side as one. Between projection and scores, queries and keys may be
//! normalised (RMS) and rotated (rotary positions), head by head. The kernel reads heads in place in the results of the
//! products and writes contexts side by side, `[batch, queries, heads · size]`, as the output matrix needs them: nothing is
//! transposed or copied, and in the backward pass the products of queries, keys and values add up the gradient of `X`.

use burn::tensor::Tensor;
use regard_kernels::{
    KernelError, View, ViewMut, dot,
    matmul::Write,
    norm::{self, Kind, Norm},
    pointwise::{self, Pointwise},
    rotary::{self, Rotary},
};

use super::{
    dot::{DotOptions, sum_lse},
    fused::{self, FlexTensor, Forward, Operation, numbers, tensor},
    memory,
    product::{Matrix, MatrixMut, affine, product, weight_gradient_to},
};

/// The inputs of [`projected_attention`], `f32` on the Flex backend, whose shapes fit together.
#[derive(Debug)]
pub(crate) struct ProjectedInputs {
    pub(crate) x: Tensor<3>,         // [batch, queries, model]
    pub(crate) y: Option<Tensor<3>>, // [batch, keys, source]; x if absent
    /// `W^Q | W^K | W^V` as one, or three: `[inputs, columns]`.
    pub(crate) weights: Vec<Tensor<2>>,
    /// `[columns]`, as many as weights, or none.
    pub(crate) biases: Vec<Tensor<1>>,
    pub(crate) heads: usize,
    pub(crate) key_heads: usize,
    pub(crate) size: usize,
    pub(crate) value_size: usize,
    /// RMS norm of queries and keys: the gains of both, `[size]`, and `ε`.
    pub(crate) norm: Option<([Tensor<1>; 2], f64)>,
    /// The angles by which queries and keys are rotated.
    pub(crate) angles: Option<Angles>,
}

/// Cosines and sines for each position, `[length, pairs]`.
#[derive(Debug)]
pub(crate) struct Angles {
    pub(crate) cosine: Vec<f32>,
    pub(crate) sine: Vec<f32>,
    /// Whether the features of a pair are neighbours.
    pub(crate) interleaved: bool,
}

/// The contexts side by side, `[batch, queries, heads · value size]`, with gradients to every input; the `lse` `[batch, heads,
/// queries] has no gradient.
pub(crate) fn projected_attention(
    inputs: ProjectedInputs,
    options: DotOptions,
) -> (Tensor<3>, Tensor<3>) {
    let [batch, queries, _] = inputs.x.dims();
    let keys = inputs.y.as_ref().map_or(queries, |y| y.dims()[1]);
    let operation = Projected {
        options,
        batch,
        lengths: [queries, keys, keys],
        heads: [inputs.heads, inputs.key_heads, inputs.key_heads],
        sizes: [inputs.size, inputs.size, inputs.value_size],
        cross: inputs.y.is_some(),
        joint: inputs.weights.len() == 1,
        biased: !inputs.biases.is_empty(),
        epsilon: inputs.norm.as_ref().map(|(_, epsilon)| *epsilon),
        angles: inputs.angles,
    };
    let mut all = vec![inputs.x.into_dispatch()];
    all.extend(inputs.y.map(Tensor::into_dispatch));
    all.extend(inputs.weights.into_iter().map(Tensor::into_dispatch));
    all.extend(inputs.biases.into_iter().map(Tensor::into_dispatch));
    let gains = inputs.norm.into_iter().flat_map(|(gains, _)| gains);
    all.extend(gains.map(Tensor::into_dispatch));
    let (context, lse) = fused::run(operation, all);
    let lse = lse.expect("the operation gives the lse beside the context");
    (Tensor::from_dispatch(context), Tensor::from_dispatch(lse))
}

/// The operation. Arrays of three are for query, key and value, in this order.
#[derive(Debug)]
struct Projected {
    options: DotOptions,
    batch: usize,
    lengths: [usize; 3],
    heads: [usize; 3],
    sizes: [usize; 3],
    /// Whether keys and values come from another source than queries.
    cross: bool,
    /// Whether the three matrices are one.
    joint: bool,
    biased: bool,
    /// `ε` of the norm, whose gains are the last two inputs.
    epsilon: Option<f64>,
    angles: Option<Angles>,
}

/// Where query, key or value is computed from.
#[derive(Clone, Copy)]
struct Part {
    /// The index of the input with the states.
    states: usize,
    /// The index of the weight.
    weight: usize,
    /// Its first column in that weight.
    first: usize,
    columns: usize,
    /// The number of columns of that weight.
    width: usize,
}

impl Projected {
    fn parts(&self) -> [Part; 3] {
        let columns: [usize; 3] = std::array::from_fn(|i| self.heads[i] * self.sizes[i]);
        std::array::from_fn(|i| Part {
            states: usize::from(self.cross && i > 0),
            weight: if self.joint { 0 } else { i },
            first: if self.joint {
                columns[..i].iter().sum()
            } else {
                0
            },
            columns: columns[i],
            width: if self.joint {
                columns.iter().sum()
            } else {
                columns[i]
            },
        })
    }

    fn first_weight(&self) -> usize {
        1 + usize::from(self.cross)
    }

    fn weights(&self) -> usize {
        if self.joint { 1 } else { 3 }
    }

    /// How many products are kept: one, with queries, keys and values side by side, or three, as what is normalised or rotated
    /// must be separate.
    fn products(&self) -> usize {
        match self.epsilon.is_none() && self.angles.is_none() {
            true => self.weights(),
            false => 3,
        }
    }

    fn norm<'a>(&self, i: usize, epsilon: f64, inputs: &'a [FlexTensor]) -> Norm<'a> {
        Norm {
            kind: Kind::RootMeanSquare,
            rows: self.rows(i) * self.heads[i],
            width: self.sizes[i],
            weight: Some(numbers(&inputs[inputs.len() - 2 + i])),
            bias: None,
            epsilon,
        }
    }

    fn rotary<'a>(&self, i: usize, angles: &'a Angles) -> Rotary<'a> {
        Rotary {
            length: self.lengths[i],
            heads: self.heads[i],
            size: self.sizes[i],
            cosine: &angles.cosine,
            sine: &angles.sine,
            interleaved: angles.interleaved,
        }
    }

    fn shape(&self, i: usize) -> [usize; 4] {
        [self.batch, self.heads[i], self.lengths[i], self.sizes[i]]
    }

    fn rows(&self, i: usize) -> usize {
        self.batch * self.lengths[i]
    }

    /// Queries, keys and values in place in the results of the products.
    fn views<'a>(&self, products: &[&'a [f32]]) -> [View<'a>; 3] {
        let parts = self.parts();
        std::array::from_fn(|i| {
            let Part {
                first,
                columns,
                width,
                ..
            } = parts[i];
            let (product, first, width) = match products {
                [_] => (0, first, width),
                _ => (i, 0, columns),
            };
            View {
                data: products[product].get(first..).unwrap_or_default(),
                shape: self.shape(i),
                strides: [self.lengths[i] * width, self.sizes[i], width],
            }
        })
    }

    fn context_shape(&self) -> [usize; 4] {
        let [batch, heads, queries, _] = self.shape(0);
        [batch, heads, queries, self.sizes[2]]
    }

    /// The size of the states that weight `weight` multiplies.
    fn model(&self, inputs: &[FlexTensor], weight: usize) -> usize {
        inputs[self.first_weight() + weight].layout().shape()[0]
    }
}

impl Operation for Projected {
    fn forward(&self, inputs: Vec<FlexTensor>, tracked: bool) -> Result<Forward, KernelError> {
        let parts = self.parts();
        let of_weight = |weight: usize| {
            let (Part { states, width, .. }, rows) = (parts[weight], self.rows(weight));
            let at = self.first_weight() + weight;
            let model = self.model(&inputs, weight);
            let bias = self.biased.then(|| numbers(&inputs[at + self.weights()]));
            affine(
                Matrix::new(numbers(&inputs[states]), rows, model, model),
                Matrix::new(numbers(&inputs[at]), model, width, width),
                bias,
            )
        };
        let mut products: Vec<Vec<f32>> = (0..self.weights())
            .map(of_weight)
            .collect::<Result<_, _>>()?;
        if products.len() < self.products() {
            // One product is cut into three, rather than computed as three: so the bits are the same whether or not queries and
            // keys are rotated and normalised here.
            let joint = &products[0];
            let cut = |part: Part| {
                let row = |row: usize| &joint[row * part.width + part.first..][..part.columns];
                memory::rows(self.rows(0), part.columns, row)
            };
            products = Vec::from(parts.map(cut));
        }
        let mut raw = vec![];
        for (i, product) in products.iter_mut().enumerate().take(2) {
            if let Some(epsilon) = self.epsilon {
                let norm = self.norm(i, epsilon, &inputs);
                let forward = |to: &mut [_]| norm::forward_fresh(&norm, product, to);
                // SAFETY: the kernel writes all of its output.
                let normed = unsafe { memory::written(product.len(), forward) }?;
                raw.push(std::mem::replace(product, normed));
            }
            if let Some(angles) = &self.angles {
                rotary::rotate(&self.rotary(i, angles), product)?;
            }
        }
        let kept = |x: Vec<f32>| {
            let length = x.len();
            tensor(x, [length])
        };
        let products: Vec<FlexTensor> = products.into_iter().map(kept).collect();
        let slices: Vec<&[f32]> = products.iter().map(numbers).collect();
        let [query, key, value] = self.views(&slices);
        let shape = self.context_shape();
        let [batch, heads, queries, value_size] = shape;
        let mut context = memory::zeros(shape.iter().product());
        let mut lse = memory::zeros(batch * heads * queries * 3);
        let to = ViewMut::length_first(&mut context, shape);
        dot::forward(
            &self.options.kernel(),
            query,
            key,
            value,
            to,
            Some(&mut lse),
        )?;
        let context = tensor(context, [batch, queries, heads * value_size]);
        let beside = tensor(sum_lse(&lse), [batch, heads, queries]);
        let mut saved = vec![];
        if tracked {
            saved = inputs;
            saved.extend(raw.into_iter().map(kept));
            saved.extend(products);
            let lse = tensor(lse, [batch, heads, queries, 3]);
            saved.extend([context.clone(), lse]);
        }
        Ok(Forward {
            output: context,
            beside: Some(beside),
            saved,
        })
    }

    fn backward(
        &self,
        mut saved: Vec<FlexTensor>,
        gradient: FlexTensor,
        wanted: &[bool],
    ) -> Result<Vec<Option<FlexTensor>>, KernelError> {
        let lse = saved.pop().expect("the lse was saved last");
        let context = saved.pop().expect("the context was saved before it");
        let products = saved.split_off(saved.len() - self.products());
        let raw = saved.split_off(saved.len() - self.epsilon.map_or(0, |_| 2));
        let inputs = saved;
        let slices: Vec<&[f32]> = products.iter().map(numbers).collect();
        let [query, key, value] = self.views(&slices);
        let parts = self.parts();
        let mut d_parts = [0, 1, 2].map(|i| memory::zeros(self.rows(i) * parts[i].columns));
        let shape = self.context_shape();
        let [d_query, d_key, d_value] = &mut d_parts;
        let gradients = dot::Gradients {
            query: ViewMut::length_first(d_query, self.shape(0)),
            key: ViewMut::length_first(d_key, self.shape(1)),
            value: ViewMut::length_first(d_value, self.shape(2)),
            bias: None,
            sink: None,
        };
        dot::backward(
            &self.options.kernel(),
            query,
            key,
            value,
            View::length_first(numbers(&context), shape),
            numbers(&lse),
            View::length_first(numbers(&gradient), shape),
            gradients,
        )?;
        drop(products);
        let mut gains = vec![];
        for (i, d_part) in d_parts.iter_mut().enumerate().take(2) {
            if let Some(angles) = &self.angles {
                rotary::rotate_back(&self.rotary(i, angles), d_part)?;
            }
            if let Some(epsilon) = self.epsilon {
                let mut gain = vec![0.0; self.sizes[i]];
                let mut gradients = norm::Gradients {
                    input: d_part,
                    weight: Some(&mut gain),
                    bias: None,
                };
                let norm = self.norm(i, epsilon, &inputs);
                norm::backward(&norm, numbers(&raw[i]), &mut gradients)?;
                gains.push(gain);
            }
        }
        let first_weight = self.first_weight();
        // Those of the states are sums of products, the first of which makes their memory.
        let zeros = |input: usize| match wanted.get(input) {
            Some(true) if input >= first_weight => {
                memory::zeros(inputs[input].layout().num_elements())
            }
            _ => vec![],
        };
        let mut all: Vec<Vec<f32>> = (0..inputs.len()).map(zeros).collect();
        let mut written = [false; 2];
        for (i, (part, d_part)) in parts.iter().zip(&mut d_parts).enumerate() {
            let Part {
                states,
                first,
                columns,
                width,
                ..
            } = *part;
            let (rows, model) = (self.rows(i), self.model(&inputs, part.weight));
            let weight = first_weight + part.weight;
            if wanted[states] {
                let of_part = numbers(&inputs[weight]).get(first..).unwrap_or_default();
                let d_part = Matrix::new(d_part, rows, columns, columns);
                let weight = Matrix::new(of_part, model, columns, width).transposed();
                match std::mem::replace(&mut written[states], true) {
                    false => all[states] = affine(d_part, weight, None)?,
                    true => {
                        let sum = MatrixMut::new(&mut all[states], rows, model, model);
                        product(d_part, weight, sum, Write::Add);
                    }
                }
            }
            if wanted[weight] {
                weight_gradient_to(
                    Matrix::new(numbers(&inputs[states]), rows, model, model),
                    Matrix::new(d_part, rows, columns, columns),
                    MatrixMut::new(&mut all[weight][first..], model, columns, width),
                    Write::Replace,
                )?;
            }
            let bias = weight + self.weights();
            if self.biased && wanted[bias] {
                let spec = Pointwise {
                    rows,
                    width: columns,
                    bias: None,
                    dropout: None,
                };
                let d_bias = &mut all[bias][first..first + columns];
                pointwise::column_sums(&spec, d_part, d_bias)?;
            }
        }
        all.truncate(inputs.len() - gains.len());
        all.extend(gains);
        let shaped = all.into_iter().enumerate().map(|(input, gradient)| {
            let shape = inputs[input].layout().shape().clone();
            wanted[input].then(|| tensor(gradient, shape))
        });
        Ok(shaped.collect())
    }
}
