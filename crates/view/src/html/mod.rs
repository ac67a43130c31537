//! One HTML page to explore traces in: a single file that loads nothing from anywhere.
//!
//! The page shows a heat map or lines between the two texts; hovering, touching or the arrow keys
//! show a weight and mark its row and column. Controls choose the n-best entry, the map, the head
//! or the mean, words or subwords, and the least weight shown. It follows the reader's light or dark
//! scheme. A trace with an image whose maps have cells or boxes of it as keys is shown over the image, smooth or by cell: words, object
//! queries, class token or a cell to choose, and hovering a cell shows its weight. An address that ends in `#lines` `#heat` or `#subwords` opens the page in that view. Without
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

use std::fmt::Write as _;

use regard_trace::{AttentionMap, Axis, Image, Trace};
use serde::Serialize;

use crate::Heatmap;
use crate::colour::{CATEGORIES, Ramp, Rgb, category};
use crate::image::raster::{OPACITY, SATURATION};
use crate::image::{ImageChoice, ImageOptions, ImagePicture, Outline, Overlay};
use crate::label::visible;
use crate::png;
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
    over_images: OverImages,
}

/// How maps lie over images, and colours of boxes: as in [`image`](crate::image).
#[derive(Serialize)]
struct OverImages {
    ramp: Vec<String>,
    /// Of a weight of 0 and of the largest.
    opacity: [f32; 2],
    saturation: f32,
    categories: Vec<String>,
}

#[derive(Serialize)]
struct Entry {
    model: String,
    source: String,
    target: String,
    score: Option<f64>,
    rank: Option<usize>,
    image: Option<Picture>,
    maps: Vec<Map>,
}

#[derive(Serialize)]
struct Picture {
    width: usize,
    height: usize,
    /// The address of its pixels.
    address: String,
}

/// Where the entries of an axis lie in the image.
#[derive(Serialize)]
enum Places {
    #[serde(rename = "grid")]
    Grid {
        /// Tokens before the first cell.
        marks: usize,
        rows: usize,
        columns: usize,
    },
    #[serde(rename = "boxes")]
    Boxes(Vec<Place>),
}

#[derive(Serialize)]
struct Place {
    /// x, y, width, height, as shares of the image's.
    bounds: [f32; 4],
    score: Option<f32>,
    /// The data of a path in pixels of the image.
    mask: Option<String>,
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
    /// Where queries and keys lie in the image of the entry, if it has one.
    query_places: Option<Places>,
    key_places: Option<Places>,
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
        over_images: OverImages {
            ramp: hex(Ramp::VIRIDIS.anchors().iter().copied()),
            opacity: [OPACITY.0, OPACITY.1],
            saturation: SATURATION,
            categories: hex((0..CATEGORIES).map(category)),
        },
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
    let first = traces.first();
    let over_image = first
        .and_then(|trace| ImagePicture::of(&trace.merge_words(), &ImageChoice::default()).ok())
        .map(|picture| {
            picture.svg(&ImageOptions {
                overlay: Overlay::ByCell,
                hover_cells: 1000,
                ..ImageOptions::default()
            })
        });
    let picture = over_image.unwrap_or_else(|| {
        first
            .and_then(|trace| trace.maps.first())
            .map(|map| svg::heatmap(&Heatmap::from_map(&map.merge_words()), &picture_options))
            .unwrap_or_default()
    });
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
<label id="over"><input type="radio" name="view" value="image">Image</label><label><input type="radio" name="view" value="heat" checked>Heat map</label><label><input type="radio" name="view" value="lines">Lines</label>
</div></fieldset>
<label>Map <select id="map"></select></label>
<label>Head <select id="head"></select></label>
<fieldset id="pieces"><div class="choice" role="group" aria-label="Pieces">
<label><input type="radio" name="pieces" value="words" checked>Words</label><label><input type="radio" name="pieces" value="subwords">Subwords</label>
</div></fieldset>
<fieldset id="overlay"><div class="choice" role="group" aria-label="Overlay">
<label><input type="radio" name="overlay" value="smooth" checked>Smooth</label><label><input type="radio" name="overlay" value="cells">By cell</label>
</div></fieldset>
<label>Show <input type="range" id="least" min="0" max="100" value="0" aria-label="Least weight shown, as a percentage of the largest"><output id="least-value" for="least"></output></label>
<span class="scale" aria-hidden="true"><span id="bar-min">0.00</span> <i id="bar"></i> <span id="bar-max"></span></span>
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

/// A picture on a page, with its numbers.
#[derive(Debug, Clone, Copy)]
pub struct Figure<'a> {
    /// What it shows; empty where the page's title says so.
    pub title: &'a str,
    /// An SVG that [`chart`](crate::chart) or [`svg`](mod@crate::svg) made.
    pub svg: &'a str,
    /// Its numbers, as plain text.
    pub text: &'a str,
}

/// A page with pictures below each other, and the numbers of each below it.
///
/// ```
/// use regard_view::{chart::Chart, html};
///
/// let svg = Chart::new("", "", "").svg();
/// let figure = html::Figure { title: "", svg: &svg, text: "position  loss" };
/// let page = html::figures("Losses <1>", &[figure]);
/// assert!(page.starts_with("<!DOCTYPE html>") && page.contains("Losses &lt;1&gt;") && page.contains("position  loss"));
/// assert!(!page.contains('∅'));
/// ```
pub fn figures(title: &str, figures: &[Figure<'_>]) -> String {
    let title = escape(&visible(title));
    let mut sections = String::new();
    for figure in figures {
        if !figure.title.is_empty() {
            let title = escape(&visible(figure.title));
            let _ = writeln!(sections, "<h2>{title}</h2>");
        }
        let text = figure.text.lines().map(|line| match line {
            "" => "\n".to_owned(),
            // The columns of a table stand below each other; sentences are broken where the page ends.
            line if line.trim_start().contains("  ") => {
                format!("<span>{}</span>\n", escape(&visible(line)))
            }
            line => escape(&visible(line)) + "\n",
        });
        let text: String = text.collect();
        let _ = writeln!(sections, "{}<pre>{text}</pre>", figure.svg);
    }
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
main pre {{ white-space: pre-wrap; overflow-x: auto; }}
main pre span {{ white-space: pre; }}
</style>
</head>
<body>
<header><h1>{title}</h1></header>
<main>
{sections}</main>
</body>
</html>
"#,
        version = env!("CARGO_PKG_VERSION"),
        style = include_str!("style.css"),
    )
}

fn entry(trace: &Trace) -> Entry {
    Entry {
        model: visible_or_empty(&trace.model),
        source: visible_or_empty(&trace.source),
        target: visible_or_empty(&trace.target),
        score: trace.score.filter(|score| score.is_finite()),
        rank: trace.rank,
        image: trace.image.as_ref().and_then(picture),
        maps: trace
            .maps
            .iter()
            .map(|of| map(of, trace.image.as_ref()))
            .collect(),
    }
}

fn visible_or_empty(text: &str) -> String {
    if text.is_empty() {
        String::new()
    } else {
        visible(text)
    }
}

/// The image with at most as many pixels on a side as a page can show.
fn picture(image: &Image) -> Option<Picture> {
    const MOST: usize = 1024;
    let png = png::from_image(image, MOST).ok()?;
    Some(Picture {
        width: image.width(),
        height: image.height(),
        address: format!("data:image/png;base64,{}", base64::encode(&png)),
    })
}

fn hex(colours: impl Iterator<Item = Rgb>) -> Vec<String> {
    colours.map(|colour| colour.to_string()).collect()
}

fn places(axis: &Axis, image: &Image) -> Option<Places> {
    match axis {
        Axis::Image {
            prefix,
            rows,
            columns,
        } if *rows > 0 && *columns > 0 => Some(Places::Grid {
            marks: prefix.len(),
            rows: *rows,
            columns: *columns,
        }),
        Axis::Regions { regions } => {
            let (width, height) = (image.width() as f32, image.height() as f32);
            let places = regions.iter().map(|region| {
                let bounds = region.bounds();
                let mask = region.mask();
                let fits = mask.filter(|mask| {
                    [mask.height(), mask.width()] == [image.height(), image.width()]
                });
                Place {
                    bounds: [
                        bounds.x / width,
                        bounds.y / height,
                        bounds.width / width,
                        bounds.height / height,
                    ],
                    score: region.score(),
                    mask: fits.map(|mask| Outline::of(mask).area(1.0, 1.0)),
                }
            });
            Some(Places::Boxes(places.collect()))
        }
        _ => None,
    }
}

fn map(map: &AttentionMap, image: Option<&Image>) -> Map {
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
        query_places: image.and_then(|image| places(map.queries(), image)),
        key_places: image.and_then(|image| places(map.keys(), image)),
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
