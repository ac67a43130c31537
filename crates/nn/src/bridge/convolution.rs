//! Convolution of maps in one operation, with its gradients; see [`regard_kernels::convolution`].

use burn::{
    nn::{PaddingConfig2d, conv::Conv2d},
    tensor::Tensor,
};
use regard_kernels::{
    KernelError,
    convolution::{Convolution, Gradients},
};

use super::fused::{self, FlexTensor, Forward, Operation, dims, numbers, tensor};
use super::memory;

/// `layer` of `x [batch, inputs, height, width]`, which gives `[batch, outputs, height', width']`.
///
/// # Panics
/// If the channels do not fit, or a window is larger than the padded map.
pub fn convolve(layer: &Conv2d, x: Tensor<4>) -> Tensor<4> {
    let padding = match layer.padding {
        PaddingConfig2d::Valid => Some([0, 0]),
        PaddingConfig2d::Explicit(top, left, bottom, right) => {
            (top == bottom && left == right).then_some([top, left])
        }
        PaddingConfig2d::Same => None,
    };
    let Some(padding) = padding.filter(|_| fused::takes(&x)) else {
        return layer.forward(x);
    };
    let [outputs, inputs, ..] = layer.weight.dims();
    let [batch, _, height, width] = x.dims();
    let inputs = inputs * layer.groups;
    let operation = Convolution {
        kernel: layer.kernel_size,
        stride: layer.stride,
        padding,
        dilation: layer.dilation,
        groups: layer.groups,
        ..Convolution::new(batch, [inputs, outputs], [height, width])
    };
    let mut tensors = vec![x.into_dispatch(), layer.weight.val().into_dispatch()];
    tensors.extend(layer.bias.iter().map(|bias| bias.val().into_dispatch()));
    Tensor::from_dispatch(fused::run(operation, tensors).0)
}

impl Operation for Convolution {
    fn forward(&self, inputs: Vec<FlexTensor>, tracked: bool) -> Result<Forward, KernelError> {
        let [x, weight] = [&inputs[0], &inputs[1]];
        let [height, width] = self.output_size()?;
        let shape = [self.batch, self.outputs, height, width];
        let bias = inputs.get(2).map(numbers);
        let write = |y: &mut [_]| self.forward_fresh(numbers(x), numbers(weight), bias, y);
        // SAFETY: the kernel writes all of its output.
        let y = unsafe { memory::written(shape.iter().product(), write) }?;
        Ok(Forward {
            output: tensor(y, shape),
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
        let [x, weight] = [&saved[0], &saved[1]];
        let d_y = numbers(&gradient);
        let mut all = vec![None; saved.len()];
        if wanted[0] {
            let write = |d_x: &mut [_]| self.backward_input_fresh(numbers(weight), d_y, d_x);
            // SAFETY: the kernel writes all of its output.
            let d_x = unsafe { memory::written(numbers(x).len(), write) }?;
            all[0] = Some(tensor(d_x, dims::<4>(x)));
        }
        if wanted[1..].contains(&true) {
            let mut d_weight = memory::zeros(numbers(weight).len());
            let mut d_bias = (saved.len() > 2).then(|| memory::zeros(self.outputs));
            let mut gradients = Gradients {
                weight: &mut d_weight,
                bias: d_bias.as_deref_mut(),
            };
            self.backward_weight(numbers(x), d_y, &mut gradients)?;
            all[1] = Some(tensor(d_weight, dims::<4>(weight)));
            if let Some(d_bias) = d_bias {
                all[2] = Some(tensor(d_bias, [self.outputs]));
            }
        }
        Ok(all)
    }
}
