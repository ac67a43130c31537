//! `regard train`.

use std::path::PathBuf;

use clap::{
    ArgGroup, Args,
    builder::{PossibleValue, PossibleValuesParser},
};
use regard_train::Registry;

use super::Compute;

const EXAMPLES: &str = "\
Examples:
  regard train --example rnnsearch > my.toml
  regard train my.toml
  regard train my.toml --folder runs/small --set model.hidden=128
  regard train --resume runs/small

The run folder holds the recipe, the tokenizers, checkpoints, metrics.jsonl and what the model wrote for the validation \
set; `regard translate`, `classify` or `generate` with --model FOLDER uses it. The path of the finished model is printed on \
standard output, progress on standard error.

Ctrl-C ends after the current update and saves; --resume then goes on with exactly the updates that an \
uninterrupted run would have made. A second Ctrl-C ends at once.";

/// Train a model from a recipe
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, group = ArgGroup::new("what").required(true))]
pub struct Train {
    /// The recipe, a TOML file
    #[arg(value_name = "RECIPE", group = "what")]
    pub recipe: Option<PathBuf>,
    /// Go on with the run in a folder
    #[arg(long, value_name = "FOLDER", group = "what")]
    pub resume: Option<PathBuf>,
    /// Print a recipe to start from, with every key explained
    #[arg(long, value_name = "MODEL", group = "what", value_parser = architectures())]
    pub example: Option<String>,
    /// The run folder [default: runs/NAME for the recipe NAME.toml]
    #[arg(long, alias = "out", value_name = "FOLDER", conflicts_with_all = ["resume", "example"])]
    pub folder: Option<PathBuf>,
    /// Replace a value of the recipe, such as training.epochs=5; may be repeated
    #[arg(long, value_name = "SECTION.KEY=VALUE", conflicts_with = "example")]
    pub set: Vec<String>,
    /// Print what happens as JSON, one object a line, on standard output
    #[arg(long)]
    pub json: bool,
    /// Print no progress
    #[arg(short, long)]
    pub quiet: bool,
    /// Where to compute.
    #[command(flatten)]
    pub compute: Compute,
}

/// The architectures for which an example can be printed.
fn architectures() -> PossibleValuesParser {
    let registry = Registry::default();
    let values = registry.kinds().map(|kind| {
        let about: String = kind.about.concat();
        PossibleValue::new(kind.name).help(about.trim().trim_end_matches('.').to_owned())
    });
    PossibleValuesParser::new(values.collect::<Vec<_>>())
}
