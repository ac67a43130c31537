//! The sum of all numbers, in one order on every device.
//!
//! On graphics cards Burn's `sum` adds the parts of a tensor atomically, in the order in which they happen to end, so that its last bits
//! differ from call to call.

use burn::tensor::Tensor;

use super::reshaped;
use crate::devices::is_card;

/// Numbers that a card adds up in one row.
const ROW: usize = 1024;

/// The mean of all numbers of `x`, of which there is one at least: `[1]`, as [`sum`].
pub fn mean<const D: usize>(x: Tensor<D>) -> Tensor<1> {
    let count = x.dims().iter().product::<usize>();
    sum(x) / count as f64
}

/// The sum of all numbers of `x`: `[1]`, with the same bits from call to call.
pub fn sum<const D: usize>(x: Tensor<D>) -> Tensor<1> {
    let count = x.dims().iter().product::<usize>();
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
