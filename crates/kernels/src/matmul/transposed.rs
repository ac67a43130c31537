//! `C (+)= Aᵀ B` with a long inner index: the weight gradients, `C[r, c] = Σ_k A[k, r] B[k, c]`.
//!
//! ```text
//!                     rows of C ->                    columns of C ->
//!              A     |  8 |  8 | ..          B       | task 0 | task 1 | ..
//!  k   256 steps     | strip of 8 columns            | packed |                 sums of 256 steps in registers,
//!  |   256 steps     | copied side by side           | packed |                 the blocks added in order
//!  v   ..
//! ```
//! A task owns some columns of `C` and is independent of the others: it packs its columns of `B` block by block,
//! and goes through all of `A` for each block.

use rayon::prelude::*;

use super::tile::{PANEL, Product, Strides, TILE_ROWS, Write, lanes, pack};
use crate::simd::{Level, run};

/// Steps of the inner index that one block sums.
const BLOCK: usize = 256;
/// Panels that one task owns at most.
const TASK_PANELS: usize = 4;
/// Work below this many multiply-adds stays on the calling thread.
const SINGLE_THREAD_PRODUCTS: usize = 1 << 20;

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
    assert_eq!(a.rows, b.rows, "one inner length");
    if a.columns == 0 || b.columns == 0 {
        return;
    }
    let panels = b.columns.div_ceil(PANEL * lanes(level));
    let in_task = (panels / (4 * rayon::current_num_threads())).clamp(1, TASK_PANELS);
    let width = in_task * PANEL * lanes(level);
    let mut tasks: Vec<Vec<&mut [f32]>> = (0..b.columns.div_ceil(width))
        .map(|_| Vec::with_capacity(a.columns))
        .collect();
    for row in c.chunks_mut(c_row).take(a.columns) {
        for (task, part) in tasks.iter_mut().zip(row[..b.columns].chunks_mut(width)) {
            task.push(part);
        }
    }
    let work = |(index, block): (usize, Vec<&mut [f32]>)| {
        column_block(level, a, b, index * width, block, write);
    };
    if a.rows * a.columns * b.columns < SINGLE_THREAD_PRODUCTS {
        tasks.into_iter().enumerate().for_each(work);
    } else {
        tasks.into_par_iter().enumerate().for_each(work);
    }
}

/// The columns of [`transposed_product`] that one task owns, `c[row]` being its part of each row.
fn column_block(
    level: Level,
    a: Matrix<'_>,
    b: Matrix<'_>,
    first_column: usize,
    c: Vec<&mut [f32]>,
    write: Write,
) {
    let width = c[0].len();
    let lanes = lanes(level);
    let mut sums = vec![0.0; a.columns * width];
    let mut panels = vec![0.0; BLOCK.min(a.rows) * width.next_multiple_of(lanes)];
    // Eight columns of A side by side: the micro-kernel then reads A front to back as well.
    let mut strip = [0.0; BLOCK * TILE_ROWS];
    for start in (0..a.rows).step_by(BLOCK) {
        let inner = BLOCK.min(a.rows - start);
        let panels = &mut panels[..inner * width.next_multiple_of(lanes)];
        let strides = Strides {
            row: b.stride,
            column: 1,
        };
        pack(
            panels,
            lanes,
            &b.data[start * b.stride + first_column..],
            strides,
            inner,
            width,
        );
        for first_row in (0..a.columns).step_by(TILE_ROWS) {
            let rows = TILE_ROWS.min(a.columns - first_row);
            let lines = a.data[start * a.stride + first_row..].chunks(a.stride);
            for (to, from) in strip.chunks_exact_mut(TILE_ROWS).zip(lines).take(inner) {
                // A copy whose length is known at compile time is two instructions, any other one a call.
                match from.first_chunk::<TILE_ROWS>() {
                    Some(from) if rows == TILE_ROWS => to.copy_from_slice(from),
                    _ => to[..rows].copy_from_slice(&from[..rows]),
                }
            }
            let product = Product {
                a: &strip[..(inner - 1) * TILE_ROWS + rows],
                a_strides: Strides {
                    row: 1,
                    column: TILE_ROWS,
                },
                panels: &*panels,
                scales: &[],
                c: &mut sums[first_row * width..],
                c_row: width,
                rows,
                inner,
                columns: width,
                write: Write::Add,
                bias: &[],
            };
            run(level, product);
        }
    }
    for (to, from) in c.into_iter().zip(sums.chunks_exact(width)) {
        match write {
            Write::Replace => to.copy_from_slice(from),
            Write::Add => to.iter_mut().zip(from).for_each(|(to, from)| *to += from),
        }
    }
}
