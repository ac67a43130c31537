//! The feed-forward network of a Transformer in one operation, but for its last bias; see [`regard_kernels::feed_forward`].

use burn::tensor::Tensor;
use regard_kernels::{
    KernelError,
    activation::{Activated, Activation},
    feed_forward::{FeedForward, Gradients},
    pointwise::DropoutMask,
};

use super::{
    expect_dims,
    fused::{self, FlexTensor, Forward, Operation, numbers, tensor},
    memory,
    product::{MANY, Matrix, weight_gradient},
};
use crate::dropout::DropoutRng;

/// Whether [`feed_forward`] accepts `x`, and is worth it: it packs the weights for each call.
pub(crate) fn feeds_forward<const D: usize>(x: &Tensor<D>) -> bool {
    let rows = x.dims()[..D - 1].iter().product::<usize>();
    rows >= MANY && fused::takes(x)
}

/// `dropout(φ(x W₁ + b₁)) W₂` of `x [.., inputs]`, with `W₁ [inputs, width]`, or with a gate `[inputs, 2 width]`, `b₁` as long as a row of
/// `W₁`, and `W₂ [width, outputs]`. Dropout is drawn from `noise` with `probability`. (Shazeer 2020)
///
/// # Panics
/// If the shapes do not fit together, or `probability` is not in `[0, 1)`.
pub(crate) fn feed_forward<const D: usize>(
    activation: Activation,
    gated: bool,
    x: Tensor<D>,
    [first, second]: [Tensor<2>; 2],
    bias: Option<Tensor<1>>,
    probability: f64,
    noise: &mut DropoutRng,
) -> Tensor<D> {
    let mut shape = x.dims();
    let [[inputs, inner], [width, outputs]] = [first.dims(), second.dims()];
    let expected = if gated { 2 * width } else { width };
    assert!(
        shape[D - 1] == inputs,
        "`x` has shape {shape:?}, expected {inputs} as its last size, the rows of the weight"
    );
    expect_dims("first", [inputs, inner], [inputs, expected]);
    if let Some(bias) = &bias {
        expect_dims("bias", bias.dims(), [inner]);
    }
    shape[D - 1] = width;
    let dropout = noise.draw(probability, &shape);
    shape[D - 1] = outputs;
    let operation = Operator {
        activation,
        gated,
        dropout,
        sizes: [inputs, width, outputs],
        shape: shape.into(),
    };
    let [first, second] = [first, second].map(Tensor::into_dispatch);
    let mut all = vec![x.into_dispatch(), first, second];
    all.extend(bias.map(Tensor::into_dispatch));
    Tensor::from_dispatch(fused::run(operation, all).0)
}

#[derive(Debug)]
struct Operator {
    activation: Activation,
    gated: bool,
    dropout: Option<DropoutMask>,
    /// `[inputs, width, outputs]`
    sizes: [usize; 3],
    /// Of the output.
    shape: Vec<usize>,
}

impl Operator {
    /// The kernel's arguments for `x, W₁, W₂[, b₁]`.
    fn spec<'a>(&self, inputs: &'a [FlexTensor]) -> FeedForward<'a> {
        let [from, width, outputs] = self.sizes;
        let (_, rows) = self.shape.split_last().expect("the output has a last size");
        let activated = Activated {
            activation: self.activation,
            gated: self.gated,
            rows: rows.iter().product(),
            width,
            bias: inputs.get(3).map(numbers),
            dropout: self.dropout,
        };
        FeedForward {
            activated,
            inputs: from,
            outputs,
            first: numbers(&inputs[1]),
            second: numbers(&inputs[2]),
        }
    }

    /// Numbers in a row of what the first product gives.
    fn inner(&self) -> usize {
        self.sizes[1] * if self.gated { 2 } else { 1 }
    }
}

impl Operation for Operator {
    fn forward(&self, inputs: Vec<FlexTensor>, tracked: bool) -> Result<Forward, KernelError> {
        let (spec, inner) = (self.spec(&inputs), self.inner());
        let rows = spec.activated.rows;
        let lengths = [Some(rows * spec.outputs), tracked.then_some(rows * inner)];
        let write = |[y, u]: [Option<&mut [_]>; 2]| {
            spec.forward_fresh(numbers(&inputs[0]), u, y.unwrap_or_default())
        };
        // SAFETY: the kernel writes all of its outputs.
        let [y, u] = unsafe { memory::all_written(lengths, write) }?;
        let mut saved = vec![];
        if let Some(u) = u {
            saved = inputs;
            saved.push(tensor(u, [rows, inner]));
        }
        Ok(Forward {
            output: tensor(y.unwrap_or_default(), self.shape.clone()),
            beside: None,
            saved,
        })
    }

    fn backward(
        &self,
        mut saved: Vec<FlexTensor>,
        gradient: FlexTensor,
        wanted: &[bool],
    ) -> Result<Vec<Option<FlexTensor>>, KernelError> {
        let kept = saved.pop().expect("the numbers before the activation");
        let (spec, inner) = (self.spec(&saved), self.inner());
        let (rows, [inputs, width, outputs]) = (spec.activated.rows, self.sizes);
        let mut d_bias = (wanted.get(3) == Some(&true)).then(|| memory::zeros(inner));
        let widths = [inputs, inner, width].into_iter().zip(wanted);
        let mut lengths = widths.map(|(width, wanted)| wanted.then_some(rows * width));
        let lengths = std::array::from_fn(|_| lengths.next().flatten());
        let write = |[d_x, d_u, a]: [Option<&mut [_]>; 3]| {
            let d_bias = d_bias.as_deref_mut();
            let gradients = Gradients {
                d_x,
                d_u,
                a,
                d_bias,
            };
            spec.backward(numbers(&kept), numbers(&gradient), gradients)
        };
        // SAFETY: the kernel writes all of its outputs.
        let [d_x, d_u, a] = unsafe { memory::all_written(lengths, write) }?;
        drop(kept);
        let of_weight = |x: &[f32], from, d_y: &[f32], to| {
            let (x, d_y) = (
                Matrix::new(x, rows, from, from),
                Matrix::new(d_y, rows, to, to),
            );
            let gradient = weight_gradient(x, d_y)?;
            Ok::<_, KernelError>(tensor(gradient, [from, to]))
        };
        let x = numbers(&saved[0]);
        let d_first = d_u.map(|d_u| of_weight(x, inputs, &d_u, inner));
        let d_second = a.map(|a| of_weight(&a, width, numbers(&gradient), outputs));
        let d_x = d_x.map(|d_x| tensor(d_x, saved[0].layout().shape().clone()));
        let mut all = vec![d_x, d_first.transpose()?, d_second.transpose()?];
        all.push(d_bias.map(|d_bias| tensor(d_bias, [inner])));
        Ok(all)
    }
}
