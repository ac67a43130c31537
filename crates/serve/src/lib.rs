//! The live viewer: a local server and its page, to look at what a model attended to.
//!
//! [`serve`] takes traces that were opened, a model that can be asked, worked examples of mechanisms, or any of them, and blocks until
//! Ctrl-C. The page has the views Overview (all heads), Head (one map or several), Text, Image, Rollout (all layers together), Compare;
//! for what a model was asked Query and key, Generation (the tree of the search), Ask: switch heads off and see whether the output
//! changes, and Gradient: the gradient by each weight, times the weight; Explain: a mechanism step by step, with sliders for its inputs. Of a run folder Training plots how attention changes. Nothing
//! is loaded from elsewhere, and nothing is written.
//!
//! ```no_run
//! use regard_serve::{Config, Contents, Opened, serve};
//!
//! let contents = Contents { traces: Opened::read("look.safetensors")?, ..Contents::default() };
//! serve(Config::default(), contents, |running| println!("{}", running.url))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A program that is not a command stops the server by [`Running::stop`]:
//!
//! ```
//! use regard_serve::{Config, Contents, serve};
//!
//! serve(Config::default(), Contents::default(), |running| {
//!     assert!(running.url.starts_with("http://127.0.0.1:"));
//!     running.stop.now();
//! })?;
//! # Ok::<(), regard_serve::ServeError>(())
//! ```
//!
//! | part | what |
//! |---|---|
//! | [`Model`] | what can be asked; runs on one thread, behind a queue of bounded length |
//! | [`Explainer`] | worked examples |
//! | [`Contents`] | what is served |
//! | [`Config`] | address, token, limits |
//! | [`Opened`] | a trace, or the log of a training, with a name |
//!
//! # Safety on a network
//! Only this machine can connect, unless [`Config::listen`] says otherwise; then a token is needed. `Host` and `Origin` are checked,
//! so that no page of another site can ask. The page runs no inline script, and texts of traces enter it as text. Views are bounded:
//! a map is sent in at most 1,024 x 1,024 cells, four views are computed at a time, and connections are limited in number and in time.
#![deny(missing_docs)]

mod api;
mod changes;
mod config;
mod connections;
mod data;
mod entries;
mod explain;
mod export;
mod files;
mod guard;
mod long;
mod model;
mod standalone;
mod worker;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use regard_trace::diagnose::log;
use regard_trace::{LongTrace, Trace, TraceError};
use tokio::net::TcpListener;
use tokio::sync::Notify;

pub use config::{Config, ServeError, TOKEN_LENGTH};
pub use explain::{
    Control, ControlKind, Explainable, Explained, ExplainedGroup, ExplainedStep, Explainer,
};
pub use model::{
    AblatedHead, Ablation, Alternative, Change, Continuation, Generation, GradientMap, Gradients,
    Hypothesis, Input, InputKind, Model, Proposed, QueryPlace, Seen,
};
pub use regard_kernels::stack::{GivenWeights, QueryKeys};
pub use standalone::page;

/// How long requests may go on after the server was told to stop.
const GRACE: Duration = Duration::from_secs(3);

/// A trace to be shown, and its name in the list.
#[derive(Clone, Debug)]
pub struct Opened {
    /// The name, such as that of its file.
    pub name: String,
    /// The trace; empty for a long text.
    pub trace: Trace,
    /// Of a long text, its queries and keys.
    pub long: Option<Arc<LongTrace>>,
    /// Of a training, its log, which is read again whenever the page asks for it.
    pub training: Option<PathBuf>,
}

impl Opened {
    /// The traces of a file, under the file's name; or how attention changes in a training, of its run folder or its log
    /// (`metrics.jsonl`).
    ///
    /// # Errors
    /// Those of [`regard_trace::open`] or [`log::read`].
    pub fn read(path: impl AsRef<Path>) -> Result<Vec<Self>, TraceError> {
        let path = path.as_ref();
        if let Some(log) = log::path_of(path) {
            log::read(&log)?;
            return Ok(vec![Self {
                name: path.display().to_string(),
                trace: Trace::default(),
                long: None,
                training: Some(log),
            }]);
        }
        let file = path
            .file_name()
            .unwrap_or(path.as_os_str())
            .to_string_lossy();
        let traces = match regard_trace::open(path)? {
            regard_trace::Opened::Traces(traces) => traces,
            regard_trace::Opened::Long(long) => {
                return Ok(vec![Self {
                    name: file.to_string(),
                    trace: Trace::default(),
                    long: Some(Arc::new(long)),
                    training: None,
                }]);
            }
        };
        let several = traces.len() > 1;
        let named = traces.into_iter().zip(1..).map(|(trace, number)| Self {
            name: match several {
                true => format!("{file} {number}"),
                false => file.to_string(),
            },
            trace,
            long: None,
            training: None,
        });
        Ok(named.collect())
    }
}

/// What is served; each part may be missing.
#[derive(Default)]
pub struct Contents {
    /// Traces that were opened.
    pub traces: Vec<Opened>,
    /// A model that can be asked.
    pub model: Option<Box<dyn Model>>,
    /// Worked examples.
    pub explainer: Option<Box<dyn Explainer>>,
}

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
    let entries = Arc::new(entries::Entries::new(traces, config.kept_looks));
    let worker = model.map(|model| worker::Worker::start(model, config.queue, config.look_timeout));
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
            entries,
            other: Default::default(),
            worker,
            explainer: explainer.map(Arc::from),
            permits: api::App::permits(),
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
        let listener = connections::Limited::new(listener, config.connections.max(1), patience);
        let serving =
            axum::serve(listener, api::router(app, config.max_body)).with_graceful_shutdown(signal);
        tokio::select! {
            served = serving => served.map_err(ServeError::from),
            () = async { let _ = ended.await; tokio::time::sleep(GRACE).await; } => Ok(()),
        }
    });
    // A view that is still computed ends on its own; nobody waits for it.
    runtime.shutdown_background();
    served
}
