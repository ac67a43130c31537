//! `regard inspect`.

use std::path::PathBuf;

use clap::Args;

use super::{OverImage, PictureFiles, search::whole};

const EXAMPLES: &str = "\
Examples:
  regard translate --trace look.safetensors \"Two dogs play in the snow.\"
  regard inspect look.safetensors
  regard inspect look.safetensors --index 1 --words --json
  regard inspect look.safetensors --all
  regard inspect look.safetensors --rollout --png rollout.png

The output names what is remarkable: heads that look at the token before, at earlier tokens of the \
same text, at one key whatever the query; words that were hardly looked at. With --all each head gets a \
row of measures and a sentence. Layers and heads are counted from 1, as in pictures (in JSON from 0). In \
a decoder's self-attention the queries are the tokens that were read. Entropy is in nats; `uniform` is its share of the \
largest possible; `first` is the weight of the first key; `diagonal` is 1 for a head along the diagonal, 0.67 for a uniform \
one; `previous` and `duplicate` are the weights of the token before and of earlier equal ones; `covered` is the share \
of the keys that were looked at; `keys` says how many keys a query looks at; `span` says how many neighbours hold \
90 % of a row.

`regard classify`, `regard look` and others show what a model looks at in texts of your own, and write traces.";

/// Describe what the heads of saved attention do
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Inspect {
    /// The trace file, such as of `regard translate --trace`
    #[arg(value_name = "TRACE")]
    pub file: PathBuf,
    /// Inspect entry N alone, counted from 1
    #[arg(long, value_name = "N", value_parser = whole::<usize>)]
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
    /// Describe every head, with its measures in a table
    #[arg(long)]
    pub all: bool,
    /// Describe every head in a sentence, without the table
    #[arg(short, long, conflicts_with = "all")]
    pub quiet: bool,
    /// Print JSON, an object a line
    #[arg(long)]
    pub json: bool,
    /// Pictures of what --rollout or --flow finds.
    #[command(flatten)]
    pub pictures: PictureFiles,
    /// How maps over an image are drawn.
    #[command(flatten)]
    pub over_image: OverImage,
}
