//! What the page asks for, and the answers: who is answered here, what is asked in [`request`], and the answers in the others.

mod files;
mod model;
mod request;
mod views;

use std::sync::Arc;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::json;
use tokio::sync::Semaphore;

use crate::Explainer;
use crate::changes::OtherText;
use crate::data::Entry;
use crate::entries::Entries;
use crate::files::FILES;
use crate::worker::{Unanswered, Worker};
use files::{explained_file, generation_file, picture, table};
use model::{all_gradients, gradient, look, query_keys};
pub use views::IMAGE_SIDE;
use views::{
    axes, explain, explainable, flowed, generation, image, joint, overview, sums, traces, training,
    window,
};

/// Views that are computed at the same time; further ones wait.
const AT_ONCE: usize = 4;

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

/// Why the model gave no answer; `late` says what becomes of one that takes too long.
fn unanswered(why: Unanswered, late: &str) -> Refusal {
    let sentence = match why {
        Unanswered::Refused(sentence) => {
            return Refusal(StatusCode::UNPROCESSABLE_ENTITY, sentence);
        }
        Unanswered::Full => "too many inputs wait for the model: try again in a moment".to_owned(),
        Unanswered::Waited => "other inputs kept the model busy: try again in a moment".to_owned(),
        Unanswered::Timeout => format!("the model is still at work: {late}"),
        Unanswered::Stopped => "the model has stopped: start the server again".to_owned(),
    };
    Refusal(StatusCode::SERVICE_UNAVAILABLE, sentence)
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
