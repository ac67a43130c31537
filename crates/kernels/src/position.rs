//! Positions and distances that cannot wrap.

use std::ops::{Add, Mul, Sub};

/// A position in a sequence, or the signed distance of two: a whole number from `-2⁴⁰` to `2⁴⁰`.
///
/// A distance or a size saturates ([`SequencePosition::saturating`]): a window that reaches 2⁴⁰ keys reaches past every key
/// there can be, so a wider one sees the same. A position must be exact ([`SequencePosition::exact`]): one that does not fit is
/// refused. Sums, differences and products stop at both ends.
///
/// ```
/// use regard_kernels::SequencePosition;
///
/// let (query, reach) = (SequencePosition::saturating(5), SequencePosition::saturating(usize::MAX));
/// assert!(query - reach < SequencePosition::ZERO && query + reach == SequencePosition::MAX);
/// assert_eq!(SequencePosition::exact(usize::MAX), None);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequencePosition(i64);

impl SequencePosition {
    /// The beginning of a sequence, or a distance of 0.
    pub const ZERO: Self = Self(0);
    /// Beyond every key, and far from an overflow of `i64`.
    pub const MAX: Self = Self(1 << 40);

    /// `number`, or [`SequencePosition::MAX`] if it is larger.
    pub fn saturating(number: usize) -> Self {
        Self::exact(number).unwrap_or(Self::MAX)
    }

    /// `number`; `None` if it is larger than [`SequencePosition::MAX`].
    pub fn exact(number: usize) -> Option<Self> {
        let number = i64::try_from(number).ok().map(Self);
        number.filter(|&number| number <= Self::MAX)
    }

    /// The number.
    pub fn get(self) -> i64 {
        self.0
    }

    /// Which block of `size` positions it lies in, counted from that of position 0; a size below 1 counts as 1.
    pub fn block(self, size: Self) -> Self {
        Self(self.0.div_euclid(size.0.max(1)))
    }

    /// The number clamped to `0..=length`, to be used as the bound of a range.
    pub fn bound(self, length: usize) -> usize {
        self.0.clamp(0, length as i64) as usize
    }

    fn clamped(number: i64) -> Self {
        Self(number.clamp(-Self::MAX.0, Self::MAX.0))
    }
}

impl Add for SequencePosition {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self::clamped(self.0 + other.0)
    }
}

impl Sub for SequencePosition {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self::clamped(self.0 - other.0)
    }
}

impl Mul for SequencePosition {
    type Output = Self;

    fn mul(self, other: Self) -> Self {
        Self::clamped(self.0.saturating_mul(other.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_products_stop_at_both_ends() {
        let of = SequencePosition::saturating;
        let most = 1usize << 40;
        assert_eq!(
            (of(most - 1).get(), of(most), of(usize::MAX)),
            ((1 << 40) - 1, SequencePosition::MAX, SequencePosition::MAX)
        );
        assert_eq!(
            (
                SequencePosition::exact(most),
                SequencePosition::exact(most + 1)
            ),
            (Some(SequencePosition::MAX), None)
        );
        let least = SequencePosition::ZERO - SequencePosition::MAX;
        assert_eq!(least - of(1), least);
        assert_eq!(SequencePosition::MAX + of(1), SequencePosition::MAX);
        assert_eq!(
            SequencePosition::MAX * SequencePosition::MAX,
            SequencePosition::MAX
        );
        assert_eq!(least * SequencePosition::MAX, least);
        assert_eq!((of(3) - of(5)).get(), -2);
        assert_eq!((of(3) - of(5)).block(of(2)).get(), -1);
        assert_eq!(of(5).block(of(0)), of(5));
        assert_eq!(
            [least, of(2), of(7)].map(|position| position.bound(5)),
            [0, 2, 5]
        );
    }
}
