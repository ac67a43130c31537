//! The two micro-kernels: sums in registers, inputs read in place.
//!
//! ```text
//! forward, gradient of x          positions of the map ->           gradient of the weights     outputs ->
//!                tap, channel k | v v v |  loaded at the tap's offset       position p      | v v v |  packed
//!  weights  | k |      | sums |                                      x at   | p |   | sums |
//!  spread   | k | -->  | sums |  [outputs, positions]                taps   | p |-->| sums |  [taps, outputs]
//! ```
//! Sums are taken block by block, each in the order of its taps or positions, and the blocks are added in order. So the bits do not
//! depend on the tile.

use crate::prefetch::Prefetch;
use crate::simd::Simd;

/// Vectors of lanes in a panel.
pub(super) const PANEL: usize = 3;
/// Rows of a strip of packed weights.
pub(super) const STRIP: usize = 8;

/// `rows` sums of a strip for one panel of `VECTORS` vectors of positions: `sums[r][p] (+)= Σ_k strip[k][r] source[offsets[k] + at(p)]`.
pub(super) struct Positions<'a> {
    /// `[taps, STRIP]`
    pub(super) strip: &'a [f32],
    /// Rows of the strip that are used.
    pub(super) rows: usize,
    pub(super) source: &'a [f32],
    /// `at` of each of the panel's vectors: where the numbers of its first half and of its second half begin in the source.
    pub(super) vectors: &'a [[usize; 2]],
    pub(super) offsets: &'a [usize],
    /// `[rows, stride]`
    pub(super) sums: &'a mut [f32],
    pub(super) stride: usize,
    /// Whether they are added to what `sums` holds.
    pub(super) add: bool,
}

impl Positions<'_> {
    /// With `HALVES` if the second half of a vector does not follow the first.
    #[inline(always)]
    pub(super) fn run<S: Simd, const HALVES: bool>(&mut self, s: S) {
        match self.vectors.len() {
            1 => self.panel::<S, 1, HALVES>(s),
            2 => self.panel::<S, 2, HALVES>(s),
            _ => self.panel::<S, PANEL, HALVES>(s),
        }
    }

    #[inline(always)]
    fn panel<S: Simd, const VECTORS: usize, const HALVES: bool>(&mut self, s: S) {
        let mut row = 0;
        while S::LANES == 16 && row + STRIP <= self.rows {
            self.tile::<S, STRIP, VECTORS, HALVES>(s, row);
            row += STRIP;
        }
        while row + 4 <= self.rows {
            self.tile::<S, 4, VECTORS, HALVES>(s, row);
            row += 4;
        }
        if row + 2 <= self.rows {
            self.tile::<S, 2, VECTORS, HALVES>(s, row);
            row += 2;
        }
        if row < self.rows {
            self.tile::<S, 1, VECTORS, HALVES>(s, row);
        }
    }

    #[inline(always)]
    fn tile<S: Simd, const ROWS: usize, const VECTORS: usize, const HALVES: bool>(
        &mut self,
        s: S,
        row: usize,
    ) {
        let width = VECTORS * S::LANES;
        let sums = &mut self.sums[row * self.stride..][..(ROWS - 1) * self.stride + width];
        let mut tile = [[s.zero(); VECTORS]; ROWS];
        let mut from = [[self.source.as_ptr(); 2]; VECTORS];
        for ([low, high], at) in from.iter_mut().zip(self.vectors) {
            *low = low.wrapping_add(at[0]);
            *high = high.wrapping_add(at[1]);
        }
        for (&offset, weights) in self.offsets.iter().zip(self.strip.chunks_exact(STRIP)) {
            let mut b = [s.zero(); VECTORS];
            for (b, [low, high]) in b.iter_mut().zip(from) {
                // SAFETY: the caller has asserted that every vector at the largest offset lies inside `source`.
                *b = unsafe {
                    match HALVES {
                        true => s.load_halves(low.add(offset), high.add(offset)),
                        false => s.load_from(low.add(offset)),
                    }
                };
            }
            for (tile, &weight) in tile.iter_mut().zip(&weights[row..row + ROWS]) {
                let weight = s.splat(weight);
                for (sum, &b) in tile.iter_mut().zip(&b) {
                    *sum = s.fma(weight, b, *sum);
                }
                if ROWS * VECTORS == 12 {
                    *tile = s.before_loads(*tile);
                }
            }
        }
        if self.add {
            for (r, tile) in tile.iter_mut().enumerate() {
                for (v, sum) in tile.iter_mut().enumerate() {
                    *sum = s.add(s.load(&sums[r * self.stride + v * S::LANES..]), *sum);
                }
            }
        }
        for (r, tile) in tile.iter().enumerate() {
            for (v, &sum) in tile.iter().enumerate() {
                s.store(&mut sums[r * self.stride + v * S::LANES..], sum);
            }
        }
    }
}

/// Sums over positions `p = (row, column)` for all taps and one panel of outputs:
/// `sums[k][m] += Σ_p source[offsets[k] + row · source_row + column] gradient[p][m]`.
pub(super) struct Taps<'a> {
    pub(super) source: &'a [f32],
    /// From a row of positions to the next.
    pub(super) source_row: usize,
    pub(super) offsets: &'a [usize],
    /// `[rows, columns, width]`
    pub(super) gradient: &'a [f32],
    pub(super) columns: usize,
    /// `[taps, width]`
    pub(super) sums: &'a mut [f32],
    /// Memory that is requested meanwhile, some of it for each tile.
    pub(super) prefetch: &'a mut Prefetch,
}

impl Taps<'_> {
    #[inline(always)]
    pub(super) fn run<S: Simd, const VECTORS: usize>(&mut self, s: S) {
        let mut tap = 0;
        // As many pointers as there are general registers, and at least 8 sums, which hide the latency of an addition.
        while S::LANES == 16 && VECTORS > 1 && tap + 8 <= self.offsets.len() {
            self.tile::<S, 8, VECTORS>(s, tap);
            tap += 8;
        }
        while VECTORS == 1 && tap + 12 <= self.offsets.len() {
            self.tile::<S, 12, VECTORS>(s, tap);
            tap += 12;
        }
        while tap + 4 <= self.offsets.len() {
            self.tile::<S, 4, VECTORS>(s, tap);
            tap += 4;
        }
        while tap < self.offsets.len() {
            self.tile::<S, 1, VECTORS>(s, tap);
            tap += 1;
        }
    }

    #[inline(always)]
    fn tile<S: Simd, const ROWS: usize, const VECTORS: usize>(&mut self, s: S, tap: usize) {
        self.prefetch.some(s);
        let width = VECTORS * S::LANES;
        let sums = &mut self.sums[tap * width..][..ROWS * width];
        let rows = self.gradient.chunks_exact(width * self.columns);
        // From the first to the last number that is read.
        let reach = (rows.len() - 1) * self.source_row + self.columns;
        let mut from = [self.source; ROWS];
        for (from, &offset) in from.iter_mut().zip(&self.offsets[tap..]) {
            *from = &self.source[offset..][..reach];
        }
        let mut tile = [[s.zero(); VECTORS]; ROWS];
        for (row, lines) in rows.enumerate() {
            for (column, line) in lines.chunks_exact(width).enumerate() {
                let at = row * self.source_row + column;
                let mut b = [s.zero(); VECTORS];
                for (v, b) in b.iter_mut().enumerate() {
                    *b = s.load(&line[v * S::LANES..]);
                }
                for (tile, from) in tile.iter_mut().zip(&from) {
                    // SAFETY: each of `from` was cut to `reach` numbers, of which `at` is one, as the row and the column are there.
                    let x = s.splat(unsafe { *from.get_unchecked(at) });
                    for (sum, &b) in tile.iter_mut().zip(&b) {
                        *sum = s.fma(x, b, *sum);
                    }
                    if ROWS * VECTORS == 12 {
                        *tile = s.before_loads(*tile);
                    }
                }
            }
        }
        for (r, tile) in tile.iter().enumerate() {
            for (v, &sum) in tile.iter().enumerate() {
                let to = &mut sums[r * width + v * S::LANES..];
                s.store(to, s.add(s.load(to), sum));
            }
        }
    }
}
