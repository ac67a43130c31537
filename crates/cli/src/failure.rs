//! Errors of a command, and its exit codes.
//!
//! | exit code | meaning |
//! |---|---|
//! | 0 | done; also when the reader of standard output has closed it |
//! | 1 | it could not be done: a file, a model, a device, the disk |
//! | 2 | the command line asks for something impossible |
//! | 130 | interrupted, with everything saved |

use std::{error::Error, io, path::PathBuf, process::ExitCode};

use regard_train::{opened::OpenedError, translator::LineError};
use regard_view::choice::ChoiceError;

use crate::output;

/// Why a command ended early.
#[derive(Debug)]
pub enum Failure {
    /// The command line cannot be read, or asks for help.
    CommandLine(clap::Error),
    /// The command line contradicts itself or lacks something.
    Usage(String),
    /// Something could not be done.
    Error(Box<dyn Error + Send + Sync>),
    /// Someone asked the command to stop; the text says how to go on.
    Interrupted(String),
    /// The reader of standard output closed it, as `head` does.
    ClosedPipe,
}

/// Errors of the command itself, rather than of a library below it.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// Output could not be written.
    #[error("{name}: cannot write: {source}")]
    Write {
        /// The file, or `standard output`.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// Input could not be read.
    #[error("{name}: cannot read: {source}")]
    Read {
        /// The file, or `standard input`.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// A line was refused.
    #[error("{name}: {source}")]
    Line {
        /// The file, or what else the lines came from.
        name: String,
        /// What is wrong with the line.
        source: Box<LineError>,
    },
    /// A compressed file is damaged.
    #[error("{name}: damaged gzip data: {source}; the file may be cut short, fetch it again")]
    Gzip {
        /// The file.
        name: String,
        /// What the decoder said.
        source: io::Error,
    },
    /// The device is not there.
    #[error(
        "device {name} is not there; expected one of those that this build finds here: {known}{advice}"
    )]
    NoDevice {
        /// Its name.
        name: String,
        /// The names of those that are there.
        known: String,
        /// How to reach more.
        advice: String,
    },
    /// The device failed at its work.
    #[error(
        "device {name} failed: {reason}; if that is for want of memory, give smaller batches or shorter texts, or --device cpu"
    )]
    DeviceFailed {
        /// Its name.
        name: String,
        /// What its libraries said.
        reason: String,
    },
    /// The thread pool could not be made.
    #[error("cannot start {threads} threads: {reason}; give {advice}")]
    Threads {
        /// How many were asked for.
        threads: usize,
        /// What the system said.
        reason: String,
        /// Where to ask for fewer.
        advice: &'static str,
    },
    /// A file of vectors that are done cannot be gone on with.
    #[error("{}: line {line}: {problem}; remove the file of vectors, or leave --resume out", path.display())]
    NotResumed {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// What stands there, and what was expected.
        problem: String,
    },
    /// A pretrained model has another head than a command needs.
    #[error("{}: this model has {found}; expected {expected}: use `regard {command}`", folder.display())]
    OtherHead {
        /// The model's folder.
        folder: PathBuf,
        /// Its head.
        found: &'static str,
        /// What the command needs.
        expected: &'static str,
        /// The command for the model.
        command: &'static str,
    },
    /// A picture was asked for, but there is no attention to draw.
    #[error("{}: nothing to draw: {reason}", path.display())]
    NothingToDraw {
        /// The picture.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Too many pictures were asked for.
    #[error(
        "pictures of more than {limit} translations were asked for; give fewer lines, or leave --svg, --png, --html and --trace out"
    )]
    TooManyPictures {
        /// The most.
        limit: usize,
    },
    /// A page that no browser could read.
    #[error(
        "{}: the page would hold {found} weights, and browsers read no such file; expected at most {limit}: give fewer or shorter texts, or have `regard serve` show a trace (--trace FILE) in place of the page",
        path.display()
    )]
    LargePage {
        /// The page.
        path: PathBuf,
        /// How many weights there are.
        found: usize,
        /// The most.
        limit: usize,
    },
    /// A trace file without entries.
    #[error("{}: the trace is empty: no text was given when it was written; write it again with some text", path.display())]
    EmptyTrace {
        /// The trace file.
        path: PathBuf,
    },
    /// A trace file has no entry of this number.
    #[error("{}: there is no entry {index}; it has {entries}, counted from 1", path.display())]
    NoEntry {
        /// The trace file.
        path: PathBuf,
        /// The number asked for.
        index: usize,
        /// How many there are.
        entries: usize,
    },
    /// A model's file has no recipe beside it, which would name the data.
    #[error(
        "{}: no recipe.toml is beside this model, which would name its validation and test data; give the folder of its run, or put its recipe there as recipe.toml (a model that translates can be given --source and --references instead, a classifier --labelled)",
        model.display()
    )]
    NoRecipe {
        /// The model's file or folder.
        model: PathBuf,
    },
    /// A run's recipe does not name the part of the data that was asked for.
    #[error(
        "{}: the recipe names no {part} data; give --source and --references", recipe.display()
    )]
    NoSplit {
        /// The recipe.
        recipe: PathBuf,
        /// "validation" or "test".
        part: &'static str,
    },
    /// A recipe does not name what a model's familiarity is measured on.
    #[error("{}: the recipe names no {part} data of sentence pairs to measure on", recipe.display())]
    NothingFamiliar {
        /// The recipe.
        recipe: PathBuf,
        /// "training" or "validation".
        part: &'static str,
    },
    /// A classifier's recipe does not name the part of the data that was asked for.
    #[error("{}: the recipe names no labelled {part} data; give --labelled", recipe.display())]
    NoLabelled {
        /// The recipe.
        recipe: PathBuf,
        /// "validation" or "test".
        part: &'static str,
    },
    /// The recipe of a model that answers questions about images does not name the part of the data that was asked for.
    #[error("{}: the recipe names no {part} data of questions about images; give the run folder of a model whose recipe names some", recipe.display())]
    NoQuestions {
        /// The recipe.
        recipe: PathBuf,
        /// "validation" or "test".
        part: &'static str,
    },
    /// A captioner's recipe does not name the part of the data that was asked for.
    #[error("{}: the recipe names no {part} data of images with captions; give the run folder of a captioner that has some", recipe.display())]
    NoCaptions {
        /// The recipe.
        recipe: PathBuf,
        /// "validation" or "test".
        part: &'static str,
    },
    /// A model computes no numbers.
    #[error(
        "{model}: the model's results are no finite numbers: its weights overflow or are no numbers; give another model"
    )]
    NotFinite {
        /// The model.
        model: String,
    },
    /// A signal handler could not be set.
    #[error("cannot listen for Ctrl-C: {0}")]
    Signal(#[from] ctrlc::Error),
}

impl Failure {
    /// Prints what happened on standard error, and gives the exit code.
    pub fn report(&self) -> ExitCode {
        match self {
            Self::ClosedPipe => {}
            Self::CommandLine(problem) => {
                // If standard error is closed, there is no way to report that.
                let _ = problem.print();
            }
            Self::Usage(message) => output::complain(&format!(
                "error: {message}\n\nFor more information, try '--help'."
            )),
            Self::Error(error) => output::complain(&format!("error: {error}")),
            Self::Interrupted(message) => output::say(message),
        }
        ExitCode::from(self.code())
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        match self {
            Self::ClosedPipe => 0,
            Self::CommandLine(problem) => problem.exit_code() as u8,
            Self::Error(_) => 1,
            Self::Usage(_) => 2,
            Self::Interrupted(_) => 130,
        }
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        let error: Box<dyn Error + Send + Sync> = Box::new(error);
        match error.downcast() {
            Ok(opened) => match *opened {
                OpenedError::Asked(message) => Self::Usage(message),
                other => Self::Error(Box::new(other)),
            },
            // Which maps to draw is said on the command line.
            Err(error) if error.is::<ChoiceError>() => Self::Usage(error.to_string()),
            Err(error) => Self::Error(error),
        }
    }
}
