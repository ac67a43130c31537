//! `C (+)= Aᵀ B` with a long inner index: the weight gradients, `C[r, c] = Σ_k A[k, r] B[k, c]`.
//!
//! ```text
//!                     rows of C ->                columns of C ->
//!              A     | task 0 | task 1 | ..      B       | task 0 | task 1 | ..
//!  k   192 steps     |  read where     |                 | packed |                 sums of 192 steps in registers,
//!  |   192 steps     |  it stands      |                 | packed |                 the blocks added in order
//!  v   ..
//! ```
//! A task owns some rows and columns of `C` and is independent of the others: block by block it packs its columns of `B`, and
//! multiplies them with its columns of `A`, while those of the next block are requested. Where vectors have fewer than 16 lanes, tiles are
//! low: there 16 columns of `A` at a time are packed, too. Of a small `C` a task owns a part of the
//! inner index, too: otherwise every task would read all of both matrices. The parts are added in order.

use std::{mem::MaybeUninit, ops::Range};

use super::{
    NANOSECONDS, TASKS,
    stored::GROUP,
    tile::{LOW_ROWS, PANEL, Pack, Product, Rows, Strides, Sums, TILE_ROWS, Write, lanes},
};
use crate::{
    error::{KernelError, check_length},
    prefetch::Prefetch,
    simd::{Buffer, Level, fresh, run},
    threads::{RowsMut, for_each_chunk, rows},
    view::ViewMut,
};

/// Steps of the inner index that one block sums.
const BLOCK: usize = 192;
/// Columns that one task owns at most: so many that packing `A`, which each task does, takes little.
const TASK_COLUMNS: usize = 192;
/// Rows that one task owns at least, if there are so many, as they share the cost of packing `B`; and at most, which bounds the memory of
/// its sums.
const TASK_ROWS: [usize; 2] = [32, 1024];
/// Numbers of a result that is computed in parts of the inner index, at most. The parts follow from the sizes alone, so the bits do not
/// depend on the number of threads.
const SMALL: usize = 1 << 16;
/// Steps of a part, at least.
const PART: usize = 1024;
/// Parts, at most, which bounds the memory of their sums.
const PARTS: usize = 16;
/// Nanoseconds of adding one number of a part.
const ADDING: f64 = 0.1;
/// Numbers in a line.
const LINE: usize = 16;
/// Multiply-adds in the time in which a task reads a number of `A` or packs one of `B`.
const READING: usize = 25;

/// `d_weight (+)= xᵀ d_y`, the gradient of the weights of `y = x weight`: `x [rows, inputs]`, `d_y [rows, outputs]`; row `i` of
/// `d_weight [inputs, outputs]` starts at number `i · stride`.
///
/// ```
/// use regard_kernels::matmul::{Write, weight_gradient};
/// let (x, d_y) = ([1.0, 2.0, 3.0, 4.0], [1.0, 10.0]); // [2, 2], [2, 1]
/// let mut d_weight = [0.0; 2];
/// weight_gradient([2, 2, 1], &x, &d_y, &mut d_weight, 1, Write::Replace)?;
/// assert_eq!(d_weight, [31.0, 42.0]);
/// # Ok::<(), regard_kernels::KernelError>(())
/// ```
///
/// # Errors
/// [`KernelError`] if a length does not fit the sizes, or rows of `d_weight` would overlap.
pub fn weight_gradient(
    [rows, inputs, outputs]: [usize; 3],
    x: &[f32],
    d_y: &[f32],
    d_weight: &mut [f32],
    stride: usize,
    write: Write,
) -> Result<(), KernelError> {
    let [x, d_y] = operands([rows, inputs, outputs], x, d_y)?;
    let out = ViewMut {
        data: d_weight,
        shape: [1, 1, inputs, outputs],
        strides: [0, 0, stride],
    };
    out.check("d_weight")?;
    let stride = stride.max(outputs); // of a single row any is accepted
    transposed_product(Level::current(), x, d_y, d_weight, stride, write);
    Ok(())
}

/// [`weight_gradient`] into memory `[inputs, outputs]` that holds nothing yet: all of it is written, unless there is an error.
///
/// # Errors
/// As [`weight_gradient`].
pub fn weight_gradient_fresh(
    [rows, inputs, outputs]: [usize; 3],
    x: &[f32],
    d_y: &[f32],
    d_weight: &mut [MaybeUninit<f32>],
) -> Result<(), KernelError> {
    let of_weight = d_weight.len();
    check_length(
        "d_weight",
        "[inputs, outputs]",
        &[inputs, outputs],
        of_weight,
    )?;
    let [x, d_y] = operands([rows, inputs, outputs], x, d_y)?;
    replace(Level::current(), x, d_y, d_weight, outputs);
    Ok(())
}

/// `x [rows, inputs]` and `d_y [rows, outputs]`.
fn operands<'a>(
    [rows, inputs, outputs]: [usize; 3],
    x: &'a [f32],
    d_y: &'a [f32],
) -> Result<[Matrix<'a>; 2], KernelError> {
    check_length("x", "[rows, inputs]", &[rows, inputs], x.len())?;
    check_length("d_y", "[rows, outputs]", &[rows, outputs], d_y.len())?;
    Ok([
        Matrix::new(x, inputs, rows, inputs),
        Matrix::new(d_y, outputs, rows, outputs),
    ])
}

/// A row-major matrix whose rows start `stride` numbers apart.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Matrix<'a> {
    data: &'a [f32],
    stride: usize,
    rows: usize,
    columns: usize,
}

impl<'a> Matrix<'a> {
    /// A matrix of `rows` rows of `columns` numbers, the first of which is at the start of `data`.
    pub(crate) fn new(data: &'a [f32], stride: usize, rows: usize, columns: usize) -> Self {
        assert!(columns <= stride || rows <= 1, "rows that do not overlap");
        assert!(
            rows == 0 || (rows - 1) * stride + columns <= data.len(),
            "rows inside the slice"
        );
        Self {
            data,
            stride,
            rows,
            columns,
        }
    }

    /// What begins with the number in this row and column.
    fn at(&self, row: usize, column: usize) -> &'a [f32] {
        &self.data[row * self.stride + column..]
    }
}

/// `C (+)= Aᵀ B` for `a [inner, rows]`, `b [inner, columns]`; row `r` of `C` is
/// `c[r * c_row..][..columns]`. Runs on rayon's pool, with the same bits whatever its size.
pub(crate) fn transposed_product(
    level: Level,
    a: Matrix<'_>,
    b: Matrix<'_>,
    c: &mut [f32],
    c_row: usize,
    write: Write,
) {
    match write {
        Write::Replace => replace(level, a, b, fresh(c), c_row),
        Write::Add => share_out(level, a, b, c, c_row, &|to, from| {
            to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
        }),
    }
}

/// `C = Aᵀ B`, as [`transposed_product`].
fn replace(level: Level, a: Matrix<'_>, b: Matrix<'_>, c: &mut [MaybeUninit<f32>], c_row: usize) {
    share_out(level, a, b, c, c_row, &|to, from| {
        to.write_copy_of_slice(from);
    });
}

/// Cuts the product into tasks and runs them; `put(to, from)` puts sums of a row in their place.
fn share_out<T: Send>(
    level: Level,
    a: Matrix<'_>,
    b: Matrix<'_>,
    c: &mut [T],
    c_row: usize,
    put: &(impl Fn(&mut [T], &[f32]) + Sync),
) {
    assert_eq!(a.rows, b.rows, "one inner length");
    if a.columns == 0 || b.columns == 0 {
        return;
    }
    let parts = match a.columns * b.columns <= SMALL {
        true => (a.rows / PART).clamp(1, PARTS),
        false => 1,
    };
    let of_part = |part: usize| a.rows * part / parts..a.rows * (part + 1) / parts;
    let [height, width] = task_sizes([a.columns, b.columns], PANEL * lanes(level), parts);
    let across = b.columns.div_ceil(width);
    let places: Vec<Place> = (0..a.columns.div_ceil(height) * across)
        .map(|index| {
            let (row, column) = (index / across * height, index % across * width);
            Place {
                rows: row..(row + height).min(a.columns),
                columns: column..(column + width).min(b.columns),
            }
        })
        .collect();
    // Where the sums of a place go: its part of each of its rows.
    let mut lines: Vec<Vec<&mut [T]>> = (places.iter())
        .map(|place| Vec::with_capacity(place.rows.len()))
        .collect();
    for (row, line) in c.chunks_mut(c_row).take(a.columns).enumerate() {
        let lines = &mut lines[row / height * across..];
        for (lines, part) in lines.iter_mut().zip(line[..b.columns].chunks_mut(width)) {
            lines.push(part);
        }
    }
    let count = places.len();
    let products = a.rows as f64 * a.columns as f64 * b.columns as f64 * NANOSECONDS;
    let mut sums: Vec<Buffer> = (0..count * parts).map(|_| Buffer::new(0)).collect();
    if parts > 1 {
        let compute = |first: usize, sums: RowsMut<'_, Buffer>| {
            for (index, sums) in (first..).zip(sums.data) {
                *sums = places[index / parts].sums(level, a, b, of_part(index % parts));
            }
        };
        for_each_chunk(rows(&mut sums, 1), count * parts, 1, products, &compute);
    }
    let finish =
        |first: usize, (lines, sums): (RowsMut<'_, Vec<&mut [T]>>, RowsMut<'_, Buffer>)| {
            let both = lines.data.iter_mut().zip(sums.data.chunks_exact_mut(parts));
            for (place, (lines, sums)) in places[first..].iter().zip(both) {
                let (sum, others) = sums.split_first_mut().expect("at least one part");
                // A single part has not been computed before: its sums are put in their place while they are in the cache.
                if others.is_empty() {
                    *sum = place.sums(level, a, b, 0..a.rows);
                }
                for other in others {
                    sum.iter_mut().zip(&**other).for_each(|(sum, x)| *sum += x);
                }
                for (to, from) in lines.iter_mut().zip(sum.chunks_exact(place.columns.len())) {
                    put(to, from);
                }
                *sum = Buffer::new(0);
            }
        };
    let nanoseconds = match parts {
        1 => products,
        _ => (a.columns * b.columns * parts) as f64 * ADDING,
    };
    let both = (rows(&mut lines, 1), rows(&mut sums, parts));
    for_each_chunk(both, count, 1, nanoseconds, &finish);
}

/// Rows and columns of a task, of a result `[rows, columns]` in `parts`: those with which the thread that has most to do is done first.
fn task_sizes([rows, columns]: [usize; 2], panel: usize, parts: usize) -> [usize; 2] {
    let threads = rayon::current_num_threads();
    let enough = (TASKS * threads).div_ceil(parts);
    let [least, most] = TASK_ROWS;
    let sizes = (1..=TASK_COLUMNS / panel).map(|panels| {
        let width = panel * panels;
        let across = columns.div_ceil(width);
        let height = rows.div_ceil(enough.div_ceil(across));
        let height = height.next_multiple_of(TILE_ROWS).clamp(least, most);
        let tasks = across * rows.div_ceil(height) * parts;
        let work = height * width + READING * (height + width);
        (tasks.div_ceil(threads) * work, [height, width])
    });
    sizes.min().map_or([least, panel], |(_, sizes)| sizes)
}

/// Some rows and columns of `C`.
struct Place {
    rows: Range<usize>,
    columns: Range<usize>,
}

impl Place {
    /// Sums over a part of the inner index: `[rows, columns]`.
    fn sums(&self, level: Level, a: Matrix<'_>, b: Matrix<'_>, part: Range<usize>) -> Buffer {
        let (rows, columns) = (self.rows.len(), self.columns.len());
        let panel = PANEL * lanes(level);
        let (lanes, mut sums) = (lanes(level), Buffer::new(rows * columns));
        let padded = columns.next_multiple_of(lanes);
        let steps = BLOCK.min(part.len());
        let mut panels = Buffer::new(steps * padded);
        // Low tiles use a part of each line of `A`, and would read it again for the next rows: from another line each step, so that it is in
        // no near cache by then. So a line's worth of columns is packed, too; of one panel at most, so that its rows are side by side.
        let is_low = lanes < 16;
        let (group, tile_rows) = match is_low {
            true => (panel.min(LINE), LOW_ROWS),
            false => (rows, TILE_ROWS),
        };
        let mut lines = Buffer::new(if is_low {
            steps * group.next_multiple_of(lanes)
        } else {
            0
        });
        // The tiles of a last panel of one vector are twice as high.
        let is_narrow = (1..=lanes).contains(&(columns % panel));
        let wide = columns.div_ceil(panel) - usize::from(is_narrow);
        let block = |start: usize| start..(start + BLOCK).min(part.end);
        for start in part.clone().step_by(BLOCK) {
            let (steps, next) = (block(start), block(block(start).end));
            let inner = steps.len();
            let panels = &mut panels[..inner * padded];
            let pack = |matrix: Matrix<'_>, panels: &mut [f32], first: usize, columns: usize| {
                let pack = Pack {
                    panels,
                    matrix: matrix.at(start, first),
                    strides: Strides {
                        row: matrix.stride,
                        column: 1,
                    },
                    inner,
                    columns,
                };
                run(level, pack);
            };
            pack(b, panels, self.columns.start, columns);
            for first in (0..rows).step_by(group) {
                let count = group.min(rows - first);
                let row = self.rows.start + first;
                let (from, stride) = if is_low {
                    let stride = count.next_multiple_of(lanes);
                    let lines = &mut lines[..inner * stride];
                    pack(a, lines, row, count);
                    (&*lines, stride)
                } else {
                    (a.at(start, row), a.stride)
                };
                let mut ahead = Prefetch::default();
                if !next.is_empty() {
                    ahead.add(
                        a.at(next.start, row).as_ptr(),
                        next.len(),
                        a.stride,
                        count,
                        false,
                    );
                    // Each group's share of the rows of `B`.
                    let share = |row: usize| next.start + next.len() * row / rows;
                    let (share, end) = (share(first), share(first + count));
                    let of_b = b.at(share, self.columns.start).as_ptr();
                    ahead.add(of_b, end - share, b.stride, columns, false);
                    let tiles = count.div_ceil(tile_rows) * wide
                        + count.div_ceil(2 * tile_rows) * usize::from(is_narrow);
                    ahead.spread(tiles * inner.div_ceil(GROUP));
                }
                let rows = Rows {
                    a: from,
                    a_strides: Strides {
                        row: 1,
                        column: stride,
                    },
                    c: Sums::Add(&mut sums[first * columns..]),
                    c_row: columns,
                    count,
                    inner,
                    columns,
                    bias: &[],
                    ahead,
                };
                let product = Product {
                    panels: &*panels,
                    scales: &[],
                    rows,
                };
                run(level, product);
            }
        }
        sums
    }
}
