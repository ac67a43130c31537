//! `regard train`: from a recipe to a run folder.

use std::{
    path::{Path, PathBuf},
    process,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use burn::tensor::Device;
use regard_train::{
    Registry,
    learner::{Event, Reason, Run},
    recipe::Recipe,
};

use crate::{
    allocator,
    arguments::Train,
    failure::{CommandError, Failure},
    models,
    output::{self, Output},
    progress::Training,
    ranks,
};

/// The folder of run folders, unless another one is given.
const RUNS: &str = "runs";
/// What Ctrl-C does to a training.
pub(super) const SAVING: &str = "finishing this update, then saving; Ctrl-C again stops at once";

/// Trains, resumes, or prints a recipe.
///
/// # Errors
/// Whatever is wrong with the recipe, its data or the run folder; an interruption.
pub fn run(options: &Train) -> Result<(), Failure> {
    let registry = Registry::default();
    if let Some(name) = &options.example
        && let Some(recipe) = registry.example(name)
    {
        return output::print(&registry.commented(&recipe)?);
    }
    let folder = folder(options)?;
    let recipe = match &options.recipe {
        Some(path) => registry.load(path, &options.set)?,
        None => registry.recipe_of(&folder, &options.set, ranks::all())?,
    };
    if options.recipe.is_some() {
        models::fetch_start(recipe.training.start.as_deref(), options.quiet)?;
    }
    allocator::keep_freed_memory();
    let threads = recipe.training.threads;
    let compute = &options.compute;
    compute.run(threads, |device| train(options, &recipe, &folder, device))
}

fn train(options: &Train, recipe: &Recipe, folder: &Path, device: &Device) -> Result<(), Failure> {
    let run = Run {
        folder,
        device,
        stop: &*listen((!options.quiet).then_some(SAVING), stopped)?,
        ranks: ranks::all(),
    };
    let mut watcher = Watcher::new(options, recipe);
    let mut report = |event: &Event| watcher.tell(event);
    let trained = match options.recipe {
        Some(_) => Registry::default().train(recipe, &run, &mut report),
        None => Registry::default().resume(&options.set, &run, &mut report),
    };
    // The progress bar must be gone before anything else is printed.
    let failed = watcher.finish();
    let summary = trained?;
    failed?;
    if summary.reason == Reason::Interrupted {
        return Err(Failure::Interrupted(format!(
            "interrupted and saved; go on with: regard train --resume {}",
            folder.display()
        )));
    }
    match (&summary.model, options.json) {
        (Some(model), false) => output::print(&format!("{}\n", model.display())),
        _ => Ok(()),
    }
}

fn folder(options: &Train) -> Result<PathBuf, Failure> {
    if let Some(folder) = options.resume.as_ref().or(options.folder.as_ref()) {
        return Ok(folder.clone());
    }
    let stem = options.recipe.as_deref().and_then(Path::file_stem);
    match stem {
        Some(stem) => Ok(Path::new(RUNS).join(stem)),
        None => Err(Failure::Usage(
            "the recipe's name gives no run folder; name one with --folder".to_owned(),
        )),
    }
}

/// Says what the second Ctrl-C leaves of a training.
pub(super) fn stopped() {
    output::say("stopped at once; the last checkpoint is as it was");
}

/// A flag that Ctrl-C sets, and what is `said` then; the second one ends the process, after `stopped`.
pub(super) fn listen(
    said: Option<&'static str>,
    stopped: impl Fn() + Send + 'static,
) -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    let handler = move || {
        if flag.swap(true, Ordering::SeqCst) {
            stopped();
            ranks::kill(130);
            process::exit(130);
        }
        if let Some(said) = said {
            output::say(said);
        }
    };
    ctrlc::set_handler(handler).map_err(CommandError::Signal)?;
    Ok(stop)
}

/// Shows events, as progress or as JSON.
enum Watcher {
    Progress(Box<Training>),
    Json {
        output: Output,
        failed: Option<Failure>,
    },
    Nobody,
}

impl Watcher {
    fn new(options: &Train, recipe: &Recipe) -> Self {
        if !ranks::is_first() {
            Self::Nobody
        } else if options.json {
            Self::Json {
                output: Output::standard(),
                failed: None,
            }
        } else if options.quiet {
            Self::Nobody
        } else {
            Self::Progress(Box::new(Training::new(recipe.training.minutes)))
        }
    }

    fn tell(&mut self, event: &Event) {
        match self {
            Self::Progress(progress) => progress.show(event),
            Self::Json { output, failed } => {
                // Training goes on although the reader of standard output is gone.
                if failed.is_none() {
                    *failed = write(output, event).err();
                }
            }
            Self::Nobody => {}
        }
    }

    fn finish(self) -> Result<(), Failure> {
        match self {
            Self::Json {
                failed: Some(failure),
                ..
            } => Err(failure),
            _ => Ok(()),
        }
    }
}

fn write(output: &mut Output, event: &Event) -> Result<(), Failure> {
    output.line(&serde_json::to_string(event)?)?;
    output.flush()
}
