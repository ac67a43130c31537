//! A mean of a few repetitions, and how sure it is.

use std::fmt;

use serde::Serialize;

/// The mean of several measurements with the 95 % interval that Student's distribution gives it:
/// `m ± t s / √n`, `s² = Σ (x_i - m)² / (n - 1)`.
///
/// ```
/// use regard_train::experiments::Estimate;
///
/// let estimate = Estimate::of([1.0, 2.0, 3.0]);
/// assert_eq!(estimate.mean, 2.0);
/// assert!((estimate.half - 2.484).abs() < 1e-3); // 4.303 · 1 / √3
/// assert!(estimate.overlaps(&Estimate::of([4.0, 5.0, 6.0])));
/// assert!(!estimate.overlaps(&Estimate::of([14.0, 15.0, 16.0])));
/// assert_eq!(Estimate::of([-1.0, -2.0, -3.0]).to_string(), "-2.00 ± 2.48");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Half of the interval's width; 0 for one measurement.
    pub half: f64,
}

/// The 97.5 % points of Student's distribution with 1, 2, .. degrees of freedom.
const STUDENT: [f64; 10] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
];

impl Estimate {
    /// That of these measurements.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let values: Vec<f64> = values.into_iter().collect();
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let Some(freedom) = values.len().checked_sub(2) else {
            return Self { mean, half: 0.0 };
        };
        let squares = values.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>();
        // Beyond ten degrees of freedom the last point, which is a little too wide.
        let t = STUDENT[freedom.min(STUDENT.len() - 1)];
        let half = t * (squares / (n - 1.0) / n).sqrt();
        Self { mean, half }
    }

    /// The lower and the upper end of the interval.
    pub fn interval(&self) -> (f64, f64) {
        (self.mean - self.half, self.mean + self.half)
    }

    /// Whether the two intervals have a number in common, so that the means may be equal.
    pub fn overlaps(&self, other: &Self) -> bool {
        (self.mean - other.mean).abs() <= self.half + other.half
    }
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = |x: f64| match x.abs() {
            size if size == 0.0 || (0.01..1e4).contains(&size) => format!("{x:.*}", decimals(x)),
            size if size < 0.01 => format!("{x:.1e}"),
            _ => format!("{x:.3e}"),
        };
        write!(f, "{}", digits(self.mean))?;
        if self.half > 0.0 {
            write!(f, " ± {}", digits(self.half))?;
        }
        Ok(())
    }
}

/// Decimals for three digits or a little more.
fn decimals(x: f64) -> usize {
    match x.abs() {
        x if x >= 100.0 => 0,
        x if x >= 10.0 => 1,
        x if x >= 1.0 => 2,
        _ => 3,
    }
}
