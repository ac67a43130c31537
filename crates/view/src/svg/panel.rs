//! One heat map with its labels, drawn from its own corner at (0, 0).

use std::fmt::Write;

use super::xml::{Anchor, Face, Shown, coordinate, escape, shown, text, text_width, words};
use super::{SvgOptions, pixels};
use crate::Heatmap;
use crate::colour::Ramp;
use crate::heatmap::short;
use crate::label::{beginning, visible};

/// The largest and the smallest cell, in pixels.
const CELL: (f64, f64) = (30.0, 2.0);

/// The largest and smallest size of labels, in pixels.
const LABEL: (f64, f64) = (13.0, 9.0);

/// Up to this many rows or columns each has a label. Their cells are then at least this large, and the picture grows.
const LABELLED: (usize, f64) = (80, 11.0);

/// Pixels that a label may take before it is cut: above a column, and beside a row.
const LABEL_ROOM: f64 = 150.0;
const ROW_ROOM: f64 = 220.0;

/// Characters of the name of a row or column in what is told of each of its cells.
const NAMED: usize = 200;

/// Pixels that a title may take before it is cut: above a wide map more, but not more than the second.
const TITLE_ROOM: (f64, f64) = (680.0, 4096.0);

/// The turn of the labels above the columns, in degrees: steeper above small cells, where they would
/// otherwise stand too close.
fn turn(cell: f64) -> f64 {
    if cell < 20.0 { -65.0 } else { -50.0 }
}

/// Cells at least this large show their weight.
const VALUE_CELL: f64 = 26.0;

/// A heat map with everything about its geometry decided.
pub(super) struct Panel<'a> {
    heatmap: &'a Heatmap,
    options: &'a SvgOptions,
    cell: f64,
    label: f64,
    title: f64,
    /// The map's upper left corner.
    pub left: f64,
    pub top: f64,
    /// Room to the right of the map that slanted labels take.
    overhang: f64,
}

impl<'a> Panel<'a> {
    /// Decides on sizes so that the cells take at most `room` pixels in both directions.
    pub fn new(heatmap: &'a Heatmap, options: &'a SvgOptions, room: f64) -> Self {
        let (rows, columns) = (heatmap.rows().len(), heatmap.columns().len());
        let count = rows.max(columns).max(1);
        let smallest = if count <= LABELLED.0 {
            LABELLED.1
        } else {
            CELL.1
        };
        let cell = (room / count as f64).clamp(smallest, CELL.0);
        let cell = if cell >= 8.0 { cell.floor() } else { cell };
        let label = (cell * 0.8).clamp(LABEL.1, LABEL.0);
        let widest = |names: &[String], room: f64| {
            let widths = names.iter().map(|name| text_width(&visible(name), label));
            widths.fold(0.0, f64::max).min(room)
        };
        let title = if heatmap.title().is_empty() {
            0.0
        } else {
            24.0
        };
        let slope = turn(cell).abs().to_radians();
        let caption = text_width(heatmap.row_axis(), 11.0)
            .max(text_width(heatmap.column_axis(), 11.0))
            + 24.0;
        let overhang = heatmap
            .columns()
            .iter()
            .enumerate()
            .map(|(index, name)| {
                let reach = text_width(&visible(name), label).min(LABEL_ROOM) * slope.cos() + label;
                reach - (columns - index) as f64 * cell
            })
            .fold(0.0, f64::max);
        Self {
            heatmap,
            options,
            cell,
            label,
            title,
            left: widest(heatmap.rows(), ROW_ROOM).max(caption) + 10.0,
            top: title
                + (widest(heatmap.columns(), LABEL_ROOM) * slope.sin() + label * 0.7).max(34.0)
                + 8.0,
            overhang,
        }
    }

    pub fn map_width(&self) -> f64 {
        self.cell * self.heatmap.columns().len() as f64
    }

    pub fn map_height(&self) -> f64 {
        self.cell * self.heatmap.rows().len() as f64
    }

    pub fn width(&self) -> f64 {
        let title = text_width(&visible(self.heatmap.title()), 15.0);
        (self.left + self.map_width() + self.overhang).max(title.min(TITLE_ROOM.0))
    }

    pub fn height(&self) -> f64 {
        self.top + self.map_height()
    }

    /// Appends the panel with its own corner at (0, 0); colours run from 0 to `max`.
    pub fn draw(&self, out: &mut String, max: f32) {
        if self.title > 0.0 {
            let face = Face::new(15.0, Anchor::Start).bold();
            let limit = self.width().clamp(TITLE_ROOM.0, TITLE_ROOM.1);
            text(
                out,
                0.0,
                15.0,
                face,
                &shown(self.heatmap.title(), 15.0, limit),
            );
        }
        self.captions(out);
        self.column_labels(out);
        self.row_labels(out);
        let cells = self.heatmap.values().len();
        if cells == 0 {
            let face = Face::new(LABEL.0, Anchor::Start).faint();
            words(out, self.left, self.top + LABEL.0, face, "no weights");
        } else if cells <= self.options.hover_cells {
            self.cells(out, max);
        } else {
            self.image(out, max);
        }
    }

    fn captions(&self, out: &mut String) {
        let face = Face::new(11.0, Anchor::End).faint();
        let right = self.left - 10.0;
        let axes = [
            (self.heatmap.column_axis(), "→", 22.0),
            (self.heatmap.row_axis(), "↓", 6.0),
        ];
        for (name, arrow, above) in axes.into_iter().filter(|(name, ..)| !name.is_empty()) {
            let caption = format!("{} {arrow}", visible(name));
            words(out, right, self.top - above, face, &caption);
        }
    }

    /// One label of this many is drawn, so that labels do not overlap.
    fn step(&self) -> usize {
        (self.label * 1.15 / self.cell).ceil().max(1.0) as usize
    }

    fn column_labels(&self, out: &mut String) {
        let face = Face {
            turn: turn(self.cell),
            ..Face::new(self.label, Anchor::Start)
        };
        for (index, name) in self
            .heatmap
            .columns()
            .iter()
            .enumerate()
            .step_by(self.step())
        {
            let centre = self.left + (index as f64 + 0.5) * self.cell;
            let label = shown(name, self.label, LABEL_ROOM);
            text(
                out,
                centre + self.label * 0.25,
                self.top - 6.0,
                face,
                &label,
            );
        }
    }

    fn row_labels(&self, out: &mut String) {
        let face = Face::new(self.label, Anchor::End);
        for (index, name) in self.heatmap.rows().iter().enumerate().step_by(self.step()) {
            let centre = self.top + (index as f64 + 0.5) * self.cell;
            let label = shown(name, self.label, ROW_ROOM);
            text(
                out,
                self.left - 8.0,
                centre + self.label * 0.35,
                face,
                &label,
            );
        }
    }

    fn cells(&self, out: &mut String, max: f32) {
        let gap = if self.cell >= 12.0 { 1.0 } else { 0.0 };
        let size = coordinate(self.cell - gap);
        let round = if self.cell >= 20.0 { r#" rx="2""# } else { "" };
        let columns: Vec<String> = self
            .heatmap
            .columns()
            .iter()
            .map(|c| escape(&beginning(c, NAMED)))
            .collect();
        // Without gaps, the background would show through the smoothed edges of the cells.
        let edges = if gap == 0.0 {
            r#" shape-rendering="crispEdges""#
        } else {
            ""
        };
        let _ = writeln!(out, "<g{edges}>");
        for (row, name) in self.heatmap.rows().iter().enumerate() {
            let name = escape(&beginning(name, NAMED));
            for (column, key) in columns.iter().enumerate() {
                let value = self.heatmap.value(row, column);
                let _ = writeln!(
                    out,
                    r#"<rect x="{}" y="{}" width="{size}" height="{size}"{round} fill="{}"><title>{name} → {key}: {}</title></rect>"#,
                    coordinate(self.left + column as f64 * self.cell),
                    coordinate(self.top + row as f64 * self.cell),
                    self.options.ramp.at(self.heatmap.share(row, column, max)),
                    weight(value),
                );
            }
        }
        out.push_str("</g>\n");
        if self.options.values && self.cell >= VALUE_CELL {
            self.numbers(out, max);
        }
    }

    fn numbers(&self, out: &mut String, max: f32) {
        let size = coordinate(self.cell * 0.36);
        let _ = writeln!(
            out,
            r#"<g font-size="{size}" text-anchor="middle" pointer-events="none">"#
        );
        for row in 0..self.heatmap.rows().len() {
            for column in 0..self.heatmap.columns().len() {
                let value = self.heatmap.value(row, column);
                let share = self.heatmap.share(row, column, max);
                let number = short(value);
                let faint = match self.heatmap.is_signed() {
                    true => value.abs() < 0.05 * max,
                    false => share < 0.05,
                };
                if number.is_empty() || faint {
                    continue;
                }
                let _ = writeln!(
                    out,
                    r#"<text x="{}" y="{}" fill="{}">{number}</text>"#,
                    coordinate(self.left + (column as f64 + 0.5) * self.cell - 0.5),
                    coordinate(self.top + (row as f64 + 0.63) * self.cell - 0.5),
                    self.options.ramp.at(share).ink(),
                );
            }
        }
        out.push_str("</g>\n");
    }

    /// All cells as one picture, a pixel each: a large map stays a small file.
    fn image(&self, out: &mut String, max: f32) {
        let size = [self.heatmap.rows().len(), self.heatmap.columns().len()];
        let place = [self.left, self.top, self.map_width(), self.map_height()];
        pixels::embed(out, place, size, |row, column| {
            self.options.ramp.at(self.heatmap.share(row, column, max))
        });
    }
}

/// A weight for hovering: two decimals, more for small weights.
pub(crate) fn weight(value: f32) -> String {
    if value == 0.0 || value.abs() >= 0.01 {
        format!("{value:.2}")
    } else {
        format!("{value:.2e}")
    }
}

/// A number beside a scale that spans `span`, with digits enough for parts of the span.
pub(crate) fn tick(value: f64, span: f64) -> String {
    let more = |size: f64| (size / span).log10().ceil().clamp(0.0, 5.0) as usize;
    if value == 0.0 {
        "0.00".to_owned()
    } else if value < 10_000.0 && (span >= 0.002 || value >= 0.01) {
        let digits = 2 + more(0.2);
        format!("{value:.digits$}")
    } else {
        let digits = 1 + more(value);
        format!("{value:.digits$e}")
    }
}

/// The vertical bar of colours, at (x, y), with the numbers that `mark` gives for shares of its height.
pub(crate) fn colour_bar(
    out: &mut String,
    ramp: Ramp,
    x: f64,
    y: f64,
    height: f64,
    mark: impl Fn(f64) -> String,
) {
    const STEPS: usize = 16;
    out.push_str(r#"<defs><linearGradient id="weights" x1="0" y1="1" x2="0" y2="0">"#);
    for step in 0..=STEPS {
        let share = step as f32 / STEPS as f32;
        let _ = write!(
            out,
            r#"<stop offset="{share}" stop-color="{}"/>"#,
            ramp.at(share)
        );
    }
    out.push_str("</linearGradient></defs>\n");
    let _ = writeln!(
        out,
        r##"<rect x="{}" y="{}" width="10" height="{}" rx="2" fill="url(#weights)" stroke="#cdd5df" stroke-width="0.5"/>"##,
        coordinate(x),
        coordinate(y),
        coordinate(height)
    );
    let face = Face::new(10.5, Anchor::Start).faint();
    let marks = if height >= 60.0 { 4 } else { 1 };
    for number in 0..=marks {
        let share = f64::from(number) / f64::from(marks);
        let label = Shown {
            text: mark(share),
            whole: None,
        };
        text(
            out,
            x + 15.0,
            y + height * (1.0 - share) + 3.8,
            face,
            &label,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_have_digits_enough_for_their_scale() {
        let ticks = |low: f64, high: f64| {
            let span = high - low;
            [0.0, 0.25, 0.5, 0.75, 1.0].map(|share| tick(low + span * share, span))
        };
        assert_eq!(ticks(0.0, 0.93), ["0.00", "0.23", "0.47", "0.70", "0.93"]);
        let small = ["0.00", "0.022", "0.045", "0.068", "0.090"];
        assert_eq!(ticks(0.0, 0.09), small);
        let close = ["0.50000", "0.50025", "0.50050", "0.50075", "0.50100"];
        assert_eq!(ticks(0.5, 0.501), close);
        let tiny = ["0.00", "2.0e-5", "4.0e-5", "6.0e-5", "8.0e-5"];
        assert_eq!(ticks(0.0, 8e-5), tiny);
        for (low, high) in [
            (0.5, 0.50001),
            (0.009, 0.0091),
            (1e5, 1e5 + 10.0),
            (0.3, 0.32),
        ] {
            let ticks = ticks(low, high);
            let mut different = ticks.to_vec();
            different.dedup();
            assert_eq!(different.len(), 5, "{ticks:?}");
        }
    }
}
