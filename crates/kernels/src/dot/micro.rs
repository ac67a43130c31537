//! The micro-kernel: a block of up to 8 rows by 3 vectors held in registers.
//!
//! ```text
//! acc[r][v] += Σ_k b_r[k · step] · a[k · width + v]       r < ROWS, v < VECTORS
//!
//!            a: [depth, width], rows in the lanes
//!            | v0 | v1 | v2 |
//!   b_0[k] ->| .. | .. | .. |   each number of b is read once and serves 3 vectors
//!   b_1[k] ->| .. | .. | .. |   24 accumulators, 3 of a, 1 of b: 28 of 32 registers
//! ```
//! It serves all products of attention: scores (`a` the queries, `b` rows of the key), context (`a` the
//! weights, `b` columns of the value) and their gradients.

use half::bf16;

use crate::{
    element::Element,
    simd::{Kernel, Simd},
};

/// The sum above, from 0 on.
///
/// # Safety
/// As [`add_product`].
#[inline(always)]
pub(super) unsafe fn product<S: Simd, const R: usize, const V: usize>(
    s: S,
    depth: usize,
    a: *const f32,
    width: usize,
    b: [*const f32; R],
    step: usize,
) -> [[S::V; V]; R] {
    // SAFETY: guaranteed by the caller.
    unsafe { add_product::<S, R, V>(s, [[s.zero(); V]; R], depth, a, width, b, step) }
}

/// The sum above, from `acc` on.
///
/// # Safety
/// `a` has `depth` lines `width` apart with `VECTORS` vectors each; `b[r]` can be read at
/// `k · step` for every `k < depth`.
#[inline(always)]
unsafe fn add_product<S: Simd, const R: usize, const V: usize>(
    s: S,
    mut acc: [[S::V; V]; R],
    depth: usize,
    a: *const f32,
    width: usize,
    b: [*const f32; R],
    step: usize,
) -> [[S::V; V]; R] {
    for k in 0..depth {
        // SAFETY: the caller vouches for line `k` of `a` and number `k` of each `b`.
        unsafe {
            let mut line = [s.zero(); V];
            for (v, x) in line.iter_mut().enumerate() {
                *x = s.load_from(a.add(k * width + v * S::LANES));
            }
            for r in 0..R {
                let x = s.splat(*b[r].add(k * step));
                for v in 0..V {
                    acc[r][v] = s.fma(x, line[v], acc[r][v]);
                }
                if R * V == 12 {
                    acc[r] = s.before_loads(acc[r]);
                }
            }
        }
    }
    acc
}

/// The type of a product's factors: `f32`, or bfloat16, of which a pair shares a lane.
pub(super) trait Factor: Element {
    /// Numbers in a lane.
    const PER_LANE: usize;

    /// [`product`] of lanes that hold [`Self::PER_LANE`] numbers, from `acc` on; `step` counts numbers.
    ///
    /// # Safety
    /// As [`add_product`]; for bfloat16, inside a kernel that [`Simd::outline_pairs`] runs.
    unsafe fn add_product<S: Simd, const R: usize, const V: usize>(
        s: S,
        acc: [[S::V; V]; R],
        depth: usize,
        a: *const f32,
        width: usize,
        b: [*const Self; R],
        step: usize,
    ) -> [[S::V; V]; R];
}

impl Factor for f32 {
    const PER_LANE: usize = 1;

    #[inline(always)]
    unsafe fn add_product<S: Simd, const R: usize, const V: usize>(
        s: S,
        acc: [[S::V; V]; R],
        depth: usize,
        a: *const f32,
        width: usize,
        b: [*const f32; R],
        step: usize,
    ) -> [[S::V; V]; R] {
        // SAFETY: guaranteed by the caller.
        unsafe { add_product::<S, R, V>(s, acc, depth, a, width, b, step) }
    }
}

impl Factor for bf16 {
    const PER_LANE: usize = 2;

    #[inline(always)]
    unsafe fn add_product<S: Simd, const R: usize, const V: usize>(
        s: S,
        mut acc: [[S::V; V]; R],
        depth: usize,
        a: *const f32,
        width: usize,
        b: [*const bf16; R],
        step: usize,
    ) -> [[S::V; V]; R] {
        for k in 0..depth {
            // SAFETY: the caller vouches for line `k` of `a` and pair `k` of each `b`.
            unsafe {
                let mut line = [s.zero(); V];
                for (v, x) in line.iter_mut().enumerate() {
                    *x = s.load_from(a.add(k * width + v * S::LANES));
                }
                for r in 0..R {
                    let x = s.splat(b[r].add(k * step).cast::<f32>().read_unaligned());
                    for v in 0..V {
                        acc[r][v] = s.dot_pairs(x, line[v], acc[r][v]);
                    }
                }
            }
        }
        acc
    }
}

/// Runs a kernel that multiplies factors of type `F`, compiled as a function of its own.
#[inline(always)]
pub(super) fn outline<S: Simd, F: Factor, K: Kernel>(s: S, kernel: K) -> K::Output {
    if F::PER_LANE == 1 {
        return s.outline(kernel);
    }
    assert!(s.has_pairs(), "pairs are chosen where the machine has them");
    // SAFETY: only a machine that has pairs runs kernels of this type.
    unsafe { s.outline_pairs(kernel) }
}
