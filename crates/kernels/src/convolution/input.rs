//! Correlations: the forward pass, and the gradient of the input.

use rayon::prelude::*;

use super::{
    Convolution,
    geometry::{Axis, Layout},
    tile::{PANEL, Positions, STRIP},
};
use crate::simd::{self, Kernel, Level, Simd, run};

/// Numbers that a task keeps in the second-level cache: the padded copy and the sums.
const TASK_NUMBERS: usize = 96 * 1024;
/// Taps and channels whose inputs and weights a panel finds in the first-level cache.
const BLOCK_TAPS: usize = 160;
/// Work below this many multiply-adds stays on the calling thread.
const SINGLE_THREAD_PRODUCTS: f64 = (1 << 20) as f64;

/// The weights of a phase, in strips of [`STRIP`] outputs: for every group `[strips, inputs · taps, STRIP]`.
pub(super) struct Weights(Vec<f32>);

impl Weights {
    /// For the forward pass: outputs are the convolution's.
    pub(super) fn of_outputs(c: &Convolution, weight: &[f32], taps: &[usize]) -> Self {
        let [outputs, inputs, height, width] = c.weight_shape();
        let size = height * width;
        let outputs = outputs / c.groups;
        Self::pack(
            c.groups,
            [outputs, inputs],
            taps,
            |group, output, input, tap| {
                weight[((group * outputs + output) * inputs + input) * size + tap]
            },
        )
    }

    /// For the gradient of the input: outputs are the convolution's inputs.
    pub(super) fn of_inputs(c: &Convolution, weight: &[f32], taps: &[usize]) -> Self {
        let [outputs, inputs, height, width] = c.weight_shape();
        let size = height * width;
        let outputs = outputs / c.groups;
        Self::pack(
            c.groups,
            [inputs, outputs],
            taps,
            |group, input, output, tap| {
                weight[((group * outputs + output) * inputs + input) * size + tap]
            },
        )
    }

    fn pack(
        groups: usize,
        [outputs, inputs]: [usize; 2],
        taps: &[usize],
        weight: impl Fn(usize, usize, usize, usize) -> f32,
    ) -> Self {
        let strip = inputs * taps.len() * STRIP;
        let of_group = outputs.div_ceil(STRIP) * strip;
        let mut packed = vec![0.0; groups * of_group];
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
    /// All pairs of the axes' phases. `weights` packs those of a list of taps, each `row · kernel width + column`.
    pub(super) fn all(
        [rows, columns]: [Vec<Axis>; 2],
        kernel_width: usize,
        weights: impl Fn(&[usize]) -> Weights,
    ) -> Vec<Self> {
        let mut all = vec![];
        for y in &rows {
            for x in &columns {
                let of_row = |j: usize| x.taps.iter().map(move |&(i, _)| j * kernel_width + i);
                let taps: Vec<usize> = y.taps.iter().flat_map(|&(j, _)| of_row(j)).collect();
                all.push(Self {
                    axes: [y.clone(), x.clone()],
                    weights: weights(&taps),
                });
            }
        }
        all
    }

    fn taps(&self) -> usize {
        self.axes[0].taps.len() * self.axes[1].taps.len()
    }
}

/// `y[n, o, first + step·t] = b[o] + Σ_{c, taps} w x[n, c, stride·t + shift]`, phase by phase, for every group of channels.
pub(super) struct Correlation<'a> {
    pub(super) batch: usize,
    pub(super) groups: usize,
    /// Channels of a group.
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    pub(super) input_size: [usize; 2],
    pub(super) output_size: [usize; 2],
    pub(super) phases: Vec<Phase>,
    /// `[groups · outputs]`
    pub(super) bias: Option<&'a [f32]>,
    /// Multiply-adds, roughly.
    pub(super) products: f64,
}

/// Some rows of all maps of a group of an image.
struct Task<'a> {
    image: usize,
    group: usize,
    /// First row and end.
    rows: [usize; 2],
    /// `[outputs]` slices of `[rows, width]`.
    maps: Vec<&'a mut [f32]>,
}

/// Memory of a thread.
#[derive(Default)]
struct Scratch {
    source: Vec<f32>,
    sums: Vec<f32>,
}

impl Correlation<'_> {
    /// Rows of a task: as many as the cache holds, fewer where there would be too few tasks. Influences speed only.
    fn task_rows(&self) -> usize {
        let [height, width] = self.output_size;
        let [_, input_width] = self.input_size;
        let phases = self.phases.len().max(1);
        let of_row =
            (self.inputs * (input_width + 2) + self.outputs * (width + 2)) / phases.isqrt();
        let fitting = (TASK_NUMBERS / of_row.max(1)).clamp(1, height);
        let tasks = self.batch * self.groups;
        let wanted = 4 * rayon::current_num_threads();
        let rows = match tasks < wanted {
            true => fitting.min((height * tasks).div_ceil(wanted)),
            false => height.div_ceil(height.div_ceil(fitting)),
        };
        // Rows of all residues of a stride.
        let step = self.phases.iter().map(|phase| phase.axes[0].step).max();
        rows.next_multiple_of(step.unwrap_or(1)).max(1)
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
                    maps: Vec::with_capacity(self.outputs),
                });
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
        for phase in &self.correlation.phases {
            self.phase(s, phase);
        }
    }
}

impl Work<'_, '_> {
    #[inline(always)]
    fn phase<S: Simd>(&mut self, s: S, phase: &Phase) {
        let Correlation {
            inputs,
            outputs,
            input_size,
            output_size,
            ..
        } = *self.correlation;
        let [y, x] = &phase.axes;
        let [from, to] = y.within(self.task.rows);
        if from >= to || x.count == 0 {
            return;
        }
        let taps = phase.taps();
        let bias = self.correlation.bias;
        let bias = bias.map(|bias| &bias[self.task.group * outputs..][..outputs]);
        let rows = to - from;
        let place = |row: usize| {
            let row = y.first + y.step * (from + row) - self.task.rows[0];
            row * output_size[1] + x.first
        };
        if taps * inputs == 0 {
            for (output, map) in self.task.maps.iter_mut().enumerate() {
                let value = bias.map_or(0.0, |bias| bias[output]);
                for row in 0..rows {
                    let line = map[place(row)..].iter_mut().step_by(x.step);
                    line.take(x.count).for_each(|to| *to = value);
                }
            }
            return;
        }
        let layout = Layout::new([y, x], rows);
        let positions = (rows - 1) * layout.row + x.count;
        let panel = PANEL * S::LANES;
        let stride = positions.next_multiple_of(S::LANES);

        // The inputs, with room for a panel that reaches beyond the last position.
        let Scratch { source, sums } = &mut *self.scratch;
        grow(source, inputs * layout.channel + panel);
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

        grow(sums, outputs * stride);
        let offsets = layout.offsets([y, x]);
        let in_block = (BLOCK_TAPS / taps).clamp(1, inputs);
        let of_group = outputs.div_ceil(STRIP) * inputs * taps * STRIP;
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
            assert!(
                furthest + stride <= source.len(),
                "every panel inside the copy"
            );
            for position in (0..stride).step_by(panel) {
                for (strip, weights) in weights.chunks_exact(inputs * taps * STRIP).enumerate() {
                    let row = strip * STRIP;
                    let mut tile = Positions {
                        strip: &weights[start * taps * STRIP..end * taps * STRIP],
                        rows: STRIP.min(outputs - row),
                        source: &source[position..],
                        offsets: &all,
                        sums: &mut sums[row * stride + position..],
                        stride,
                        go_on: start > 0,
                    };
                    match (stride - position).min(panel) / S::LANES {
                        1 => tile.run::<S, 1>(s),
                        2 => tile.run::<S, 2>(s),
                        _ => tile.run::<S, PANEL>(s),
                    }
                }
            }
        }
        for (output, map) in self.task.maps.iter_mut().enumerate() {
            let value = bias.map_or(0.0, |bias| bias[output]);
            let sums = &sums[output * stride..];
            for row in 0..rows {
                let from = &sums[row * layout.row..][..x.count];
                let to = &mut map[place(row)..];
                match x.step {
                    1 => {
                        let value = s.splat(value);
                        let to = &mut to[..x.count];
                        simd::zip_map(
                            s,
                            [from],
                            [to],
                            #[inline(always)]
                            |[x], [_]| [s.add(x, value)],
                        );
                    }
                    step => {
                        let to = to.iter_mut().step_by(step);
                        to.zip(from).for_each(|(to, from)| *to = from + value);
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
