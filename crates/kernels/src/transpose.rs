//! Matrices transposed: `y[n, j, i] = x[n, i, j]`.
//!
//! ```text
//! x [batch, rows, columns]          a square of as many rows and columns as a vector has lanes is read as vectors, exchanged in
//! y [batch, columns, rows]          registers and written as vectors; what is left at the edges goes number by number
//! ```
//!
//! ```
//! use regard_kernels::transpose::transpose;
//!
//! let mut y = [0.0; 6];
//! transpose([1, 2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &mut y)?;
//! assert_eq!(y, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
//! # Ok::<(), regard_kernels::KernelError>(())
//! ```

use crate::error::{KernelError, check_length, product};
use crate::simd::{Kernel, Level, Simd, run};
use crate::threads::{RowsMut, for_each_chunk, rows};

/// Rows of `y` that a thread writes at once: a few squares, which find what they read in the cache.
const ROWS: usize = 64;

/// Writes `y [batch, columns, rows]` for `x` of shape `[batch, rows, columns]`.
///
/// # Errors
/// A length that does not fit the shape.
pub fn transpose(shape: [usize; 3], x: &[f32], y: &mut [f32]) -> Result<(), KernelError> {
    transpose_on(Level::current(), shape, x, y)
}

fn transpose_on(
    level: Level,
    shape: [usize; 3],
    x: &[f32],
    y: &mut [f32],
) -> Result<(), KernelError> {
    const X: &str = "[batch, rows, columns]";
    product("x", X, &shape)?;
    let [batch, height, width] = shape;
    check_length("x", X, &shape, x.len())?;
    let shape_of_y = [batch, width, height];
    check_length("y", "[batch, columns, rows]", &shape_of_y, y.len())?;
    if y.is_empty() {
        return Ok(());
    }
    let transpose = |mut first: usize, part: RowsMut<f32>| {
        // The rows of a part may be those of several matrices.
        let mut left = part.data;
        while !left.is_empty() {
            let (matrix, column) = (first / width, first % width);
            let number = (width - column).min(left.len() / height);
            let (to, others) = left.split_at_mut(number * height);
            let work = Columns {
                from: &x[matrix * height * width + column..],
                stride: width,
                rows: height,
                to,
                width: height,
            };
            run(level, work);
            (left, first) = (others, first + number);
        }
    };
    let (total, nanoseconds) = (batch * width, x.len() as f64);
    for_each_chunk(rows(y, height), total, ROWS, nanoseconds, &transpose);
    Ok(())
}

/// The first numbers of `rows` rows, `stride` apart, as columns: `to [numbers, width]`, where columns beyond `rows` stay as they are.
pub(crate) struct Columns<'a> {
    pub(crate) from: &'a [f32],
    pub(crate) stride: usize,
    pub(crate) rows: usize,
    pub(crate) to: &'a mut [f32],
    pub(crate) width: usize,
}

impl Kernel for Columns<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let Self {
            from,
            stride,
            rows,
            to,
            width,
        } = self;
        let count = to.len() / width;
        let whole = [rows, count].map(|size| size / S::LANES * S::LANES);
        if whole[0] > 0 && whole[1] > 0 {
            assert!((rows - 1) * stride + count <= from.len() && rows <= width);
            for row in (0..whole[0]).step_by(S::LANES) {
                for at in (0..whole[1]).step_by(S::LANES) {
                    // SAFETY: `LANES` rows from `row` on have `LANES` numbers from `at` on, by the assertion; `to` has `count`
                    // lines of `width >= rows` numbers.
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{on_every_pool, random, unless_miri};

    #[test]
    fn every_number_changes_its_place() {
        for &level in Level::available() {
            for shape in unless_miri(
                &[
                    [1, 1, 1],
                    [2, 3, 5],
                    [3, 16, 16],
                    [2, 17, 33],
                    [5, 64, 49],
                    [1, 200, 1000],
                    [0, 3, 2],
                    [3, 0, 2],
                    [3, 2, 0],
                ][..],
                &[[2, 3, 5], [1, 17, 16], [3, 0, 2]],
            ) {
                let [batch, rows, columns] = *shape;
                let x = random(1, batch * rows * columns, 1.0);
                let y = on_every_pool(|| {
                    let mut y = vec![f32::NAN; x.len()];
                    transpose_on(level, *shape, &x, &mut y).unwrap();
                    vec![y]
                });
                let mut expected = vec![];
                for (n, j) in (0..batch).flat_map(|n| (0..columns).map(move |j| (n, j))) {
                    expected.extend((0..rows).map(|i| x[(n * rows + i) * columns + j]));
                }
                assert_eq!(y[0], expected, "{shape:?} on {level:?}");
            }
        }
    }

    #[test]
    fn wrong_lengths_are_refused_by_name() {
        let refused = |x: usize, y: usize| {
            let error = transpose([1, 2, 3], &vec![0.0; x], &mut vec![0.0; y]);
            error.unwrap_err().to_string()
        };
        assert!(refused(5, 6).contains("`x`"));
        assert!(refused(6, 7).contains("`y`"));
        assert!(transpose([usize::MAX, 2, 2], &[], &mut []).is_err());
    }
}
