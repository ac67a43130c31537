//! The viewer's page as one file, with the traces that it shows: what it would ask a server for stands in the file, or is computed from
//! the weights there by `page/recorded.js`.
//!
//! Weights have 16 bits, as shares of the map's largest: the error is below 1e-5 of it.

use regard_trace::diagnose::{StackError, flow, rollout, stacks};
use regard_trace::{AttentionMap, Kind, Trace};
use regard_view::Heatmap;
use regard_view::image::{ImageChoice, ImageOptions, ImagePicture};
use regard_view::label::visible;
use regard_view::svg::base64::encode as base64;
use regard_view::svg::{self, SvgOptions};
use serde::Serialize;
use serde_json::{Value, json};

use crate::api::IMAGE_SIDE;
use crate::data::{Axes, Entry, FollowLimits, MapOverview, Pool};
use crate::entries::of_look;
use crate::files::FILES;
use crate::{Ablation, Input, Seen};

/// What the page asks of one trace.
#[derive(Serialize)]
struct Recorded {
    /// The address of the image's pixels.
    image: Option<String>,
    /// The tree of the search.
    generation: Option<Value>,
    pieces: Merged,
    /// The same between words, if words have several pieces.
    words: Option<Merged>,
}

/// Maps between pieces, or between words.
#[derive(Serialize)]
struct Merged {
    axes: Vec<Axes>,
    /// By pool, mean and largest.
    overviews: [Vec<MapOverview>; 2],
    weights: Vec<Weights>,
    stacks: Vec<Followed>,
}

/// Weights `[heads, queries, keys]`, row by row.
#[derive(Serialize)]
struct Weights {
    heads: usize,
    normalized: bool,
    numbers: Numbers,
}

/// Rollout and flow of the layers of one kind.
#[derive(Serialize)]
struct Followed {
    kind: &'static str,
    rollout: Result<Numbers, String>,
    /// A row for each query.
    flow: Result<Numbers, String>,
}

/// Numbers from 0 on, as shares of the largest: base64 of 16 bits each, little-endian, of which 65535 is the largest.
#[derive(Serialize)]
struct Numbers {
    largest: f32,
    least: f32,
    shares: String,
}

impl Numbers {
    fn new(values: &[f32]) -> Self {
        let largest = values.iter().copied().fold(0.0, f32::max);
        let least = values.iter().copied().fold(0.0, f32::min);
        let room = f64::from(largest) - f64::from(least);
        let share = |value: &f32| match room > 0.0 {
            true => ((f64::from(*value) - f64::from(least)) / room * 65_535.0).round() as u16,
            false => 0,
        };
        let bytes: Vec<u8> = values
            .iter()
            .flat_map(|value| share(value).to_le_bytes())
            .collect();
        Self {
            largest,
            least,
            shares: base64(&bytes),
        }
    }
}

impl Merged {
    fn of(entry: &Entry, words: bool) -> Self {
        let trace = entry.trace(words);
        let overview = |pool| {
            trace
                .maps
                .iter()
                .map(|map| MapOverview::of(map, pool))
                .collect()
        };
        Self {
            axes: trace.maps.iter().map(|map| Axes::of(map, trace)).collect(),
            overviews: [Pool::Mean, Pool::Max].map(overview),
            weights: trace.maps.iter().map(Weights::of).collect(),
            stacks: followed(trace),
        }
    }
}

impl Weights {
    fn of(map: &AttentionMap) -> Self {
        Self {
            heads: map.heads(),
            normalized: map.is_normalized(),
            numbers: Numbers::new(map.weights()),
        }
    }
}

fn followed(trace: &Trace) -> Vec<Followed> {
    let numbers = |map: Result<AttentionMap, StackError>| -> Result<Numbers, String> {
        let map = map.map_err(|error| error.to_string())?;
        Ok(Numbers::new(map.weights()))
    };
    let of_stack = |(kind, layers): (Kind, Vec<&AttentionMap>)| Followed {
        kind: kind.name(),
        rollout: (FollowLimits::ROLLOUT.expect(&layers)).and_then(|()| numbers(rollout(&layers))),
        flow: (FollowLimits::FLOW.expect(&layers)).and_then(|()| numbers(flow(&layers))),
    };
    stacks(trace).into_iter().map(of_stack).collect()
}

/// The page with these traces, or looks of a model, each under a name: a file that loads nothing from anywhere. Of a look with the tree of
/// its search every hypothesis is shown. Pass maps between sub-words as the model made them; the page merges them into words by itself.
/// Without scripts the first trace is shown as a picture.
///
/// ```
/// use regard_trace::{AttentionMap, Kind, Tokens, Trace};
///
/// let words = Tokens::from_words("to be");
/// let map = AttentionMap::new(Kind::SelfAttention, words.clone(), words, 1, vec![1.0, 0.0, 0.5, 0.5])?;
/// let page = regard_serve::page("a look", vec![("one".to_owned(), Trace::new("toy", "to be", "").with_map(map))]);
/// assert!(page.starts_with("<!DOCTYPE html>") && !page.contains("src=\"app.js\""));
/// # Ok::<(), regard_trace::TraceError>(())
/// ```
pub fn page(title: &str, shown: Vec<(String, impl Into<Seen>)>) -> String {
    let shown = shown.into_iter().map(|(name, seen)| (name, seen.into()));
    opened(title, shown.collect(), "")
}

/// The same, which begins with the view that stands in `address`, such as `view=head`.
pub(crate) fn opened(title: &str, shown: Vec<(String, Seen)>, address: &str) -> String {
    let still = shown.first().map(|(_, seen)| still(&seen.trace));
    let mut entries: Vec<Entry> = vec![];
    for (name, seen) in shown {
        let first = entries.len() as u64;
        let look = of_look(name, seen, Input::default(), Ablation::default(), first);
        entries.extend(look);
    }
    let recorded = entries.iter().map(|entry| {
        let image = entry.trace(false).image.as_ref();
        let png = image.and_then(|image| regard_view::png::from_image(image, IMAGE_SIDE).ok());
        Recorded {
            image: png.map(|png| format!("data:image/png;base64,{}", base64(&png))),
            pieces: Merged::of(entry, false),
            generation: entry.asked.as_ref().and_then(|asked| asked.tree()),
            words: entry.has_pieces().then(|| Merged::of(entry, true)),
        }
    });
    let summaries: Vec<_> = entries.iter().map(Entry::summary).collect();
    let catalogue = json!({ "traces": summaries, "model": null, "explains": false });
    let data = json!({ "catalogue": catalogue, "entries": recorded.collect::<Vec<_>>(), "address": address });
    // Nothing in a text can end the element that holds it.
    let data = data.to_string().replace('<', "\\u003c");

    let file = |path: &str| {
        let found = FILES.iter().find(|(known, ..)| *known == path);
        found.map_or("", |(_, _, content)| *content)
    };
    let modules = FILES.iter().filter(|(path, ..)| path.ends_with(".js"));
    let imports = modules.map(|(path, _, content)| {
        // A module in a data address has no folder: its imports are names, which the map has.
        let content = content.replace("from \"./", "from \"");
        let address = format!("data:text/javascript;base64,{}", base64(content.as_bytes()));
        (path[1..].to_owned(), json!(address))
    });
    let imports = serde_json::Map::from_iter(imports);
    let policy = "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src 'unsafe-inline' data:";
    let head = format!(
        "<meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n<style>{}</style>\n\
         <script type=\"importmap\">{}</script>\n<script type=\"application/json\" id=\"recorded\">{data}</script>\n\
         <script type=\"module\">import \"app.js\";</script>",
        file("/style.css"),
        json!({ "imports": imports }),
    );
    let title: String = visible(title).replace('&', "&amp;").replace('<', "&lt;");
    filled(file("/"), &title, &head, &still.unwrap_or_default())
}

/// The page with a title, a head in place of its links, and what is shown without scripts.
///
/// # Panics
/// If one of the places is not there: without its links replaced, the file would be a page that shows nothing.
fn filled(page: &str, title: &str, head: &str, still: &str) -> String {
    // What is put in holds none of these: `<` is escaped in texts.
    let places = [
        ("<title>regard</title>", format!("<title>{title}</title>")),
        (
            "<link rel=\"stylesheet\" href=\"style.css\">",
            head.to_owned(),
        ),
        (
            "<script type=\"module\" src=\"app.js\"></script>",
            String::new(),
        ),
        ("<noscript>", format!("<noscript>{still}")),
    ];
    places
        .iter()
        .fold(page.to_owned(), |page, (place, content)| {
            assert!(page.contains(place), "the page has no {place}");
            page.replacen(place, content, 1)
        })
}

/// A trace as one picture.
fn still(trace: &Trace) -> String {
    let trace = trace.merge_words();
    let over_image = ImagePicture::of(&trace, &ImageChoice::default()).ok();
    let over_image = over_image.map(|picture| picture.svg(&ImageOptions::default()));
    let map = || trace.maps.first().map(Heatmap::from_map);
    let map = || map().map(|map| svg::heatmap(&map, &SvgOptions::default()));
    over_image.or_else(map).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Git may give the page the line ends of Windows.
    #[test]
    fn pages_are_filled_whatever_ends_their_lines() {
        let page = include_str!("page/index.html").replace("\r\n", "\n");
        for page in [page.replace('\n', "\r\n"), page] {
            let filled = filled(&page, "a look", "<style></style>", "<svg></svg>");
            for there in [
                "<title>a look</title>",
                "<style></style>",
                "<noscript><svg></svg>",
            ] {
                assert_eq!(filled.matches(there).count(), 1, "{there}");
            }
            assert!(!filled.contains("style.css") && !filled.contains("app.js"));
        }
    }
}
