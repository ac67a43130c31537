//! `regard fill`.

use clap::Args;

use super::{
    Compute, Show,
    pretrained::{ENCODER, Pretrained},
    search::at_least_one,
};

const EXAMPLES: &str = "\
Examples:
  regard fill --model google-bert/bert-base-uncased \"The [MASK] sat on the mat.\"
  regard fill --model ./roberta --top 3 \"Paris is the <mask> of France.\"
  regard fill --model ./bert --json < sentences.txt

A place to fill is written as the model's own mask token; [MASK] and <mask> are understood for any model. For each \
place the output has the likeliest tokens with their probabilities.";

/// Fill in the masked words of a text with a pretrained masked language model
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, mut_arg("model", |model| model.help(ENCODER)))]
pub struct Fill {
    /// Texts, one an argument; without any, lines of standard input
    #[arg(value_name = "TEXT")]
    pub texts: Vec<String>,
    /// The model.
    #[command(flatten)]
    pub model: Pretrained,
    /// How many tokens to give for each place
    #[arg(long, value_name = "N", default_value = "5", value_parser = at_least_one)]
    pub top: usize,
    /// What is shown beside it.
    #[command(flatten)]
    pub show: Show,
    /// Where to compute.
    #[command(flatten)]
    pub compute: Compute,
}
