//! `regard man`.

use std::path::PathBuf;

use clap::Args;

const EXAMPLES: &str = "\
Examples:
  regard man translate | man -l -
  regard man --out ~/.local/share/man/man1             regard.1, and a page for each command";

/// Print the manual page of a command, or write all of them
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Man {
    /// The command [default: the page of `regard` itself]
    #[arg(value_name = "COMMAND")]
    pub command: Option<String>,
    /// Write all pages into a folder, which is made if it is not there
    #[arg(long, value_name = "FOLDER", conflicts_with = "command")]
    pub out: Option<PathBuf>,
}
