//! Rotary positions: valid calls against the definition, back again, and calls with a slice or a size that does not fit.

use regard_kernels::rotary::{self, Rotary};

use crate::{check::argument, dice::Dice};

/// One random call.
pub fn case(dice: &mut Dice) -> Result<(), String> {
    let [length, heads, pairs, rows] = [5, 4, 9, 12].map(|end| dice.below(end));
    let size = 2 * pairs + dice.below(3);
    let spread = dice.pick(&[1.0, 1e-30, 1e30]);
    let angles: Vec<f64> = (0..length * pairs)
        .map(|_| f64::from(dice.number(3.0)))
        .collect();
    let table = |f: fn(f64) -> f64| -> Box<[f32]> { angles.iter().map(|&a| f(a) as f32).collect() };
    let (cosine, sine) = (table(f64::cos), table(f64::sin));
    let rows = if length == 0 { 0 } else { rows };
    let given: Box<[f32]> = dice.numbers(rows * heads * size, spread).into();
    let mut rotary = Rotary {
        length,
        heads,
        size,
        cosine: &cosine,
        sine: &sine,
        interleaved: dice.once_in(2),
    };
    let mut x = given.clone();
    if dice.once_in(3)
        && let Some((name, short)) = damage(dice, &mut rotary, &x)
    {
        let mut x = short.unwrap_or(x);
        let before = x.clone();
        return match rotary::rotate(&rotary, &mut x) {
            Ok(()) => Err(format!("accepted a wrong `{name}`: {rotary:?}")),
            Err(error) if argument(&error) != name => {
                Err(format!("blamed `{}` instead of `{name}`", argument(&error)))
            }
            Err(_) if x != before => Err(format!("wrote before it refused `{name}`")),
            Err(_) => Ok(()),
        };
    }
    let refused = |error| format!("refused a right call: {error}: {rotary:?}");
    rotary::rotate(&rotary, &mut x).map_err(refused)?;
    let width = heads * size;
    // Two products and a sum of rounded factors.
    let close = |found: f32, exact: f64, largest: f64| {
        (f64::from(found) - exact).abs() <= 4.0 * f64::from(f32::EPSILON) * largest + 1e-44
    };
    for (at, &found) in x.iter().enumerate() {
        let (position, feature) = (at / width % length, at % size);
        let [pair, second] = match rotary.interleaved {
            true => [feature / 2, feature % 2],
            false => [feature % pairs.max(1), feature / pairs.max(1)],
        };
        if feature >= 2 * pairs {
            match found.to_bits() == given[at].to_bits() {
                true => continue,
                false => return Err(format!("number {at} is in no pair: {rotary:?}")),
            }
        }
        let apart = if rotary.interleaved { 1 } else { pairs };
        let first = at - second * apart;
        let [a, b] = [given[first], given[first + apart]].map(f64::from);
        let (sine, cosine) = angles[position * pairs + pair].sin_cos();
        let exact = [a * cosine - b * sine, b * cosine + a * sine][second];
        if !close(found, exact, a.abs() + b.abs()) {
            return Err(format!(
                "number {at} is {found} in place of {exact}: {rotary:?}"
            ));
        }
    }
    rotary::rotate_back(&rotary, &mut x).map_err(refused)?;
    let largest = given.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
    let returned = |(&x, &given)| close(x, f64::from(given), 4.0 * f64::from(largest));
    match x.iter().zip(&given).all(returned) {
        true => Ok(()),
        false => Err(format!("back again is not where it was: {rotary:?}")),
    }
}

/// Makes the call wrong; returns the argument to be blamed, and other numbers to be rotated if these are to be blamed.
fn damage<'a>(
    dice: &mut Dice,
    rotary: &mut Rotary<'a>,
    x: &[f32],
) -> Option<(&'static str, Option<Box<[f32]>>)> {
    let pairs = rotary.cosine.len() / rotary.length.max(1);
    let shorter = |slice: &'a [f32]| slice.split_last().map(|(_, rest)| rest);
    match dice.below(4) {
        // One number fewer, which is no shorter table of one position.
        0 if rotary.length > 1 => rotary.cosine = shorter(rotary.cosine)?,
        1 => {
            rotary.sine = shorter(rotary.sine)?;
            return Some(("sine", None));
        }
        2 if rotary.heads * rotary.size > 1 => {
            let (_, rest) = x.split_last()?;
            return Some(("x", Some(rest.into())));
        }
        3 if pairs > 0 => rotary.size = 2 * pairs - 1,
        _ => return None,
    }
    match rotary.size < 2 * pairs {
        // The numbers may no longer be whole rows, which is found first.
        true if !x.len().is_multiple_of((rotary.heads * rotary.size).max(1)) => Some(("x", None)),
        _ => Some(("cosine", None)),
    }
}
