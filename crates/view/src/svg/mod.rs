//! Standalone SVG: one heat map, or several side by side.
//!
//! Keys stand above the columns, queries beside the rows; a colour bar shows the scale; hovering over a
//! cell shows `query → key: 0.83`. A map of more than [`SvgOptions::hover_cells`] cells is embedded as an image of one
//! pixel a cell, so that 300 x 300 weights take some ten kilobytes. The background is white. Nothing is
//! loaded from elsewhere.
//!
//! ```
//! use regard_trace::{AttentionMap, Kind, Tokens};
//! use regard_view::Heatmap;
//! use regard_view::svg::{SvgOptions, heatmap};
//!
//! let (keys, queries) = (Tokens::from_words("a man"), Tokens::from_words("ein Mann"));
//! let map = AttentionMap::new(Kind::Cross, queries, keys, 1, vec![0.9, 0.1, 0.2, 0.8])?;
//! let picture = heatmap(&Heatmap::from_map(&map), &SvgOptions::default());
//! assert!(picture.contains("<title>Mann → man: 0.80</title>"));
//! # Ok::<(), regard_trace::TraceError>(())
//! ```

pub mod base64;
mod panel;
pub(crate) mod pixels;
pub(crate) mod xml;

use std::fmt::Write;

use regard_trace::Trace;

use crate::Heatmap;
use crate::colour::Ramp;
use panel::Panel;
pub(crate) use panel::{colour_bar, tick, weight};
use xml::{Anchor, Face, open, open_group, shown, text};

/// How heat maps are drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct SvgOptions {
    /// The colours. Default [`Ramp::PAPER`].
    pub ramp: Ramp,
    /// Whether cells that are large enough show their weight. Default true.
    pub values: bool,
    /// The pixels that the cells of a single map take at most in either direction; cells are 30
    /// pixels wide at most. Default 780.
    pub room: f64,
    /// Maps of at most this many cells have a text for every cell to hover; larger ones become an
    /// image of one pixel a cell. Default 6000.
    pub hover_cells: usize,
    /// The pixels that a row of several maps takes at most. Default 1400.
    pub width: f64,
}

impl Default for SvgOptions {
    fn default() -> Self {
        Self {
            ramp: Ramp::PAPER,
            values: true,
            room: 780.0,
            hover_cells: 6000,
            width: 1400.0,
        }
    }
}

/// The space around everything, and between maps.
const MARGIN: f64 = 20.0;

/// The room that the bar of colours takes with its numbers.
const BAR: f64 = 60.0;

/// One heat map.
pub fn heatmap(heatmap: &Heatmap, options: &SvgOptions) -> String {
    let panel = Panel::new(heatmap, options, options.room);
    let bar = panel.map_height().clamp(60.0, 180.0);
    let below = (bar - panel.map_height()).max(0.0);
    let mut out = String::new();
    let width = panel.width() + BAR + 2.0 * MARGIN;
    open(
        &mut out,
        width,
        panel.height() + below + 2.0 * MARGIN,
        heatmap.title(),
        "attention",
    );
    open_group(&mut out, MARGIN, MARGIN);
    panel.draw(&mut out, heatmap.max());
    let x = panel.left + panel.map_width() + 16.0;
    colour_bar(&mut out, options.ramp, x, panel.top, bar, |share| {
        heatmap.mark(share, heatmap.max())
    });
    out.push_str("</g>\n</svg>\n");
    out
}

/// Several heat maps in rows, with one scale of colours for all, so that they can be compared.
pub fn grid(heatmaps: &[Heatmap], options: &SvgOptions) -> String {
    if let [single] = heatmaps {
        return heatmap(single, options);
    }
    // Small multiples: the more there are, the less room each gets, within what can be read.
    let room = (options.room / (heatmaps.len() as f64).sqrt().max(1.0))
        .max(180.0)
        .min(options.room);
    let panels: Vec<Panel> = heatmaps
        .iter()
        .map(|map| Panel::new(map, options, room))
        .collect();
    let max = heatmaps.iter().map(Heatmap::max).fold(0.0, f32::max);

    let pitch = panels.iter().map(Panel::width).fold(0.0, f64::max) + 1.5 * MARGIN;
    let across = ((options.width / pitch) as usize).clamp(1, panels.len().max(1));
    let mut places = Vec::with_capacity(panels.len());
    let mut y = 0.0;
    for row in panels.chunks(across) {
        places.extend((0..row.len()).map(|column| (column as f64 * pitch, y)));
        y += row.iter().map(Panel::height).fold(0.0, f64::max) + 1.5 * MARGIN;
    }
    let right = across as f64 * pitch - 1.5 * MARGIN;
    let bar = 180.0;
    let height = (y - 1.5 * MARGIN).max(bar + 40.0);
    let mut out = String::new();
    open(
        &mut out,
        right + BAR + 2.0 * MARGIN,
        height + 2.0 * MARGIN,
        "",
        "attention",
    );
    open_group(&mut out, MARGIN, MARGIN);
    for (panel, (x, y)) in panels.iter().zip(places) {
        open_group(&mut out, x, y);
        panel.draw(&mut out, max);
        out.push_str("</g>\n");
    }
    let top = panels.first().map_or(0.0, |panel| panel.top);
    let mark = |share| (heatmaps.first()).map_or(String::new(), |map| map.mark(share, max));
    colour_bar(&mut out, options.ramp, right + 16.0, top, bar, mark);
    out.push_str("</g>\n</svg>\n");
    out
}

/// Heat maps that belong together, such as the heads of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Stands before them.
    pub title: String,
    /// In order; the title of each stands below it.
    pub heatmaps: Vec<Heatmap>,
}

/// Many heat maps, each in a small square without labels, a row for each group. Each has its own scale of colours, as the
/// shape is what can be seen at this size.
///
/// ```
/// use regard_view::{Heatmap, svg::{Group, SvgOptions, mosaic}};
///
/// let map = Heatmap::table(vec!["ein".into()], vec!["a".into()], vec![1.0]).titled("sink");
/// let layer = Group { title: "layer 1".into(), heatmaps: vec![map; 12] };
/// assert_eq!(mosaic(&[layer], &SvgOptions::default()).matches(">sink<").count(), 12);
/// ```
pub fn mosaic(groups: &[Group], options: &SvgOptions) -> String {
    const SIDE: f64 = 72.0;
    const PITCH: (f64, f64) = (SIDE + 14.0, SIDE + 24.0);
    const LEFT: f64 = 190.0;
    let across = (((options.width - LEFT) / PITCH.0) as usize).max(1);
    let widest = groups.iter().map(|group| group.heatmaps.len().min(across));
    let width = LEFT + widest.max().unwrap_or(0) as f64 * PITCH.0;
    let lines = |group: &Group| group.heatmaps.len().div_ceil(across).max(1);
    let height = groups.iter().map(lines).sum::<usize>() as f64 * PITCH.1;
    let mut out = String::new();
    let margins = 2.0 * MARGIN;
    open(&mut out, width + margins, height + margins, "", "attention");
    open_group(&mut out, MARGIN, MARGIN);
    let mut top = 0.0;
    for group in groups {
        let face = Face::new(13.0, Anchor::End);
        let title = shown(&group.title, 13.0, LEFT - 16.0);
        text(&mut out, LEFT - 12.0, top + SIDE / 2.0, face, &title);
        for (index, map) in group.heatmaps.iter().enumerate() {
            let x = LEFT + (index % across) as f64 * PITCH.0;
            let y = top + (index / across) as f64 * PITCH.1;
            let (size, max) = ([map.rows().len(), map.columns().len()], map.max());
            pixels::embed(&mut out, [x, y, SIDE, SIDE], size, |row, column| {
                options.ramp.at(map.share(row, column, max))
            });
            let _ = writeln!(
                out,
                r##"<rect x="{x}" y="{y}" width="{SIDE}" height="{SIDE}" fill="none" stroke="#cdd5df" stroke-width="0.5"/>"##
            );
            let face = Face::new(10.0, Anchor::Middle).faint();
            let name = shown(map.title(), 10.0, PITCH.0);
            text(&mut out, x + SIDE / 2.0, y + SIDE + 12.0, face, &name);
        }
        top += lines(group) as f64 * PITCH.1;
    }
    out.push_str("</g>\n</svg>\n");
    out
}

/// All maps of a trace, mean over heads. A single map is titled with its layer and name only if
/// there are several. Merge subwords first with [`Trace::merge_words`] if words are wanted.
pub fn trace(trace: &Trace, options: &SvgOptions) -> String {
    match Heatmap::maps_of(trace).as_slice() {
        [single] => heatmap(&single.clone().titled(""), options),
        several => grid(several, options),
    }
}
