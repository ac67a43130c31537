//! A view as a file: SVG, PNG, or a page of its own, all made by `regard-view`.

use std::ops::Range;

use regard_trace::{AttentionMap, Axis, Token, Tokens, Trace};
use regard_view::Heatmap;
use regard_view::chart::{Chart, stacked};
use regard_view::choice::Pick;
use regard_view::colour::Ramp;
use regard_view::html;
use regard_view::image::{self, ImageChoice, ImageError, ImageOptions, ImagePicture};
use regard_view::png::{PngOptions, from_svg};
use regard_view::svg::{self, SvgOptions};
use regard_view::tree::{self, Fate, Proposal};
use serde::Deserialize;

use crate::data::{self, Asked, Direction, Entry, Heads, Pool, sums, window};
use crate::standalone;

/// Maps with more weights than this are pictures in a page, not data.
const MOST_WEIGHTS: usize = 4 << 20;

/// Rows and columns of an exported map; a larger one is pooled.
const MOST_SIDE: usize = 512;

/// Rows of a picture of chosen tokens or of an image. The page offers no files of more (`page/app.js`).
const MOST_ROWS: usize = 64;

/// The largest weights that a page lists below its picture.
const LISTED: usize = 200;

/// What is drawn.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum View {
    Overview,
    Head,
    Text,
    Image,
    Compare,
    Training,
}

/// How the weights of cells lie over an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overlay {
    /// Smooth between the cells.
    Smooth,
    /// Each cell in one colour.
    Cells,
    /// The image without weights.
    None,
}

impl Overlay {
    /// Its name in the page's address.
    fn name(self) -> &'static str {
        match self {
            Self::Smooth => "smooth",
            Self::Cells => "cells",
            Self::None => "none",
        }
    }
}

/// The form of the file.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    Svg,
    Png,
    Html,
}

impl Format {
    /// Media type and ending.
    pub fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Svg => ("image/svg+xml", "svg"),
            Self::Png => ("image/png", "png"),
            Self::Html => ("text/html; charset=utf-8", "html"),
        }
    }
}

/// The heads of one map of a trace.
pub struct Source<'a> {
    pub entry: &'a Entry,
    pub words: bool,
    pub map: &'a AttentionMap,
    pub heads: Heads,
    /// The window that the view [`View::Head`] shows.
    pub queries: Range<usize>,
    pub keys: Range<usize>,
}

impl Source<'_> {
    fn title(&self) -> String {
        let heads = match (&self.heads.chosen[..], self.heads.by) {
            ([head], _) => format!("head {}", head + 1),
            (heads, Pool::Mean) => format!("mean of {} heads", heads.len()),
            (heads, Pool::Max) => format!("largest of {} heads", heads.len()),
        };
        format!(
            "{} · layer {} · {heads}",
            self.map.name(),
            self.map.layer() + 1
        )
    }

    /// All weights, `[queries, keys]`.
    fn weights(&self) -> Vec<f32> {
        let [_, queries, keys] = self.map.shape();
        window(
            self.map,
            &self.heads,
            0..queries,
            0..keys,
            usize::MAX,
            Pool::Mean,
        )
        .values
    }

    fn size(&self) -> usize {
        self.map.queries().len() * self.map.keys().len()
    }

    /// The map of these heads alone.
    fn reduced(&self) -> Result<AttentionMap, String> {
        let (queries, keys) = (self.map.queries().clone(), self.map.keys().clone());
        let map = match self.map.is_normalized() && self.heads.by == Pool::Mean {
            true => AttentionMap::new(self.map.kind(), queries, keys, 1, self.weights()),
            false => AttentionMap::unnormalized(self.map.kind(), queries, keys, 1, self.weights()),
        };
        let named = map.map(|map| map.named(self.map.name()).at_layer(self.map.layer()));
        let predicted = match self.map.predictions() {
            Some(axis) => named.and_then(|map| map.predicting(axis.clone())),
            None => named,
        };
        predicted.map_err(|error| error.to_string())
    }

    /// The trace with one map alone.
    fn trace(&self, map: AttentionMap) -> Trace {
        let whole = self.entry.trace(self.words);
        Trace {
            model: whole.model.clone(),
            source: whole.source.clone(),
            target: whole.target.clone(),
            score: whole.score,
            rank: whole.rank,
            image: whole.image.clone(),
            maps: vec![map],
            metadata: Default::default(),
        }
    }

    /// Whether the window is the whole map.
    fn is_whole(&self) -> bool {
        [self.queries.len(), self.keys.len()] == [self.map.queries().len(), self.map.keys().len()]
    }

    /// The window, pooled if it is large.
    fn heatmap(&self) -> Heatmap {
        let part = window(
            self.map,
            &self.heads,
            self.queries.clone(),
            self.keys.clone(),
            MOST_SIDE,
            Pool::Max,
        );
        let pooled = self.queries.len() > part.rows || self.keys.len() > part.columns;
        let title = match pooled {
            true => format!("{}, largest of each cell", self.title()),
            false => self.title(),
        };
        let labels = |labels: Vec<String>, range: &Range<usize>, count: usize| -> Vec<String> {
            let first = |i: usize| labels[range.start + i * range.len() / count].clone();
            (0..count).map(first).collect()
        };
        Heatmap::table(
            labels(self.map.row_labels(), &self.queries, part.rows),
            labels(self.map.keys().labels(), &self.keys, part.columns),
            part.values,
        )
        .with_axes(self.map.axis_names().0, self.map.axis_names().1)
        .titled(title)
    }
}

/// The file of a view. `chosen` are queries, or keys for [`Direction::To`].
///
/// # Errors
/// A sentence that says why there is no such picture.
pub fn file(
    view: View,
    format: Format,
    one: &Source<'_>,
    other: Option<&Source<'_>>,
    chosen: &[usize],
    direction: Direction,
    overlay: Overlay,
) -> Result<Vec<u8>, String> {
    let title = one.title();
    let (svg, text) = match view {
        View::Overview => overview(one),
        View::Head => {
            let data =
                matches!(format, Format::Html) && one.is_whole() && one.size() <= MOST_WEIGHTS;
            if data {
                return Ok(page(one, &title, "view=head")?.into_bytes());
            }
            let heatmap = one.heatmap();
            (
                svg::heatmap(&heatmap, &SvgOptions::default()),
                largest(&heatmap),
            )
        }
        View::Text => {
            let heatmap = tokens(one, chosen, direction)?;
            (
                svg::heatmap(&heatmap, &SvgOptions::default()),
                largest(&heatmap),
            )
        }
        View::Image => {
            if matches!(format, Format::Html) && one.size() <= MOST_WEIGHTS {
                let chosen: Vec<String> = chosen.iter().map(usize::to_string).collect();
                let address = format!(
                    "view=image&chosen={}&overlay={}",
                    chosen.join(","),
                    overlay.name()
                );
                return Ok(page(one, &title, &address)?.into_bytes());
            }
            (over_image(one, chosen, overlay)?, String::new())
        }
        View::Training => return Err("this is no training, but a trace".to_owned()),
        View::Compare => compared(
            one,
            other.ok_or("expected trace2 and map2: what to compare with")?,
        )?,
    };
    finished(format, &title, svg, &text)
}

/// The file of a table of numbers.
///
/// # Errors
/// A sentence, if there is no memory for the picture.
pub fn table(heatmap: &Heatmap, format: Format) -> Result<Vec<u8>, String> {
    let mut options = SvgOptions::default();
    if heatmap.is_signed() {
        options.ramp = Ramp::SIGNED;
    }
    let svg = svg::heatmap(heatmap, &options);
    finished(format, heatmap.title(), svg, &largest(heatmap))
}

/// The file of charts below each other.
///
/// # Errors
/// As for [`table`].
pub fn charts(title: &str, charts: &[Chart], format: Format) -> Result<Vec<u8>, String> {
    let text: Vec<String> = charts.iter().map(|chart| chart.text(100, 16)).collect();
    finished(format, title, stacked(charts), &text.join("\n"))
}

/// The tree of a search, whose lines lead to the text of trace `id`.
///
/// # Errors
/// As for [`table`].
pub fn tree(
    search: &Asked,
    id: u64,
    title: &str,
    all: bool,
    format: Format,
) -> Result<Vec<u8>, String> {
    let proposals = &search.proposals;
    let shown = search.hypotheses.iter().find(|one| one.trace == id);
    let mut path = vec![false; proposals.len()];
    let mut at = shown.map(|one| one.leaf);
    while let Some(place) = at.filter(|&place| path.get(place) == Some(&false)) {
        path[place] = true;
        at = proposals[place].parent;
    }
    // The places of those that are drawn, among them.
    let mut places = vec![None; proposals.len()];
    let mut drawn: Vec<Proposal> = vec![];
    let mut text = String::new();
    for (index, one) in proposals.iter().enumerate() {
        if !(all || one.taken || path[index]) {
            continue;
        }
        let parent = one.parent.and_then(|parent| *places.get(parent)?);
        places[index] = Some(drawn.len());
        let name = crate::data::name(&one.text);
        let before = parent.map_or("", |parent| drawn[parent].text.as_str());
        text.push_str(&format!("{:.4}  {before} → {name}\n", one.probability));
        drawn.push(Proposal {
            parent,
            text: name,
            probability: one.probability,
            fate: match (path[index], one.taken) {
                (true, _) => Fate::Chosen,
                (false, true) => Fate::Taken,
                (false, false) => Fate::Left,
            },
        });
    }
    let title = data::shown(title, 200);
    finished(format, &title, tree::svg(&title, &drawn), &text)
}

/// A picture in the form that was asked for; a page has `text` below it.
///
/// # Errors
/// A sentence, if there is no memory for the picture.
pub fn finished(format: Format, title: &str, svg: String, text: &str) -> Result<Vec<u8>, String> {
    match format {
        Format::Svg => Ok(svg.into_bytes()),
        Format::Png => from_svg(&svg, &PngOptions::default()).map_err(|error| error.to_string()),
        Format::Html => {
            let figure = html::Figure {
                title: "",
                svg: &svg,
                text,
            };
            Ok(html::figures(title, &[figure]).into_bytes())
        }
    }
}

/// The page with this map alone, as the view at `address` shows it.
fn page(source: &Source<'_>, title: &str, address: &str) -> Result<String, String> {
    let trace = source.trace(source.reduced()?);
    let shown = vec![(title.to_owned(), trace.into())];
    // The page would make words of pieces by itself.
    let words = u8::from(source.words);
    let address = format!("{address}&words={words}");
    Ok(standalone::opened(title, shown, &address))
}

/// The largest weights of a table, a line each.
fn largest(heatmap: &Heatmap) -> String {
    let columns = heatmap.columns().len();
    let mut places: Vec<usize> = (0..heatmap.values().len()).collect();
    let value = |&place: &usize| heatmap.values()[place];
    let size = |place: &usize| match heatmap.is_signed() {
        true => value(place).abs(),
        false => value(place),
    };
    places.sort_by(|a, b| size(b).total_cmp(&size(a)));
    let lines = places
        .iter()
        .take(LISTED)
        .filter(|place| size(place) > 0.0)
        .map(|&place| {
            let (row, column) = (place / columns, place % columns);
            let (row, column) = (&heatmap.rows()[row], &heatmap.columns()[column]);
            let (row, column) = (data::name(row), data::name(column));
            format!("{:.4}  {row} → {column}\n", value(&place))
        });
    lines.collect()
}

/// Every head of the trace, small.
fn overview(source: &Source<'_>) -> (String, String) {
    let trace = source.entry.trace(source.words);
    let mut groups: Vec<svg::Group> = vec![];
    let mut text = String::new();
    for (map, seen) in trace
        .maps
        .iter()
        .zip(source.entry.overview(source.words, Pool::Mean))
    {
        let cells = seen.heads.iter().map(|head| {
            text.push_str(&format!("{}, {}\n", map.name(), head.text));
            let value = |i: usize| {
                let digits = head.small.get(2 * i..2 * i + 2).unwrap_or("00");
                f32::from(u8::from_str_radix(digits, 16).unwrap_or(0)) / 255.0 * head.max
            };
            let table = Heatmap::table(
                vec![String::new(); head.rows],
                vec![String::new(); head.columns],
                (0..head.rows * head.columns).map(value).collect(),
            );
            table.titled(head.role)
        });
        groups.push(svg::Group {
            title: format!("{} · layer {}", map.name(), map.layer() + 1),
            heatmaps: cells.collect(),
        });
    }
    (svg::mosaic(&groups, &SvgOptions::default()), text)
}

/// The weights of the chosen tokens, and their sum if there are several.
fn tokens(source: &Source<'_>, chosen: &[usize], direction: Direction) -> Result<Heatmap, String> {
    let map = source.map;
    let (asked, told) = match direction {
        Direction::From => (map.row_labels(), map.keys().labels()),
        Direction::To => (map.keys().labels(), map.row_labels()),
    };
    if chosen.is_empty() || chosen.len() > MOST_ROWS {
        return Err(format!(
            "{} tokens are chosen; expected 1 to {MOST_ROWS}",
            chosen.len()
        ));
    }
    let mut rows: Vec<String> = chosen.iter().map(|&index| asked[index].clone()).collect();
    let mut values: Vec<f32> = vec![];
    for &index in chosen {
        values.extend(sums(map, &source.heads, &[index], direction));
    }
    if chosen.len() > 1 {
        rows.push("sum".to_owned());
        values.extend(sums(map, &source.heads, chosen, direction));
    }
    let who = match direction {
        Direction::From => "what they attend to",
        Direction::To => "who attends to them",
    };
    Ok(Heatmap::table(rows, told, values).titled(format!("{}, {who}", source.title())))
}

/// The image under the map, a panel for each chosen query.
fn over_image(source: &Source<'_>, chosen: &[usize], overlay: Overlay) -> Result<String, String> {
    if chosen.len() > MOST_ROWS {
        return Err(format!(
            "{} queries are chosen; expected at most {MOST_ROWS}",
            chosen.len()
        ));
    }
    let (map, query) = match chosen {
        [] => (source.reduced()?, Pick::Usual),
        chosen => {
            let labels = source.map.row_labels();
            let named: Tokens = chosen
                .iter()
                .map(|&i| Token::new(labels[i].clone()))
                .collect();
            let rows = chosen
                .iter()
                .flat_map(|&i| sums(source.map, &source.heads, &[i], Direction::From));
            let map = AttentionMap::unnormalized(
                source.map.kind(),
                Axis::from(named),
                source.map.keys().clone(),
                1,
                rows.collect(),
            );
            (map.map_err(|error| error.to_string())?, Pick::All)
        }
    };
    let choice = ImageChoice {
        query,
        ..ImageChoice::default()
    };
    let wrong = |error: ImageError| error.to_string();
    let picture = ImagePicture::of(&source.trace(map), &choice).map_err(wrong)?;
    // As the page colours them, whatever the weights are.
    let picture = picture.from_zero();
    let picture = match overlay {
        // The first panel is the image, with what its queries found.
        Overlay::None => {
            let image = picture.panels().iter().take(1).cloned().collect();
            ImagePicture::new("", image).map_err(wrong)?
        }
        _ => picture,
    };
    let options = ImageOptions {
        overlay: match overlay {
            Overlay::Cells => image::Overlay::ByCell,
            _ => image::Overlay::Bilinear,
        },
        ..ImageOptions::default()
    };
    Ok(picture.titled(source.title()).svg(&options))
}

/// Two maps and their difference.
fn compared(one: &Source<'_>, other: &Source<'_>) -> Result<(String, String), String> {
    let sides = |source: &Source<'_>| [source.map.queries().len(), source.map.keys().len()];
    let (a, b) = (sides(one), sides(other));
    if a != b {
        return Err(format!(
            "a map of {} x {} cannot be compared with one of {} x {}: choose maps of the same lengths",
            a[0], a[1], b[0], b[1]
        ));
    }
    let (first, second) = (one.heatmap(), other.heatmap());
    let difference = first
        .values()
        .iter()
        .zip(second.values())
        .map(|(a, b)| (a - b).abs())
        .collect();
    let difference = Heatmap::table(first.rows().to_vec(), first.columns().to_vec(), difference)
        .titled("size of the difference");
    let text = largest(&difference);
    Ok((
        svg::grid(&[first, second, difference], &SvgOptions::default()),
        text,
    ))
}
