//! Pooling of maps in one operation; see [`regard_kernels::pool`].

use burn::tensor::{
    Tensor,
    module::{avg_pool2d, max_pool2d},
    ops::{AvgPoolOptions, MaxPoolOptions},
};
use regard_kernels::{
    KernelError,
    pool::{Kind, Pool},
};

use super::fused::{self, FlexTensor, Forward, Operation, dims, numbers, tensor};

/// Windows of a pooling, height and width alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// The largest number of a window, or the mean of those inside the map.
    pub kind: Kind,
    /// Size of a window.
    pub kernel: [usize; 2],
    /// Steps from a window to the next.
    pub stride: [usize; 2],
    /// Places outside of the map at which the first window starts; at most half of the kernel.
    pub padding: [usize; 2],
    /// Whether there is a last window for what the others leave over.
    pub ceil: bool,
}

/// `x [batch, channels, height, width]`, window by window: `[batch, channels, height', width']`.
///
/// # Panics
/// If a window is larger than the padded map, or a size is 0.
pub fn pool(windows: Windows, x: Tensor<4>) -> Tensor<4> {
    if fused::takes(&x) {
        let operation = fused::run(windows, vec![x.into_dispatch()]);
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

impl Windows {
    /// The kernel's sizes for maps of `[batch, channels, height, width]`.
    fn of(&self, [batch, channels, height, width]: [usize; 4]) -> Pool {
        Pool {
            kind: self.kind,
            maps: batch * channels,
            size: [height, width],
            kernel: self.kernel,
            stride: self.stride,
            padding: self.padding,
            ceil: self.ceil,
        }
    }
}

impl Operation for Windows {
    fn forward(&self, inputs: Vec<FlexTensor>, tracked: bool) -> Result<Forward, KernelError> {
        let shape = dims::<4>(&inputs[0]);
        let pool = self.of(shape);
        let [height, width] = pool.output_size()?;
        let mut y = vec![0.0; pool.maps * height * width];
        pool.forward(numbers(&inputs[0]), &mut y)?;
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
        let mut d_x = vec![0.0; x.len()];
        self.of(shape).backward(x, numbers(&gradient), &mut d_x)?;
        Ok(vec![Some(tensor(d_x, shape))])
    }
}
