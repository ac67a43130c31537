//! A line chart as SVG: BLEU against source length, losses against steps.
//!
//! Series differ in colour (Okabe and Ito 2008, safe for the colour-blind) and in marker, so that
//! the picture also works in grey; after the eighth, colours come again with other markers and with dashes.
//! Points may carry an interval, drawn as a bar. For a PNG, pass the
//! result to [`png::from_svg`](crate::png::from_svg); for a terminal there is [`Chart::text`].
//!
//! ```
//! use regard_view::chart::{Chart, Point, Series};
//!
//! let points = vec![Point::new(10.0, 39.1).between(37.5, 40.7), Point::new(20.0, 38.2)];
//! let svg = Chart::new("BLEU by source length", "words", "BLEU")
//!     .with(Series::new("rnnsearch", points))
//!     .y_from_zero()
//!     .svg();
//! assert!(svg.contains("rnnsearch") && svg.contains(">40</text>"));
//! ```

mod text;
pub(crate) mod ticks;

use std::fmt::Write;

use crate::colour::{CATEGORIES, Rgb, category};
use crate::label::visible;
use crate::svg::xml::{
    Anchor, FAINT, Face, Shown, coordinate, escape, open, open_group, shown, text, text_width,
    words,
};
use ticks::Axis;

/// One point of a series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Place along the horizontal axis.
    pub x: f64,
    /// Value. A value that is not finite leaves a gap in the line.
    pub y: f64,
    /// The interval around the value, lower and upper end, if there is one.
    pub interval: Option<(f64, f64)>,
}

impl Point {
    /// A point without an interval.
    pub fn new(x: f64, y: f64) -> Self {
        Self {
            x,
            y,
            interval: None,
        }
    }

    /// The same point with an interval, such as the 95 % confidence interval of the value.
    pub fn between(self, low: f64, high: f64) -> Self {
        Self {
            interval: Some((low, high)),
            ..self
        }
    }

    /// Whether it can be drawn: finite, and so far from the limits of `f64` that differences are finite too.
    fn is_drawable(&self) -> bool {
        drawable(self.x) && drawable(self.y)
    }

    fn drawable_interval(&self) -> Option<(f64, f64)> {
        self.interval
            .filter(|&(low, high)| drawable(low) && drawable(high))
    }
}

fn drawable(value: f64) -> bool {
    value.abs() < 1e150
}

/// A line with a name.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// What the legend calls it.
    pub name: String,
    /// The points, in the order in which the line connects them.
    pub points: Vec<Point>,
    /// Whether a line connects them. It says that something lies between two points; between two mechanisms nothing does.
    pub connected: bool,
}

impl Series {
    /// A line with a name.
    pub fn new(name: impl Into<String>, points: Vec<Point>) -> Self {
        Self {
            name: name.into(),
            points,
            connected: true,
        }
    }

    /// The same points without a line.
    pub fn apart(self) -> Self {
        Self {
            connected: false,
            ..self
        }
    }

    fn is_marked(&self) -> bool {
        !self.connected || self.points.len() < MARKED_POINTS
    }
}

/// A chart of one or several series.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    title: String,
    x_label: String,
    y_label: String,
    series: Vec<Series>,
    x_names: Vec<(f64, String)>,
    y_from_zero: bool,
    size: (f64, f64),
}

/// Charts below each other, as one standalone SVG.
///
/// ```
/// use regard_view::chart::{Chart, stacked};
///
/// let svg = stacked(&[Chart::new("loss", "", ""), Chart::new("accuracy", "", "")]);
/// assert!(svg.contains("loss") && svg.contains("accuracy") && svg.contains("height=\"920\""));
/// ```
pub fn stacked(charts: &[Chart]) -> String {
    if let [single] = charts {
        return single.svg();
    }
    let width = charts.iter().map(|chart| chart.size.0).fold(0.0, f64::max);
    let height = charts.iter().map(Chart::height).sum();
    let titles: Vec<&str> = charts.iter().map(|chart| chart.title.as_str()).collect();
    let mut out = String::new();
    open(&mut out, width, height, &titles.join(", "), "charts");
    let mut y = 0.0;
    for chart in charts {
        open_group(&mut out, 0.0, y);
        chart.draw(&mut out);
        out.push_str("</g>\n");
        y += chart.height();
    }
    out.push_str("</svg>\n");
    out
}

/// Series of this many points or more have no markers, which would hide the line.
const MARKED_POINTS: usize = 60;

impl Chart {
    /// A chart without lines, 760 x 460 pixels; higher if title and legend would leave the plot less than half of that.
    pub fn new(
        title: impl Into<String>,
        x_label: impl Into<String>,
        y_label: impl Into<String>,
    ) -> Self {
        Self {
            title: title.into(),
            x_label: x_label.into(),
            y_label: y_label.into(),
            series: Vec::new(),
            x_names: Vec::new(),
            y_from_zero: false,
            size: (760.0, 460.0),
        }
    }

    /// The same chart with one more line.
    pub fn with(mut self, series: Series) -> Self {
        self.series.push(series);
        self
    }

    /// The same chart with names at places of the horizontal axis instead of round numbers, such as
    /// `(15.0, "11-20")` for a bucket of lengths.
    pub fn x_names(mut self, names: impl IntoIterator<Item = (f64, String)>) -> Self {
        self.x_names = names.into_iter().filter(|name| drawable(name.0)).collect();
        self
    }

    /// The same chart with 0 on its vertical axis.
    pub fn y_from_zero(self) -> Self {
        Self {
            y_from_zero: true,
            ..self
        }
    }

    /// The same chart in another size, in pixels; at least 240 x 180. It becomes higher as in [`new`](Self::new).
    pub fn sized(self, width: u32, height: u32) -> Self {
        let size = (f64::from(width.max(240)), f64::from(height.max(180)));
        Self { size, ..self }
    }

    /// The chart as a standalone SVG on white ground.
    pub fn svg(&self) -> String {
        let mut out = String::new();
        open(&mut out, self.size.0, self.height(), &self.title, "chart");
        self.draw(&mut out);
        out.push_str("</svg>\n");
        out
    }

    fn height(&self) -> f64 {
        let (_, top) = self.legend();
        (self.size.1).max(top + self.size.1 / 2.0 + self.below())
    }

    /// The room that the horizontal axis takes below the plot.
    fn below(&self) -> f64 {
        if self.x_label.is_empty() { 34.0 } else { 56.0 }
    }

    fn draw(&self, out: &mut String) {
        if !self.title.is_empty() {
            let face = Face::new(16.0, Anchor::Start).bold();
            text(
                out,
                20.0,
                30.0,
                face,
                &shown(&self.title, 16.0, self.size.0 - 40.0),
            );
        }
        let (entries, top) = self.legend();
        for (index, (series, (x, y, label))) in self.series.iter().zip(&entries).enumerate() {
            let look = Look::of(index);
            let _ = writeln!(
                out,
                r#"<path d="M{} {}h22" stroke="{}" stroke-width="2"{} fill="none"/>"#,
                coordinate(*x),
                coordinate(y - 4.5),
                look.colour,
                look.dashes
            );
            if series.is_marked() {
                marker(out, look, x + 11.0, y - 4.5, None);
            }
            text(out, x + 30.0, *y, Face::new(13.0, Anchor::Start), label);
        }
        self.plot(out, top);
    }

    /// The legend below the title, in as many lines as it needs: where each entry begins, on its base line, with its name; and where
    /// the plot begins.
    fn legend(&self) -> (Vec<(f64, f64, Shown)>, f64) {
        let top = if self.title.is_empty() { 16.0 } else { 42.0 };
        if self.series.len() < 2 && self.series.first().is_none_or(|s| s.name.is_empty()) {
            return (Vec::new(), top + 14.0);
        }
        let mut entries = Vec::with_capacity(self.series.len());
        let (mut x, mut y) = (20.0, top + 12.0);
        for series in &self.series {
            let label = shown(&series.name, 13.0, self.size.0 - 90.0);
            let width = 30.0 + text_width(&label.text, 13.0) + 22.0;
            if x > 20.0 && x + width > self.size.0 - 20.0 {
                (x, y) = (20.0, y + 20.0);
            }
            entries.push((x, y, label));
            x += width;
        }
        (entries, y + 20.0)
    }

    fn points(&self) -> impl Iterator<Item = &Point> {
        self.series
            .iter()
            .flat_map(|s| &s.points)
            .filter(|p| p.is_drawable())
    }

    /// The horizontal axis, in about `across` steps, and the vertical axis, in about `up` steps.
    fn axes(&self, across: usize, up: usize) -> (Axis, Axis) {
        let ends = self.points().flat_map(|p| {
            let (low, high) = p.drawable_interval().unwrap_or((p.y, p.y));
            [p.y, low, high]
        });
        let y_axis = Axis::around(ends, self.y_from_zero, up);
        let xs = || {
            let names = self.x_names.iter().map(|name| name.0);
            self.points().map(|p| p.x).chain(names)
        };
        let mut x_axis = Axis::around(xs(), false, across);
        if !self.x_names.is_empty() {
            // An axis with names need not end at round numbers, but needs room for the outer names.
            let (low, high) = (
                xs().fold(f64::INFINITY, f64::min),
                xs().fold(f64::NEG_INFINITY, f64::max),
            );
            let pad = if high > low { (high - low) * 0.06 } else { 1.0 };
            (x_axis.low, x_axis.high) = (low - pad, high + pad);
        }
        (x_axis, y_axis)
    }

    fn plot(&self, out: &mut String, top: f64) {
        let (x_axis, y_axis) = self.axes(8, 5);
        let y_ticks = y_axis.ticks();
        let names: Vec<String> = y_ticks.iter().map(|&tick| y_axis.name(tick)).collect();
        let numbers = names
            .iter()
            .map(|name| text_width(name, 12.0))
            .fold(0.0, f64::max);
        let left = 20.0 + if self.y_label.is_empty() { 0.0 } else { 20.0 } + numbers + 10.0;
        let right = self.size.0 - 24.0;
        let height = self.height();
        let bottom = height - self.below();
        let frame = Frame {
            x_axis,
            y_axis,
            left,
            right,
            top,
            bottom,
        };

        for (tick, name) in y_ticks.iter().zip(&names) {
            let y = frame.y(*tick);
            let _ = writeln!(
                out,
                r##"<path d="M{} {}H{}" stroke="#e3e8ef" fill="none"/>"##,
                coordinate(left),
                coordinate(y),
                coordinate(right)
            );
            words(
                out,
                left - 8.0,
                y + 4.0,
                Face::new(12.0, Anchor::End).faint(),
                name,
            );
        }
        self.x_ticks(out, &frame);
        let _ = writeln!(
            out,
            r#"<path d="M{} {}H{}" stroke="{FAINT}" fill="none"/>"#,
            coordinate(left),
            coordinate(bottom),
            coordinate(right)
        );
        let middle = Face::new(13.0, Anchor::Middle);
        if !self.x_label.is_empty() {
            let label = shown(&self.x_label, 13.0, right - left);
            text(out, (left + right) / 2.0, height - 16.0, middle, &label);
        }
        if !self.y_label.is_empty() {
            let label = shown(&self.y_label, 13.0, bottom - top);
            text(
                out,
                26.0,
                (top + bottom) / 2.0,
                Face {
                    turn: -90.0,
                    ..middle
                },
                &label,
            );
        }
        if self.points().next().is_none() {
            words(
                out,
                (left + right) / 2.0,
                (top + bottom) / 2.0,
                middle.faint(),
                "no data",
            );
        }
        // Bars of several series at the same place would hide each other.
        let bars = self
            .points()
            .any(|point| point.drawable_interval().is_some());
        let spread = if bars { 6.0 } else { 0.0 };
        for (index, series) in self.series.iter().enumerate() {
            let aside = (index as f64 - (self.series.len() as f64 - 1.0) / 2.0) * spread;
            line(out, Look::of(index), series, &frame, aside);
        }
    }

    /// The marks of the horizontal axis: their places and texts.
    fn x_marks(&self, axis: &Axis) -> Vec<(f64, String)> {
        if self.x_names.is_empty() {
            let ticks = axis.ticks();
            return ticks.iter().map(|&tick| (tick, axis.name(tick))).collect();
        }
        let names = self.x_names.iter();
        names.map(|(x, name)| (*x, visible(name))).collect()
    }

    fn x_ticks(&self, out: &mut String, frame: &Frame) {
        let ticks = self.x_marks(&frame.x_axis);
        let mut free = f64::NEG_INFINITY;
        for (tick, name) in ticks {
            let x = frame.x(tick);
            let _ = writeln!(
                out,
                r#"<path d="M{} {}v5" stroke="{FAINT}" fill="none"/>"#,
                coordinate(x),
                coordinate(frame.bottom)
            );
            let half = text_width(&name, 12.0) / 2.0;
            if x - half >= free {
                words(
                    out,
                    x,
                    frame.bottom + 19.0,
                    Face::new(12.0, Anchor::Middle).faint(),
                    &name,
                );
                free = x + half + 6.0;
            }
        }
    }
}

/// Where the plot stands, and its axes.
struct Frame {
    x_axis: Axis,
    y_axis: Axis,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl Frame {
    fn x(&self, value: f64) -> f64 {
        self.left + (self.right - self.left) * self.x_axis.place(value)
    }

    fn y(&self, value: f64) -> f64 {
        self.bottom - (self.bottom - self.top) * self.y_axis.place(value)
    }
}

/// By what a series is told from the others.
#[derive(Clone, Copy)]
struct Look {
    colour: Rgb,
    /// Which of four markers.
    marker: usize,
    /// Whether the marker is an outline.
    hollow: bool,
    /// An attribute of its line, empty for one without gaps.
    dashes: &'static str,
}

impl Look {
    /// That of series number `index`. Each time that the colours begin anew, markers and dashes are others: of marked lines 192 look
    /// different, of lines without markers 48, of markers without lines 64.
    fn of(index: usize) -> Self {
        const DASHES: [&str; 6] = [
            "",
            r#" stroke-dasharray="9 5""#,
            r#" stroke-dasharray="2 4""#,
            r#" stroke-dasharray="9 4 2 4""#,
            r#" stroke-dasharray="16 5""#,
            r#" stroke-dasharray="9 4 2 4 2 4""#,
        ];
        let round = index / CATEGORIES;
        Self {
            colour: category(index),
            marker: (index + round) % 4,
            hollow: round / 4 % 2 == 1,
            dashes: DASHES[round % DASHES.len()],
        }
    }
}

/// Draws one series, moved sideways by `aside` pixels.
fn line(out: &mut String, look: Look, series: &Series, frame: &Frame, aside: f64) {
    let Look { colour, dashes, .. } = look;
    let mut path = String::new();
    let mut connected = false;
    let mut bars = String::new();
    for point in &series.points {
        if !point.is_drawable() {
            connected = false;
            continue;
        }
        let (x, y) = (
            coordinate(frame.x(point.x) + aside),
            coordinate(frame.y(point.y)),
        );
        let _ = write!(path, "{}{x} {y}", if connected { "L" } else { "M" });
        connected = true;
        if let Some((low, high)) = point.drawable_interval() {
            let left = coordinate(frame.x(point.x) + aside - 4.0);
            let (low, high) = (coordinate(frame.y(low)), coordinate(frame.y(high)));
            let _ = write!(bars, "M{x} {low}V{high}M{left} {low}h8M{left} {high}h8");
        }
    }
    if !bars.is_empty() {
        let _ = writeln!(
            out,
            r#"<path d="{bars}" stroke="{colour}" stroke-opacity="0.55" fill="none"/>"#
        );
    }
    if series.connected && !path.is_empty() {
        let _ = writeln!(
            out,
            r#"<path d="{path}" stroke="{colour}" stroke-width="2"{dashes} stroke-linejoin="round" fill="none"/>"#
        );
    }
    if series.is_marked() {
        for point in series.points.iter().filter(|p| p.is_drawable()) {
            let hover = format!("{}: {}, {}", visible(&series.name), point.x, point.y);
            marker(
                out,
                look,
                frame.x(point.x) + aside,
                frame.y(point.y),
                Some(&hover),
            );
        }
    }
}

fn marker(out: &mut String, look: Look, x: f64, y: f64, hover: Option<&str>) {
    let at = |dx: f64, dy: f64| format!("{} {}", coordinate(x + dx), coordinate(y + dy));
    let path = match look.marker {
        0 => format!("M{}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z", at(-4.0, 0.0)),
        1 => format!("M{}h7v7h-7z", at(-3.5, -3.5)),
        2 => format!("M{}L{}L{}z", at(0.0, -4.8), at(4.6, 3.4), at(-4.6, 3.4)),
        _ => format!(
            "M{}L{}L{}L{}z",
            at(0.0, -5.0),
            at(5.0, 0.0),
            at(0.0, 5.0),
            at(-5.0, 0.0)
        ),
    };
    let white = Rgb(0xff, 0xff, 0xff);
    let (fill, edge, width) = match look.hollow {
        true => (white, look.colour, 1.5),
        false => (look.colour, white, 1.0),
    };
    let _ = write!(
        out,
        r#"<path d="{path}" fill="{fill}" stroke="{edge}" stroke-width="{width}""#
    );
    match hover {
        Some(hover) => {
            let _ = writeln!(out, "><title>{}</title></path>", escape(hover));
        }
        None => out.push_str("/>\n"),
    }
}
