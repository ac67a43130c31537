//! How the numbers of packed panels are stored: `f32`, bfloat16, half precision, or 8 bits with a scale for each group of 32.
//!
//! A number is widened to `f32` as it is loaded, exactly: products of the same stored numbers have the same bits, whether the
//! numbers are widened one by one or a panel at a time. Eight bits: `w = s q`, `q` in -127..=127, `s = max|w| / 127` of 32
//! neighbours along the inner index, as half precision; `s q` has at most 18 bits and is exact.

use half::{bf16, f16};

use crate::{element, simd::Simd};

/// Numbers along the inner index that share a scale.
pub(super) const GROUP: usize = 32;

/// How the weights of a product are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Storage {
    /// 32 bits, exact.
    #[default]
    F32,
    /// bfloat16: 8 bits of mantissa.
    Bf16,
    /// Half precision: 11 bits of mantissa.
    F16,
    /// 8 bits with a scale for each group of 32 inputs.
    Int8,
}

/// A type of stored numbers.
pub(super) trait Number: Copy + Send + Sync {
    /// Whether groups of [`GROUP`] lines have scales.
    const SCALED: bool;

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

/// Panels, one after another: each `[inner, panel width]`.
#[derive(Debug, Clone)]
pub(super) enum Panels {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
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
            Storage::Bf16 => Self::Bf16(vec![bf16::ZERO; count]),
            Storage::F16 => Self::F16(vec![f16::ZERO; count]),
            Storage::Int8 => Self::Int8(
                vec![0; count],
                vec![f16::ZERO; inner.div_ceil(GROUP) * columns],
            ),
        }
    }

    /// The largest number that can be stored.
    pub(super) fn largest(&self) -> f32 {
        match self {
            Self::F32(_) => f32::INFINITY,
            Self::Bf16(_) => bf16::MAX.to_f32(),
            Self::F16(_) => f16::MAX.to_f32(),
            Self::Int8(..) => 127.0 * f16::MAX.to_f32(),
        }
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
            Self::F16(panels) => {
                let values = values.iter().zip(to());
                values.for_each(|(&x, i)| panels[i] = f16::from_f32(x));
            }
            Self::Int8(panels, scales) => {
                let scale_at = inner.div_ceil(GROUP) * first + at;
                for (group, values) in values.chunks(GROUP).enumerate() {
                    let largest = values.iter().fold(0.0f32, |max, x| max.max(x.abs()));
                    let scale = f16::from_f32(largest / 127.0);
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
            Self::F16(panels) => size_of_val(&panels[..]),
            Self::Int8(panels, scales) => size_of_val(&panels[..]) + size_of_val(&scales[..]),
        }
    }
}
