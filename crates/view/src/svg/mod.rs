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

pub(crate) mod base64;
mod panel;
pub(crate) mod pixels;
pub(crate) mod xml;

use regard_trace::Trace;

use crate::Heatmap;
use crate::colour::Ramp;
use panel::Panel;
pub(crate) use panel::{colour_bar, tick, weight};
use xml::{open, open_group};

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
    colour_bar(
        &mut out,
        options.ramp,
        x,
        panel.top,
        bar,
        (0.0, heatmap.max()),
    );
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
    colour_bar(&mut out, options.ramp, right + 16.0, top, bar, (0.0, max));
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
