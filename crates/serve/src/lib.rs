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
//! | [`Local`] | the same answers without a server, for a page that computes in the browser |
//! | `models` | with the feature of that name: the models of regard as a [`Model`] |
//! | [`Opened`] | a trace, or the log of a training, with a name |
//!
//! # Safety on a network
//! Only this machine can connect, unless [`Config::listen`] says otherwise; then a token is needed. `Host` and `Origin` are checked,
//! so that no page of another site can ask. The page runs no inline script, and texts of traces enter it as text. Views are bounded:
//! a map is sent in at most 1,024 x 1,024 cells, layers are followed for texts of at most 512 tokens, 128 layers of such a text (for flow
//! 64 tokens and 24 layers), four views are computed at a time, and connections are limited in number and in time. Looks are kept up to
//! a number and to so many bytes, and one look takes at most 1,024 changes of heads.
#![deny(missing_docs)]
// The server and what it alone uses are missing in a browser.
#![cfg_attr(target_family = "wasm", allow(dead_code, unused_imports))]

mod api;
mod changes;
mod config;
#[cfg(not(target_family = "wasm"))]
mod connections;
mod data;
mod entries;
mod explain;
mod export;
mod files;
#[cfg(not(target_family = "wasm"))]
mod guard;
mod local;
mod long;
mod model;
#[cfg(feature = "models")]
pub mod models;
mod named;
#[cfg(not(target_family = "wasm"))]
mod server;
mod standalone;
mod worker;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use regard_trace::diagnose::log;
use regard_trace::{LongTrace, Trace, TraceError};

pub use config::{Config, ServeError, TOKEN_LENGTH};
pub use explain::{
    Control, ControlKind, Explainable, Explained, ExplainedGroup, ExplainedStep, Explainer,
};
pub use local::{Answer, Local};
pub use model::{
    AblatedHead, Ablation, Alternative, Change, Continuation, Cut, Generation, GradientMap,
    Gradients, Hypothesis, Input, InputKind, Model, Proposed, QueryPlace, Seen,
};
pub use regard_kernels::stack::{GivenWeights, QueryKeys};
#[cfg(not(target_family = "wasm"))]
pub use server::{Running, Stop, serve};
pub use standalone::page;

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
        Ok(Self::named(&file, regard_trace::open(path)?))
    }

    /// The traces in the bytes of a file that is called `name`.
    ///
    /// # Errors
    /// Those of [`regard_trace::open_bytes`].
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Result<Vec<Self>, TraceError> {
        Ok(Self::named(name, regard_trace::open_bytes(name, bytes)?))
    }

    fn named(file: &str, opened: regard_trace::Opened) -> Vec<Self> {
        let traces = match opened {
            regard_trace::Opened::Traces(traces) => traces,
            regard_trace::Opened::Long(long) => {
                return vec![Self {
                    name: file.to_owned(),
                    trace: Trace::default(),
                    long: Some(Arc::new(long)),
                    training: None,
                }];
            }
        };
        let several = traces.len() > 1;
        let named = traces.into_iter().zip(1..).map(|(trace, number)| Self {
            name: match several {
                true => format!("{file} {number}"),
                false => file.to_owned(),
            },
            trace,
            long: None,
            training: None,
        });
        named.collect()
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
