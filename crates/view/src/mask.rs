//! A mask as a picture: a square for each query and key, dark where the key may be seen. A square says what it stands for when it is
//! hovered over; more than 6,000 of them are embedded as an image of one pixel each.
//!
//! ```
//! use regard_view::mask::MaskPicture;
//!
//! let causal = MaskPicture::new("causal", vec![vec![true, false], vec![true, true]]);
//! assert_eq!(causal.share(), (3, 4));
//! assert!(causal.svg().contains("3 of 4 pairs"));
//! ```

use std::fmt::Write;

use crate::colour::Rgb;
use crate::svg::xml::{
    Anchor, Face, coordinate, escape, open, shown, text, text_width, words, wrapped,
};
use crate::svg::{SvgOptions, pixels};

/// What each query may see.
#[derive(Clone, Debug, PartialEq)]
pub struct MaskPicture {
    title: String,
    seen: Vec<Vec<bool>>,
}

const SEEN: Rgb = Rgb(0x1f, 0x6b, 0xa6);
const HIDDEN: Rgb = Rgb(0xe9, 0xed, 0xf2);

/// Height of a line of the title.
const LINE: f64 = 20.0;

/// Pixels that the squares take at most, either way.
const ROOM: f64 = 480.0;

impl MaskPicture {
    /// A picture of `seen [queries][keys]`, true where a key may be seen. A row that is shorter than the first
    /// is hidden at its end.
    pub fn new(title: impl Into<String>, seen: Vec<Vec<bool>>) -> Self {
        Self {
            title: title.into(),
            seen,
        }
    }

    fn keys(&self) -> usize {
        self.seen.first().map_or(0, Vec::len)
    }

    fn sees(&self, query: usize, key: usize) -> bool {
        self.seen[query].get(key).copied().unwrap_or(false)
    }

    /// The number of pairs of a query and a key that it may see, and the number of all pairs.
    pub fn share(&self) -> (usize, usize) {
        let keys = self.keys();
        let seen = self.seen.iter().flat_map(|row| row.iter().take(keys));
        (seen.filter(|&&seen| seen).count(), self.seen.len() * keys)
    }

    /// The picture as a standalone SVG on white ground.
    pub fn svg(&self) -> String {
        let (queries, keys) = (self.seen.len(), self.keys());
        let cell = (ROOM / queries.max(keys).max(1) as f64).clamp(2.0, 30.0);
        let (wide, high) = (keys as f64 * cell, queries as f64 * cell);
        let (seen, of) = self.share();
        let percent = 100.0 * seen as f64 / of.max(1) as f64;
        let legend = format!("{seen} of {of} pairs seen ({percent:.1} %)");
        let left = 74.0;
        let width = left + wide.max(text_width(&legend, 13.0)).max(190.0) + 28.0;
        // The title is bold, and so wider than the regular letters that are measured.
        let title = wrapped(&self.title, 16.0, (width - 40.0) / 1.08);
        let top = 76.0 + LINE * title.len().max(1) as f64;
        let mut out = String::new();
        open(&mut out, width, top + high + 56.0, &self.title, "mask");
        let bold = Face::new(16.0, Anchor::Start).bold();
        for (line, y) in title.iter().zip(1..) {
            let y = 12.0 + LINE * f64::from(y);
            text(&mut out, 20.0, y, bold, &shown(line, 16.0, width - 40.0));
        }
        let faint = Face::new(12.0, Anchor::Start).faint();
        words(&mut out, left, top - 28.0, faint, "key →");
        let turned = Face {
            turn: -90.0,
            ..Face::new(12.0, Anchor::End).faint()
        };
        words(&mut out, left - 38.0, top, turned, "← query");
        self.numbers(&mut out, left, top, cell);
        if of <= SvgOptions::default().hover_cells {
            self.cells(&mut out, left, top, cell);
        } else {
            let place = [left, top, wide, high];
            pixels::embed(&mut out, place, [queries, keys], |query, key| {
                if self.sees(query, key) { SEEN } else { HIDDEN }
            });
        }
        let y = top + high + 30.0;
        let _ = writeln!(
            out,
            r#"<rect x="{}" y="{}" width="12" height="12" rx="2" fill="{SEEN}"/>"#,
            coordinate(left),
            coordinate(y - 10.5)
        );
        words(
            &mut out,
            left + 19.0,
            y,
            Face::new(13.0, Anchor::Start),
            &legend,
        );
        out.push_str("</svg>\n");
        out
    }

    fn numbers(&self, out: &mut String, left: f64, top: f64, cell: f64) {
        let size = (cell * 0.42).clamp(9.0, 12.0);
        let every = |widest: f64| {
            [1, 2, 5, 10, 20, 50, 100, 200, 500]
                .into_iter()
                .find(|&n| n as f64 * cell >= widest)
        };
        for key in (0..self.keys()).step_by(every(size * 2.0).unwrap_or(1000)) {
            let x = left + (key as f64 + 0.5) * cell;
            words(
                out,
                x,
                top - 8.0,
                Face::new(size, Anchor::Middle).faint(),
                &key.to_string(),
            );
        }
        for query in (0..self.seen.len()).step_by(every(size * 1.3).unwrap_or(1000)) {
            let y = top + (query as f64 + 0.5) * cell + size * 0.35;
            words(
                out,
                left - 8.0,
                y,
                Face::new(size, Anchor::End).faint(),
                &query.to_string(),
            );
        }
    }

    fn cells(&self, out: &mut String, left: f64, top: f64, cell: f64) {
        let gap = if cell >= 8.0 { cell * 0.08 } else { 0.0 };
        let (size, round) = (
            coordinate(cell - gap),
            coordinate(if cell >= 12.0 { 2.0 } else { 0.0 }),
        );
        // Without gaps, the background would show through the smoothed edges of small squares.
        let edges = if gap == 0.0 {
            r#" shape-rendering="crispEdges""#
        } else {
            ""
        };
        let _ = writeln!(out, "<g{edges}>");
        for query in 0..self.seen.len() {
            for key in 0..self.keys() {
                let (fill, verb) = if self.sees(query, key) {
                    (SEEN, "sees")
                } else {
                    (HIDDEN, "does not see")
                };
                let _ = writeln!(
                    out,
                    r#"<rect x="{}" y="{}" width="{size}" height="{size}" rx="{round}" fill="{fill}"><title>{}</title></rect>"#,
                    coordinate(left + key as f64 * cell),
                    coordinate(top + query as f64 * cell),
                    escape(&format!("query {query} {verb} key {key}"))
                );
            }
        }
        out.push_str("</g>\n");
    }
}
