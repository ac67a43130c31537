//! Views of traces and worked examples: numbers that the page draws.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use regard_trace::diagnose::{flow_from, rollout, stacks};
use regard_trace::{AttentionMap, Trace};
use regard_view::chart::Series;
use regard_view::training::Plot;
use serde_json::json;

use super::request::{
    At, Of, Options, Unasked, chosen, expect_long_shown, expect_shown, long_map, long_part, map_of,
    plots, range, searched, worked,
};
use super::{App, Refusal, bad};
use crate::data::{self, Axes, FollowLimits, Heads, MOST_SIDE};
use crate::long::Late;

/// The longest side of the image that the page gets, in pixels.
pub const IMAGE_SIDE: usize = 1024;

pub(super) async fn traces(State(app): State<Arc<App>>, _: Unasked) -> Result<Response, Refusal> {
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

pub(super) async fn overview(Of { app, entry, asked }: Of) -> Result<Response, Refusal> {
    // Held until it is done, even if nobody waits for it any more.
    let turn = entry.turn.clone().lock_owned().await;
    app.compute(move || {
        let _turn = turn;
        Ok(Json(entry.overview(asked.words, asked.pool)).into_response())
    })
    .await
}

pub(super) async fn axes(Of { app, entry, asked }: Of) -> Result<Response, Refusal> {
    app.compute(move || {
        if let Some(entry) = &entry.long {
            long_map(entry, asked.map)?;
            expect_long_shown(entry, asked.map)?;
            return Ok(Json(Axes::long(&entry.trace, asked.map)).into_response());
        }
        let trace = entry.trace(asked.words);
        let map = map_of(trace, asked.map)?;
        expect_shown(map)?;
        Ok(Json(Axes::of(map, trace)).into_response())
    })
    .await
}

/// Weights as little-endian `f32`, and their shape in headers.
pub(super) fn weights(rows: usize, columns: usize, values: &[f32]) -> Response {
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

pub(super) async fn window(Of { app, entry, asked }: Of) -> Result<Response, Refusal> {
    let waiting = Waiting::default();
    let cancelled = waiting.0.clone();
    let turn = match entry.long.is_some() {
        true => Some(entry.turn.clone().lock_owned().await),
        false => None,
    };
    app.compute(move || {
        let _turn = turn;
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

pub(super) async fn sums(Of { app, entry, asked }: Of) -> Result<Response, Refusal> {
    app.compute(move || {
        let map = map_of(entry.trace(asked.words), asked.map)?;
        expect_shown(map)?;
        let heads = Heads::parse(&asked.heads, asked.by, map).map_err(bad)?;
        let chosen = chosen(&asked, map)?;
        let sums = data::sums(map, &heads, &chosen, asked.direction);
        Ok(weights(1, sums.len(), &sums))
    })
    .await
}

pub(super) async fn image(
    State(app): State<Arc<App>>,
    At(id): At<u64>,
    _: Unasked,
) -> Result<Response, Refusal> {
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

pub(super) async fn training(Of { app, entry, asked }: Of) -> Result<Response, Refusal> {
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

/// The layers of self-attention that a map belongs to, lowest first.
fn layers(trace: &Trace, index: usize, most: FollowLimits) -> Result<Vec<&AttentionMap>, Refusal> {
    let map = map_of(trace, index)?;
    let stacks = stacks(trace).into_iter();
    let mut found = stacks.filter(|(kind, _)| *kind == map.kind());
    let sentence = "only layers of self-attention are followed: choose a map of the encoder or of the decoder to itself";
    let (_, layers) = found.next().ok_or_else(|| bad(sentence))?;
    most.expect(&layers).map_err(bad)?;
    Ok(layers)
}

/// Rollout of the layers of a map, `[queries, keys]`.
pub(super) async fn joint(Of { app, entry, asked }: Of) -> Result<Response, Refusal> {
    app.compute(move || {
        let layers = layers(entry.trace(asked.words), asked.map, FollowLimits::ROLLOUT)?;
        let map = rollout(&layers).map_err(|error| bad(error.to_string()))?;
        let [_, queries, keys] = map.shape();
        Ok(weights(queries, keys, map.weights()))
    })
    .await
}

/// Flow through the layers of a map to one query, `[1, keys]`.
pub(super) async fn flowed(Of { app, entry, asked }: Of) -> Result<Response, Refusal> {
    app.compute(move || {
        let layers = layers(entry.trace(asked.words), asked.map, FollowLimits::FLOW)?;
        let row = flow_from(&layers, asked.query).map_err(|error| bad(error.to_string()))?;
        let row: Vec<f32> = row.into_iter().map(|weight| weight as f32).collect();
        Ok(weights(1, row.len(), &row))
    })
    .await
}

/// The tree of the search that found a trace.
pub(super) async fn generation(
    State(app): State<Arc<App>>,
    At(id): At<u64>,
    _: Unasked,
) -> Result<Response, Refusal> {
    let asked = searched(&*app.entry(id)?)?;
    app.compute(move || Ok(Json(asked.tree()).into_response()))
        .await
}

/// What can be explained.
pub(super) async fn explainable(
    State(app): State<Arc<App>>,
    _: Unasked,
) -> Result<Response, Refusal> {
    Ok(Json(app.explainer()?.list()).into_response())
}

pub(super) async fn explain(
    State(app): State<Arc<App>>,
    At(name): At<String>,
    options: Options,
) -> Result<Response, Refusal> {
    Ok(Json(worked(&app, name, options).await?).into_response())
}
