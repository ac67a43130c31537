//! `regard look`.

use std::path::PathBuf;

use clap::Args;
use regard_train::text_to_text::Query;

use super::{Compute, PictureFiles, pretrained::Pretrained};

const EXAMPLES: &str = "\
Examples:
  regard look --model openai-community/gpt2 \"The animal didn't cross the street because it was tired\"
  regard look --model ./bert --layer 3 --head 7 --png head.png \"Time flies like an arrow.\"
  regard look --model ./llama --layer 12 --query last \"$(cat long.txt)\"
  regard look --model ./llama --long book.txt --layer 12 --trace book.safetensors --png book.png
  regard look --model ./t5 --long book.txt --map cross --trace book.safetensors
  regard look --model ./gpt2 --trace look.safetensors --html look.html \"Two dogs play.\"
  regard look --model ./opus-mt-en-de --target \"Zwei Hunde spielen.\" --map encoder \"Two dogs play.\"

The text is read in one pass, and the weights of its attention are computed from the queries and keys of this pass. The output \
says in words what is remarkable about the heads, with a heat map; pictures and the trace have every head, or the layer and \
the head that are chosen. What is not asked for is not computed: of a long text choose a layer, a head or a query.

An encoder-decoder reads the text and writes another: TARGET, or what a search finds. --map chooses among the encoder, the decoder and \
the attention between them; --query is a position of the text for the encoder, and of the target for the others.";

/// Show what a model looks at while it reads a text
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Look {
    /// The text; `-` for standard input
    #[arg(value_name = "TEXT", required_unless_present = "long")]
    pub text: Option<String>,
    /// Read the text of FILE, of any length, and keep queries and keys in place of weights (of translators of `regard train`, too): `regard view` and `regard serve` show
    /// any part of the maps, which are computed when they are looked at
    #[arg(long, value_name = "FILE", conflicts_with_all = ["text", "query", "json"])]
    pub long: Option<PathBuf>,
    /// The model.
    #[command(flatten)]
    pub model: Pretrained,
    /// What an encoder-decoder writes, token by token [default: what it writes itself]
    #[arg(long, value_name = "TEXT")]
    pub target: Option<String>,
    /// The row of one query: a position, counted from 1, or `last`
    #[arg(long, value_name = "N|last", value_parser = query)]
    pub query: Option<Query>,
    /// Pictures to write.
    #[command(flatten)]
    pub pictures: PictureFiles,
    /// Write what the model looked at, for `regard view` and for Python (safetensors)
    #[arg(long, value_name = "FILE", help_heading = "Pictures")]
    pub trace: Option<PathBuf>,
    /// Print JSON, with the weights
    #[arg(long)]
    pub json: bool,
    /// Print no heat map
    #[arg(short, long)]
    pub quiet: bool,
    /// Where to compute.
    #[command(flatten)]
    pub compute: Compute,
}

fn query(text: &str) -> Result<Query, String> {
    match (text, text.parse::<usize>()) {
        ("last", _) => Ok(Query::Last),
        (_, Ok(number)) if number > 0 => Ok(Query::At(number - 1)),
        _ => Err("expected a position, counted from 1, or `last`".to_owned()),
    }
}
