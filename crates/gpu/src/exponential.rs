//! `eˣ`, the same on every card. What WGSL calls `exp` may be `3 + 2 |x|` roundings away; Mesa's software device is up to five (6e-7).

use burn::tensor::{DType, Shape};
use burn_cubecl::{
    kernel::into_contiguous, ops::numeric::empty_device_contiguous_dtype, tensor::CubeTensor,
};
use cubecl::{calculate_cube_count_elemwise, prelude::*};

use crate::addresses;

const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// `ln 2` in two parts: the first has so few bits that its product with a whole number is exact.
const LN_2: [f32; 2] = [355.0 / 512.0, -2.121_944_4e-4];
/// Below this `eˣ` is 0.
const LOWEST: f32 = -104.0;
/// Above this it is infinite.
const HIGHEST: f32 = 89.0;

/// `eˣ` of every number of `x`, which has any shape and strides, in `f32`: within two roundings, 2.4e-7 of it. Less than 1.2e-38 may be 0; of NaN it
/// is NaN.
///
/// # Panics
/// If `x` is not of `f32`.
pub fn exp(x: CubeTensor) -> CubeTensor {
    assert_eq!(x.dtype, DType::F32, "the numbers are of f32");
    let x = into_contiguous(x);
    let (client, device) = (x.client.clone(), x.device.clone());
    let shape = Shape::from(x.meta.shape().to_vec());
    let output = empty_device_contiguous_dtype(client.clone(), device, shape, DType::F32);
    let count = x.meta.num_elements();
    if count == 0 {
        return output;
    }
    let group = CubeDim::new(&client, count);
    exp_kernel::launch(
        &client,
        calculate_cube_count_elemwise(&client, count, group),
        group,
        addresses([&x, &output]),
        x.into_tensor_arg(),
        output.clone().into_tensor_arg(),
    );
    output
}

#[cube(launch, address_type = "dynamic")]
fn exp_kernel(x: &Tensor<f32>, output: &mut Tensor<f32>) {
    if ABSOLUTE_POS < output.len() {
        output[ABSOLUTE_POS] = exponential(x[ABSOLUTE_POS]);
    }
}

/// `eˣ = 2ⁿ eʳ`, `x = n ln 2 + r`, `|r| <= ln 2 / 2`, by a polynomial of degree 7 (Cephes, `expf`).
#[cube]
pub(crate) fn exponential(x: f32) -> f32 {
    let n = i32::cast_from((max(min(x, HIGHEST), LOWEST) * LOG2_E).round());
    // 2ⁿ may be beyond the normal numbers, 2 to the half of n is not.
    let half = n / 2i32;
    let rest = n - half;
    // Two products with n, but not with the same number: of these a compiler of shaders would add up the constants. From `x` itself, so that
    // NaN remains and infinity is reached.
    let whole = f32::cast_from(n);
    let parts = f32::cast_from(half) + f32::cast_from(rest);
    let r = (x - whole * comptime!(LN_2[0])) - parts * comptime!(LN_2[1]);
    let mut sum = fma(r, 1.987_569_1e-4f32, 1.398_199_9e-3f32);
    sum = fma(sum, r, 8.333_452e-3f32);
    sum = fma(sum, r, 4.166_579_6e-2f32);
    sum = fma(sum, r, 1.666_666_5e-1f32);
    sum = fma(sum, r, 0.5f32);
    let sum = fma(sum, r * r, r) + 1.0f32;
    let power = sum * power_of_two(half) * power_of_two(rest);
    select(x < LOWEST, 0.0f32, power)
}

#[cube]
fn power_of_two(n: i32) -> f32 {
    f32::reinterpret((n + 127i32) << 23i32)
}
