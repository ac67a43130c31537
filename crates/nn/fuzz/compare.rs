//! Comparing numbers.

/// Checks that `found` is within `tolerance` of `expected`, number by number. Equal infinities are equal; NaN is never.
pub fn close(name: &str, found: &[f64], expected: &[f64], tolerance: f64) -> Result<(), String> {
    if found.len() != expected.len() {
        return Err(format!(
            "{name}: {} numbers, expected {}",
            found.len(),
            expected.len()
        ));
    }
    for (i, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let equal = found == expected || (found - expected).abs() <= tolerance;
        if !equal {
            return Err(format!(
                "{name}[{i}] is {found:e}, expected {expected:e} to within {tolerance:e}"
            ));
        }
    }
    Ok(())
}

/// Checks that the bits are the same.
pub fn same(name: &str, found: &[f64], expected: &[f64]) -> Result<(), String> {
    let bits = |x: &[f64]| x.iter().map(|x| x.to_bits()).collect::<Vec<u64>>();
    // All NaN count as the same.
    let either = |x: &[f64]| {
        x.iter()
            .map(|&x| if x.is_nan() { f64::NAN } else { x })
            .collect::<Vec<f64>>()
    };
    match bits(&either(found)) == bits(&either(expected)) {
        true => Ok(()),
        false => Err(format!("{name} differs: {found:?} {expected:?}")),
    }
}

/// The largest distance; infinite where either is NaN.
pub fn distance(found: &[f64], expected: &[f64]) -> f64 {
    found
        .iter()
        .zip(expected)
        .fold(0.0, |most: f64, (&a, &b)| match a == b {
            true => most,
            false if (a - b).is_nan() => f64::INFINITY,
            false => most.max((a - b).abs()),
        })
}

pub fn finite(name: &str, found: &[f64]) -> Result<(), String> {
    match found.iter().position(|x| !x.is_finite()) {
        None => Ok(()),
        Some(i) => Err(format!("{name}[{i}] is {}", found[i])),
    }
}

pub fn dims<const D: usize>(
    name: &str,
    found: [usize; D],
    expected: [usize; D],
) -> Result<(), String> {
    match found == expected {
        true => Ok(()),
        false => Err(format!("{name} has shape {found:?}, expected {expected:?}")),
    }
}
