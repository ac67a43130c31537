//! `bridge::matmul`: products of matrices in batches, however they lie, and their gradients.

use burn::tensor::{DType, Tensor, TensorData};
use regard_nn::bridge::{matmul, without_kernels};

use crate::{
    both_paths::distance,
    support::{device, values},
};

/// Two batches of matrices to be multiplied, made of leaves.
struct Case<const D: usize> {
    name: &'static str,
    leaves: [[usize; D]; 2],
    operands: fn([Tensor<D>; 2]) -> [Tensor<D>; 2],
}

/// The product and the gradients of both leaves.
fn run<const D: usize>(case: &Case<D>, dtype: DType) -> [Vec<f64>; 3] {
    let leaf = |name: &str, shape: [usize; D]| drawn(name, shape).cast(dtype).require_grad();
    let leaves = [leaf("a", case.leaves[0]), leaf("b", case.leaves[1])];
    let [a, b] = (case.operands)(leaves.clone());
    let product = matmul(a, b);
    let upstream = drawn("upstream", product.dims()).cast(dtype);
    let gradients = (product.clone() * upstream).sum().backward();
    let [a, b] = leaves.map(|leaf| leaf.grad(&gradients).unwrap().into_data());
    [product.into_data(), a, b].map(|data| data.iter::<f64>().collect())
}

fn check<const D: usize>(case: &Case<D>) {
    let fused = run(case, DType::F32);
    let plain = without_kernels(|| run(case, DType::F32));
    let exact = run(case, DType::F64);
    for (index, exact) in exact.iter().enumerate() {
        let size = exact.iter().fold(0.0f64, |most, x| most.max(x.abs()));
        let bound = 2.0 * distance(&plain[index], exact) + f64::from(f32::EPSILON) * (size + 0.3);
        let found = distance(&fused[index], exact);
        let name = case.name;
        assert!(
            found <= bound,
            "{name}, {index}: {found:e}, allowed {bound:e}"
        );
    }
}

#[test]
fn products_are_their_definition() {
    check(&Case {
        name: "two matrices",
        leaves: [[5, 300], [300, 7]],
        operands: |leaves| leaves,
    });
    check(&Case {
        name: "columns of a matrix",
        leaves: [[64, 96], [96, 288]],
        operands: |[a, b]| [a, b.narrow(1, 96, 192)],
    });
    check(&Case {
        name: "many rows",
        leaves: [[1100, 520], [20, 520]],
        operands: |[a, b]| [a, b.transpose()],
    });
    check(&Case {
        name: "a transpose of many rows",
        leaves: [[1100, 33], [1100, 20]],
        operands: |[a, b]| [a.transpose(), b],
    });
    check(&Case {
        name: "one number",
        leaves: [[1, 1], [1, 1]],
        operands: |leaves| leaves,
    });
    check(&Case {
        name: "queries and keys",
        leaves: [[3, 4, 9, 16], [3, 4, 11, 16]],
        operands: |[q, k]| [q, k.swap_dims(2, 3)],
    });
    check(&Case {
        name: "heads that lie side by side",
        leaves: [[3, 9, 4, 16], [3, 11, 4, 16]],
        operands: |[q, k]| [q.swap_dims(1, 2), k.permute([0, 2, 3, 1])],
    });
    check(&Case {
        name: "one head of keys",
        leaves: [[3, 4, 9, 16], [3, 1, 16, 11]],
        operands: |leaves| leaves,
    });
    check(&Case {
        name: "one matrix for all, on the left",
        leaves: [[1, 1, 6, 5], [3, 4, 5, 8]],
        operands: |leaves| leaves,
    });
    check(&Case {
        name: "each shares an axis",
        leaves: [[3, 1, 6, 5], [1, 4, 5, 8]],
        operands: |leaves| leaves,
    });
    check(&Case {
        name: "an expanded operand, read backwards",
        leaves: [[2, 6, 5], [1, 5, 8]],
        operands: |[a, b]| [a.flip([1]), b.expand([2, 5, 8])],
    });
    check(&Case {
        name: "few large products",
        leaves: [[3, 130, 140], [3, 140, 150]],
        operands: |leaves| leaves,
    });
    check(&Case {
        name: "many small products",
        leaves: [[700, 2, 20], [700, 20, 30]],
        operands: |leaves| leaves,
    });
}

/// What is not finite stays in its row of its matrix, and very large and very small numbers are as exact as Burn's.
#[test]
fn extreme_numbers_reach_only_their_own_rows() {
    let (a, b) = (drawn("a", [9, 20, 30]), drawn("b", [9, 30, 40]));
    let numbers = |x: Tensor<3>| x.into_data().try_to_vec::<f32>().unwrap();
    let usual = numbers(matmul(a.clone(), b.clone()));
    for poison in [f32::NAN, f32::INFINITY, f32::MAX, -1e30] {
        let poisoned = a.clone().slice_fill([4..5, 7..8, 3..4], poison);
        let found = numbers(matmul(poisoned, b.clone()));
        for (row, (found, usual)) in found.chunks(40).zip(usual.chunks(40)).enumerate() {
            assert_eq!(found != usual, row == 4 * 20 + 7, "{poison}, row {row}");
        }
    }
    for scale in [1e34, 1e-30, f32::MIN_POSITIVE / 4.0] {
        let product = || matmul(a.clone() * scale, b.clone());
        let exact = matmul(
            (a.clone() * scale).cast(DType::F64),
            b.clone().cast(DType::F64),
        );
        let exact: Vec<f64> = exact.into_data().iter().collect();
        let [found, plain] = [product(), without_kernels(product)]
            .map(|x| numbers(x).into_iter().map(f64::from).collect::<Vec<_>>());
        let largest = exact.iter().fold(0.0f64, |most, x| most.max(x.abs()));
        // Numbers below the normal ones have the spacing of the smallest.
        let rounding = f64::from(f32::EPSILON) * largest + f64::from(f32::from_bits(1));
        assert!(distance(&found, &exact) <= 2.0 * distance(&plain, &exact) + rounding);
    }
}

/// Seeded numbers.
fn drawn<const D: usize>(name: &str, shape: [usize; D]) -> Tensor<D> {
    let data = TensorData::new(values(name, shape.iter().product(), 1.0), shape);
    Tensor::from_data(data, &device())
}

/// The numbers of `product`, computed on so many threads.
fn bits<const D: usize>(threads: usize, product: impl Fn() -> Tensor<D> + Sync) -> Vec<f32> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
    let numbers = || product().into_data().try_to_vec::<f32>().unwrap();
    pool.build().unwrap().install(numbers)
}

#[test]
fn products_have_the_same_bits_on_any_number_of_threads_and_in_any_batch() {
    for [batch, rows, inner, columns] in [[9, 130, 140, 150], [300, 7, 40, 33], [3, 1, 500, 600]] {
        let (a, b) = ([batch, rows, inner], [batch, columns, inner]);
        let part = |first: usize, number: usize| {
            let a = drawn("a", a).narrow(0, first, number);
            let b = drawn("b", b).narrow(0, first, number);
            matmul(a, b.swap_dims(1, 2))
        };
        let all = bits(1, || part(0, batch));
        for threads in [2, 3] {
            assert_eq!(bits(threads, || part(0, batch)), all);
        }
        for at in 0..batch.min(5) {
            let alone = bits(2, || part(at, 1));
            assert_eq!(alone, all[at * rows * columns..][..rows * columns]);
        }
    }
    for [rows, inner, columns] in [
        [64, 512, 1536],
        [700, 900, 300],
        [513, 70, 673],
        [20, 1, 999],
    ] {
        for transposed in [false, true] {
            let product = || match transposed {
                false => matmul(drawn("a", [rows, inner]), drawn("b", [inner, columns])),
                true => {
                    let b = drawn("b", [columns, inner]).transpose();
                    matmul(drawn("a", [inner, rows]).transpose(), b)
                }
            };
            let one = bits(1, product);
            for threads in [2, 3, 8] {
                assert_eq!(bits(threads, product), one, "{rows} {inner} {columns}");
            }
        }
    }
}
