//! Products of `f32` matrices on graphics cards without rounding their factors: the kernel of [`regard_gpu`] in Burn's autodiff. Burn's own
//! rounds them to the 10 bits of TF32 where a card has tensor cores.

use burn::tensor::{DType, Tensor};
use regard_gpu::{multiply, multiply_backward};

use super::{Operation, Primitive, run};
use crate::devices::is_card;

/// Whether the kernel takes tensors like `tensor`. Plain operations call it, too.
pub(crate) fn multiplies<const D: usize>(tensor: &Tensor<D>) -> bool {
    tensor.dtype() == DType::F32 && is_card(&tensor.device())
}

/// [`matmul`](super::super::matmul) of shapes that fit and have no size of 0.
pub(crate) fn product<const D: usize>(a: Tensor<D>, b: Tensor<D>) -> Tensor<D> {
    let (of_a, of_b) = (a.dims(), b.dims());
    let mut shape: [usize; D] = std::array::from_fn(|axis| of_a[axis].max(of_b[axis]));
    (shape[D - 2], shape[D - 1]) = (of_a[D - 2], of_b[D - 1]);
    // One matrix for all of the batch: one product of all rows, and one for its gradient, in place of one for each batch entry and a sum.
    if D > 2 && of_b[..D - 2].iter().all(|&size| size == 1) {
        let rows = of_a[..D - 1].iter().product::<usize>();
        let a = a.reshape([rows, of_a[D - 1]]);
        let b = b.reshape([of_b[D - 2], of_b[D - 1]]);
        return product::<2>(a, b).reshape(shape);
    }
    let of_batch = |of: [usize; D]| {
        let mut of_batch = shape;
        of_batch[D - 2..].copy_from_slice(&of[D - 2..]);
        of_batch
    };
    let inputs = [a.expand(of_batch(of_a)), b.expand(of_batch(of_b))];
    let inputs = inputs.map(Tensor::into_dispatch).into();
    Tensor::from_dispatch(run(Product, inputs).0)
}

#[derive(Debug, Clone)]
struct Product;

impl Operation for Product {
    type Kept = ();

    fn forward(&self, inputs: &[Primitive]) -> (Primitive, ()) {
        (multiply(inputs[0].clone(), inputs[1].clone()), ())
    }

    fn backward(
        &self,
        inputs: &[Primitive],
        (): &(),
        gradient: Primitive,
        wanted: &[bool],
    ) -> Vec<Option<Primitive>> {
        let [a, b] = [inputs[0].clone(), inputs[1].clone()];
        multiply_backward(a, b, gradient, [wanted[0], wanted[1]]).into()
    }
}
