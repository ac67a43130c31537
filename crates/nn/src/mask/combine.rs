//! Masks combined: `a & b` sees what both see, `a | b` what either sees, `!a` what `a` does not.
//!
//! Cost: `&` keeps what a kernel knows of both by name; `|` and `!` become a table of one flag for each place.
//!
//! ```
//! use regard_nn::mask::Mask;
//!
//! let future = !Mask::causal();
//! assert_eq!(future.picture(3, 3), "·■■\n··■\n···\n");
//! assert_eq!((future.clone() | Mask::causal()).picture(1, 2), "■■\n");
//! assert_eq!((future & Mask::causal()).picture(1, 2), "··\n");
//! ```

use std::ops::{BitAnd, BitOr, Not};

use super::{Mask, Row, Rule};

impl BitAnd for Mask {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        match (self.0, other.0) {
            (Rule::All, rule) | (rule, Rule::All) => Self(rule),
            (a, b) => Self(Rule::And(Box::new(a), Box::new(b))),
        }
    }
}

impl BitOr for Mask {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        match (self.0, other.0) {
            (Rule::All, _) | (_, Rule::All) => Self(Rule::All),
            (a, b) => Self(Rule::Or(Box::new(a), Box::new(b))),
        }
    }
}

impl Not for Mask {
    type Output = Self;

    fn not(self) -> Self {
        match self.0 {
            Rule::Not(rule) => Self(*rule),
            rule => Self(Rule::Not(Box::new(rule))),
        }
    }
}

/// Both rules, joined key by key.
pub(super) fn fill(
    a: &Rule,
    b: &Rule,
    row: &Row,
    seen: &mut [bool],
    join: impl Fn(bool, bool) -> bool,
) {
    let mut other = vec![false; seen.len()];
    a.fill(row, seen);
    b.fill(row, &mut other);
    for (seen, other) in seen.iter_mut().zip(other) {
        *seen = join(*seen, other);
    }
}
