//! The gradient of the weights: a product over positions, `ẇ[k, o] = Σ_p x_k[p] ẏ[p, o]`, for every tap of a channel `k`.
//!
//! ```text
//! ẏ [outputs, positions]  --transposed, zeros in the places that no output has-->  [positions, panel of outputs]
//! a task: some images, one group, one panel of outputs: sums [taps · channels, panel] of all its images
//! ```

use rayon::prelude::*;

use super::{
    Convolution,
    geometry::{Axis, Layout},
    input::{TASK_NUMBERS, copy, grow, kernel_places},
    tile::{PANEL, Taps},
};
use crate::matmul::lanes;
use crate::prefetch::Prefetch;
use crate::simd::{Kernel, Level, Simd, run};

/// Tasks that a pass is cut into, at least, if there are as many images.
const TASKS: usize = 16;
/// Positions whose products are summed before they are added to the others: short sums of small numbers round less.
const BLOCK_POSITIONS: usize = 128;
/// Work below this many multiply-adds stays on the calling thread.
const SINGLE_THREAD_PRODUCTS: f64 = (1 << 20) as f64;

/// The sum of a map, in `f64`.
pub(super) struct Sum<'a>(pub(super) &'a [f32]);

impl Kernel for Sum<'_> {
    type Output = f64;

    #[inline(always)]
    fn call<S: Simd>(self, _: S) -> f64 {
        const CHAINS: usize = 16;
        let chunks = self.0.chunks_exact(CHAINS);
        let rest: f64 = chunks.remainder().iter().map(|&x| f64::from(x)).sum();
        let mut sums = [0.0; CHAINS];
        for chunk in chunks {
            for (sum, &x) in sums.iter_mut().zip(chunk) {
                *sum += f64::from(x);
            }
        }
        sums.iter().sum::<f64>() + rest
    }
}

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
    let [outputs, inputs, height, width] = c.weight_shape();
    let outputs = outputs / c.groups;
    let axes = [0, 1].map(|a| Axis::forward(c, a, size[a]));
    let places = kernel_places(c, [&axes[0], &axes[1]]);
    if c.batch == 0 || places.len() < height * width {
        d_weight.fill(0.0);
    }
    if c.batch == 0 || places.is_empty() {
        return;
    }
    // A line of sums for each tap that reads the input.
    let taps = inputs * places.len();
    let lanes = lanes(level);
    let panel = PANEL * lanes;
    let panels = outputs.div_ceil(panel);
    // How many parts the images are summed in follows from the sizes alone.
    let parts = TASKS.div_ceil(panels * c.groups).min(c.batch);
    let images = c.batch.div_ceil(parts);
    let parts = c.batch.div_ceil(images);
    let task = |index: usize| {
        let (part, rest) = (index / (panels * c.groups), index % (panels * c.groups));
        let first = rest % panels * panel;
        let filled = panel.min(outputs - first);
        let mut sums = vec![0.0; taps * filled.next_multiple_of(lanes)];
        let work = Work {
            c,
            axes: &axes,
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
    let sums: Vec<Vec<f32>> = match c.products(size) < SINGLE_THREAD_PRODUCTS {
        true => (0..tasks).map(task).collect(),
        false => (0..tasks).into_par_iter().map(task).collect(),
    };
    let of_output = inputs * height * width;
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
                let of_channels = total.chunks_exact(places.len() * width);
                for (to, lines) in to
                    .chunks_exact_mut(c.kernel[0] * c.kernel[1])
                    .zip(of_channels)
                {
                    for (&place, line) in places.iter().zip(lines.chunks_exact(width)) {
                        to[place] = line[output];
                    }
                }
            }
        }
    }
}

struct Work<'a> {
    c: &'a Convolution,
    axes: &'a [Axis; 2],
    /// Of an output map.
    size: [usize; 2],
    x: &'a [f32],
    d_y: &'a [f32],
    /// First image and end.
    images: [usize; 2],
    group: usize,
    /// First output of the group and end.
    outputs: [usize; 2],
    /// `[taps, panel]`
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
        let [_, inputs, ..] = self.c.weight_shape();
        let [height, map_width] = self.c.size;
        let plane = height * map_width;
        let positions = self.size[0] * self.size[1];
        let of_row = Layout::new([y, x], 1).of_row() * inputs + width * x.count;
        let in_block = (TASK_NUMBERS / of_row).clamp(1, y.count);
        let in_block = y.count.div_ceil(y.count.div_ceil(in_block));
        let outputs = self.outputs[1] - self.outputs[0];
        // Where the maps of an image begin.
        let x_of = |image: usize| (image * self.c.groups + self.group) * inputs * plane;
        let d_y_of = |image: usize| {
            let of_group = self.c.outputs / self.c.groups * self.group;
            (image * self.c.outputs + of_group + self.outputs[0]) * positions
        };
        let (mut source, mut gradient, mut all) = (vec![], vec![], vec![]);
        let mut prefetch = Prefetch::default();
        for first in (0..y.count).step_by(in_block) {
            let rows = in_block.min(y.count - first);
            let layout = Layout::new([y, x], rows);
            let offsets = layout.offsets([y, x]);
            all.clear();
            for channel in 0..inputs {
                all.extend(
                    offsets
                        .iter()
                        .map(|offset| channel * layout.channel + offset),
                );
            }
            let count = rows * x.count;
            // A block is some whole rows, or a part of one.
            let block = [
                (BLOCK_POSITIONS / x.count).max(1),
                BLOCK_POSITIONS.min(x.count),
            ];
            grow(&mut source, inputs * layout.channel);
            // The lanes beyond the last output stay 0 from image to image.
            gradient.clear();
            gradient.resize(count * width, 0.0);
            for image in self.images[0]..self.images[1] {
                let channels = source.chunks_exact_mut(layout.channel).take(inputs);
                for (channel, to) in channels.enumerate() {
                    let from = &self.x[x_of(image) + channel * plane..][..plane];
                    layout.fill(
                        [y, x],
                        first,
                        from,
                        to,
                        #[inline(always)]
                        |from, to| copy(s, from, to),
                    );
                }
                let maps = &self.d_y[d_y_of(image)..];
                for row in 0..rows {
                    let to = &mut gradient[row * x.count * width..][..x.count * width];
                    let place = (y.first + first + row) * self.size[1] + x.first;
                    transpose(s, &maps[place..], positions, outputs, to, width);
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
                    let blocks = rows.div_ceil(block[0]) * x.count.div_ceil(block[1]);
                    prefetch.spread(blocks * all.len().div_ceil(8));
                }
                for row in (0..rows).step_by(block[0]) {
                    let number = block[0].min(rows - row);
                    for column in (0..x.count).step_by(block[1]) {
                        let columns = block[1].min(x.count - column);
                        let gradient = &gradient[(row * x.count + column) * width..];
                        let mut taps = Taps {
                            source: &source[row * layout.row + column..],
                            source_row: layout.row,
                            offsets: &all,
                            gradient: &gradient[..number * columns * width],
                            columns,
                            sums: self.sums,
                            prefetch: &mut prefetch,
                        };
                        taps.run::<S, VECTORS>(s);
                    }
                }
            }
        }
    }
}

/// The first numbers of `rows` rows, `stride` apart, as columns: `to [numbers, width]`, where columns beyond `rows` stay as they are.
#[inline(always)]
fn transpose<S: Simd>(
    s: S,
    from: &[f32],
    stride: usize,
    rows: usize,
    to: &mut [f32],
    width: usize,
) {
    let count = to.len() / width;
    let whole = [rows, count].map(|size| size / S::LANES * S::LANES);
    if whole[0] > 0 && whole[1] > 0 {
        assert!((rows - 1) * stride + count <= from.len());
        for row in (0..whole[0]).step_by(S::LANES) {
            for at in (0..whole[1]).step_by(S::LANES) {
                // SAFETY: `LANES` rows from `row` on have `LANES` numbers from `at` on, by the assertion; `to` has `count` lines
                // of `width >= rows` numbers.
                unsafe {
                    let from = from.as_ptr().add(row * stride + at);
                    s.transpose(from, stride, to.as_mut_ptr().add(at * width + row), width);
                }
            }
        }
    }
    for row in 0..rows {
        let done = if row < whole[0] { whole[1] } else { 0 };
        let from = &from[row * stride..][..count];
        for (at, &x) in from.iter().enumerate().skip(done) {
            to[at * width + row] = x;
        }
    }
}
