//! Dropout, bias, ReLU and residual sums in one operation each; see [`regard_kernels::pointwise`].
//!
//! The mask is never kept: the backward pass hashes it again from the seed.

use burn::tensor::{Tensor, activation::relu};
use regard_kernels::{
    KernelError,
    pointwise::{self, DropoutMask, Pointwise},
};

use super::{
    expect_dims,
    fused::{self, FlexTensor, Forward, Operation, numbers, tensor},
    layout::{owned, storage},
    memory,
};
use crate::dropout::DropoutRng;

/// `m ∘ x` with the factors `m` of `mask`: used by [`crate::dropout::dropout`], which checks its arguments.
pub(crate) fn dropout<const D: usize>(x: Tensor<D>, mask: DropoutMask) -> Tensor<D> {
    let operation = Operator {
        step: Step::Dropout,
        width: x.dims()[D - 1],
        dropout: Some(mask),
    };
    Tensor::from_dispatch(fused::run(operation, vec![x.into_dispatch()]).0)
}

/// `m ∘ max(x + bias, 0)`: the step between the two products of a feed-forward layer. `x [.., width]`, `bias [width]`;
/// `m` is drawn from `noise` with `probability`.
///
/// # Panics
/// If the shapes do not fit together, or `probability` is not in `[0, 1)`.
pub fn relu_dropout<const D: usize>(
    x: Tensor<D>,
    bias: Option<Tensor<1>>,
    probability: f64,
    noise: &mut DropoutRng,
) -> Tensor<D> {
    run(Step::Relu, x, bias, None, probability, noise)
}

/// `residual + m ∘ (x + bias)`: the end of a block of a Transformer. `residual` and `x` are `[.., width]`,
/// `bias [width]`; `m` is drawn from `noise` with `probability`.
///
/// # Panics
/// If the shapes do not fit together, or `probability` is not in `[0, 1)`.
pub fn add_dropout<const D: usize>(
    residual: Tensor<D>,
    x: Tensor<D>,
    bias: Option<Tensor<1>>,
    probability: f64,
    noise: &mut DropoutRng,
) -> Tensor<D> {
    expect_dims("residual", residual.dims(), x.dims());
    run(Step::Add, x, bias, Some(residual), probability, noise)
}

fn run<const D: usize>(
    step: Step,
    x: Tensor<D>,
    bias: Option<Tensor<1>>,
    residual: Option<Tensor<D>>,
    probability: f64,
    noise: &mut DropoutRng,
) -> Tensor<D> {
    let width = x.dims()[D - 1];
    if let Some(bias) = &bias {
        expect_dims("bias", bias.dims(), [width]);
    }
    if !fused::takes(&x) {
        let x = match bias {
            Some(bias) => x + bias.unsqueeze::<D>(),
            None => x,
        };
        let x = match step {
            Step::Relu => relu(x),
            _ => x,
        };
        let x = crate::dropout::dropout(x, probability, noise);
        return match residual {
            Some(residual) => residual + x,
            None => x,
        };
    }
    let operation = Operator {
        step,
        width,
        dropout: noise.draw(probability, &x.dims()),
    };
    let mut inputs = vec![x.into_dispatch()];
    inputs.extend(residual.map(Tensor::into_dispatch));
    inputs.extend(bias.map(Tensor::into_dispatch));
    Tensor::from_dispatch(fused::run(operation, inputs).0)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// `x`
    Dropout,
    /// `x[, bias]`
    Relu,
    /// `x, residual[, bias]`
    Add,
}

#[derive(Debug)]
struct Operator {
    step: Step,
    width: usize,
    dropout: Option<DropoutMask>,
}

impl Operator {
    fn spec<'a>(&self, count: usize, bias: Option<&'a FlexTensor>) -> Pointwise<'a> {
        Pointwise {
            rows: count / self.width.max(1),
            width: self.width,
            bias: bias.map(numbers),
            dropout: self.dropout,
        }
    }
}

impl Operation for Operator {
    fn forward(&self, inputs: Vec<FlexTensor>, tracked: bool) -> Result<Forward, KernelError> {
        let mut inputs = inputs.into_iter();
        let mut next = || inputs.next();
        let (Some(x), second) = (next(), next()) else {
            unreachable!("there is an x")
        };
        let (residual, bias) = match self.step {
            Step::Add => (second, next()),
            _ => (None, second),
        };
        let spec = self.spec(numbers(&x).len(), bias.as_ref());
        let mut output = match (self.step, residual) {
            // In the place of the one that nobody else holds; the residual is often kept for a norm's gradient.
            (Step::Add, Some(mut residual)) => match residual.try_storage_mut::<f32>() {
                Some(sum) => {
                    pointwise::add_to(&spec, numbers(&x), sum)?;
                    residual
                }
                None => {
                    let mut sum = owned(x);
                    pointwise::add_residual(&spec, storage(&mut sum), numbers(&residual))?;
                    sum
                }
            },
            (Step::Relu, _) => {
                let mut x = owned(x);
                pointwise::relu(&spec, storage(&mut x))?;
                x
            }
            _ => {
                let mut x = owned(x);
                pointwise::dropout(&spec, storage(&mut x))?;
                x
            }
        };
        let mut saved = vec![];
        if tracked {
            // Saved: which inputs there are, and for ReLU its output, which shows what it let through.
            saved.extend(bias);
            if self.step == Step::Relu {
                saved.push(output.clone());
            }
        }
        // The caller expects the shape of the input.
        output = output.to_contiguous();
        Ok(Forward {
            output,
            beside: None,
            saved,
        })
    }

    fn backward(
        &self,
        mut saved: Vec<FlexTensor>,
        gradient: FlexTensor,
        _wanted: &[bool],
    ) -> Result<Vec<Option<FlexTensor>>, KernelError> {
        let of_residual = (self.step == Step::Add).then(|| gradient.clone());
        let output = match self.step {
            Step::Relu => saved.pop(),
            _ => None,
        };
        let bias = saved.pop();
        let spec = self.spec(numbers(&gradient).len(), bias.as_ref());
        let mut d_bias = bias.as_ref().map(|_| memory::zeros(self.width));
        let d_x = match (output, self.dropout) {
            (None, None) => {
                if let Some(d_bias) = &mut d_bias {
                    pointwise::column_sums(&spec, numbers(&gradient), d_bias)?;
                }
                gradient
            }
            (output, _) => {
                let mut d_x = owned(gradient);
                let (to, d_bias) = (storage(&mut d_x), d_bias.as_deref_mut());
                match &output {
                    Some(output) => pointwise::relu_backward(&spec, numbers(output), to, d_bias)?,
                    None => pointwise::backward(&spec, to, d_bias)?,
                }
                d_x
            }
        };
        let mut all = vec![Some(d_x)];
        all.extend(of_residual.map(Some));
        all.extend(d_bias.map(|d_bias| Some(tensor(d_bias, [self.width]))));
        Ok(all)
    }
}
