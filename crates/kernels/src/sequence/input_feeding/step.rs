//! The pointwise parts of one step of [`super`] that no other operation shares.

use crate::simd::{Kernel, Simd, tanh, zip_map};

/// `out = values ∘ mask`; without a mask, a copy.
pub(super) struct Masked<'a> {
    pub(super) values: &'a [f32],
    pub(super) mask: Option<&'a [f32]>,
    pub(super) out: &'a mut [f32],
}

impl Kernel for Masked<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        match self.mask {
            None => self.out.copy_from_slice(self.values),
            Some(mask) => {
                zip_map(
                    s,
                    [self.values, mask],
                    [self.out],
                    #[inline(always)]
                    |[x, mask], [_]| [s.mul(x, mask)],
                );
            }
        }
    }
}

/// `combined = tanh(combined)`, `out = combined ∘ mask`.
pub(super) struct Combine<'a> {
    pub(super) combined: &'a mut [f32],
    pub(super) mask: Option<&'a [f32]>,
    pub(super) out: &'a mut [f32],
}

impl Kernel for Combine<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let outputs = [self.combined, self.out];
        match self.mask {
            None => zip_map(
                s,
                [],
                outputs,
                #[inline(always)]
                |[], [x, _]| {
                    let t = tanh(s, x);
                    [t, t]
                },
            ),
            Some(mask) => zip_map(
                s,
                [mask],
                outputs,
                #[inline(always)]
                |[mask], [x, _]| {
                    let t = tanh(s, x);
                    [t, s.mul(t, mask)]
                },
            ),
        }
    }
}

/// From the gradient of `h̃` (as the output and as the next step's input), computes that of the
/// `tanh`'s argument.
pub(super) struct CombineBack<'a> {
    pub(super) combined: &'a [f32],
    pub(super) mask: Option<&'a [f32]>,
    pub(super) d_out: &'a [f32],
    pub(super) d_feed: &'a [f32],
    pub(super) d_combined: &'a mut [f32],
}

impl Kernel for CombineBack<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let one = s.splat(1.0);
        let Self {
            combined,
            mask,
            d_out,
            d_feed,
            d_combined,
        } = self;
        match mask {
            None => zip_map(
                s,
                [combined, d_out, d_feed],
                [d_combined],
                #[inline(always)]
                |[t, d_out, d_feed], [_]| [s.mul(s.add(d_out, d_feed), s.fnma(t, t, one))],
            ),
            Some(mask) => zip_map(
                s,
                [combined, d_out, d_feed, mask],
                [d_combined],
                #[inline(always)]
                |[t, d_out, d_feed, mask], [_]| {
                    [s.mul(s.mul(s.add(d_out, d_feed), mask), s.fnma(t, t, one))]
                },
            ),
        }
    }
}
