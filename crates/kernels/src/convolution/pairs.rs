//! Rows of outputs in pairs, with four products for each column of the kernel in place of six.
//!
//! Two rows of outputs under a kernel of three rows read four rows of inputs:
//! ```text
//! y0 = w0 x0 + w1 x1 + w2 x2                    m0 = w0 (x0 - x2)              m1 = (w0 + w1 + w2) / 2 · (x1 + x2)
//! y1 = w0 x1 + w1 x2 + w2 x3                    m3 = w2 (x3 - x1)              m2 = (w0 - w1 + w2) / 2 · (x2 - x1)
//!
//! y0 = m0 + m1 + m2      ẇ0 = u0 + (u1 + u2) / 2       where  u0 = ẏ0 (x0 - x2)        u1 = (ẏ0 + ẏ1) (x1 + x2)
//! y1 = m1 - m2 + m3      ẇ1 = (u1 - u2) / 2                   u3 = ẏ1 (x3 - x1)        u2 = (ẏ0 - ẏ1) (x2 - x1)
//!                        ẇ2 = u3 + (u1 + u2) / 2
//! ```
//! Each `m` is summed over channels and columns of the kernel before it is added to the others, and each `u` over positions and images:
//! four sets of products, each a correlation with a kernel of one row. This is `F(2, 3)` of Winograd (1980) along the rows, as Lavin
//! and Gray (2016) have it along both axes; along the columns it would need its inputs and outputs shuffled within each vector. It
//! rounds no more than the plain sum, whose products are three times as many, beside the largest number that the pair reads; a small output
//! beside a large one in its pair may lose what the plain sum keeps. Sums of two inputs overflow from half of the largest `f32` on. An infinity
//! may become NaN, in outputs that read it and no others.

use super::{
    Convolution,
    geometry::{Axis, Layout},
};
use crate::simd::{self, Simd};

/// Products of a pair of rows, for each column of the kernel.
pub(super) const SETS: usize = 4;
/// Channels of input and of output from which fewer products save more time than their sums cost.
const CHANNELS: usize = 8;
/// Rows of input and of output from which it rounds no more than the plain sum.
const ROWS: usize = 4;

/// The lines of the copies that are read: one for each row of outputs, or for each pair of rows.
pub(super) struct Lines {
    /// Of pairs it has one tap.
    pub(super) axis: Axis,
    pub(super) pairs: bool,
}

impl Lines {
    /// For the rows `y`.
    pub(super) fn new(c: &Convolution, y: &Axis) -> Self {
        let channels = c.inputs.min(c.outputs) / c.groups;
        let consecutive = |taps: &[(usize, isize)]| taps[1].1 == taps[0].1 + 1;
        let pairs = c.stride == [1, 1]
            && channels >= CHANNELS
            && y.first == 0
            && y.count.min(y.input) >= ROWS
            && y.taps.len() == 3
            && y.taps.windows(2).all(consecutive);
        let mut axis = y.clone();
        if pairs {
            axis.count = y.count.div_ceil(2);
            axis.taps = vec![(0, 0)];
        }
        Self { axis, pairs }
    }

    /// Rows of outputs of a line.
    pub(super) fn rows(&self) -> usize {
        if self.pairs { 2 } else { 1 }
    }

    /// Sets of products.
    pub(super) fn sets(&self) -> usize {
        if self.pairs { SETS } else { 1 }
    }
}

/// What the weights of the kernel's three rows are multiplied into.
pub(super) fn weights(w: [f32; 3]) -> [f32; SETS] {
    let [a, b, c] = w.map(f64::from);
    [a, (a + b + c) / 2.0, (a - b + c) / 2.0, c].map(|w| w as f32)
}

/// The gradients of the weights of the kernel's three rows from those of [`weights`].
pub(super) fn weight_gradients(u: [f32; SETS]) -> [f32; 3] {
    let half = (u[1] + u[2]) / 2.0;
    [u[0] + half, (u[1] - u[2]) / 2.0, u[3] + half]
}

/// Writes the sums and differences of the rows of a channel `[height, width]` into its plane of each set, for pairs of outputs from row
/// `first` on. `zeros` are as many as a row has numbers, or more.
#[inline(always)]
pub(super) fn fill<S: Simd>(
    s: S,
    layout: &Layout,
    [y, x]: [&Axis; 2],
    first: usize,
    channel: &[f32],
    planes: [&mut [f32]; SETS],
    zeros: &[f32],
) {
    let columns = layout.columns(x);
    let beside = layout.row - columns.count;
    let [p0, p1, p2, p3] = planes;
    for plane in [&mut *p0, &mut *p1, &mut *p2, &mut *p3] {
        match beside <= S::LANES {
            true => s.store_at(plane, 0, s.zero()),
            false => plane.fill(0.0),
        }
    }
    let start = first as isize + y.taps[0].1;
    for pair in 0..layout.lines {
        let mut rows = [&zeros[..columns.count]; SETS];
        for (index, row) in rows.iter_mut().enumerate() {
            let line = start + (2 * pair + index) as isize;
            if let Ok(line) = usize::try_from(line)
                && line < y.input
            {
                *row = &channel[line * x.input + columns.from..][..columns.count];
            }
        }
        let from = pair * layout.row + columns.before;
        let to = from + columns.count;
        simd::zip_map(
            s,
            rows,
            [
                &mut p0[from..to],
                &mut p1[from..to],
                &mut p2[from..to],
                &mut p3[from..to],
            ],
            #[inline(always)]
            |[x0, x1, x2, x3], _| [s.sub(x0, x2), s.add(x1, x2), s.sub(x2, x1), s.sub(x3, x1)],
        );
        if 0 < beside && beside <= S::LANES {
            // Zeros behind the line, and where the next one will be: quicker than only those between them.
            for plane in [&mut *p0, &mut *p1, &mut *p2, &mut *p3] {
                if to < plane.len() {
                    s.store_at(plane, to, s.zero());
                }
            }
        }
    }
}

/// Writes rows of outputs, `to_stride` from one to the next, from the lines of sums of each set, which are `stride` apart.
#[inline(always)]
pub(super) fn outputs<S: Simd>(
    s: S,
    sums: [&[f32]; SETS],
    stride: usize,
    to: &mut [f32],
    to_stride: usize,
    [rows, columns]: [usize; 2],
) {
    for row in (0..rows).step_by(2) {
        let line = row / 2 * stride;
        let [mut m0, mut m1, mut m2, mut m3] = sums;
        for sums in [&mut m0, &mut m1, &mut m2, &mut m3] {
            *sums = &sums[line..][..columns];
        }
        let to = &mut to[row * to_stride..];
        if row + 1 < rows {
            let (even, odd) = to.split_at_mut(to_stride);
            simd::zip_map(
                s,
                [m0, m1, m2, m3],
                [&mut even[..columns], &mut odd[..columns]],
                #[inline(always)]
                |[m0, m1, m2, m3], _| [s.add(m0, s.add(m1, m2)), s.add(m3, s.sub(m1, m2))],
            );
        } else {
            simd::zip_map(
                s,
                [m0, m1, m2],
                [&mut to[..columns]],
                #[inline(always)]
                |[m0, m1, m2], _| [s.add(m0, s.add(m1, m2))],
            );
        }
    }
}
