//! `regard similar`.

use std::path::PathBuf;

use clap::Args;

use super::{Compute, Drawing, OverImage, PictureFiles, Show, pretrained::Pretrained};

const EXAMPLES: &str = "\
Examples:
  regard similar --model sentence-transformers/all-MiniLM-L6-v2 \"How old are you?\" \"What is your age?\" \"It rains.\"
  regard similar --model ./minilm --svg matrix.svg < sentences.txt
  regard similar --model google-bert/bert-base-uncased --word bank --svg bank.svg \
      \"He sat on the bank of the river.\" \"She put the money in the bank.\"

Without --word, texts become vectors as by `regard embed`, and the output is the cosine of each pair.

With --word, the output is the cosine between the states of this word in two texts, for every pair of texts: in each layer before \
its attention, after it, and after the feed-forward network. Before the first attention the word is alone (the states \
differ by their positions at most); every attention mixes in what stands around it. A word of several tokens has the mean of their \
states. Every model that `regard look` reads will do, but encoder-decoders (T5, BART, Marian) and recurrent language models.";

/// Compare texts, or a word in several texts, by the cosine of their vectors in a pretrained model
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Similar {
    /// Texts, one an argument; without any, lines of standard input
    #[arg(value_name = "TEXT")]
    pub texts: Vec<String>,
    /// The model.
    #[command(flatten)]
    pub model: Pretrained,
    /// The prompt that stands before each text, as of `regard embed`
    #[arg(long, value_name = "NAME", conflicts_with = "word")]
    pub prompt: Option<String>,
    /// Compare the states of this word, which each text must have; the first one if it has several
    #[arg(long, value_name = "WORD")]
    pub word: Option<String>,
    /// Pictures to write.
    #[command(flatten)]
    pub drawing: Drawing,
    /// Print a heat map of what the model looked at in each text; with --json, the weights
    #[arg(long, help_heading = "Pictures")]
    pub attention: bool,
    /// Write what the model looked at, for `regard view` and for Python (safetensors)
    #[arg(long, value_name = "FILE", help_heading = "Pictures")]
    pub trace: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Print no warnings
    #[arg(short, long)]
    pub quiet: bool,
    /// Where to compute.
    #[command(flatten)]
    pub compute: Compute,
}

impl Similar {
    /// What is shown of the attention; the pictures are of the result.
    pub fn show(&self) -> Show {
        Show {
            attention: self.attention,
            pictures: PictureFiles::default(),
            over_image: OverImage::default(),
            trace: self.trace.clone(),
            json: self.json,
            quiet: self.quiet,
        }
    }
}
