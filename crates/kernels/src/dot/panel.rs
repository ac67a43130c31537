//! Panels: rows of dims, transposed so that the rows lie in the lanes.
//!
//! ```text
//! rows of a view  [n, dim]          panel  [dim, width]
//!   q0: a b c d ...                   a  A  ...  one number of each row side by side
//!   q1: A B C D ...      ->           b  B  ...
//! ```
//! A panel is `3 · LANES` wide. Lanes past the last row hold a copy of it: what they compute is never
//! read.

use crate::simd::Simd;

/// Vectors in a panel.
pub(super) const VECTORS: usize = 3;

/// Rows in a panel.
#[inline(always)]
pub(super) fn width<S: Simd>() -> usize {
    VECTORS * S::LANES
}

/// A square of 16 x 16 numbers for the edges.
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
                // SAFETY: rows `first..first + LANES` were checked above to lie inside their slice,
                // `stride` apart; the panel has `dim` lines of `width` numbers.
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
                match columns == S::LANES {
                    true => s.store(&mut square[i * S::LANES..], s.load(from)),
                    false => square[i * S::LANES..][..columns].copy_from_slice(from),
                }
            }
            let to = &mut panel[column * width + first..];
            if columns == S::LANES {
                assert!(to.len() >= (S::LANES - 1) * width + S::LANES);
                // SAFETY: the square has as many lines as lanes; the panel's lines were counted above.
                unsafe { s.transpose(square.as_ptr(), S::LANES, to.as_mut_ptr(), width) };
                continue;
            }
            for (c, line) in to.chunks_mut(width).enumerate().take(columns) {
                for (i, x) in line[..S::LANES].iter_mut().enumerate() {
                    *x = square[i * S::LANES + c];
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

/// Writes the first `rows` columns of `panel [dim, width]` to rows of `dim` numbers, `stride` apart.
///
/// # Safety
/// The rows can be written.
#[inline(always)]
pub(super) unsafe fn unpack<S: Simd>(
    s: S,
    panel: &[f32],
    rows: usize,
    dim: usize,
    to: *mut f32,
    stride: usize,
) {
    let width = width::<S>();
    let panel = &panel[..dim * width];
    let mut square: Square = [0.0; 256];
    for first in (0..rows).step_by(S::LANES) {
        let inside = S::LANES.min(rows - first);
        for column in (0..dim).step_by(S::LANES) {
            let columns = S::LANES.min(dim - column);
            let to = to.wrapping_add(first * stride + column);
            // SAFETY: the panel has `dim` lines of `width` numbers; the caller vouches for the rows, of
            // which no more than `inside` by `columns` numbers are written.
            unsafe {
                let from = panel.as_ptr().add(column * width + first);
                match (inside == S::LANES, columns == S::LANES) {
                    (true, true) => s.transpose(from, width, to, stride),
                    (false, true) => {
                        s.transpose(from, width, square.as_mut_ptr(), S::LANES);
                        for i in 0..inside {
                            s.store_to(to.add(i * stride), s.load(&square[i * S::LANES..]));
                        }
                    }
                    _ => {
                        for i in 0..inside {
                            for c in 0..columns {
                                *to.add(i * stride + c) = *from.add(c * width + i);
                            }
                        }
                    }
                }
            }
        }
    }
}
