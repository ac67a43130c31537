//! Compares every cell with the reference, unit by unit, and its gradients with finite differences of the
//! reference in `f64`.

use super::gru::{GruStep, GruStepFields};
use super::gru_reset_before::{ResetFields, ResetStep, UpdateFields, UpdateStep};
use super::lstm::{LstmStep, LstmStepFields};
use super::*;
use crate::operation::{Fields, Operation, backward_at, forward_at};
use crate::reference;
use crate::simd::Level;
use crate::testing::{assert_close, difference, on_every_pool, random, unless_miri};

const SIZES: [(usize, usize); 6] = [(1, 1), (3, 7), (2, 40), (5, 59), (4, 64), (2, 256)];

/// The number at `[row, gate, unit]` of a matrix of `gates` gates.
fn at(matrix: &[f32], gates: usize, n: usize, row: usize, gate: usize, unit: usize) -> f32 {
    matrix[(row * gates + gate) * n + unit]
}

/// Applies `f` to the inputs of every unit of every row that moves; gives `old` in the other rows.
fn by_unit<T: reference::Real>(
    step: &Step,
    inputs: &[(&[f32], usize)],
    f: impl Fn(&[T]) -> T,
    old: &[f32],
) -> Vec<T> {
    let n = step.units;
    (0..step.batch * n)
        .map(|i| {
            let (row, unit) = (i / n, i % n);
            if !moves(step.keep.as_deref(), row) {
                return T::of(f64::from(old[i]));
            }
            let x: Vec<T> = inputs
                .iter()
                .flat_map(|&(matrix, gates)| {
                    (0..gates)
                        .map(move |gate| T::of(f64::from(at(matrix, gates, n, row, gate, unit))))
                })
                .collect();
            f(&x)
        })
        .collect()
}

/// The slope of `f` with respect to input `which`, at the inputs of every unit, times `d`.
fn slopes(
    step: &Step,
    inputs: &[(&[f32], usize)],
    which: usize,
    d: &[f32],
    f: impl Fn(&[f64]) -> f64 + Copy,
    of_still_rows: &[f32],
) -> Vec<f64> {
    let with_d: Vec<(&[f32], usize)> = [(d, 1)].into_iter().chain(inputs.iter().copied()).collect();
    by_unit::<f64>(
        step,
        &with_d,
        |x| x[0] * difference(&x[1..], which, f),
        of_still_rows,
    )
}

/// One gate of a matrix of several.
fn gate(matrix: &[f32], gates: usize, n: usize, which: usize) -> Vec<f32> {
    if n == 0 {
        return Vec::new();
    }
    matrix
        .chunks_exact(gates * n)
        .flat_map(|row| row[which * n..(which + 1) * n].to_vec())
        .collect()
}

/// Finite differences are exact to about 1e-9; the kernels' `f32` to a few units in the last place of 1.
#[track_caller]
fn assert_slopes(name: &str, fast: &[f32], slopes: &[f64]) {
    for (i, (fast, slope)) in fast.iter().zip(slopes).enumerate() {
        assert!(
            (f64::from(*fast) - slope).abs() < 2e-6,
            "{name}[{i}]: {fast} {slope}"
        );
    }
}

fn keeps(batch: usize) -> [Option<Vec<bool>>; 2] {
    [None, Some((0..batch).map(|row| row % 2 == 0).collect())]
}

/// The result of a step, then the gradients of its inputs. The buffers start as NaN, so that anything not
/// overwritten is detected.
fn both_ways<O: Operation>(
    level: Level,
    step: &O,
    inputs: &O::Inputs<&[f32]>,
    d_result: &[f32],
) -> Vec<Vec<f32>> {
    let inputs = || O::Inputs::collect(inputs.each().into_iter().copied());
    let (of_inputs, of_written) = step.shapes().unwrap();
    let nan = |shape: crate::Shape| vec![f32::NAN; shape.len().unwrap()];
    let mut written: Vec<_> = of_written.into_vec().into_iter().map(nan).collect();
    let to = O::Written::collect(written.iter_mut().map(|x| &mut x[..]));
    forward_at(step, level, inputs(), to).unwrap();
    let mut gradients: Vec<_> = of_inputs.into_vec().into_iter().map(nan).collect();
    let to = O::Inputs::collect(gradients.iter_mut().map(|x| &mut x[..]));
    let from = O::Written::collect(written.iter().map(|x| &x[..]));
    backward_at(step, level, inputs(), from, d_result, to).unwrap();
    written.truncate(1);
    written.append(&mut gradients);
    written
}

/// Writes NaN to rows that do not move.
fn poison(step: &Step, matrix: &mut [f32], gates: usize) {
    for (row, numbers) in matrix.chunks_exact_mut(gates * step.units).enumerate() {
        if !moves(step.keep.as_deref(), row) {
            numbers.fill(f32::NAN);
        }
    }
}

#[test]
fn gru_with_the_reset_after() {
    for &(batch, units) in unless_miri(&SIZES[..], &[(2, 3)]) {
        for keep in keeps(batch) {
            let step = &Step { batch, units, keep };
            let size = batch * units;
            let (mut x, mut u) = (random(1, 3 * size, 3.0), random(2, 3 * size, 3.0));
            poison(step, &mut x, 3);
            poison(step, &mut u, 3);
            let (h, d) = (random(3, size, 1.0), random(4, size, 1.0));
            let inputs: [(&[f32], usize); 3] = [(&x, 3), (&u, 3), (&h, 1)];
            fn f<T: reference::Real>(x: &[T]) -> T {
                reference::gru_reset_after([x[0], x[1], x[2]], [x[3], x[4], x[5]], x[6])
            }
            for &level in Level::available() {
                let all = on_every_pool(|| {
                    let inputs = GruStepFields {
                        x: &x[..],
                        product: &u,
                        state: &h,
                    };
                    both_ways(level, &GruStep(step.clone()), &inputs, &d)
                });
                let [naive, truth] = [by_unit(step, &inputs, f::<f32>, &h), Vec::new()];
                let _: Vec<f32> = truth;
                assert_close(
                    "next",
                    &all[0],
                    &naive,
                    &by_unit(step, &inputs, f::<f64>, &h),
                    2.0,
                );
                let zeros = vec![0.0; size];
                for g in 0..3 {
                    let slope = |which| slopes(step, &inputs, which, &d, f::<f64>, &zeros);
                    assert_slopes("d_x", &gate(&all[1], 3, units, g), &slope(g));
                    assert_slopes("d_u", &gate(&all[2], 3, units, g), &slope(3 + g));
                }
                assert_slopes(
                    "d_state",
                    &all[3],
                    &slopes(step, &inputs, 6, &d, f::<f64>, &d),
                );
            }
        }
    }
}

#[test]
fn gru_with_the_reset_before() {
    for &(batch, units) in unless_miri(&SIZES[..], &[(2, 3)]) {
        for keep in keeps(batch) {
            let step = &Step { batch, units, keep };
            let size = batch * units;
            let (mut x, mut u) = (random(1, 3 * size, 3.0), random(2, 2 * size, 3.0));
            let mut u_candidate = random(5, size, 3.0);
            poison(step, &mut x, 3);
            poison(step, &mut u, 2);
            poison(step, &mut u_candidate, 1);
            let (h, d) = (random(3, size, 1.0), random(4, size, 1.0));
            for &level in Level::available() {
                let first = on_every_pool(|| {
                    let inputs = ResetFields {
                        x: &x[..],
                        product: &u,
                        state: &h,
                    };
                    both_ways(level, &ResetStep(step.clone()), &inputs, &d)
                });
                let second = on_every_pool(|| {
                    let inputs = UpdateFields {
                        x: &x[..],
                        product: &u,
                        candidate: &u_candidate,
                        state: &h,
                    };
                    both_ways(level, &UpdateStep(step.clone()), &inputs, &d)
                });
                let zeros = vec![0.0; size];
                let whole: [(&[f32], usize); 4] = [(&x, 3), (&u, 2), (&h, 1), (&u_candidate, 1)];
                fn reset<T: reference::Real>(x: &[T]) -> T {
                    reference::gru_reset_before_gates(x[0] + x[3], x[1] + x[4], x[5]).2
                }
                fn next<T: reference::Real>(x: &[T]) -> T {
                    let z = reference::gru_reset_before_gates(x[0] + x[3], x[1] + x[4], x[5]).0;
                    reference::gru_reset_before_output(z, x[2] + x[6], x[5])
                }
                let naive = by_unit(step, &whole, reset::<f32>, &zeros);
                let truth = by_unit(step, &whole, reset::<f64>, &zeros);
                assert_close("r h", &first[0], &naive, &truth, 2.0);
                let naive = by_unit(step, &whole, next::<f32>, &h);
                let truth = by_unit(step, &whole, next::<f64>, &h);
                assert_close("next", &second[0], &naive, &truth, 2.0);
                // A row that does not move contributes nothing in the first half, and its own state in the
                // second.
                let slope = |which| slopes(step, &whole, which, &d, reset, &zeros);
                for g in 0..3 {
                    assert_slopes("d_x", &gate(&first[1], 3, units, g), &slope(g));
                }
                for g in 0..2 {
                    assert_slopes("d_u", &gate(&first[2], 2, units, g), &slope(3 + g));
                }
                assert_slopes("d_state", &first[3], &slope(5));
                let slope = |which| slopes(step, &whole, which, &d, next, &zeros);
                for g in 0..3 {
                    assert_slopes("d_x", &gate(&second[1], 3, units, g), &slope(g));
                }
                for g in 0..2 {
                    assert_slopes("d_u", &gate(&second[2], 2, units, g), &slope(3 + g));
                }
                assert_slopes("d_candidate", &second[3], &slope(6));
                assert_slopes(
                    "d_state",
                    &second[4],
                    &slopes(step, &whole, 5, &d, next, &d),
                );
            }
        }
    }
}

#[test]
fn lstm_step() {
    for &(batch, units) in unless_miri(&SIZES[..], &[(2, 3)]) {
        for keep in keeps(batch) {
            let step = &Step { batch, units, keep };
            let size = batch * units;
            let (mut x, mut u) = (random(1, 4 * size, 3.0), random(2, 4 * size, 3.0));
            poison(step, &mut x, 4);
            poison(step, &mut u, 4);
            let (h, c) = (random(3, size, 1.0), random(4, size, 2.0));
            let (d_h, d_c) = (random(5, size, 1.0), random(6, size, 1.0));
            let inputs: [(&[f32], usize); 3] = [(&x, 4), (&u, 4), (&c, 1)];
            fn hidden<T: reference::Real>(x: &[T]) -> T {
                reference::lstm(std::array::from_fn(|g| x[g] + x[4 + g]), x[8]).0
            }
            fn cell<T: reference::Real>(x: &[T]) -> T {
                reference::lstm(std::array::from_fn(|g| x[g] + x[4 + g]), x[8]).1
            }
            for &level in Level::available() {
                let all = on_every_pool(|| {
                    let inputs = LstmStepFields {
                        x: &x[..],
                        product: &u,
                        hidden: &h,
                        cell: &c,
                    };
                    let d = [&d_h[..], &d_c].concat();
                    both_ways(level, &LstmStep(step.clone()), &inputs, &d)
                });
                let (h_new, c_new) = all[0].split_at(size);
                assert_eq!(all[1], all[2], "one gradient of x and of the product");
                let naive = [
                    by_unit::<f32>(step, &inputs, hidden, &h),
                    by_unit(step, &inputs, cell, &c),
                ];
                assert_close(
                    "h",
                    h_new,
                    &naive[0],
                    &by_unit(step, &inputs, hidden, &h),
                    2.0,
                );
                assert_close(
                    "c",
                    c_new,
                    &naive[1],
                    &by_unit(step, &inputs, cell, &c),
                    2.0,
                );
                let zeros = vec![0.0; size];
                for g in 0..4 {
                    let through_h = slopes(step, &inputs, g, &d_h, hidden, &zeros);
                    let through_c = slopes(step, &inputs, g, &d_c, cell, &zeros);
                    let sum: Vec<f64> = through_h
                        .iter()
                        .zip(&through_c)
                        .map(|(a, b)| a + b)
                        .collect();
                    assert_slopes("d_pre", &gate(&all[1], 4, units, g), &sum);
                }
                let through_h = slopes(step, &inputs, 8, &d_h, hidden, &zeros);
                let through_c = slopes(step, &inputs, 8, &d_c, cell, &d_c);
                let sum: Vec<f64> = through_h
                    .iter()
                    .zip(&through_c)
                    .map(|(a, b)| a + b)
                    .collect();
                assert_slopes("d_c", &all[4], &sum);
                for (row, d) in all[3].chunks_exact(units).enumerate() {
                    let expected = &d_h[row * units..(row + 1) * units];
                    if moves(step.keep.as_deref(), row) {
                        assert!(d.iter().all(|&d| d == 0.0));
                    } else {
                        assert_eq!(d, expected);
                    }
                }
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "large")]
fn large_batches_use_threads_and_keep_their_bits() {
    let (batch, units, keep) = (700, 256, None);
    let size = batch * units;
    let (x, u, h) = (
        random(1, 3 * size, 3.0),
        random(2, 3 * size, 3.0),
        random(3, size, 1.0),
    );
    let step = GruStep(Step { batch, units, keep });
    on_every_pool(|| {
        let inputs = GruStepFields {
            x: &x[..],
            product: &u,
            state: &h,
        };
        both_ways(Level::current(), &step, &inputs, &h)
    });
}

#[test]
fn extreme_pre_activations_stay_finite() {
    let (batch, units, keep) = (1, 4, None);
    let step = LstmStep(Step { batch, units, keep });
    let inputs = LstmStepFields {
        x: &[[1e4f32, -1e4, 1e30, -1e30]; 4].concat()[..],
        product: &[0.0; 16],
        hidden: &[0.0; 4],
        cell: &[0.5; 4],
    };
    let all = both_ways(Level::current(), &step, &inputs, &[1.0; 8]);
    assert!(all.iter().flatten().all(|x| x.is_finite()));
    assert_eq!(all[0][4], 1.5);
}

#[test]
fn errors_name_what_is_wrong() {
    let step = Step {
        batch: 2,
        units: 3,
        keep: Some(vec![true]),
    };
    let forward = |step: &Step, product: usize| {
        let size = step.batch * step.units;
        let inputs = GruStepFields {
            x: &vec![0.0; 3 * size][..],
            product: &vec![0.0; product],
            state: &vec![0.0; size],
        };
        let (_, of_written) = GruStep(step.clone()).shapes()?;
        let mut written = of_written.zeros()?;
        GruStep(step.clone()).forward(inputs, written.slices_mut())
    };
    assert!(matches!(
        forward(&step, 18),
        Err(KernelError::Length {
            argument: "keep",
            expected: 2,
            found: 1,
            ..
        })
    ));
    let step = Step { keep: None, ..step };
    assert!(matches!(
        forward(&step, 17),
        Err(KernelError::Length {
            argument: "product",
            shape: "[batch, 3 units]",
            expected: 18,
            found: 17
        })
    ));
    forward(&Step { batch: 0, ..step }, 0).unwrap();
}
