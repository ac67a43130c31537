//! `regard experiment`.

use clap::Args;

use super::{Compute, Drawing, search::within};

const EXAMPLES: &str = "\
Examples:
  regard experiment --list
  regard experiment why-scale --svg why-scale.svg
  regard experiment length --seeds 5 --json
  regard experiment --all --html report.html

Each is computed or trained here and now, within a few minutes on two cores. Numbers are means over the seeds with the 95 % interval \
of the mean; what is said in words is read off them.";

/// Show in minutes what a mechanism does: a table, a figure, and what they say
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Experiment {
    /// Which one
    #[arg(value_name = "NAME", required_unless_present_any = ["list", "all"], conflicts_with_all = ["list", "all"])]
    pub name: Option<String>,
    /// Print the names of all experiments, and the question of each
    #[arg(long, conflicts_with = "all")]
    pub list: bool,
    /// Do all of them
    #[arg(long)]
    pub all: bool,
    /// How often to repeat what is drawn
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = within::<u64>(2..=100))]
    pub seeds: u64,
    /// Pictures to write.
    #[command(flatten)]
    pub drawing: Drawing,
    /// Print JSON, an object an experiment, on a line of its own
    #[arg(long)]
    pub json: bool,
    /// Print no progress
    #[arg(short, long)]
    pub quiet: bool,
    /// Where to compute.
    #[command(flatten)]
    pub compute: Compute,
}
