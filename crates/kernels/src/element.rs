//! How numbers are stored: `f32`, bfloat16 or IEEE half precision. Arithmetic is `f32` in any case.

use half::{bf16, f16};

use crate::{
    Attention, KernelError, View, ViewMut,
    dot::{Cache, decode_at},
    simd::{Level, Simd},
};

/// The kinds of storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    /// Single precision.
    #[default]
    F32,
    /// bfloat16: the upper half of an `f32`.
    Bf16,
    /// IEEE half precision.
    F16,
}

/// Two numbers in the bits of a lane, `low` in the lower half, as [`Simd::dot_pairs`] takes them.
#[inline(always)]
pub(crate) fn pair(low: bf16, high: bf16) -> f32 {
    f32::from_bits(u32::from(low.to_bits()) | u32::from(high.to_bits()) << 16)
}

mod sealed {
    use super::*;

    /// Kernels that other crates call for each type, as methods: a generic function would be compiled anew in each of those crates.
    pub trait Sealed: Sized {
        fn decode(
            attention: &Attention,
            query: View,
            cache: Cache<Self>,
            output: ViewMut,
            lse: Option<&mut [f32]>,
        ) -> Result<(), KernelError>;
    }

    macro_rules! sealed {
        ($($element:ty),*) => {$(
            impl Sealed for $element {
                fn decode(
                    attention: &Attention,
                    query: View,
                    cache: Cache<Self>,
                    output: ViewMut,
                    lse: Option<&mut [f32]>,
                ) -> Result<(), KernelError> {
                    decode_at(Level::current(), attention, query, cache, output, lse)
                }
            }
        )*};
    }
    sealed!(f32, bf16, f16);
}

/// A type that queries, keys and values may be stored in: `f32`, [`struct@bf16`] or [`struct@f16`].
pub trait Element: Copy + Send + Sync + std::fmt::Debug + sealed::Sealed + 'static {
    /// This type's kind of storage.
    const KIND: Kind;

    /// The same number as `f32`.
    fn widen(self) -> f32;

    /// The nearest number of this type.
    fn narrow(x: f32) -> Self;
}

impl Element for f32 {
    const KIND: Kind = Kind::F32;
    fn widen(self) -> f32 {
        self
    }
    fn narrow(x: f32) -> Self {
        x
    }
}

impl Element for bf16 {
    const KIND: Kind = Kind::Bf16;
    fn widen(self) -> f32 {
        self.to_f32()
    }
    fn narrow(x: f32) -> Self {
        Self::from_f32(x)
    }
}

impl Element for f16 {
    const KIND: Kind = Kind::F16;
    fn widen(self) -> f32 {
        self.to_f32()
    }
    fn narrow(x: f32) -> Self {
        Self::from_f32(x)
    }
}

/// Loads one vector of numbers that starts at `from`, as `f32`.
///
/// # Safety
/// `LANES` numbers can be read.
#[inline(always)]
pub(crate) unsafe fn load<S: Simd, T: Element>(s: S, from: *const T) -> S::V {
    // SAFETY: the caller guarantees that the numbers can be read; `KIND` says what `T` is.
    unsafe {
        match T::KIND {
            Kind::F32 => s.load_from(from.cast()),
            Kind::Bf16 => s.load_bf16(from.cast()),
            Kind::F16 => s.load_f16(from.cast()),
        }
    }
}
