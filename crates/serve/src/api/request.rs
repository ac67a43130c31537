//! What requests ask for, read and checked: a trace and what of it, a worked example, a body.

use std::ops::Range;
use std::path::Path as FilePath;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{FromRequestParts, Path, Query};
use axum::http::StatusCode;
use axum::http::request::Parts;
use regard_trace::diagnose::log;
use regard_trace::{AttentionMap, LongMap, Trace};
use regard_view::training::{Along, Plot, plots as plots_of};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{App, Refusal, bad};
use crate::Explained;
use crate::data::{self, Direction, Entry, MOST_SIDE, Pool};
use crate::export::{Format, Overlay, View};
use crate::long::{Long, MOST_TOKENS, Part};

/// What a view is of. Lists such as `heads` are numbers and ranges, `0,2-3`; an empty list of heads is all of them.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Request {
    pub(super) map: usize,
    pub(super) heads: String,
    pub(super) by: Pool,
    pub(super) words: bool,
    pub(super) pool: Pool,
    /// Of a window: its first query and key, and those after its last.
    pub(super) q0: usize,
    pub(super) q1: usize,
    pub(super) k0: usize,
    pub(super) k1: usize,
    pub(super) side: usize,
    /// Of a long text: tokens of a cell, at least.
    pub(super) cell: usize,
    pub(super) chosen: String,
    /// Of a picture over an image: how the weights lie over it.
    pub(super) overlay: Overlay,
    /// Of flow: the query.
    pub(super) query: usize,
    /// Of a training: against minutes in place of updates, and a line for each layer.
    pub(super) minutes: bool,
    pub(super) layers: bool,
    pub(super) direction: Direction,
    /// Of a search: what was not taken, too.
    pub(super) all: bool,
    pub(super) view: View,
    pub(super) format: Format,
    pub(super) trace2: Option<u64>,
    pub(super) map2: usize,
    pub(super) heads2: String,
}

impl Default for Request {
    fn default() -> Self {
        Self {
            map: 0,
            heads: String::new(),
            by: Pool::Mean,
            words: false,
            pool: Pool::Mean,
            q0: 0,
            q1: usize::MAX,
            k0: 0,
            k1: usize::MAX,
            side: MOST_SIDE,
            cell: 1,
            chosen: String::new(),
            overlay: Overlay::Smooth,
            query: 0,
            minutes: false,
            layers: false,
            direction: Direction::From,
            all: false,
            view: View::Head,
            format: Format::Svg,
            trace2: None,
            map2: 0,
            heads2: String::new(),
        }
    }
}

/// A trace that is asked for, and what of it.
pub(super) struct Of {
    pub(super) app: Arc<App>,
    pub(super) entry: Arc<Entry>,
    pub(super) asked: Request,
}

/// What an address names; a wrong one is refused in a sentence, as all else is.
pub(super) struct At<T>(pub(super) T);

impl<T: DeserializeOwned + Send> FromRequestParts<Arc<App>> for At<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Refusal> {
        let named = Path::from_request_parts(parts, app).await;
        let Path(named) = named.map_err(|rejection: PathRejection| bad(rejection.body_text()))?;
        Ok(Self(named))
    }
}

/// Of an address that takes no query: one with a query is refused.
pub(super) struct Unasked;

impl FromRequestParts<Arc<App>> for Unasked {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<App>) -> Result<Self, Refusal> {
        match parts.uri.query() {
            None | Some("") => Ok(Self),
            Some(query) => Err(bad(format!(
                "this address takes nothing behind a question mark: {query:?}"
            ))),
        }
    }
}

impl FromRequestParts<Arc<App>> for Of {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Refusal> {
        let At(id) = At::from_request_parts(parts, app).await?;
        let entry = app.entry(id)?;
        let asked = Query::from_request_parts(parts, app).await;
        let Query(asked) = asked.map_err(|rejection| bad(rejection.body_text()))?;
        Ok(Self {
            app: app.clone(),
            entry,
            asked,
        })
    }
}

pub(super) fn map_of(trace: &Trace, index: usize) -> Result<&AttentionMap, Refusal> {
    let count = trace.maps.len();
    let sentence = || match count {
        0 => "this trace has no maps".to_owned(),
        count => format!("there is no map {index}; the maps are 0 to {}", count - 1),
    };
    trace
        .maps
        .get(index)
        .ok_or_else(|| Refusal(StatusCode::NOT_FOUND, sentence()))
}

pub(super) fn range(first: usize, last: usize, length: usize) -> Result<Range<usize>, Refusal> {
    let last = last.min(length);
    match first < last || length == 0 {
        true => Ok(first.min(last)..last),
        false => Err(bad(format!(
            "a window from {first} to {last} of {length} entries; expected at least one of them"
        ))),
    }
}

/// Refuses maps of which the page could not name all queries and keys.
pub(super) fn expect_shown(map: &AttentionMap) -> Result<(), Refusal> {
    let [_, queries, keys] = map.shape();
    expect_named([queries, keys], "write fewer of them to the trace")
}

/// The same of a map of a long text.
pub(super) fn expect_long_shown(long: &Long, map: usize) -> Result<(), Refusal> {
    let axes = [long.trace.queries(map), long.trace.keys(map)];
    let advice = "draw a part with `regard view --png`, `--queries` and `--keys`";
    expect_named(axes.map(|axis| axis.len()), advice)
}

fn expect_named([queries, keys]: [usize; 2], advice: &str) -> Result<(), Refusal> {
    match queries.max(keys) {
        0..=MOST_TOKENS => Ok(()),
        found => Err(bad(format!(
            "{found} queries or keys are more than the page shows ({MOST_TOKENS}): {advice}"
        ))),
    }
}

/// A map of a long text.
pub(super) fn long_map(long: &Long, map: usize) -> Result<&LongMap, Refusal> {
    let maps = long.trace.maps();
    maps.get(map).ok_or_else(|| {
        let sentence = format!("there is no map {map}; there are {}", maps.len());
        Refusal(StatusCode::NOT_FOUND, sentence)
    })
}

/// The head, the queries and the keys that are asked for of a long text.
pub(super) fn long_part(long: &Long, asked: &Request) -> Result<Part, Refusal> {
    let map = long_map(long, asked.map)?;
    let heads = data::indices(&asked.heads, map.heads().len(), "head").map_err(bad)?;
    let [head] = heads[..] else {
        return Err(bad(
            "of a long text one head is shown at a time: choose one",
        ));
    };
    let (queries, keys) = (long.trace.queries(asked.map), long.trace.keys(asked.map));
    Ok(Part {
        place: (asked.map, head),
        queries: range(asked.q0, asked.q1, queries.len())?,
        keys: range(asked.k0, asked.k1, keys.len())?,
    })
}

pub(super) fn chosen(asked: &Request, map: &AttentionMap) -> Result<Vec<usize>, Refusal> {
    let (length, what) = match asked.direction {
        Direction::From => (map.queries().len(), "query"),
        Direction::To => (map.keys().len(), "key"),
    };
    data::indices(&asked.chosen, length, what).map_err(bad)
}

/// How attention changes in a training, from its log as it is now.
pub(super) fn plots(log: &FilePath, asked: &Request) -> Result<Vec<Plot>, Refusal> {
    let found = log::read(log).map_err(|error| bad(error.to_string()))?;
    let along = match asked.minutes {
        true => Along::Minutes,
        false => Along::Updates,
    };
    Ok(plots_of(&[("", &found)], along, asked.layers))
}

/// The search that found a trace.
pub(super) fn searched(entry: &Entry) -> Result<Arc<data::Asked>, Refusal> {
    let asked = entry.asked.clone();
    let asked = asked.filter(|asked| !asked.proposals.is_empty());
    let none = || "no search found this trace".to_owned();
    asked.ok_or_else(|| Refusal(StatusCode::NOT_FOUND, none()))
}

pub(super) type Options = Result<Query<Vec<(String, String)>>, QueryRejection>;

/// A worked example with the options of the query.
pub(super) async fn worked(
    app: &App,
    name: String,
    options: Options,
) -> Result<Explained, Refusal> {
    let Query(options) = options.map_err(|rejection| bad(rejection.body_text()))?;
    let explainer = app.explainer()?;
    app.compute(move || explainer.explain(&name, &options).map_err(bad))
        .await
}

/// The body, unless it is too large.
pub(super) fn taken(body: Result<Bytes, BytesRejection>) -> Result<Bytes, Refusal> {
    body.map_err(|rejection| {
        let sentence = format!("{}: send less", rejection.body_text());
        Refusal(rejection.status(), sentence)
    })
}
