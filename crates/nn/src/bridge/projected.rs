//! The heads of multi-head attention in one operation, projections included.
//!
//! `Q = X W^Q + b^Q`, `K = Y W^K + b^K`, `V = Y W^V + b^V`, and dot-product attention of every head; `Y = X` in self-attention,
//! where the three matrices may be one, side by side. The kernel reads heads where the products left them and writes contexts
//! side by side, `[batch, queries, heads · size]`, as the output matrix wants them: nothing is transposed or copied, and in the
//! backward pass the gradients of `X` from queries, keys and values meet inside the products.

use burn::tensor::Tensor;
use regard_kernels::{
    KernelError, View, ViewMut, dot,
    pointwise::{self, Pointwise},
};

use super::{
    dot::{DotOptions, sum_lse},
    fused::{self, FlexTensor, Forward, Operation, numbers, tensor},
    product::{Matrix, MatrixMut, Write, product, repeat},
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
}

/// The contexts side by side, `[batch, queries, heads · value size]`, with gradients to every input; the `lse` `[batch, heads,
/// queries]`, without.
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
    };
    let mut all = vec![inputs.x.into_dispatch()];
    all.extend(inputs.y.map(Tensor::into_dispatch));
    all.extend(inputs.weights.into_iter().map(Tensor::into_dispatch));
    all.extend(inputs.biases.into_iter().map(Tensor::into_dispatch));
    let (context, lse) = fused::run(operation, all);
    let lse = lse.expect("the operation gives the lse beside the context");
    (Tensor::from_dispatch(context), Tensor::from_dispatch(lse))
}

/// Query, key and value, in this order, wherever there are three of something.
#[derive(Debug)]
struct Projected {
    options: DotOptions,
    batch: usize,
    lengths: [usize; 3],
    heads: [usize; 3],
    sizes: [usize; 3],
    /// Whether keys and values are of a source of their own.
    cross: bool,
    /// Whether the three matrices are one.
    joint: bool,
    biased: bool,
}

/// Where query, key or value comes from.
#[derive(Clone, Copy)]
struct Part {
    /// The input with the states.
    states: usize,
    /// Which of the weights, and of the products with them.
    product: usize,
    /// Its first column there.
    first: usize,
    columns: usize,
    /// All columns there.
    width: usize,
}

impl Projected {
    fn parts(&self) -> [Part; 3] {
        let columns: [usize; 3] = std::array::from_fn(|i| self.heads[i] * self.sizes[i]);
        std::array::from_fn(|i| Part {
            states: usize::from(self.cross && i > 0),
            product: if self.joint { 0 } else { i },
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

    fn products(&self) -> usize {
        if self.joint { 1 } else { 3 }
    }

    fn shape(&self, i: usize) -> [usize; 4] {
        [self.batch, self.heads[i], self.lengths[i], self.sizes[i]]
    }

    fn rows(&self, i: usize) -> usize {
        self.batch * self.lengths[i]
    }

    /// Queries, keys and values where the products left them.
    fn views<'a>(&self, products: &[&'a [f32]]) -> [View<'a>; 3] {
        let parts = self.parts();
        std::array::from_fn(|i| {
            let Part {
                product,
                first,
                width,
                ..
            } = parts[i];
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

    /// Columns of the states that weight `weight` multiplies.
    fn model(&self, inputs: &[FlexTensor], weight: usize) -> usize {
        inputs[self.first_weight() + weight].layout().shape()[0]
    }
}

impl Operation for Projected {
    fn forward(&self, inputs: Vec<FlexTensor>, tracked: bool) -> Result<Forward, KernelError> {
        let parts = self.parts();
        let of_product = |product: usize| {
            let i = (0..3).find(|&i| parts[i].product == product).unwrap_or(0);
            let (Part { states, width, .. }, rows) = (parts[i], self.rows(i));
            let at = self.first_weight() + product;
            let model = self.model(&inputs, product);
            let mut out = vec![0.0; rows * width];
            let mut write = Write::Overwrite;
            if self.biased {
                repeat(numbers(&inputs[at + self.products()]), &mut out);
                write = Write::Add;
            }
            self::product(
                Matrix::new(numbers(&inputs[states]), rows, model, model),
                Matrix::new(numbers(&inputs[at]), model, width, width),
                MatrixMut::new(&mut out, rows, width, width),
                write,
            );
            tensor(out, [rows, width])
        };
        let products: Vec<FlexTensor> = (0..self.products()).map(of_product).collect();
        let slices: Vec<&[f32]> = products.iter().map(numbers).collect();
        let [query, key, value] = self.views(&slices);
        let shape = self.context_shape();
        let [batch, heads, queries, value_size] = shape;
        let mut context = vec![0.0; shape.iter().product()];
        let mut lse = vec![0.0; batch * heads * queries * 3];
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
        let inputs = saved;
        let slices: Vec<&[f32]> = products.iter().map(numbers).collect();
        let [query, key, value] = self.views(&slices);
        let parts = self.parts();
        let mut d_parts = [0, 1, 2].map(|i| vec![0.0; self.rows(i) * parts[i].columns]);
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
        let first_weight = self.first_weight();
        let zeros = |input: usize| match wanted.get(input) {
            Some(true) => vec![0.0; inputs[input].layout().num_elements()],
            _ => vec![],
        };
        let mut all: Vec<Vec<f32>> = (0..inputs.len()).map(zeros).collect();
        let mut written = [false; 2];
        for (i, (part, d_part)) in parts.iter().zip(&mut d_parts).enumerate() {
            let Part {
                states,
                product,
                first,
                columns,
                width,
            } = *part;
            let (rows, model) = (self.rows(i), self.model(&inputs, product));
            let weight = first_weight + product;
            if wanted[states] {
                // Where nothing is dropped out of a sum, its first term overwrites.
                let write = match std::mem::replace(&mut written[states], true) {
                    true => Write::Add,
                    false => Write::Overwrite,
                };
                let of_part = numbers(&inputs[weight]).get(first..).unwrap_or_default();
                self::product(
                    Matrix::new(d_part, rows, columns, columns),
                    Matrix::new(of_part, model, columns, width).transposed(),
                    MatrixMut::new(&mut all[states], rows, model, model),
                    write,
                );
            }
            if wanted[weight] {
                self::product(
                    Matrix::new(numbers(&inputs[states]), rows, model, model).transposed(),
                    Matrix::new(d_part, rows, columns, columns),
                    MatrixMut::new(&mut all[weight][first..], model, columns, width),
                    Write::Overwrite,
                );
            }
            let bias = weight + self.products();
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
        let shaped = all.into_iter().enumerate().map(|(input, gradient)| {
            let shape = inputs[input].layout().shape().clone();
            wanted[input].then(|| tensor(gradient, shape))
        });
        Ok(shaped.collect())
    }
}
