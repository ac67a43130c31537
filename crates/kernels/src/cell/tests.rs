//! Every cell against the reference, unit by unit, and its gradients by finite differences through
//! the reference in `f64`.

use super::*;
use crate::reference;
use crate::testing::{assert_close, difference, on_every_pool, random, unless_miri};

const SIZES: [(usize, usize); 6] = [(1, 1), (3, 7), (2, 40), (5, 59), (4, 64), (2, 256)];

/// The number at `[row, gate, unit]` of a matrix of `gates` gates.
fn at(matrix: &[f32], gates: usize, n: usize, row: usize, gate: usize, unit: usize) -> f32 {
    matrix[(row * gates + gate) * n + unit]
}

/// Applies `f` to the inputs of every unit of every row that moves, `old` elsewhere.
fn by_unit<T: reference::Real>(
    step: Step<'_>,
    inputs: &[(&[f32], usize)],
    f: impl Fn(&[T]) -> T,
    old: &[f32],
) -> Vec<T> {
    let n = step.units;
    (0..step.batch * n)
        .map(|i| {
            let (row, unit) = (i / n, i % n);
            if !step.moves(row) {
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
    step: Step<'_>,
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

/// Finite differences are good to about 1e-9; the kernels' `f32` to a few units of 1.
#[track_caller]
fn assert_slopes(name: &str, fast: &[f32], slopes: &[f64]) {
    for (i, (fast, slope)) in fast.iter().zip(slopes).enumerate() {
        assert!(
            (f64::from(*fast) - slope).abs() < 2e-6,
            "{name}[{i}]: {fast} {slope}"
        );
    }
}

fn keeps(batch: usize) -> [Option<Vec<u8>>; 2] {
    [
        None,
        Some((0..batch).map(|row| u8::from(row % 2 == 0)).collect()),
    ]
}

/// Poison in rows that do not move.
fn poison(step: Step<'_>, matrix: &mut [f32], gates: usize) {
    for (row, numbers) in matrix.chunks_exact_mut(gates * step.units).enumerate() {
        if !step.moves(row) {
            numbers.fill(f32::NAN);
        }
    }
}

#[test]
fn gru_with_the_reset_after() {
    for &(batch, units) in unless_miri(&SIZES[..], &[(2, 3)]) {
        for keep in keeps(batch) {
            let step = Step {
                batch,
                units,
                keep: keep.as_deref(),
            };
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
                    let (mut next, mut gates) = (vec![f32::NAN; size], vec![f32::NAN; 3 * size]);
                    gru::forward_at(level, step, &x, &u, &h, &mut next, &mut gates).unwrap();
                    let [mut dx, mut du] = [vec![f32::NAN; 3 * size], vec![f32::NAN; 3 * size]];
                    let mut dh = vec![f32::NAN; size];
                    let saved = gru::Saved {
                        u: &u,
                        state: &h,
                        gates: &gates,
                    };
                    gru::backward_at(level, step, saved, &d, &mut dx, &mut du, &mut dh).unwrap();
                    vec![next, dx, du, dh]
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
            let step = Step {
                batch,
                units,
                keep: keep.as_deref(),
            };
            let size = batch * units;
            let (mut x, mut u) = (random(1, 3 * size, 3.0), random(2, 2 * size, 3.0));
            let mut u_candidate = random(5, size, 3.0);
            poison(step, &mut x, 3);
            poison(step, &mut u, 2);
            poison(step, &mut u_candidate, 1);
            let (h, d) = (random(3, size, 1.0), random(4, size, 1.0));
            for &level in Level::available() {
                let all = on_every_pool(|| {
                    let nan = |gates: usize| vec![f32::NAN; gates * size];
                    let (mut z_reset, mut r) = (nan(2), nan(1));
                    gru_reset_before::gates_at(level, step, &x, &u, &h, &mut z_reset, &mut r)
                        .unwrap();
                    let (mut next, mut candidate) = (nan(1), nan(1));
                    gru_reset_before::output_at(
                        level,
                        step,
                        &x,
                        &u_candidate,
                        &z_reset,
                        &h,
                        &mut next,
                        &mut candidate,
                    )
                    .unwrap();
                    let (mut dx, mut du, mut dn) = (nan(3), nan(2), nan(1));
                    let (mut dz, mut dh) = (nan(1), nan(1));
                    gru_reset_before::OutputBackward {
                        step,
                        z_reset: &z_reset,
                        candidate: &candidate,
                        state: &h,
                        d_next: &d,
                    }
                    .at(level, &mut dx, &mut dn, &mut dz, &mut dh)
                    .unwrap();
                    gru_reset_before::GatesBackward {
                        step,
                        z_reset: &z_reset,
                        r: &r,
                        state: &h,
                        d_z: &dz,
                        d_reset: &d, // any gradient of r ∘ h will do
                    }
                    .at(level, &mut dx, &mut du, &mut dh)
                    .unwrap();
                    vec![z_reset, next, dx, du, dn, dh]
                });
                let zeros = vec![0.0; size];
                let first: [(&[f32], usize); 3] = [(&x, 3), (&u, 2), (&h, 1)];
                fn z<T: reference::Real>(x: &[T]) -> T {
                    reference::gru_reset_before_gates(x[0] + x[3], x[1] + x[4], x[5]).0
                }
                fn reset<T: reference::Real>(x: &[T]) -> T {
                    reference::gru_reset_before_gates(x[0] + x[3], x[1] + x[4], x[5]).2
                }
                let check = |name: &str, fast: &[f32], naive: Vec<f32>, truth: Vec<f64>| {
                    assert_close(name, fast, &naive, &truth, 2.0);
                };
                check(
                    "z",
                    &gate(&all[0], 2, units, 0),
                    by_unit(step, &first, z, &zeros),
                    by_unit(step, &first, z, &zeros),
                );
                check(
                    "r h",
                    &gate(&all[0], 2, units, 1),
                    by_unit(step, &first, reset, &zeros),
                    by_unit(step, &first, reset, &zeros),
                );
                let whole: [(&[f32], usize); 4] = [(&x, 3), (&u, 2), (&h, 1), (&u_candidate, 1)];
                fn next<T: reference::Real>(x: &[T]) -> T {
                    let z = reference::gru_reset_before_gates(x[0] + x[3], x[1] + x[4], x[5]).0;
                    reference::gru_reset_before_output(z, x[2] + x[6], x[5])
                }
                check(
                    "next",
                    &all[1],
                    by_unit(step, &whole, next, &h),
                    by_unit(step, &whole, next, &h),
                );
                // The loss is d · (h' + r ∘ h), where h' sees r only through `u_candidate`.
                let loss = |x: &[f64]| next(x) + reset(x);
                let slope = |which| slopes(step, &whole, which, &d, loss, &zeros);
                for g in 0..3 {
                    assert_slopes("d_x", &gate(&all[2], 3, units, g), &slope(g));
                }
                for g in 0..2 {
                    assert_slopes("d_u", &gate(&all[3], 2, units, g), &slope(3 + g));
                }
                assert_slopes("d_u_candidate", &all[4], &slope(6));
                assert_slopes("d_state", &all[5], &slopes(step, &whole, 5, &d, loss, &d));
            }
        }
    }
}

#[test]
fn lstm_step() {
    for &(batch, units) in unless_miri(&SIZES[..], &[(2, 3)]) {
        for keep in keeps(batch) {
            let step = Step {
                batch,
                units,
                keep: keep.as_deref(),
            };
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
                    let nan = |gates: usize| vec![f32::NAN; gates * size];
                    let (mut h_new, mut c_new, mut gates) = (nan(1), nan(1), nan(4));
                    let state = lstm::State { h: &h, c: &c };
                    lstm::Forward {
                        step,
                        x: &x,
                        u: &u,
                        state,
                    }
                    .at(level, &mut h_new, &mut c_new, &mut gates)
                    .unwrap();
                    let (mut d_pre, mut dh, mut dc) = (nan(4), nan(1), nan(1));
                    let saved = lstm::Saved {
                        c_old: &c,
                        c: &c_new,
                        gates: &gates,
                    };
                    let d_new = lstm::State { h: &d_h, c: &d_c };
                    lstm::Backward { step, saved, d_new }
                        .at(level, &mut d_pre, &mut dh, &mut dc)
                        .unwrap();
                    vec![h_new, c_new, d_pre, dh, dc]
                });
                let naive = [
                    by_unit::<f32>(step, &inputs, hidden, &h),
                    by_unit(step, &inputs, cell, &c),
                ];
                assert_close(
                    "h",
                    &all[0],
                    &naive[0],
                    &by_unit(step, &inputs, hidden, &h),
                    2.0,
                );
                assert_close(
                    "c",
                    &all[1],
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
                    assert_slopes("d_pre", &gate(&all[2], 4, units, g), &sum);
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
                    if step.moves(row) {
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
    let step = Step {
        batch: 700,
        units: 256,
        keep: None,
    };
    let size = step.batch * step.units;
    let (x, u, h) = (
        random(1, 3 * size, 3.0),
        random(2, 3 * size, 3.0),
        random(3, size, 1.0),
    );
    on_every_pool(|| {
        let (mut next, mut gates) = (vec![0.0; size], vec![0.0; 3 * size]);
        gru::forward(step, &x, &u, &h, &mut next, &mut gates).unwrap();
        vec![next, gates]
    });
}

#[test]
fn extreme_pre_activations_stay_finite() {
    let step = Step {
        batch: 1,
        units: 4,
        keep: None,
    };
    let x = [[1e4f32, -1e4, 1e30, -1e30]; 4].concat();
    let (mut h, mut c, mut gates) = ([0.0; 4], [0.0; 4], [0.0; 16]);
    let state = lstm::State {
        h: &[0.0; 4],
        c: &[0.5; 4],
    };
    lstm::forward(step, &x, &[0.0; 16], state, &mut h, &mut c, &mut gates).unwrap();
    assert!(h.iter().chain(&c).all(|x| x.is_finite()));
    assert_eq!(c[0], 1.5);
}

#[test]
fn the_door_names_what_is_wrong() {
    let step = Step {
        batch: 2,
        units: 3,
        keep: Some(&[1]),
    };
    let (mut next, mut gates) = ([0.0; 6], [0.0; 18]);
    let error = gru::forward(
        step, &[0.0; 18], &[0.0; 18], &[0.0; 6], &mut next, &mut gates,
    );
    assert!(matches!(
        error,
        Err(KernelError::Length {
            argument: "keep",
            expected: 2,
            found: 1,
            ..
        })
    ));
    let step = Step { keep: None, ..step };
    let error = gru::forward(
        step, &[0.0; 18], &[0.0; 17], &[0.0; 6], &mut next, &mut gates,
    );
    assert!(matches!(
        error,
        Err(KernelError::Length {
            argument: "u",
            shape: "[batch, 3 units]",
            expected: 18,
            found: 17
        })
    ));
    let empty = Step {
        batch: 0,
        units: 3,
        keep: None,
    };
    gru::forward(empty, &[], &[], &[], &mut [], &mut []).unwrap();
}
