//! Round numbers along an axis.

/// Smaller numbers are drawn as 0: the steps of an axis between them leave the range of `f64`.
const LEAST_DRAWN: f64 = 1e-150;

/// A number as it is drawn.
pub(crate) fn drawn(value: f64) -> f64 {
    match value.abs() < LEAST_DRAWN {
        true => 0.0,
        false => value,
    }
}

/// An axis that begins and ends at a round number.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Axis {
    pub low: f64,
    pub high: f64,
    pub step: f64,
}

impl Axis {
    /// An axis that holds all values in about `count` steps of 1, 2 or 5 times a power of ten.
    /// With no values it runs from 0 to 1.
    pub fn around(values: impl Iterator<Item = f64>, from_zero: bool, count: usize) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.map(drawn) {
            (low, high) = (low.min(value), high.max(value));
        }
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        if from_zero {
            (low, high) = (low.min(0.0), high.max(0.0));
        }
        if high - low <= low.abs().max(high.abs()) * 1e-9 {
            let pad = if low == 0.0 { 1.0 } else { low.abs() * 0.1 };
            let below = if from_zero && low == 0.0 { 0.0 } else { pad };
            (low, high) = (low - below, high + pad);
        }
        let step = round_step((high - low) / count.max(1) as f64);
        // A value that lies beyond a tick only by rounding, such as a BLEU of 100.00000000000004, does not extend the axis.
        const ROUNDING: f64 = 1e-10;
        Self {
            low: (low / step + ROUNDING).floor() * step,
            high: (high / step - ROUNDING).ceil() * step,
            step,
        }
    }

    /// The round numbers on the axis, both ends included.
    pub fn ticks(&self) -> Vec<f64> {
        let count = ((self.high - self.low) / self.step)
            .round()
            .clamp(1.0, 100.0) as usize;
        (0..=count)
            .map(|i| self.low + i as f64 * self.step)
            .collect()
    }

    /// Where a value lies, from 0 at the low end to 1 at the high end.
    pub fn place(&self, value: f64) -> f64 {
        (value - self.low) / (self.high - self.low)
    }

    /// The number as it is written at a tick.
    pub fn name(&self, value: f64) -> String {
        let value = if value.abs() < self.step * 1e-6 {
            0.0
        } else {
            value
        };
        let largest = self.low.abs().max(self.high.abs());
        if largest >= 1e7 || self.step < 1e-5 {
            return format!("{value:.1e}");
        }
        let decimals = (-(self.step * 1.000001).log10().floor()).max(0.0) as usize;
        let plain = format!("{value:.decimals$}");
        if largest >= 10_000.0 {
            thousands(&plain)
        } else {
            plain
        }
    }
}

/// The least of 1, 2, 5 times a power of ten that is not below `step`.
fn round_step(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    let factor = [1.0, 2.0, 5.0]
        .into_iter()
        .find(|f| f * power >= step * 0.999_999);
    factor.unwrap_or(10.0) * power
}

/// Digits in groups of three, with thin spaces.
fn thousands(number: &str) -> String {
    let (whole, rest) = match number.find('.') {
        Some(point) => number.split_at(point),
        None => (number, ""),
    };
    let digits = whole.trim_start_matches('-');
    let mut out = whole[..whole.len() - digits.len()].to_owned();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names(values: &[f64], from_zero: bool) -> Vec<String> {
        let axis = Axis::around(values.iter().copied(), from_zero, 5);
        axis.ticks().iter().map(|&tick| axis.name(tick)).collect()
    }

    #[test]
    fn tiny_numbers_are_zeros() {
        for tiny in [5e-324, 1e-310, 1e-151] {
            let axis = Axis::around([tiny, 2.0 * tiny].into_iter(), false, 5);
            assert_eq!(axis, Axis::around([0.0, 0.0].into_iter(), false, 5));
            assert!(axis.place(tiny).is_finite());
        }
    }

    #[test]
    fn rounding_adds_no_tick() {
        let percent = ["0", "20", "40", "60", "80", "100"];
        assert_eq!(names(&[21.0, 100.000_000_000_000_04], true), percent);
        assert_eq!(names(&[-1e-14, 100.0], false), percent);
        // Models that score 0.
        assert_eq!(names(&[0.0, 0.0], true).first().unwrap(), "0.0");
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(names(&[3.0, 38.2], true), ["0", "10", "20", "30", "40"]);
        assert_eq!(
            names(&[2.31, 2.92], false),
            ["2.2", "2.4", "2.6", "2.8", "3.0"]
        );
        assert_eq!(
            names(&[-1.0, 1.0], false),
            ["-1.0", "-0.5", "0.0", "0.5", "1.0"]
        );
        assert_eq!(
            names(&[0.0, 42_000.0], false),
            [
                "0",
                "10\u{202f}000",
                "20\u{202f}000",
                "30\u{202f}000",
                "40\u{202f}000",
                "50\u{202f}000"
            ]
        );
        assert_eq!(names(&[], false).len(), 6);
        assert_eq!(
            names(&[7.0], false).first().map(String::as_str),
            Some("6.0")
        );
    }

    proptest! {
        #[test]
        fn every_value_is_on_its_axis(values in proptest::collection::vec(-1e12f64..1e12, 1..9),
                                      from_zero: bool, count in 1usize..12) {
            let axis = Axis::around(values.iter().copied(), from_zero, count);
            for value in values {
                prop_assert!((-1e-9..=1.0 + 1e-9).contains(&axis.place(value)));
            }
            prop_assert!(axis.ticks().len() <= count + 4);
        }
    }
}
