//! Panels as SVG.

use std::fmt::Write;

use regard_trace::{Image, Mask};

use super::raster::{SATURATION, laid, resized};
use super::{
    Drawn, Grid, ImageOptions, ImagePanel, ImagePicture, Outline, Overlay, Paint, Scale, number,
};
use crate::colour::{Rgb, category};
use crate::label::visible;
use crate::svg::xml::{
    Anchor, Face, coordinate, escape, open, open_group, shown, text, text_width, words, wrapped,
};
use crate::svg::{colour_bar, pixels, tick};

/// Around everything, and between panels.
const MARGIN: f64 = 20.0;
const GAP: f64 = 18.0;

/// The least that the longer side of one of several images takes.
const LEAST_ROOM: f64 = 192.0;

/// The most that the longer side of an image takes, and the most pixels on a side of a smooth map.
const LARGEST: f64 = 4096.0;
const SMOOTH: f64 = 1024.0;

/// The least that the shorter side of an image takes, and its panel in width.
const LEAST_SIDE: f64 = 12.0;
const LEAST_PANEL: f64 = 112.0;

/// Heights of a line of the picture's title, of a panel's title and of its note.
const LINE: f64 = 22.0;
const TITLE: f64 = 18.0;
const NOTE: f64 = 15.0;

/// Sizes of a panel's title and note.
const TITLE_SIZE: f64 = 13.5;
const NOTE_SIZE: f64 = 11.0;

/// Bold letters are so much wider than the regular ones that are measured.
const BOLD: f64 = 1.08;

/// Room for the bar of colours.
const BAR: f64 = 66.0;

/// The size of the text on a box.
const TAG: f64 = 10.5;

/// The colour that marks the drawn cell and the cell that asks.
const MARK: &str = "#ff7a1a";

/// How dark the rest is where something is outlined.
const SHADE: f64 = 0.55;

/// The size at which an image is shown, in pixels: small ones enlarged by a whole factor.
fn size(image: &Image, room: f64) -> (f64, f64) {
    let (width, height) = (image.width() as f64, image.height() as f64);
    let scale = room / width.max(height);
    let scale = if scale >= 1.0 { scale.floor() } else { scale };
    (
        (width * scale).max(LEAST_SIDE),
        (height * scale).max(LEAST_SIDE),
    )
}

impl ImagePicture {
    /// The picture as a standalone SVG on white ground.
    pub fn svg(&self, options: &ImageOptions) -> String {
        let count = self.panels.len().max(1) as f64;
        let most = options.room.clamp(1.0, LARGEST);
        let room = (most / count.sqrt()).max(LEAST_ROOM).min(most);
        let sizes: Vec<(f64, f64)> = (self.panels.iter())
            .map(|panel| size(&panel.image, room))
            .collect();
        let widest = sizes.iter().map(|size| size.0).fold(LEAST_PANEL, f64::max);
        let pitch = widest + GAP;
        let fits = ((options.width + GAP) / pitch) as usize;
        let across = balanced(self.panels.len(), fits.max(1));
        let scale = self.range(&self.panels);
        // A single map has one scale either way, and the bar can say its numbers.
        let maps = self.panels.iter().filter(|panel| panel.has_weights());
        let own = options.own_scale && maps.count() > 1;
        let scales: Vec<Option<Scale>> = (self.panels.iter())
            .map(|panel| match own {
                true => self.range(std::slice::from_ref(panel)),
                false => scale,
            })
            .collect();
        let right = across as f64 * pitch - GAP;
        let width = right + if scale.is_some() { BAR } else { 0.0 } + 2.0 * MARGIN;
        let title = wrapped(&self.title, 15.0, (width - 2.0 * MARGIN) / BOLD);
        let wide = pitch - GAP * 0.5;
        let heads: Vec<Head> = (self.panels.iter().zip(&scales))
            .map(|(panel, &scale)| Head {
                title: in_lines(&panel.title, TITLE_SIZE, wide / BOLD),
                note: in_lines(&note(panel, scale.filter(|_| own)), NOTE_SIZE, wide),
            })
            .collect();
        let most = |lines: fn(&Head) -> usize| heads.iter().map(lines).max().unwrap_or(0) as f64;
        let head = most(|head| head.title.len()) * TITLE + most(|head| head.note.len()) * NOTE;
        let head = if head > 0.0 { head + 5.0 } else { 0.0 };

        let top = MARGIN + title.len() as f64 * LINE;
        let mut places = Vec::with_capacity(sizes.len());
        let mut y = top;
        for row in sizes.chunks(across.max(1)) {
            places.extend((0..row.len()).map(|column| (MARGIN + column as f64 * pitch, y)));
            y += head + row.iter().map(|size| size.1).fold(0.0, f64::max) + GAP;
        }
        let bar = (y - GAP - top - head).clamp(60.0, 180.0);
        // What the numbers at the bar are of.
        let of: &[&str] = match (own, self.from_least) {
            (false, _) => &[],
            (true, false) => &["of each", "largest"],
            (true, true) => &["from each", "least to its", "largest"],
        };
        let least = if scale.is_some() {
            top + head + bar + 24.0 + 11.0 * of.len().saturating_sub(1) as f64
        } else {
            top
        };

        let mut out = String::new();
        let height = (y - GAP).max(least) + MARGIN;
        open(&mut out, width, height, &self.title, "image");
        for (line, number) in title.iter().zip(0..) {
            let y = MARGIN + 13.0 + LINE * f64::from(number);
            let face = Face::new(15.0, Anchor::Start).bold();
            text(&mut out, MARGIN, y, face, &shown(line, 15.0, width));
        }
        let images = self.images(&mut out, &sizes);
        let cells: usize = (self.panels.iter())
            .filter_map(|panel| panel.grid.as_ref())
            .map(|grid| grid.values.len())
            .sum();
        for (index, panel) in self.panels.iter().enumerate() {
            let (x, y) = places[index];
            open_group(&mut out, x, y);
            let picture = Panel {
                panel,
                options,
                size: sizes[index],
                scale: scales[index].unwrap_or_default(),
                hover: cells <= options.hover_cells,
                wide,
            };
            picture.draw(&mut out, images[index], &heads[index], head);
            out.push_str("</g>\n");
        }
        if let Some(Scale { low, high }) = scale {
            let x = MARGIN + right + 16.0;
            let ends = if own { (0.0, 1.0) } else { (low, high) };
            let (low, high) = (f64::from(ends.0), f64::from(ends.1));
            let mark = |share: f64| tick(low + (high - low) * share, high - low);
            colour_bar(&mut out, options.ramp, x, top + head, bar, mark);
            for (line, number) in of.iter().zip(0..) {
                let face = Face::new(9.5, Anchor::Start).faint();
                let y = top + head + bar + 16.0 + 11.0 * f64::from(number);
                words(&mut out, x, y, face, line);
            }
        }
        out.push_str("</svg>\n");
        out
    }

    /// Defines each image once; the number of each panel's.
    fn images(&self, out: &mut String, sizes: &[(f64, f64)]) -> Vec<usize> {
        let mut first: Vec<usize> = vec![];
        let numbers = self.panels.iter().enumerate().map(|(index, panel)| {
            let known = first
                .iter()
                .position(|&i| self.panels[i].image == panel.image);
            known.unwrap_or_else(|| {
                first.push(index);
                first.len() - 1
            })
        });
        let numbers = numbers.collect();
        out.push_str("<defs>\n");
        for (number, &panel) in first.iter().enumerate() {
            let (image, (width, height)) = (&self.panels[panel].image, sizes[panel]);
            // Twice as many pixels as on the page, for dense screens and for PNG.
            let side = |stored: usize, shown: f64| stored.min((2.0 * shown).ceil() as usize).max(1);
            let rows = side(image.height(), height);
            let columns = side(image.width(), width);
            let pixels = resized(image, rows, columns);
            let address = pixels::address(rows, columns, |y, x| (pixels[y * columns + x], 255));
            let crisp = match width >= columns as f64 && height >= rows as f64 {
                true => r#" image-rendering="optimizeSpeed" style="image-rendering: pixelated""#,
                false => "",
            };
            let _ = writeln!(
                out,
                r#"<image id="image-{number}" width="{}" height="{}" preserveAspectRatio="none"{crisp} href="{}"/>"#,
                coordinate(width),
                coordinate(height),
                address.unwrap_or_default(),
            );
        }
        if self.panels.iter().any(|panel| panel.grid.is_some()) {
            let _ = writeln!(
                out,
                r#"<filter id="pale" x="0" y="0" width="1" height="1" color-interpolation-filters="sRGB"><feColorMatrix type="saturate" values="{SATURATION}"/></filter>"#
            );
        }
        out.push_str("</defs>\n");
        numbers
    }
}

/// The number of panels in a row, at most `fits`, such that the last row is not much shorter than the others.
fn balanced(panels: usize, fits: usize) -> usize {
    let rows = panels.div_ceil(fits).max(1);
    panels.div_ceil(rows).max(1)
}

/// What stands above a panel, in lines.
struct Head {
    title: Vec<String>,
    note: Vec<String>,
}

/// The note of a panel; of one with a scale of its own also where that begins, if not at 0.
fn note(panel: &ImagePanel, own: Option<Scale>) -> String {
    let least = own.filter(|scale| scale.low > 0.0);
    let least = least.map(|scale| format!("least {}", number(scale.low)));
    let parts = [Some(panel.note.clone()), least].into_iter().flatten();
    let parts: Vec<String> = parts.filter(|part| !part.is_empty()).collect();
    parts.join(", ")
}

/// A text in lines of at most `limit` pixels; what has no room in the first ones is in the last.
fn in_lines(text: &str, size: f64, limit: f64) -> Vec<String> {
    const MOST: usize = 3;
    if text.is_empty() {
        return vec![];
    }
    if text_width(&visible(text), size) <= limit {
        return vec![text.to_owned()];
    }
    let mut lines = wrapped(text, size, limit);
    if lines.len() > MOST {
        let rest = lines.split_off(MOST - 1).join(" ");
        lines.push(rest);
    }
    lines
}

/// One panel with its own corner at (0, 0).
struct Panel<'a> {
    panel: &'a ImagePanel,
    options: &'a ImageOptions,
    /// Width and height of the image.
    size: (f64, f64),
    scale: Scale,
    hover: bool,
    /// The width that its texts may take.
    wide: f64,
}

impl Panel<'_> {
    fn draw(&self, out: &mut String, image: usize, above: &Head, head: f64) {
        let mut y = 0.0;
        let face = Face::new(TITLE_SIZE, Anchor::Start).bold();
        for line in &above.title {
            let label = shown(line, TITLE_SIZE, self.wide / BOLD);
            text(out, 0.0, y + 13.0, face, &label);
            y += TITLE;
        }
        let face = Face::new(NOTE_SIZE, Anchor::Start).faint();
        for line in &above.note {
            let label = shown(line, NOTE_SIZE, self.wide);
            text(out, 0.0, y + 10.0, face, &label);
            y += NOTE;
        }
        open_group(out, 0.0, head);
        let filter = match self.panel.grid {
            Some(_) => r##" filter="url(#pale)""##,
            None => "",
        };
        let _ = writeln!(out, r##"<use href="#image-{image}"{filter}/>"##);
        if let Some(grid) = &self.panel.grid {
            self.map(out, grid);
        }
        if let Some(cell) = self.panel.drawn {
            self.drawn(out, cell);
        }
        if let Some(cell) = self.panel.query {
            self.outline(out, cell, MARK, 2.0);
        }
        self.regions(out);
        let (width, height) = self.size;
        let _ = writeln!(
            out,
            r##"<rect width="{}" height="{}" fill="none" stroke="#1f2933" stroke-opacity="0.25" stroke-width="0.8"/>"##,
            coordinate(width),
            coordinate(height)
        );
        if let (Some(grid), true) = (&self.panel.grid, self.hover) {
            self.hover(out, grid);
        }
        out.push_str("</g>\n");
    }

    /// A cell `[row, column, rows, columns]` as x, y, width and height.
    fn cell(&self, [row, column, rows, columns]: [usize; 4]) -> [f64; 4] {
        let (width, height) = (self.size.0 / columns as f64, self.size.1 / rows as f64);
        [column as f64 * width, row as f64 * height, width, height]
    }

    fn map(&self, out: &mut String, grid: &Grid) {
        let (width, height) = self.size;
        let (rows, columns) = match self.options.overlay {
            Overlay::ByCell => (grid.rows, grid.columns),
            Overlay::Bilinear => {
                let side = |length: f64| length.ceil().min(SMOOTH) as usize;
                (side(height), side(width))
            }
        };
        let colour = |row: usize, column: usize| {
            let (y, x) = (
                (row as f64 + 0.5) / rows as f64,
                (column as f64 + 0.5) / columns as f64,
            );
            let weight = grid.at(y, x, self.options.overlay);
            let (colour, opacity) = laid(self.options.ramp, self.scale.share(weight));
            (colour, (255.0 * opacity).round() as u8)
        };
        let crisp = match self.options.overlay {
            Overlay::ByCell => {
                r#" image-rendering="optimizeSpeed" style="image-rendering: pixelated""#
            }
            Overlay::Bilinear => "",
        };
        if let Some(address) = pixels::address(rows, columns, colour) {
            let _ = writeln!(
                out,
                r#"<image width="{}" height="{}" preserveAspectRatio="none"{crisp} href="{address}"/>"#,
                coordinate(width),
                coordinate(height),
            );
        }
        let (index, weight) = super::strongest(&grid.values);
        if weight > 0.0 && grid.values.len() > 1 {
            let cell = [
                index / grid.columns,
                index % grid.columns,
                grid.rows,
                grid.columns,
            ];
            self.strongest(out, cell);
        }
    }

    /// The place of the largest weight: its cell, or in a smooth map a ring around its centre.
    fn strongest(&self, out: &mut String, cell: [usize; 4]) {
        let [x, y, width, height] = self.cell(cell);
        if self.options.overlay == Overlay::ByCell {
            self.outline(out, cell, "#ffffff", 1.4);
            return;
        }
        let radius = (width.min(height) / 2.0).clamp(3.5, 7.0);
        for (stroke, opacity, wide) in [("#000000", 0.55, 3.0), ("#ffffff", 1.0, 1.4)] {
            let _ = writeln!(
                out,
                r#"<circle cx="{}" cy="{}" r="{}" fill="none" stroke="{stroke}" stroke-opacity="{opacity}" stroke-width="{wide}"/>"#,
                coordinate(x + width / 2.0),
                coordinate(y + height / 2.0),
                coordinate(radius)
            );
        }
    }

    /// The outline of a cell, inside it, seen on dark and light ground.
    fn outline(&self, out: &mut String, cell: [usize; 4], colour: &str, wide: f64) {
        let [x, y, width, height] = self.cell(cell);
        let inset = (wide / 2.0 + 0.4).min(width / 4.0).min(height / 4.0);
        for (stroke, opacity, wide) in [("#000000", 0.55, wide + 1.6), (colour, 1.0, wide)] {
            let _ = writeln!(
                out,
                r#"<rect x="{}" y="{}" width="{}" height="{}" fill="none" stroke="{stroke}" stroke-opacity="{opacity}" stroke-width="{}"/>"#,
                coordinate(x + inset),
                coordinate(y + inset),
                coordinate((width - 2.0 * inset).max(0.1)),
                coordinate((height - 2.0 * inset).max(0.1)),
                coordinate(wide),
            );
        }
    }

    /// Everything but the cell darkened, and the cell outlined.
    fn drawn(&self, out: &mut String, cell: [usize; 4]) {
        let [x, y, width, height] = self.cell(cell);
        let _ = writeln!(
            out,
            r##"<path d="M0 0H{}V{}H0zM{} {}v{}h{}v{}z" fill="#000000" fill-opacity="{SHADE}" fill-rule="evenodd"/>"##,
            coordinate(self.size.0),
            coordinate(self.size.1),
            coordinate(x),
            coordinate(y),
            coordinate(height),
            coordinate(width),
            coordinate(-height),
        );
        self.outline(out, cell, MARK, 2.2);
    }

    /// Cells that nobody sees, with a text to hover.
    fn hover(&self, out: &mut String, grid: &Grid) {
        out.push_str("<g fill=\"none\" pointer-events=\"all\">\n");
        for (index, &weight) in grid.values.iter().enumerate() {
            let (row, column) = (index / grid.columns, index % grid.columns);
            let [x, y, width, height] = self.cell([row, column, grid.rows, grid.columns]);
            let _ = writeln!(
                out,
                r#"<rect x="{}" y="{}" width="{}" height="{}"><title>({row}, {column}): {}</title></rect>"#,
                coordinate(x),
                coordinate(y),
                coordinate(width),
                coordinate(height),
                number(weight),
            );
        }
        out.push_str("</g>\n");
    }

    fn regions(&self, out: &mut String) {
        let regions = &self.panel.regions;
        let weighted = regions
            .iter()
            .any(|drawn| matches!(drawn.paint, Paint::Weight(_)));
        if weighted {
            let _ = writeln!(
                out,
                r##"<rect width="{}" height="{}" fill="#000000" fill-opacity="0.35"/>"##,
                coordinate(self.size.0),
                coordinate(self.size.1)
            );
        }
        for drawn in regions {
            self.region(out, drawn);
        }
        // Tags lie above all boxes. Of weighted boxes only the strongest have one.
        let mut taken = vec![];
        let tagged: Vec<&Drawn> = match weighted {
            true => regions.iter().rev().take(3).collect(),
            false if self.panel.grid.is_some() => vec![],
            false => regions.iter().collect(),
        };
        for drawn in tagged {
            self.tag(out, drawn, &mut taken);
        }
    }

    fn colour(&self, paint: Paint) -> Rgb {
        match paint {
            Paint::Category(index) => category(index),
            Paint::Weight(weight) => self.options.ramp.at(self.scale.share(weight)),
        }
    }

    /// The part of a region's box that is inside the image: x, y, width, height.
    fn bounds(&self, drawn: &Drawn) -> [f64; 4] {
        let (width, height) = self.size;
        let image = &self.panel.image;
        let (sx, sy) = (width / image.width() as f64, height / image.height() as f64);
        let bounds = drawn.region.bounds();
        let span = |start: f32, length: f32, scale: f64, end: f64| {
            let (start, length) = (f64::from(start), f64::from(length));
            let from = (start * scale).clamp(0.0, end - 1.0);
            (
                from,
                ((start + length) * scale).clamp(from + 1.0, end) - from,
            )
        };
        let (x, w) = span(bounds.x, bounds.width, sx, width);
        let (y, h) = span(bounds.y, bounds.height, sy, height);
        [x, y, w, h]
    }

    fn region(&self, out: &mut String, drawn: &Drawn) {
        let colour = self.colour(drawn.paint);
        let [x, y, width, height] = self.bounds(drawn).map(coordinate);
        let mask = drawn.region.mask().filter(|_| self.panel.grid.is_none());
        let masked = mask.is_some_and(|mask| self.mask(out, mask, colour));
        let (fill, wide) = match drawn.paint {
            Paint::Weight(weight) => (
                format!(
                    r#"fill="{colour}" fill-opacity="{}""#,
                    coordinate(0.08 + 0.42 * f64::from(self.scale.share(weight)))
                ),
                1.2 + 1.2 * f64::from(self.scale.share(weight)),
            ),
            // A box around a mask is drawn more thinly.
            Paint::Category(_) if masked => (r#"fill="none""#.to_owned(), 1.0),
            Paint::Category(_) => (r#"fill="none""#.to_owned(), 2.0),
        };
        let halo = match (drawn.paint, masked) {
            (Paint::Category(_), false) => 0.6,
            _ => 0.25,
        };
        let label = escape(&self.label(drawn, usize::MAX));
        let _ = writeln!(
            out,
            r##"<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="none" stroke="#ffffff" stroke-opacity="{halo}" stroke-width="{}"/>"##,
            coordinate(wide + 1.4)
        );
        let _ = writeln!(
            out,
            r#"<rect x="{x}" y="{y}" width="{width}" height="{height}" {fill} stroke="{colour}" stroke-width="{}"><title>{label}</title></rect>"#,
            coordinate(wide)
        );
    }

    /// `square 0.98`
    fn label(&self, drawn: &Drawn, limit: usize) -> String {
        let number = match (drawn.paint, drawn.region.score()) {
            (Paint::Weight(weight), _) => number(weight),
            (_, Some(score)) => format!("{score:.2}"),
            _ => String::new(),
        };
        let mut parts = vec![];
        if !drawn.region.label().is_empty() {
            let name = visible(drawn.region.label());
            parts.push(match name.chars().count() > limit {
                true => name
                    .chars()
                    .take(limit.saturating_sub(1))
                    .chain(['…'])
                    .collect(),
                false => name,
            });
        }
        if !number.is_empty() {
            parts.push(number);
        }
        parts.join(" ")
    }

    /// The name of a box and its number on a ground of its colour, above the box where there is room.
    fn tag(&self, out: &mut String, drawn: &Drawn, taken: &mut Vec<[f64; 4]>) {
        // No wider than the panel with half of the gap: beside it another one may stand, or the bar of colours.
        let fits = |text: &String| text_width(text, TAG) + 7.0 <= self.wide;
        let mut labels = (1..=24).rev().map(|most| self.label(drawn, most));
        let text_of = labels.find(fits).unwrap_or_else(|| self.label(drawn, 1));
        if text_of.is_empty() {
            return;
        }
        let colour = self.colour(drawn.paint);
        let [x, y, _, height] = self.bounds(drawn);
        let (wide, high) = (text_width(&text_of, TAG) + 7.0, TAG + 4.0);
        let x = (x - 1.0).min(self.size.0 - wide).max(0.0);
        let mut places = vec![y - high, y, y + height, y + height - high];
        places.extend((1..8).map(|step| y + f64::from(step) * (high + 1.0)));
        let is_free = |y: f64| {
            y >= 0.0
                && y + high <= self.size.1
                && (taken.iter()).all(|other| {
                    x + wide <= other[0]
                        || other[0] + other[2] <= x
                        || y + high <= other[1]
                        || other[1] + other[3] <= y
                })
        };
        let y = places
            .into_iter()
            .find(|&y| is_free(y))
            .unwrap_or(y.max(0.0));
        taken.push([x, y, wide, high]);
        let _ = writeln!(
            out,
            r#"<rect x="{}" y="{}" width="{}" height="{}" rx="1.5" fill="{colour}"/>"#,
            coordinate(x),
            coordinate(y),
            coordinate(wide),
            coordinate(high)
        );
        let _ = writeln!(
            out,
            r#"<text x="{}" y="{}" font-size="{TAG}" fill="{}" pointer-events="none">{}</text>"#,
            coordinate(x + 3.5),
            coordinate(y + high - 4.0),
            colour.ink(),
            escape(&text_of)
        );
    }

    /// The pixels of a mask, translucent, with their outline; `false` if it is too ragged to be drawn.
    fn mask(&self, out: &mut String, mask: &Mask, colour: Rgb) -> bool {
        let Some(outline) = Outline::of(mask) else {
            return false;
        };
        let (sx, sy) = (
            self.size.0 / mask.width().max(1) as f64,
            self.size.1 / mask.height().max(1) as f64,
        );
        let (area, edges) = (outline.area(sx, sy), outline.edges(sx, sy));
        let _ = writeln!(
            out,
            r#"<path class="mask" d="{area}" fill="{colour}" fill-opacity="0.38"/>"#
        );
        for (stroke, wide) in [("#ffffff".to_owned(), 2.2), (colour.to_string(), 1.4)] {
            let _ = writeln!(
                out,
                r#"<path d="{edges}" fill="none" stroke="{stroke}" stroke-width="{wide}" stroke-linecap="square"/>"#
            );
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_panels_are_about_as_long() {
        assert_eq!(
            [0, 1, 5, 6, 12, 13].map(|panels| balanced(panels, 5)),
            [1, 1, 5, 3, 4, 5]
        );
    }
}
