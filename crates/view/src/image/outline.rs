//! Masks as paths.

use std::fmt::Write;
use std::ops::Range;

use regard_trace::Mask;

use crate::svg::xml::coordinate;

/// The area of a mask as rectangles `[left, top, right, bottom]`, and the edges between its pixels and others
/// `[x1, y1, x2, y2]`.
#[derive(Debug, PartialEq)]
pub struct Outline {
    rectangles: Vec<[usize; 4]>,
    edges: Vec<[usize; 4]>,
}

/// The most rectangles, and edges, of a mask that is drawn.
const MOST_EDGES: usize = 1 << 18;

/// Whether this is one of the ranges that begin and end at `ends`.
fn has(ends: &[usize], range: &Range<usize>) -> bool {
    let found = ends.binary_search(&range.start);
    found.is_ok_and(|at| at % 2 == 0 && ends.get(at + 1) == Some(&range.end))
}

impl Outline {
    /// That of `mask`; `None` for one that is too ragged to be drawn: of more than 262,144 rectangles or edges.
    pub fn of(mask: &Mask) -> Option<Self> {
        let mut found = Self {
            rectangles: vec![],
            edges: vec![],
        };
        // Ranges and horizontal edges that go on from the column before: where, and since which column.
        let mut ranges: Vec<(Range<usize>, usize)> = vec![];
        let mut level: Vec<(usize, usize)> = vec![];
        // Where the ranges of the column before begin and end, in order, as ranges do not touch.
        let mut before: Vec<usize> = vec![];
        // One more column, without pixels, ends what is open.
        for (x, column) in mask.columns().chain([vec![]]).enumerate() {
            let ends: Vec<usize> = column
                .iter()
                .flat_map(|range| [range.start, range.end])
                .collect();
            ranges.retain(|(range, since)| {
                let goes_on = has(&ends, range);
                if !goes_on {
                    found.rectangles.push([*since, range.start, x, range.end]);
                }
                goes_on
            });
            let begun = column.into_iter().filter(|range| !has(&before, range));
            ranges.extend(begun.map(|range| (range, x)));
            level.retain(|(y, since)| {
                let goes_on = ends.binary_search(y).is_ok();
                if !goes_on {
                    found.edges.push([*since, *y, x, *y]);
                }
                goes_on
            });
            let begun = ends.iter().filter(|y| before.binary_search(y).is_err());
            level.extend(begun.map(|&y| (y, x)));
            // Rows that are set in one of two neighbouring columns: ends that both have cancel each other.
            let mut turns = [&before[..], &ends[..]].concat();
            turns.sort_unstable();
            let mut turns = turns.into_iter().peekable();
            let mut open = None;
            while let Some(y) = turns.next() {
                if turns.next_if_eq(&y).is_some() {
                    continue;
                }
                match open.take() {
                    None => open = Some(y),
                    Some(start) => found.edges.push([x, start, x, y]),
                }
            }
            if found.rectangles.len().max(found.edges.len()) > MOST_EDGES {
                return None;
            }
            before = ends;
        }
        Some(found)
    }

    /// The area as the data of a path, with pixels of `across x down`.
    pub fn area(&self, across: f64, down: f64) -> String {
        let mut path = String::new();
        for &[left, top, right, bottom] in &self.rectangles {
            let [left, right] = [left, right].map(|x| coordinate(x as f64 * across));
            let [top, bottom] = [top, bottom].map(|y| coordinate(y as f64 * down));
            let _ = write!(path, "M{left} {top}H{right}V{bottom}H{left}z");
        }
        path
    }

    /// The edges as the data of a path, with pixels of `across x down`.
    pub fn edges(&self, across: f64, down: f64) -> String {
        let mut path = String::new();
        for &[x1, y1, x2, y2] in &self.edges {
            let [from, to] = [x1, x2].map(|x| coordinate(x as f64 * across));
            let [start, end] = [y1, y2].map(|y| coordinate(y as f64 * down));
            let _ = match x1 == x2 {
                true => write!(path, "M{from} {start}V{end}"),
                false => write!(path, "M{from} {start}H{to}"),
            };
        }
        path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_has_its_area_and_its_edges() {
        // Columns "011", "011", "100" of 3 rows.
        let mask = Mask::new(3, 3, vec![1, 2, 1, 3, 2]).expect("full");
        let outline = Outline::of(&mask).expect("smooth");
        assert_eq!(outline.rectangles, [[0, 1, 2, 3], [2, 0, 3, 1]]);
        let mut edges = outline.edges;
        edges.sort_unstable();
        assert_eq!(
            edges,
            [
                [0, 1, 0, 3],
                [0, 1, 3, 1],
                [0, 3, 2, 3],
                [2, 0, 2, 3],
                [2, 0, 3, 0],
                [3, 0, 3, 1],
            ]
        );
    }

    #[test]
    fn a_ragged_mask_is_given_up() {
        // Every other pixel of one column.
        let comb = |runs: usize| Mask::new(runs, 1, vec![1; runs]).expect("full");
        let outline = Outline::of(&comb(80_000)).expect("smooth enough");
        assert_eq!(outline.rectangles.len(), 40_000);
        assert_eq!(outline.edges.len(), 160_000);
        assert_eq!(Outline::of(&comb(400_000)), None);
    }
}
