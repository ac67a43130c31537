//! The server of the page.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore};

use crate::{Config, Contents, ServeError, api, connections, entries, guard, worker};

/// How long requests may go on after the server was told to stop.
const GRACE: Duration = Duration::from_secs(3);

/// The most inputs that wait: each has a place from the beginning on.
const MOST_WAITING: usize = 1 << 16;

/// Longer than any server runs, and within what clocks can add.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

/// A server that has started.
#[derive(Clone, Debug)]
pub struct Running {
    /// The address of the page, with the token if there is one.
    pub url: String,
    /// Where it listens.
    pub address: SocketAddr,
    /// Ends [`serve`].
    pub stop: Stop,
}

/// Ends [`serve`] from any thread.
#[derive(Clone, Debug)]
pub struct Stop(Arc<Notify>);

impl Stop {
    /// Tells the server to stop: it takes no new requests, and those under way have three seconds.
    pub fn now(&self) {
        self.0.notify_one();
    }
}

/// Serves the page with these contents until Ctrl-C or [`Stop::now`]. `ready` is called once the address is bound, and
/// should return soon: requests are answered after it. A look that is under way at the end goes on in its thread.
///
/// # Errors
/// [`Config::check`], and [`ServeError::Listen`] or [`ServeError::System`] if the system refuses.
pub fn serve(
    config: Config,
    contents: Contents,
    ready: impl FnOnce(Running),
) -> Result<(), ServeError> {
    config.check()?;
    let Contents {
        traces,
        model,
        explainer,
    } = contents;
    let entries = entries::Entries::new(traces, config.kept_looks, config.kept_bytes);
    let entries = Arc::new(entries);
    let queue = config.queue.min(MOST_WAITING);
    let worker = model.map(|model| worker::Worker::start(model, queue, config.look_timeout));
    let worker = worker.transpose()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let served = runtime.block_on(async move {
        let refused = |source| ServeError::Listen {
            listen: config.listen,
            source,
        };
        let listener = TcpListener::bind(config.listen).await.map_err(refused)?;
        let address = listener.local_addr()?;
        let stop = Arc::new(Notify::new());
        let token = config
            .token
            .as_ref()
            .map_or(String::new(), |token| format!("?token={token}"));
        let app = Arc::new(api::App {
            token: config.token.clone(),
            port: address.port(),
            ..api::App::new(entries, worker, explainer, true)
        });
        tracing::info!(%address, "listening");
        // `0.0.0.0` is every address of this machine, but none that a browser opens.
        let mut shown = address;
        if shown.ip().is_unspecified() {
            shown.set_ip(match shown {
                SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            });
        }
        ready(Running {
            url: format!("http://{shown}/{token}"),
            address,
            stop: Stop(stop.clone()),
        });
        let (ending, ended) = tokio::sync::oneshot::channel();
        let signal = async move {
            tokio::select! {
                () = stop.notified() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
            let _ = ending.send(());
        };
        // While the model is at work, nothing moves.
        let patience = config.look_timeout.saturating_add(config.patience);
        let patience = patience.min(LONGEST);
        let places = config.connections.clamp(1, Semaphore::MAX_PERMITS);
        let listener = connections::Limited::new(listener, places, patience);
        let router = guarded(app, config.max_body, patience / 4 * 3);
        let serving = axum::serve(listener, router).with_graceful_shutdown(signal);
        tokio::select! {
            served = serving => served.map_err(ServeError::from),
            () = async { let _ = ended.await; tokio::time::sleep(GRACE).await; } => Ok(()),
        }
    });
    // A view that is still computed ends on its own; nobody waits for it.
    runtime.shutdown_background();
    served
}

/// The routes, for those who may ask; views have so long.
fn guarded(app: Arc<api::App>, max_body: usize, longest: Duration) -> Router {
    api::routes()
        .merge(api::files())
        .layer(from_fn_with_state(longest, in_time))
        .layer(from_fn_with_state(app.clone(), guard::guard))
        .layer(DefaultBodyLimit::max(max_body))
        .with_state(app)
}

/// Answers for a view that takes long, before its connection ends without a word: what was begun goes on.
async fn in_time(State(longest): State<Duration>, request: Request, next: Next) -> Response {
    // A body may take its time, and the model has a limit of its own.
    if request.method() == Method::POST {
        return next.run(request).await;
    }
    let answer = tokio::time::timeout(longest, next.run(request)).await;
    answer.unwrap_or_else(|_| {
        let sentence = "this view takes long and is still computed: ask again in a moment";
        api::Refusal(StatusCode::SERVICE_UNAVAILABLE, sentence.to_owned()).into_response()
    })
}
