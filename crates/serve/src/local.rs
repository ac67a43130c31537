//! The answers of the page without a server.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::DefaultBodyLimit;
use axum::http::{Request, StatusCode};
use axum::response::IntoResponse;
use futures_util::FutureExt;
use tower_service::Service;

use crate::api::{self, App, Refusal};
use crate::entries::Entries;
use crate::worker::Worker;
use regard_trace::TraceError;

use crate::{Contents, Opened};

/// What the page asks for and is answered, without a network and without threads: for a page that computes where it is shown, in a
/// browser. Each answer is computed when it is asked for.
///
/// ```
/// use regard_serve::{Contents, Local};
///
/// let local = Local::new(Contents::default(), 8, 256 << 20);
/// let answer = local.answer("GET", "api/traces", vec![]);
/// assert_eq!(answer.status, 200);
/// assert!(String::from_utf8_lossy(&answer.body).contains("\"traces\":[]"));
/// ```
pub struct Local {
    app: Arc<App>,
    routes: axum::Router,
}

/// An answer, as HTTP has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status, 200 if all is well; else the body is JSON with a sentence under `error`.
    pub status: u16,
    /// Names and values.
    pub headers: Vec<(String, String)>,
    /// The bytes.
    pub body: Vec<u8>,
}

impl Local {
    /// With these contents; of the model's looks the last `kept_looks` are kept, as far as their weights fit into `kept_bytes`, and the
    /// last one in any case.
    pub fn new(contents: Contents, kept_looks: usize, kept_bytes: usize) -> Self {
        let entries = Arc::new(Entries::new(contents.traces, kept_looks, kept_bytes));
        let worker = contents.model.map(Worker::here);
        let app = Arc::new(App::new(entries, worker, contents.explainer, false));
        let routes = api::routes().layer(DefaultBodyLimit::disable());
        Self {
            routes: routes.with_state(app.clone()),
            app,
        }
    }

    /// Adds the traces in the bytes of a file that is called `name`, and gives the number of the first.
    ///
    /// # Errors
    /// Those of [`Opened::from_bytes`].
    pub fn open(&self, name: &str, bytes: Vec<u8>) -> Result<u64, TraceError> {
        Ok(self.app.entries.add(Opened::from_bytes(name, bytes)?))
    }

    /// The answer to a request of the page: `path` has no slash in front, and may have a query.
    pub fn answer(&self, method: &str, path: &str, body: Vec<u8>) -> Answer {
        let request = Request::builder().method(method).uri(format!("/{path}"));
        let asked = match request.body(Body::from(body)) {
            Ok(request) => self.routes.clone().call(request).now_or_never(),
            Err(error) => {
                let refusal = Refusal(StatusCode::BAD_REQUEST, error.to_string());
                Some(Ok(refusal.into_response()))
            }
        };
        // Nothing waits where there are no threads.
        let failed = || {
            let sentence = "the answer is not there yet: ask again".to_owned();
            Refusal(StatusCode::SERVICE_UNAVAILABLE, sentence).into_response()
        };
        let response = asked.map_or_else(failed, |Ok(response)| response);
        let (parts, body) = response.into_parts();
        let headers = parts.headers.iter().map(|(name, value)| {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            (name.as_str().to_owned(), value)
        });
        let bytes = to_bytes(body, usize::MAX).now_or_never();
        let bytes = bytes.and_then(Result::ok).unwrap_or_default();
        Answer {
            status: parts.status.as_u16(),
            headers: headers.collect(),
            body: bytes.to_vec(),
        }
    }
}
