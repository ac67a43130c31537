//! The sum of all numbers, in one order on every device.
//!
//! On graphics cards Burn's `sum` adds the parts of a tensor atomically, in the order in which they happen to end, so that its last bits
//! differ from call to call. On the CPU its gradient is as large a tensor, filled on one thread.

use burn::tensor::Tensor;
use regard_kernels::{KernelError, sum};

use super::{
    fused::{self, FlexTensor, Forward, Operation, numbers, tensor},
    memory, reshaped,
};
use crate::devices::is_card;

/// Numbers that a card adds up in one row.
const ROW: usize = 1024;

/// The mean of all numbers of `x`, of which there is one at least: `[1]`, as [`sum()`].
pub fn mean<const D: usize>(x: Tensor<D>) -> Tensor<1> {
    let count = x.dims().iter().product::<usize>();
    sum(x) / count as f64
}

/// The sum of all numbers of `x`: `[1]`, with the same bits from call to call.
pub fn sum<const D: usize>(x: Tensor<D>) -> Tensor<1> {
    let count = x.dims().iter().product::<usize>();
    if fused::takes(&x) {
        let shape = x.dims().to_vec();
        return Tensor::from_dispatch(fused::run(Sum { shape }, vec![x.into_dispatch()]).0);
    }
    if !is_card(&x.device()) || count == 0 {
        return x.sum();
    }
    let x: Tensor<1> = reshaped(x, [count]);
    if count <= ROW {
        return x.sum_dim(0);
    }
    let rows = count.div_ceil(ROW);
    let rest = Tensor::zeros([rows * ROW - count], (&x.device(), x.dtype()));
    let x = Tensor::cat(vec![x, rest], 0).reshape([rows, ROW]);
    x.sum_dim(1).reshape([rows]).sum_dim(0)
}

#[derive(Debug)]
struct Sum {
    /// Of the input.
    shape: Vec<usize>,
}

impl Operation for Sum {
    fn forward(&self, inputs: Vec<FlexTensor>, _tracked: bool) -> Result<Forward, KernelError> {
        let sum = sum::sum(numbers(&inputs[0])) as f32;
        Ok(Forward::only(tensor(vec![sum], [1])))
    }

    fn backward(
        &self,
        _saved: Vec<FlexTensor>,
        gradient: FlexTensor,
        _wanted: &[bool],
    ) -> Result<Vec<Option<FlexTensor>>, KernelError> {
        let of_all = memory::full(self.shape.iter().product(), numbers(&gradient)[0]);
        Ok(vec![Some(tensor(of_all, self.shape.clone()))])
    }
}
