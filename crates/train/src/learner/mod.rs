//! The training loop.
//!
//! A run lives in a folder:
//!
//! | file | content |
//! |---|---|
//! | `recipe.toml` | the recipe with every override laid in |
//! | `tokenizer.json` | the tokenizers of source and target |
//! | `last.safetensors` | the full state: weights, optimizer, progress (see [`checkpoint`]) |
//! | `best.safetensors` | the model of the best validation |
//! | `recent/step-N.safetensors` | the models of the last validations, to be averaged |
//! | `model.safetensors` | the finished model: the average, or the best if that is better |
//! | `metrics.jsonl` | one JSON object a line (see [`Event`]) |
//! | `validation/step-N.txt` | the translations (or labels) of the validation set |
//!
//! Invariant: everything random in update `t` follows from (seed, `t`), and the order of an epoch from
//! (seed, epoch). So a run that was interrupted and resumed makes the same updates as one that was not. The state is written
//! before the first update, after every validation and on request, so a run that is killed loses what it did since the last of
//! these, and nothing else.

pub mod build;
pub mod checkpoint;
mod classification;
pub mod events;
pub mod optimizer;
pub mod sampling;
pub mod schedule;
mod session;
mod task;
mod translation;
pub mod validate;

use std::{
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

use burn::tensor::Device;
use regard_models::ModelError;
use regard_nn::weights::WeightsError;

pub use events::{Event, Quality, Reason, Started, Summary, TrainMetrics, ValidationMetrics};

use crate::{
    corpus::CorpusError,
    files::FileError,
    model_file::ModelFileError,
    recipe::{Recipe, RecipeError, Task},
    tokenizer::TokenizerError,
};
use checkpoint::CheckpointError;
use classification::Classification;
use optimizer::OptimizerError;
use session::Session;
use translation::Translation;
use validate::ValidateError;

pub(crate) const LAST: &str = "last.safetensors";
const BEST: &str = "best.safetensors";
pub(crate) const MODEL: &str = "model.safetensors";
pub(crate) const RECIPE: &str = "recipe.toml";
pub(crate) const METRICS: &str = "metrics.jsonl";

/// Where and on what a run works.
#[derive(Debug)]
pub struct Run<'a> {
    /// The run folder; it is created.
    pub folder: &'a Path,
    /// The device, without autodiff.
    pub device: &'a Device,
    /// Set from outside (Ctrl-C) to end after the current update, with a checkpoint.
    pub stop: &'a AtomicBool,
}

/// Why training could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The recipe is wrong.
    #[error(transparent)]
    Recipe(#[from] RecipeError),
    /// The data is wrong.
    #[error(transparent)]
    Corpus(#[from] CorpusError),
    /// No training data is named.
    #[error(
        "the recipe names no training data; set data.train_source and data.train_target, [data.synthetic], or for a classifier [data.labelled]"
    )]
    NoData,
    /// Nothing is left after filtering.
    #[error(
        "no sentence pair is left to train on: {0} were read, all were dropped by [data.filter]"
    )]
    NothingKept(usize),
    /// The tokenizers could not be learned.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The model's sizes do not fit.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A file could not be written or read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A model file is damaged.
    #[error(transparent)]
    ModelFile(#[from] ModelFileError),
    /// The recipe asks for a model of another task.
    #[error("model.kind = {kind:?} is no {task}")]
    Kind {
        /// The kind.
        kind: &'static str,
        /// What was wanted.
        task: &'static str,
    },
    /// The weights do not fit the recipe's model.
    #[error("the checkpoint does not fit the recipe: {0}")]
    Weights(#[from] WeightsError),
    /// A checkpoint could not be written or read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The update failed.
    #[error(transparent)]
    Optimizer(#[from] OptimizerError),
    /// The loss is NaN or infinite.
    #[error(
        "the loss is {loss} at update {step}; lower the learning rate or set optimizer.clip_norm"
    )]
    Loss {
        /// The loss.
        loss: f64,
        /// The update.
        step: u64,
    },
    /// The model could not be judged.
    #[error(transparent)]
    Validate(#[from] ValidateError),
    /// The folder holds a run already.
    #[error("{}: holds a run already; go on with `regard train --resume {}`, or choose another folder", .0.display(), .0.display())]
    Occupied(PathBuf),
    /// There is nothing to resume.
    #[error("{}: no last.safetensors to resume from; expected the folder of a `regard train` run", .0.display())]
    NothingToResume(PathBuf),
}

/// Trains what `recipe` describes, from the start; `report` hears of everything.
///
/// # Errors
/// Whatever [`TrainError`] names. What was saved before stays.
pub fn train(
    recipe: &Recipe,
    run: &Run<'_>,
    report: &mut dyn FnMut(&Event),
) -> Result<Summary, TrainError> {
    if run.folder.join(LAST).exists() || run.folder.join(MODEL).exists() {
        return Err(TrainError::Occupied(run.folder.to_owned()));
    }
    match recipe.model.task() {
        Task::Translation => {
            Session::<Translation>::start(recipe.clone(), run, report, false)?.run()
        }
        Task::Classification => {
            Session::<Classification>::start(recipe.clone(), run, report, false)?.run()
        }
    }
}

/// Goes on with the run in `run.folder`, with `overrides` (`section.key=value`) laid over its recipe. A run that died before
/// it wrote any state begins with that recipe, and makes the updates that it would have made.
///
/// # Errors
/// Whatever [`TrainError`] names.
pub fn resume(
    overrides: &[String],
    run: &Run<'_>,
    report: &mut dyn FnMut(&Event),
) -> Result<Summary, TrainError> {
    let holds = |file: &str| run.folder.join(file).exists();
    let begun = holds(LAST);
    // A model without its state was moved here or lost it: it is not to be trained over.
    if !begun && (!holds(RECIPE) || holds(BEST) || holds(MODEL)) {
        return Err(TrainError::NothingToResume(run.folder.to_owned()));
    }
    let recipe = Recipe::load(run.folder.join(RECIPE), overrides)?;
    match (recipe.model.task(), begun) {
        (Task::Translation, true) => Session::<Translation>::resume(recipe, run, report)?.run(),
        (Task::Translation, false) => {
            Session::<Translation>::start(recipe, run, report, true)?.run()
        }
        (Task::Classification, true) => {
            Session::<Classification>::resume(recipe, run, report)?.run()
        }
        (Task::Classification, false) => {
            Session::<Classification>::start(recipe, run, report, true)?.run()
        }
    }
}
