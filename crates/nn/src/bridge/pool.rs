//! Pooling of maps in one operation; see [`regard_kernels::pool`].

use burn::tensor::{
    Tensor,
    module::{avg_pool2d, max_pool2d},
    ops::{AvgPoolOptions, MaxPoolOptions},
};
use regard_kernels::{
    KernelError,
    pool::{Kind, Pool, Windows},
};

use super::fused::{self, FlexTensor, Forward, Operation, dims, numbers, tensor};
use super::memory;

/// `x [batch, channels, height, width]`, window by window: `[batch, channels, height', width']`.
///
/// # Panics
/// If a window is larger than the padded map, or a size is 0.
pub fn pool(windows: Windows, x: Tensor<4>) -> Tensor<4> {
    if fused::takes(&x) {
        let [batch, channels, height, width] = x.dims();
        let pool = Pool {
            windows,
            maps: batch * channels,
            size: [height, width],
        };
        let operation = fused::run(pool, vec![x.into_dispatch()]);
        return Tensor::from_dispatch(operation.0);
    }
    match windows.kind {
        Kind::Max => {
            let options = MaxPoolOptions::new(windows.kernel)
                .with_stride(windows.stride)
                .with_padding(windows.padding)
                .with_ceil_mode(windows.ceil);
            max_pool2d(x, options)
        }
        Kind::Mean => {
            let options = AvgPoolOptions::new(windows.kernel)
                .with_stride(windows.stride)
                .with_padding(windows.padding)
                .with_count_include_pad(false)
                .with_ceil_mode(windows.ceil);
            avg_pool2d(x, options)
        }
    }
}

impl Operation for Pool {
    fn forward(&self, inputs: Vec<FlexTensor>, tracked: bool) -> Result<Forward, KernelError> {
        let shape = dims::<4>(&inputs[0]);
        let [height, width] = self.output_size()?;
        let mut y = memory::zeros(self.maps * height * width);
        Pool::forward(self, numbers(&inputs[0]), &mut y)?;
        Ok(Forward {
            output: tensor(y, [shape[0], shape[1], height, width]),
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
        let shape = dims::<4>(&saved[0]);
        let x = numbers(&saved[0]);
        let mut d_x = memory::zeros(x.len());
        Pool::backward(self, x, numbers(&gradient), &mut d_x)?;
        Ok(vec![Some(tensor(d_x, shape))])
    }
}
