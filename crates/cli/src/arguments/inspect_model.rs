//! `regard inspect --model`.

use std::path::PathBuf;

use clap::Args;

use super::{Compute, PictureFiles};

const EXAMPLES: &str = "\
Examples:
  regard inspect --model runs/sst2-lstmn \"a film that is never dull\"
  regard inspect --model runs/sst2-attention --svg look.svg \"long , loud and lifeless\"
  regard inspect --model runs/sst2-lstmn --json < sentences.txt

Each sentence is answered with its label, the label's probability and a heat map. Of an LSTMN the rows
and the columns are the sentence's words: a row says which earlier words its word was linked to. Of a
self-attentive classifier there is one row a hop: what the verdict was taken from.

Without TEXT and --input, lines are read from standard input. With --json each sentence becomes one JSON
object on a line of its own, weights included.";

/// See what a classifier makes of a sentence, and what it looked at
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct InspectModel {
    /// Sentences, one an argument; without any, lines of standard input
    #[arg(value_name = "TEXT")]
    pub text: Vec<String>,
    /// A classifier: its file, or the run folder of `regard train`
    #[arg(short, long, value_name = "PATH")]
    pub model: PathBuf,
    /// Read sentences from a file, plain or gzip
    #[arg(short, long, value_name = "FILE", conflicts_with = "text")]
    pub input: Option<PathBuf>,
    /// Pictures to write.
    #[command(flatten)]
    pub pictures: PictureFiles,
    /// Write what the model looked at, for `regard view` and for Python (safetensors)
    #[arg(long, value_name = "FILE", help_heading = "Pictures")]
    pub trace: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Where to compute.
    #[command(flatten)]
    pub compute: Compute,
}
