//! Which input positions an output position reads, axis by axis, and where they lie in the padded copy.
//!
//! ```text
//! forward           output t            reads  stride·t + j·dilation - padding          for every tap j
//! gradient of x     output first + s·t  reads  t + shift_j                              for the taps j of one residue class
//! ```
//! The gradient of `x` under a stride `s` is `s` correlations an axis, one for each residue of the position: each has the taps
//! that reach it, and none multiplies a zero that the stride left out.

use super::Convolution;

/// One axis of a correlation: output position `first + step·t` is the sum over the taps of input position
/// `stride·t + shift` times the weight of the tap.
#[derive(Debug, Clone)]
pub(super) struct Axis {
    pub(super) first: usize,
    pub(super) step: usize,
    /// How many `t` there are.
    pub(super) count: usize,
    pub(super) stride: usize,
    /// Length of the input.
    pub(super) input: usize,
    /// `(index in the kernel, shift)`
    pub(super) taps: Vec<(usize, isize)>,
}

impl Axis {
    /// Axis `a` of the forward pass.
    pub(super) fn forward(c: &Convolution, a: usize, count: usize) -> Self {
        let taps = (0..c.kernel[a]).map(|j| {
            let shift = (j * c.dilation[a]) as isize - c.padding[a] as isize;
            (j, shift)
        });
        let axis = Self {
            first: 0,
            step: 1,
            count,
            stride: c.stride[a],
            input: c.size[a],
            taps: taps.collect(),
        };
        axis.useful()
    }

    /// Axis `a` of the gradient of the input, one for each residue of the stride, from an output of length `output`.
    pub(super) fn backward(c: &Convolution, a: usize, output: usize) -> Vec<Self> {
        let (stride, padding) = (c.stride[a], c.padding[a]);
        // One for each of the first positions.
        let from = |first: usize| {
            // In the order of the positions that are read.
            let taps = (0..c.kernel[a]).rev().filter_map(|j| {
                let shift = (first + padding) as isize - (j * c.dilation[a]) as isize;
                (shift % stride as isize == 0).then(|| (j, shift / stride as isize))
            });
            let axis = Self {
                first,
                step: stride,
                count: (c.size[a] - first).div_ceil(stride),
                stride: 1,
                input: output,
                taps: taps.collect(),
            };
            axis.useful()
        };
        (0..stride.min(c.size[a])).map(from).collect()
    }

    /// Without the taps that lie outside of the input for every `t`, and without the `t` for which every tap does. What is left needs
    /// memory for maps and kernel, however large padding and dilation are.
    fn useful(mut self) -> Self {
        let (stride, input) = (self.stride as isize, self.input as isize);
        let places = |numbers: isize| numbers.max(0).unsigned_abs().div_ceil(self.stride);
        // The first `t` at or after the input's start must be one of its positions: a stride may step over all of it.
        let reaches = |shift: isize| {
            let t = places(-shift);
            t < self.count && stride * (t as isize) + shift < input
        };
        self.taps.retain(|&(_, shift)| reaches(shift));
        let shifts = self.taps.iter().map(|tap| tap.1);
        let (Some(low), Some(high)) = (shifts.clone().min(), shifts.max()) else {
            self.count = 0;
            return self;
        };
        let end = places(input - low).min(self.count);
        let start = places(-high).min(end);
        self.first += self.step * start;
        self.count = end - start;
        for (_, shift) in &mut self.taps {
            *shift += stride * start as isize;
        }
        self
    }

    /// The `t` whose positions lie in `positions`.
    pub(super) fn within(&self, [from, to]: [usize; 2]) -> [usize; 2] {
        let place = |at: usize| at.saturating_sub(self.first).div_ceil(self.step);
        [place(from), place(to)].map(|t| t.min(self.count))
    }

    /// `(⌊shift / stride⌋, shift mod stride)`
    fn split(&self, shift: isize) -> (isize, usize) {
        let stride = self.stride as isize;
        (shift.div_euclid(stride), shift.rem_euclid(stride) as usize)
    }

    /// The residues of the shifts, ascending.
    fn residues(&self) -> Vec<usize> {
        let mut all: Vec<usize> = self.taps.iter().map(|tap| self.split(tap.1).1).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The smallest and the largest `⌊shift / stride⌋`.
    fn reach(&self) -> [isize; 2] {
        let whole = self.taps.iter().map(|tap| self.split(tap.1).0);
        let (low, high) = whole.fold((isize::MAX, isize::MIN), |(low, high), q| {
            (low.min(q), high.max(q))
        });
        [low, high]
    }
}

/// The part of a line of the padded copy that holds numbers of the input; zeros lie before and after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Line {
    /// Zeros before.
    pub(super) before: usize,
    /// Position in the input of the first number.
    pub(super) from: usize,
    /// Numbers of the input, `stride` apart.
    pub(super) count: usize,
}

impl Axis {
    /// The entries of a line that starts at input position `start`, which may be negative, of `length` entries.
    fn line(&self, start: isize, length: usize) -> Line {
        let before = match start {
            0.. => 0,
            _ => start.unsigned_abs().div_ceil(self.stride),
        };
        let from = (start + (before * self.stride) as isize) as usize;
        let before = before.min(length);
        let there = self.input.saturating_sub(from).div_ceil(self.stride);
        Line {
            before,
            from,
            count: there.min(length - before),
        }
    }
}

/// The padded copy of the channels that a task reads: for every channel and every pair of residues a plane of lines, in which a
/// tap's inputs of all output positions lie one after the other.
///
/// ```text
/// stride 1, padding 1, one plane, `row` = width + 1:        a tap is an offset; output (t, u) is number t·row + u
///   0 0 0 0 0                                               after it. The zero after a line is also the one before
///   0 a b c d                                               the next. Numbers of outputs with u ≥ width are computed
///   0 e f g h                                               and not used, unless rows fill whole or half vectors.
///   0 0 0 0 0 0
/// ```
#[derive(Debug)]
pub(super) struct Layout {
    /// Residues of rows, of columns.
    residues: [Vec<usize>; 2],
    /// From a line to the next.
    pub(super) row: usize,
    pub(super) lines: usize,
    /// Entries of a line.
    width: usize,
    plane: usize,
    /// Numbers of a channel.
    pub(super) channel: usize,
    reach: [[isize; 2]; 2],
}

impl Layout {
    /// For `rows` rows of outputs.
    pub(super) fn new([y, x]: [&Axis; 2], rows: usize) -> Self {
        let reach = [y.reach(), x.reach()];
        let residues = [y.residues(), x.residues()];
        let spread = (reach[1][1] - reach[1][0]) as usize;
        let width = x.count + spread;
        let shared = residues[1].iter().map(|&residue| {
            let line = x.line(reach[1][0] * x.stride as isize + residue as isize, width);
            line.before.min(width - line.before - line.count)
        });
        let shared = shared.min().unwrap_or(0).min(spread);
        let row = width - shared;
        let lines = rows + (reach[0][1] - reach[0][0]) as usize;
        let plane = lines * row + shared;
        let channel = plane * residues[0].len() * residues[1].len();
        Self {
            residues,
            row,
            lines,
            width,
            plane,
            channel,
            reach,
        }
    }

    /// Numbers of a channel's planes for one row of outputs.
    pub(super) fn of_row(&self) -> usize {
        self.row * self.residues[0].len() * self.residues[1].len()
    }

    /// What the lines hold of the rows of the input, where columns have no stride.
    pub(super) fn columns(&self, x: &Axis) -> Line {
        x.line(self.reach[1][0], self.width)
    }

    /// Where the inputs of each tap start in a channel: taps of rows outside, of columns inside.
    pub(super) fn offsets(&self, axes: [&Axis; 2]) -> Vec<usize> {
        let place = |a: usize, shift: isize| {
            let (whole, residue) = axes[a].split(shift);
            let at = self.residues[a].iter().position(|&known| known == residue);
            let at = at.expect("the residues are those of the taps");
            (at, (whole - self.reach[a][0]) as usize)
        };
        let mut all = vec![];
        for &(_, shift) in &axes[0].taps {
            let (y_plane, line) = place(0, shift);
            for &(_, shift) in &axes[1].taps {
                let (x_plane, column) = place(1, shift);
                let plane = y_plane * self.residues[1].len() + x_plane;
                all.push(plane * self.plane + line * self.row + column);
            }
        }
        all
    }

    /// Copies a channel `[height, width]` into its planes, for outputs from row `first` on.
    #[inline(always)]
    pub(super) fn fill(
        &self,
        [y, x]: [&Axis; 2],
        first: usize,
        channel: &[f32],
        planes: &mut [f32],
        copy: impl Fn(&[f32], &mut [f32]),
    ) {
        let mut planes = planes.chunks_exact_mut(self.plane);
        for &y_residue in &self.residues[0] {
            let start = (first as isize + self.reach[0][0]) * y.stride as isize;
            let rows = y.line(start + y_residue as isize, self.lines);
            for &x_residue in &self.residues[1] {
                let plane = planes.next().expect("a plane for each pair of residues");
                let start = self.reach[1][0] * x.stride as isize + x_residue as isize;
                let columns = x.line(start, self.width);
                if rows.count < self.lines || columns.count < self.width {
                    // At once: a call for the few zeros beside each line would take as long as the line.
                    plane.fill(0.0);
                }
                for index in 0..rows.count {
                    let from = (rows.from + index * y.stride) * x.input + columns.from;
                    let to = (rows.before + index) * self.row + columns.before;
                    let to = &mut plane[to..][..columns.count];
                    match x.stride {
                        1 => copy(channel.get(from..from + to.len()).unwrap_or(&[]), to),
                        2 if !to.is_empty() => {
                            // As the next arm, in vectors: pairs of numbers have no bounds to check.
                            let (to, last) = to.split_at_mut(to.len() - 1);
                            let (pairs, rest) = channel[from..].as_chunks::<2>();
                            for (to, pair) in to.iter_mut().zip(pairs) {
                                *to = pair[0];
                            }
                            last[0] = pairs.get(to.len()).map_or_else(|| rest[0], |pair| pair[0]);
                        }
                        stride => {
                            let from = channel.iter().skip(from).step_by(stride);
                            to.iter_mut().zip(from).for_each(|(to, &from)| *to = from);
                        }
                    }
                }
            }
        }
    }
}
