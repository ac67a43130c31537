//! How the numbers of packed panels are stored: `f32`, bfloat16, half precision, or 8 bits with a scale for each group of 32.
//!
//! A number is widened to `f32` as it is loaded, exactly: products of the same stored numbers have the same bits, whether the
//! numbers are widened one by one or a panel at a time. Eight bits: `w = s q`, `q` in -127..=127, `s = max|w| / 127` of 32
//! neighbours along the inner index, as half precision; `s q` has at most 18 bits and is exact.
//!
//! Where the machine multiplies pairs of bfloat16 (`vdpbf16ps`, twice the numbers of an `f32` product), bfloat16 is not widened:
//! a lane holds two neighbours along the inner index, and the other factor is rounded to bfloat16 as well. Sums are `f32`.

use half::{bf16, f16};

use crate::{
    element,
    simd::{Kernel, Level, Simd},
};

/// Numbers along the inner index that share a scale.
pub(super) const GROUP: usize = 32;

/// How the weights of a product are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Storage {
    /// 32 bits, exact.
    #[default]
    F32,
    /// bfloat16: 8 bits of mantissa. On machines that multiply bfloat16 ([`Level::has_pairs`]) what is multiplied with it is rounded to
    /// bfloat16, too: infinite beyond its largest number, 3.39e38.
    Bf16,
    /// Half precision: 11 bits of mantissa.
    F16,
    /// 8 bits with a scale for each group of 32 inputs, in half precision. With `m` the largest magnitude of a group, each of its
    /// numbers is stored to within `m / 253 + 3e-8`: 0.4% of `m` where `m` is 1e-3 or more, up to 0.7% at 1e-5, 3.4% at 1e-6. All are
    /// 0 where `m` is below 2.9e-8.
    Int8,
}

/// Two neighbours along the inner index, the first in the lower half, in the bits of a lane. A last one without a neighbour stands
/// beside 0.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(transparent)]
pub(super) struct Pair(f32);

impl Pair {
    pub(super) const ZERO: Self = Self(0.0);

    fn new(low: f32, high: f32) -> Self {
        Self(element::pair(bf16::from_f32(low), bf16::from_f32(high)))
    }

    fn numbers(self) -> [bf16; 2] {
        let bits = self.0.to_bits();
        [bits as u16, (bits >> 16) as u16].map(bf16::from_bits)
    }
}

/// The `rows` of `a`, each rounded to pairs: `[rows, ⌈inner / 2⌉]`.
pub(super) struct Rounded<'a> {
    pub(super) a: &'a [f32],
    pub(super) a_row: usize,
    pub(super) rows: usize,
    pub(super) inner: usize,
}

impl Kernel for Rounded<'_> {
    type Output = Vec<f32>;

    /// A plain loop, compiled for the instructions of `S`.
    #[inline(always)]
    fn call<S: Simd>(self, _: S) -> Vec<f32> {
        let mut pairs = Vec::with_capacity(self.rows * self.inner.div_ceil(2));
        for row in 0..self.rows {
            let row = &self.a[row * self.a_row..][..self.inner];
            let (whole, last) = row.as_chunks::<2>();
            pairs.extend(whole.iter().map(|&[low, high]| Pair::new(low, high).0));
            pairs.extend(last.iter().map(|&last| Pair::new(last, 0.0).0));
        }
        pairs
    }
}

/// A type of stored numbers.
pub(super) trait Number: Copy + Send + Sync {
    /// Whether groups of [`GROUP`] lines have scales.
    const SCALED: bool;

    /// Runs `kernel`, which may use [`Self::fma`], as a function of its own.
    #[inline(always)]
    fn outline<S: Simd, K: Kernel>(s: S, kernel: K) -> K::Output {
        s.outline(kernel)
    }

    /// `c + a b` of lanes as they are loaded; of pairs the sum of both products.
    ///
    /// # Safety
    /// Of pairs: inside a kernel that [`Self::outline`] runs.
    #[inline(always)]
    unsafe fn fma<S: Simd>(s: S, a: S::V, b: S::V, c: S::V) -> S::V {
        s.fma(a, b, c)
    }

    /// `LANES` numbers from `from` on, without their scale.
    ///
    /// # Safety
    /// They can be read.
    unsafe fn load<S: Simd>(s: S, from: *const Self) -> S::V;
}

macro_rules! plain {
    ($($type:ty),+) => {$(
        impl Number for $type {
            const SCALED: bool = false;
            #[inline(always)]
            unsafe fn load<S: Simd>(s: S, from: *const Self) -> S::V {
                // SAFETY: the caller vouches for the memory.
                unsafe { element::load(s, from) }
            }
        }
    )+};
}
plain!(f32, bf16, f16);

impl Number for i8 {
    const SCALED: bool = true;
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, from: *const Self) -> S::V {
        // SAFETY: the caller vouches for the memory.
        unsafe { s.load_i8(from) }
    }
}

impl Number for Pair {
    const SCALED: bool = false;
    #[inline(always)]
    fn outline<S: Simd, K: Kernel>(s: S, kernel: K) -> K::Output {
        assert!(s.has_pairs(), "pairs are chosen where the machine has them");
        // SAFETY: it has.
        unsafe { s.outline_pairs(kernel) }
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, from: *const Self) -> S::V {
        // SAFETY: the caller vouches for the memory, and a pair is an `f32`.
        unsafe { s.load_from(from.cast()) }
    }
    #[inline(always)]
    unsafe fn fma<S: Simd>(s: S, a: S::V, b: S::V, c: S::V) -> S::V {
        // SAFETY: the caller is inside such a kernel.
        unsafe { s.dot_pairs(a, b, c) }
    }
}

/// Panels, one after another: each `[inner, panel width]`.
#[derive(Debug, Clone)]
pub(super) enum Panels {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
    /// bfloat16 where the machine multiplies pairs: `[⌈inner / 2⌉, panel width]` for each panel.
    Pairs(Vec<Pair>),
    F16(Vec<f16>),
    /// Scales are `[groups, panel width]` for each panel.
    Int8(Vec<i8>, Vec<f16>),
}

impl Panels {
    /// Zeros, in panels of `columns` columns in all (a multiple of the lanes).
    pub(super) fn zeros(storage: Storage, inner: usize, columns: usize) -> Self {
        let count = inner * columns;
        match storage {
            Storage::F32 => Self::F32(vec![0.0; count]),
            Storage::Bf16 if Level::current().has_pairs() => {
                Self::Pairs(vec![Pair::ZERO; inner.div_ceil(2) * columns])
            }
            Storage::Bf16 => Self::Bf16(vec![bf16::ZERO; count]),
            Storage::F16 => Self::F16(vec![f16::ZERO; count]),
            Storage::Int8 => Self::Int8(
                vec![0; count],
                vec![f16::ZERO; inner.div_ceil(GROUP) * columns],
            ),
        }
    }

    /// Whether a number can be stored: it is no larger than the largest, and 8 bits have no NaN.
    pub(super) fn holds(&self, number: f32) -> bool {
        let largest = match self {
            Self::F32(_) => f32::INFINITY,
            Self::Bf16(_) | Self::Pairs(_) => bf16::MAX.to_f32(),
            Self::F16(_) => f16::MAX.to_f32(),
            Self::Int8(..) => 127.0 * f16::MAX.to_f32(),
        };
        number.abs() <= largest || number.is_nan() && !matches!(self, Self::Int8(..))
    }

    /// Writes the numbers of one column, `values [inner]`. `first` is where its panel begins, in columns, `width` that panel's
    /// width, `at` the column's place in it.
    pub(super) fn set_column(&mut self, values: &[f32], [first, width, at]: [usize; 3]) {
        let inner = values.len();
        let start = inner * first + at;
        let to = || (start..).step_by(width);
        match self {
            Self::F32(panels) => values.iter().zip(to()).for_each(|(&x, i)| panels[i] = x),
            Self::Bf16(panels) => {
                let values = values.iter().zip(to());
                values.for_each(|(&x, i)| panels[i] = bf16::from_f32(x));
            }
            Self::Pairs(panels) => {
                let start = inner.div_ceil(2) * first + at;
                let to = (start..).step_by(width);
                for (pair, i) in values.chunks(2).zip(to) {
                    panels[i] = Pair::new(pair[0], *pair.get(1).unwrap_or(&0.0));
                }
            }
            Self::F16(panels) => {
                let values = values.iter().zip(to());
                values.for_each(|(&x, i)| panels[i] = f16::from_f32(x));
            }
            Self::Int8(panels, scales) => {
                let scale_at = inner.div_ceil(GROUP) * first + at;
                for (group, values) in values.chunks(GROUP).enumerate() {
                    let largest = values.iter().fold(0.0f32, |max, x| max.max(x.abs()));
                    let mut scale = f16::from_f32(largest / 127.0);
                    // The steps between scales below the normal numbers of half precision are wide: rounded down, one might not
                    // reach the largest number.
                    if largest > 127.5 * scale.to_f32() {
                        scale = f16::from_bits(scale.to_bits() + 1);
                    }
                    scales[scale_at + group * width] = scale;
                    let scale = scale.to_f32();
                    for (k, x) in values.iter().enumerate() {
                        let quotient = if scale > 0.0 { x / scale } else { 0.0 };
                        let q = quotient.round_ties_even().clamp(-127.0, 127.0) as i8;
                        panels[start + (group * GROUP + k) * width] = q;
                    }
                }
            }
        }
    }

    /// Reads what [`Panels::set_column`] wrote.
    pub(super) fn column(&self, to: &mut [f32], [first, width, at]: [usize; 3]) {
        let inner = to.len();
        let start = inner * first + at;
        for (k, x) in to.iter_mut().enumerate() {
            let i = start + k * width;
            *x = match self {
                Self::F32(panels) => panels[i],
                Self::Bf16(panels) => panels[i].to_f32(),
                Self::Pairs(panels) => {
                    let pair = panels[inner.div_ceil(2) * first + k / 2 * width + at];
                    pair.numbers()[k % 2].to_f32()
                }
                Self::F16(panels) => panels[i].to_f32(),
                Self::Int8(panels, scales) => {
                    let scale = scales[inner.div_ceil(GROUP) * first + k / GROUP * width + at];
                    scale.to_f32() * f32::from(panels[i])
                }
            };
        }
    }

    /// The bytes that they take.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::F32(panels) => size_of_val(&panels[..]),
            Self::Bf16(panels) => size_of_val(&panels[..]),
            Self::Pairs(panels) => size_of_val(&panels[..]),
            Self::F16(panels) => size_of_val(&panels[..]),
            Self::Int8(panels, scales) => size_of_val(&panels[..]) + size_of_val(&scales[..]),
        }
    }
}
