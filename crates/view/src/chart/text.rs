//! A chart in plain characters, for a terminal or a log.
//!
//! Every series has a character of its own, which marks its points; dots connect them. Where two lines cross,
//! the points of the later one are shown.

use super::{Chart, Point, Series};
use crate::label::{visible, width};

/// The character of each series; after the last they repeat.
const MARKS: &[u8] = b"ox+*#@%&abcdefghijklmnpqrstuvwyzABCDEFGHIJKLMNPQRSTUVWYZ";

/// What connects the points.
const DOT: char = '.';

/// The smallest plot, without axes: columns and rows.
const LEAST: (usize, usize) = (20, 5);

impl Chart {
    /// The chart in characters, within about `columns` times `rows` (a long title or name takes more).
    ///
    /// ```
    /// use regard_view::chart::{Chart, Point, Series};
    ///
    /// let points = (0..5).map(|x| Point::new(f64::from(x), f64::from(x * x))).collect();
    /// let text = Chart::new("squares", "x", "x * x").with(Series::new("rising", points)).text(50, 12);
    /// assert!(text.starts_with("squares\n  o rising\n"));
    /// assert!(text.lines().any(|line| line.starts_with("15 |")));
    /// ```
    pub fn text(&self, columns: usize, rows: usize) -> String {
        let (x_axis, y_axis) = self.axes(6, 4);
        let y_ticks = y_axis.ticks();
        let names: Vec<String> = y_ticks.iter().map(|&tick| y_axis.name(tick)).collect();
        let left = names.iter().map(|name| width(name)).max().unwrap_or(0);
        // Title, legend, axis, its numbers and its label stand around the plot.
        let across = columns.saturating_sub(left + 3).max(LEAST.0);
        let up = rows.saturating_sub(5 + self.series.len()).max(LEAST.1);
        let mut canvas = Canvas::new(across, up);
        let at = |point: &Point| {
            let place = |share: f64, cells: usize| (share * (cells - 1) as f64).round() as usize;
            let column = place(x_axis.place(point.x), across);
            let row = up - 1 - place(y_axis.place(point.y), up);
            (column.min(across - 1), row.min(up - 1))
        };
        for series in self.series.iter().filter(|series| series.connected) {
            for (from, to) in series.points.iter().zip(series.points.iter().skip(1)) {
                if from.is_drawable() && to.is_drawable() {
                    canvas.connect(at(from), at(to));
                }
            }
        }
        for (index, series) in self.series.iter().enumerate() {
            for point in series.points.iter().filter(|point| point.is_drawable()) {
                canvas.put(at(point), mark(index));
            }
        }

        let mut out = String::new();
        if !self.title.is_empty() {
            out.push_str(&format!("{}\n", visible(&self.title)));
        }
        for (index, Series { name, .. }) in self.series.iter().enumerate() {
            out.push_str(&format!("  {} {}\n", mark(index), visible(name)));
        }
        if !self.y_label.is_empty() {
            out.push_str(&format!("{}\n", visible(&self.y_label)));
        }
        let mut labels = vec![String::new(); up];
        for (tick, name) in y_ticks.iter().zip(names) {
            let row = up - 1 - (y_axis.place(*tick) * (up - 1) as f64).round() as usize;
            labels[row.min(up - 1)] = name;
        }
        for (label, row) in labels.iter().zip(canvas.rows()) {
            let padding = " ".repeat(left - width(label));
            let line = format!("{padding}{label} |{row}");
            out.push_str(&format!("{}\n", line.trim_end()));
        }
        let indent = " ".repeat(left + 1);
        out.push_str(&format!("{indent}+{}\n", "-".repeat(across)));
        let marks = self.x_marks(&x_axis);
        let marks = marks.iter().map(|(x, name)| {
            let column = x_axis.place(*x) * (across - 1) as f64;
            (column.round() as usize, name.as_str())
        });
        out.push_str(&format!("{indent} {}\n", below(marks, across)));
        if !self.x_label.is_empty() {
            let label = visible(&self.x_label);
            let middle = across.saturating_sub(width(&label)) / 2;
            out.push_str(&format!("{indent} {}{label}\n", " ".repeat(middle)));
        }
        out
    }
}

fn mark(index: usize) -> char {
    char::from(MARKS[index % MARKS.len()])
}

/// A line with each name below its column; a name that would touch the one before is left out.
fn below<'a>(marks: impl Iterator<Item = (usize, &'a str)>, across: usize) -> String {
    let mut line = String::new();
    for (column, name) in marks {
        let size = width(name);
        let start = column.saturating_sub(size / 2);
        let start = start.min(across.saturating_sub(size));
        let used = width(&line);
        let gap = if used == 0 { 0 } else { 1 };
        if start >= used + gap {
            line.push_str(&" ".repeat(start - used));
            line.push_str(name);
        }
    }
    line
}

/// Cells by column and row, from the upper left.
struct Canvas {
    cells: Vec<char>,
    across: usize,
}

impl Canvas {
    fn new(across: usize, up: usize) -> Self {
        Self {
            cells: vec![' '; across * up],
            across,
        }
    }

    fn put(&mut self, (column, row): (usize, usize), mark: char) {
        self.cells[row * self.across + column] = mark;
    }

    fn connect(&mut self, from: (usize, usize), to: (usize, usize)) {
        let steps = from.0.abs_diff(to.0).max(from.1.abs_diff(to.1));
        let between = |from: usize, to: usize, step: usize| {
            let share = step as f64 / steps as f64;
            (from as f64 + (to as f64 - from as f64) * share).round() as usize
        };
        for step in 1..steps {
            let cell = (between(from.0, to.0, step), between(from.1, to.1, step));
            self.put(cell, DOT);
        }
    }

    fn rows(&self) -> impl Iterator<Item = String> {
        self.cells
            .chunks(self.across)
            .map(|row| row.iter().collect())
    }
}
