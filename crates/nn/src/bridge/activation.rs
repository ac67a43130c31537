//! The activation of a feed-forward network, the bias before it, its gate and dropout in one operation; see [`regard_kernels::activation`].

use std::f64::consts::FRAC_1_SQRT_2;

use burn::tensor::{
    Tensor,
    activation::{gelu, gelu_approximate, relu},
};
use regard_kernels::{
    KernelError,
    activation::{Activated, Activation},
    pointwise::DropoutMask,
};

use super::{
    expect_dims,
    fused::{self, FlexTensor, Forward, Operation, numbers, tensor},
    layout::{owned, storage},
    memory, sigmoid,
};
use crate::{devices::is_card, dropout::DropoutRng};

/// `m ∘ φ(x + bias)` of `x [.., width]`, or `m ∘ φ(g) ∘ v` of the rows `[g | v]` of `x + bias [.., 2 width]`; `m [.., width]` is drawn
/// from `noise` with `probability`, and `bias` is as long as a row of `x`.
///
/// # Panics
/// If the shapes do not fit together, there is a gate and a row has an odd size, or `probability` is not in `[0, 1)`.
pub fn activate<const D: usize>(
    activation: Activation,
    gated: bool,
    x: Tensor<D>,
    bias: Option<Tensor<1>>,
    probability: f64,
    noise: &mut DropoutRng,
) -> Tensor<D> {
    let mut shape = x.dims();
    let inputs = shape[D - 1];
    assert!(
        !gated || inputs.is_multiple_of(2),
        "`x` has rows of {inputs}, expected an even size: a gate and as many values"
    );
    if let Some(bias) = &bias {
        expect_dims("bias", bias.dims(), [inputs]);
    }
    shape[D - 1] = if gated { inputs / 2 } else { inputs };
    if !fused::takes(&x) {
        let x = match bias {
            Some(bias) => x + bias.unsqueeze::<D>(),
            None => x,
        };
        let plain = activate_plain(activation, gated, x);
        return crate::dropout::dropout(plain, probability, noise);
    }
    let operation = Operator {
        activation,
        gated,
        shape: shape.into(),
        dropout: noise.draw(probability, &shape),
    };
    let mut inputs = vec![x.into_dispatch()];
    inputs.extend(bias.map(Tensor::into_dispatch));
    Tensor::from_dispatch(fused::run(operation, inputs).0)
}

/// [`activate`] without bias and dropout, by plain tensor operations: the definition.
pub fn activate_plain<const D: usize>(
    activation: Activation,
    gated: bool,
    x: Tensor<D>,
) -> Tensor<D> {
    let apply = |x| match activation {
        Activation::Relu => relu(x),
        // Burn's own gradient of it is that of the approximation by tanh on all devices but the CPU.
        Activation::Gelu if is_card(&x.device()) => {
            x.clone() * ((x * FRAC_1_SQRT_2).erf() + 1.0) * 0.5
        }
        Activation::Gelu => gelu(x),
        Activation::GeluTanh => gelu_approximate(x),
        Activation::Silu => x.clone() * sigmoid(x),
        Activation::QuickGelu => x.clone() * sigmoid(x * 1.702),
    };
    match gated {
        false => apply(x),
        true => {
            let width = x.dims()[D - 1] / 2;
            let gate = x.clone().narrow(D - 1, 0, width);
            apply(gate) * x.narrow(D - 1, width, width)
        }
    }
}

#[derive(Debug)]
struct Operator {
    activation: Activation,
    gated: bool,
    /// Of the output.
    shape: Vec<usize>,
    dropout: Option<DropoutMask>,
}

impl Operator {
    /// The kernel's arguments for `x[, bias]`.
    fn spec<'a>(&self, inputs: &'a [FlexTensor]) -> Activated<'a> {
        let (width, rows) = match self.shape.split_last() {
            Some((&width, rows)) => (width, rows.iter().product()),
            None => (1, 1),
        };
        Activated {
            activation: self.activation,
            gated: self.gated,
            rows,
            width,
            bias: inputs.get(1).map(numbers),
            dropout: self.dropout,
        }
    }
}

impl Operation for Operator {
    fn forward(&self, inputs: Vec<FlexTensor>, tracked: bool) -> Result<Forward, KernelError> {
        let spec = self.spec(&inputs);
        let x = numbers(&inputs[0]);
        // SAFETY: the kernel writes all of its output.
        let y = unsafe { memory::written(spec.rows * spec.width, |y| spec.forward_fresh(x, y)) }?;
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
        _wanted: &[bool],
    ) -> Result<Vec<Option<FlexTensor>>, KernelError> {
        let (spec, x) = (self.spec(&saved), numbers(&saved[0]));
        let mut d_bias = spec.bias.map(|bias| memory::zeros(bias.len()));
        let d_x = match self.gated {
            true => {
                let mut d_x = memory::zeros(x.len());
                let d_y = Some(numbers(&gradient));
                spec.backward(x, d_y, &mut d_x, d_bias.as_deref_mut())?;
                tensor(d_x, saved[0].layout().shape().clone())
            }
            false => {
                let mut d_x = owned(gradient);
                spec.backward(x, None, storage(&mut d_x), d_bias.as_deref_mut())?;
                d_x
            }
        };
        let d_bias = d_bias.map(|d_bias| Some(tensor(d_bias, saved[1].layout().shape().clone())));
        Ok([Some(d_x)].into_iter().chain(d_bias).collect())
    }
}
