//! The training loop.
//!
//! Each run has a folder:
//!
//! | file | content |
//! |---|---|
//! | `recipe.toml` | the recipe with every override applied |
//! | `tokenizer.json` | the tokenizers of source and target |
//! | `last.safetensors` | the full state: weights, optimizer, progress (see [`checkpoint`]) |
//! | `best.safetensors` | the model of the best validation |
//! | `recent/step-N.safetensors` | the models of the last validations, to be averaged |
//! | `model.safetensors` | the finished model: the average, or the best if that is better |
//! | `metrics.jsonl` | one JSON object a line (see [`Event`]) |
//! | `.lock` | locked by the process that trains here |
//! | `validation/step-N.txt` | the translations (or labels) of the validation set, line by line |
//!
//! Invariant: everything random in update `t` follows from (seed, `t`), and the order of an epoch from
//! (seed, epoch). So a run that was interrupted and resumed makes the same updates as one that was not. The state is written
//! before the first update, after every validation and on request, so a run that is killed loses only its work since the last
//! of these. A validation that fails ends a run, which makes it again when it goes on. With several processes
//! ([`ranks`](crate::ranks)) each computes some rows of every batch (`parallel.rs`) and some of every validation; rank 0 alone reports, and
//! reads and writes the folder. A run that fails before an update was saved or reported leaves no folder that it made.
//! A recipe or tokenizer in the folder that no run has written is not replaced: the run is refused, and so is going on with it.

pub mod checkpoint;
pub mod events;
pub(crate) mod folder;
pub mod optimizer;
mod parallel;
pub mod sampling;
pub mod schedule;
pub(crate) mod session;
pub(crate) mod start;

use std::{path::Path, sync::atomic::AtomicBool};

use burn::tensor::Device;

use crate::ranks::Ranks;

pub use events::{
    Event, Quality, Reason, Started, Summary, TrainMetrics, ValidationMetrics, Vocabularies,
};

pub(crate) const LAST: &str = "last.safetensors";
pub(crate) const BEST: &str = "best.safetensors";
pub(crate) const MODEL: &str = "model.safetensors";
pub(crate) const RECIPE: &str = "recipe.toml";
pub(crate) use regard_trace::diagnose::log::FILE as METRICS;
pub(crate) const TOKENIZER: &str = "tokenizer.json";
pub(crate) const LOCK: &str = ".lock";
const RECENT: &str = "recent";
const VALIDATION: &str = "validation";

/// The folder, the device and the stop flag of a run.
#[derive(Debug)]
pub struct Run<'a> {
    /// The run folder; it is created.
    pub folder: &'a Path,
    /// The device, without autodiff.
    pub device: &'a Device,
    /// Set from outside (Ctrl-C) to end after the current update, with a checkpoint.
    pub stop: &'a AtomicBool,
    /// The processes that train together: [`Alone`](crate::ranks::Alone) if there is one.
    pub ranks: &'a dyn Ranks,
}
