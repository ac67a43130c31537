//! `eˣ` and `σ(x)` in Burn's autodiff: functions of each number whose gradient follows from the output.

use burn::{
    backend::{
        Cube,
        ops::{ActivationOps, FloatTensorOps},
    },
    tensor::{DType, FloatDType, Tensor},
};

use super::{Operation, Primitive, run};

/// `eˣ`, computed in `f32` unless `x` is of `f64`.
pub(crate) fn exp<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    Tensor::from_dispatch(run(Pointwise::Exponential, vec![x.into_dispatch()]).0)
}

/// `1 / (1 + exp(-x))`, as [`exp`].
pub(crate) fn sigmoid<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    Tensor::from_dispatch(run(Pointwise::Sigmoid, vec![x.into_dispatch()]).0)
}

#[derive(Debug, Clone, Copy)]
enum Pointwise {
    Exponential,
    Sigmoid,
}

impl Operation for Pointwise {
    /// The output.
    type Kept = Primitive;

    fn forward(&self, inputs: &[Primitive]) -> (Primitive, Primitive) {
        let dtype = inputs[0].dtype;
        let wide = if dtype == DType::F64 {
            FloatDType::F64
        } else {
            FloatDType::F32
        };
        let x = Cube::float_cast(inputs[0].clone(), wide);
        let exp = |x| match dtype {
            DType::F64 => Cube::float_exp(x),
            _ => regard_gpu::exp(x),
        };
        let output = match self {
            Self::Exponential => exp(x),
            Self::Sigmoid => {
                let sum = Cube::float_add_scalar(exp(Cube::float_neg(x)), 1.0.into());
                Cube::float_recip(sum)
            }
        };
        let output = Cube::float_cast(output, dtype.into());
        (output.clone(), output)
    }

    fn backward(
        &self,
        _: &[Primitive],
        output: &Primitive,
        gradient: Primitive,
        _: &[bool],
    ) -> Vec<Option<Primitive>> {
        let output = output.clone();
        vec![Some(match self {
            Self::Exponential => Cube::float_mul(gradient, output),
            Self::Sigmoid => Cube::sigmoid_backward(output, gradient),
        })]
    }
}
