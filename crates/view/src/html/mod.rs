//! One HTML page to explore traces in: a single file that loads nothing from anywhere.
//!
//! The page shows a heat map or lines between the two texts; hovering, touching or the arrow keys
//! show a weight and mark its row and column. Controls choose the n-best entry, the map, the head
//! or the mean, words or subwords, and the least weight shown. It follows the reader's light or dark
//! scheme. An address that ends in `#lines` or `#subwords` opens the page in that view. Without
//! scripts the first map is shown as a picture.
//!
//! Weights are stored with 16 bits, as shares of the map's largest: the error is below 1e-5 of it.
//!
//! ```
//! use regard_trace::{AttentionMap, Kind, Tokens, Trace};
//! use regard_view::html::{HtmlOptions, page};
//!
//! let (keys, queries) = (Tokens::from_words("a man"), Tokens::from_words("ein </script>"));
//! let map = AttentionMap::new(Kind::Cross, queries, keys, 1, vec![0.9, 0.1, 0.2, 0.8])?;
//! let trace = Trace::new("rnnsearch", "a man", "ein </script>").with_map(map);
//! let html = page(&[trace], &HtmlOptions::default());
//! assert!(html.starts_with("<!DOCTYPE html>") && html.matches("</script>").count() == 2);
//! # Ok::<(), regard_trace::TraceError>(())
//! ```

use regard_trace::{AttentionMap, Trace};
use serde::Serialize;

use crate::Heatmap;
use crate::label::visible;
use crate::svg::{self, SvgOptions, base64, xml::escape};

/// Options of the page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HtmlOptions {
    /// The title. Default "What the model looked at".
    pub title: String,
}

impl Default for HtmlOptions {
    fn default() -> Self {
        Self {
            title: "What the model looked at".to_owned(),
        }
    }
}

#[derive(Serialize)]
struct Page {
    entries: Vec<Entry>,
}

#[derive(Serialize)]
struct Entry {
    model: String,
    source: String,
    target: String,
    score: Option<f64>,
    rank: Option<usize>,
    maps: Vec<Map>,
}

#[derive(Serialize)]
struct Map {
    title: String,
    /// Names of the query and the key axis.
    axes: [&'static str; 2],
    heads: usize,
    normalized: bool,
    /// The largest weight, which 65535 stands for.
    scale: f32,
    tokens: Table,
    /// The map between words, if any word has several subwords.
    words: Option<Table>,
}

#[derive(Serialize)]
struct Table {
    queries: Vec<String>,
    keys: Vec<String>,
    /// `[heads, queries, keys]` as little-endian 16-bit integers in base 64.
    data: String,
}

/// A page with these traces: the entries of an n-best list, or several sentences. Pass maps between
/// subwords as the model made them; the page merges them into words by itself.
pub fn page(traces: &[Trace], options: &HtmlOptions) -> String {
    let page = Page {
        entries: traces.iter().map(entry).collect(),
    };
    // Strings and finite numbers always have a JSON form. With an unescaped `<` a token could end
    // the element.
    let json = serde_json::to_string(&page)
        .unwrap_or_else(|_| r#"{"entries":[]}"#.to_owned())
        .replace('<', "\\u003c");
    let title = escape(&visible(&options.title));
    let picture_options = SvgOptions {
        hover_cells: 1000,
        ..SvgOptions::default()
    };
    let picture = traces
        .first()
        .and_then(|trace| trace.maps.first())
        .map(|map| svg::heatmap(&Heatmap::from_map(&map.merge_words()), &picture_options))
        .unwrap_or_default();
    let (style, script) = (include_str!("style.css"), include_str!("script.js"));
    format!(
        r#"<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">
<meta name="generator" content="regard {version}">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<header>
<h1>{title}</h1>
<p id="texts"><span id="source"></span> → <span id="target"></span></p>
<p id="model"></p>
</header>
<nav aria-label="Entries"><fieldset id="entries"><legend>Entries</legend></fieldset></nav>
<main>
<div class="tools">
<fieldset id="view"><div class="choice" role="group" aria-label="View">
<label><input type="radio" name="view" value="heat" checked>Heat map</label><label><input type="radio" name="view" value="lines">Lines</label>
</div></fieldset>
<label>Map <select id="map"></select></label>
<label>Head <select id="head"></select></label>
<fieldset id="pieces"><div class="choice" role="group" aria-label="Pieces">
<label><input type="radio" name="pieces" value="words" checked>Words</label><label><input type="radio" name="pieces" value="subwords">Subwords</label>
</div></fieldset>
<label>Show <input type="range" id="least" min="0" max="100" value="0" aria-label="Least weight shown, as a percentage of the largest"><output id="least-value" for="least"></output></label>
<span class="scale" aria-hidden="true">0.00 <i id="bar"></i> <span id="bar-max"></span></span>
</div>
<p id="readout" role="status" aria-live="polite"></p>
<div id="figure"></div>
<noscript>{picture}</noscript>
</main>
<div id="tip" hidden></div>
<script type="application/json" id="traces">{json}</script>
<script>
{script}</script>
</body>
</html>
"#,
        version = env!("CARGO_PKG_VERSION"),
    )
}

/// A page with one picture, an SVG that [`chart`](crate::chart) or [`svg`](mod@crate::svg) made, and its numbers as plain `text` below it.
///
/// ```
/// use regard_view::{chart::Chart, html};
///
/// let page = html::figure("Losses <1>", &Chart::new("", "", "").svg(), "position  loss");
/// assert!(page.starts_with("<!DOCTYPE html>") && page.contains("Losses &lt;1&gt;") && page.contains("position  loss"));
/// ```
pub fn figure(title: &str, svg: &str, text: &str) -> String {
    let title = escape(&visible(title));
    let text: Vec<String> = text.lines().map(|line| escape(&visible(line))).collect();
    format!(
        r#"<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="generator" content="regard {version}">
<title>{title}</title>
<style>
{style}
main svg {{ max-width: 100%; height: auto; }}
</style>
</head>
<body>
<header><h1>{title}</h1></header>
<main>
{svg}<pre>{text}</pre>
</main>
</body>
</html>
"#,
        version = env!("CARGO_PKG_VERSION"),
        style = include_str!("style.css"),
        text = text.join("\n"),
    )
}

fn entry(trace: &Trace) -> Entry {
    Entry {
        model: visible_or_empty(&trace.model),
        source: visible_or_empty(&trace.source),
        target: visible_or_empty(&trace.target),
        score: trace.score.filter(|score| score.is_finite()),
        rank: trace.rank,
        maps: trace.maps.iter().map(map).collect(),
    }
}

fn visible_or_empty(text: &str) -> String {
    if text.is_empty() {
        String::new()
    } else {
        visible(text)
    }
}

fn map(map: &AttentionMap) -> Map {
    let merged = map.merge_words();
    let largest = |map: &AttentionMap| map.weights().iter().copied().fold(0.0, f32::max);
    let scale = largest(map).max(largest(&merged));
    let (queries, keys) = map.axis_names();
    Map {
        title: format!("{}, layer {}", visible(map.name()), map.layer() + 1),
        axes: [queries, keys],
        heads: map.heads(),
        normalized: map.is_normalized(),
        scale,
        words: (merged.shape() != map.shape()).then(|| table(&merged, scale)),
        tokens: table(map, scale),
    }
}

fn table(map: &AttentionMap, scale: f32) -> Table {
    let names = |labels: Vec<String>| labels.iter().map(|name| visible(name)).collect();
    let share = |weight: f32| match scale > 0.0 {
        true => (weight / scale * 65535.0).round() as u16,
        false => 0,
    };
    let bytes: Vec<u8> = map
        .weights()
        .iter()
        .flat_map(|&w| share(w).to_le_bytes())
        .collect();
    Table {
        queries: names(map.row_labels()),
        keys: names(map.keys().labels()),
        data: base64::encode(&bytes),
    }
}
