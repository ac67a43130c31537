//! `regard inspect`.

use std::path::PathBuf;

use clap::Args;

use super::{Compute, PictureFiles};

const EXAMPLES: &str = "\
Examples:
  regard translate --trace look.safetensors \"Two dogs play in the snow.\"
  regard inspect look.safetensors
  regard inspect look.safetensors --index 1 --words --json
  regard inspect look.safetensors --all
  regard inspect look.safetensors --rollout --png rollout.png
  regard inspect --model runs/sst2-lstmn \"a film that is never dull\"
  regard inspect --model runs/sst2-lstmn --json < sentences.txt

For a trace, the output names what is remarkable: heads that look at the token before, at earlier tokens of the \
same text, at one key whatever the query; words that were hardly looked at. With --all each head gets a \
row of measures and a sentence. Layers and heads are counted from 1, as in pictures (in JSON from 0). In \
a decoder's self-attention the queries are the tokens that were read. Entropy is in nats; `uniform` is its share of the \
largest possible; `first` is the weight of the first key; `diagonal` is 1 for a head along the diagonal, 0.67 for a uniform \
one; `previous` and `duplicate` are the weights of the token before and of earlier equal ones; `covered` is the share \
of the keys that were looked at; `keys` says how many keys a query looks at; `span` says how many neighbours hold \
90 % of a row.

With --model, the output for each sentence is its label, the label's probability and a heat map. For an \
LSTMN the rows and the columns are the sentence's words: a row says which earlier words its word was \
linked to. For a self-attentive classifier there is one row for each hop: the words from which the label was taken. \
Without TEXT and --input, lines are read from standard input. With --json each sentence becomes one JSON \
object on a line of its own, weights included.";

/// Describe what the heads of saved attention do, or classify a sentence and show what the model looked at
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Inspect {
    /// The trace file, of `regard translate --trace`; with --model, sentences, one an argument
    #[arg(value_name = "TRACE|TEXT", required_unless_present = "model")]
    pub subjects: Vec<String>,
    /// A classifier: its file, or the run folder of `regard train`
    #[arg(short, long, value_name = "PATH")]
    pub model: Option<PathBuf>,
    /// Print JSON, an object a line
    #[arg(long)]
    pub json: bool,
    /// Options for traces.
    #[command(flatten)]
    pub heads: InspectHeads,
    /// Options for classifiers.
    #[command(flatten)]
    pub sentences: InspectSentences,
}

/// Options for traces.
#[derive(Debug, Args)]
#[command(next_help_heading = "For a trace")]
pub struct InspectHeads {
    /// Inspect entry N alone, counted from 1
    #[arg(long, value_name = "N", conflicts_with = "model")]
    pub index: Option<usize>,
    /// Merge the subwords that the model works on into words first
    #[arg(long, conflicts_with = "model")]
    pub words: bool,
    /// Show what the whole stack of self-attention layers looked at, by rollout
    #[arg(long, conflicts_with = "model")]
    pub rollout: bool,
    /// Show the same by maximum flow; slow beyond some fifty tokens
    #[arg(long, conflicts_with = "model")]
    pub flow: bool,
    /// Describe every head, with its measures in a table
    #[arg(long, conflicts_with = "model")]
    pub all: bool,
    /// Describe every head in a sentence, without the table
    #[arg(short, long, conflicts_with_all = ["model", "all"])]
    pub quiet: bool,
}

/// Options for classifiers.
#[derive(Debug, Args)]
#[command(next_help_heading = "For a classifier")]
pub struct InspectSentences {
    /// Read sentences from a file, plain or gzip
    #[arg(
        short,
        long,
        value_name = "FILE",
        conflicts_with = "subjects",
        requires = "model"
    )]
    pub input: Option<PathBuf>,
    /// Pictures to write.
    #[command(flatten)]
    pub pictures: PictureFiles,
    /// Write what the model looked at, for `regard view` and for Python (safetensors)
    #[arg(
        long,
        value_name = "FILE",
        help_heading = "Pictures",
        requires = "model"
    )]
    pub trace: Option<PathBuf>,
    /// Where to compute.
    #[command(flatten)]
    pub compute: Compute,
}
