//! Whether a model looked at the object that is spoken of: the share of its weight inside, and the pointing game.
//!
//! ```text
//! grid     rows x columns cells of equal size over an image [height, width]; weight α_i of cell i, spread evenly over it
//! inside   Σ_i α_i c_i / Σ_i α_i      c_i: the share of cell i's area that is the object's
//! pointing whether the centre of the cell of largest weight is a pixel of the object (Zhang et al. 2016)
//! ```
//!
//! An object is rarely made of whole cells, so that even the best weights have less than 1 inside: [`CellMask::best`].

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{EvaluateError, Ratio};

/// An object as the cells of a grid have it.
///
/// ```
/// use regard_evaluate::{CellMask, Looking};
/// // An image of 2 x 4 pixels, of which the left three columns are the object's; a grid of one row and two columns.
/// let mask = [true, true, true, false, true, true, true, false];
/// let object = CellMask::new([2, 4], mask, [1, 2])?;
/// assert_eq!(object.cover(), [1.0, 0.5]);
/// let mut looking = Looking::default();
/// looking.add(&[0.5, 0.5], &object)?;
/// assert_eq!((looking.inside(), looking.pointing()), (0.75, 1.0));
/// # Ok::<(), regard_evaluate::EvaluateError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct CellMask {
    cover: Vec<f64>,
    centre: Vec<bool>,
}

impl CellMask {
    /// The cells of `grid` (rows and columns) over an image of `size` (height and width), whose pixels are the object's where `mask`
    /// says so, row by row.
    ///
    /// # Errors
    /// [`EvaluateError::InvalidOption`] for a side of 0, a grid finer than the pixels, or a mask of another number of pixels.
    pub fn new(
        size: [usize; 2],
        mask: impl IntoIterator<Item = bool>,
        grid: [usize; 2],
    ) -> Result<Self, EvaluateError> {
        let ([height, width], [rows, columns]) = (size, grid);
        if rows == 0 || columns == 0 || rows > height || columns > width {
            return Err(EvaluateError::InvalidOption {
                option: "a grid",
                given: format!("{rows} x {columns} cells"),
                expected: format!("1 x 1 to {height} x {width}, the pixels of the image"),
            });
        }
        let mask: Vec<bool> = mask.into_iter().collect();
        if mask.len() != height * width {
            return Err(EvaluateError::InvalidOption {
                option: "a mask",
                given: format!("{} pixels", mask.len()),
                expected: format!("{height} x {width}, one for each pixel of the image"),
            });
        }
        let mut cover = vec![0.0; rows * columns];
        let (down, across) = (overlaps(height, rows), overlaps(width, columns));
        for (pixels, down) in mask.chunks_exact(width).zip(&down) {
            for (_, across) in pixels.iter().zip(&across).filter(|(set, _)| **set) {
                for &(row, high) in down {
                    for &(column, wide) in across {
                        cover[row * columns + column] += high * wide;
                    }
                }
            }
        }
        let middle =
            |cell: usize, cells: usize, pixels: usize| (2 * cell + 1) * pixels / (2 * cells);
        let centre = (0..rows * columns).map(|cell| {
            let (y, x) = (
                middle(cell / columns, rows, height),
                middle(cell % columns, columns, width),
            );
            mask[y * width + x]
        });
        Ok(Self {
            centre: centre.collect(),
            cover,
        })
    }

    /// The share of each cell's area that is the object's, row by row.
    pub fn cover(&self) -> &[f64] {
        &self.cover
    }

    /// The largest share of weight that can lie inside: the cover of the cell that has most of it.
    pub fn best(&self) -> f64 {
        self.cover.iter().copied().fold(0.0, f64::max)
    }
}

/// For each of `pixels` in a row the cells that it lies in, and the share of each cell that it is.
fn overlaps(pixels: usize, cells: usize) -> Vec<Vec<(usize, f64)>> {
    let of_pixel = |pixel: usize| {
        // In units of 1 / cells of a pixel, so that all ends are whole numbers: a pixel has `cells`, a cell `pixels` of them.
        let (start, end) = (pixel * cells, (pixel + 1) * cells);
        let cells = start / pixels..end.div_ceil(pixels);
        let shared = cells.map(|cell| {
            let common = end.min((cell + 1) * pixels) - start.max(cell * pixels);
            (cell, common as f64 / pixels as f64)
        });
        shared.collect()
    };
    (0..pixels).map(of_pixel).collect()
}

/// How often, and how much, a model looked at the objects that were spoken of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Looking {
    /// Words (or questions) that speak of an object.
    pub looks: usize,
    /// Those whose cell of largest weight has its centre in the object.
    pub hits: usize,
    /// The sum of the shares of weight inside.
    sum: f64,
    /// The sum of the largest shares that there could be.
    best: f64,
}

impl Looking {
    /// Counts one look: the `weights` of the cells, row by row, and the object that was spoken of. Weights that are all 0 have
    /// nothing inside and are no hit; of equal weights the first is the largest.
    ///
    /// # Errors
    /// [`EvaluateError::InvalidOption`] for another number of weights than cells, or a weight that is negative or not finite.
    pub fn add(&mut self, weights: &[f32], object: &CellMask) -> Result<(), EvaluateError> {
        if weights.len() != object.cover.len() {
            return Err(EvaluateError::InvalidOption {
                option: "weights over a grid",
                given: format!("{} weights", weights.len()),
                expected: format!("{}, one for each cell", object.cover.len()),
            });
        }
        if let Some(weight) = weights.iter().find(|w| !(0.0..f32::INFINITY).contains(*w)) {
            return Err(EvaluateError::InvalidOption {
                option: "a weight over a grid",
                given: weight.to_string(),
                expected: "a finite number of at least 0".to_owned(),
            });
        }
        self.looks += 1;
        self.best += object.best();
        let total: f64 = weights.iter().map(|&w| f64::from(w)).sum();
        if total > 0.0 {
            let inside = weights.iter().zip(&object.cover);
            self.sum += inside.map(|(&w, c)| f64::from(w) * c).sum::<f64>() / total;
            let largest = (0..weights.len())
                .rev()
                .max_by(|&a, &b| weights[a].total_cmp(&weights[b]));
            self.hits += usize::from(largest.is_some_and(|cell| object.centre[cell]));
        }
        Ok(())
    }

    /// The counts of both.
    pub fn with(self, other: Self) -> Self {
        Self {
            looks: self.looks + other.looks,
            hits: self.hits + other.hits,
            sum: self.sum + other.sum,
            best: self.best + other.best,
        }
    }

    /// The mean share of weight inside the object, 0 to 1; 0 if there was no look. For hard attention, whose weights are 1 at the
    /// drawn cell, the mean share of that cell that is the object's.
    pub fn inside(&self) -> f64 {
        self.sum / self.looks.max(1) as f64
    }

    /// What [`Looking::inside`] would be of the best weights, as an object is rarely made of whole cells.
    pub fn best(&self) -> f64 {
        self.best / self.looks.max(1) as f64
    }

    /// The share of looks whose largest weight is in the object, 0 to 1; 0 if there was no look.
    pub fn pointing(&self) -> f64 {
        self.hits as f64 / self.looks.max(1) as f64
    }

    /// [`Looking::inside`] of any choice of `images`, of which these are the looks.
    pub fn inside_of<'a>(images: impl IntoIterator<Item = &'a Self>) -> Ratio {
        let parts = images.into_iter().map(|one| (one.sum, one.looks as f64));
        parts.collect()
    }

    /// [`Looking::pointing`] of any choice of `images`, of which these are the looks.
    pub fn pointing_of<'a>(images: impl IntoIterator<Item = &'a Self>) -> Ratio {
        let images = images.into_iter();
        let parts = images.map(|one| (one.hits as f64, one.looks as f64));
        parts.collect()
    }
}

impl fmt::Display for Looking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { looks, hits, .. } = self;
        let [inside, best, pointing] =
            [self.inside(), self.best(), self.pointing()].map(|share| 100.0 * share);
        write!(
            f,
            "weight inside the object {inside:.1} % (of at most {best:.1} %), pointing {pointing:.1} % ({hits} of {looks} looks)"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Resampled;

    fn mask(height: usize, width: usize, inside: fn(usize, usize) -> bool) -> Vec<bool> {
        let pixels = (0..height * width).map(|place| inside(place / width, place % width));
        pixels.collect()
    }

    #[test]
    fn the_cover_of_a_grid_that_does_not_divide_the_image_has_the_objects_area() {
        for (size, grid) in [
            ([7, 5], [3, 2]),
            ([64, 64], [8, 8]),
            ([5, 9], [5, 9]),
            ([6, 4], [1, 1]),
        ] {
            let [height, width] = size;
            let mask = mask(height, width, |y, x| (y + 2 * x) % 3 == 0);
            let area = mask.iter().filter(|&&set| set).count() as f64;
            let cells = CellMask::new(size, mask, grid).unwrap();
            let cell = (height * width) as f64 / (grid[0] * grid[1]) as f64;
            let covered: f64 = cells.cover().iter().map(|share| share * cell).sum();
            assert!(
                (covered - area).abs() < 1e-9,
                "{size:?} {grid:?}: {covered} of {area}"
            );
            assert!(
                cells
                    .cover()
                    .iter()
                    .all(|share| (0.0..=1.0 + 1e-12).contains(share))
            );
        }
    }

    #[test]
    fn uniform_weights_have_the_objects_share_of_the_image_inside() {
        let mask = mask(8, 8, |y, x| y < 4 && x < 2);
        let object = CellMask::new([8, 8], mask, [4, 4]).unwrap();
        let mut looking = Looking::default();
        looking.add(&[0.25; 16], &object).unwrap();
        assert!((looking.inside() - 0.125).abs() < 1e-12);
        assert_eq!(object.best(), 1.0);
        let mut one = [0.0; 16];
        one[4] = 1.0; // second row, first column: inside
        looking.add(&one, &object).unwrap();
        one = [0.0; 16];
        one[1] = 1.0; // first row, second column: outside
        looking.add(&one, &object).unwrap();
        looking.add(&[0.0; 16], &object).unwrap();
        assert_eq!((looking.looks, looking.hits, looking.best()), (4, 2, 1.0));
        let twice = looking.with(looking);
        assert_eq!((twice.looks, twice.inside()), (8, looking.inside()));
        // Of three images, one of which has no look, any choice has the shares of its looks.
        let mut other = Looking::default();
        other.add(&[0.25; 16], &object).unwrap();
        let images = [looking, Looking::default(), other];
        let chosen = looking.with(looking).with(other);
        let (inside, pointing) = (Looking::inside_of(&images), Looking::pointing_of(&images));
        assert_eq!(inside.score(&[0, 0, 1, 2]), Some(chosen.inside()));
        assert_eq!(pointing.score(&[0, 0, 1, 2]), Some(chosen.pointing()));
        assert_eq!((inside.score(&[1]), pointing.score(&[1])), (None, None));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let refused =
            |size, pixels, grid| CellMask::new(size, vec![true; pixels], grid).unwrap_err();
        let error = refused([4, 4], 15, [2, 2]).to_string();
        assert_eq!(
            error,
            "a mask cannot be `15 pixels`; expected 4 x 4, one for each pixel of the image"
        );
        assert!(
            refused([4, 4], 16, [5, 2])
                .to_string()
                .contains("1 x 1 to 4 x 4")
        );
        assert!(refused([0, 0], 0, [0, 0]).to_string().contains("a grid"));
        let object = CellMask::new([2, 2], [true; 4], [1, 2]).unwrap();
        let mut looking = Looking::default();
        for weights in [&[1.0][..], &[f32::NAN, 1.0], &[-1.0, 1.0]] {
            looking.add(weights, &object).unwrap_err();
        }
        assert_eq!((looking.inside(), looking.pointing()), (0.0, 0.0));
    }
}
