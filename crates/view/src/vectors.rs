//! Vectors as arrows: of two numbers in a plane, of three in space.
//!
//! A plane is seen from above. Space is seen from in front of its corner, without perspective, so that equal lengths along an axis
//! are equal on paper. From each tip a dashed plumb line leads to a dot on the floor: without it, a flat picture would
//! leave one of the three numbers open.
//!
//! `p = (r·v, u·v)`, `r = (-sin φ, cos φ, 0)`, `u = (-sin θ cos φ, -sin θ sin φ, cos θ)`, azimuth `φ`, elevation `θ`.
//!
//! ```
//! use regard_view::vectors::{Arrow, Vectors};
//!
//! let svg = Vectors::new("words")
//!     .with(Arrow::new("hello", [0.71, 0.14, 0.51]))
//!     .with(Arrow::new("tomato", [0.16, 0.59, 0.49]))
//!     .caption("hello · tomato = 0.4461")
//!     .svg();
//! assert!(svg.contains(">hello</tspan>") && svg.contains("0.4461"));
//! ```

use std::fmt::Write;

use crate::chart::ticks::{Axis, drawn};
use crate::label::visible;
use crate::svg::xml::{
    Anchor, FAINT, Face, INK, coordinate, escape, open, shown, text, text_width, words,
};

/// A vector with a name.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrow {
    /// What stands at its tip.
    pub name: String,
    /// Its three numbers. An arrow with a number that is not finite is left out.
    pub vector: [f64; 3],
    /// Whether it is a query, drawn dark, rather than one of the keys.
    pub emphasis: bool,
    /// Whether it was given by two numbers: two are written at its tip, and in space it lies on the floor.
    pub flat: bool,
}

impl Arrow {
    /// An arrow; its colour follows from its place in the list.
    pub fn new(name: impl Into<String>, vector: [f64; 3]) -> Self {
        Self {
            name: name.into(),
            vector,
            emphasis: false,
            flat: false,
        }
    }

    /// An arrow of two numbers. A picture of such arrows alone is a plane.
    pub fn flat(name: impl Into<String>, [x, y]: [f64; 2]) -> Self {
        Self {
            flat: true,
            ..Self::new(name, [x, y, 0.0])
        }
    }

    /// The numbers it was given by.
    fn given(&self) -> &[f64] {
        match self.flat {
            true => &self.vector[..2],
            false => &self.vector,
        }
    }

    /// The same arrow in the dark colour of the text, for a query among its keys.
    pub fn emphasized(self) -> Self {
        Self {
            emphasis: true,
            ..self
        }
    }
}

/// A picture of arrows.
#[derive(Clone, Debug, PartialEq)]
pub struct Vectors {
    title: String,
    arrows: Vec<Arrow>,
    captions: Vec<String>,
}

/// Colours that colour-blind people can tell apart too (Okabe and Ito 2008).
const COLOURS: [&str; 6] = [
    "#0072b2", "#009e73", "#d55e00", "#cc79a7", "#8a6d00", "#56b4e9",
];

/// Degrees around the upright axis, and above the floor.
const AZIMUTH: f64 = 33.0;
const ELEVATION: f64 = 22.0;

/// The square into which the space is fitted, and the room around it for names.
const ROOM: f64 = 430.0;
const SIDE: f64 = 150.0;

/// Largest number drawn: squares of larger ones leave the range of `f64`.
const LARGEST: f64 = 1e100;

impl Vectors {
    /// A picture without arrows.
    pub fn new(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            arrows: Vec::new(),
            captions: Vec::new(),
        }
    }

    /// The same picture with one more arrow.
    pub fn with(mut self, arrow: Arrow) -> Self {
        self.arrows.push(arrow);
        self
    }

    /// The same picture with one more line of text below.
    pub fn caption(mut self, text: impl Into<String>) -> Self {
        self.captions.push(text.into());
        self
    }

    /// Pixels across the picture.
    pub(crate) const WIDTH: f64 = ROOM + 2.0 * SIDE;

    /// The picture as a standalone SVG on white ground.
    pub fn svg(&self) -> String {
        let mut body = String::new();
        let height = self.draw(&mut body);
        let mut out = String::new();
        open(&mut out, Self::WIDTH, height, &self.title, "vectors");
        out.push_str(&body);
        out.push_str("</svg>\n");
        out
    }

    /// Everything inside the document; gives its height.
    pub(crate) fn draw(&self, out: &mut String) -> f64 {
        let arrows: Vec<(&Arrow, &str)> = self
            .arrows
            .iter()
            .filter(|arrow| arrow.vector.iter().all(|x| x.abs() <= LARGEST))
            .enumerate()
            .map(|(index, arrow)| match arrow.emphasis {
                true => (arrow, INK),
                false => (arrow, COLOURS[index % COLOURS.len()]),
            })
            .collect();
        let top = if self.title.is_empty() { 24.0 } else { 62.0 };
        let flat = !arrows.is_empty() && arrows.iter().all(|(arrow, _)| arrow.flat);
        let vectors = arrows.iter().map(|(arrow, _)| arrow.vector.map(drawn));
        let space = Space::around(vectors, flat, top);
        let bottom = space.bottom + if flat { 66.0 } else { 52.0 };
        let bold = Face::new(17.0, Anchor::Start).bold();
        let room = Self::WIDTH - 48.0;
        if !self.title.is_empty() {
            text(out, 24.0, 34.0, bold, &shown(&self.title, 17.0, room));
        }
        space.draw(out);
        if !flat {
            for (arrow, colour) in &arrows {
                space.shadow(out, arrow.vector, colour);
            }
        }
        // Arrows further from the eye are drawn first.
        let mut order: Vec<_> = arrows.iter().collect();
        order.sort_by(|a, b| space.depth(a.0.vector).total_cmp(&space.depth(b.0.vector)));
        for (arrow, colour) in order {
            space.arrow(out, arrow, colour);
        }
        labels(out, &space, &arrows, Self::WIDTH);
        for (index, caption) in self.captions.iter().enumerate() {
            let y = bottom + 20.0 * index as f64;
            let face = Face::new(14.0, Anchor::Middle);
            text(out, Self::WIDTH / 2.0, y, face, &shown(caption, 14.0, room));
        }
        bottom + 20.0 * self.captions.len() as f64 + 14.0
    }
}

/// The box around the arrows, and where it stands on paper.
struct Space {
    axes: [Axis; 3],
    /// The directions to the right and up on paper, and towards the eye.
    directions: [[f64; 3]; 3],
    /// Whether the floor alone is drawn, seen from above.
    flat: bool,
    scale: f64,
    offset: (f64, f64),
    bottom: f64,
}

fn directions(flat: bool) -> [[f64; 3]; 3] {
    if flat {
        return [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]];
    }
    let (phi, theta) = (AZIMUTH.to_radians(), ELEVATION.to_radians());
    [
        [-phi.sin(), phi.cos(), 0.0],
        [
            -theta.sin() * phi.cos(),
            -theta.sin() * phi.sin(),
            theta.cos(),
        ],
        [
            theta.cos() * phi.cos(),
            theta.cos() * phi.sin(),
            theta.sin(),
        ],
    ]
}

fn dot(a: [f64; 3], b: [f64; 3]) -> f64 {
    a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
}

impl Space {
    /// All axes have the same step, so that lengths can be compared.
    fn around(vectors: impl Iterator<Item = [f64; 3]>, flat: bool, top: f64) -> Self {
        let vectors: Vec<[f64; 3]> = vectors.collect();
        let all = Axis::around(vectors.iter().flatten().copied(), true, 4);
        let axes = [0, 1, 2].map(|i| {
            let values = || vectors.iter().map(|vector| vector[i]).chain([0.0]);
            let (low, high) = (
                values().fold(0.0, f64::min) / all.step,
                values().fold(0.0, f64::max) / all.step,
            );
            let low = (low - 1e-9).ceil().min((low + 1e-9).floor());
            let high = (high - 1e-9).ceil().max(low + 1.0);
            Axis {
                low: low * all.step,
                high: high * all.step,
                step: all.step,
            }
        });
        let mut space = Self {
            axes,
            directions: directions(flat),
            flat,
            scale: 1.0,
            offset: (0.0, 0.0),
            bottom: 0.0,
        };
        let corners: Vec<(f64, f64)> = (0..8)
            .map(|corner| {
                let end = |i: usize| match corner >> i & 1 {
                    0 => space.axes[i].low,
                    _ => space.axes[i].high,
                };
                space.place([end(0), end(1), end(2)])
            })
            .collect();
        let range = |of: fn(&(f64, f64)) -> f64| {
            let values = corners.iter().map(of);
            (
                values.clone().fold(f64::INFINITY, f64::min),
                values.fold(f64::NEG_INFINITY, f64::max),
            )
        };
        let ((left, right), (upper, lower)) = (range(|c| c.0), range(|c| c.1));
        space.scale = (ROOM / (right - left)).min(ROOM / (lower - upper));
        let across = (right + left) / 2.0 * space.scale;
        space.offset = (ROOM / 2.0 + SIDE - across, top - upper * space.scale);
        space.bottom = top + (lower - upper) * space.scale;
        space
    }

    fn place(&self, vector: [f64; 3]) -> (f64, f64) {
        let [right, up, _] = self.directions;
        (
            self.offset.0 + self.scale * dot(right, vector),
            self.offset.1 - self.scale * dot(up, vector),
        )
    }

    fn depth(&self, vector: [f64; 3]) -> f64 {
        dot(self.directions[2], vector)
    }

    /// The corner where the walls meet, with some coordinates changed.
    fn corner(&self, changes: &[(usize, f64)]) -> (f64, f64) {
        let mut point = [0, 1, 2].map(|i| self.axes[i].low);
        for &(axis, value) in changes {
            point[axis] = value;
        }
        self.place(point)
    }

    fn draw(&self, out: &mut String) {
        let high = |i: usize| self.axes[i].high;
        let sides = [(0, 1, "#f1f4f8"), (0, 2, "#f8fafc"), (1, 2, "#f8fafc")];
        let sides = if self.flat { &sides[..1] } else { &sides[..] };
        for &(a, b, fill) in sides {
            let points = [
                self.corner(&[]),
                self.corner(&[(a, high(a))]),
                self.corner(&[(a, high(a)), (b, high(b))]),
                self.corner(&[(b, high(b))]),
            ];
            let _ = writeln!(out, r#"<path d="{}z" fill="{fill}"/>"#, way(&points));
            let mut lines = String::new();
            for (along, across) in [(a, b), (b, a)] {
                for tick in self.axes[along].ticks() {
                    lines.push_str(&way(&[
                        self.corner(&[(along, tick)]),
                        self.corner(&[(along, tick), (across, high(across))]),
                    ]));
                }
            }
            let _ = writeln!(
                out,
                r##"<path d="{lines}" stroke="#dde3eb" stroke-width="1" fill="none"/>"##
            );
        }
        if self.flat {
            self.axis(out, 0, (1, self.axes[1].low), (0.0, 17.0), Anchor::Middle);
            self.axis(out, 1, (0, self.axes[0].low), (-9.0, 4.0), Anchor::End);
            return;
        }
        self.axis(out, 0, (1, high(1)), (8.0, 17.0), Anchor::Start);
        self.axis(out, 1, (0, high(0)), (-8.0, 17.0), Anchor::End);
        self.axis(out, 2, (0, high(0)), (-9.0, 4.0), Anchor::End);
    }

    /// An axis with its numbers, along the edge where coordinate `at.0` is `at.1`.
    fn axis(
        &self,
        out: &mut String,
        axis: usize,
        at: (usize, f64),
        aside: (f64, f64),
        anchor: Anchor,
    ) {
        let ends =
            [self.axes[axis].low, self.axes[axis].high].map(|end| self.corner(&[at, (axis, end)]));
        let _ = writeln!(
            out,
            r#"<path d="{}" stroke="{FAINT}" stroke-width="1.2" fill="none"/>"#,
            way(&ends)
        );
        let ticks = self.axes[axis].ticks();
        let face = Face::new(11.5, anchor).faint();
        for (index, &tick) in ticks.iter().enumerate() {
            let (x, y) = self.corner(&[at, (axis, tick)]);
            // The floor's axes meet in front; one number there is enough.
            if axis == 2 && index == 0 {
                continue;
            }
            words(
                out,
                x + aside.0,
                y + aside.1,
                face,
                &self.axes[axis].name(tick),
            );
        }
        let middle = ((ends[0].0 + ends[1].0) / 2.0, (ends[0].1 + ends[1].1) / 2.0);
        let upright = self.directions[1][axis] > 0.9;
        let down = if upright { 4.0 } else { 2.2 * aside.1 };
        let (x, y) = match (self.flat, axis) {
            (false, _) => (middle.0 + 3.6 * aside.0, middle.1 + down),
            // At the far ends of the axes, where no tip can lie beyond the name.
            (true, 0) => (ends[1].0, ends[1].1 + 36.0),
            (true, _) => (ends[1].0, ends[1].1 - 12.0),
        };
        let name = Face::new(13.0, anchor).faint().bold();
        words(out, x, y, name, ["x", "y", "z"][axis]);
    }

    /// The plumb line from a tip, the dot on the floor, and the line on the floor from the origin to the dot.
    fn shadow(&self, out: &mut String, vector: [f64; 3], colour: &str) {
        let floor = self.axes[2].low;
        let tip = self.place(vector);
        let below = self.place([vector[0], vector[1], floor]);
        let origin = self.place([0.0, 0.0, floor]);
        let _ = writeln!(
            out,
            r#"<path d="{}" stroke="{colour}" stroke-opacity="0.35" stroke-width="1.6" fill="none"/>"#,
            way(&[origin, below])
        );
        let _ = writeln!(
            out,
            r#"<path d="{}" stroke="{colour}" stroke-opacity="0.55" stroke-width="1" stroke-dasharray="3 3" fill="none"/>"#,
            way(&[below, tip])
        );
        let _ = writeln!(
            out,
            r#"<circle cx="{}" cy="{}" r="2.6" fill="{colour}" fill-opacity="0.55"/>"#,
            coordinate(below.0),
            coordinate(below.1)
        );
    }

    fn arrow(&self, out: &mut String, arrow: &Arrow, colour: &str) {
        let (from, to) = (self.place([0.0; 3]), self.place(arrow.vector));
        let (dx, dy) = (to.0 - from.0, to.1 - from.1);
        let length = dx.hypot(dy);
        let hover = format!("{} {}", visible(&arrow.name), numbers(arrow.given()));
        let _ = writeln!(out, "<g><title>{}</title>", escape(&hover));
        if length < 1.0 {
            let _ = writeln!(
                out,
                r#"<circle cx="{}" cy="{}" r="4" fill="{colour}"/>"#,
                coordinate(to.0),
                coordinate(to.1)
            );
        } else {
            // The head is part of the length; a short arrow is nearly all head.
            let head = 14.0_f64.min(length * 0.6);
            let (ux, uy) = (dx / length, dy / length);
            let neck = (to.0 - head * 0.8 * ux, to.1 - head * 0.8 * uy);
            let back = (to.0 - head * ux, to.1 - head * uy);
            let wing = |side: f64| {
                (
                    back.0 - side * uy * head * 0.36,
                    back.1 + side * ux * head * 0.36,
                )
            };
            let _ = writeln!(
                out,
                r#"<path d="{}" stroke="{colour}" stroke-width="3" stroke-linecap="round" fill="none"/>"#,
                way(&[from, neck])
            );
            let _ = writeln!(
                out,
                r#"<path d="{}z" fill="{colour}"/>"#,
                way(&[to, wing(1.0), neck, wing(-1.0)])
            );
        }
        out.push_str("</g>\n");
    }
}

/// `M x y L x y ..`
fn way(points: &[(f64, f64)]) -> String {
    let mut way = String::new();
    for (index, (x, y)) in points.iter().enumerate() {
        let sign = if index == 0 { 'M' } else { 'L' };
        let _ = write!(way, "{sign}{} {}", coordinate(*x), coordinate(*y));
    }
    way
}

fn numbers(vector: &[f64]) -> String {
    let short = |x: &f64| {
        let text = format!("{x:.2}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    let numbers: Vec<String> = vector.iter().map(short).collect();
    format!("({})", numbers.join(", "))
}

/// Names beside the tips, on the side away from the origin, pushed apart where they would overlap.
fn labels(out: &mut String, space: &Space, arrows: &[(&Arrow, &str)], width: f64) {
    const PITCH: f64 = 20.0;
    let origin = space.place([0.0; 3]);
    for side in [-1.0, 1.0] {
        let mut tips: Vec<_> = arrows
            .iter()
            .map(|(arrow, colour)| (space.place(arrow.vector), arrow, colour))
            .filter(|((x, _), ..)| (*x < origin.0) == (side < 0.0))
            .collect();
        tips.sort_by(|a, b| a.0.1.total_cmp(&b.0.1));
        // Names are pushed down one after the other; starting in the middle would move them less, but they are few.
        let mut lowest = f64::NEG_INFINITY;
        for ((x, y), arrow, colour) in tips {
            let place = (y - 4.0).max(lowest + PITCH);
            lowest = place;
            let room = if side < 0.0 {
                x - 20.0
            } else {
                width - x - 20.0
            };
            let name = shown(&arrow.name, 14.0, (room - 14.0).max(40.0));
            let values = numbers(arrow.given());
            let at = x + side * 14.0;
            let anchor = if side < 0.0 { "end" } else { "start" };
            let with_values =
                text_width(&name.text, 14.0) + text_width(&values, 11.5) + 20.0 < room;
            let _ = writeln!(
                out,
                r#"<path d="{}" stroke="{colour}" stroke-opacity="0.5" stroke-width="0.8" fill="none"/>"#,
                way(&[(x + side * 3.0, y), (at - side * 3.0, place)])
            );
            // A white rectangle, so that no line runs behind a name and looks like a part of it.
            let values_width = if with_values {
                text_width(&values, 11.5) + 6.0
            } else {
                0.0
            };
            let wide = 0.95 * text_width(&name.text, 14.0) + values_width + 6.0;
            let left = if side < 0.0 {
                at - wide + 3.0
            } else {
                at - 3.0
            };
            let _ = writeln!(
                out,
                r##"<rect x="{}" y="{}" width="{}" height="18" rx="4" fill="#ffffff" fill-opacity="0.86"/>"##,
                coordinate(left),
                coordinate(place - 9.0),
                coordinate(wide)
            );
            let _ = write!(
                out,
                r#"<text x="{}" y="{}" font-size="14" text-anchor="{anchor}"><tspan fill="{colour}" font-weight="bold">{}</tspan>"#,
                coordinate(at),
                coordinate(place + 4.5),
                escape(&name.text)
            );
            if with_values {
                let _ = write!(
                    out,
                    r#"<tspan dx="6" font-size="11.5" fill="{FAINT}">{}</tspan>"#,
                    escape(&values)
                );
            }
            out.push_str("</text>\n");
        }
    }
}
