//! A user's own change of scores, compiled into the tile loop.
//!
//! The change acts after scale, softcap, bias and ALiBi and before the mask: `s' = score(s, place)`. Its
//! derivative `slope` lets the backward pass through: `∂L/∂s = slope · ∂L/∂s'`.
//!
//! Scores bent by a square root of their distance, in ten lines:
//! ```
//! use regard_kernels::{Attention, View, ViewMut, dot::{self, Modify, Place}};
//!
//! struct Decay;
//! impl Modify for Decay {
//!     fn score(&self, score: f32, place: Place) -> f32 {
//!         score - place.query.abs_diff(place.key) as f32
//!     }
//!     fn slope(&self, _: f32, _: Place) -> f32 {
//!         1.0
//!     }
//! }
//! let x = [0.0f32; 6];
//! let view = View::heads_first(&x, [1, 1, 3, 2]);
//! let value = [0.0f32, 1.0, 2.0];
//! let mut output = [0.0f32; 3];
//! dot::forward_modified(
//!     &Attention::default(), &Decay, view, view, View::heads_first(&value, [1, 1, 3, 1]),
//!     ViewMut::heads_first(&mut output, [1, 1, 3, 1]), None,
//! )?;
//! assert!((output[1] - 1.0).abs() < 1e-6 && output[0] < 0.5);
//! # Ok::<(), regard_kernels::KernelError>(())
//! ```

use std::ops::Range;

/// Where a score stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Batch entry, or packed sequence.
    pub batch: u32,
    /// Query head.
    pub head: u32,
    /// Query, from the start of its sequence.
    pub query: u32,
    /// Key, from the start of its sequence.
    pub key: u32,
}

/// A change of scores. `#[inline]` small functions without branches become vector code.
///
/// It is called by threads that others wait for, so it must not share out work on rayon's pool.
pub trait Modify: Sync {
    /// False for [`Unmodified`] alone: no change, no cost.
    const ACTIVE: bool = true;

    /// The changed score; `-∞` hides the key.
    fn score(&self, score: f32, place: Place) -> f32;

    /// The derivative of the changed score by `score`.
    fn slope(&self, score: f32, place: Place) -> f32;

    /// True if every one of these scores becomes `-∞`, so that the tile need not be computed.
    fn skips(&self, batch: usize, head: usize, queries: Range<usize>, keys: Range<usize>) -> bool {
        let _ = (batch, head, queries, keys);
        false
    }
}

/// Scores as they are.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unmodified;

impl Modify for Unmodified {
    const ACTIVE: bool = false;

    #[inline(always)]
    fn score(&self, score: f32, _: Place) -> f32 {
        score
    }

    #[inline(always)]
    fn slope(&self, _: f32, _: Place) -> f32 {
        1.0
    }
}
