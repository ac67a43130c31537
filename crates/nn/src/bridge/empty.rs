//! Operations on tensors without numbers that Burn cannot do.
//!
//! In Burn 0.22.1 on the Flex backend, a batch of 0 beside a batch of 1 is treated as a batch of 1, and memory that is not
//! there is read. The smallest program that shows it ends with a segmentation fault:
//! ```text
//! let device = Device::flex();
//! Tensor::<3>::ones([0, 3, 8], &device).matmul(Tensor::ones([1, 8, 8], &device));
//! ```
//! Its `expand` panics where a size is to become 0. In `reshape`, and so in `unsqueeze_dim` and `stack`, a 0 means "as it
//! was at this place":
//! ```text
//! Tensor::<2>::ones([0, 1], &device).expand([0, 4]); // panic: Broadcast arguments must be positive or -1! Got 0
//! Tensor::<3>::ones([2, 0, 3], &device).unsqueeze_dim::<4>(1); // panic: asks for [2, 1, 3, 3]
//! ```
//! And a `slice` of nothing is no longer in the graph, so that `backward()` panics.
//!
//! So [`matmul`](super::matmul()) computes an empty product without Burn's: it has no numbers, or sums of no terms, which are 0. Clippy
//! refuses Burn's `matmul`, `Linear::forward` and `module::linear` everywhere else (`clippy.toml`).
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::bridge::matmul;
//!
//! let device = Device::flex().autodiff();
//! let a = Tensor::<3>::ones([0, 3, 8], &device).require_grad();
//! let b = Tensor::<3>::ones([1, 8, 5], &device).require_grad();
//! let product = matmul(a.clone(), b.clone());
//! assert_eq!(product.dims(), [0, 3, 5]);
//! let gradients = product.sum().backward();
//! assert_eq!(a.grad(&gradients).unwrap().dims(), [0, 3, 8]);
//! assert_eq!(b.grad(&gradients).unwrap().sum().into_scalar::<f32>(), 0.0);
//! ```

use std::cmp::Ordering;

use burn::tensor::{Bool, Int, Tensor};

use super::layout;

/// `zeros`, through which `parent` gets a gradient of 0: what is computed from nothing still belongs to the graph, so that
/// `backward()` reaches it.
pub(crate) fn zeros_of<const D: usize, const P: usize>(
    zeros: Tensor<D>,
    parent: &Tensor<P>,
) -> Tensor<D> {
    let all = Tensor::<P, Bool>::full(parent.dims(), true, &parent.device());
    // Filled before the sum, as the numbers of `parent` may be NaN.
    let zero = parent.clone().mask_fill(all, 0.0).sum().reshape([1; D]);
    let shape = zeros.dims();
    if !shape.contains(&0) {
        return zeros + zero;
    }
    // A selection of nothing, rather than a broadcast: Burn sums the gradient of a broadcast axis by axis, and with an axis
    // of 0 it would first make a tensor over all other axes, however large they are.
    let none = Tensor::<1, Int>::empty([0], &zero.device());
    let empty = (0..D).filter(|&axis| shape[axis] == 0);
    let nothing = empty.fold(zero, |x, axis| x.select(axis, none.clone()));
    zeros + nothing.reshape(shape)
}

/// `x` with a size of 1 at `axis`.
pub(crate) fn with_axis<const D: usize, const E: usize>(x: Tensor<D>, axis: usize) -> Tensor<E> {
    let shape = std::array::from_fn(|to| match to.cmp(&axis) {
        Ordering::Less => x.dims()[to],
        Ordering::Equal => 1,
        Ordering::Greater => x.dims()[to - 1],
    });
    reshaped(x, shape)
}

/// `x` in another shape of as many numbers.
pub(crate) fn reshaped<const D: usize, const E: usize>(
    x: Tensor<D>,
    shape: [usize; E],
) -> Tensor<E> {
    match x.dims().contains(&0) {
        true => zeros_of(Tensor::zeros(shape, (&x.device(), x.dtype())), &x),
        false => layout::reshape(x, shape),
    }
}

/// `mask` spread over `shape`, each of its sizes being 1 or that of the shape.
pub(crate) fn spread<const D: usize>(mask: Tensor<D, Bool>, shape: [usize; D]) -> Tensor<D, Bool> {
    match shape.contains(&0) {
        true => Tensor::full(shape, false, &mask.device()),
        false => mask.expand(shape),
    }
}
