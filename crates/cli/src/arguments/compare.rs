//! `regard compare`.

use std::path::PathBuf;

use clap::Args;
use regard_train::compare::Budget;

use super::{Compute, Lengths, Named, search::resamples};

const EXAMPLES: &str = "\
Examples:
  regard compare recipes/multi30k-en-de-rnnsearch.toml \\
      recipes/multi30k-en-de-luong.toml --budget 20m
  regard compare att=a.toml none=b.toml --budget 5Mtokens --folder runs/attention
  regard compare a.toml b.toml --budget 90s --set data.vocabulary.size=4000
  regard compare a.toml b.toml --budget 2h --buckets 8,14,20 --png length.png
  regard compare recipes/cifar10-resnet20.toml recipes/cifar10-residual-attention.toml --budget 1h

Every recipe is trained, one after the other, for the same time (90s, 20m, 2h) or on the same number of \
target tokens, or images, (500ktokens, 5Mtokens); the budget takes the place of the recipe's own limits. Then each \
translates, classifies, captions, answers or finds the test data (the validation data, if not every recipe \
names test data), and one table compares them, with the paired differences from the first. \
The data that they are judged on must be the same.

The folder holds a run folder for each recipe, the plots `loss` and `length` as SVG and PNG, and \
everything as `comparison.json`. Ctrl-C saves; the same command goes on where it was, and does not train \
again what is done. A larger --budget continues the runs of a smaller one.

Peak memory is the most that training had in use at a time; on a graphics card it is not counted.";

/// Train several recipes under one budget, and compare the results
#[derive(Debug, Args)]
#[command(
    after_help = EXAMPLES,
    // The usage that clap would print, shortened for a terminal of 80 columns.
    override_usage = "regard compare [OPTIONS] --budget <BUDGET> <[NAME=]RECIPE>..."
)]
pub struct Compare {
    /// The recipes, TOML files; NAME stands for one in tables and folders
    #[arg(value_name = "[NAME=]RECIPE", required = true, num_args = 2..)]
    pub recipes: Vec<Named>,
    /// How long each is trained: a time such as 20m, 90s or 2h, or tokens such as 5Mtokens
    #[arg(long, value_name = "BUDGET")]
    pub budget: Budget,
    /// The folder of the comparison
    #[arg(
        long,
        alias = "out",
        value_name = "FOLDER",
        default_value = "runs/compare"
    )]
    pub folder: PathBuf,
    /// Replace a value of every recipe, such as training.seed=2; may be repeated
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub set: Vec<String>,
    /// Resamples of the bootstrap that gives the intervals
    #[arg(long, value_name = "N", default_value = "1000", value_parser = resamples)]
    pub resamples: usize,
    /// Scores by length.
    #[command(flatten)]
    pub lengths: Lengths,
    /// Print everything as JSON in place of tables and plots
    #[arg(long)]
    pub json: bool,
    /// Print no progress
    #[arg(short, long)]
    pub quiet: bool,
    /// Where to compute.
    #[command(flatten)]
    pub compute: Compute,
}
