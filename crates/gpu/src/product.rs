//! Products of matrices in full precision.

use burn_cubecl::{kernel::matmul::init_matmul_output, ops::permute, tensor::CubeTensor};
use cubek::{
    matmul::{definition::MatmulElems, launch::launch_ref, multi_level, strategy::Strategy},
    std::InputBinding,
};

use crate::elem;

/// `a b` over the last two dimensions, `[.., m, k] [.., k, n] -> [.., m, n]`, with any strides; the dimensions before them are equal, and no
/// size is 0.
///
/// Factors are multiplied as they are, and the products of a number are added up in one order: the bits are the same from call to call. Burn's
/// own product rounds `f32` factors to TF32's 10 bits on tensor cores.
///
/// # Panics
/// If the shapes or the types do not fit, or the card cannot do it.
pub fn multiply(a: CubeTensor, b: CubeTensor) -> CubeTensor {
    assert_eq!(a.dtype, b.dtype, "the factors are of one type");
    let output = init_matmul_output(&a, &b, a.dtype);
    let client = output.client.clone();
    let numbers = elem(&output);
    let units = multi_level::Strategy::SimpleUnit(Default::default());
    launch_ref(
        &Strategy::MultiLevel(units),
        &client,
        InputBinding::new(a.binding(), numbers),
        InputBinding::new(b.binding(), numbers),
        output.clone().binding(),
        &mut MatmulElems::from_single_dtype(numbers),
    )
    .unwrap_or_else(|error| panic!("a product on a card: {error:?}"));
    output
}

/// The gradients of [`multiply`]'s factors where they are `wanted`, from that of the product: `g bᵀ` and `aᵀ g`.
///
/// # Panics
/// As [`multiply`].
pub fn multiply_backward(
    a: CubeTensor,
    b: CubeTensor,
    gradient: CubeTensor,
    wanted: [bool; 2],
) -> [Option<CubeTensor>; 2] {
    [
        wanted[0].then(|| multiply(gradient.clone(), transposed(b))),
        wanted[1].then(|| multiply(transposed(a), gradient)),
    ]
}

/// The matrices of `x`, transposed in place.
fn transposed(x: CubeTensor) -> CubeTensor {
    let rank = x.meta.num_dims();
    let mut axes: Vec<usize> = (0..rank).collect();
    axes.swap(rank - 2, rank - 1);
    permute(x, &axes)
}
