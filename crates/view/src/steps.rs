//! The steps from scores to weights, side by side: bars for one query, a map for several.
//!
//! The keys are the columns of each panel; numbers are written where there is room for them. A masked cell is hatched and
//! has no number. A panel may have curves over the keys' positions, marks at positions, a line at a threshold, and columns
//! beside those of the keys, such as the weight of a sink.
//!
//! ```
//! use regard_view::steps::{Panel, Steps};
//!
//! let names = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
//! let weights = Panel::new("weights", names(&["q1"]), names(&["a", "b"]), vec![vec![Some(0.75), None]]);
//! let svg = Steps::new("softmax").with(weights.shares()).svg();
//! assert!(svg.contains("<title>q1 → a: 0.75</title>") && svg.contains("<title>q1 → b: hidden</title>"));
//! ```

use std::fmt::Write;

use crate::chart::ticks::{Axis, drawn};
use crate::colour::{Ramp, Rgb};
use crate::label::{number, visible};
use crate::svg::xml::{
    Anchor, FAINT, Face, coordinate, escape, open, open_group, shown, text, text_width, words,
    wrapped,
};
use crate::vectors::Vectors;

/// Numbers of queries by keys.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    title: String,
    formula: String,
    queries: Vec<String>,
    columns: Vec<String>,
    cells: Vec<Vec<Option<f64>>>,
    beside: usize,
    shares: bool,
    curves: Vec<Vec<(f64, f64)>>,
    marks: Vec<Vec<f64>>,
    line: Option<f64>,
    is_matrix: bool,
    begins_row: bool,
}

impl Panel {
    /// A panel of `cells [queries][columns]`; a cell without a number is hidden, and so is one that is missing at the
    /// end of a row.
    pub fn new(
        title: impl Into<String>,
        queries: Vec<String>,
        columns: Vec<String>,
        cells: Vec<Vec<Option<f64>>>,
    ) -> Self {
        Self {
            title: title.into(),
            formula: String::new(),
            queries,
            columns,
            cells,
            beside: 0,
            shares: false,
            curves: Vec::new(),
            marks: Vec::new(),
            line: None,
            is_matrix: false,
            begins_row: false,
        }
    }

    /// How the numbers are computed, below the title.
    pub fn formula(mut self, formula: impl Into<String>) -> Self {
        self.formula = formula.into();
        self
    }

    /// Says that the numbers are shares of 1: the scale of colours and bars then reaches at least to 1.
    pub fn shares(mut self) -> Self {
        self.shares = true;
        self
    }

    /// Says that the last `columns` are not keys: they are drawn a little apart.
    pub fn beside(mut self, columns: usize) -> Self {
        self.beside = columns.min(self.columns.len());
        self
    }

    /// For each query a curve of points (position from 0, value).
    pub fn curves(mut self, curves: Vec<Vec<(f64, f64)>>) -> Self {
        self.curves = curves;
        self
    }

    /// For each query positions to mark, counted from 0; those beyond the keys are not drawn.
    pub fn marks(mut self, marks: Vec<Vec<f64>>) -> Self {
        self.marks = marks;
        self
    }

    /// A line across bars at this value, such as a threshold.
    pub fn line(mut self, value: f64) -> Self {
        self.line = Some(value);
        self
    }

    /// Draws a map for a single query too, in place of bars.
    pub fn matrix(mut self) -> Self {
        self.is_matrix = true;
        self
    }

    /// Begins a new row of panels. Without any such panel, as many panels stand in a row as fit.
    pub fn begins_row(mut self) -> Self {
        self.begins_row = true;
        self
    }

    fn is_map(&self) -> bool {
        self.is_matrix || self.queries.len() != 1
    }

    fn keys(&self) -> usize {
        self.columns.len() - self.beside
    }

    fn cell(&self, query: usize, column: usize) -> Option<f64> {
        *self.cells.get(query)?.get(column)?
    }

    /// The numbers that an axis can hold.
    fn values(&self) -> impl Iterator<Item = f64> {
        let cells = self.cells.iter().flatten().filter_map(|cell| *cell);
        let finite = cells.filter(|value| value.abs() <= LARGEST);
        finite.map(drawn)
    }
}

/// A picture of panels, with arrows above them if there are any.
#[derive(Clone, Debug, PartialEq)]
pub struct Steps {
    title: String,
    about: String,
    formula: String,
    vectors: Option<Vectors>,
    panels: Vec<Panel>,
    remarks: Vec<String>,
}

/// Pixels of a row of panels at most, of the picture at least, and around everything.
const WIDEST: f64 = 1120.0;
const LEAST: f64 = 520.0;
const MARGIN: f64 = 24.0;

/// Between panels, and between keys and what stands beside them.
const GAP: f64 = 44.0;
const APART: f64 = 14.0;

/// Room for the cells of one panel, and their largest and smallest size, either way.
const ROOM: (f64, f64) = (580.0, 420.0);
const CELL: (f64, f64) = (60.0, 36.0);
const SMALLEST: f64 = 7.0;

/// Height of a row that has a curve in it, and of bars.
const CURVED: f64 = 60.0;
const BARS: f64 = 170.0;

/// Sizes of text: names, numbers, formulas.
const NAME: f64 = 12.5;
const NUMBER: f64 = 12.0;
const FORMULA: f64 = 12.0;

/// Pixels that a name may take before it is cut.
const NAME_ROOM: f64 = 110.0;

const CURVE: &str = "#d55e00";
const BAR: &str = "#3b90c1";
const OTHER: &str = "#8a94a3";
const BELOW: &str = "#c8743a";

/// Largest number drawn: differences of larger ones leave the range of `f64`.
const LARGEST: f64 = 1e150;

/// Decimals of a number in the picture.
const DIGITS: u8 = 3;

impl Steps {
    /// A picture without panels.
    pub fn new(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            about: String::new(),
            formula: String::new(),
            vectors: None,
            panels: Vec::new(),
            remarks: Vec::new(),
        }
    }

    /// What the mechanism does, below the title.
    pub fn about(mut self, text: impl Into<String>) -> Self {
        self.about = text.into();
        self
    }

    /// The mechanism's formula, below the title.
    pub fn formula(mut self, formula: impl Into<String>) -> Self {
        self.formula = formula.into();
        self
    }

    /// The same picture with arrows above the panels.
    pub fn vectors(mut self, vectors: Vectors) -> Self {
        self.vectors = Some(vectors);
        self
    }

    /// The same picture with one more panel.
    pub fn with(mut self, panel: Panel) -> Self {
        self.panels.push(panel);
        self
    }

    /// The same picture with one more sentence at its end.
    pub fn remark(mut self, text: impl Into<String>) -> Self {
        self.remarks.push(text.into());
        self
    }

    /// The picture as a standalone SVG on white ground.
    pub fn svg(&self) -> String {
        let mut plans: Vec<Plan<'_>> = self.panels.iter().map(Plan::new).collect();
        let lengths = flow(&plans);
        let mut rows: Vec<&[Plan<'_>]> = Vec::new();
        let mut rest = plans.as_mut_slice();
        for length in lengths {
            let (row, others) = rest.split_at_mut(length);
            align(row);
            rows.push(row);
            rest = others;
        }
        let mut inside = rows.iter().map(|row| across(row)).fold(LEAST, f64::max);
        if self.vectors.is_some() {
            inside = inside.max(Vectors::WIDTH);
        }
        let formula = [&self.about, &self.formula];
        let formula: Vec<String> = formula
            .iter()
            .flat_map(|text| wrapped(text, FORMULA, inside))
            .collect();
        let remarks: Vec<String> = self
            .remarks
            .iter()
            .flat_map(|remark| wrapped(remark, NUMBER, inside))
            .collect();

        let mut body = String::new();
        let mut y = 34.0;
        let bold = Face::new(17.0, Anchor::Start).bold();
        if !self.title.is_empty() {
            text(
                &mut body,
                MARGIN,
                y,
                bold,
                &shown(&self.title, 17.0, inside),
            );
        }
        let faint = Face::new(FORMULA, Anchor::Start).faint();
        for line in &formula {
            y += 18.0;
            words(&mut body, MARGIN, y, faint, line);
        }
        y += 16.0;
        if let Some(vectors) = &self.vectors {
            let x = MARGIN + (inside - Vectors::WIDTH) / 2.0;
            open_group(&mut body, x, y);
            y += vectors.draw(&mut body) + 8.0;
            body.push_str("</g>\n");
        }
        for row in &rows {
            let mut x = MARGIN;
            for plan in *row {
                plan.draw(&mut body, x, y);
                x += plan.width + GAP;
            }
            y += row.iter().map(|plan| plan.height).fold(0.0, f64::max) + 14.0;
        }
        if self.hides() {
            let _ = writeln!(
                body,
                r##"<rect x="{}" y="{}" width="18" height="13" rx="2" fill="url(#hatch)" stroke="#c9d1dc" stroke-width="0.6"/>"##,
                coordinate(MARGIN),
                coordinate(y + 3.0)
            );
            let face = Face::new(NUMBER, Anchor::Start);
            words(
                &mut body,
                MARGIN + 26.0,
                y + 14.0,
                face,
                "hidden from the query: weight 0",
            );
            y += 22.0;
        }
        for line in &remarks {
            words(
                &mut body,
                MARGIN,
                y + 14.0,
                Face::new(NUMBER, Anchor::Start),
                line,
            );
            y += 18.0;
        }

        let mut out = String::new();
        let width = inside + 2.0 * MARGIN;
        open(&mut out, width, y + 20.0, &self.title, "attention");
        out.push_str(
            "<defs><pattern id=\"hatch\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" \
             patternTransform=\"rotate(45)\"><rect width=\"6\" height=\"6\" fill=\"#f1f3f6\"/>\
             <rect width=\"2\" height=\"6\" fill=\"#d3dae3\"/></pattern></defs>\n",
        );
        out.push_str(&body);
        out.push_str("</svg>\n");
        out
    }

    fn hides(&self) -> bool {
        self.panels.iter().any(|panel| {
            let cells =
                |query| (0..panel.keys()).any(move |column| panel.cell(query, column).is_none());
            (0..panel.queries.len()).any(cells)
        })
    }
}

/// How many panels stand in each row. Only a single panel is wider than [`WIDEST`]; where no panel begins a row, rows have about
/// equal numbers of panels.
fn flow(plans: &[Plan<'_>]) -> Vec<usize> {
    let fits = |row: &[Plan<'_>]| row.len() == 1 || across(row) <= WIDEST;
    if plans.iter().any(|plan| plan.panel.begins_row) {
        let mut lengths: Vec<usize> = Vec::new();
        let mut first = 0;
        for (index, plan) in plans.iter().enumerate() {
            let begins = plan.panel.begins_row || !fits(&plans[first..=index]);
            match lengths.last_mut() {
                Some(length) if !begins => *length += 1,
                _ => {
                    lengths.push(1);
                    first = index;
                }
            }
        }
        return lengths;
    }
    let mut in_row = plans.len().max(1);
    while !plans.chunks(in_row).all(fits) {
        in_row -= 1;
    }
    // If three panels fit into a row, four are drawn two by two.
    let rows = plans.len().div_ceil(in_row).max(1);
    let in_row = plans.len().div_ceil(rows).max(1);
    plans.chunks(in_row).map(<[Plan<'_>]>::len).collect()
}

/// Lets the cells of all panels in a row begin at the same height, whatever stands above them.
fn align(row: &mut [Plan<'_>]) {
    let top = row.iter().map(|plan| plan.top).fold(0.0, f64::max);
    for plan in row {
        plan.height += top - plan.top;
        plan.top = top;
    }
}

fn across(row: &[Plan<'_>]) -> f64 {
    let widths: f64 = row.iter().map(|plan| plan.width).sum();
    widths + GAP * (row.len().max(1) - 1) as f64
}

/// A panel with everything about its geometry decided.
struct Plan<'a> {
    panel: &'a Panel,
    formula: Vec<String>,
    /// Width and height of a cell; of bars, their pitch and the height of all.
    cell: (f64, f64),
    /// The upper left corner of the cells.
    left: f64,
    top: f64,
    /// Whether the names of columns are slanted, because they would overlap.
    turned: bool,
    /// The numbers that colours and bars span.
    axis: Axis,
    width: f64,
    height: f64,
}

impl<'a> Plan<'a> {
    fn new(panel: &'a Panel) -> Self {
        let (queries, columns) = (panel.queries.len(), panel.columns.len());
        let fit = |room: f64, count: usize, largest: f64| {
            (room / count.max(1) as f64).clamp(SMALLEST, largest)
        };
        let is_map = panel.is_map();
        let tallest = if panel.curves.is_empty() {
            CELL.1
        } else {
            CURVED
        };
        let cell = match is_map {
            true => (fit(ROOM.0, columns, CELL.0), fit(ROOM.1, queries, tallest)),
            false => (fit(ROOM.0, columns, CELL.0), BARS),
        };
        let widest = |names: &[String]| {
            let widths = names.iter().map(|name| text_width(&visible(name), NAME));
            widths.fold(0.0, f64::max).min(NAME_ROOM)
        };
        let turned = widest(&panel.columns) > cell.0 - 4.0;
        // Above a map, below bars.
        let names = match turned {
            true => widest(&panel.columns) * 0.77 + 14.0, // at 50 degrees
            false => 18.0,
        };
        let values = panel.values().chain(panel.line);
        let curves = panel.curves.iter().flatten().map(|(_, value)| *value);
        let values = values.chain(curves.filter(|value| value.abs() <= LARGEST));
        let axis = match panel.shares {
            true => Axis::around(values.chain([1.0]), true, 4),
            false => Axis::around(values, true, 4),
        };
        let left = match is_map {
            true => widest(&panel.queries) + 12.0,
            false => {
                let ticks = axis
                    .ticks()
                    .into_iter()
                    .map(|tick| text_width(&axis.name(tick), 10.5));
                // The first slanted name reaches to the left of its bar.
                let name = match panel.columns.first() {
                    Some(name) if turned => {
                        0.64 * text_width(&visible(name), NAME).min(NAME_ROOM) - cell.0 / 2.0
                    }
                    _ => 0.0,
                };
                (ticks.fold(0.0, f64::max) + 10.0).max(name)
            }
        };
        let beside = if panel.beside > 0 { APART } else { 0.0 };
        // Slanted names of the last columns reach beyond their cells.
        let overhang = if turned && is_map {
            0.64 * widest(&panel.columns)
        } else {
            0.0
        };
        let cells = left + cell.0 * columns as f64 + beside + overhang;
        let title = (text_width(&visible(&panel.title), 14.0) * 1.08).min(ROOM.0);
        let width = cells
            .max(title)
            .max(if panel.is_matrix { 180.0 } else { 250.0 });
        let formula = wrapped(&panel.formula, FORMULA, width);
        let head = 22.0 + 16.0 * formula.len() as f64 + 8.0;
        let (top, height) = match is_map {
            true => (head + names, head + names + cell.1 * queries as f64 + 8.0),
            // Room for the number on the tallest bar, and for names below.
            false => (head + 16.0, head + 16.0 + BARS + names + 20.0),
        };
        Self {
            panel,
            formula,
            cell,
            left,
            top,
            turned,
            axis,
            width,
            height,
        }
    }

    fn draw(&self, out: &mut String, x: f64, y: f64) {
        open_group(out, x, y);
        let bold = Face::new(14.0, Anchor::Start).bold();
        text(
            out,
            0.0,
            14.0,
            bold,
            &shown(&self.panel.title, 14.0, self.width),
        );
        let faint = Face::new(FORMULA, Anchor::Start).faint();
        for (index, line) in self.formula.iter().enumerate() {
            words(out, 0.0, 32.0 + 16.0 * index as f64, faint, line);
        }
        match self.panel.is_map() {
            true => self.map(out),
            false => self.bars(out),
        }
        out.push_str("</g>\n");
    }

    /// The left edge of a column.
    fn column(&self, column: usize) -> f64 {
        let apart = if column >= self.panel.keys() {
            APART
        } else {
            0.0
        };
        self.left + column as f64 * self.cell.0 + apart
    }

    /// Where a position of the keys, counted from 0, stands.
    fn position(&self, position: f64) -> f64 {
        self.left + (position + 0.5) * self.cell.0
    }

    /// Whether a position lies over the keys.
    fn is_inside(&self, position: f64) -> bool {
        (-0.5..=self.panel.keys() as f64 - 0.5).contains(&position)
    }

    /// How far up the axis a value lies, from 0 to 1; NaN is drawn as the value 0.
    fn share(&self, value: f64) -> f64 {
        let value = if value.is_nan() { 0.0 } else { value };
        self.axis.place(value.clamp(self.axis.low, self.axis.high))
    }

    fn hover(&self, query: usize, column: usize) -> String {
        let value = match self.panel.cell(query, column) {
            Some(value) => number(value, DIGITS),
            None => "hidden".to_owned(),
        };
        let (query, column) = (&self.panel.queries[query], &self.panel.columns[column]);
        escape(&format!(
            "{} → {}: {value}",
            visible(query),
            visible(column)
        ))
    }

    /// The size at which the numbers of a panel fit into its cells; none if they would be too small to read.
    fn size(&self) -> Option<f64> {
        let cells = self.panel.cells.iter().flatten().flatten();
        let numbers = cells.map(|value| text_width(&number(*value, DIGITS), 1.0));
        let widest = numbers.fold(0.3, f64::max);
        let size = ((self.cell.0 - 4.0) / widest)
            .min(0.6 * self.cell.1)
            .min(NUMBER);
        (size >= 7.5).then_some(size)
    }

    fn column_names(&self, out: &mut String, y: f64, below: bool) {
        // In columns narrower than a line of text the names would cover each other, so some are left out.
        let every = (NAME * 1.1 / self.cell.0).ceil().max(1.0) as usize;
        for (column, name) in self.panel.columns.iter().enumerate() {
            if column % every > 0 && column < self.panel.keys() {
                continue;
            }
            let mut face = Face::new(NAME, Anchor::Middle);
            let mut x = self.column(column) + self.cell.0 / 2.0;
            if self.turned {
                (face.anchor, face.turn) = match below {
                    true => (Anchor::End, -50.0),
                    false => (Anchor::Start, -50.0),
                };
                x += if below { 4.0 } else { -1.0 };
            }
            if column >= self.panel.keys() {
                face = face.faint();
            }
            let y = if self.turned && below { y - 4.0 } else { y };
            text(out, x, y, face, &shown(name, NAME, NAME_ROOM));
        }
    }

    fn map(&self, out: &mut String) {
        let (w, h) = self.cell;
        self.column_names(out, self.top - 6.0, false);
        let every = (NAME * 1.1 / h).ceil().max(1.0) as usize;
        for (query, name) in self.panel.queries.iter().enumerate().step_by(every) {
            let y = self.top + (query as f64 + 0.5) * h + 0.35 * NAME;
            let face = Face::new(NAME, Anchor::End);
            text(out, self.left - 8.0, y, face, &shown(name, NAME, NAME_ROOM));
        }
        let size = self.size();
        let gap = if w.min(h) >= 14.0 { 1.5 } else { 0.5 };
        for query in 0..self.panel.queries.len() {
            let y = self.top + query as f64 * h;
            for column in 0..self.panel.columns.len() {
                let value = self.panel.cell(query, column);
                let x = self.column(column);
                let colour = value.map(|value| self.colour(value));
                let (class, fill) = match colour {
                    Some(colour) => ("cell", colour.to_string()),
                    None => ("hidden", "url(#hatch)".to_owned()),
                };
                let _ = writeln!(
                    out,
                    r#"<rect class="{class}" x="{}" y="{}" width="{}" height="{}" rx="2" fill="{fill}"><title>{}</title></rect>"#,
                    coordinate(x),
                    coordinate(y),
                    coordinate(w - gap),
                    coordinate(h - gap),
                    self.hover(query, column),
                );
                if let (Some(value), Some(colour), Some(size)) = (value, colour, size) {
                    let down = if self.panel.curves.is_empty() {
                        h / 2.0 + 0.35 * size
                    } else {
                        size + 2.0
                    };
                    let ink = colour.ink();
                    let _ = writeln!(
                        out,
                        r#"<text x="{}" y="{}" font-size="{}" text-anchor="middle" fill="{ink}">{}</text>"#,
                        coordinate(x + (w - gap) / 2.0),
                        coordinate(y + down),
                        coordinate(size),
                        number(value, DIGITS),
                    );
                }
            }
            // A curve stays below the numbers.
            let high = h - gap - size.unwrap_or(0.0) - 6.0;
            self.curve(out, query, y + h - gap, high.max(0.0));
        }
    }

    fn colour(&self, value: f64) -> Rgb {
        let most = self.axis.high.max(-self.axis.low);
        let share = (value / most) as f32;
        match (self.panel.shares, value < 0.0) {
            (_, true) => {
                Rgb(0xf4, 0xf6, 0xf9).mix(Rgb(0xc8, 0x74, 0x3a), 0.6 * share.abs().min(1.0))
            }
            (true, false) => Ramp::PAPER.at(share),
            // Scores are paler than weights, which are the result.
            (false, false) => Ramp::PAPER.at(0.5 * share),
        }
    }

    /// The curve and the marks of a query, standing on `bottom` and `high` pixels tall.
    fn curve(&self, out: &mut String, query: usize, bottom: f64, high: f64) {
        if let Some(points) = self.panel.curves.get(query) {
            let mut way = String::new();
            for (index, &(position, value)) in points.iter().enumerate() {
                let sign = if index == 0 { 'M' } else { 'L' };
                let (x, y) = (self.position(position), bottom - high * self.share(value));
                let _ = write!(way, "{sign}{} {}", coordinate(x), coordinate(y));
            }
            let _ = writeln!(
                out,
                r#"<path class="curve" d="{way}" stroke="{CURVE}" stroke-width="1.8" fill="none"/>"#
            );
        }
        for &position in self.panel.marks.get(query).into_iter().flatten() {
            if self.is_inside(position) {
                let x = self.position(position);
                let _ = writeln!(
                    out,
                    r#"<path class="mark" d="M{} {}l5 9h-10z" fill="{CURVE}" stroke="white" stroke-width="0.8"/>"#,
                    coordinate(x),
                    coordinate(bottom - 8.0),
                );
            }
        }
    }

    fn bars(&self, out: &mut String) {
        let (w, high) = self.cell;
        let bottom = self.top + high;
        let at = |value: f64| bottom - high * self.share(value);
        let end = self.column(self.panel.columns.len().max(1) - 1) + w;
        for tick in self.axis.ticks() {
            let y = at(tick);
            let _ = writeln!(
                out,
                r##"<path d="M{} {y}H{}" stroke="{}" stroke-width="1"/>"##,
                coordinate(self.left),
                coordinate(end),
                if tick.abs() < self.axis.step * 1e-6 {
                    FAINT
                } else {
                    "#e3e8ef"
                },
                y = coordinate(y),
            );
            let face = Face::new(10.5, Anchor::End).faint();
            words(out, self.left - 6.0, y + 3.6, face, &self.axis.name(tick));
        }
        let inset = 0.14 * w;
        for column in 0..self.panel.columns.len() {
            let x = self.column(column) + inset;
            let hover = self.hover(0, column);
            let Some(value) = self.panel.cell(0, column) else {
                let _ = writeln!(
                    out,
                    r#"<rect class="hidden" x="{}" y="{}" width="{}" height="{}" rx="2" fill="url(#hatch)"><title>{hover}</title></rect>"#,
                    coordinate(x),
                    coordinate(self.top),
                    coordinate(w - 2.0 * inset),
                    coordinate(high),
                );
                continue;
            };
            let (zero, tip) = (at(0.0), at(value));
            let fill = match (column >= self.panel.keys(), value < 0.0) {
                (true, _) => OTHER,
                (_, true) => BELOW,
                _ => BAR,
            };
            let _ = writeln!(
                out,
                r#"<rect class="bar" x="{}" y="{}" width="{}" height="{}" rx="1.5" fill="{fill}"><title>{hover}</title></rect>"#,
                coordinate(x),
                coordinate(zero.min(tip)),
                coordinate(w - 2.0 * inset),
                coordinate((zero - tip).abs()),
            );
        }
        self.curve(out, 0, bottom, high);
        if let Some(value) = self.panel.line {
            let _ = writeln!(
                out,
                r#"<path class="line" d="M{} {y}H{}" stroke="{CURVE}" stroke-width="1.5" stroke-dasharray="5 3"/>"#,
                coordinate(self.left),
                coordinate(end),
                y = coordinate(at(value)),
            );
        }
        if let Some(size) = self.size() {
            // A white outline keeps a number readable in front of lines.
            out.push_str(r##"<g stroke="#ffffff" stroke-width="3" stroke-linejoin="round" paint-order="stroke">"##);
            for column in 0..self.panel.columns.len() {
                let Some(value) = self.panel.cell(0, column) else {
                    continue;
                };
                let aside = if value < 0.0 { size + 1.0 } else { -4.0 };
                let middle = self.column(column) + self.cell.0 / 2.0;
                let face = Face::new(size, Anchor::Middle);
                words(out, middle, at(value) + aside, face, &number(value, DIGITS));
            }
            out.push_str("</g>\n");
        }
        // Numbers of bars below 0 stand under their tips.
        let y = bottom + if self.axis.low < 0.0 { 32.0 } else { 18.0 };
        self.column_names(out, y, true);
    }
}
