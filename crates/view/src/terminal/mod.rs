//! A heat map in a terminal: queries downwards, keys to the right, both named.
//!
//! No line is wider than [`TerminalOptions::width`]: layouts go from words with the weight in each
//! cell down to numbered columns in several blocks. A picture taller than [`TerminalOptions::height`]
//! is reduced in size, and each cell then shows the largest weight of a tile. The colour of a weight
//! is its share of the largest one, which the legend names. Of a [signed](Heatmap::signed) picture colours run from the
//! largest size below 0 to the same above.
//!
//! ```
//! use regard_trace::{AttentionMap, Kind, Tokens};
//! use regard_view::Heatmap;
//! use regard_view::terminal::{Colour, TerminalOptions, heatmap};
//!
//! let (keys, queries) = (Tokens::from_words("a man"), Tokens::from_words("ein Mann"));
//! let map = AttentionMap::new(Kind::Cross, queries, keys, 1, vec![0.9, 0.1, 0.2, 0.8])?;
//! let options = TerminalOptions { width: 40, colour: Colour::Ascii, ..Default::default() };
//! assert_eq!(heatmap(&Heatmap::from_map(&map), &options), "       a   man
//!  ein @.90@..10.
//! Mann :.20:%.80%
//!
//! rows target, columns source
//! 0.00 [  ..::--==++**##%%@@] 0.90
//! ");
//! # Ok::<(), regard_trace::TraceError>(())
//! ```

mod capability;
mod layout;
mod paint;

use regard_trace::Trace;
use unicode_segmentation::UnicodeSegmentation;

pub use capability::{Colour, Direction};

use crate::Heatmap;
use crate::colour::Ramp;
use crate::heatmap::short;
use crate::label::{fit, has_rtl, visible, visual_order, width};
use crate::svg::tick;
use layout::{Block, Header, STACKED_LINES};
pub(crate) use paint::{Line, Style};

/// Characters by darkness, for terminals without colour.
const DARKNESS: &[u8; 10] = b" .:-=+*#%@";

/// Numbers below this share of the largest are written with less contrast.
const FAINT_SHARE: f32 = 0.1;

/// Row names may be cut to this many columns where that keeps all columns in one block.
const SHORT_ROW_LABEL: usize = 8;

/// How a heat map is drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct TerminalOptions {
    /// Columns of the terminal; no line is wider. Default 80.
    pub width: usize,
    /// Lines that the picture may take, `None` for as many as it needs. A picture always takes at
    /// least one row of cells with its header and legend. Default `None`.
    pub height: Option<usize>,
    /// How colours are written. Default [`Colour::Ascii`].
    pub colour: Colour,
    /// The colours. Default [`Ramp::VIRIDIS`].
    pub ramp: Ramp,
    /// Who reorders right-to-left text. Default [`Direction::Reorder`].
    pub direction: Direction,
    /// Whether the title is printed above. Default false.
    pub title: bool,
}

impl Default for TerminalOptions {
    fn default() -> Self {
        Self {
            width: 80,
            height: None,
            colour: Colour::Ascii,
            ramp: Ramp::VIRIDIS,
            direction: Direction::Reorder,
            title: false,
        }
    }
}

/// All maps of a trace, mean over heads, one below the other, with titles if there are several.
/// Merge subwords first with [`Trace::merge_words`] if words are wanted.
pub fn trace(trace: &Trace, options: &TerminalOptions) -> String {
    let options = TerminalOptions {
        title: options.title || trace.maps.len() > 1,
        ..options.clone()
    };
    let pictures: Vec<String> = Heatmap::maps_of(trace)
        .iter()
        .map(|map| heatmap(map, &options))
        .collect();
    pictures.join("\n")
}

/// One heat map, lines ending in a newline.
pub fn heatmap(heatmap: &Heatmap, options: &TerminalOptions) -> String {
    let whole = draw(heatmap, options, false, None);
    let Some(height) = options.height else {
        return whole;
    };
    if whole.lines().count() <= height {
        return whole;
    }
    let low = draw(heatmap, options, true, None);
    if low.lines().count() <= height {
        return low;
    }
    // First as many columns in a tile as one block needs, then more rows until the picture fits.
    let room = options.width.saturating_sub(8).max(1);
    let wide = (2 * heatmap.columns().len()).div_ceil(room).max(1);
    let mut tall = heatmap.rows().len().div_ceil(height.max(1)).max(1);
    loop {
        let picture = draw(
            &heatmap.pooled(tall, wide),
            options,
            true,
            Some((tall, wide)),
        );
        let lines = picture.lines().count();
        let rows = heatmap.rows().len().div_ceil(tall);
        if lines <= height || rows <= 1 {
            return picture;
        }
        let fewer = rows.saturating_sub(lines - height).max(1);
        tall = heatmap.rows().len().div_ceil(fewer).max(tall + 1);
    }
}

fn draw(
    heatmap: &Heatmap,
    options: &TerminalOptions,
    low: bool,
    tile: Option<(usize, usize)>,
) -> String {
    let painter = Painter {
        heatmap,
        options,
        low,
        max: heatmap.max(),
        rows: heatmap.rows().iter().map(|name| visible(name)).collect(),
        columns: heatmap.columns().iter().map(|name| visible(name)).collect(),
    };
    let mut out = String::new();
    for line in painter.lines(tile) {
        out.push_str(&line.finish(options.colour, options.width));
        out.push('\n');
    }
    out
}

struct Painter<'a> {
    heatmap: &'a Heatmap,
    options: &'a TerminalOptions,
    /// Whether lines are scarce.
    low: bool,
    max: f32,
    rows: Vec<String>,
    columns: Vec<String>,
}

impl Painter<'_> {
    fn lines(&self, tile: Option<(usize, usize)>) -> Vec<Line> {
        let mut lines = Vec::new();
        if self.options.title && !self.heatmap.title().is_empty() {
            let mut line = Line::default();
            line.push(
                Style::BOLD,
                &self.fit(&visible(self.heatmap.title()), self.options.width),
            );
            lines.push(line);
        }
        if self.rows.is_empty() || self.columns.is_empty() {
            let (rows, columns) = (self.rows.len(), self.columns.len());
            let mut line = Line::default();
            line.plain(&format!("(no weights: {rows} rows, {columns} columns)"));
            lines.push(line);
            return lines;
        }
        let widest = self.rows.iter().map(|name| width(name)).max().unwrap_or(0);
        let (label, blocks) = self.columns_beside(widest);
        let left = if label == 0 { 0 } else { label + 1 };
        for (index, block) in blocks.iter().enumerate() {
            if index > 0 {
                lines.push(Line::default());
            }
            self.header(block, left, &mut lines);
            for row in 0..self.rows.len() {
                lines.push(self.row(row, block, label, left));
            }
        }
        lines.push(Line::default());
        if blocks.iter().any(|block| block.header == Header::Numbers) {
            self.key(&mut lines);
        }
        self.legend(tile, &mut lines);
        lines
    }

    /// The width of the row names, given the widest, and the blocks of columns beside them.
    fn columns_beside(&self, widest: usize) -> (usize, Vec<Block>) {
        let room = |label: usize| {
            let left = if label == 0 { 0 } else { label + 1 };
            self.options.width.saturating_sub(left)
        };
        let label = layout::row_label_width(widest, self.options.width);
        let number = if self.heatmap.is_signed() { 4 } else { 3 };
        let blocks = layout::blocks(&self.columns, number, room(label), self.low);
        // Row names are shortened if all columns then fit into one block.
        let short = label.min(SHORT_ROW_LABEL);
        if blocks.len() > 1 {
            let together = layout::blocks(&self.columns, number, room(short), self.low);
            if together.len() == 1 {
                return (short, together);
            }
        }
        (label, blocks)
    }

    fn row(&self, row: usize, block: &Block, label: usize, left: usize) -> Line {
        let mut line = Line::default();
        let name = self.fit(&self.rows[row], label);
        line.pad_to(label.saturating_sub(width(&name)));
        line.plain(&name);
        line.pad_to(left);
        for (column, &cell) in block.columns.clone().zip(&block.cells) {
            let share = self.heatmap.share(row, column, self.max);
            let value = self.heatmap.value(row, column);
            // What is below 0 has the colour of 0, unless colours are for both.
            let (value, size) = match self.heatmap.is_signed() {
                true => (value, value.abs() / self.max),
                false => (value.max(0.0), share),
            };
            let number = match block.values {
                true => short(value),
                false => String::new(),
            };
            let before = (cell - number.len().min(cell)) / 2;
            let after = cell - number.len().min(cell) - before;
            if self.options.colour == Colour::Ascii {
                let fill = dark(share);
                let side = |count: usize| fill.to_string().repeat(count);
                line.plain(&format!("{}{number}{}", side(before), side(after)));
            } else {
                let style = Style {
                    // Most numbers are small, and are written faintly so that the others stand out.
                    faint: size < FAINT_SHARE,
                    ..Style::on(self.options.ramp.at(share))
                };
                let side = |count: usize| " ".repeat(count);
                line.push(style, &format!("{}{number}{}", side(before), side(after)));
            }
        }
        line
    }

    fn header(&self, block: &Block, left: usize, lines: &mut Vec<Line>) {
        match block.header {
            Header::Words => {
                let mut line = Line::default();
                let mut start = left;
                for (column, &cell) in block.columns.clone().zip(&block.cells) {
                    let name = self.fit(&self.columns[column], cell - 1);
                    line.pad_to(start + (cell - width(&name)) / 2);
                    line.plain(&name);
                    start += cell;
                }
                lines.push(line);
            }
            Header::Staircase => {
                let ascii = self.options.colour == Colour::Ascii;
                let (pillar, corner) = if ascii {
                    ("| ", ", ")
                } else {
                    ("│ ", "┌╴")
                };
                for (step, column) in block.columns.clone().enumerate() {
                    let mut line = Line::default();
                    line.pad_to(left);
                    line.push(Style::FAINT, &pillar.repeat(step));
                    line.push(Style::FAINT, corner);
                    let room = self.options.width.saturating_sub(line.width());
                    line.plain(&self.fit(&self.columns[column], room));
                    lines.push(line);
                }
            }
            Header::Stacked => {
                let names: Vec<Vec<String>> = block
                    .columns
                    .clone()
                    .map(|column| stack(&self.columns[column], self.ellipsis()))
                    .collect();
                stacked(&names, block, left, lines);
            }
            Header::Numbers => {
                let names: Vec<Vec<String>> = block
                    .columns
                    .clone()
                    .map(|column| (column + 1).to_string().chars().map(String::from).collect())
                    .collect();
                stacked(&names, block, left, lines);
            }
        }
    }

    /// What the numbers above the columns stand for.
    fn key(&self, lines: &mut Vec<Line>) {
        let mut line = Line::default();
        for (index, name) in self.columns.iter().enumerate() {
            let number = format!("{} ", index + 1);
            let limit = self.options.width.saturating_sub(number.len());
            let name = self.fit(name, limit.min(3 * STACKED_LINES));
            let needed = number.len() + width(&name);
            if line.width() > 0 && line.width() + 2 + needed > self.options.width {
                lines.push(std::mem::take(&mut line));
            }
            if line.width() > 0 {
                line.plain("  ");
            }
            line.push(Style::FAINT, &number);
            line.plain(&name);
        }
        lines.push(line);
    }

    fn legend(&self, tile: Option<(usize, usize)>, lines: &mut Vec<Line>) {
        let options = self.options;
        let (rows, columns) = (self.heatmap.row_axis(), self.heatmap.column_axis());
        let mut caption = Line::default();
        let ascii = options.colour == Colour::Ascii;
        caption.push(
            Style::FAINT,
            &if ascii {
                format!("rows {}, columns {}", visible(rows), visible(columns))
            } else {
                format!("{} ↓  {} →", visible(rows), visible(columns))
            },
        );
        let [low, high] = [0.0, 1.0].map(|share| self.heatmap.mark(share, self.max));
        lines.push(caption);
        lines.push(bar(options, &low, &high));
        if let Some((tall, wide)) = tile {
            let mut note = Line::default();
            let side = match self.heatmap.is_signed() {
                true => ", above or below 0,",
                false => "",
            };
            let text =
                format!("reduced in size: a cell is the largest{side} of {tall} x {wide} weights");
            note.push(Style::FAINT, &self.fit(&text, options.width));
            lines.push(note);
        }
    }

    fn ellipsis(&self) -> &'static str {
        ellipsis(self.options)
    }

    fn fit(&self, text: &str, limit: usize) -> String {
        fitted(text, limit, self.options)
    }
}

fn ellipsis(options: &TerminalOptions) -> &'static str {
    match options.colour {
        Colour::Ascii => "~",
        _ => "…",
    }
}

/// A label that has gone through [`visible`], cut to `limit` columns.
pub(crate) fn fitted(text: &str, limit: usize, options: &TerminalOptions) -> String {
    fit(text, limit, ellipsis(options), |text| {
        match options.direction {
            Direction::Reorder => visual_order(text),
            Direction::Leave if has_rtl(text) => format!("\u{200e}{text}\u{200e}"),
            Direction::Leave => text.to_owned(),
        }
    })
}

/// The bar of colours or of darkness, from one weight to another.
pub(crate) fn scale(options: &TerminalOptions, (low, high): (f32, f32)) -> Line {
    let name = |value: f32| tick(value.into(), f64::from(high - low));
    bar(options, &name(low), &name(high))
}

/// The bar of colours or of darkness, between the names of its ends.
fn bar(options: &TerminalOptions, low: &str, high: &str) -> Line {
    let bar = options
        .width
        .saturating_sub(low.len() + high.len() + 4)
        .min(20);
    let mut scale = Line::default();
    scale.plain(low);
    if options.colour == Colour::Ascii {
        scale.plain(" [");
        for step in 0..bar {
            scale.plain(&dark(position(step, bar)).to_string());
        }
        scale.plain("] ");
    } else {
        scale.plain(" ");
        for step in 0..bar {
            scale.push(Style::on(options.ramp.at(position(step, bar))), " ");
        }
        scale.plain(" ");
    }
    scale.plain(high);
    scale
}

/// The letters of a name from top to bottom, cut to what a header may take.
fn stack(name: &str, ellipsis: &str) -> Vec<String> {
    let mut letters: Vec<String> = name.graphemes(true).map(String::from).collect();
    if letters.len() > STACKED_LINES {
        letters.truncate(STACKED_LINES - 1);
        letters.push(ellipsis.to_owned());
    }
    letters
}

/// Letters above cells, standing on them.
fn stacked(names: &[Vec<String>], block: &Block, left: usize, lines: &mut Vec<Line>) {
    let height = names.iter().map(Vec::len).max().unwrap_or(0);
    for level in (1..=height).rev() {
        let mut line = Line::default();
        let mut start = left;
        for (name, &cell) in names.iter().zip(&block.cells) {
            line.pad_to(start);
            // A grapheme wider than its cell (a flag, an emoji family) would push the rest aside.
            match name.len().checked_sub(level).map(|index| &name[index]) {
                Some(letter) if width(letter) <= cell => line.plain(letter),
                Some(_) => line.plain("?"),
                None => {}
            }
            start += cell;
        }
        lines.push(line);
    }
}

/// The character of this darkness, from 0 to 1.
pub(crate) fn dark(share: f32) -> char {
    let last = (DARKNESS.len() - 1) as f32;
    let index = if share > 0.0 {
        (share * last).round().min(last)
    } else {
        0.0
    };
    char::from(DARKNESS[index as usize])
}

/// The place of step `index` out of `count` between 0 and 1.
fn position(index: usize, count: usize) -> f32 {
    index as f32 / (count.max(2) - 1) as f32
}
