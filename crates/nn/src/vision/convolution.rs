//! Parts of convolution networks for the vision modules: a convolution with seeded initial values,
//! and pooling that takes maps of any size.

use burn::{
    nn::{PaddingConfig2d, conv::Conv2d},
    tensor::Tensor,
};

use crate::{
    bridge::{PoolKind, Windows, pool},
    initialize::Initializer,
};

/// A convolution with a square window of odd size `kernel` that keeps the size of the map (zeros around
/// it), without bias; its weights `[outputs, inputs, kernel, kernel]` come from
/// `U(-1/√fan, 1/√fan)`, `fan = inputs · kernel²`.
pub(super) fn convolution(
    inputs: usize,
    outputs: usize,
    kernel: usize,
    initializer: &mut Initializer,
) -> Conv2d {
    let bound = 1.0 / ((inputs * kernel * kernel) as f32).sqrt();
    let around = kernel / 2;
    Conv2d {
        weight: initializer.uniform([outputs, inputs, kernel, kernel], bound),
        bias: None,
        stride: [1, 1],
        kernel_size: [kernel, kernel],
        dilation: [1, 1],
        groups: 1,
        padding: PaddingConfig2d::Explicit(around, around, around, around),
    }
}

/// The largest value in windows of `kernel × kernel`, `stride` apart. Windows are cut at the border, and
/// no row or column is left out: the last window starts inside the map.
pub(super) fn max_pool(map: Tensor<4>, kernel: usize, stride: usize) -> Tensor<4> {
    let [_, _, height, width] = map.dims();
    let windows = Windows {
        kind: PoolKind::Max,
        kernel: [kernel.min(height), kernel.min(width)],
        stride: [stride, stride],
        padding: [0, 0],
        ceil: true,
    };
    pool(windows, map)
}
