//! Correlations: the forward pass, and the gradient of the input.

use rayon::prelude::*;

use super::{
    Convolution,
    geometry::{Axis, Layout},
    tile::{PANEL, Positions, STRIP},
};
use crate::prefetch::Prefetch;
use crate::simd::{self, Kernel, Level, Simd, run};

/// Numbers that a task keeps in the second-level cache: the padded copy of its inputs, and its sums or the transposed gradient.
pub(super) const TASK_NUMBERS: usize = 144 * 1024;
/// Taps and channels whose inputs and weights a panel finds in the first-level cache, and whose products are summed before they are
/// added to the others.
const BLOCK_TAPS: usize = 160;
/// Work below this many multiply-adds stays on the calling thread.
const SINGLE_THREAD_PRODUCTS: f64 = (1 << 20) as f64;

/// The weights of a phase, in strips of [`STRIP`] outputs: for every group `[strips, inputs · taps, STRIP]`.
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
    fn pack(c: &Convolution, pass: Pass, weight: &[f32], taps: &[usize]) -> Self {
        let [outputs, of_output, height, width] = c.weight_shape();
        let (of_input, size) = (outputs / c.groups, height * width);
        let [outputs, inputs] = match pass {
            Pass::Forward => [of_input, of_output],
            Pass::Backward => [of_output, of_input],
        };
        let weight = |group: usize, output: usize, input: usize, tap: usize| {
            let [row, column] = match pass {
                Pass::Forward => [output, input],
                Pass::Backward => [input, output],
            };
            weight[((group * of_input + row) * of_output + column) * size + tap]
        };
        let strip = inputs * taps.len() * STRIP;
        let of_group = outputs.div_ceil(STRIP) * strip;
        let mut packed = vec![0.0; c.groups * of_group];
        if of_group == 0 {
            return Self(packed);
        }
        for (group, packed) in packed.chunks_exact_mut(of_group).enumerate() {
            for (first, strip) in packed.chunks_exact_mut(strip).enumerate() {
                let rows = STRIP.min(outputs - first * STRIP);
                for (line, to) in strip.chunks_exact_mut(STRIP).enumerate() {
                    let (input, tap) = (line / taps.len(), taps[line % taps.len()]);
                    for (row, to) in to[..rows].iter_mut().enumerate() {
                        *to = weight(group, first * STRIP + row, input, tap);
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
                all.push(Self {
                    axes: [y.clone(), x.clone()],
                    weights: Weights::pack(c, pass, weight, &kernel_places(c, [y, x])),
                });
            }
        }
        all
    }

    fn taps(&self) -> usize {
        self.axes[0].taps.len() * self.axes[1].taps.len()
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

    /// Whether every output is one of a phase; if not, the others read nothing but zeros.
    fn covers(&self) -> bool {
        let of_phase = |phase: &Phase| phase.axes[0].count * phase.axes[1].count;
        let [height, width] = self.output_size;
        self.phases.iter().map(of_phase).sum::<usize>() == height * width
    }
}

/// Some rows of all maps of a group of an image.
struct Task<'a> {
    image: usize,
    group: usize,
    /// First row and end.
    rows: [usize; 2],
    /// `[outputs]` slices of `[rows, width]`; one of all outputs where these are all rows.
    maps: Vec<&'a mut [f32]>,
}

impl Task<'_> {
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
    prefetch: Prefetch,
}

impl Correlation<'_> {
    /// Rows of a task: as many as the cache holds, fewer where there would be too few tasks. Influences speed only.
    fn task_rows(&self) -> usize {
        let height = self.output_size[0];
        let of_row = |phase: &Phase| {
            let layout = Layout::new([&phase.axes[0], &phase.axes[1]], 1);
            self.inputs * layout.of_row() + self.outputs * layout.row
        };
        let of_row = self.phases.iter().map(of_row).max().unwrap_or(0);
        // Rows of all residues of a stride.
        let step = self.phases.first().map_or(1, |phase| phase.axes[0].step);
        let fitting = (TASK_NUMBERS / of_row.max(1)).max(1).saturating_mul(step);
        let fitting = fitting.min(height);
        let tasks = self.batch * self.groups;
        let wanted = 4 * rayon::current_num_threads();
        let rows = match tasks < wanted {
            true => fitting.min((height * tasks).div_ceil(wanted)),
            false => height.div_ceil(height.div_ceil(fitting)),
        };
        rows.next_multiple_of(step).max(1)
    }

    pub(super) fn run(&self, level: Level, x: &[f32], y: &mut [f32]) {
        if y.is_empty() {
            return;
        }
        let [height, width] = self.output_size;
        let (rows, plane) = (self.task_rows(), height * width);
        let mut tasks = vec![];
        for (at, maps) in y.chunks_exact_mut(self.outputs * plane).enumerate() {
            let of_image = tasks.len();
            for first in (0..height).step_by(rows) {
                tasks.push(Task {
                    image: at / self.groups,
                    group: at % self.groups,
                    rows: [first, (first + rows).min(height)],
                    maps: vec![],
                });
            }
            if rows >= height {
                tasks[of_image].maps.push(maps);
                continue;
            }
            for map in maps.chunks_exact_mut(plane) {
                let parts = map.chunks_mut(rows * width);
                for (task, part) in tasks[of_image..].iter_mut().zip(parts) {
                    task.maps.push(part);
                }
            }
        }
        let work = |scratch: &mut Scratch, task: Task<'_>| {
            let work = Work {
                correlation: self,
                x,
                task,
                scratch,
            };
            run(level, work);
        };
        if self.products < SINGLE_THREAD_PRODUCTS || tasks.len() == 1 {
            let mut scratch = Scratch::default();
            tasks.into_iter().for_each(|task| work(&mut scratch, task));
        } else {
            tasks.into_par_iter().for_each_init(Scratch::default, work);
        }
    }
}

struct Work<'a, 'b> {
    correlation: &'a Correlation<'a>,
    x: &'a [f32],
    task: Task<'b>,
    scratch: &'a mut Scratch,
}

impl Kernel for Work<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(mut self, s: S) {
        let Correlation { outputs, bias, .. } = *self.correlation;
        if !self.correlation.covers() {
            self.task.maps.iter_mut().for_each(|map| map.fill(0.0));
        }
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
    /// Plans prefetches of what the task will write, and of what the next one reads, which is likely to be this thread's too.
    fn plan_prefetches(&mut self, blocks: usize) {
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
        if to - from == output_size[0] {
            prefetch.add_run(maps[0].as_ptr(), maps[0].len(), true);
            let first = self.x.as_ptr().wrapping_add(next);
            prefetch.add_run(first, inputs * height * width, false);
        } else {
            for map in maps {
                prefetch.add_run(map.as_ptr(), map.len(), true);
            }
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
        let taps = phase.taps();
        let rows = to - from;
        let first_row = self.task.rows[0];
        let place = |row: usize| {
            let row = y.first + y.step * (from + row) - first_row;
            row * output_size[1] + x.first
        };
        let layout = Layout::new([y, x], rows);
        // Rows that fill whole vectors, or a half of one each, are computed alone; of others the numbers between them are, too.
        let halves = S::LANES == 16 && 2 * x.count == S::LANES && layout.row > x.count;
        let row_stride = match halves || x.count.is_multiple_of(S::LANES) {
            true => x.count,
            false => layout.row,
        };
        let positions = (rows - 1) * row_stride + x.count;
        let stride = positions.next_multiple_of(S::LANES);
        // Where in the copy the halves of each vector begin. A half beyond the last row is the last row.
        let place_in_copy = |position: usize| {
            let row = (position / row_stride).min(rows - 1);
            row * layout.row + position % row_stride
        };
        let vectors: Vec<[usize; 2]> = (0..stride)
            .step_by(S::LANES)
            .map(|first| match row_stride == layout.row {
                true => [first; 2],
                false => [0, S::LANES / 2].map(|half| place_in_copy(first + half)),
            })
            .collect();

        // The inputs, with room for a vector that reaches beyond the last position.
        let Scratch { source, .. } = &mut *self.scratch;
        grow(source, inputs * layout.channel + S::LANES);
        let plane = input_size[0] * input_size[1];
        let first = (self.task.image * self.correlation.groups + self.task.group) * inputs;
        let channels = self.x[first * plane..][..inputs * plane].chunks(plane.max(1));
        for (channel, to) in source
            .chunks_exact_mut(layout.channel)
            .take(inputs)
            .enumerate()
        {
            let from_channel = channels.clone().nth(channel).unwrap_or(&[]);
            layout.fill(
                [y, x],
                from,
                from_channel,
                to,
                #[inline(always)]
                |from, to| copy(s, from, to),
            );
        }

        // Rows that lie one after the other, in the sums as in the maps; where all do, the sums are the maps themselves.
        let joined = row_stride == output_size[1] && [y.step, x.step] == [1, 1];
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
                self.plan_prefetches(inputs.div_ceil(in_block) * panels * strips)
            }
            false => self.scratch.prefetch.clear(),
        }
        let Scratch {
            source,
            sums,
            prefetch,
        } = &mut *self.scratch;
        let sums = match direct {
            true => &mut *whole,
            false => {
                grow(sums, outputs * stride);
                &mut sums[..]
            }
        };
        let offsets = layout.offsets([y, x]);
        let of_group = strips * inputs * taps * STRIP;
        let weights = &phase.weights.0[self.task.group * of_group..][..of_group];
        let mut all = Vec::with_capacity(in_block * taps);
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
                for (strip, weights) in weights.chunks_exact(inputs * taps * STRIP).enumerate() {
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
        if direct {
            self.task.maps[0] = whole;
            return;
        }
        for output in 0..outputs {
            let map = self.task.map(output, outputs);
            let sums = &self.scratch.sums[output * stride..];
            let (runs, length) = match joined {
                true => (1, positions),
                false => (rows, x.count),
            };
            for run in 0..runs {
                let from = &sums[run * row_stride..][..length];
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
