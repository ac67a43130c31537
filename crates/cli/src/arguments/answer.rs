//! `regard answer`.

use std::path::PathBuf;

use clap::Args;

use super::{
    Compute, Show,
    pretrained::Pretrained,
    search::{at_least_one, whole},
};

const EXAMPLES: &str = "\
Examples:
  regard answer --model deepset/roberta-base-squad2 --context article.txt \"Where was she born?\"
  regard answer --model ./bert-squad --context - --top 3 \"Who sat on the bank?\" < story.txt
  regard answer --model ./bert-squad --context book.txt --json < questions.txt

An answer is a stretch of the context, of whole words; its score is the probability of its first token times that of its last. \
Below it stands its sentence, with the answer in brackets. Characters are counted from 0.

A context that is longer than the model reads is read in windows, each with the question before it. They overlap, so that an \
answer at the edge of one stands whole in another. The score of an answer is the best that a window gives it; the score of there \
being no answer is the least.";

/// What is said of --model.
const MODEL: &str = "\
A folder as Hugging Face models have it, a name in the local cache such as `deepset/roberta-base-squad2`, or `hf:NAME`, which is \
downloaded";

/// Find answers to questions in a text with a pretrained model
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, mut_arg("model", |model| model.help(MODEL)))]
pub struct Answer {
    /// Questions, one an argument; without any, lines of standard input
    #[arg(value_name = "QUESTION")]
    pub questions: Vec<String>,
    /// The text that holds the answer, plain or gzip; `-` for standard input
    #[arg(short, long, value_name = "FILE")]
    pub context: PathBuf,
    /// The model.
    #[command(flatten)]
    pub model: Pretrained,
    /// How many answers to give
    #[arg(long, value_name = "N", default_value = "1", value_parser = at_least_one)]
    pub top: usize,
    /// Say that there is no answer if its score is more than X times that of the best answer; `inf` for never
    #[arg(long, value_name = "X", default_value = "1", value_parser = factor)]
    pub no_answer: f64,
    /// Most tokens of an answer
    #[arg(long, value_name = "N", default_value = "15", value_parser = at_least_one)]
    pub max_tokens: usize,
    /// Most tokens of a window, those of the question included [default: what the model reads]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub window: Option<usize>,
    /// How many tokens a window shares with the one before [default: 128, or half a window if that is less]
    #[arg(long, value_name = "N", value_parser = whole::<usize>)]
    pub stride: Option<usize>,
    /// What is shown beside it.
    #[command(flatten)]
    pub show: Show,
    /// Where to compute.
    #[command(flatten)]
    pub compute: Compute,
}

fn factor(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number >= 0.0 => Ok(number),
        _ => Err("expected a number of at least 0, or `inf`".to_owned()),
    }
}
