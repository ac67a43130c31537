//! A product with a weight matrix in one operation: `y = x W + b`, `dx = dy Wᵀ`, `dW = xᵀ dy`, `db = Σ dy`.
//!
//! Burn computes the bias and the gradients by separate operations, and the gradient of a matrix that all positions share by a
//! batch of products and a sum over them.

use burn::{module::Param, nn::Linear, tensor::Tensor};
use regard_kernels::{
    KernelError,
    pointwise::{self, Pointwise},
};

use super::{
    empty::zeros_of,
    expect_dims,
    fused::{self, FlexTensor, Forward, Operation, numbers, tensor},
    product::{Matrix, affine, weight_gradient},
};

/// `x W + b` with the weights of `layer`: [`linear()`] in place of Burn's `Linear::forward`.
///
/// # Panics
/// If the last size of `x` is not the number of rows of `W`.
pub fn apply<const D: usize>(layer: &Linear, x: Tensor<D>) -> Tensor<D> {
    linear(x, layer.weight.val(), layer.bias.as_ref().map(Param::val))
}

/// `x W + b` over the last dimension of `x [.., inputs]`, with `weight [inputs, outputs]` and `bias [outputs]`. Fused for `f32`
/// on the Flex backend, Burn's operation elsewhere. Any size may be 0.
///
/// # Panics
/// If the shapes do not fit together.
pub fn linear<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
) -> Tensor<D> {
    let [inputs, outputs] = weight.dims();
    let mut shape = x.dims();
    assert!(
        shape[D - 1] == inputs,
        "`x` has shape {shape:?}, expected {inputs} as its last size, the rows of the weight"
    );
    if let Some(bias) = &bias {
        expect_dims("bias", bias.dims(), [outputs]);
    }
    shape[D - 1] = outputs;
    if !fused::takes(&x) {
        if x.dims().contains(&0) || weight.dims().contains(&0) {
            let zeros = Tensor::zeros(shape, (&x.device(), x.dtype()));
            let product = zeros_of(zeros_of(zeros, &x), &weight);
            return match bias {
                Some(bias) if outputs > 0 => product + bias.unsqueeze::<D>(),
                Some(bias) => zeros_of(product, &bias),
                None => product,
            };
        }
        #[cfg(feature = "gpu")]
        if super::card::multiplies(&x) {
            let rows = shape[..D - 1].iter().product::<usize>();
            let product = super::card::product(x.reshape([rows, inputs]), weight);
            let product = match bias {
                Some(bias) => product + bias.unsqueeze(),
                None => product,
            };
            return product.reshape(shape);
        }
        #[expect(clippy::disallowed_methods, reason = "no size is 0")]
        return burn::tensor::module::linear(x, weight, bias);
    }
    let operation = Operator {
        rows: shape[..D - 1].iter().product(),
        inputs,
        outputs,
        shape: shape.into(),
    };
    let mut all = vec![x.into_dispatch(), weight.into_dispatch()];
    all.extend(bias.map(Tensor::into_dispatch));
    Tensor::from_dispatch(fused::run(operation, all).0)
}

#[derive(Debug)]
struct Operator {
    rows: usize,
    inputs: usize,
    outputs: usize,
    shape: Vec<usize>,
}

impl Operator {
    fn x<'a>(&self, x: &'a [f32]) -> Matrix<'a> {
        Matrix::new(x, self.rows, self.inputs, self.inputs)
    }

    fn weight<'a>(&self, weight: &'a [f32]) -> Matrix<'a> {
        Matrix::new(weight, self.inputs, self.outputs, self.outputs)
    }

    fn y<'a>(&self, y: &'a [f32]) -> Matrix<'a> {
        Matrix::new(y, self.rows, self.outputs, self.outputs)
    }
}

impl Operation for Operator {
    fn forward(&self, inputs: Vec<FlexTensor>, tracked: bool) -> Result<Forward, KernelError> {
        let (x, weight) = (numbers(&inputs[0]), numbers(&inputs[1]));
        let y = affine(self.x(x), self.weight(weight), inputs.get(2).map(numbers))?;
        Ok(Forward {
            output: tensor(y, self.shape.clone()),
            beside: None,
            saved: if tracked { inputs } else { vec![] },
        })
    }

    fn backward(
        &self,
        saved: Vec<FlexTensor>,
        gradient: FlexTensor,
        wanted: &[bool],
    ) -> Result<Vec<Option<FlexTensor>>, KernelError> {
        let (x, weight) = (numbers(&saved[0]), numbers(&saved[1]));
        let shape = |input: usize| saved[input].layout().shape().clone();
        let d_x = match wanted[0] {
            true => {
                let weight = self.weight(weight).transposed();
                let d_x = affine(self.y(numbers(&gradient)), weight, None)?;
                Some(tensor(d_x, shape(0)))
            }
            false => None,
        };
        let d_weight = match wanted[1] {
            true => {
                let d_weight = weight_gradient(self.x(x), self.y(numbers(&gradient)))?;
                Some(tensor(d_weight, shape(1)))
            }
            false => None,
        };
        let mut all = vec![d_x, d_weight];
        if saved.len() > 2 {
            let mut d_bias = vec![0.0; self.outputs];
            let spec = Pointwise {
                rows: self.rows,
                width: self.outputs,
                bias: None,
                dropout: None,
            };
            pointwise::column_sums(&spec, numbers(&gradient), &mut d_bias)?;
            all.push(Some(tensor(d_bias, [self.outputs])));
        }
        Ok(all)
    }
}
