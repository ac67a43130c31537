//! Layer norm and RMS norm in one operation; see [`regard_kernels::norm`].
//!
//! `y = w ∘ (x - mean x) / √(var x + ε) + b` over the last dimension, or `y = w ∘ x / √(mean x² + ε)`.

use burn::tensor::Tensor;
use regard_kernels::{
    KernelError,
    norm::{self, Gradients, Kind, Norm},
};

use super::{
    expect_dims,
    fused::{self, FlexTensor, Forward, Operation, numbers, tensor},
    layout::{owned, storage},
    memory,
};
use crate::precision::wide;

/// Normalises `x [.., width]` over its last dimension, then multiplies by `weight [width]` and adds `bias [width]`.
/// Fused for `f32` on the Flex backend, plain operations elsewhere.
///
/// # Panics
/// If the shapes do not fit together.
pub fn norm<const D: usize>(
    kind: Kind,
    x: Tensor<D>,
    weight: Tensor<1>,
    bias: Option<Tensor<1>>,
    epsilon: f64,
) -> Tensor<D> {
    let width = x.dims()[D - 1];
    expect_dims("weight", weight.dims(), [width]);
    if let Some(bias) = &bias {
        expect_dims("bias", bias.dims(), [width]);
    }
    if !fused::takes(&x) {
        return norm_plain(kind, x, weight, bias, epsilon);
    }
    let operation = Operator {
        kind,
        epsilon,
        width,
    };
    let mut inputs = vec![x.into_dispatch(), weight.into_dispatch()];
    inputs.extend(bias.map(Tensor::into_dispatch));
    Tensor::from_dispatch(fused::run(operation, inputs).0)
}

/// [`norm()`] by plain tensor operations: the definition.
pub fn norm_plain<const D: usize>(
    kind: Kind,
    x: Tensor<D>,
    weight: Tensor<1>,
    bias: Option<Tensor<1>>,
    epsilon: f64,
) -> Tensor<D> {
    let dtype = x.dtype();
    // Squares overflow in f16 from 256 on, and an epsilon rounds to 0.
    let x = x.cast(wide(dtype));
    let x = match kind {
        Kind::Layer => x.clone() - x.mean_dim(D - 1),
        Kind::RootMeanSquare => x,
    };
    let square = x.clone().powi_scalar(2).mean_dim(D - 1);
    let normal = (x / (square + epsilon).sqrt()).cast(dtype);
    let scaled = normal * weight.unsqueeze::<D>();
    match bias {
        Some(bias) => scaled + bias.unsqueeze::<D>(),
        None => scaled,
    }
}

#[derive(Debug)]
struct Operator {
    kind: Kind,
    epsilon: f64,
    width: usize,
}

impl Operator {
    /// The kernel's arguments for `x, weight[, bias]`.
    fn norm<'a>(&self, inputs: &'a [FlexTensor]) -> Norm<'a> {
        Norm {
            kind: self.kind,
            rows: numbers(&inputs[0]).len() / self.width.max(1),
            width: self.width,
            weight: Some(numbers(&inputs[1])),
            bias: inputs.get(2).map(numbers),
            epsilon: self.epsilon,
        }
    }
}

impl Operation for Operator {
    fn forward(&self, inputs: Vec<FlexTensor>, tracked: bool) -> Result<Forward, KernelError> {
        let x = numbers(&inputs[0]);
        let norm = self.norm(&inputs);
        // SAFETY: the kernel writes all of its output.
        let output = unsafe { memory::written(x.len(), |y| norm::forward_fresh(&norm, x, y)) }?;
        let output = tensor(output, inputs[0].layout().shape().clone());
        Ok(Forward {
            output,
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
        let mut input = owned(gradient);
        let mut weight = memory::zeros(self.width);
        let mut bias = (saved.len() > 2).then(|| memory::zeros(self.width));
        let mut gradients = Gradients {
            input: storage(&mut input),
            weight: Some(&mut weight),
            bias: bias.as_deref_mut(),
        };
        norm::backward(&self.norm(&saved), numbers(&saved[0]), &mut gradients)?;
        let mut all = vec![Some(input), Some(tensor(weight, [self.width]))];
        all.extend(bias.map(|bias| Some(tensor(bias, [self.width]))));
        Ok(all)
    }
}
