//! Panels: rows of dims turned so that rows lie in the lanes.
//!
//! ```text
//! rows of a view  [n, dim]          panel  [dim, width]
//!   q0: a b c d ...                   a  A  ...  one number of each row side by side
//!   q1: A B C D ...      ->           b  B  ...
//! ```
//! A panel is `3 · LANES` wide. Lanes past the last row hold a copy of it: they compute what nobody reads.

use crate::simd::Simd;

/// Vectors in a panel.
pub(super) const VECTORS: usize = 3;

/// Rows in a panel.
#[inline(always)]
pub(super) fn width<S: Simd>() -> usize {
    VECTORS * S::LANES
}

/// A square of numbers for the edges.
type Square = [f32; 256];

/// Fills `panel [dim, width]` with `factor` times the rows `row(0..rows)`, each of `dim` numbers and
/// `stride` after the one before; whole vectors of lanes are filled.
#[inline(always)]
pub(super) fn pack<'a, S: Simd>(
    s: S,
    panel: &mut [f32],
    rows: usize,
    dim: usize,
    stride: usize,
    factor: f32,
    row: impl Fn(usize) -> &'a [f32],
) {
    let width = width::<S>();
    let panel = &mut panel[..dim * width];
    let mut square: Square = [0.0; 256];
    for first in (0..rows).step_by(S::LANES) {
        let inside = S::LANES.min(rows - first);
        for column in (0..dim).step_by(S::LANES) {
            let columns = S::LANES.min(dim - column);
            if inside == S::LANES && columns == S::LANES {
                let last = row(first + inside - 1);
                assert!(last.len() >= column + S::LANES);
                // SAFETY: rows `first..first + LANES` were just seen to lie inside their slice, `stride`
                // apart; the panel has `dim` lines of `width` numbers.
                unsafe {
                    let from = row(first).as_ptr().add(column);
                    s.transpose(
                        from,
                        stride,
                        panel.as_mut_ptr().add(column * width + first),
                        width,
                    );
                }
                continue;
            }
            for i in 0..S::LANES {
                let from = &row(first + i.min(inside - 1))[column..column + columns];
                square[i * S::LANES..][..columns].copy_from_slice(from);
            }
            for c in 0..columns {
                for i in 0..S::LANES {
                    panel[(column + c) * width + first + i] = square[i * S::LANES + c];
                }
            }
        }
    }
    if factor != 1.0 {
        let factor = s.splat(factor);
        let vectors = rows.div_ceil(S::LANES);
        for line in panel.chunks_exact_mut(width) {
            for v in 0..vectors {
                let x = s.load(&line[v * S::LANES..]);
                s.store(&mut line[v * S::LANES..], s.mul(x, factor));
            }
        }
    }
}

/// Writes the first `rows` columns of `panel [dim, width]` to `row(0..rows)`, each of `dim` numbers.
#[inline(always)]
pub(super) fn unpack<'a, S: Simd>(
    s: S,
    panel: &[f32],
    rows: usize,
    dim: usize,
    row: impl Fn(usize) -> &'a mut [f32],
) {
    let width = width::<S>();
    let mut square: Square = [0.0; 256];
    for first in (0..rows).step_by(S::LANES) {
        let inside = S::LANES.min(rows - first);
        for column in (0..dim).step_by(S::LANES) {
            let columns = S::LANES.min(dim - column);
            if columns == S::LANES {
                let square_panel =
                    &panel[column * width + first..][..(S::LANES - 1) * width + S::LANES];
                // SAFETY: the slice just taken has LANES lines of LANES numbers, and so has the square.
                unsafe { s.transpose(square_panel.as_ptr(), width, square.as_mut_ptr(), S::LANES) };
                for i in 0..inside {
                    let line = s.load(&square[i * S::LANES..]);
                    s.store(&mut row(first + i)[column..], line);
                }
                continue;
            }
            for i in 0..inside {
                let to = &mut row(first + i)[column..column + columns];
                for (c, to) in to.iter_mut().enumerate() {
                    *to = panel[(column + c) * width + first + i];
                }
            }
        }
    }
}
