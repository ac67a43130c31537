//! What the page asks for, and the answers.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{FromRequestParts, Path, Query, State};
use axum::http::request::Parts;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use regard_trace::diagnose::{flow_from, log, rollout, stacks};
use regard_trace::{AttentionMap, LongMap, Trace};
use regard_view::Heatmap;
use regard_view::chart::{Chart, Series};
use regard_view::training::{Along, Plot, plots as plots_of};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::Semaphore;

use crate::changes::{Changes, OtherText};
use crate::data::{self, Axes, Direction, Entry, Heads, MOST_SIDE, Pool};
use crate::entries::Entries;
use crate::export::{self, Format, Source, View};
use crate::files::FILES;
use crate::long::{self, Late, Long, Part};
use crate::worker::{Unanswered, Worker};
use crate::{Continuation, Explained, Explainer, GradientMap, Input, QueryKeys, QueryPlace};

/// Views that are computed at the same time; further ones wait.
const AT_ONCE: usize = 4;

/// The most tokens that a model writes on.
const MOST_TOKENS: usize = 256;

/// The longest side of the image that the page gets, in pixels.
pub const IMAGE_SIDE: usize = 1024;

/// Everything that requests share.
pub struct App {
    pub token: Option<String>,
    pub port: u16,
    /// Whether there are threads, for what may take long.
    pub threads: bool,
    pub entries: Arc<Entries>,
    pub other: OtherText,
    pub worker: Option<Worker>,
    pub explainer: Option<Arc<dyn Explainer>>,
    pub permits: Arc<Semaphore>,
}

impl App {
    /// Without a token.
    pub fn new(
        entries: Arc<Entries>,
        worker: Option<Worker>,
        explainer: Option<Box<dyn Explainer>>,
        threads: bool,
    ) -> Self {
        Self {
            token: None,
            port: 0,
            threads,
            entries,
            other: OtherText::default(),
            worker,
            explainer: explainer.map(Arc::from),
            permits: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }

    fn entry(&self, id: u64) -> Result<Arc<Entry>, Refusal> {
        self.entries.get(id).ok_or_else(|| {
            let sentence = format!("there is no trace {id}; of the looks of a model only the last ones are kept: ask again");
            Refusal(StatusCode::NOT_FOUND, sentence)
        })
    }

    fn worker(&self) -> Result<&Worker, Refusal> {
        let sentence = "no model is loaded: this server shows traces only";
        (self.worker.as_ref()).ok_or_else(|| Refusal(StatusCode::NOT_FOUND, sentence.to_owned()))
    }

    fn explainer(&self) -> Result<Arc<dyn Explainer>, Refusal> {
        let sentence = "this server has no worked examples";
        (self.explainer.clone()).ok_or_else(|| Refusal(StatusCode::NOT_FOUND, sentence.to_owned()))
    }

    /// Runs what may take long on a thread of its own, a few at a time, even if nobody waits for it any more. Without threads: at once.
    async fn compute<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        if !self.threads {
            return work();
        }
        let failed = || {
            Refusal(
                StatusCode::INTERNAL_SERVER_ERROR,
                "this view failed; see the server's output".to_owned(),
            )
        };
        let permit = self
            .permits
            .clone()
            .acquire_owned()
            .await
            .map_err(|_| failed())?;
        let done = tokio::task::spawn_blocking(move || {
            let done = work();
            drop(permit);
            done
        });
        done.await.map_err(|_| failed())?
    }
}

/// A status and a sentence.
pub struct Refusal(pub StatusCode, pub String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0, Json(json!({ "error": self.1 }))).into_response()
    }
}

impl From<Unanswered> for Refusal {
    fn from(unanswered: Unanswered) -> Self {
        let sentence = match unanswered {
            Unanswered::Refused(sentence) => {
                return Self(StatusCode::UNPROCESSABLE_ENTITY, sentence);
            }
            Unanswered::Full => "too many inputs wait for the model: try again in a moment",
            Unanswered::Waited => "other inputs kept the model busy: try again in a moment",
            Unanswered::Timeout => {
                "the model is still at work: the trace of a look that is kept will be in the list when it is done"
            }
            Unanswered::Stopped => "the model has stopped: start the server again",
        };
        Self(StatusCode::SERVICE_UNAVAILABLE, sentence.to_owned())
    }
}

fn bad(sentence: impl Into<String>) -> Refusal {
    Refusal(StatusCode::BAD_REQUEST, sentence.into())
}

/// The routes, open to everyone.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/api/traces", get(traces))
        .route("/api/trace/{id}/overview", get(overview))
        .route("/api/trace/{id}/axes", get(axes))
        .route("/api/trace/{id}/window", get(window))
        .route("/api/trace/{id}/sums", get(sums))
        .route("/api/trace/{id}/image", get(image))
        .route("/api/trace/{id}/query", get(query_keys))
        .route("/api/trace/{id}/gradients", get(all_gradients))
        .route("/api/trace/{id}/gradient", get(gradient))
        .route("/api/trace/{id}/generation", get(generation))
        .route("/api/trace/{id}/rollout", get(joint))
        .route("/api/trace/{id}/flow", get(flowed))
        .route("/api/trace/{id}/training", get(training))
        .route("/api/explain", get(explainable))
        .route("/api/explain/{name}", get(explain))
        .route("/api/look", post(look))
        .fallback(|| async { Refusal(StatusCode::NOT_FOUND, "there is no such page".to_owned()) })
        .method_not_allowed_fallback(|| async {
            let sentence = "this address is there, but not for this method".to_owned();
            Refusal(StatusCode::METHOD_NOT_ALLOWED, sentence)
        })
}

/// The page, and views as files. A page without a server draws these by itself.
pub fn files() -> Router<Arc<App>> {
    let mut router = Router::new();
    for (path, kind, content) in FILES {
        router = router.route(
            path,
            get(move || async move { ([(header::CONTENT_TYPE, kind)], content) }),
        );
    }
    router
        .route("/api/trace/{id}/picture", get(picture))
        .route("/api/trace/{id}/generation/picture", get(generation_file))
        .route("/api/explain/{name}/picture/{format}", get(explained_file))
        .route("/api/table", post(table))
}

/// What a view is of. Lists such as `heads` are numbers and ranges, `0,2-3`; an empty list of heads is all of them.
#[derive(Deserialize)]
#[serde(default)]
struct Request {
    map: usize,
    heads: String,
    by: Pool,
    words: bool,
    pool: Pool,
    /// Of a window: its first query and key, and those after its last.
    q0: usize,
    q1: usize,
    k0: usize,
    k1: usize,
    side: usize,
    /// Of a long text: tokens of a cell, at least.
    cell: usize,
    chosen: String,
    /// Of flow: the query.
    query: usize,
    /// Of a training: against minutes in place of updates, and a line for each layer.
    minutes: bool,
    layers: bool,
    direction: Direction,
    /// Of a search: what was not taken, too.
    all: bool,
    view: View,
    format: Format,
    trace2: Option<u64>,
    map2: usize,
    heads2: String,
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
struct Of {
    app: Arc<App>,
    entry: Arc<Entry>,
    asked: Request,
}

/// What an address names; a wrong one is refused in a sentence, as all else is.
struct At<T>(T);

impl<T: DeserializeOwned + Send> FromRequestParts<Arc<App>> for At<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Refusal> {
        let named = Path::from_request_parts(parts, app).await;
        let Path(named) = named.map_err(|rejection: PathRejection| bad(rejection.body_text()))?;
        Ok(Self(named))
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

fn map_of(trace: &Trace, index: usize) -> Result<&AttentionMap, Refusal> {
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

fn range(first: usize, last: usize, length: usize) -> Result<Range<usize>, Refusal> {
    let last = last.min(length);
    match first < last || length == 0 {
        true => Ok(first.min(last)..last),
        false => Err(bad(format!(
            "a window from {first} to {last} of {length} entries; expected at least one of them"
        ))),
    }
}

async fn traces(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    let entries = app.entries.all();
    let model = app.worker.as_ref().map(|worker| {
        let name = data::shown(&worker.name, 200);
        json!({ "name": name, "input": worker.input, "changes_heads": worker.changes_heads, "shows_queries": worker.shows_queries, "continues": worker.continues })
    });
    let explains = app.explainer.is_some();
    app.compute(move || {
        let summaries: Vec<_> = entries.iter().map(|entry| entry.summary()).collect();
        Ok(
            Json(json!({ "traces": summaries, "model": model, "explains": explains }))
                .into_response(),
        )
    })
    .await
}

async fn overview(Of { app, entry, asked }: Of) -> Result<Response, Refusal> {
    let owner = entry.clone();
    let _turn = owner.turn.lock().await;
    app.compute(move || Ok(Json(entry.overview(asked.words, asked.pool)).into_response()))
        .await
}

async fn axes(Of { app, entry, asked }: Of) -> Result<Response, Refusal> {
    app.compute(move || {
        if let Some(entry) = &entry.long {
            let trace = &entry.trace;
            long_map(entry, asked.map)?;
            let axes = [trace.queries(asked.map), trace.keys(asked.map)];
            return match axes.map(|axis| axis.len()).into_iter().max().unwrap_or(0) {
                0..=long::MOST_TOKENS => Ok(Json(Axes::long(trace, asked.map)).into_response()),
                tokens => Err(bad(format!(
                    "{tokens} tokens are more than the page shows ({}): draw a part with `regard view --png`",
                    long::MOST_TOKENS
                ))),
            };
        }
        let trace = entry.trace(asked.words);
        Ok(Json(Axes::of(map_of(trace, asked.map)?, trace)).into_response())
    })
    .await
}

/// Weights as little-endian `f32`, and their shape in headers.
fn weights(rows: usize, columns: usize, values: &[f32]) -> Response {
    let bytes: Vec<u8> = values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (HeaderName::from_static("x-rows"), rows.to_string()),
        (HeaderName::from_static("x-columns"), columns.to_string()),
    ];
    (headers, bytes).into_response()
}

async fn window(Of { app, entry, asked }: Of) -> Result<Response, Refusal> {
    let waiting = Waiting::default();
    let cancelled = waiting.0.clone();
    let _turn = match entry.long.is_some() {
        true => Some(entry.turn.clone().lock_owned().await),
        false => None,
    };
    app.compute(move || {
        if let Some(long) = &entry.long {
            let part = long_part(long, &asked)?;
            let part = long.window(part, asked.cell, asked.pool, &cancelled);
            let part = part.map_err(|late| match late {
                Late::Wrong(sentence) => bad(sentence),
                Late::Cancelled => bad("the page has moved on"),
            })?;
            return Ok(weights(part.rows, part.columns, &part.values));
        }
        let map = map_of(entry.trace(asked.words), asked.map)?;
        let heads = Heads::parse(&asked.heads, asked.by, map).map_err(bad)?;
        let queries = range(asked.q0, asked.q1, map.queries().len())?;
        let keys = range(asked.k0, asked.k1, map.keys().len())?;
        let part = data::window(
            map,
            &heads,
            queries,
            keys,
            asked.side.clamp(1, MOST_SIDE),
            asked.pool,
        );
        Ok(weights(part.rows, part.columns, &part.values))
    })
    .await
}

/// Dropped with its request: then nobody waits for the answer any more.
#[derive(Default)]
struct Waiting(Arc<AtomicBool>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A map of a long text.
fn long_map(long: &Long, map: usize) -> Result<&LongMap, Refusal> {
    let maps = long.trace.maps();
    maps.get(map).ok_or_else(|| {
        let sentence = format!("there is no map {map}; there are {}", maps.len());
        Refusal(StatusCode::NOT_FOUND, sentence)
    })
}

/// The head, the queries and the keys that are asked for of a long text.
fn long_part(long: &Long, asked: &Request) -> Result<Part, Refusal> {
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

async fn sums(Of { app, entry, asked }: Of) -> Result<Response, Refusal> {
    app.compute(move || {
        let map = map_of(entry.trace(asked.words), asked.map)?;
        let heads = Heads::parse(&asked.heads, asked.by, map).map_err(bad)?;
        let chosen = chosen(&asked, map)?;
        let sums = data::sums(map, &heads, &chosen, asked.direction);
        Ok(weights(1, sums.len(), &sums))
    })
    .await
}

fn chosen(asked: &Request, map: &AttentionMap) -> Result<Vec<usize>, Refusal> {
    let (length, what) = match asked.direction {
        Direction::From => (map.queries().len(), "query"),
        Direction::To => (map.keys().len(), "key"),
    };
    data::indices(&asked.chosen, length, what).map_err(bad)
}

async fn image(State(app): State<Arc<App>>, At(id): At<u64>) -> Result<Response, Refusal> {
    let entry = app.entry(id)?;
    app.compute(move || {
        let none = || Refusal(StatusCode::NOT_FOUND, "this trace has no image".to_owned());
        let image = entry.trace(false).image.as_ref().ok_or_else(none)?;
        let png = regard_view::png::from_image(image, IMAGE_SIDE)
            .map_err(|error| bad(error.to_string()))?;
        Ok(([(header::CONTENT_TYPE, "image/png")], png).into_response())
    })
    .await
}

/// How attention changes in a training, from its log as it is now.
fn plots(log: &std::path::Path, asked: &Request) -> Result<Vec<Plot>, Refusal> {
    let found = log::read(log).map_err(|error| bad(error.to_string()))?;
    let along = match asked.minutes {
        true => Along::Minutes,
        false => Along::Updates,
    };
    Ok(plots_of(&[("", &found)], along, asked.layers))
}

async fn training(Of { app, entry, asked }: Of) -> Result<Response, Refusal> {
    app.compute(move || {
        let none = || Refusal(StatusCode::NOT_FOUND, "this is no training".to_owned());
        let log = entry.training.as_ref().ok_or_else(none)?;
        let line = |line: &Series| {
            let points: Vec<_> = line.points.iter().map(|point| [point.x, point.y]).collect();
            json!({ "name": data::shown(&line.name, 200), "points": points })
        };
        let plot = |plot: &Plot| {
            let lines: Vec<_> = plot.lines.iter().map(line).collect();
            json!({ "name": plot.name, "title": plot.title, "unit": plot.unit, "along": plot.along.name(), "lines": lines })
        };
        let plots: Vec<_> = plots(log, &asked)?.iter().map(plot).collect();
        Ok(Json(json!({ "plots": plots })).into_response())
    })
    .await
}

async fn picture(Of { app, entry, asked }: Of) -> Result<Response, Refusal> {
    let other = asked.trace2.map(|id| app.entry(id)).transpose()?;
    app.compute(move || {
        if let Some(log) = &entry.training {
            let charts: Vec<Chart> = plots(log, &asked)?.iter().map(Plot::chart).collect();
            let file = export::charts(&entry.name, &charts, asked.format).map_err(bad)?;
            return Ok(saved(asked.format, file));
        }
        if let Some(long) = &entry.long {
            let Part {
                place: (map, head),
                queries,
                keys,
            } = long_part(long, &asked)?;
            let heatmap = regard_view::long::head(&long.trace, map, head, queries, keys, MOST_SIDE)
                .map_err(|error| bad(error.to_string()))?;
            let file = export::table(&heatmap, asked.format).map_err(bad)?;
            return Ok(saved(asked.format, file));
        }
        let map = map_of(entry.trace(asked.words), asked.map)?;
        let one = Source {
            entry: &entry,
            words: asked.words,
            map,
            heads: Heads::parse(&asked.heads, asked.by, map).map_err(bad)?,
            queries: range(asked.q0, asked.q1, map.queries().len())?,
            keys: range(asked.k0, asked.k1, map.keys().len())?,
        };
        let second = match &other {
            None => None,
            Some(entry) => {
                let map = map_of(entry.trace(asked.words), asked.map2)?;
                Some(Source {
                    entry,
                    words: asked.words,
                    map,
                    heads: Heads::parse(&asked.heads2, asked.by, map).map_err(bad)?,
                    queries: 0..map.queries().len(),
                    keys: 0..map.keys().len(),
                })
            }
        };
        let chosen = chosen(&asked, one.map)?;
        let file = export::file(
            asked.view,
            asked.format,
            &one,
            second.as_ref(),
            &chosen,
            asked.direction,
        )
        .map_err(bad)?;
        Ok(saved(asked.format, file))
    })
    .await
}

/// Numbers that the page has, such as the effects of heads, `values [rows, columns]`.
#[derive(Deserialize)]
struct Table {
    title: String,
    rows: Vec<String>,
    columns: Vec<String>,
    values: Vec<f32>,
    /// Whether colours are for numbers below and above 0.
    #[serde(default)]
    signed: bool,
    format: Format,
}

async fn table(
    State(app): State<Arc<App>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Refusal> {
    let body = taken(body)?;
    let table: Table = serde_json::from_slice(&body)
        .map_err(|error| bad(format!("the table is not as expected: {error}")))?;
    let (rows, columns) = (table.rows.len(), table.columns.len());
    if rows.max(columns) > MOST_SIDE || rows * columns != table.values.len() {
        return Err(bad(format!(
            "{} values for {rows} rows and {columns} columns; expected one for each pair, and at most {MOST_SIDE} of either",
            table.values.len(),
        )));
    }
    app.compute(move || {
        let names = |all: &[String]| all.iter().map(|one| data::name(one)).collect();
        let (rows, columns) = (names(&table.rows), names(&table.columns));
        let title = data::shown(&table.title, 200);
        let heatmap = Heatmap::table(rows, columns, table.values).titled(title);
        let heatmap = match table.signed {
            true => heatmap.signed(),
            false => heatmap,
        };
        let file = export::table(&heatmap, table.format).map_err(bad)?;
        Ok(saved(table.format, file))
    })
    .await
}

/// A file that is always saved: a page must not run as one of this server.
fn saved(format: Format, file: Vec<u8>) -> Response {
    let (kind, ending) = format.names();
    let save = format!("attachment; filename=\"regard.{ending}\"");
    let headers = [
        (header::CONTENT_TYPE, kind.to_owned()),
        (header::CONTENT_DISPOSITION, save),
    ];
    (headers, file).into_response()
}

/// The body, unless it is too large.
fn taken(body: Result<Bytes, BytesRejection>) -> Result<Bytes, Refusal> {
    body.map_err(|rejection| {
        let sentence = format!("{}: send less", rejection.body_text());
        Refusal(rejection.status(), sentence)
    })
}

/// The first line of a look's body; the bytes of an image may follow the line.
#[derive(Deserialize)]
#[serde(default)]
struct Look {
    text: String,
    target: String,
    ablation: Changes,
    continuation: Continuation,
    /// Whether the trace is kept, to be seen.
    keep: bool,
}

impl Default for Look {
    fn default() -> Self {
        Self {
            text: String::new(),
            target: String::new(),
            ablation: Changes::default(),
            continuation: Continuation::default(),
            keep: true,
        }
    }
}

async fn look(
    State(app): State<Arc<App>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Refusal> {
    let worker = app.worker()?;
    let body = taken(body)?;
    let end = body
        .iter()
        .position(|&byte| byte == b'\n')
        .unwrap_or(body.len());
    let asked: Look = serde_json::from_slice(&body[..end])
        .map_err(|error| bad(format!("the first line is not as expected: {error}")))?;
    let input = Input {
        text: asked.text,
        target: asked.target,
        image: body.get(end + 1..).unwrap_or_default().to_vec(),
        continuation: asked.continuation,
    };
    let Continuation {
        tokens,
        temperature,
        ..
    } = input.continuation;
    if tokens > MOST_TOKENS {
        return Err(bad(format!(
            "a continuation of {tokens} tokens: expected at most {MOST_TOKENS}"
        )));
    }
    if !(0.0..=100.0).contains(&temperature) {
        return Err(bad(format!(
            "a temperature of {temperature}: expected 0 to 100"
        )));
    }
    if worker.input.has_image() && input.image.is_empty() {
        return Err(bad("this model looks at an image: choose one"));
    }
    let (changes, other) = (asked.ablation, app.other.clone());
    let (keep, entries) = (asked.keep, app.entries.clone());
    // Kept before it is told, so that a look which came too late is found in the list.
    let (id, (output, alternatives, score)) = worker
        .ask(move |model| {
            let ablation = changes.of(model, &input, &other, &entries)?;
            let seen = model.look(&input, &ablation)?;
            let answer = (
                seen.output.clone(),
                seen.alternatives.clone(),
                seen.trace.score,
            );
            let id = keep.then(|| entries.keep(seen, input, ablation));
            Ok((id, answer))
        })
        .await?;
    let alternatives: Vec<_> = (alternatives.iter())
        .map(|one| json!({ "text": data::name(&one.text), "probability": one.probability }))
        .collect();
    Ok(Json(json!({
        "trace": id,
        "output": data::shown(&output, 100_000),
        "alternatives": alternatives,
        "score": score.filter(|score| score.is_finite()),
    }))
    .into_response())
}

/// The longest text whose layers are multiplied for rollout, and the longest whose flow is searched for, in tokens.
pub const MOST_ROLLOUT: usize = 512;
pub const MOST_FLOW: usize = 64;

/// The layers of self-attention that a map belongs to, lowest first.
fn layers(trace: &Trace, index: usize, most: usize) -> Result<Vec<&AttentionMap>, Refusal> {
    let map = map_of(trace, index)?;
    let length = map.queries().len();
    if length > most {
        return Err(bad(format!(
            "a text of {length} tokens: at most {most} are followed through the layers"
        )));
    }
    let stacks = stacks(trace).into_iter();
    let mut found = stacks.filter(|(kind, _)| *kind == map.kind());
    let sentence = "only layers of self-attention are followed: choose a map of the encoder or of the decoder to itself";
    found
        .next()
        .map(|(_, layers)| layers)
        .ok_or_else(|| bad(sentence))
}

/// Rollout of the layers of a map, `[queries, keys]`.
async fn joint(Of { app, entry, asked }: Of) -> Result<Response, Refusal> {
    app.compute(move || {
        let layers = layers(entry.trace(asked.words), asked.map, MOST_ROLLOUT)?;
        let map = rollout(&layers).map_err(|error| bad(error.to_string()))?;
        let [_, queries, keys] = map.shape();
        Ok(weights(queries, keys, map.weights()))
    })
    .await
}

/// Flow through the layers of a map to one query, `[1, keys]`.
async fn flowed(Of { app, entry, asked }: Of) -> Result<Response, Refusal> {
    app.compute(move || {
        let layers = layers(entry.trace(asked.words), asked.map, MOST_FLOW)?;
        let row = flow_from(&layers, asked.query).map_err(|error| bad(error.to_string()))?;
        let row: Vec<f32> = row.into_iter().map(|weight| weight as f32).collect();
        Ok(weights(1, row.len(), &row))
    })
    .await
}

/// The search that found a trace.
fn searched(entry: &Entry) -> Result<Arc<data::Asked>, Refusal> {
    let asked = entry.asked.clone();
    let asked = asked.filter(|asked| !asked.proposals.is_empty());
    let none = || "no search found this trace".to_owned();
    asked.ok_or_else(|| Refusal(StatusCode::NOT_FOUND, none()))
}

/// The tree of the search as a picture: what was taken, or all proposals.
async fn generation_file(Of { app, entry, asked }: Of) -> Result<Response, Refusal> {
    let search = searched(&entry)?;
    app.compute(move || {
        let title = entry.trace(false).target.clone();
        let file = export::tree(&search, entry.id, &title, asked.all, asked.format);
        Ok(saved(asked.format, file.map_err(bad)?))
    })
    .await
}

/// The tree of the search that found a trace.
async fn generation(State(app): State<Arc<App>>, At(id): At<u64>) -> Result<Response, Refusal> {
    let asked = searched(&*app.entry(id)?)?;
    app.compute(move || Ok(Json(asked.tree()).into_response()))
        .await
}

/// What can be explained.
async fn explainable(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    Ok(Json(app.explainer()?.list()).into_response())
}

type Options = Result<Query<Vec<(String, String)>>, QueryRejection>;

/// A worked example with the options of the query.
async fn worked(app: &App, name: String, options: Options) -> Result<Explained, Refusal> {
    let Query(options) = options.map_err(|rejection| bad(rejection.body_text()))?;
    let explainer = app.explainer()?;
    app.compute(move || explainer.explain(&name, &options).map_err(bad))
        .await
}

async fn explain(
    State(app): State<Arc<App>>,
    At(name): At<String>,
    options: Options,
) -> Result<Response, Refusal> {
    Ok(Json(worked(&app, name, options).await?).into_response())
}

/// The picture of a worked example; a page has its numbers below it.
async fn explained_file(
    State(app): State<Arc<App>>,
    At((name, format)): At<(String, Format)>,
    options: Options,
) -> Result<Response, Refusal> {
    let Explained {
        name, svg, text, ..
    } = worked(&app, name, options).await?;
    app.compute(move || {
        let file = export::finished(format, &name, svg, &text).map_err(bad)?;
        Ok(saved(format, file))
    })
    .await
}

/// The keys that the page gets of a query, those with the largest weights.
const MOST_KEYS: usize = 128;

#[derive(Deserialize)]
struct OneQuery {
    map: usize,
    head: usize,
    query: usize,
}

/// One query with its keys and values: the model of a look reads its input again.
async fn query_keys(
    State(app): State<Arc<App>>,
    At(id): At<u64>,
    asked: Result<Query<OneQuery>, QueryRejection>,
) -> Result<Response, Refusal> {
    let Query(asked) = asked.map_err(|rejection| bad(rejection.body_text()))?;
    let entry = app.entry(id)?;
    let look = entry.asked.clone().ok_or_else(|| {
        bad("this trace was opened from a file, which has no queries and keys: ask the model to have them")
    })?;
    let map = map_of(entry.trace(false), asked.map)?;
    let [heads, queries, _] = map.shape();
    for (name, found, count) in [("head", asked.head, heads), ("query", asked.query, queries)] {
        if found >= count {
            return Err(bad(format!(
                "{name} {found}: expected a number below {count}"
            )));
        }
    }
    let rank = look.hypotheses.iter().position(|one| one.trace == id);
    let place = QueryPlace {
        rank: rank.unwrap_or(0),
        map: map.name().to_owned(),
        layer: map.layer(),
        head: asked.head,
        query: asked.query,
    };
    let found = (app.worker()?)
        .ask(move |model| model.query(&look.input, &look.ablation, &place))
        .await?;
    app.compute(move || Ok(Json(of_query(&found)).into_response()))
        .await
}

/// The gradients of a look's output, which the model computes once.
async fn gradients(app: &App, entry: Arc<Entry>) -> Result<Arc<Entry>, Refusal> {
    let look = entry.asked.clone().ok_or_else(|| {
        bad("this trace was opened from a file, which has no gradients: ask the model to have them")
    })?;
    if !look.ablation.heads.is_empty() {
        return Err(bad(
            "gradients are those of the model with all heads as they are: choose its look without changed heads",
        ));
    }
    let owner = entry.clone();
    let _turn = owner.turn.lock().await;
    if entry.gradients.get().is_none() {
        let rank = (look.hypotheses.iter()).position(|one| one.trace == entry.id);
        let found = (app.worker()?)
            .ask(move |model| model.gradients(&look.input, rank.unwrap_or(0)))
            .await?;
        // Whoever holds the turn is the only one that sets it.
        let _ = entry.gradients.set(found);
    }
    Ok(entry)
}

/// The gradient map of a map of a trace.
fn gradient_of<'a>(entry: &'a Entry, map: &AttentionMap) -> Result<&'a GradientMap, Refusal> {
    let mut maps = entry
        .gradients
        .get()
        .into_iter()
        .flat_map(|found| &found.maps);
    let found = maps.find(|one| one.map == map.name() && one.layer == map.layer());
    let fits =
        |one: &&GradientMap| one.shape == map.shape() && one.products.len() == map.weights().len();
    found
        .filter(fits)
        .ok_or_else(|| bad("the model gives no gradients of this map"))
}

/// The output, and of each head the sum of its gradient times attention: what the output loses, to first order, without the head.
async fn all_gradients(State(app): State<Arc<App>>, At(id): At<u64>) -> Result<Response, Refusal> {
    let entry = gradients(&app, app.entry(id)?).await?;
    app.compute(move || {
        let mut heads = vec![];
        for (index, map) in entry.trace(false).maps.iter().enumerate() {
            let found = gradient_of(&entry, map)?;
            let [_, queries, keys] = found.shape;
            let sums = found.products.chunks((queries * keys).max(1));
            heads.extend(sums.enumerate().map(|(head, products)| {
                let sum: f64 = products.iter().map(|&product| f64::from(product)).sum();
                json!({ "map": index, "head": head, "sum": sum })
            }));
        }
        let about = entry.gradients.get();
        let output = about.map(|found| data::shown(&found.output, 1_000));
        let log_probability = about.map(|found| found.log_probability);
        Ok(
            Json(json!({ "output": output, "log_probability": log_probability, "heads": heads }))
                .into_response(),
        )
    })
    .await
}

/// Gradient times attention of the chosen heads of a map, added up, `[queries, keys]`.
async fn gradient(Of { app, entry, asked }: Of) -> Result<Response, Refusal> {
    let entry = gradients(&app, entry).await?;
    app.compute(move || {
        let map = map_of(entry.trace(false), asked.map)?;
        let heads = Heads::parse(&asked.heads, asked.by, map).map_err(bad)?;
        let found = gradient_of(&entry, map)?;
        let [_, queries, keys] = found.shape;
        let size = queries * keys;
        let mut sums = vec![0.0f32; size];
        for head in heads.chosen {
            let of_head = &found.products[head * size..][..size];
            sums.iter_mut()
                .zip(of_head)
                .for_each(|(sum, product)| *sum += product);
        }
        Ok(weights(queries, keys, &sums))
    })
    .await
}

fn of_query(found: &QueryKeys) -> serde_json::Value {
    let size = found.query.len().max(1);
    let mut context = vec![0.0f64; size];
    for (&weight, value) in found.weights.iter().zip(found.values.chunks(size)) {
        let read = |(sum, &v): (&mut f64, &f32)| *sum += f64::from(weight) * f64::from(v);
        context.iter_mut().zip(value).for_each(read);
    }
    let mut shown: Vec<usize> = (0..found.positions.len()).collect();
    shown.sort_by(|&a, &b| found.weights[b].total_cmp(&found.weights[a]));
    shown.truncate(MOST_KEYS);
    shown.sort_unstable();
    let key = |&at: &usize| {
        json!({
            "position": found.positions[at], "key": found.keys[at * size..][..size], "value": found.values[at * size..][..size],
            "score": found.scores[at], "weight": found.weights[at],
        })
    };
    json!({
        "query": found.query, "scale": found.scale, "softcap": found.softcap, "of": found.positions.len(), "context": context,
        "keys": shown.iter().map(key).collect::<Vec<_>>(),
    })
}
