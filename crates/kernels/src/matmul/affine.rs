//! The products of a linear layer over many rows: `Y = X W + b`, and the gradient of `X`, `Ẋ = Ẏ Wᵀ`.
//!
//! ```text
//!       W, packed in panels:  | panel | panel | panel |      a panel stays in the cache for all rows of a task
//!  X    | 64 rows  | task 0     read where they stand
//!       | 64 rows  | task 1
//! ```
//! The bias is added in registers, and the output is written once.

use std::mem::MaybeUninit;

use super::{
    NANOSECONDS, Packed, TASKS,
    tile::{Strides, TILE_ROWS},
};
use crate::{
    error::{KernelError, check_length},
    simd::{Level, fresh},
    threads::{RowsMut, for_each_chunk, rows},
};

/// Rows of a task, for which the weights are read once; and at most, where they are beyond the L2 cache.
const ROWS: [usize; 2] = [64, 256];
/// More numbers than these are beyond the L2 cache.
pub(crate) const LARGE: usize = 1 << 19;

/// `y = x weight + bias`: `x [rows, inputs]`, `weight [inputs, outputs]`, `bias [outputs]`, `y [rows, outputs]`.
///
/// ```
/// use regard_kernels::matmul::affine;
/// let (x, weight) = ([1.0, 2.0, 3.0, 4.0], [1.0, 10.0]); // [2, 2], [2, 1]
/// let mut y = [0.0; 2];
/// affine([2, 2, 1], &x, &weight, Some(&[0.5]), &mut y)?;
/// assert_eq!(y, [21.5, 43.5]);
/// # Ok::<(), regard_kernels::KernelError>(())
/// ```
///
/// # Errors
/// [`KernelError`] if a length does not fit the sizes.
pub fn affine(
    sizes: [usize; 3],
    x: &[f32],
    weight: &[f32],
    bias: Option<&[f32]>,
    y: &mut [f32],
) -> Result<(), KernelError> {
    affine_fresh(sizes, x, weight, bias, fresh(y))
}

/// [`affine`] into memory that holds nothing yet: all of it is written, unless there is an error.
///
/// # Errors
/// As [`affine`].
pub fn affine_fresh(
    [count, inputs, outputs]: [usize; 3],
    x: &[f32],
    weight: &[f32],
    bias: Option<&[f32]>,
    y: &mut [MaybeUninit<f32>],
) -> Result<(), KernelError> {
    check_length("x", "[rows, inputs]", &[count, inputs], x.len())?;
    check_weight([inputs, outputs], weight)?;
    if let Some(bias) = bias {
        check_length("bias", "[outputs]", &[outputs], bias.len())?;
    }
    check_length("y", "[rows, outputs]", &[count, outputs], y.len())?;
    if y.is_empty() {
        return Ok(());
    }
    let strides = Strides {
        row: outputs,
        column: 1,
    };
    let weight = Packed::strided(Level::current(), weight, strides, inputs, outputs);
    product(&weight, x, bias.unwrap_or_default(), y);
    Ok(())
}

/// `d_x = d_y weightᵀ`, the gradient of the input of `y = x weight`: `d_y [rows, outputs]`, `weight [inputs, outputs]`, `d_x [rows, inputs]`.
///
/// ```
/// use regard_kernels::matmul::input_gradient;
/// let mut d_x = [0.0; 4];
/// input_gradient([2, 2, 1], &[1.0, 2.0], &[1.0, 10.0], &mut d_x)?;
/// assert_eq!(d_x, [1.0, 10.0, 2.0, 20.0]);
/// # Ok::<(), regard_kernels::KernelError>(())
/// ```
///
/// # Errors
/// [`KernelError`] if a length does not fit the sizes.
pub fn input_gradient(
    sizes: [usize; 3],
    d_y: &[f32],
    weight: &[f32],
    d_x: &mut [f32],
) -> Result<(), KernelError> {
    input_gradient_fresh(sizes, d_y, weight, fresh(d_x))
}

/// [`input_gradient`] into memory that holds nothing yet: all of it is written, unless there is an error.
///
/// # Errors
/// As [`input_gradient`].
pub fn input_gradient_fresh(
    [count, inputs, outputs]: [usize; 3],
    d_y: &[f32],
    weight: &[f32],
    d_x: &mut [MaybeUninit<f32>],
) -> Result<(), KernelError> {
    check_length("d_y", "[rows, outputs]", &[count, outputs], d_y.len())?;
    check_weight([inputs, outputs], weight)?;
    check_length("d_x", "[rows, inputs]", &[count, inputs], d_x.len())?;
    if d_x.is_empty() {
        return Ok(());
    }
    let strides = Strides {
        row: 1,
        column: outputs,
    };
    let weight = Packed::strided(Level::current(), weight, strides, outputs, inputs);
    product(&weight, d_y, &[], d_x);
    Ok(())
}

fn check_weight(shape: [usize; 2], weight: &[f32]) -> Result<(), KernelError> {
    check_length("weight", "[inputs, outputs]", &shape, weight.len())
}

/// `y = x weight + bias`, with `bias [columns]` or an empty one; `y` is not empty.
fn product(weight: &Packed, x: &[f32], bias: &[f32], y: &mut [MaybeUninit<f32>]) {
    let [inner, columns] = weight.sizes();
    let count = y.len() / columns;
    let work = |first: usize, y: RowsMut<MaybeUninit<f32>>| {
        let number = y.data.len() / columns;
        let x = &x[first * inner..][..number * inner];
        weight.affine(x, y.data, number, [0, columns], bias);
    };
    let nanoseconds = y.len() as f64 * inner as f64 * NANOSECONDS;
    let [few, many] = ROWS;
    let chunk = match inner * columns > LARGE {
        true => count.div_ceil(TASKS * rayon::current_num_threads()),
        false => few,
    };
    let chunk = chunk.next_multiple_of(TILE_ROWS).clamp(few, many);
    for_each_chunk(rows(y, columns), count, chunk, nanoseconds, &work);
}
