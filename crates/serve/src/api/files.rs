//! Views as files to save.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use regard_view::Heatmap;
use regard_view::chart::Chart;
use regard_view::training::Plot;
use serde::Deserialize;

use super::request::{
    At, Of, Options, Unasked, chosen, expect_shown, long_part, map_of, plots, range, searched,
    taken, worked,
};
use super::{App, Refusal, bad};
use crate::Explained;
use crate::data::{self, Heads, MOST_SIDE};
use crate::export::{self, Format, Source, View};
use crate::long::Part;
use crate::named::Named;

pub(super) async fn picture(Of { app, entry, asked }: Of) -> Result<Response, Refusal> {
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
        // The overview names no token.
        if !matches!(asked.view, View::Overview) {
            expect_shown(map)?;
        }
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
                expect_shown(map)?;
                Some(Source {
                    entry,
                    words: asked.words,
                    map,
                    heads: Heads::parse(&asked.heads2, asked.by, map).map_err(bad)?,
                    queries: range(asked.q0, asked.q1, map.queries().len())?,
                    keys: range(asked.k0, asked.k1, map.keys().len())?,
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
            asked.overlay,
        )
        .map_err(bad)?;
        Ok(saved(asked.format, file))
    })
    .await
}

/// The tree of the search as a picture: what was taken, or all proposals.
pub(super) async fn generation_file(Of { app, entry, asked }: Of) -> Result<Response, Refusal> {
    let search = searched(&entry)?;
    app.compute(move || {
        let title = entry.trace(false).target.clone();
        let file = export::tree(&search, entry.id, &title, asked.all, asked.format);
        Ok(saved(asked.format, file.map_err(bad)?))
    })
    .await
}

/// The picture of a worked example; a page has its numbers below it.
pub(super) async fn explained_file(
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

/// Numbers that the page has, such as the effects of heads, `values [rows, columns]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
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

pub(super) async fn table(
    State(app): State<Arc<App>>,
    _: Unasked,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Refusal> {
    let body = taken(body)?;
    let Named(table): Named<Table> = serde_json::from_slice(&body)
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
