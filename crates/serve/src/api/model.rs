//! What a model is asked: to look, for a query with its keys, for gradients.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use regard_trace::AttentionMap;
use regard_view::label::beginning;
use serde::Deserialize;
use serde_json::json;

use super::request::{At, Of, Unasked, map_of, taken};
use super::views::weights;
use super::{App, Refusal, bad, unanswered};
use crate::changes::Changes;
use crate::data::{self, Entry, Heads};
use crate::named::Named;
use crate::{Continuation, GradientMap, Input, QueryKeys, QueryPlace};

/// The most tokens that a model writes on.
const MOST_TOKENS: usize = 256;

/// The most characters of an answer that the page gets.
const MOST_CHARACTERS: usize = 100_000;

/// The first line of a look's body; the bytes of an image may follow the line.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Look {
    text: String,
    target: String,
    ablation: Changes,
    continuation: Named<Continuation>,
    /// Whether the trace is kept, to be seen.
    keep: bool,
}

impl Default for Look {
    fn default() -> Self {
        Self {
            text: String::new(),
            target: String::new(),
            ablation: Changes::default(),
            continuation: Named(Continuation::default()),
            keep: true,
        }
    }
}

pub(super) async fn look(
    State(app): State<Arc<App>>,
    _: Unasked,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Refusal> {
    let worker = app.worker()?;
    let body = taken(body)?;
    let end = body
        .iter()
        .position(|&byte| byte == b'\n')
        .unwrap_or(body.len());
    let Named(asked): Named<Look> = serde_json::from_slice(&body[..end])
        .map_err(|error| bad(format!("the first line is not as expected: {error}")))?;
    asked.ablation.check().map_err(bad)?;
    let input = Input {
        text: asked.text,
        target: asked.target,
        image: body.get(end + 1..).unwrap_or_default().to_vec(),
        continuation: asked.continuation.0,
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
    // What would be ignored is refused.
    let kind = worker.input;
    for (part, heeded, lacks) in [
        (
            "ablation",
            asked.ablation.is_empty() || worker.changes_heads,
            "has no heads that can be changed",
        ),
        (
            "continuation",
            tokens == 0 || worker.continues,
            "does not write on",
        ),
        (
            "text",
            input.text.is_empty() || kind.has_text(),
            "reads no text",
        ),
        (
            "target",
            input.target.is_empty() || kind.has_target(),
            "is given no target",
        ),
        (
            "image",
            input.image.is_empty() || kind.has_image(),
            "looks at no image",
        ),
    ] {
        if !heeded {
            return Err(bad(format!("{part}: this model {lacks}; ask without it")));
        }
    }
    if kind.has_image() && input.image.is_empty() {
        return Err(bad("this model looks at an image: choose one"));
    }
    let (changes, other) = (asked.ablation, app.other.clone());
    let (keep, entries) = (asked.keep, app.entries.clone());
    // Kept before it is told, so that a look which came too late is found in the list.
    let (id, (output, alternatives, score, cut)) = worker
        .ask(move |model| {
            let ablation = changes.of(model, &input, &other, &entries)?;
            let seen = model.look(&input, &ablation)?;
            let answer = (
                seen.output.clone(),
                seen.alternatives.clone(),
                seen.trace.score,
                seen.cut,
            );
            let id = keep.then(|| entries.keep(seen, input, ablation));
            Ok((id, answer))
        })
        .await
        .map_err(|why| {
            let late = match keep {
                true => "the trace of this look will be in the list when it is done",
                false => "its answer will be lost; ask again, about less if this lasts",
            };
            unanswered(why, late)
        })?;
    let alternatives: Vec<_> = (alternatives.iter())
        .map(|one| {
            // Whole, so that the page tells them apart.
            let text = beginning(&one.text, MOST_CHARACTERS);
            json!({ "text": text, "probability": one.probability })
        })
        .collect();
    Ok(Json(json!({
        "trace": id,
        "output": data::shown(&output, MOST_CHARACTERS),
        "alternatives": alternatives,
        "score": score.filter(|score| score.is_finite()),
        "cut": cut,
    }))
    .into_response())
}

/// The keys that the page gets of a query, those with the largest weights.
const MOST_KEYS: usize = 128;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OneQuery {
    map: usize,
    head: usize,
    query: usize,
}

/// One query with its keys and values: the model of a look reads its input again.
pub(super) async fn query_keys(
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
        .await
        .map_err(|why| {
            unanswered(
                why,
                "its queries and keys will be lost; ask again, about a shorter text if this lasts",
            )
        })?;
    app.compute(move || Ok(Json(of_query(&found)).into_response()))
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
    let _turn = owner.gradient_turn.lock().await;
    if entry.gradients.get().is_none() {
        let rank = (look.hypotheses.iter()).position(|one| one.trace == entry.id);
        let kept = entry.clone();
        // Kept before they are told, so that whoever asks again has those that came too late.
        (app.worker()?)
            .ask(move |model| {
                if kept.gradients.get().is_none() {
                    let found = model.gradients(&look.input, rank.unwrap_or(0))?;
                    // The model has one thread, so that nobody else has set them.
                    let _ = kept.gradients.set(found);
                }
                Ok(())
            })
            .await
            .map_err(|why| {
                unanswered(
                    why,
                    "the gradients will be kept when they are done; ask again in a moment",
                )
            })?;
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
pub(super) async fn all_gradients(
    State(app): State<Arc<App>>,
    At(id): At<u64>,
    _: Unasked,
) -> Result<Response, Refusal> {
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
pub(super) async fn gradient(Of { app, entry, asked }: Of) -> Result<Response, Refusal> {
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
