//! The product of two matrices, or of every pair of matrices in two batches: `c = a b`, `ȧ = ċ bᵀ`, `ḃ = aᵀ ċ`.
//!
//! Matrices are read where they lie, so that a transpose costs nothing, and all threads take part; Burn's product on the Flex backend,
//! as it is built here, has one. An operand that others share gets the sum of their gradients at once. Empty products are computed
//! without Burn's (`empty.rs`).
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::bridge::matmul;
//!
//! let device = Device::flex();
//! let query = Tensor::<3>::from_data([[[1.0, 2.0]], [[3.0, 4.0]]], &device); // [2, 1, 2]
//! let keys = Tensor::<3>::from_data([[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]], &device); // [1, 3, 2]
//! let scores = matmul(query, keys.swap_dims(1, 2)); // [2, 1, 3]
//! assert_eq!(scores.into_data().try_to_vec::<f32>()?, [1.0, 2.0, 3.0, 3.0, 4.0, 7.0]);
//! # Ok::<(), burn::tensor::DataError>(())
//! ```

use burn::tensor::Tensor;
use regard_kernels::KernelError;

#[cfg(feature = "gpu")]
use super::card;
use super::{
    empty::zeros_of,
    fused::{self, FlexTensor, Forward, Operation, Reads, tensor},
    product::{Matrix, sums_of_products, weight_gradient},
};

/// `a b` over the last two dimensions, `[.., m, k] [.., k, n] -> [.., m, n]`; the dimensions before them are equal, or 1
/// on one side. Any of them may be 0. Fused for `f32` on the Flex backend, Burn's operation elsewhere.
///
/// # Panics
/// If the shapes do not fit together.
pub fn matmul<const D: usize>(a: Tensor<D>, b: Tensor<D>) -> Tensor<D> {
    let (of_a, of_b) = (a.dims(), b.dims());
    let fits = |axis: usize| {
        let (a, b) = (of_a[axis], of_b[axis]);
        a == b || a == 1 || b == 1
    };
    assert!(
        D >= 2 && of_a[D - 1] == of_b[D - 2] && (0..D - 2).all(fits),
        "a product of shapes {of_a:?} and {of_b:?}, expected [.., m, k] and [.., k, n]"
    );
    let mut shape: [usize; D] = std::array::from_fn(|axis| match of_a[axis] {
        1 => of_b[axis],
        size => size,
    });
    (shape[D - 2], shape[D - 1]) = (of_a[D - 2], of_b[D - 1]);
    if of_a.contains(&0) || of_b.contains(&0) {
        let zeros = Tensor::zeros(shape, (&a.device(), a.dtype()));
        return zeros_of(zeros_of(zeros, &a), &b);
    }
    #[cfg(feature = "gpu")]
    if card::multiplies(&a) {
        return card::product(a, b);
    }
    if fused::takes(&a) && fused::takes(&b) {
        let operation = Product {
            batch: shape[..D - 2].into(),
            rows: shape[D - 2],
            inner: of_a[D - 1],
            columns: shape[D - 1],
        };
        let operands = vec![a.into_dispatch(), b.into_dispatch()];
        return Tensor::from_dispatch(fused::run(operation, operands).0);
    }
    #[expect(clippy::disallowed_methods, reason = "no size is 0")]
    a.matmul(b)
}

/// No size is 0.
#[derive(Debug)]
struct Product {
    /// Of the output.
    batch: Vec<usize>,
    rows: usize,
    inner: usize,
    columns: usize,
}

/// The matrices of an operand, one for each of the output.
struct Matrices<'a> {
    data: &'a [f32],
    /// `[size, stride]` of the output's axes before the last two; the stride is 0 along an axis that the operand does not have.
    batch: Vec<[usize; 2]>,
    /// Rows, columns.
    shape: [usize; 2],
    strides: [usize; 2],
}

impl<'a> Matrices<'a> {
    fn get(&self, index: usize) -> Matrix<'a> {
        let place = |(start, index), &[size, stride]: &[usize; 2]| {
            (start + index % size * stride, index / size)
        };
        let (start, _) = self.batch.iter().rev().fold((0, index), place);
        Matrix::strided(&self.data[start..], self.shape, self.strides)
    }
}

impl Product {
    /// The matrices of `x [.., rows, columns]`.
    fn matrices<'a>(&self, x: &'a FlexTensor) -> Matrices<'a> {
        let layout = x.layout();
        let (shape, strides) = (&layout.shape()[..], layout.strides());
        let axis = |axis: usize| match shape[axis] {
            1 => 0,
            _ => strides[axis] as usize,
        };
        let before = self.batch.len();
        Matrices {
            data: &x.storage()[layout.start_offset()..],
            batch: (0..before).map(|a| [self.batch[a], axis(a)]).collect(),
            shape: [shape[before], shape[before + 1]],
            strides: [before, before + 1].map(|axis| strides[axis] as usize),
        }
    }

    /// [`sums_of_products`]. Two matrices alone have our own kernels where these are faster; those of a batch never do, so that their
    /// products have the same bits in any batch.
    fn sums<'a, P: Iterator<Item = [Matrix<'a>; 2]>>(
        &self,
        count: usize,
        sizes: [usize; 3],
        pairs: impl Fn(usize) -> P + Sync,
    ) -> Result<Vec<f32>, KernelError> {
        match pairs(0).next() {
            Some([a, b]) if self.batch.is_empty() => weight_gradient(a.transposed(), b),
            _ => sums_of_products(count, sizes, pairs),
        }
    }

    /// The gradient of `operand`: of each of its matrices, the sum of the products `pair(at)` over the output's matrices `at` that it
    /// takes part in.
    fn gradient<'a>(
        &self,
        operand: &FlexTensor,
        sizes: [usize; 3],
        pair: impl Fn(usize) -> [Matrix<'a>; 2] + Sync,
    ) -> Result<FlexTensor, KernelError> {
        let shape = operand.layout().shape().clone();
        let users = self.users(&shape);
        let pairs = |own: usize| users[own].iter().map(|&at| pair(at));
        Ok(tensor(self.sums(users.len(), sizes, pairs)?, shape))
    }

    /// For each matrix of an operand of `shape`, the output's matrices that it takes part in.
    fn users(&self, shape: &[usize]) -> Vec<Vec<usize>> {
        let count = |shape: &[usize]| shape[..self.batch.len()].iter().product::<usize>();
        let mut users = vec![vec![]; count(shape)];
        for index in 0..count(&self.batch) {
            let (mut own, mut stride, mut rest) = (0, 1, index);
            for (&size, &of_operand) in self.batch.iter().zip(shape).rev() {
                own += rest % size % of_operand * stride;
                stride *= of_operand;
                rest /= size;
            }
            users[own].push(index);
        }
        users
    }
}

impl Operation for Product {
    fn reads(&self) -> Reads {
        Reads::Strides
    }

    fn forward(&self, inputs: Vec<FlexTensor>, tracked: bool) -> Result<Forward, KernelError> {
        let (a, b) = (self.matrices(&inputs[0]), self.matrices(&inputs[1]));
        let mut shape = self.batch.clone();
        let count = shape.iter().product();
        shape.extend([self.rows, self.columns]);
        let sizes = [self.rows, self.inner, self.columns];
        let pair = |at: usize| std::iter::once([a.get(at), b.get(at)]);
        Ok(Forward {
            output: tensor(self.sums(count, sizes, pair)?, shape),
            beside: None,
            saved: if tracked { inputs } else { vec![] },
        })
    }

    fn backward(
        &self,
        saved: Vec<FlexTensor>,
        gradient: FlexTensor,
        wanted: &[bool],
    ) -> Result<Vec<Option<FlexTensor>>, KernelError> {
        let (a, b) = (self.matrices(&saved[0]), self.matrices(&saved[1]));
        let d_c = self.matrices(&gradient);
        let [rows, inner, columns] = [self.rows, self.inner, self.columns];
        let d_a = |at: usize| [d_c.get(at), b.get(at).transposed()];
        let d_b = |at: usize| [a.get(at).transposed(), d_c.get(at)];
        let d_a = wanted[0].then(|| self.gradient(&saved[0], [rows, columns, inner], d_a));
        let d_b = wanted[1].then(|| self.gradient(&saved[1], [inner, rows, columns], d_b));
        Ok(vec![d_a.transpose()?, d_b.transpose()?])
    }
}
