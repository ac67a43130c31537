//! Products with weights at half width and in 8 bits.

use super::*;
use crate::simd::Level;
use crate::testing::assert_close;

/// `x [rows, inner]` times the stored weights, plus the bias, where `x` is rounded to bfloat16 first.
fn of_rounded<T: From<f32> + Copy + std::ops::Mul<Output = T> + std::ops::AddAssign>(
    product: &Product,
    x: &[f32],
) -> Vec<T> {
    let [inner, columns] = product.sizes();
    let mut column = vec![0.0; inner];
    let mut sums = vec![T::from(0.0); x.len() / inner * columns];
    for index in 0..columns {
        product.column(index, &mut column).unwrap();
        for (x, sums) in x.chunks_exact(inner).zip(sums.chunks_exact_mut(columns)) {
            for (x, &w) in x.iter().zip(&column) {
                sums[index] += T::from(bf16::from_f32(*x).to_f32()) * T::from(w);
            }
            sums[index] += T::from(product.bias().unwrap()[index]);
        }
    }
    sums
}

/// Weights at half width and in 8 bits are widened exactly, or bfloat16 multiplied in pairs, so that few rows and many give the same
/// bits, and those of the definition for the rounded weights.
#[test]
fn stored_weights_are_used_as_they_are() {
    for storage in [Storage::F32, Storage::Bf16, Storage::F16, Storage::Int8] {
        let choice = Choice { storage, ..PLAIN };
        let stack = stack(&choice);
        let input = random(5, 40 * 8, 1.0);
        let all = stack.forward(None, &input, &[40], None).unwrap();
        let definition = || plain::forward(&stack, &input, &[], &[]);
        let truth = definition();
        if storage == Storage::Bf16 && Level::current().has_pairs() {
            let naive = plain::rounding(definition);
            let naive: Vec<f32> = naive.into_iter().map(|x| x as f32).collect();
            assert_close("a stack of pairs", &all, &naive, &truth, 2.0);
        } else {
            close(&all, &truth, 2e-5);
        }
        let first = stack.forward(None, &input[..3 * 8], &[3], None).unwrap();
        assert_eq!(all[..3 * 8], first, "{storage:?}");

        let wide = product(3, storage, 100, 70);
        let exact = product(3, Storage::F32, 100, 70);
        let (mut a, mut b) = (vec![0.0; 100], vec![0.0; 100]);
        for column in 0..70 {
            wide.column(column, &mut a).unwrap();
            exact.column(column, &mut b).unwrap();
            let largest = b.iter().fold(0.0f32, |max, x| max.max(x.abs()));
            let step = match storage {
                Storage::F32 => 0.0,
                Storage::Bf16 => largest / 256.0,
                Storage::F16 => largest / 2048.0,
                Storage::Int8 => largest / 127.0 * 0.51,
            };
            for (a, b) in a.iter().zip(&b) {
                assert!((a - b).abs() <= step, "{storage:?} {a} {b}");
            }
        }
        let x = random(8, 50 * 100, 1.0);
        let many = on_every_pool(|| vec![wide.forward(&x, 50).unwrap()]);
        for rows in [1, 2, 5, 8, 15, 16, 17] {
            let few = on_every_pool(|| vec![wide.forward(&x[..rows * 100], rows).unwrap()]);
            assert_eq!(few[0], many[0][..rows * 70], "{storage:?} {rows}");
        }
    }
}

/// Sizes around those of tiles and panels, odd inner sizes among them; the sums of rounded numbers as exact as plain ones.
#[test]
fn pairs_of_bfloat16_are_their_definition() {
    if !Level::current().has_pairs() {
        return;
    }
    for (inner, columns, rows) in [
        (1, 1, 1),
        (2, 17, 3),
        (7, 48, 9),
        (101, 70, 21),
        (64, 130, 40),
    ] {
        let product = product(3, Storage::Bf16, inner, columns);
        let x = random(8, rows * inner, 1.0);
        let found = on_every_pool(|| vec![product.forward(&x, rows).unwrap()]);
        let (truth, naive) = (of_rounded::<f64>(&product, &x), of_rounded(&product, &x));
        let name = format!("{inner} {columns} {rows}");
        assert_close(&name, &found[0], &naive, &truth, 2.0);
    }
    // What is not finite stays so, in its row alone.
    let product = product(3, Storage::Bf16, 3, 2);
    let found = product
        .forward(
            &[1.0, f32::NAN, 1.0, f32::INFINITY, 0.0, 0.0, 1.0, 1.0, 1.0],
            3,
        )
        .unwrap();
    assert!(found[..2].iter().all(|x| x.is_nan()) && found[2..4].iter().all(|x| x.is_infinite()));
    assert!(found[4..].iter().all(|x| x.is_finite()));
    // The largest number of bfloat16, the smallest of f32 (rounded to 0), and one that bfloat16 cannot hold.
    let mut product = Product::zeros(Storage::Bf16, 1, 1).unwrap();
    product.set_column(0, &[1.0]).unwrap();
    let x = [bf16::MAX.to_f32(), f32::from_bits(1), f32::MAX, -f32::MAX];
    let found = product.forward(&x, 4).unwrap();
    assert_eq!(found, [x[0], 0.0, f32::INFINITY, f32::NEG_INFINITY]);
    for (inner, columns, rows) in [(0, 3, 2), (3, 0, 2), (3, 2, 0)] {
        let product = Product::zeros(Storage::Bf16, inner, columns).unwrap();
        let found = product.forward(&vec![1.0; rows * inner], rows).unwrap();
        assert_eq!(found, vec![0.0; rows * columns]);
    }
}
