//! Colours for numbers: ramps whose steps look equally large, and colours that terminals have.
//!
//! A [`Ramp`] maps `[0, 1]` to sRGB. [`Ramp::VIRIDIS`] (van der Walt and Smith 2015) runs from dark
//! blue to yellow in steps of equal lightness, for dark and light backgrounds; [`Ramp::PAPER`]
//! starts at the white of the page, so that weights of 0 are invisible.
//!
//! ```
//! use regard_view::colour::{Ramp, Rgb};
//!
//! assert_eq!(Ramp::VIRIDIS.at(0.0), Rgb(0x44, 0x01, 0x54));
//! assert_eq!(Ramp::VIRIDIS.at(1.0).to_string(), "#fde725");
//! assert_eq!(Ramp::VIRIDIS.at(1.0).nearest_256(), 220);
//! ```

use std::fmt;
use std::sync::LazyLock;

/// A colour in sRGB, eight bits each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rgb(pub u8, pub u8, pub u8);

impl fmt::Display for Rgb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{:02x}{:02x}{:02x}", self.0, self.1, self.2)
    }
}

impl Rgb {
    const fn hex(code: u32) -> Self {
        Self((code >> 16) as u8, (code >> 8) as u8, code as u8)
    }

    /// OKLab (Ottosson 2020): lightness and two opponent colours, in which Euclidean distance is
    /// close to what the eye sees.
    fn oklab(self) -> [f64; 3] {
        let linear = |v: u8| {
            let v = f64::from(v) / 255.0;
            if v <= 0.04045 {
                v / 12.92
            } else {
                ((v + 0.055) / 1.055).powf(2.4)
            }
        };
        let (r, g, b) = (linear(self.0), linear(self.1), linear(self.2));
        let l = (0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b).cbrt();
        let m = (0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b).cbrt();
        let s = (0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b).cbrt();
        [
            0.2104542553 * l + 0.7936177850 * m - 0.0040720468 * s,
            1.9779984951 * l - 2.4285922050 * m + 0.4505937099 * s,
            0.0259040371 * l + 0.7827717662 * m - 0.8086757660 * s,
        ]
    }

    /// Black or white, whichever reads better on this colour.
    pub fn ink(self) -> Rgb {
        if self.oklab()[0] > 0.62 {
            Rgb(0x11, 0x11, 0x11)
        } else {
            Rgb(0xff, 0xff, 0xff)
        }
    }

    /// The mixture of this colour and `part` of another, in sRGB.
    pub(crate) fn mix(self, other: Rgb, part: f32) -> Rgb {
        let channel =
            |a: u8, b: u8| (f32::from(a) + (f32::from(b) - f32::from(a)) * part).round() as u8;
        Rgb(
            channel(self.0, other.0),
            channel(self.1, other.1),
            channel(self.2, other.2),
        )
    }

    /// The nearest of the 240 fixed colours in a 256-colour terminal (6 x 6 x 6 cube and 24 greys;
    /// the first 16 depend on the user's theme and are left out).
    pub fn nearest_256(self) -> u8 {
        static PALETTE: LazyLock<Vec<(u8, [f64; 3])>> = LazyLock::new(|| {
            (16..=255)
                .map(|index| (index, xterm_256(index).oklab()))
                .collect()
        });
        let lab = self.oklab();
        let distance =
            |other: &[f64; 3]| -> f64 { (0..3).map(|i| (lab[i] - other[i]).powi(2)).sum() };
        PALETTE
            .iter()
            .min_by(|a, b| distance(&a.1).total_cmp(&distance(&b.1)))
            .map_or(16, |nearest| nearest.0)
    }
}

/// The colour of entry 16 to 255 of xterm's palette.
fn xterm_256(index: u8) -> Rgb {
    const STEPS: [u8; 6] = [0, 95, 135, 175, 215, 255];
    if index >= 232 {
        let grey = 8 + 10 * (index - 232);
        return Rgb(grey, grey, grey);
    }
    let cube = usize::from(index.saturating_sub(16));
    Rgb(STEPS[cube / 36], STEPS[cube / 6 % 6], STEPS[cube % 6])
}

/// After this many colours of [`category`] they repeat.
pub(crate) const CATEGORIES: usize = 8;

/// The colour of thing number `index`, such as a line of a chart or a box in an image.
pub(crate) fn category(index: usize) -> Rgb {
    const COLOURS: [u32; CATEGORIES] = [
        0x0072b2, 0xd55e00, 0x009e73, 0xcc79a7, 0xe69f00, 0x56b4e9, 0x5b5b5b, 0x8a6d00,
    ];
    Rgb::hex(COLOURS[index % CATEGORIES])
}

/// Colours for the numbers from 0 to 1, between evenly spaced anchors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ramp(&'static [Rgb]);

impl Ramp {
    /// Orange, the white of the page in the middle, blue: for numbers below and above 0.
    pub const SIGNED: Self = Self(&[
        Rgb::hex(0xb2500c),
        Rgb::hex(0xe08a3c),
        Rgb::hex(0xf6c795),
        Rgb::hex(0xf4f6f9),
        Rgb::hex(0xa9d0e6),
        Rgb::hex(0x3b90c1),
        Rgb::hex(0x164a83),
    ]);

    /// Dark blue, green, yellow: for any background.
    pub const VIRIDIS: Ramp = Ramp(&[
        Rgb::hex(0x440154),
        Rgb::hex(0x48186a),
        Rgb::hex(0x472d7b),
        Rgb::hex(0x424086),
        Rgb::hex(0x3b528b),
        Rgb::hex(0x33638d),
        Rgb::hex(0x2c728e),
        Rgb::hex(0x26828e),
        Rgb::hex(0x21918c),
        Rgb::hex(0x1fa088),
        Rgb::hex(0x28ae80),
        Rgb::hex(0x3fbc73),
        Rgb::hex(0x5ec962),
        Rgb::hex(0x84d44b),
        Rgb::hex(0xaddc30),
        Rgb::hex(0xd8e219),
        Rgb::hex(0xfde725),
    ]);

    /// Nearly white to deep blue: for paper and light pages.
    pub const PAPER: Ramp = Ramp(&[
        Rgb::hex(0xf4f6f9),
        Rgb::hex(0xd6e6f2),
        Rgb::hex(0xa9d0e6),
        Rgb::hex(0x6db3d6),
        Rgb::hex(0x3b90c1),
        Rgb::hex(0x1f6ba6),
        Rgb::hex(0x164a83),
        Rgb::hex(0x0d2b5c),
    ]);

    /// The colour of `value`; below 0, NaN included, the first, above 1 the last.
    pub fn at(&self, value: f32) -> Rgb {
        let last = self.0.len() - 1;
        let place = if value > 0.0 { value.min(1.0) } else { 0.0 } * last as f32;
        let index = (place as usize).min(last.saturating_sub(1));
        let (from, to) = (self.0[index], self.0[(index + 1).min(last)]);
        from.mix(to, place - index as f32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lightness_runs_one_way() {
        for (ramp, sign) in [(Ramp::VIRIDIS, 1.0), (Ramp::PAPER, -1.0)] {
            let lightness: Vec<f64> = (0..=64)
                .map(|i| sign * ramp.at(i as f32 / 64.0).oklab()[0])
                .collect();
            assert!(lightness.windows(2).all(|w| w[0] < w[1]), "{lightness:?}");
        }
    }

    #[test]
    fn any_number_has_a_colour() {
        for value in [f32::NAN, f32::NEG_INFINITY, -1.0] {
            assert_eq!(Ramp::PAPER.at(value), Ramp::PAPER.at(0.0));
        }
        assert_eq!(Ramp::PAPER.at(f32::INFINITY), Ramp::PAPER.at(1.0));
    }

    #[test]
    fn palette_colours_are_their_own_nearest() {
        for index in [16, 21, 59, 102, 196, 231, 240] {
            assert_eq!(xterm_256(xterm_256(index).nearest_256()), xterm_256(index));
        }
    }
}
