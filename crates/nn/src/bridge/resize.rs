//! Maps at another size in one operation; see [`regard_kernels::resize`].

use burn::tensor::{Int, Tensor, TensorData};
use regard_kernels::{
    KernelError,
    resize::{Between, Resize},
};

use super::fused::{self, FlexTensor, Forward, Operation, dims, numbers, tensor};
use super::memory;

/// `x [batch, channels, height, width]` at the height and width of `output`, by bilinear interpolation; with `align_corners`
/// the first and the last place of an axis stay where they are, else the borders of the map do.
///
/// # Panics
/// If a size is 0.
pub fn resize(x: Tensor<4>, output: [usize; 2], align_corners: bool) -> Tensor<4> {
    let [batch, channels, height, width] = x.dims();
    let resize = Resize {
        maps: batch * channels,
        size: [height, width],
        output,
        align_corners,
    };
    if fused::takes(&x) {
        let operation = fused::run(resize, vec![x.into_dispatch()]);
        return Tensor::from_dispatch(operation.0);
    }
    // Burn's own interpolation has no gradient on graphics cards.
    let x = between(x, 2, &resize.places(0));
    between(x, 3, &resize.places(1))
}

/// What each of `places` reads of `x` along `axis`.
fn between(x: Tensor<4>, axis: usize, places: &[Between]) -> Tensor<4> {
    let device = x.device();
    let read = |of: fn(&Between) -> usize| {
        let index: Vec<i32> = places.iter().map(|place| of(place) as i32).collect();
        let index = TensorData::new(index, [places.len()]);
        x.clone()
            .select(axis, Tensor::<1, Int>::from_data(index, &device))
    };
    let (low, high) = (read(|place| place.low), read(|place| place.high));
    let mut shape = [1; 4];
    shape[axis] = places.len();
    let shares = |of: fn(&Between) -> f64| {
        let shares: Vec<f64> = places.iter().map(of).collect();
        Tensor::<4>::from_data(TensorData::new(shares, shape), (&device, x.dtype()))
    };
    low * shares(|place| 1.0 - place.share) + high * shares(|place| place.share)
}

impl Operation for Resize {
    fn forward(&self, inputs: Vec<FlexTensor>, _tracked: bool) -> Result<Forward, KernelError> {
        let [batch, channels, ..] = dims::<4>(&inputs[0]);
        let [height, width] = self.output;
        let mut y = memory::zeros(self.maps * height * width);
        Resize::forward(self, numbers(&inputs[0]), &mut y)?;
        Ok(Forward::only(tensor(y, [batch, channels, height, width])))
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
