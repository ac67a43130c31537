//! `regard man`: manual pages, made of the same descriptions as `--help`.

use std::{fs, io};

use clap::{Command, CommandFactory};
use clap_mangen::Man as Page;

use crate::{
    arguments::{CommandLine, Man},
    failure::{CommandError, Failure},
    output,
};

/// Prints one page, or writes all.
///
/// # Errors
/// A command that does not exist, a folder that cannot be written.
pub fn run(options: &Man) -> Result<(), Failure> {
    // `--version` tells of this machine, which no page is about.
    let mut whole = CommandLine::command()
        .disable_help_subcommand(true)
        .long_version(env!("CARGO_PKG_VERSION"));
    // Gives the commands their full names, and the options that all have.
    whole.build();
    if let Some(folder) = &options.out {
        fs::create_dir_all(folder).map_err(|source| CommandError::Write {
            name: folder.display().to_string(),
            source,
        })?;
        for command in [&whole].into_iter().chain(whole.get_subcommands()) {
            let page = Page::new(command.clone());
            output::write_file(&folder.join(page.get_filename()), &rendered(&page)?)?;
        }
        return Ok(());
    }
    let command = match &options.command {
        None => &whole,
        Some(name) => find(&whole, name)?,
    };
    output::print(&String::from_utf8_lossy(&rendered(&Page::new(
        command.clone(),
    ))?))
}

fn find<'a>(whole: &'a Command, name: &str) -> Result<&'a Command, Failure> {
    whole.find_subcommand(name).ok_or_else(|| {
        let names: Vec<_> = whole.get_subcommands().map(Command::get_name).collect();
        Failure::Usage(format!(
            "there is no command {name}; there are {}",
            names.join(", ")
        ))
    })
}

fn rendered(page: &Page) -> io::Result<Vec<u8>> {
    let mut bytes = vec![];
    page.render(&mut bytes)?;
    Ok(bytes)
}
