//! Maps at another size in one operation; see [`regard_kernels::resize`].

use burn::tensor::{
    Tensor,
    module::interpolate,
    ops::{InterpolateMode, InterpolateOptions},
};
use regard_kernels::{KernelError, resize::Resize};

use super::fused::{self, FlexTensor, Forward, Operation, dims, numbers, tensor};
use super::memory;

/// `x [batch, channels, height, width]` at the height and width of `output`, by bilinear interpolation; with `align_corners`
/// the first and the last place of an axis stay where they are, else the borders of the map do.
///
/// # Panics
/// If a size is 0.
pub fn resize(x: Tensor<4>, output: [usize; 2], align_corners: bool) -> Tensor<4> {
    if fused::takes(&x) {
        let [batch, channels, height, width] = x.dims();
        let resize = Resize {
            maps: batch * channels,
            size: [height, width],
            output,
            align_corners,
        };
        let operation = fused::run(resize, vec![x.into_dispatch()]);
        return Tensor::from_dispatch(operation.0);
    }
    let options = InterpolateOptions::new(InterpolateMode::Bilinear)
        .with_output_size(output)
        .with_align_corners(align_corners);
    interpolate(x, options)
}

impl Operation for Resize {
    fn forward(&self, inputs: Vec<FlexTensor>, _tracked: bool) -> Result<Forward, KernelError> {
        let [batch, channels, ..] = dims::<4>(&inputs[0]);
        let [height, width] = self.output;
        let mut y = memory::zeros(self.maps * height * width);
        Resize::forward(self, numbers(&inputs[0]), &mut y)?;
        Ok(Forward {
            output: tensor(y, [batch, channels, height, width]),
            beside: None,
            saved: vec![],
        })
    }

    fn backward(
        &self,
        _saved: Vec<FlexTensor>,
        gradient: FlexTensor,
        _wanted: &[bool],
    ) -> Result<Vec<Option<FlexTensor>>, KernelError> {
        let [batch, channels, ..] = dims::<4>(&gradient);
        let [height, width] = self.size;
        let mut d_x = memory::zeros(self.maps * height * width);
        Resize::backward(self, numbers(&gradient), &mut d_x)?;
        Ok(vec![Some(tensor(d_x, [batch, channels, height, width]))])
    }
}
