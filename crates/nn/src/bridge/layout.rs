//! The same numbers in another order or another shape.
//!
//! Burn exchanges axes without moving anything, and copies where an operation or [`Tensor::reshape`] needs the numbers one after the
//! other; in the backward pass that is mostly a reshape. Its copies go number by number, those here by whole rows, or by squares in registers
//! ([`regard_kernels::transpose`]).

use burn::tensor::{DType, Tensor};
use regard_kernels::{KernelError, transpose::transpose};

use super::fused::{self, FlexTensor, Forward, Operation, numbers, tensor};
use super::memory;

/// `x [.., rows, columns, ..]`, of which `axis` is `rows`, as `[.., columns, rows, ..]`. Its numbers are moved at once, and so are its
/// gradient's: [`Tensor::swap_dims`] leaves that to each operation that reads them.
///
/// # Panics
/// If there is no axis `axis + 1`.
pub fn transposed<const D: usize>(x: Tensor<D>, axis: usize) -> Tensor<D> {
    if fused::takes(&x) {
        let operation = fused::run(Transpose { axis }, vec![x.into_dispatch()]);
        return Tensor::from_dispatch(operation.0);
    }
    x.swap_dims(axis, axis + 1)
}

/// `x` in another shape of as many numbers, of which there is one at least.
pub(super) fn reshape<const D: usize, const E: usize>(
    x: Tensor<D>,
    shape: [usize; E],
) -> Tensor<E> {
    if fused::takes(&x) {
        let operation = Reshape {
            from: x.dims().to_vec(),
            to: shape.to_vec(),
        };
        return Tensor::from_dispatch(fused::run(operation, vec![x.into_dispatch()]).0);
    }
    x.reshape(shape)
}

/// The same numbers, contiguous from the start of a storage of exactly their size.
pub(super) fn contiguous(x: FlexTensor) -> FlexTensor {
    let Some(axes) = joined(&x).filter(|_| x.dtype() == DType::F32) else {
        return x.to_contiguous();
    };
    let from = &x.storage()[x.layout().start_offset()..];
    let to = match axes[..] {
        [ref outer @ .., [width, 1]] if !outer.is_empty() => {
            let start = |row: usize| {
                let place = |(start, row), [size, stride]: &[usize; 2]| {
                    (start + row % size * stride, row / size)
                };
                outer.iter().rev().fold((0, row), place).0
            };
            let count = outer.iter().map(|axis| axis[0]).product();
            memory::rows(count, width, |row| &from[start(row)..][..width])
        }
        [ref batch @ .., [columns, 1], [rows, stride]]
            if stride == columns && adjoin(batch, rows * columns) =>
        {
            let matrices = batch.iter().map(|axis| axis[0]).product();
            let mut to = memory::zeros(matrices * rows * columns);
            let from = &from[..to.len()];
            transpose([matrices, rows, columns], from, &mut to).expect("the lengths fit");
            to
        }
        _ => return x.to_contiguous(),
    };
    tensor(to, x.layout().shape().clone())
}

/// `x`, which is contiguous, with a storage that nothing else holds: its own, or a copy.
pub(super) fn owned(mut x: FlexTensor) -> FlexTensor {
    if x.try_storage_mut::<f32>().is_some() {
        return x;
    }
    tensor(memory::copy(numbers(&x)), x.layout().shape().clone())
}

/// The numbers of a tensor that [`owned`] returned.
pub(super) fn storage(x: &mut FlexTensor) -> &mut [f32] {
    match x.try_storage_mut::<f32>() {
        Some(storage) => storage,
        None => unreachable!("the storage has one owner"),
    }
}

/// Sizes and strides of the axes of a tensor that is not contiguous, those that lie as one joined; `None` if one is read backwards.
fn joined(x: &FlexTensor) -> Option<Vec<[usize; 2]>> {
    let layout = x.layout();
    let mut axes: Vec<[usize; 2]> = vec![];
    for (&size, &stride) in layout.shape().iter().zip(layout.strides()) {
        let stride = usize::try_from(stride).ok()?;
        match axes.last_mut() {
            _ if size == 1 => {}
            Some(last) if last[1] == size * stride => *last = [last[0] * size, stride],
            _ => axes.push([size, stride]),
        }
    }
    let moved = axes.len() > 1 && layout.num_elements() > 0;
    moved.then_some(axes)
}

/// Whether matrices of `numbers` lie one after the other: there is one, or one axis of them.
fn adjoin(batch: &[[usize; 2]], numbers: usize) -> bool {
    match batch {
        [] => true,
        [axis] => axis[1] == numbers,
        _ => false,
    }
}

#[derive(Debug)]
struct Transpose {
    axis: usize,
}

impl Transpose {
    fn of(&self, x: &FlexTensor) -> FlexTensor {
        contiguous(x.transpose(self.axis, self.axis + 1))
    }
}

impl Operation for Transpose {
    fn forward(&self, inputs: Vec<FlexTensor>, _tracked: bool) -> Result<Forward, KernelError> {
        Ok(Forward::only(self.of(&inputs[0])))
    }

    fn backward(
        &self,
        _saved: Vec<FlexTensor>,
        gradient: FlexTensor,
        _wanted: &[bool],
    ) -> Result<Vec<Option<FlexTensor>>, KernelError> {
        Ok(vec![Some(self.of(&gradient))])
    }
}

/// What comes in is contiguous, so that only the shape changes.
#[derive(Debug)]
struct Reshape {
    from: Vec<usize>,
    to: Vec<usize>,
}

impl Operation for Reshape {
    fn forward(&self, mut inputs: Vec<FlexTensor>, _tracked: bool) -> Result<Forward, KernelError> {
        let x = inputs.remove(0);
        Ok(Forward::only(x.reshape(self.to.clone().into())))
    }

    fn backward(
        &self,
        _saved: Vec<FlexTensor>,
        gradient: FlexTensor,
        _wanted: &[bool],
    ) -> Result<Vec<Option<FlexTensor>>, KernelError> {
        Ok(vec![Some(gradient.reshape(self.from.clone().into()))])
    }
}

#[cfg(all(test, feature = "kernels"))]
mod tests {
    use super::*;

    /// All orders of `0..count`.
    fn orders(count: usize) -> Vec<Vec<usize>> {
        let mut all = vec![vec![]];
        for axis in 0..count {
            let longer = all.iter().flat_map(|order: &Vec<usize>| {
                (0..=order.len()).map(move |at| {
                    let mut order = order.clone();
                    order.insert(at, axis);
                    order
                })
            });
            all = longer.collect();
        }
        all
    }

    #[test]
    fn any_order_of_axes_becomes_contiguous() {
        for shape in [
            vec![2, 3, 4, 5],
            vec![1, 16, 1, 33],
            vec![3, 1, 2, 1],
            vec![4, 2],
            vec![1, 1],
            vec![7],
            vec![2, 0, 3],
        ] {
            let count = shape.iter().product::<usize>();
            let x = tensor((0..count).map(|x| x as f32).collect(), shape.clone());
            for order in orders(shape.len()) {
                let permuted = x.permute(&order);
                let (found, expected) = (contiguous(permuted.clone()), permuted.to_contiguous());
                assert_eq!(found.layout().shape(), expected.layout().shape());
                assert_eq!(
                    numbers(&found),
                    numbers(&expected),
                    "{shape:?} as {order:?}"
                );
            }
        }
    }

    #[test]
    fn parts_of_tensors_become_contiguous() {
        let x = tensor((0..120).map(|x| x as f32).collect(), [2, 3, 4, 5]);
        for axis in 0..4 {
            for order in orders(4) {
                let part = x.narrow(axis, 1, 1).permute(&order);
                let expected = part.to_contiguous();
                assert_eq!(numbers(&contiguous(part)), numbers(&expected));
                let part = x.permute(&order);
                let part = part.narrow(axis, 0, part.layout().shape()[axis] - 1);
                let expected = part.to_contiguous();
                assert_eq!(numbers(&contiguous(part)), numbers(&expected));
            }
        }
    }
}
