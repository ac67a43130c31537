use proptest::prelude::*;

use super::*;
use crate::simd::fresh;
use crate::testing::{assert_close, bits, on_every_pool, random, unless_miri, wide};

/// `A B` by plain loops, in any precision.
fn naive<T: crate::reference::Real>(
    a: &[T],
    b: &[T],
    rows: usize,
    inner: usize,
    columns: usize,
) -> Vec<T> {
    let element = |row: usize, column: usize| {
        (0..inner).fold(T::of(0.0), |sum, k| {
            sum + a[row * inner + k] * b[k * columns + column]
        })
    };
    (0..rows * columns)
        .map(|at| element(at / columns, at % columns))
        .collect()
}

/// The transpose of `x [rows, columns]`.
fn transpose(x: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    (0..rows * columns)
        .map(|at| x[at % rows * columns + at / rows])
        .collect()
}

/// Inner index, columns.
const SIZES: [(usize, usize); 7] = [
    (1, 300),
    (2, 97),
    (3, 1),
    (7, 49),
    (16, 16),
    (49, 33),
    (300, 50),
];

#[test]
fn product_is_its_definition_on_every_level() {
    let mut checked = 0;
    for &rows in unless_miri(&[1, 2, 3, 7, 8, 13, 21][..], &[3, 13]) {
        for &(inner, columns) in unless_miri(&SIZES[..], &SIZES[2..5]) {
            let (a, b) = (
                random(1, rows * inner, 1.0),
                random(2, inner * columns, 1.0),
            );
            let truth = naive(&wide(&a), &wide(&b), rows, inner, columns);
            let slow = naive(&a, &b, rows, inner, columns);
            for &level in Level::available() {
                let strides = Strides {
                    row: columns,
                    column: 1,
                };
                let packed = Packed::strided(level, &b, strides, inner, columns);
                let mut c = vec![f32::NAN; rows * columns];
                packed.product(&a, inner, &mut c, columns, rows, Write::Replace);
                assert_close(
                    &format!("{level:?} {rows} {inner} {columns}"),
                    &c,
                    &slow,
                    &truth,
                    2.0,
                );

                let turned = transpose(&b, inner, columns);
                let strides = Strides {
                    row: 1,
                    column: inner,
                };
                let packed = Packed::strided(level, &turned, strides, inner, columns);
                let mut same = vec![1.0; rows * columns];
                packed.product(&a, inner, &mut same, columns, rows, Write::Replace);
                assert_eq!(bits(&same), bits(&c), "packed from the transpose");
                packed.product(&a, inner, &mut same, columns, rows, Write::Add);
                let twice: Vec<f32> = c.iter().map(|x| x + x).collect();
                assert_eq!(bits(&same), bits(&twice), "added");

                let bias = random(5, columns, 1.0);
                packed.affine(&a, fresh(&mut same), rows, [0, columns], &bias);
                let sums = c.iter().zip(bias.iter().cycle()).map(|(c, b)| c + b);
                assert_eq!(bits(&same), bits(&sums.collect::<Vec<_>>()), "with a bias");
                checked += 1;
            }
        }
    }
    assert_eq!(
        checked,
        unless_miri(7 * 7, 2 * 3) * Level::available().len()
    );
}

#[test]
fn products_of_a_layer_are_their_definition_for_any_rows() {
    for &count in unless_miri(&[0, 1, 63, 64, 65, 200][..], &[2]) {
        for &(inputs, outputs) in unless_miri(&SIZES[..], &SIZES[2..4]) {
            let sizes = [count, inputs, outputs];
            let (x, weight) = (
                random(1, count * inputs, 1.0),
                random(2, inputs * outputs, 1.0),
            );
            let (bias, d_y) = (random(3, outputs, 1.0), random(4, count * outputs, 1.0));
            let found = on_every_pool(|| {
                let mut y = vec![f32::NAN; count * outputs];
                let mut d_x = vec![f32::NAN; count * inputs];
                affine(sizes, &x, &weight, Some(&bias), &mut y).unwrap();
                input_gradient(sizes, &d_y, &weight, &mut d_x).unwrap();
                vec![y, d_x]
            });
            let (y, d_x) = (&found[0], &found[1]);
            let with_bias = |y: Vec<f64>| -> Vec<f64> {
                let bias = bias.iter().cycle();
                y.iter().zip(bias).map(|(y, &b)| y + f64::from(b)).collect()
            };
            let truth = with_bias(naive(&wide(&x), &wide(&weight), count, inputs, outputs));
            let mut slow = naive(&x, &weight, count, inputs, outputs);
            slow.iter_mut()
                .zip(bias.iter().cycle())
                .for_each(|(y, b)| *y += b);
            assert_close(&format!("y {sizes:?}"), y, &slow, &truth, 2.0);

            let turned = transpose(&weight, inputs, outputs);
            let truth = naive(&wide(&d_y), &wide(&turned), count, outputs, inputs);
            let slow = naive(&d_y, &turned, count, outputs, inputs);
            assert_close(&format!("d_x {sizes:?}"), d_x, &slow, &truth, 2.0);

            for row in (0..count).step_by(37) {
                let mut alone = vec![f32::NAN; outputs];
                let x = &x[row * inputs..][..inputs];
                affine([1, inputs, outputs], x, &weight, Some(&bias), &mut alone).unwrap();
                let in_batch = &y[row * outputs..][..outputs];
                assert_eq!(bits(&alone), bits(in_batch), "a row alone");
            }
        }
    }
}

#[test]
fn products_of_a_layer_keep_extremes_in_their_row_and_column() {
    let [rows, inputs, outputs] = [70, 9, 50]; // parts of a task, of a tile and of a panel
    let smallest = f32::from_bits(1);
    for (number, factor, right) in [
        (f32::MAX, 1.0, f32::MAX),
        (f32::MAX, 2.0, f32::INFINITY),
        (-1e30, 1e30, f32::NEG_INFINITY),
        (smallest, 1.0, smallest),
        (f32::NAN, 1.0, f32::NAN),
    ] {
        let sizes = [rows, inputs, outputs];
        let one = |length: usize, at: usize, value: f32| {
            let mut all = vec![0.0; length];
            all[at] = value;
            all
        };
        let (row, input, output) = (69, 8, 49);
        let weight = one(inputs * outputs, input * outputs + output, factor);
        let x = one(rows * inputs, row * inputs + input, number);
        let d_y = one(rows * outputs, row * outputs + output, number);
        let mut y = vec![f32::NAN; rows * outputs];
        let mut d_x = vec![f32::NAN; rows * inputs];
        affine(sizes, &x, &weight, None, &mut y).unwrap();
        input_gradient(sizes, &d_y, &weight, &mut d_x).unwrap();
        for (found, width, column) in [(y, outputs, output), (d_x, inputs, input)] {
            for (at, &found) in found.iter().enumerate() {
                match at == row * width + column {
                    true => assert!(
                        found == right || found.is_nan() && right.is_nan(),
                        "{found}"
                    ),
                    // What is no number reaches its own row, times the zeros there.
                    false if at / width == row && number.is_nan() => assert!(found.is_nan()),
                    false => assert_eq!(found, 0.0, "{number} at {at}"),
                }
            }
        }
    }
    // Nothing is allocated for sizes of what is not there.
    affine([0, 0, usize::MAX], &[], &[], None, &mut []).unwrap();
    affine([usize::MAX, 0, 0], &[], &[], Some(&[]), &mut []).unwrap();
    input_gradient([0, usize::MAX, 0], &[], &[], &mut []).unwrap();
    let far = affine([usize::MAX, 2, 2], &[], &[0.0; 4], None, &mut []);
    assert!(matches!(far, Err(KernelError::TooLarge { .. })), "{far:?}");
}

#[test]
fn a_layer_without_inputs_is_its_bias_and_wrong_lengths_are_refused_by_name() {
    let mut y = [f32::NAN; 4];
    affine([2, 0, 2], &[], &[], Some(&[1.0, 2.0]), &mut y).unwrap();
    assert_eq!(y, [1.0, 2.0, 1.0, 2.0]);
    affine([2, 0, 2], &[], &[], None, &mut y).unwrap();
    assert_eq!(y, [0.0; 4]);
    affine([2, 3, 0], &[1.0; 6], &[], None, &mut []).unwrap();
    input_gradient([2, 2, 0], &[], &[], &mut y).unwrap();
    assert_eq!(y, [0.0; 4]);

    let name = |found: Result<(), KernelError>| match found {
        Err(KernelError::Length { argument, .. }) => argument,
        other => panic!("{other:?}"),
    };
    let (x, weight, bias) = ([0.0; 6], [0.0; 6], [0.0; 2]);
    let affine = |x: &[f32], weight: &[f32], bias: &[f32], y: usize| {
        name(affine([2, 3, 2], x, weight, Some(bias), &mut vec![0.0; y]))
    };
    assert_eq!(affine(&x[1..], &weight, &bias, 4), "x");
    assert_eq!(affine(&x, &weight[1..], &bias, 4), "weight");
    assert_eq!(affine(&x, &weight, &bias[1..], 4), "bias");
    assert_eq!(affine(&x, &weight, &bias, 3), "y");
    let gradient = |d_y: &[f32], weight: &[f32], d_x: usize| {
        name(input_gradient([2, 3, 2], d_y, weight, &mut vec![0.0; d_x]))
    };
    assert_eq!(gradient(&x[..3], &weight, 6), "d_y");
    assert_eq!(gradient(&x[..4], &weight[1..], 6), "weight");
    assert_eq!(gradient(&x[..4], &weight, 5), "d_x");
}

#[test]
fn strides_leave_the_gaps_alone() {
    let (rows, inner, columns, gap) = (5, 9, 20, 3);
    let (a, b) = (
        random(3, rows * (inner + gap), 1.0),
        random(4, inner * columns, 1.0),
    );
    for &level in Level::available() {
        let packed = Packed::strided(
            level,
            &b,
            Strides {
                row: columns,
                column: 1,
            },
            inner,
            columns,
        );
        let mut c = vec![7.0; rows * (columns + gap) - gap];
        packed.product(&a, inner + gap, &mut c, columns + gap, rows, Write::Replace);
        for row in 0..rows {
            let mut alone = vec![0.0; columns];
            packed.product(
                &a[row * (inner + gap)..],
                inner,
                &mut alone,
                columns,
                1,
                Write::Replace,
            );
            let line = &c[row * (columns + gap)..];
            assert_eq!(
                bits(&line[..columns]),
                bits(&alone),
                "a row alone is the row in the batch"
            );
            assert!(line[columns..].iter().take(gap).all(|&x| x == 7.0));
        }
    }
}

#[test]
fn transposed_product_is_its_definition_on_every_level_and_pool() {
    // Inner lengths on both sides of a block, work on both sides of the single-thread limit, and small results in parts.
    let sizes = [
        (2048, 16, 5),
        (5003, 30, 70),
        (2100, 257, 260),
        (1, 1, 1),
        (3, 9, 50),
        (257, 7, 40),
        (600, 41, 97),
        (513, 64, 130),
        (260, 300, 40),
    ];
    for &(inner, rows, columns) in unless_miri(&sizes[..], &[(3, 9, 50), (257, 2, 3)]) {
        let (a, b) = (
            random(5, inner * rows, 1.0),
            random(6, inner * columns, 1.0),
        );
        let turned = transpose(&a, inner, rows);
        let truth = naive(&wide(&turned), &wide(&b), rows, inner, columns);
        let slow = naive(&turned, &b, rows, inner, columns);
        for &level in Level::available() {
            let results = on_every_pool(|| {
                let mut c = vec![f32::NAN; rows * columns];
                let (a, b) = (
                    Matrix::new(&a, rows, inner, rows),
                    Matrix::new(&b, columns, inner, columns),
                );
                transposed_product(level, a, b, &mut c, columns, Write::Replace);
                let once = c.clone();
                transposed_product(level, a, b, &mut c, columns, Write::Add);
                vec![once, c]
            });
            let name = format!("{level:?} {inner} {rows} {columns}");
            assert_close(&name, &results[0], &slow, &truth, 2.0);
            let twice: Vec<f32> = results[0].iter().map(|x| x + x).collect();
            assert_eq!(bits(&results[1]), bits(&twice), "{name}: added");
        }
    }
}

/// A result in parts: what is no number, or the largest, in one part reaches its row of the result and no other.
#[test]
#[cfg_attr(miri, ignore = "large")]
fn extremes_in_one_part_stay_in_their_row() {
    let sizes @ [rows, inputs, outputs] = [3000, 9, 20];
    let mut x = random(9, rows * inputs, 1.0);
    let d_y = random(10, rows * outputs, 1.0);
    let gradient = |x: &[f32]| {
        let mut to = vec![f32::NAN; inputs * outputs];
        weight_gradient(sizes, x, &d_y, &mut to, outputs, Write::Replace).unwrap();
        to
    };
    let before = gradient(&x);
    for extreme in [f32::NAN, f32::INFINITY, f32::MAX, -1e30] {
        x[1700 * inputs + 4] = extreme;
        let found = gradient(&x);
        for (row, (found, before)) in found
            .chunks(outputs)
            .zip(before.chunks(outputs))
            .enumerate()
        {
            match row {
                4 => assert!(
                    found.iter().all(|y| y.abs() > 1e20 || y.is_nan()),
                    "{extreme}"
                ),
                _ => assert_eq!(bits(found), bits(before), "{extreme}, row {row}"),
            }
        }
    }
}

#[test]
fn gradients_of_weights_stand_in_rows_apart() {
    let (rows, inputs, outputs, stride) = (300, 5, 7, 9);
    let (x, d_y) = (
        random(7, rows * inputs, 1.0),
        random(8, rows * outputs, 1.0),
    );
    let sizes = [rows, inputs, outputs];
    let mut alone = vec![f32::NAN; inputs * outputs];
    weight_gradient(sizes, &x, &d_y, &mut alone, outputs, Write::Replace).unwrap();
    let mut apart = vec![3.0; (inputs - 1) * stride + outputs];
    weight_gradient(sizes, &x, &d_y, &mut apart, stride, Write::Replace).unwrap();
    for (row, line) in apart.chunks(stride).enumerate() {
        assert_eq!(
            bits(&line[..outputs]),
            bits(&alone[row * outputs..][..outputs])
        );
        assert!(line[outputs..].iter().all(|&x| x == 3.0), "between rows");
    }
    let mut again = vec![f32::NAN; inputs * outputs];
    weight_gradient_fresh(sizes, &x, &d_y, fresh(&mut again)).unwrap();
    assert_eq!(bits(&again), bits(&alone));
    // Of no rows the gradient is 0; of a single input any stride will do.
    weight_gradient([0, 1, 2], &[], &[], &mut apart[..2], 0, Write::Replace).unwrap();
    assert_eq!(apart[..2], [0.0; 2]);
    weight_gradient([usize::MAX, 0, 0], &[], &[], &mut [], 0, Write::Add).unwrap();
}

#[test]
fn gradients_of_weights_keep_extremes_in_their_row_and_column() {
    let [rows, inputs, outputs] = [300, 11, 50]; // two blocks, a part of a tile and of a panel
    let smallest = f32::from_bits(1);
    for (number, factor, right) in [
        (f32::MAX, 1.0, f32::MAX),
        (f32::MAX, 2.0, f32::INFINITY),
        (-1e30, 1e30, f32::NEG_INFINITY),
        (smallest, 1.0, smallest),
        (f32::NAN, 1.0, f32::NAN),
    ] {
        let (mut x, mut d_y) = (vec![0.0; rows * inputs], vec![0.0; rows * outputs]);
        let (k, row, column) = (299, 10, 49);
        x[k * inputs + row] = number;
        d_y[k * outputs + column] = factor;
        let mut to = vec![f32::NAN; inputs * outputs];
        let sizes = [rows, inputs, outputs];
        weight_gradient(sizes, &x, &d_y, &mut to, outputs, Write::Replace).unwrap();
        for (index, &found) in to.iter().enumerate() {
            match index == row * outputs + column {
                true => assert!(
                    found == right || found.is_nan() && right.is_nan(),
                    "{found}"
                ),
                // What is not finite reaches its own row, times the zeros there.
                false if index / outputs == row && !number.is_finite() => assert!(found.is_nan()),
                false => assert_eq!(found, 0.0, "{number} at {index}"),
            }
        }
    }
}

#[test]
fn gradients_of_weights_refuse_what_does_not_fit() {
    let mut to = [0.0; 6];
    let mut call = |sizes: [usize; 3], stride| {
        weight_gradient(
            sizes,
            &[1.0; 8],
            &[1.0; 12],
            &mut to,
            stride,
            Write::Replace,
        )
        .unwrap_err()
    };
    assert!(matches!(
        call([4, 3, 3], 3),
        KernelError::Length { argument: "x", .. }
    ));
    assert!(matches!(
        call([4, 2, 4], 4),
        KernelError::Length {
            argument: "d_y",
            ..
        }
    ));
    assert!(matches!(
        call([4, 2, 3], 4),
        KernelError::Extent {
            argument: "d_weight",
            ..
        }
    ));
    assert!(matches!(
        call([4, 2, 3], 2),
        KernelError::Overlap {
            argument: "d_weight",
            ..
        }
    ));
    assert!(matches!(
        call([usize::MAX, 2, 3], 3),
        KernelError::TooLarge { argument: "x", .. }
    ));
}

#[test]
fn an_empty_inner_index_gives_zeros() {
    let packed = Packed::new(&[], 0, 3).unwrap();
    let mut c = [f32::NAN; 6];
    packed.multiply(&[], &mut c, 2).unwrap();
    assert_eq!(c, [0.0; 6]);
    let mut c = [f32::NAN; 6];
    let (a, b) = (Matrix::new(&[], 2, 0, 2), Matrix::new(&[], 3, 0, 3));
    transposed_product(Level::current(), a, b, &mut c, 3, Write::Replace);
    assert_eq!(c, [0.0; 6]);
}

#[test]
fn a_wrong_length_names_the_argument() {
    let error = Packed::new(&[0.0; 5], 2, 3).unwrap_err();
    assert!(matches!(
        error,
        KernelError::Length {
            argument: "matrix",
            expected: 6,
            found: 5,
            ..
        }
    ));
    let packed = Packed::transposed(&[0.0; 6], 2, 3).unwrap();
    let error = packed.multiply(&[0.0; 3], &mut [0.0; 6], 2).unwrap_err();
    assert!(matches!(
        error,
        KernelError::Length {
            argument: "a",
            expected: 4,
            found: 3,
            ..
        }
    ));
    let error = packed.multiply(&[0.0; 4], &mut [0.0; 5], 2).unwrap_err();
    assert!(matches!(
        error,
        KernelError::Length {
            argument: "c",
            expected: 6,
            found: 5,
            ..
        }
    ));
}

#[test]
fn sizes_beside_a_0_cost_nothing() {
    for [inner, columns] in [[0, usize::MAX], [usize::MAX, 0]] {
        for packed in [Packed::new, Packed::transposed] {
            let packed = packed(&[], inner, columns).unwrap();
            packed.multiply(&[], &mut [], 0).unwrap();
        }
    }
}

#[test]
fn only_a_storage_with_nan_takes_one() {
    let values = [1.0, f32::NAN, -2.0];
    for storage in [Storage::F32, Storage::Bf16, Storage::F16, Storage::Int8] {
        let mut packed = Packed::zeros(storage, 3, 2).unwrap();
        let mut column = [0.0; 3];
        match packed.set_column(1, &values) {
            Ok(()) => {
                packed.column(1, &mut column).unwrap();
                assert!(column[1].is_nan() && [column[0], column[2]] == [1.0, -2.0]);
            }
            Err(error) => {
                assert_eq!(storage, Storage::Int8);
                let expected = "`values` is NaN, expected numbers that the storage can hold";
                assert_eq!(error.to_string(), expected);
                packed.column(1, &mut column).unwrap();
                assert_eq!(column, [0.0; 3], "nothing is written");
            }
        }
    }
}

/// The bound that `Storage::Int8` states.
#[test]
fn eight_bits_keep_their_bound_for_small_groups() {
    for exponent in unless_miri(-120..20, -65..-60) {
        let largest = 10f32.powf(exponent as f32 / 13.0); // 6e-10 to 35
        let mut values = random(7, 40, largest);
        values[3] = -largest;
        let mut packed = Packed::zeros(Storage::Int8, 40, 1).unwrap();
        packed.set_column(0, &values).unwrap();
        let mut column = [f32::NAN; 40];
        packed.column(0, &mut column).unwrap();
        for (group, column) in values.chunks(32).zip(column.chunks(32)) {
            let largest = group.iter().fold(0.0f32, |max, x| max.max(x.abs()));
            for (x, found) in group.iter().zip(column) {
                let error = (x - found).abs();
                assert!(error <= largest / 253.0 + 3e-8, "{x} is not {found}");
                assert!(largest >= 2.9e-8 || *found == 0.0);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Small whole numbers have no rounding, so any order of summation gives the exact product.
    #[test]
    #[cfg_attr(miri, ignore = "large")]
    fn whole_numbers_are_exact(rows in 1usize..20, inner in 1usize..40, columns in 1usize..120, seed in 0u64..1000) {
        let whole = |seed, count| -> Vec<f32> {
            random(seed, count, 8.0).into_iter().map(f32::round).collect()
        };
        let (a, b) = (whole(seed + 1, rows * inner), whole(seed + 2, inner * columns));
        let expected = naive(&a, &b, rows, inner, columns);
        let packed = Packed::new(&b, inner, columns).unwrap();
        let mut c = vec![f32::NAN; rows * columns];
        packed.multiply(&a, &mut c, rows).unwrap();
        prop_assert_eq!(&c, &expected);
        let turned = transpose(&a, rows, inner);
        let (a, b) = (Matrix::new(&turned, rows, inner, rows), Matrix::new(&b, columns, inner, columns));
        transposed_product(Level::current(), a, b, &mut c, columns, Write::Replace);
        prop_assert_eq!(&c, &expected);
    }

    #[test]
    #[cfg_attr(miri, ignore = "large")]
    fn gradients_of_whole_numbers_are_exact(
        rows in 0usize..2600, inputs in 0usize..70, outputs in 0usize..120, gap in 0usize..4, seed in 0u64..1000,
    ) {
        let whole = |seed, count| -> Vec<f32> {
            random(seed, count, 8.0).into_iter().map(f32::round).collect()
        };
        let (x, d_y) = (whole(seed + 1, rows * inputs), whole(seed + 2, rows * outputs));
        let expected = naive(&transpose(&x, rows, inputs), &d_y, inputs, rows, outputs);
        let (sizes, stride) = ([rows, inputs, outputs], outputs + gap);
        let mut to = vec![7.0; inputs * stride];
        weight_gradient(sizes, &x, &d_y, &mut to, stride, Write::Replace).unwrap();
        weight_gradient(sizes, &x, &d_y, &mut to, stride, Write::Add).unwrap();
        for (index, &found) in to.iter().enumerate() {
            let (row, column) = (index / stride, index % stride);
            let right = if column < outputs { 2.0 * expected[row * outputs + column] } else { 7.0 };
            prop_assert_eq!(found, right, "{:?} row {} column {}", sizes, row, column);
        }
    }
}
