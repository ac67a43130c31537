//! Convolution, batch norm and pooling: the kernels against Burn's own operations, in f32 and in f64.

use burn::{
    module::{Flag, Module, ModuleMapper, Param},
    nn::{BatchNorm, BatchNormConfig, PaddingConfig2d, conv::Conv2d},
    tensor::{DType, Tensor, TensorData},
};
use regard_nn::bridge::{PoolKind, Windows, batch_norm, convolve, pool, without_kernels};

use crate::{
    both_paths::distance,
    support::{device, values},
};

/// Outputs and gradients, and how many of the first are outputs.
type Run = (Vec<Vec<f64>>, usize);

fn leaf<const D: usize>(name: &str, shape: [usize; D], dtype: DType) -> Tensor<D> {
    let data = TensorData::new(values(name, shape.iter().product(), 1.0), shape);
    Tensor::from_data(data, (&device(), dtype)).require_grad()
}

fn numbers<const D: usize>(x: Tensor<D>) -> Vec<f64> {
    x.into_data().iter::<f64>().collect()
}

/// `max|kernel - f64| <= k max|plain - f64| + rounding`, 2 for outputs and 3 for gradients.
fn compare(name: &str, run: impl Fn(DType) -> Run) {
    let (kernel, outputs) = run(DType::F32);
    let (plain, _) = without_kernels(|| run(DType::F32));
    let (exact, _) = without_kernels(|| run(DType::F64));
    assert_eq!([kernel.len(), plain.len()], [exact.len(); 2], "{name}");
    for (i, exact) in exact.iter().enumerate() {
        let size = exact.iter().fold(0.0f64, |most, x| most.max(x.abs()));
        let k = if i < outputs { 2.0 } else { 3.0 };
        let rounding = 2.0 * f64::from(f32::EPSILON) * (size + 1.0);
        let bound = k * distance(&plain[i], exact) + rounding;
        let error = distance(&kernel[i], exact);
        assert!(error <= bound, "{name}, {i}: {error:e} above {bound:e}");
    }
}

fn upstream<const D: usize>(y: &Tensor<D>) -> Tensor<D> {
    let data = TensorData::new(values("upstream", y.dims().iter().product(), 1.0), y.dims());
    Tensor::from_data(data, (&device(), y.dtype()))
}

#[test]
fn convolution() {
    for (kernel, stride, padding, dilation, groups, bias) in [
        ([3, 3], [1, 1], [1, 1], [1, 1], 1, false),
        ([1, 1], [2, 2], [0, 0], [1, 1], 1, true),
        ([7, 7], [2, 2], [3, 3], [1, 1], 1, false),
        ([3, 2], [1, 3], [2, 1], [2, 1], 2, true),
        ([3, 3], [1, 1], [1, 1], [1, 1], 4, true),
    ] {
        let name = format!("{kernel:?} {stride:?} {groups}");
        compare(&name, |dtype| {
            let layer = Conv2d {
                weight: Param::from_tensor(leaf(
                    "weight",
                    [8, 4 / groups, kernel[0], kernel[1]],
                    dtype,
                )),
                bias: bias.then(|| Param::from_tensor(leaf("bias", [8], dtype))),
                stride,
                kernel_size: kernel,
                dilation,
                groups,
                padding: PaddingConfig2d::Explicit(padding[0], padding[1], padding[0], padding[1]),
            };
            let x = leaf("x", [3, 4, 11, 9], dtype);
            let y = convolve(&layer, x.clone());
            let all = (y.clone() * upstream(&y)).sum().backward();
            let mut found = vec![numbers(y), numbers(x.grad(&all).unwrap())];
            found.push(numbers(layer.weight.grad(&all).unwrap()));
            found.extend(layer.bias.map(|bias| numbers(bias.grad(&all).unwrap())));
            (found, 1)
        });
    }
}

#[test]
fn padding_that_differs_from_side_to_side_takes_burns_operation() {
    let layer = Conv2d {
        weight: Param::from_tensor(leaf("weight", [2, 1, 2, 2], DType::F32)),
        bias: None,
        stride: [1, 1],
        kernel_size: [2, 2],
        dilation: [1, 1],
        groups: 1,
        padding: PaddingConfig2d::Same,
    };
    let x = leaf("x", [1, 1, 4, 5], DType::F32);
    let same = convolve(&layer, x.clone());
    assert_eq!(numbers(same), numbers(layer.forward(x)));
}

/// Every parameter from its name, in one precision; flags of training as given.
struct Fill(DType, bool, Vec<String>);

impl ModuleMapper for Fill {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.2.push(name.to_owned());
    }
    fn exit_module(&mut self, _: &str, _: &str) {
        self.2.pop();
    }
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let name = self.2.last().cloned().unwrap_or_default();
        let (id, tensor, mapper) = param.consume();
        let filled = leaf::<D>(&name, tensor.dims(), self.0);
        let running = name.starts_with("running");
        let filled = match running {
            true => (filled.detach().abs() + 0.5).set_require_grad(false),
            false => filled,
        };
        Param::from_mapped_value(id, filled, mapper)
    }
    fn map_flag(&mut self, flag: Param<Flag>) -> Param<Flag> {
        flag.with_value(self.1)
    }
}

#[test]
fn batch_norm_and_its_running_moments() {
    for choice in 0..8 {
        let (relu, with_residual, train) = (choice & 1 > 0, choice & 2 > 0, choice & 4 > 0);
        let name = format!("relu {relu}, residual {with_residual}, train {train}");
        compare(&name, |dtype| {
            let layer: BatchNorm = BatchNormConfig::new(5).init(&device());
            let layer = layer.map(&mut Fill(dtype, train, vec![]));
            let x = leaf("x", [3, 5, 4, 6], dtype);
            let residual = leaf("residual", [3, 5, 4, 6], dtype);
            let given = with_residual.then(|| residual.clone());
            let y = batch_norm(&layer, x.clone(), given, relu);
            let all = (y.clone() * upstream(&y)).sum().backward();
            let running =
                [&layer.running_mean, &layer.running_var].map(|state| numbers(state.value_sync()));
            let mut found = vec![numbers(y)];
            found.extend(running);
            found.push(numbers(x.grad(&all).unwrap()));
            found.push(numbers(layer.gamma.grad(&all).unwrap()));
            found.push(numbers(layer.beta.grad(&all).unwrap()));
            if with_residual {
                found.push(numbers(residual.grad(&all).unwrap()));
            }
            (found, 3)
        });
    }
}

/// An empty batch has no moments, so that the running ones stay where they are.
#[test]
fn an_empty_batch_moves_no_moments() {
    for shape in [[0, 5, 4, 6], [3, 5, 0, 6]] {
        let run = || {
            let layer: BatchNorm = BatchNormConfig::new(5).init(&device());
            let x = leaf("x", shape, DType::F32);
            let y = batch_norm(&layer, x.clone(), None, true);
            assert_eq!(y.dims(), shape);
            let all = y.sum().backward();
            assert_eq!(x.grad(&all).unwrap().dims(), shape);
            assert_eq!(numbers(layer.gamma.grad(&all).unwrap()), [0.0; 5]);
            assert_eq!(numbers(layer.running_mean.value_sync()), [0.0; 5]);
            assert_eq!(numbers(layer.running_var.value_sync()), [1.0; 5]);
        };
        run();
        without_kernels(run);
    }
}

#[test]
fn pooling() {
    for (kind, kernel, stride, padding, ceil) in [
        (PoolKind::Max, [3, 3], [2, 2], [1, 1], false),
        (PoolKind::Max, [3, 3], [2, 2], [0, 0], true),
        (PoolKind::Mean, [2, 3], [1, 2], [0, 1], false),
        (PoolKind::Mean, [4, 4], [4, 4], [0, 0], false),
    ] {
        let windows = Windows {
            kind,
            kernel,
            stride,
            padding,
            ceil,
        };
        compare(&format!("{windows:?}"), |dtype| {
            let x = leaf("x", [2, 3, 9, 8], dtype);
            let y = pool(windows, x.clone());
            let all = (y.clone() * upstream(&y)).sum().backward();
            (vec![numbers(y), numbers(x.grad(&all).unwrap())], 1)
        });
    }
}
