//! The command `regard`: train, translate, evaluate and see attention models.
//!
//! The code here parses options, calls the libraries and prints. Models, training and evaluation are
//! in the libraries.
//!
//! | file | what |
//! |---|---|
//! | [`allocator`] | mimalloc, with a count of the most memory in use during some work |
//! | [`arguments`] | the command line, command by command |
//! | [`commands`] | one file a command |
//! | [`devices`] | where to compute: devices by their names, and what becomes of one that fails |
//! | [`failure`] | errors of a command, and exit codes |
//! | [`output`] | standard output and error, whose reader may close them |
//! | [`pictures`] | attention as SVG, PNG, HTML and trace files, and in the terminal |
//! | [`progress`] | a bar on a terminal, plain lines elsewhere |
//! | [`ranks`] | the processes that `mpirun` started |
//! | [`models`] | opening a model file, or the one that is compiled in |
//! | [`input`] | lines as they arrive, and whole files |
//! | [`version`] | what this build is, and what it computes with |
#![deny(missing_docs)]

mod allocator;
mod arguments;
mod commands;
mod devices;
mod failure;
mod input;
mod models;
mod output;
mod pictures;
mod progress;
mod ranks;
mod version;

use std::{
    io::{self, Write},
    panic::{self, AssertUnwindSafe},
    process::ExitCode,
};

use clap::Parser;

use crate::failure::{CommandError, Failure};

#[global_allocator]
static ALLOCATOR: allocator::Counted = allocator::Counted;

fn main() -> ExitCode {
    panic::set_hook(Box::new(|info| {
        // Others report these.
        if devices::is_failure(info) || regard_models::is_guarded() {
            return;
        }
        output::complain(&format!(
            "error: this is a bug in regard {}: {info}\nplease report it, with the command that you gave, at {}/issues",
            env!("CARGO_PKG_VERSION"),
            env!("CARGO_PKG_REPOSITORY"),
        ));
    }));
    if let Err(error) = ranks::join() {
        return Failure::from(error).report();
    }
    let command = match arguments::CommandLine::try_parse() {
        Ok(command_line) => command_line.command,
        Err(problem) => return ranks::end(printed(problem)),
    };
    let run = || {
        ranks::expect_shared(&command)?;
        commands::run(command)
    };
    // The hook prints a panic; here it only becomes an exit code.
    match panic::catch_unwind(AssertUnwindSafe(run)) {
        Ok(done) => ranks::end(done),
        Err(_) => ranks::end_broken(),
    }
}

/// Prints help or the version if the command line asks for it; else it cannot be read.
fn printed(problem: clap::Error) -> Result<(), Failure> {
    if problem.use_stderr() {
        return Err(Failure::CommandLine(problem));
    }
    match problem.print().and_then(|()| io::stdout().flush()) {
        Err(source) if source.kind() != io::ErrorKind::BrokenPipe => {
            let name = "standard output".to_owned();
            Err(CommandError::Write { name, source }.into())
        }
        _ => Ok(()),
    }
}
