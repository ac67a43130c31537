//! The micro-kernel: a tile of `C` in registers, `C[r, c] = Σ_k A[r, k] B[k, c]`, one `k` at a time.
//!
//! ```text
//!                    B, packed: panels of 3 vectors of columns, each [inner, panel width]
//!             k     | v v v | v v v | v v |        loaded once for all rows of the tile
//!                       |
//! A  rows   | k |   | sums  |                      8 rows x 3 vectors: 24 of AVX-512's 32 registers;
//!  spread   | k |-->| sums  |                      4 x 3 elsewhere: 12 of AVX2's 16
//!           | k |   | sums  |
//! ```
//! A panel is read front to back by every tile of rows. The remaining rows are computed in tiles of 4, 2 and 1 rows,
//! the remaining columns in a panel of 2 vectors or 1; the tiles of a panel of 1 vector are twice as high.
//!
//! Panels may be stored at half width or in 8 bits (`stored.rs`). A few rows widen each number as they load it; for more, a panel
//! is widened once. Of pairs (`stored.rs`) `k` counts pairs, and `A` holds pairs, too. What was tried is in `docs/experiments.md`.

use std::{hint::black_box, mem::MaybeUninit};

use half::f16;

use super::stored::{GROUP, Number};
use crate::{
    prefetch::Prefetch,
    simd::{Kernel, Level, Simd, fresh, run},
    transpose::Columns,
};

/// Vectors of lanes in one panel of packed columns.
pub(super) const PANEL: usize = 3;
/// Rows of the tallest register tile of a whole panel.
pub(super) const TILE_ROWS: usize = 8;
/// Rows of the tallest one of a whole panel where there are 16 registers.
pub(super) const LOW_ROWS: usize = 4;
/// Rows of the tallest one of a panel of one vector.
const NARROW_ROWS: usize = 2 * TILE_ROWS;

/// How the elements of a matrix lie in a slice: element `(row, column)` is at
/// `row * row_stride + column * column_stride`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Strides {
    pub(crate) row: usize,
    pub(crate) column: usize,
}

/// Whether a product replaces what the output holds or is added to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Write {
    /// It replaces it.
    Replace,
    /// It is added to it.
    Add,
}

/// Where the sums of a product go.
pub(super) enum Sums<'a> {
    /// To memory that they replace, which may hold nothing yet.
    Replace(&'a mut [MaybeUninit<f32>]),
    /// To numbers that they are added to.
    Add(&'a mut [f32]),
}

impl<'a> Sums<'a> {
    /// Those that replace `c`, or are added to it.
    pub(super) fn new(c: &'a mut [f32], write: Write) -> Self {
        match write {
            Write::Replace => Self::Replace(fresh(c)),
            Write::Add => Self::Add(c),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Replace(c) => c.len(),
            Self::Add(c) => c.len(),
        }
    }

    fn as_ptr(&self) -> *const f32 {
        match self {
            Self::Replace(c) => c.as_ptr().cast(),
            Self::Add(c) => c.as_ptr(),
        }
    }
}

/// Lanes of one vector at `level`.
pub(crate) fn lanes(level: Level) -> usize {
    struct Lanes;
    impl Kernel for Lanes {
        type Output = usize;
        #[inline(always)]
        fn call<S: Simd>(self, _: S) -> usize {
            S::LANES
        }
    }
    run(level, Lanes)
}

/// Writes `matrix [inner, columns]` as panels of [`PANEL`] vectors, each `[inner, panel width]`. The last panel has as
/// many vectors as it needs; places beyond the last column are not written. One of the strides is 1.
pub(super) struct Pack<'a> {
    pub(super) panels: &'a mut [f32],
    pub(super) matrix: &'a [f32],
    pub(super) strides: Strides,
    pub(super) inner: usize,
    pub(super) columns: usize,
}

impl Kernel for Pack<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let Self {
            panels,
            matrix,
            strides,
            inner,
            columns,
        } = self;
        if inner == 0 {
            return;
        }
        assert!(
            strides.row == 1 || strides.column == 1,
            "a row-major matrix, or one transposed"
        );
        let mut rest = panels;
        for first in (0..columns).step_by(PANEL * S::LANES) {
            let filled = (PANEL * S::LANES).min(columns - first);
            let width = filled.next_multiple_of(S::LANES);
            let (panel, tail) = rest.split_at_mut(inner * width);
            rest = tail;
            if strides.column == 1 {
                for (k, to) in panel.chunks_exact_mut(width).enumerate() {
                    let from = &matrix[k * strides.row + first..][..filled];
                    for at in (0..filled).step_by(S::LANES) {
                        s.store_at(&mut to[..filled], at, s.load_at(from, at));
                    }
                }
            } else {
                let columns = Columns {
                    from: &matrix[first * strides.column..],
                    stride: strides.column,
                    rows: filled,
                    to: panel,
                    width,
                };
                columns.call(s);
            }
        }
    }
}

/// From this many rows on, a stored panel is widened before it is multiplied with: twice as many as the tallest tile.
const WIDENED_ROWS: usize = 2 * TILE_ROWS;

/// How many steps of the inner index ahead numbers of `A` are prefetched, which matters where they stand a row apart.
const STEPS_AHEAD: usize = 8;
/// How many bytes ahead of where it is read a panel is prefetched (`docs/experiments.md`).
const AHEAD: usize = 4096;

/// One product of strided rows with packed panels.
pub(super) struct Product<'a, T = f32> {
    pub(super) panels: &'a [T],
    /// `[groups, panel width]` for each panel, if the numbers have scales; else empty.
    pub(super) scales: &'a [f16],
    pub(super) rows: Rows<'a>,
}

/// The rows of `A` and of `C`, and what else a product has beside its panels.
pub(super) struct Rows<'a> {
    pub(super) a: &'a [f32],
    pub(super) a_strides: Strides,
    pub(super) c: Sums<'a>,
    pub(super) c_row: usize,
    pub(super) count: usize,
    pub(super) inner: usize,
    pub(super) columns: usize,
    /// `[columns]`, added to every row; or empty.
    pub(super) bias: &'a [f32],
    /// What is read after this product, requested meanwhile: some rows of it every [`GROUP`] steps of a tile.
    pub(super) ahead: Prefetch,
}

impl<T: Number> Kernel for Product<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let Self {
            panels,
            scales,
            mut rows,
        } = self;
        if rows.count == 0 || rows.columns == 0 {
            return;
        }
        let last = (rows.count - 1) * rows.c_row + rows.columns;
        assert!(last <= rows.c.len(), "rows of C inside the slice");
        assert!(rows.bias.is_empty() || rows.bias.len() == rows.columns);
        if rows.inner == 0 {
            rows.without_inner();
            return;
        }
        let strides = rows.a_strides;
        let last = (rows.count - 1) * strides.row + (rows.inner - 1) * strides.column;
        assert!(last < rows.a.len(), "rows of A inside the slice");
        // Hidden from the compiler, which otherwise computes each from the one before, in the innermost loop.
        let apart =
            std::array::from_fn(|i| black_box(strides.row.wrapping_mul((2 * i + 1) * NUMBER)));
        for first in (0..rows.columns).step_by(PANEL * S::LANES) {
            let width = (rows.columns - first).min(PANEL * S::LANES);
            let width = width.next_multiple_of(S::LANES);
            let panel = &panels[rows.inner * first..][..rows.inner * width];
            let scales = match T::SCALED {
                true => {
                    let groups = rows.inner.div_ceil(GROUP);
                    &scales[groups * first..][..groups * width]
                }
                false => &[],
            };
            if size_of::<T>() < NUMBER && rows.count >= WIDENED_ROWS {
                let mut wide = vec![0.0; panel.len()];
                s.outline(Widen {
                    panel: (panel, scales),
                    width,
                    wide: &mut wide,
                });
                rows.times(s, (&wide[..], &[]), width, first, apart);
            } else {
                rows.times(s, (panel, scales), width, first, apart);
            }
        }
    }
}

/// A panel: its numbers, and its scales if it has some.
type Panel<'a, T> = (&'a [T], &'a [f16]);

/// Bytes from a row of `A` to the first, third, fifth, .. row behind it. Twice, four or eight times as many lead to the others, so that a
/// machine reads any row of a tile at one address and one of these.
type Apart = [usize; NARROW_ROWS / 2];

/// Bytes of a number.
const NUMBER: usize = size_of::<f32>();

/// Writes a stored panel as `f32`.
struct Widen<'a, T> {
    panel: Panel<'a, T>,
    width: usize,
    wide: &'a mut [f32],
}

impl<T: Number> Kernel for Widen<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        match self.width / S::LANES {
            1 => self.vectors::<S, 1>(s),
            2 => self.vectors::<S, 2>(s),
            _ => self.vectors::<S, PANEL>(s),
        }
    }
}

impl<T: Number> Widen<'_, T> {
    #[inline(always)]
    fn vectors<S: Simd, const VECTORS: usize>(self, s: S) {
        let width = VECTORS * S::LANES;
        let (numbers, scales) = self.panel;
        let groups = numbers.chunks(GROUP * width);
        for (g, (lines, wide)) in groups.zip(self.wide.chunks_mut(GROUP * width)).enumerate() {
            let mut scale = [s.zero(); VECTORS];
            if T::SCALED {
                scale = scales_of(s, &scales[g * width..]);
            }
            let lines = lines.chunks_exact(width);
            for (line, to) in lines.zip(wide.chunks_exact_mut(width)) {
                prefetch_ahead(s, line);
                for (v, &scale) in scale.iter().enumerate() {
                    // SAFETY: a line has `VECTORS · LANES` numbers.
                    let mut number = unsafe { T::load(s, line.as_ptr().add(v * S::LANES)) };
                    if T::SCALED {
                        number = s.mul(number, scale);
                    }
                    s.store(&mut to[v * S::LANES..], number);
                }
            }
        }
    }
}

/// All rows, against the panel whose first column is `first`.
struct Tiles<'r, 'a, U> {
    rows: &'r mut Rows<'a>,
    panel: Panel<'r, U>,
    first: usize,
    apart: Apart,
}

/// Of a panel of `VECTORS` vectors. A function of its own, so that the tiles of `f32` are compiled once, and not with every type that is
/// widened to it; and because the time of a compiler grows faster than its functions (`docs/experiments.md`).
struct TilesKernel<'r, 'a, U, const VECTORS: usize>(Tiles<'r, 'a, U>);

impl<U: Number, const VECTORS: usize> Kernel for TilesKernel<'_, '_, U, VECTORS> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let Tiles {
            rows,
            panel,
            first,
            apart,
        } = self.0;
        // A copy of its own, which stays in registers: behind a reference each is loaded anew at every step.
        let apart = &apart;
        let mut row = 0;
        if S::LANES == 16 && VECTORS == 1 {
            rows.tiles::<S, U, NARROW_ROWS, VECTORS>(s, panel, &mut row, first, apart);
        }
        // Eight rows of accumulators need the 32 registers that come with 16 lanes, or a panel of one vector.
        if S::LANES == 16 || VECTORS == 1 {
            rows.tiles::<S, U, TILE_ROWS, VECTORS>(s, panel, &mut row, first, apart);
        }
        rows.tiles::<S, U, LOW_ROWS, VECTORS>(s, panel, &mut row, first, apart);
        rows.tiles::<S, U, 2, VECTORS>(s, panel, &mut row, first, apart);
        rows.tiles::<S, U, 1, VECTORS>(s, panel, &mut row, first, apart);
    }
}

impl Rows<'_> {
    /// Without an inner index every sum is its bias.
    fn without_inner(&mut self) {
        for at in (0..self.count).map(|row| row * self.c_row) {
            for column in 0..self.columns {
                let sum = self.bias.get(column).copied().unwrap_or(0.0);
                match &mut self.c {
                    Sums::Replace(c) => _ = c[at + column].write(sum),
                    Sums::Add(c) => c[at + column] += sum,
                }
            }
        }
    }

    /// All rows, against the panel of `width` columns that starts at column `first`.
    #[inline(always)]
    fn times<S: Simd, U: Number>(
        &mut self,
        s: S,
        panel: Panel<'_, U>,
        width: usize,
        first: usize,
        apart: Apart,
    ) {
        let tiles = Tiles {
            rows: self,
            panel,
            first,
            apart,
        };
        match width / S::LANES {
            1 => U::outline(s, TilesKernel::<U, 1>(tiles)),
            2 => U::outline(s, TilesKernel::<U, 2>(tiles)),
            _ => U::outline(s, TilesKernel::<U, PANEL>(tiles)),
        }
    }

    /// As many tiles of `ROWS` rows as there are from `row` on.
    #[inline(always)]
    fn tiles<S: Simd, U: Number, const ROWS: usize, const VECTORS: usize>(
        &mut self,
        s: S,
        panel: Panel<'_, U>,
        row: &mut usize,
        first: usize,
        apart: &Apart,
    ) {
        while *row + ROWS <= self.count {
            // Of what an earlier tile has read nothing is requested: on few lanes requests take as long as loads, and there are three for
            // seven loads. (A constant, so that the tile is not compiled twice where it is false.)
            let was_read = self.a_strides.column > 1 || *row > 0 && first > 0;
            if const { S::LANES < 16 && ROWS >= LOW_ROWS && size_of::<U>() == NUMBER } && was_read {
                self.tile::<S, U, ROWS, VECTORS, false>(s, panel, [*row, first], apart);
            } else {
                self.tile::<S, U, ROWS, VECTORS, true>(s, panel, [*row, first], apart);
            }
            *row += ROWS;
        }
    }

    /// `ROWS` rows from `row` on of the panel whose first column is `first`, all in registers. With `REQUESTS` what the next steps read is
    /// requested.
    #[inline(always)]
    fn tile<S: Simd, U: Number, const ROWS: usize, const VECTORS: usize, const REQUESTS: bool>(
        &mut self,
        s: S,
        (panel, scales): Panel<'_, U>,
        [row, first]: [usize; 2],
        apart: &Apart,
    ) {
        let width = VECTORS * S::LANES;
        let start = row * self.c_row + first;
        if self.count > TILE_ROWS {
            let c = self.c.as_ptr();
            for at in (0..ROWS).map(|r| start + r * self.c_row) {
                for v in 0..VECTORS {
                    s.prefetch(c.wrapping_add(at + v * S::LANES), true);
                }
            }
        }
        let Strides {
            row: a_row,
            column: a_step,
        } = self.a_strides;
        let step = a_step.wrapping_mul(NUMBER);
        let mut at = self.a.as_ptr().wrapping_add(row * a_row).cast::<u8>();
        // What is prefetched: numbers of the next steps that stand a row apart; of rows that are read number by number those of the next
        // tile, by the first panel.
        let is_next = first == 0 && row + ROWS < self.count;
        let (mut ahead, ahead_step) = match a_step {
            1 if is_next => (at.wrapping_add(ROWS * a_row * NUMBER), ROWS * NUMBER),
            1 => (at, 0),
            _ => (at.wrapping_add(step.wrapping_mul(STEPS_AHEAD)), step),
        };
        let mut sums = [[s.zero(); VECTORS]; ROWS];
        let group = match U::SCALED || self.ahead.has_rows() {
            true => GROUP,
            false => self.inner,
        };
        for (g, lines) in panel.chunks(group * width).enumerate() {
            self.ahead.some(s);
            let mut scale = [s.zero(); VECTORS];
            if U::SCALED {
                scale = scales_of(s, &scales[g * width..]);
            }
            for line in lines.chunks_exact(width) {
                if REQUESTS {
                    prefetch_ahead(s, line);
                    s.prefetch_near(ahead.cast());
                    ahead = ahead.wrapping_add(ahead_step);
                }
                let mut b = [s.zero(); VECTORS];
                for (v, b) in b.iter_mut().enumerate() {
                    // SAFETY: a line has `VECTORS · LANES` numbers.
                    *b = unsafe { U::load(s, line.as_ptr().add(v * S::LANES)) };
                    if U::SCALED {
                        *b = s.mul(*b, scale[v]);
                    }
                }
                for (r, sums) in sums.iter_mut().enumerate() {
                    let twos = r.trailing_zeros();
                    let of_row = match r {
                        0 => at,
                        _ => at.wrapping_add(apart[(r >> twos) / 2] << twos),
                    };
                    // SAFETY: `call` asserted that the last row's last element lies inside `a`; the
                    // panel has `inner` lines, so `at` never passes that element's column.
                    let a = s.splat(unsafe { *of_row.cast::<f32>() });
                    for (v, sum) in sums.iter_mut().enumerate() {
                        // SAFETY: `Number::outline` runs this kernel.
                        *sum = unsafe { U::fma(s, a, b[v], *sum) };
                    }
                    if ROWS * VECTORS == 12 {
                        *sums = s.before_loads(*sums);
                    }
                }
                at = at.wrapping_add(step);
            }
        }
        if !self.bias.is_empty() {
            for v in 0..VECTORS {
                let bias = s.load_at(self.bias, first + v * S::LANES);
                for sums in &mut sums {
                    sums[v] = s.add(sums[v], bias);
                }
            }
        }
        if first + width <= self.columns {
            let (c, adds) = match &mut self.c {
                Sums::Replace(c) => (c.as_mut_ptr().cast(), false),
                Sums::Add(c) => (c.as_mut_ptr(), true),
            };
            // SAFETY: `call` asserted that the last row's last column lies inside `c`, whose numbers are there if they are added to.
            unsafe { put(s, sums, c.add(start), self.c_row, adds) };
            return;
        }
        let mut lines = [0.0; TILE_ROWS * PANEL * 16];
        // SAFETY: there is room for the tallest tile of the widest vectors.
        unsafe { put(s, sums, lines.as_mut_ptr(), width, false) };
        let columns = self.columns - first;
        for (r, line) in lines.chunks_exact(width).take(ROWS).enumerate() {
            let (at, line) = (start + r * self.c_row, &line[..columns]);
            match &mut self.c {
                Sums::Replace(c) => _ = c[at..][..columns].write_copy_of_slice(line),
                Sums::Add(c) => {
                    let sums = c[at..].iter_mut().zip(line);
                    sums.for_each(|(to, sum)| *to += sum);
                }
            }
        }
    }
}

/// Writes the sums of a tile to rows `stride` apart, or adds them to what is there.
///
/// # Safety
/// There is memory for the rows, with numbers if they are added to.
#[inline(always)]
unsafe fn put<S: Simd, const ROWS: usize, const VECTORS: usize>(
    s: S,
    sums: [[S::V; VECTORS]; ROWS],
    to: *mut f32,
    stride: usize,
    adds: bool,
) {
    for (r, sums) in sums.into_iter().enumerate() {
        for (v, mut sum) in sums.into_iter().enumerate() {
            // SAFETY: as the caller vouches.
            unsafe {
                let to = to.add(r * stride + v * S::LANES);
                if adds {
                    sum = s.add(s.load_from(to), sum);
                }
                s.store_to(to, sum);
            }
        }
    }
}

/// Prefetches what lies [`AHEAD`] bytes after a line, which may be beyond the panels' end.
#[inline(always)]
fn prefetch_ahead<S: Simd, T>(s: S, line: &[T]) {
    for at in (0..size_of_val(line)).step_by(64) {
        let ahead = line.as_ptr().cast::<u8>().wrapping_add(AHEAD + at);
        s.prefetch_near(ahead.cast());
    }
}

/// The scales of a group.
#[inline(always)]
fn scales_of<S: Simd, const VECTORS: usize>(s: S, scales: &[f16]) -> [S::V; VECTORS] {
    let scales = &scales[..VECTORS * S::LANES];
    // SAFETY: there are `VECTORS · LANES` scales.
    std::array::from_fn(|v| unsafe { s.load_f16(scales.as_ptr().add(v * S::LANES)) })
}
