//! `regard completions`: what a shell needs to complete the command line.

use clap::CommandFactory;

use crate::{
    arguments::{CommandLine, Completions},
    failure::Failure,
    output::Output,
};

/// Prints them.
///
/// # Errors
/// Standard output that cannot be written.
pub fn run(options: &Completions) -> Result<(), Failure> {
    let mut script = vec![];
    clap_complete::generate(
        options.shell,
        &mut CommandLine::command(),
        "regard",
        &mut script,
    );
    let mut output = Output::standard();
    output.text(&String::from_utf8_lossy(&script))?;
    output.flush()
}
