//! Batch norm with residual sum and ReLU in one operation; see [`regard_kernels::batch_norm`].

use burn::{
    nn::BatchNorm,
    tensor::{Tensor, activation::relu},
};
use regard_kernels::{
    KernelError,
    batch_norm::{self, Gradients, Moments, Saved},
};

use super::{
    expect_dims,
    fused::{self, FlexTensor, Forward, Operation, dims, numbers, tensor},
    layout::{owned, storage},
    memory, zeros_of,
};

/// `a(norm(x) + residual)` for `x` and `residual [batch, channels, height, width]`, where `a` is a ReLU or nothing. On a device that
/// records gradients the moments are those of the batch, and `layer`'s running ones are moved towards them; elsewhere, in a
/// frozen layer, and for an empty batch, which has none, they are the running ones.
///
/// # Panics
/// If the shapes do not fit together.
pub fn batch_norm(
    layer: &BatchNorm,
    x: Tensor<4>,
    residual: Option<Tensor<4>>,
    with_relu: bool,
) -> Tensor<4> {
    let shape = x.dims();
    if let Some(residual) = &residual {
        expect_dims("residual", residual.dims(), shape);
    }
    expect_dims("weight", layer.gamma.dims(), [shape[1]]);
    let is_empty = shape.contains(&0);
    if !fused::takes(&x) {
        let normal = match is_empty {
            true => zeros_of(zeros_of(x, &layer.gamma.val()), &layer.beta.val()),
            false => layer.forward(x),
        };
        settle(layer);
        let sum = match residual {
            Some(residual) => normal + residual,
            None => normal,
        };
        return if with_relu { relu(sum) } else { sum };
    }
    let device = x.device();
    let train = device.is_autodiff() && layer.training.is_enabled() && !is_empty;
    let mut inputs = vec![
        x.into_dispatch(),
        layer.gamma.val().into_dispatch(),
        layer.beta.val().into_dispatch(),
    ];
    let with_residual = residual.is_some();
    inputs.extend(residual.map(Tensor::into_dispatch));
    if !train {
        let running = [&layer.running_mean, &layer.running_var];
        inputs.extend(running.map(|state| state.value().to_device(&device).into_dispatch()));
    }
    let operation = Operator {
        epsilon: layer.epsilon,
        relu: with_relu,
        residual: with_residual,
        train,
    };
    let (output, moments) = fused::run(operation, inputs);
    if let Some(moments) = moments {
        let moments: Tensor<2> = Tensor::from_dispatch(moments).detach(); // [mean and variance, channels]
        for (row, state) in [&layer.running_mean, &layer.running_var].iter().enumerate() {
            let found: Tensor<1> = moments.clone().narrow(0, row, 1).squeeze_dim(0);
            let old = state.value_sync().to_device(&device);
            let kept = old.mul_scalar(1.0 - layer.momentum);
            state.update((kept + found.mul_scalar(layer.momentum)).detach());
        }
        settle(layer);
    }
    Tensor::from_dispatch(output)
}

/// Burn keeps an update of running moments aside, by thread, until they are asked for; whoever saves a module would miss it.
fn settle(layer: &BatchNorm) {
    layer.running_mean.value_sync();
    layer.running_var.value_sync();
}

#[derive(Debug)]
struct Operator {
    epsilon: f64,
    relu: bool,
    /// Whether the fourth input is a residual.
    residual: bool,
    /// Whether the moments are those of the batch; if not, they are the last two inputs.
    train: bool,
}

impl Operator {
    /// The kernel's arguments for `x, weight, bias, ..`.
    fn norm<'a>(&self, inputs: &'a [FlexTensor]) -> batch_norm::BatchNorm<'a> {
        let [batch, channels, height, width] = dims(&inputs[0]);
        batch_norm::BatchNorm {
            batch,
            channels,
            positions: height * width,
            weight: numbers(&inputs[1]),
            bias: numbers(&inputs[2]),
            epsilon: self.epsilon,
            relu: self.relu,
        }
    }
}

impl Operation for Operator {
    fn forward(&self, mut inputs: Vec<FlexTensor>, tracked: bool) -> Result<Forward, KernelError> {
        let shape = dims::<4>(&inputs[0]);
        let residual = self.residual.then(|| numbers(&inputs[3]));
        let (norm, x) = (self.norm(&inputs), numbers(&inputs[0]));
        let mut moments = Moments::default();
        if !self.train {
            let [mean, variance] = [&inputs[inputs.len() - 2], &inputs[inputs.len() - 1]];
            moments.mean = numbers(mean).to_vec();
            moments.variance = numbers(variance).to_vec();
        }
        let write = |y: &mut [_]| {
            match self.train {
                true => moments = norm.train_fresh(x, residual, y)?,
                false => norm.infer_fresh(&moments, x, residual, y)?,
            }
            Ok::<_, KernelError>(())
        };
        // SAFETY: the kernel writes all of its output.
        let y = unsafe { memory::written(shape.iter().product(), write) }?;
        let both = [moments.mean, moments.variance].concat();
        let moments = tensor(both, [2, shape[1]]);
        let output = tensor(y, shape);
        if tracked {
            inputs.truncate(3);
            inputs.push(moments.clone());
            if self.relu && self.residual {
                inputs.push(output.clone());
            }
        }
        Ok(Forward {
            output,
            beside: self.train.then_some(moments),
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
        let shape @ [_, channels, ..] = dims::<4>(&saved[0]);
        let length = shape.iter().product();
        let (mean, variance) = numbers(&saved[3]).split_at(channels);
        let moments = Moments {
            mean: mean.to_vec(),
            variance: variance.to_vec(),
        };
        let from = Saved {
            x: numbers(&saved[0]),
            y: saved.get(4).map_or(&[], numbers),
            moments: &moments,
            of_batch: self.train,
        };
        let mut residual = self.residual.then(|| memory::zeros(length));
        let (mut weight, mut bias) = (memory::zeros(channels), memory::zeros(channels));
        let mut gradients = Gradients {
            input: storage(&mut input),
            residual: residual.as_deref_mut(),
            weight: &mut weight,
            bias: &mut bias,
        };
        self.norm(&saved).backward(&from, &mut gradients)?;
        let mut all = vec![
            Some(input),
            Some(tensor(weight, [channels])),
            Some(tensor(bias, [channels])),
        ];
        all.extend(residual.map(|residual| Some(tensor(residual, shape))));
        Ok(all)
    }
}
