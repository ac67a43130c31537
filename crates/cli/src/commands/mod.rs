//! The commands, one file for each.

mod answer;
mod ask;
mod bench;
mod caption;
mod classify;
mod compare;
mod completions;
mod detect;
mod embed;
mod evaluate;
mod experiment;
mod explain;
mod fill;
mod generate;
mod inspect;
mod look;
mod man;
mod model;
mod pretrained;
mod serve;
mod similar;
mod train;
mod translate;
mod view;

use std::path::Path;

use regard_images::{Decoding, Image, ImagesError, data};

use crate::{arguments::Command, failure::Failure};

/// Runs a command.
///
/// # Errors
/// Why it ended early.
pub fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Translate(options) => translate::run(&options),
        Command::Generate(options) => generate::run(&options),
        Command::Look(options) => look::run(&options),
        Command::Fill(options) => fill::run(&options),
        Command::Caption(options) => caption::run(&options),
        Command::Classify(options) => classify::run(&options),
        Command::Detect(options) => detect::run(&options),
        Command::Answer(options) => answer::run(&options),
        Command::Ask(options) => ask::run(&options),
        Command::Similar(options) => similar::run(&options),
        Command::Embed(options) => embed::run(&options),
        Command::Train(options) => train::run(&options),
        Command::Evaluate(options) => evaluate::run(&options),
        Command::Compare(options) => compare::run(&options),
        Command::View(options) => view::run(&options),
        Command::Serve(options) => serve::run(&options),
        Command::Inspect(options) => inspect::run(&options),
        Command::Explain(options) => explain::run(&options),
        Command::Experiment(options) => experiment::run(&options),
        Command::Model(options) => model::run(&options),
        Command::Bench(options) => bench::run(&options),
        Command::Completions(options) => completions::run(&options),
        Command::Man(options) => man::run(&options),
    }
}

/// The images of files up to the first that cannot be read, and what is wrong with that one.
fn open_images(files: &[String], decoding: &Decoding) -> (Vec<Image>, Option<ImagesError>) {
    let mut images = vec![];
    for file in files {
        match Image::open(file, decoding) {
            Ok(image) => images.push(image),
            Err(error) => return (images, Some(error)),
        }
    }
    (images, None)
}

/// The image files that arguments name: those in a folder, for a folder.
fn image_files(arguments: &[String]) -> Result<Vec<String>, Failure> {
    let mut all = vec![];
    for argument in arguments {
        match Path::new(argument).is_dir() {
            true => {
                let inside = data::image_files(Path::new(argument))?.into_iter();
                all.extend(inside.map(|path| path.to_string_lossy().into_owned()));
            }
            false => all.push(argument.clone()),
        }
    }
    Ok(all)
}
