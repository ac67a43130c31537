//! `regard inspect`.

use std::path::PathBuf;

use clap::Args;

const EXAMPLES: &str = "\
Examples:
  regard translate --trace look.safetensors \"Two dogs play in the snow.\"
  regard inspect look.safetensors
  regard inspect look.safetensors --index 1 --words --json
  regard inspect look.safetensors --rollout

Each head gets a row of measures and a sentence. Entropy is in nats; `uniform` is its share of the largest
possible; `first` the weight of the first key; `diagonal` 1 for a head along the diagonal, 0.67 for a uniform one;
`previous` and `duplicate` the weight of the token before and of earlier equal ones; `covered` the share of the
keys that were looked at; `keys` how many keys a query looks at; `span` how many neighbours hold 90 %.";

/// Say what the heads of saved attention do: sinks, diagonals, what was left out
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Inspect {
    /// The trace file, of `regard translate --trace`
    #[arg(value_name = "TRACE")]
    pub file: PathBuf,
    /// Inspect entry N alone, counted from 1
    #[arg(long, value_name = "N")]
    pub index: Option<usize>,
    /// Merge the subwords that the model works on into words first
    #[arg(long)]
    pub words: bool,
    /// Show what the whole stack of self-attention layers looked at, by rollout
    #[arg(long)]
    pub rollout: bool,
    /// Show the same by maximum flow; slow beyond some fifty tokens
    #[arg(long)]
    pub flow: bool,
    /// Print JSON, an object a line
    #[arg(long)]
    pub json: bool,
    /// Print the sentences alone
    #[arg(short, long)]
    pub quiet: bool,
}
