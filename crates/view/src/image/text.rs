//! Panels on a terminal, in half blocks: the upper half of a character in its own colour, the lower in that of its ground. Without
//! colours a map is shades of characters, and an image its brightness.

use regard_trace::Image;

use super::raster::{laid, pale, resized};
use super::{Drawn, ImagePanel, ImagePicture, Overlay, Paint, Scale, number};
use crate::colour::{Rgb, category};
use crate::label::visible;
use crate::terminal::{Colour, Line, Style, TerminalOptions, dark, fitted, scale};

/// Between panels.
const GAP: usize = 2;

/// The most columns that a panel takes on a narrow terminal, the fewest, and the most on a wide one.
const COLUMNS: (usize, usize, usize) = (40, 16, 160);

const MARK: Rgb = Rgb(0xff, 0x7a, 0x1a);

impl ImagePicture {
    /// The picture in characters, lines ending in a newline, none wider than [`TerminalOptions::width`]. A panel is at most as tall
    /// as [`TerminalOptions::height`]. Maps are smooth.
    pub fn text(&self, options: &TerminalOptions) -> String {
        let count = self.panels.len().max(1);
        let across = ((options.width + GAP) / (COLUMNS.1 * 2 + GAP)).clamp(1, count);
        let room = (options.width + GAP) / across;
        let room = room
            .saturating_sub(GAP)
            .clamp(1, COLUMNS.0.max(options.width / 2).min(COLUMNS.2));
        let ends = self.range(&self.panels);
        let mut lines = vec![];
        if !self.title.is_empty() {
            let mut line = Line::default();
            line.push(
                Style::BOLD,
                &fitted(&visible(&self.title), options.width, options),
            );
            lines.push(line);
        }
        for row in self.panels.chunks(across) {
            let drawn: Vec<(usize, Vec<Line>)> = (row.iter())
                .map(|panel| draw(panel, room, ends.unwrap_or_default(), options))
                .collect();
            let tall = drawn
                .iter()
                .map(|(_, lines)| lines.len())
                .max()
                .unwrap_or(0);
            for index in 0..tall {
                let mut line = Line::default();
                for (column, (_, panel)) in drawn.iter().enumerate() {
                    line.pad_to(column * (room + GAP));
                    if let Some(part) = panel.get(index) {
                        line.append(part);
                    }
                }
                lines.push(line);
            }
            lines.push(Line::default());
        }
        if let Some(Scale { low, high }) = ends {
            lines.push(scale(options, (low, high)));
        }
        let mut out = String::new();
        for line in lines {
            out.push_str(&line.finish(options.colour, options.width));
            out.push('\n');
        }
        out
    }
}

/// Columns and rows of pixels, two rows a line, in which an image is shown.
fn size(image: &Image, room: usize, height: Option<usize>) -> (usize, usize) {
    let (wide, tall) = (image.width() as f64, image.height() as f64);
    let most = height.map_or(f64::INFINITY, |lines| {
        2.0 * lines.saturating_sub(3).max(1) as f64
    });
    let scale = (room as f64 / wide)
        .min(most / tall)
        .min(2.0 * room as f64 / tall);
    let scale = if scale >= 1.0 { scale.floor() } else { scale };
    let side = |length: f64, most: usize| ((length * scale).round() as usize).clamp(1, most);
    (side(wide, room), side(tall, 2 * room))
}

fn draw(
    panel: &ImagePanel,
    room: usize,
    ends: Scale,
    options: &TerminalOptions,
) -> (usize, Vec<Line>) {
    let mut lines = vec![];
    for (style, words) in [(Style::BOLD, &panel.title), (Style::FAINT, &panel.note)] {
        let mut line = Line::default();
        if !words.is_empty() {
            line.push(style, &fitted(&visible(words), room, options));
        }
        lines.push(line);
    }
    let (columns, rows) = size(&panel.image, room, options.height);
    match options.colour {
        Colour::Ascii => shades(panel, columns, rows, ends, &mut lines),
        _ => half_blocks(panel, columns, rows, ends, options, &mut lines),
    }
    // Of weighted boxes the strongest, first; above a map the title names the box.
    let weighted = (panel.regions.iter()).any(|drawn| matches!(drawn.paint, Paint::Weight(_)));
    let named: Vec<&Drawn> = match (weighted, &panel.grid) {
        (true, _) => panel.regions.iter().rev().take(3).collect(),
        (false, Some(_)) => vec![],
        (false, None) => panel.regions.iter().collect(),
    };
    let names = named
        .into_iter()
        .map(|drawn| name(drawn, room, ends, options));
    lines.extend(names);
    (columns, lines)
}

/// `■ square 0.98`
fn name(drawn: &Drawn, room: usize, ends: Scale, options: &TerminalOptions) -> Line {
    let value = match (drawn.paint, drawn.region.score()) {
        (Paint::Weight(weight), _) => number(weight),
        (_, Some(score)) => format!("{score:.2}"),
        _ => String::new(),
    };
    let mut line = Line::default();
    if options.colour != Colour::Ascii {
        line.push(Style::on(colour(drawn.paint, ends, options)), "  ");
        line.plain(" ");
    }
    let limit = room.saturating_sub(line.width() + value.len() + 1);
    let name = match drawn.region.label() {
        "" => String::new(),
        label => fitted(&visible(label), limit, options),
    };
    line.plain(&name);
    if !name.is_empty() {
        line.plain(" ");
    }
    line.plain(&value);
    line
}

fn colour(paint: Paint, ends: Scale, options: &TerminalOptions) -> Rgb {
    match paint {
        Paint::Category(index) => category(index),
        Paint::Weight(weight) => options.ramp.at(ends.share(weight)),
    }
}

/// The pixels of a panel, `[rows, columns]`.
fn raster(
    panel: &ImagePanel,
    columns: usize,
    rows: usize,
    ends: Scale,
    options: &TerminalOptions,
) -> Vec<Rgb> {
    let mut pixels = resized(&panel.image, rows, columns);
    let middle = |index: usize| {
        let (row, column) = (index / columns, index % columns);
        (
            (row as f64 + 0.5) / rows as f64,
            (column as f64 + 0.5) / columns as f64,
        )
    };
    if let Some(grid) = &panel.grid {
        for (index, pixel) in pixels.iter_mut().enumerate() {
            let (y, x) = middle(index);
            let weight = grid.at(y, x, Overlay::Bilinear);
            let (colour, opacity) = laid(options.ramp, ends.share(weight));
            *pixel = pale(*pixel).mix(colour, opacity);
        }
    }
    let is_in = |[row, column, of_rows, of_columns]: [usize; 4], index: usize| {
        let (y, x) = middle(index);
        (y * of_rows as f64) as usize == row && (x * of_columns as f64) as usize == column
    };
    if let Some(cell) = panel.drawn {
        for (index, pixel) in pixels.iter_mut().enumerate() {
            if !is_in(cell, index) {
                *pixel = pixel.mix(Rgb(0, 0, 0), 0.6);
            }
        }
    }
    if let Some(cell) = panel.query {
        for (index, pixel) in pixels.iter_mut().enumerate() {
            if is_in(cell, index) {
                *pixel = pixel.mix(MARK, 0.75);
            }
        }
    }
    let dims = panel
        .regions
        .iter()
        .any(|drawn| matches!(drawn.paint, Paint::Weight(_)));
    if dims {
        for pixel in &mut pixels {
            *pixel = pixel.mix(Rgb(0, 0, 0), 0.35);
        }
    }
    for drawn in &panel.regions {
        let colour = colour(drawn.paint, ends, options);
        if let (Some(mask), None) = (drawn.region.mask(), &panel.grid) {
            let set: Vec<_> = mask.columns().collect();
            for (index, pixel) in pixels.iter_mut().enumerate() {
                let (y, x) = middle(index);
                let y = (y * mask.height() as f64) as usize;
                let x = (x * mask.width() as f64) as usize;
                // The first range that does not end above it.
                let range = set
                    .get(x)
                    .and_then(|ranges| ranges.get(ranges.partition_point(|range| range.end <= y)));
                if range.is_some_and(|range| range.contains(&y)) {
                    *pixel = pixel.mix(colour, 0.55);
                }
            }
        }
        for (row, column) in border(&panel.image, drawn, columns, rows) {
            pixels[row * columns + column] = colour;
        }
    }
    pixels
}

/// The pixels on the border of a region's box, row and column.
fn border(image: &Image, drawn: &Drawn, columns: usize, rows: usize) -> Vec<(usize, usize)> {
    let bounds = drawn.region.bounds();
    let span = |start: f32, length: f32, of: usize, count: usize| {
        let at =
            |place: f64| (place * count as f64 / of as f64).clamp(0.0, (count - 1) as f64) as usize;
        let (start, length) = (f64::from(start), f64::from(length));
        (at(start), at((start + length).max(start + 1.0) - 0.01))
    };
    let (left, right) = span(bounds.x, bounds.width, image.width(), columns);
    let (top, bottom) = span(bounds.y, bounds.height, image.height(), rows);
    let (right, bottom) = (right.max(left), bottom.max(top));
    let mut places: Vec<(usize, usize)> = vec![];
    places.extend((left..=right).flat_map(|column| [(top, column), (bottom, column)]));
    places.extend((top..=bottom).flat_map(|row| [(row, left), (row, right)]));
    places
}

fn half_blocks(
    panel: &ImagePanel,
    columns: usize,
    rows: usize,
    ends: Scale,
    options: &TerminalOptions,
    lines: &mut Vec<Line>,
) {
    let pixels = raster(panel, columns, rows, ends, options);
    for row in (0..rows).step_by(2) {
        let mut line = Line::default();
        for column in 0..columns {
            let upper = pixels[row * columns + column];
            match pixels.get((row + 1) * columns + column) {
                Some(&lower) => line.push(
                    Style {
                        ink: Some(upper),
                        ..Style::on(lower)
                    },
                    "▀",
                ),
                // The last row of an odd number has nothing below it.
                None => line.push(
                    Style {
                        ink: Some(upper),
                        ..Style::PLAIN
                    },
                    "▀",
                ),
            }
        }
        lines.push(line);
    }
}

/// Shades: of a map its weights, of an image its brightness; boxes and cells in lines.
fn shades(panel: &ImagePanel, columns: usize, rows: usize, ends: Scale, lines: &mut Vec<Line>) {
    let tall = rows.div_ceil(2);
    let image = resized(&panel.image, tall, columns);
    let mut shades: Vec<char> = (image.iter().enumerate())
        .map(|(index, &Rgb(red, green, blue))| {
            let y = ((index / columns) as f64 + 0.5) / tall as f64;
            let x = ((index % columns) as f64 + 0.5) / columns as f64;
            if let Some(grid) = &panel.grid {
                return dark(ends.share(grid.at(y, x, Overlay::Bilinear)));
            }
            if let Some([row, column, of_rows, of_columns]) = panel.drawn {
                let inside = (y * of_rows as f64) as usize == row
                    && (x * of_columns as f64) as usize == column;
                return if inside { '@' } else { '.' };
            }
            let brightness =
                0.299 * f32::from(red) + 0.587 * f32::from(green) + 0.114 * f32::from(blue);
            dark(brightness / 255.0)
        })
        .collect();
    for drawn in &panel.regions {
        let border = border(&panel.image, drawn, columns, tall);
        let corner = |(row, column): (usize, usize)| {
            let on = |r: Option<usize>, c: Option<usize>| {
                r.zip(c).is_some_and(|place| border.contains(&place))
            };
            let level = on(Some(row), column.checked_sub(1)) || on(Some(row), Some(column + 1));
            let steep = on(row.checked_sub(1), Some(column)) || on(Some(row + 1), Some(column));
            match (level, steep) {
                (true, false) => '-',
                (false, true) => '|',
                _ => '+',
            }
        };
        for &place in &border {
            shades[place.0 * columns + place.1] = corner(place);
        }
    }
    for row in shades.chunks(columns.max(1)) {
        let mut line = Line::default();
        line.plain(&row.iter().collect::<String>());
        lines.push(line);
    }
}
