//! Correlations: the forward pass, and the gradient of the input.

use std::mem::MaybeUninit;

use super::{
    Convolution,
    geometry::{Axis, Layout},
    pairs::{self, Lines},
    tile::{PANEL, Positions, STRIP},
};
use crate::prefetch::Prefetch;
use crate::simd::{self, Kernel, Level, Simd, cleared, run};
use crate::threads::{RowsMut, for_each_chunk, rows};

/// Numbers that a task keeps in the second-level cache: the padded copy of its inputs, and its sums or the transposed gradient.
pub(super) const TASK_NUMBERS: usize = 144 * 1024;
/// Taps and channels whose inputs and weights a panel finds in the first-level cache, and whose products are summed before they are
/// added to the others.
const BLOCK_TAPS: usize = 160;
/// Of one multiply-add on one thread.
pub(super) const NANOSECONDS: f64 = 0.015;

/// The weights of a phase, in strips of [`STRIP`] outputs: for every group `[sets, strips, inputs · taps, STRIP]`.
pub(super) struct Weights(Vec<f32>);

/// Which way a correlation goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pass {
    /// From the convolution's inputs to its outputs.
    Forward,
    /// From its outputs to its inputs.
    Backward,
}

impl Weights {
    /// For the taps at `places` in the kernel; three rows of them become [`pairs::SETS`] sets of one row if `in_pairs`.
    fn pack(c: &Convolution, pass: Pass, weight: &[f32], places: &[usize], in_pairs: bool) -> Self {
        let [outputs, of_output, height, width] = c.weight_shape();
        let (of_input, size) = (outputs / c.groups, height * width);
        let [outputs, inputs] = match pass {
            Pass::Forward => [of_input, of_output],
            Pass::Backward => [of_output, of_input],
        };
        // The kernel between an output and an input of a group.
        let kernel = |group: usize, output: usize, input: usize| {
            let [row, column] = match pass {
                Pass::Forward => [output, input],
                Pass::Backward => [input, output],
            };
            &weight[((group * of_input + row) * of_output + column) * size..][..size]
        };
        let (sets, taps) = match in_pairs {
            true => (pairs::SETS, places.len() / 3),
            false => (1, places.len()),
        };
        let of_set = outputs.div_ceil(STRIP) * inputs * taps * STRIP;
        let mut packed = vec![0.0; c.groups * sets * of_set];
        if packed.is_empty() {
            return Self(packed);
        }
        for (group, packed) in packed.chunks_exact_mut(sets * of_set).enumerate() {
            for output in 0..outputs {
                for input in 0..inputs {
                    let kernel = kernel(group, output, input);
                    let line = (output / STRIP * inputs + input) * taps;
                    for tap in 0..taps {
                        let at = (line + tap) * STRIP + output % STRIP;
                        match in_pairs {
                            true => {
                                let rows = [0, 1, 2].map(|row| kernel[places[row * taps + tap]]);
                                for (set, weight) in pairs::weights(rows).into_iter().enumerate() {
                                    packed[set * of_set + at] = weight;
                                }
                            }
                            false => packed[at] = kernel[places[tap]],
                        }
                    }
                }
            }
        }
        Self(packed)
    }
}

/// Output positions that read the same taps.
pub(super) struct Phase {
    axes: [Axis; 2],
    lines: Lines,
    weights: Weights,
}

impl Phase {
    /// All pairs of the axes' phases in which anything is read.
    fn all(
        c: &Convolution,
        pass: Pass,
        [rows, columns]: [Vec<Axis>; 2],
        weight: &[f32],
    ) -> Vec<Self> {
        let read = |axis: &&Axis| axis.count > 0;
        let mut all = vec![];
        for y in rows.iter().filter(read) {
            for x in columns.iter().filter(read) {
                let (lines, places) = (Lines::new(c, y), kernel_places(c, [y, x]));
                all.push(Self {
                    axes: [y.clone(), x.clone()],
                    weights: Weights::pack(c, pass, weight, &places, lines.pairs),
                    lines,
                });
            }
        }
        all
    }

    /// The axes of the copies: of lines and of columns.
    fn copied(&self) -> [&Axis; 2] {
        [&self.lines.axis, &self.axes[1]]
    }

    /// Taps of a set.
    fn taps(&self) -> usize {
        self.copied().map(|axis| axis.taps.len()).iter().product()
    }
}

/// The taps of two axes as places in the kernel, `row · kernel width + column`.
pub(super) fn kernel_places(c: &Convolution, [y, x]: [&Axis; 2]) -> Vec<usize> {
    let of_row = |j: usize| x.taps.iter().map(move |&(i, _)| j * c.kernel[1] + i);
    y.taps.iter().flat_map(|&(j, _)| of_row(j)).collect()
}

/// `y[n, o, first + step·t] = b[o] + Σ_{c, taps} w x[n, c, stride·t + shift]`, phase by phase, for every group of channels.
pub(super) struct Correlation<'a> {
    batch: usize,
    groups: usize,
    /// Channels of a group.
    inputs: usize,
    outputs: usize,
    input_size: [usize; 2],
    output_size: [usize; 2],
    phases: Vec<Phase>,
    /// `[groups · outputs]`
    bias: Option<&'a [f32]>,
    /// Multiply-adds, roughly.
    products: f64,
}

impl<'a> Correlation<'a> {
    /// The forward pass of `c`, whose outputs have `size`.
    pub(super) fn forward(
        c: &Convolution,
        size: [usize; 2],
        weight: &[f32],
        bias: Option<&'a [f32]>,
    ) -> Self {
        let axes = [0, 1].map(|a| vec![Axis::forward(c, a, size[a])]);
        Self {
            batch: c.batch,
            groups: c.groups,
            inputs: c.inputs / c.groups,
            outputs: c.outputs / c.groups,
            input_size: c.size,
            output_size: size,
            phases: Phase::all(c, Pass::Forward, axes, weight),
            bias,
            products: c.products(size),
        }
    }

    /// The gradient of the input of `c`, whose outputs have `size`.
    pub(super) fn backward(c: &Convolution, size: [usize; 2], weight: &[f32]) -> Self {
        let axes = [0, 1].map(|a| Axis::backward(c, a, size[a]));
        Self {
            batch: c.batch,
            groups: c.groups,
            inputs: c.outputs / c.groups,
            outputs: c.inputs / c.groups,
            input_size: size,
            output_size: c.size,
            phases: Phase::all(c, Pass::Backward, axes, weight),
            bias: None,
            products: c.products(size),
        }
    }
}

/// Some rows of all maps of a group of an image.
struct Task<'a, T> {
    image: usize,
    group: usize,
    /// First row and end.
    rows: [usize; 2],
    /// `[outputs]` slices of `[rows, width]`; one of all outputs where these are all rows.
    maps: Vec<&'a mut [T]>,
}

impl<'a> Task<'a, MaybeUninit<f32>> {
    /// The same task with zeros in the maps, which are taken out of this one.
    fn cleared(&mut self) -> Task<'a, f32> {
        let maps = std::mem::take(&mut self.maps).into_iter();
        Task {
            image: self.image,
            group: self.group,
            rows: self.rows,
            maps: maps.map(cleared).collect(),
        }
    }
}

impl Task<'_, f32> {
    /// The rows of one of `outputs` maps.
    fn map(&mut self, output: usize, outputs: usize) -> &mut [f32] {
        match self.maps.len() == outputs {
            true => self.maps[output],
            false => {
                let length = self.maps[0].len() / outputs;
                &mut self.maps[0][output * length..][..length]
            }
        }
    }
}

/// Memory of a thread.
#[derive(Default)]
struct Scratch {
    source: Vec<f32>,
    sums: Vec<f32>,
    zeros: Vec<f32>,
    prefetch: Prefetch,
}

impl Correlation<'_> {
    /// Rows of a task: as many as the cache holds, fewer where there would be too few tasks. Influences speed only.
    fn task_rows(&self) -> usize {
        let height = self.output_size[0];
        let of_row = |phase: &Phase| {
            let layout = Layout::new(phase.copied(), 1);
            let copy = phase.lines.sets() * self.inputs * layout.of_row() / phase.lines.rows();
            match phase.lines.pairs {
                false => copy + self.outputs * layout.row,
                // Their sums are written and read once: quicker from a slower cache than with rows cut in two.
                true => copy,
            }
        };
        let of_row = self.phases.iter().map(of_row).max().unwrap_or(0);
        // A task has rows of all residues of a stride, or whole pairs.
        let first = self.phases.first();
        let step = first.map_or(1, |phase| phase.axes[0].step);
        let of_line = first.map_or(1, |phase| phase.lines.rows());
        let fitting = (TASK_NUMBERS / of_row.max(1)).max(1).saturating_mul(step);
        let fitting = fitting.min(height);
        let tasks = self.batch * self.groups;
        let wanted = 4 * rayon::current_num_threads();
        let rows = match tasks < wanted {
            true => fitting.min((height * tasks).div_ceil(wanted)),
            false => height.div_ceil(height.div_ceil(fitting)),
        };
        rows.next_multiple_of(step * of_line).max(1)
    }

    pub(super) fn run(&self, level: Level, x: &[f32], y: &mut [MaybeUninit<f32>]) {
        if y.is_empty() {
            return;
        }
        let [height, width] = self.output_size;
        let (of_task, plane) = (self.task_rows(), height * width);
        let mut tasks = vec![];
        for (at, maps) in y.chunks_exact_mut(self.outputs * plane).enumerate() {
            let of_image = tasks.len();
            for first in (0..height).step_by(of_task) {
                tasks.push(Task {
                    image: at / self.groups,
                    group: at % self.groups,
                    rows: [first, (first + of_task).min(height)],
                    maps: vec![],
                });
            }
            if of_task >= height {
                tasks[of_image].maps.push(maps);
                continue;
            }
            for map in maps.chunks_exact_mut(plane) {
                let parts = map.chunks_mut(of_task * width);
                for (task, part) in tasks[of_image..].iter_mut().zip(parts) {
                    task.maps.push(part);
                }
            }
        }
        let count = tasks.len();
        let work = |_, tasks: RowsMut<Task<'_, MaybeUninit<f32>>>| {
            let mut scratch = Scratch::default();
            for task in tasks.data {
                let work = Work {
                    correlation: self,
                    x,
                    task: task.cleared(),
                    scratch: &mut scratch,
                };
                run(level, work);
            }
        };
        // Some tasks one after another: each requests what the next one reads.
        let in_chunk = count.div_ceil(4 * rayon::current_num_threads());
        let nanoseconds = self.products * NANOSECONDS;
        for_each_chunk(rows(&mut tasks, 1), count, in_chunk, nanoseconds, &work);
    }
}

struct Work<'a, 'b> {
    correlation: &'a Correlation<'a>,
    x: &'a [f32],
    task: Task<'b, f32>,
    scratch: &'a mut Scratch,
}

impl Kernel for Work<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(mut self, s: S) {
        let Correlation { outputs, bias, .. } = *self.correlation;
        for (index, phase) in self.correlation.phases.iter().enumerate() {
            self.phase(s, phase, index == 0);
        }
        if let Some(bias) = bias {
            let bias = &bias[self.task.group * outputs..][..outputs];
            for (output, &value) in bias.iter().enumerate() {
                let value = s.splat(value);
                simd::zip_map(
                    s,
                    [],
                    [self.task.map(output, outputs)],
                    #[inline(always)]
                    |[], [x]| [s.add(x, value)],
                );
            }
        }
    }
}

impl Work<'_, '_> {
    /// Plans prefetches of what the task will write while its products are summed, if `written`, and of what the next one reads,
    /// which is likely to be this thread's too.
    fn plan_prefetches(&mut self, blocks: usize, written: bool) {
        let prefetch = &mut self.scratch.prefetch;
        prefetch.clear();
        if self.x.is_empty() {
            // Nothing is read, and the sizes of what is not there may be too large to multiply.
            return;
        }
        let Correlation {
            inputs,
            groups,
            input_size: [height, width],
            output_size,
            ..
        } = *self.correlation;
        let Task {
            image,
            group,
            rows: [from, to],
            ref maps,
        } = self.task;
        let next = (image * groups + group + 1) * inputs * height * width;
        if written {
            for map in maps {
                prefetch.add_run(map.as_ptr(), map.len(), true);
            }
        }
        if to - from == output_size[0] {
            let first = self.x.as_ptr().wrapping_add(next);
            prefetch.add_run(first, inputs * height * width, false);
        } else {
            // The rows of the input that go with the same number of rows of the output.
            let row = |row: usize| row.saturating_mul(height) / output_size[0];
            let (maps, first) = match to < output_size[0] {
                true => (next - inputs * height * width, row(to)),
                false => (next, 0),
            };
            for channel in 0..inputs {
                let first = maps + (channel * height + first) * width;
                let first = self.x.as_ptr().wrapping_add(first);
                prefetch.add_run(first, row(to - from) * width, false);
            }
        }
        prefetch.spread(blocks);
    }

    #[inline(always)]
    fn phase<S: Simd>(&mut self, s: S, phase: &Phase, first_phase: bool) {
        let Correlation {
            inputs,
            outputs,
            input_size,
            output_size,
            ..
        } = *self.correlation;
        let [y, x] = &phase.axes;
        let [from, to] = y.within(self.task.rows);
        if from >= to {
            return;
        }
        let (sets, of_line, taps) = (phase.lines.sets(), phase.lines.rows(), phase.taps());
        let rows = to - from;
        let lines = rows.div_ceil(of_line);
        let first_row = self.task.rows[0];
        let place = |row: usize| {
            let row = y.first + y.step * (from + row) - first_row;
            row * output_size[1] + x.first
        };
        let layout = Layout::new(phase.copied(), lines);
        // Lines that fill whole vectors, or a half of one each, are computed alone; of others the numbers between them are, too.
        let halves = S::LANES == 16 && 2 * x.count == S::LANES && layout.row > x.count;
        let line_stride = match halves || x.count.is_multiple_of(S::LANES) {
            true => x.count,
            false => layout.row,
        };
        let positions = (lines - 1) * line_stride + x.count;
        let stride = positions.next_multiple_of(S::LANES);
        // Where in the copy the halves of each vector begin. A half beyond the last line is the last line.
        let place_in_copy = |position: usize| {
            let line = (position / line_stride).min(lines - 1);
            line * layout.row + position % line_stride
        };
        let vectors: Vec<[usize; 2]> = (0..stride)
            .step_by(S::LANES)
            .map(|first| match line_stride == layout.row {
                true => [first; 2],
                false => [0, S::LANES / 2].map(|half| place_in_copy(first + half)),
            })
            .collect();

        // The inputs, with room for a vector that reaches beyond the last position.
        let Scratch { source, zeros, .. } = &mut *self.scratch;
        let of_set = inputs * layout.channel;
        grow(source, sets * of_set + S::LANES);
        let plane = input_size[0] * input_size[1];
        let first = (self.task.image * self.correlation.groups + self.task.group) * inputs;
        let channels = &self.x[first * plane..][..inputs * plane];
        let copies = Copies {
            layout: &layout,
            axes: [y, x],
            pairs: phase.lines.pairs,
            first: from,
        };
        copies.fill(s, channels, source, zeros);

        // Whole lines that lie one after the other, in the sums as in the maps; where all do, the sums are the maps themselves.
        let joined = sets == 1
            && [y.step, x.step] == [1, 1]
            && [line_stride, x.count] == [output_size[1]; 2];
        let direct =
            self.task.maps.len() == 1 && joined && positions == stride && rows == output_size[0];
        let whole = match direct {
            true => std::mem::take(&mut self.task.maps[0]),
            false => &mut [],
        };
        let in_block = (BLOCK_TAPS / taps).clamp(1, inputs);
        let strips = outputs.div_ceil(STRIP);
        match first_phase {
            true => {
                let panels = vectors.len().div_ceil(PANEL);
                self.plan_prefetches(
                    sets * inputs.div_ceil(in_block) * panels * strips,
                    sets == 1,
                )
            }
            false => self.scratch.prefetch.clear(),
        }
        let Scratch {
            source,
            sums,
            prefetch,
            ..
        } = &mut *self.scratch;
        let sums = match direct {
            true => &mut *whole,
            false => {
                grow(sums, sets * outputs * stride);
                &mut sums[..]
            }
        };
        let offsets = layout.offsets(phase.copied());
        let weights_of_set = strips * inputs * taps * STRIP;
        let weights = &phase.weights.0[self.task.group * sets * weights_of_set..];
        let mut all = Vec::with_capacity(in_block * taps);
        for set in 0..sets {
            let weights = &weights[set * weights_of_set..][..weights_of_set];
            let sums = &mut sums[set * outputs * stride..];
            let source = &source[set * of_set..];
            for start in (0..inputs).step_by(in_block) {
                let end = (start + in_block).min(inputs);
                all.clear();
                for channel in start..end {
                    all.extend(
                        offsets
                            .iter()
                            .map(|offset| channel * layout.channel + offset),
                    );
                }
                let furthest = all.iter().max().map_or(0, |&offset| offset);
                let last = vectors.iter().flatten().max().map_or(0, |&at| at);
                assert!(
                    furthest + last + S::LANES <= source.len(),
                    "every vector inside the copy"
                );
                let mut first = 0;
                while first < vectors.len() {
                    // Twice two rather than three and one, whose few sums wait for each other.
                    let number = match vectors.len() - first {
                        4 => 2,
                        left => left.min(PANEL),
                    };
                    let position = first * S::LANES;
                    for (strip, weights) in weights.chunks_exact(inputs * taps * STRIP).enumerate()
                    {
                        let row = strip * STRIP;
                        let mut tile = Positions {
                            strip: &weights[start * taps * STRIP..end * taps * STRIP],
                            rows: STRIP.min(outputs - row),
                            source,
                            vectors: &vectors[first..first + number],
                            offsets: &all,
                            sums: &mut sums[row * stride + position..],
                            stride,
                            add: start > 0,
                        };
                        prefetch.some(s);
                        match halves {
                            true => tile.run::<S, true>(s),
                            false => tile.run::<S, false>(s),
                        }
                    }
                    first += number;
                }
            }
        }
        if direct {
            self.task.maps[0] = whole;
            return;
        }
        for output in 0..outputs {
            let map = self.task.map(output, outputs);
            let sums = &self.scratch.sums[output * stride..];
            if phase.lines.pairs {
                let (m0, m1) = sums.split_at(outputs * stride);
                let (m1, m2) = m1.split_at(outputs * stride);
                let (m2, m3) = m2.split_at(outputs * stride);
                let map = &mut map[place(0)..];
                pairs::outputs(
                    s,
                    [m0, m1, m2, m3],
                    line_stride,
                    map,
                    output_size[1],
                    [rows, x.count],
                );
                continue;
            }
            let (runs, length) = match joined {
                true => (1, positions),
                false => (rows, x.count),
            };
            for run in 0..runs {
                let from = &sums[run * line_stride..][..length];
                let to = &mut map[place(run)..];
                match x.step {
                    1 => copy(s, from, &mut to[..length]),
                    step => {
                        let to = to.iter_mut().step_by(step);
                        to.zip(from).for_each(|(to, &from)| *to = from);
                    }
                }
            }
        }
    }
}

/// The copies of the channels that a task reads: for every set of products, one of each channel.
pub(super) struct Copies<'a> {
    pub(super) layout: &'a Layout,
    /// Of the rows, also where a line of the layout is a pair of them, and of the columns.
    pub(super) axes: [&'a Axis; 2],
    pub(super) pairs: bool,
    /// First row of outputs.
    pub(super) first: usize,
}

impl Copies<'_> {
    /// Fills `to [sets, channels, planes]`, which may be longer, from `channels [channels, height, width]`. `zeros` become as
    /// many as a row has numbers.
    #[inline(always)]
    pub(super) fn fill<S: Simd>(
        &self,
        s: S,
        channels: &[f32],
        to: &mut [f32],
        zeros: &mut Vec<f32>,
    ) {
        let Self {
            layout,
            axes,
            pairs,
            first,
        } = *self;
        let channels = channels.chunks_exact(axes[0].input * axes[1].input);
        let length = layout.channel;
        if !pairs {
            for (channel, to) in channels.zip(to.chunks_exact_mut(length)) {
                layout.fill(
                    axes,
                    first,
                    channel,
                    to,
                    #[inline(always)]
                    |from, to| copy(s, from, to),
                );
            }
            return;
        }
        grow(zeros, axes[1].input);
        let (a, to) = to.split_at_mut(channels.len() * length);
        let (b, to) = to.split_at_mut(a.len());
        let (c, d) = to.split_at_mut(a.len());
        for (index, channel) in channels.enumerate() {
            let at = index * length..(index + 1) * length;
            let planes = [
                &mut a[at.clone()],
                &mut b[at.clone()],
                &mut c[at.clone()],
                &mut d[at],
            ];
            pairs::fill(s, layout, axes, first, channel, planes, zeros);
        }
    }
}

/// Makes room for `length` numbers; those that are there stay.
pub(super) fn grow(buffer: &mut Vec<f32>, length: usize) {
    if buffer.len() < length {
        buffer.resize(length, 0.0);
    }
}

#[inline(always)]
pub(super) fn copy<S: Simd>(s: S, from: &[f32], to: &mut [f32]) {
    simd::zip_map(
        s,
        [from],
        [to],
        #[inline(always)]
        |[x], [_]| [x],
    );
}
