//! The tree of a search: what a model proposed at each step, and what the search went on from.
//!
//! A column for each step, in the order of the places in the column before, and of the probabilities; the colour of a token is its
//! probability after those before it, and the dark lines lead to the chosen text.
//!
//! ```
//! use regard_view::tree::{Fate, Proposal, svg};
//!
//! let proposal = |parent, text: &str, probability, fate| Proposal { parent, text: text.to_owned(), probability, fate };
//! let tree = [
//!     proposal(None, "a", 0.7, Fate::Chosen),
//!     proposal(None, "the", 0.2, Fate::Left),
//!     proposal(Some(0), "dog", 0.9, Fate::Chosen),
//! ];
//! assert!(svg("what was written", &tree).contains("dog"));
//! ```

use std::fmt::Write;

use crate::colour::{Ramp, Rgb};
use crate::svg::xml::{Anchor, FAINT, Face, INK, coordinate, open, shown, text, words};

/// A token that was proposed.
#[derive(Clone, Debug, PartialEq)]
pub struct Proposal {
    /// The place, in the list, of the token before it, which stands before it there; `None` for a first one.
    pub parent: Option<usize>,
    /// The token.
    pub text: String,
    /// Its probability after the tokens before it, 0 to 1.
    pub probability: f64,
    /// What became of it.
    pub fate: Fate,
}

/// What became of a proposal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The search did not go on from it.
    Left,
    /// The search went on from it.
    Taken,
    /// It is part of the text that is shown.
    Chosen,
}

const WIDE: f64 = 112.0;
const HIGH: f64 = 30.0;
const GAP: f64 = 34.0;
const MARGIN: f64 = 16.0;
/// The height of the title.
const TITLE: f64 = 30.0;

/// The tree as a standalone SVG on white ground. A proposal whose parent is not before it counts as a first one.
pub fn svg(title: &str, proposals: &[Proposal]) -> String {
    let mut columns: Vec<Vec<usize>> = vec![];
    let mut places: Vec<(usize, usize)> = vec![]; // column, row
    let parent = |index: usize| proposals[index].parent.filter(|&parent| parent < index);
    for index in 0..proposals.len() {
        let column = parent(index).map_or(0, |parent| places[parent].0 + 1);
        if columns.len() <= column {
            columns.push(vec![]);
        }
        columns[column].push(index);
        places.push((column, 0));
    }
    for column in &mut columns {
        let row = |index: usize| parent(index).map_or(0, |parent| places[parent].1);
        column.sort_by(|&a, &b| {
            let likelier = proposals[b]
                .probability
                .total_cmp(&proposals[a].probability);
            row(a).cmp(&row(b)).then(likelier)
        });
        for (row, &index) in column.iter().enumerate() {
            places[index].1 = row;
        }
    }
    let most = columns.iter().map(Vec::len).max().unwrap_or(0);
    let across = columns.len() as f64 * (WIDE + GAP) - GAP;
    let (width, height) = (
        across.max(200.0) + 2.0 * MARGIN,
        TITLE + most as f64 * HIGH + MARGIN,
    );
    let mut out = String::new();
    open(&mut out, width, height, title, "tree of a search");
    words(
        &mut out,
        MARGIN,
        20.0,
        Face::new(13.0, Anchor::Start).bold(),
        title,
    );
    let corner = |index: usize| {
        let (column, row) = places[index];
        (
            MARGIN + column as f64 * (WIDE + GAP),
            TITLE + row as f64 * HIGH,
        )
    };
    for (index, one) in proposals.iter().enumerate() {
        let Some(parent) = parent(index) else {
            continue;
        };
        let ((x, y), (_, from)) = (corner(index), corner(parent));
        let (middle, from) = (y + HIGH / 2.0, from + HIGH / 2.0);
        let (stroke, width) = match one.fate {
            Fate::Chosen => (INK, 2.0),
            Fate::Taken => (FAINT, 1.4),
            Fate::Left => ("#c5ccd5", 1.0),
        };
        let [start, bend, x, from, middle] =
            [x - GAP, x - GAP / 2.0, x, from, middle].map(coordinate);
        let _ = writeln!(
            out,
            r#"<path d="M{start} {from}C{bend} {from} {bend} {middle} {x} {middle}" fill="none" stroke="{stroke}" stroke-width="{width}"/>"#
        );
    }
    for (index, one) in proposals.iter().enumerate() {
        let (x, y) = corner(index);
        let ground = Ramp::PAPER.at(0.85 * one.probability.clamp(0.0, 1.0) as f32);
        let stroke = match one.fate {
            Fate::Chosen => INK,
            Fate::Taken => FAINT,
            Fate::Left => "#c5ccd5",
        };
        let (left, top) = (coordinate(x), coordinate(y + 2.0));
        let _ = writeln!(
            out,
            r#"<rect x="{left}" y="{top}" width="{WIDE}" height="{}" rx="4" fill="{ground}" stroke="{stroke}"/>"#,
            HIGH - 4.0
        );
        let face = |anchor| Face {
            fill: match ground.ink() {
                Rgb(0xff, 0xff, 0xff) => "#ffffff",
                _ => INK,
            },
            ..Face::new(12.0, anchor)
        };
        let percent = format!("{:.0} %", 100.0 * one.probability);
        let baseline = y + HIGH / 2.0 + 4.0;
        text(
            &mut out,
            x + 7.0,
            baseline,
            face(Anchor::Start),
            &shown(&one.text, 12.0, 64.0),
        );
        words(
            &mut out,
            x + WIDE - 7.0,
            baseline,
            face(Anchor::End),
            &percent,
        );
    }
    out.push_str("</svg>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_proposals_are_drawn() {
        let one = |parent, text: &str, probability| Proposal {
            parent,
            text: text.to_owned(),
            probability,
            fate: Fate::Left,
        };
        // A parent that does not come before, no number, and text that would leave its place.
        let tree = [
            one(Some(3), "</text><script>", f64::NAN),
            one(Some(0), "", 7.0),
            one(Some(1), &"long".repeat(50), -1.0),
        ];
        let drawn = svg("<b>", &tree);
        assert!(!drawn.contains("<script>") && !drawn.contains("<b>"));
        assert_eq!(drawn.matches("<rect").count(), 4);
        assert!(svg("", &[]).ends_with("</svg>\n"));
    }
}
