//! Rotary positions of a stack: a frequency for each pair of features, and the angles of the positions of a pass.

use std::borrow::Cow;

use crate::{
    error::KernelError,
    rotary::{self, Rotary},
};

/// How queries and keys turn (see [`rotary`](crate::rotary)): pair `i` at position `p` by the angle `p · frequencies[i]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Rotation {
    /// `[pairs]`, in radians per position.
    pub frequencies: Vec<f64>,
    /// Factor of cosines and sines (YaRN, LongRoPE); 1 for none.
    pub factor: f64,
    /// Whether features `2 i` and `2 i + 1` form a pair, not `i` and `i + pairs`.
    pub interleaved: bool,
    /// Other frequencies for long texts.
    pub long: Option<LongTexts>,
}

/// Frequencies that depend on the length of a text. The positions of a pass have those of the length at its end, or of the one that
/// the text is known to reach ([`State::expect`](super::State::expect)); keys of former passes stay as they are.
#[derive(Debug, Clone, PartialEq)]
pub enum LongTexts {
    /// Others beyond this length (LongRoPE).
    Fixed {
        /// The longest text that has the usual ones.
        beyond: usize,
        /// `[pairs]`
        frequencies: Vec<f64>,
    },
    /// Beyond this length, those of the base times `(s n / beyond - (s - 1))^(r / (r - 2))` for `r` features and length `n`
    /// (dynamic NTK).
    Dynamic {
        /// The longest text that has the usual ones.
        beyond: usize,
        /// `θ`
        base: f64,
        /// `s`
        factor: f64,
    },
}

/// The angles of some positions.
pub(super) struct Angles<'a> {
    rotation: &'a Rotation,
    /// `[positions, pairs]`
    cosine: Vec<f32>,
    sine: Vec<f32>,
}

impl Rotation {
    /// The frequencies of the positions of a text, `[pairs]`, in radians per position.
    pub fn at_length(&self, length: usize) -> Cow<'_, [f64]> {
        match &self.long {
            Some(LongTexts::Fixed {
                beyond,
                frequencies,
            }) if length > *beyond => frequencies.into(),
            Some(LongTexts::Dynamic {
                beyond,
                base,
                factor,
            }) if length > *beyond => {
                let size = 2.0 * self.frequencies.len() as f64;
                let stretch = factor * length as f64 / *beyond as f64 - (factor - 1.0);
                let base = base * stretch.powf(size / (size - 2.0));
                let pairs = 0..self.frequencies.len();
                pairs.map(|i| base.powf(-2.0 * i as f64 / size)).collect()
            }
            _ => (&self.frequencies[..]).into(),
        }
    }

    /// Of positions, each with the length of its text.
    pub(super) fn angles(&self, places: impl Iterator<Item = (usize, usize)>) -> Angles<'_> {
        let (mut cosine, mut sine) = (vec![], vec![]);
        let mut known = (None, Cow::default());
        for (position, length) in places {
            if known.0 != Some(length) {
                known = (Some(length), self.at_length(length));
            }
            for frequency in known.1.iter() {
                let (s, c) = (position as f64 * frequency).sin_cos();
                cosine.push((c * self.factor) as f32);
                sine.push((s * self.factor) as f32);
            }
        }
        Angles {
            rotation: self,
            cosine,
            sine,
        }
    }

    /// Whether long texts have as many frequencies as others.
    pub(super) fn is_whole(&self) -> bool {
        match &self.long {
            Some(LongTexts::Fixed { frequencies, .. }) => {
                frequencies.len() == self.frequencies.len()
            }
            _ => true,
        }
    }
}

impl Angles<'_> {
    /// Turns the heads of a row, `x [heads · size]`, which stands at place `row` of the positions.
    pub(super) fn turn(&self, row: usize, x: &mut [f32], size: usize) -> Result<(), KernelError> {
        let pairs = self.rotation.frequencies.len();
        let place = row * pairs..(row + 1) * pairs;
        let rotary = Rotary {
            length: 1,
            heads: x.len() / size,
            size,
            cosine: &self.cosine[place.clone()],
            sine: &self.sine[place],
            interleaved: self.rotation.interleaved,
        };
        rotary::rotate(&rotary, x)
    }
}
