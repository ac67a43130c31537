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

impl Outline {
    /// That of `mask`.
    pub fn of(mask: &Mask) -> Self {
        let mut found = Self {
            rectangles: vec![],
            edges: vec![],
        };
        // Ranges and horizontal edges that go on from the column before: where, and since which column.
        let mut ranges: Vec<(Range<usize>, usize)> = vec![];
        let mut level: Vec<(usize, usize)> = vec![];
        let mut before: Vec<Range<usize>> = vec![];
        // One more column, without pixels, ends what is open.
        for (x, column) in mask.columns().chain([vec![]]).enumerate() {
            ranges.retain(|(range, since)| {
                let goes_on = column.contains(range);
                if !goes_on {
                    found.rectangles.push([*since, range.start, x, range.end]);
                }
                goes_on
            });
            for range in &column {
                if !ranges.iter().any(|(open, _)| open == range) {
                    ranges.push((range.clone(), x));
                }
            }
            let ends: Vec<usize> = column
                .iter()
                .flat_map(|range| [range.start, range.end])
                .collect();
            level.retain(|(y, since)| {
                let goes_on = ends.contains(y);
                if !goes_on {
                    found.edges.push([*since, *y, x, *y]);
                }
                goes_on
            });
            for &y in &ends {
                if !level.iter().any(|(open, _)| *open == y) {
                    level.push((y, x));
                }
            }
            // Rows that are set in one of two neighbouring columns: ends that both have cancel each other.
            let mut turns: Vec<usize> = before
                .iter()
                .flat_map(|range| [range.start, range.end])
                .collect();
            turns.extend(ends);
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
            before = column;
        }
        found
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
        let outline = Outline::of(&mask);
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
}
