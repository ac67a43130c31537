//! The gradient of the weights: a product over positions, `ẇ[k, o] = Σ_p x_k[p] ẏ[p, o]`, for every tap of a channel `k`.
//!
//! ```text
//! ẏ [outputs, positions]  --transposed, zeros in the places that no output has-->  [positions, panel of outputs]
//! a task: some images, one group, one panel of outputs: sums [taps · channels, panel] of all its images
//! ```

use super::{
    Convolution,
    geometry::{Axis, Layout},
    input::{Copies, NANOSECONDS, TASK_NUMBERS, grow, kernel_places},
    pairs::{self, Lines},
    tile::{PANEL, Taps},
};
use crate::matmul::lanes;
use crate::prefetch::Prefetch;
use crate::simd::{self, Kernel, Level, Simd, run};
use crate::threads::map_each;
use crate::transpose::Columns;

/// Tasks that a pass is cut into, at least, if there are as many images.
const TASKS: usize = 16;
/// Positions whose products are summed before they are added to the others, at least and at most: short sums of small numbers round
/// less. Within these, an eighth of the positions.
const BLOCK_POSITIONS: [usize; 2] = [16, 128];

pub(super) fn backward(
    c: &Convolution,
    level: Level,
    size: [usize; 2],
    x: &[f32],
    d_y: &[f32],
    d_weight: &mut [f32],
) {
    if d_weight.is_empty() {
        return;
    }
    let [outputs, inputs, height, kernel_width] = c.weight_shape();
    let outputs = outputs / c.groups;
    let axes = [0, 1].map(|a| Axis::forward(c, a, size[a]));
    let places = kernel_places(c, [&axes[0], &axes[1]]);
    if c.batch == 0 || places.len() < height * kernel_width {
        d_weight.fill(0.0);
    }
    if c.batch == 0 || places.is_empty() {
        return;
    }
    let lines = Lines::new(c, &axes[0]);
    // Of a channel, in each set: a line of sums for each tap that reads the input.
    let of_channel = lines.axis.taps.len() * axes[1].taps.len();
    let taps = lines.sets() * inputs * of_channel;
    let lanes = lanes(level);
    let panel = PANEL * lanes;
    let panels = outputs.div_ceil(panel);
    // How many parts the images are summed in follows from the sizes alone.
    let parts = TASKS.div_ceil(panels * c.groups).min(c.batch);
    let images = c.batch.div_ceil(parts);
    let parts = c.batch.div_ceil(images);
    let task = |index: usize, ()| {
        let (part, rest) = (index / (panels * c.groups), index % (panels * c.groups));
        let first = rest % panels * panel;
        let filled = panel.min(outputs - first);
        let mut sums = vec![0.0; taps * filled.next_multiple_of(lanes)];
        let work = Work {
            c,
            axes: &axes,
            lines: &lines,
            size,
            x,
            d_y,
            images: [part * images, ((part + 1) * images).min(c.batch)],
            group: rest / panels,
            outputs: [first, first + filled],
            sums: &mut sums,
        };
        run(level, work);
        sums
    };
    let tasks = parts * panels * c.groups;
    let sums = map_each(vec![(); tasks], c.products(size) * NANOSECONDS, &task);
    let of_output = inputs * height * kernel_width;
    for (group, d_weight) in d_weight.chunks_mut(outputs * of_output).enumerate() {
        for (index, d_weight) in d_weight.chunks_mut(panel * of_output).enumerate() {
            let parts = sums[group * panels + index..]
                .iter()
                .step_by(panels * c.groups);
            let mut parts = parts.cloned();
            let mut total = parts.next().expect("at least one part");
            for part in parts {
                total.iter_mut().zip(part).for_each(|(sum, x)| *sum += x);
            }
            let width = total.len() / taps;
            for (output, to) in d_weight.chunks_exact_mut(of_output).enumerate() {
                for (channel, to) in to.chunks_exact_mut(height * kernel_width).enumerate() {
                    let sum = |set: usize, tap: usize| {
                        total[((set * inputs + channel) * of_channel + tap) * width + output]
                    };
                    for tap in 0..of_channel {
                        match lines.pairs {
                            false => to[places[tap]] = sum(0, tap),
                            true => {
                                let sums = [sum(0, tap), sum(1, tap), sum(2, tap), sum(3, tap)];
                                let rows = pairs::weight_gradients(sums).into_iter().enumerate();
                                rows.for_each(|(row, x)| to[places[row * of_channel + tap]] = x);
                            }
                        }
                    }
                }
            }
        }
    }
}

struct Work<'a> {
    c: &'a Convolution,
    axes: &'a [Axis; 2],
    lines: &'a Lines,
    /// Of an output map.
    size: [usize; 2],
    x: &'a [f32],
    d_y: &'a [f32],
    /// First image and end.
    images: [usize; 2],
    group: usize,
    /// First output of the group and end.
    outputs: [usize; 2],
    /// `[sets, taps, panel]`
    sums: &'a mut [f32],
}

impl Kernel for Work<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let outputs = self.outputs[1] - self.outputs[0];
        match outputs.div_ceil(S::LANES) {
            1 => self.panel::<S, 1>(s),
            2 => self.panel::<S, 2>(s),
            _ => self.panel::<S, PANEL>(s),
        }
    }
}

impl Work<'_> {
    #[inline(always)]
    fn panel<S: Simd, const VECTORS: usize>(self, s: S) {
        let width = VECTORS * S::LANES;
        let [y, x] = self.axes;
        let (sets, of_line) = (self.lines.sets(), self.lines.rows());
        let (copied, total) = ([&self.lines.axis, x], self.lines.axis.count);
        let [_, inputs, ..] = self.c.weight_shape();
        let [height, map_width] = self.c.size;
        let plane = height * map_width;
        let positions = self.size[0] * self.size[1];
        let numbers = Layout::new(copied, 1).of_row() * inputs + width * x.count;
        let in_block = (TASK_NUMBERS / (sets * numbers)).clamp(1, total);
        let in_block = total.div_ceil(total.div_ceil(in_block));
        let outputs = self.outputs[1] - self.outputs[0];
        let summed = (self.images[1] - self.images[0]) * total * x.count;
        let of_block = (summed / 8).clamp(BLOCK_POSITIONS[0], BLOCK_POSITIONS[1]);
        // Where the maps of an image begin.
        let x_of = |image: usize| (image * self.c.groups + self.group) * inputs * plane;
        let d_y_of = |image: usize| {
            let of_group = self.c.outputs / self.c.groups * self.group;
            (image * self.c.outputs + of_group + self.outputs[0]) * positions
        };
        let (mut source, mut gradient, mut all, mut zeros) = (vec![], vec![], vec![], vec![]);
        let mut prefetch = Prefetch::default();
        for first_line in (0..total).step_by(in_block) {
            let lines = in_block.min(total - first_line);
            let first = of_line * first_line;
            let rows = (of_line * lines).min(y.count - first);
            let layout = Layout::new(copied, lines);
            let offsets = layout.offsets(copied);
            all.clear();
            for channel in 0..inputs {
                all.extend(
                    offsets
                        .iter()
                        .map(|offset| channel * layout.channel + offset),
                );
            }
            let count = lines * x.count;
            // A block is some whole lines, or a part of one.
            let block = [(of_block / x.count).max(1), of_block.min(x.count)];
            let (of_source, of_gradient) = (inputs * layout.channel, count * width);
            grow(&mut source, sets * of_source);
            // The lanes beyond the last output stay 0 from image to image, as does the second row of a pair that is not there.
            gradient.clear();
            gradient.resize(sets * of_gradient, 0.0);
            let copies = Copies {
                layout: &layout,
                axes: [y, x],
                pairs: self.lines.pairs,
                first,
            };
            for image in self.images[0]..self.images[1] {
                let channels = &self.x[x_of(image)..][..inputs * plane];
                copies.fill(s, channels, &mut source, &mut zeros);
                let maps = &self.d_y[d_y_of(image)..];
                let (even, others) = gradient.split_at_mut(of_gradient);
                let (others, odd) = others.split_at_mut(others.len().saturating_sub(of_gradient));
                for row in 0..rows {
                    let to = match row % of_line {
                        0 => &mut even[..],
                        _ => &mut odd[..],
                    };
                    let line = row / of_line * x.count * width;
                    let place = (y.first + first + row) * self.size[1] + x.first;
                    let columns = Columns {
                        from: &maps[place..],
                        stride: positions,
                        rows: outputs,
                        to: &mut to[line..][..x.count * width],
                        width,
                    };
                    columns.call(s);
                }
                if self.lines.pairs {
                    let (sums, differences) = others.split_at_mut(of_gradient);
                    simd::zip_map(
                        s,
                        [even, odd],
                        [sums, differences],
                        #[inline(always)]
                        |[even, odd], _| [s.add(even, odd), s.sub(even, odd)],
                    );
                }
                prefetch.clear();
                if image + 1 < self.images[1] && plane > 0 {
                    // The same rows of the next image; a stride may be longer than the map.
                    let row = (first * y.stride).min(height);
                    let number = rows.saturating_mul(y.stride).min(height - row);
                    for channel in 0..inputs {
                        let at = x_of(image + 1) + channel * plane + row * map_width;
                        let start = self.x.as_ptr().wrapping_add(at);
                        prefetch.add_run(start, number * map_width, false);
                    }
                    for output in 0..outputs {
                        let row = (y.first + first) * self.size[1];
                        let at = d_y_of(image + 1) + output * positions + row;
                        let start = self.d_y.as_ptr().wrapping_add(at);
                        prefetch.add_run(start, rows * self.size[1], false);
                    }
                    let blocks = lines.div_ceil(block[0]) * x.count.div_ceil(block[1]);
                    prefetch.spread(sets * blocks * all.len().div_ceil(8));
                }
                for set in 0..sets {
                    let source = &source[set * of_source..];
                    let gradient = &gradient[set * of_gradient..];
                    let sums = &mut self.sums[set * all.len() * width..][..all.len() * width];
                    for line in (0..lines).step_by(block[0]) {
                        let number = block[0].min(lines - line);
                        for column in (0..x.count).step_by(block[1]) {
                            let columns = block[1].min(x.count - column);
                            let gradient = &gradient[(line * x.count + column) * width..];
                            let mut taps = Taps {
                                source: &source[line * layout.row + column..],
                                source_row: layout.row,
                                offsets: &all,
                                gradient: &gradient[..number * columns * width],
                                columns,
                                sums: &mut *sums,
                                prefetch: &mut prefetch,
                            };
                            taps.run::<S, VECTORS>(s);
                        }
                    }
                }
            }
        }
    }
}
