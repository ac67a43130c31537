//! Pooling: valid calls, forward and backward, against their definition in double precision, and calls with a slice or a size that
//! does not fit, however large the size.

use regard_kernels::{
    KernelError,
    pool::{Kind, Pool, Windows},
};

use crate::{check::argument, dice::Dice};

/// Numbers of all maps at most.
const MOST: usize = 1 << 12;

/// One random call.
pub fn case(dice: &mut Dice) -> Result<(), String> {
    let pool = random(dice);
    case_of(dice, &pool).map_err(|error| format!("{error}: {pool:?}"))
}

fn random(dice: &mut Dice) -> Pool {
    let kernel = [(); 2].map(|()| 1 + dice.below(5));
    let mut pool = Pool {
        windows: Windows {
            kind: dice.pick(&[Kind::Max, Kind::Mean]),
            kernel,
            stride: [(); 2].map(|()| 1 + dice.below(4)),
            padding: kernel.map(|kernel| dice.below(kernel / 2 + 1)),
            ceil: dice.once_in(2),
        },
        maps: dice.below(4),
        size: [(); 2].map(|()| 1 + dice.below(12)),
    };
    for _ in 0..dice.pick(&[0, 0, 0, 1, 2]) {
        let size = dice.pick(&[0, 1, 7, 1 << 20, 1 << 40, usize::MAX / 2, usize::MAX]);
        let (axis, windows) = (dice.below(2), &mut pool.windows);
        match dice.below(5) {
            0 => windows.kernel[axis] = size,
            1 => windows.stride[axis] = size,
            2 => windows.padding[axis] = size,
            3 => pool.size[axis] = size,
            _ => pool.maps = size,
        }
    }
    pool
}

fn case_of(dice: &mut Dice, pool: &Pool) -> Result<(), String> {
    let faults = faults(pool);
    if !faults.is_empty() {
        let size = pool.output_size().map(|_| ());
        blames(&faults, size)?;
        blames(&faults, pool.forward(&[], &mut []))?;
        return blames(&faults, pool.backward(&[], &[], &mut []));
    }
    let refused = |error| format!("refused a right call: {error}");
    let output = pool.output_size().map_err(refused)?;
    if output.map(|count| count as u128) != [0, 1].map(|axis| count(pool, axis)) {
        return Err(format!("wrong output size {output:?}"));
    }
    let [height, width] = pool.size;
    let of_x = pool.maps * height * width;
    if of_x > MOST {
        let x = vec![0.0; dice.below(9)];
        return blames(&["x"], pool.forward(&x, &mut []));
    }
    let of_y = pool.maps * output[0] * output[1];
    // Small whole numbers tie.
    let spread = dice.pick(&[0.0, 1.0, 1e-30, 1e30]);
    let mut numbers = |count: usize| -> Box<[f32]> {
        let ties = spread == 0.0;
        let numbers = dice.numbers(count, if ties { 3.0 } else { spread });
        let numbers = numbers.into_iter();
        numbers.map(|x| if ties { x.round() } else { x }).collect()
    };
    let (mut x, d_y) = (numbers(of_x), numbers(of_y));
    if of_x > 0 && dice.once_in(6) {
        for _ in 0..1 + dice.below(3) {
            x[dice.below(of_x)] = dice.pick(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY]);
        }
    }
    let poison = |count: usize| -> Box<[f32]> { vec![f32::NAN; count].into() };
    if dice.once_in(3) {
        return damaged(dice, pool, [x, poison(of_y), d_y, poison(of_x)]);
    }
    let (mut y, mut d_x) = (poison(of_y), poison(of_x));
    pool.forward(&x, &mut y).map_err(refused)?;
    // The gradient of a mean does not depend on the numbers.
    let seen: &[f32] = match pool.windows.kind == Kind::Mean && dice.once_in(2) {
        true => &[],
        false => &x,
    };
    pool.backward(seen, &d_y, &mut d_x).map_err(refused)?;
    let truth = definition(pool, output, &x, &d_y);
    for (name, found, exact) in [("y", &y, &truth[0]), ("d_x", &d_x, &truth[1])] {
        for (at, (&found, &[sum, size])) in found.iter().zip(exact).enumerate() {
            let right = match sum.is_finite() {
                // Rounded once for each term at most, of a size that is at most the sum of the terms' sizes.
                true => {
                    let bound = 64.0 * f64::from(f32::EPSILON) * size + 1e-44;
                    (f64::from(found) - sum).abs() <= bound
                }
                false => f64::from(found) == sum || found.is_nan() && sum.is_nan(),
            };
            if !right {
                return Err(format!("{name}[{at}] is {found} in place of {sum}"));
            }
        }
    }
    Ok(())
}

/// One of the slices `x`, `y`, `ẏ` and `ẋ` gets another length.
fn damaged(
    dice: &mut Dice,
    pool: &Pool,
    [mut x, mut y, mut d_y, mut d_x]: [Box<[f32]>; 4],
) -> Result<(), String> {
    let (kind, wrong) = (pool.windows.kind, dice.below(5));
    let mut resize = |slice: &mut Box<[f32]>, name: &'static str| {
        let length = match dice.once_in(2) || slice.is_empty() {
            true => slice.len() + 1,
            false => slice.len() - 1,
        };
        let mut other = slice.to_vec();
        other.resize(length, f32::NAN);
        *slice = other.into();
        name
    };
    let blamed = match wrong {
        0 => resize(&mut x, "x"),
        1 => resize(&mut y, "y"),
        2 => resize(&mut d_y, "d_y"),
        3 if kind == Kind::Max => resize(&mut x, "x"),
        _ => resize(&mut d_x, "d_x"),
    };
    let (answer, written) = match wrong {
        0 | 1 => (pool.forward(&x, &mut y), y),
        _ => (pool.backward(&x, &d_y, &mut d_x), d_x),
    };
    blames(&[blamed], answer)?;
    match written.iter().all(|x| x.is_nan()) {
        true => Ok(()),
        false => Err(format!("wrote before it refused `{blamed}`")),
    }
}

/// Checks that a call was refused for one of these arguments.
fn blames(faults: &[&str], answer: Result<(), KernelError>) -> Result<(), String> {
    match answer {
        Err(error) if faults.contains(&argument(&error)) => Ok(()),
        other => Err(format!("{other:?} instead of blame for {faults:?}")),
    }
}

/// Every argument that may be blamed; none of a right call.
fn faults(pool: &Pool) -> Vec<&'static str> {
    let windows = &pool.windows;
    let mut faults = vec![];
    let mut blame = |name: &'static str, wrong: bool| faults.extend(wrong.then_some(name));
    for axis in 0..2 {
        let (kernel, padding) = (windows.kernel[axis], windows.padding[axis]);
        let padded = pool.size[axis] as u128 + 2 * padding as u128;
        let fits = windows.ceil || kernel as u128 <= padded;
        blame("kernel", kernel == 0 || !fits);
        blame("stride", windows.stride[axis] == 0);
        blame("padding", padding > kernel / 2);
        blame("size", pool.size[axis] == 0);
        blame("pool", padded > usize::MAX as u128);
    }
    let [maps, height, width] = [pool.maps, pool.size[0], pool.size[1]].map(|size| size as u128);
    let numbers = (maps * height).saturating_mul(width);
    blame("x", numbers > isize::MAX as u128 / 8);
    faults
}

/// How many windows there are along an axis: those that end inside the padded map, and with `ceil` one more for what they leave over if
/// it starts inside the map.
fn count(pool: &Pool, axis: usize) -> u128 {
    let windows = &pool.windows;
    let [kernel, stride, padding, size] = [
        windows.kernel[axis],
        windows.stride[axis],
        windows.padding[axis],
        pool.size[axis],
    ]
    .map(|size| size as u128);
    let (whole, left) = match (size + 2 * padding).checked_sub(kernel) {
        Some(steps) => (steps / stride + 1, !steps.is_multiple_of(stride)),
        None => (0, true),
    };
    whole + u128::from(windows.ceil && left && whole * stride < size + padding)
}

/// `[y, ẋ]`, each number with the sum of the sizes of its terms.
fn definition(
    pool: &Pool,
    [out_height, out_width]: [usize; 2],
    x: &[f32],
    d_y: &[f32],
) -> [Vec<[f64; 2]>; 2] {
    let Windows {
        kind,
        kernel,
        stride,
        padding,
        ..
    } = pool.windows;
    let places = |axis: usize, t: usize| {
        let start = t as u128 * stride[axis] as u128;
        let end = start + kernel[axis] as u128;
        let inside = move |a: &usize| (start..end).contains(&(*a as u128 + padding[axis] as u128));
        (0..pool.size[axis]).filter(inside)
    };
    let [height, width] = pool.size;
    let add = |to: &mut [f64; 2], term: f64| {
        to[0] += term;
        to[1] += term.abs();
    };
    let (mut y, mut d_x) = (vec![[0.0; 2]; d_y.len()], vec![[0.0; 2]; x.len()]);
    for (at, (y, &d)) in y.iter_mut().zip(d_y).enumerate() {
        let (u, rest) = (at % out_width, at / out_width);
        let (t, map) = (rest % out_height, rest / out_height);
        let line = |a: usize| places(1, u).map(move |b| (map * height + a) * width + b);
        let window: Vec<usize> = places(0, t).flat_map(line).collect();
        let d = f64::from(d);
        match kind {
            Kind::Max => {
                let first_nan = window.iter().copied().find(|&at| x[at].is_nan());
                let larger = |best: usize, &at: &usize| if x[at] > x[best] { at } else { best };
                let largest = || window.iter().fold(window[0], larger);
                let place = first_nan.unwrap_or_else(largest);
                *y = [x[place].into(), 0.0];
                add(&mut d_x[place], d);
            }
            Kind::Mean => {
                let count = window.len() as f64;
                for at in window {
                    add(y, f64::from(x[at]) / count);
                    add(&mut d_x[at], d / count);
                }
            }
        }
    }
    [y, d_x]
}
