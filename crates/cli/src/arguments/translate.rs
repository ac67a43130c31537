//! `regard translate`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{Compute, PictureFiles, Search, pretrained::Stored, search::beam};

const EXAMPLES: &str = "\
Examples:
  regard translate \"A man in a red shirt is riding a bicycle.\"
  regard translate --html look.html \"Two dogs play in the snow.\"
  regard translate --model runs/reverse-rnnsearch --n-best 3 --beam 5 \"a b c\"
  regard translate --model Helsinki-NLP/opus-mt-en-de \"Two dogs play in the snow.\"
  regard translate --model ./t5-small --prefix \"translate English to German: \" < input.en
  regard translate < input.en > output.de
  zcat input.en.gz | regard translate --json | jq -r '.translations[0].text'

Without TEXT and --input, lines are read from standard input: one line in, one line out, in order, \
each answered as soon as it has come. An empty line stays empty. Text is UTF-8, plain or gzip.

With --n-best each translation takes a line `LINE ||| RANK ||| TEXT ||| SCORE`, both counted from 1; \
the score is the log-probability in nats, with the penalties. With --json each source line becomes \
one JSON object on a line of its own.

On a terminal a single TEXT is shown with a heat map: rows are the translation's words, columns the \
source's, and a row says where the model looked as it wrote that word. For a model with many maps this \
is the cross-attention of the layer most like an alignment of words, the mean of its heads; --map, \
--layer and --head choose others.

A file that takes long can be translated by several processes (`mpirun -n 4 regard translate ...`, see the book), and with --output FILE \
--resume a command that was interrupted goes on where it stopped.

If a sentence is far from what the model was trained on, a warning on standard error says why; with \
--json the reason is the key `unfamiliar` of the line. The model's file must hold measurements for this \
(`regard model --familiarity`), as that of the embedded model does.";

/// Translate text, and see what the model looked at
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Translate {
    /// Sentences to translate, one an argument; without any, lines of standard input
    #[arg(value_name = "TEXT")]
    pub text: Vec<String>,
    /// A model file, the run folder of `regard train`, or a pretrained T5, BART or Marian: a folder as Hugging Face models have it, a
    /// name in the local cache such as `Helsinki-NLP/opus-mt-en-de`, or `hf:NAME`, which is downloaded [default: the embedded
    /// model]
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// Put this in front of every line: what a T5 is asked for, such as `translate English to German: `, or the language that a
    /// Marian of several is to write, such as `>>fra<< `
    #[arg(long, value_name = "TEXT", requires = "model")]
    pub prefix: Option<String>,
    /// Read lines from a file, plain or gzip
    #[arg(short, long, value_name = "FILE", conflicts_with = "text")]
    pub input: Option<PathBuf>,
    /// Write translations to a file
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Go on after the lines that the file of --output holds already, as an interrupted command left them
    #[arg(long, requires = "output", conflicts_with_all = ["text", "trace", "svg", "png", "html"])]
    pub resume: bool,
    /// Give the N best translations of each sentence, at most as many as the beam is wide
    #[arg(long, value_name = "N", value_parser = beam, help_heading = "Search")]
    pub n_best: Option<usize>,
    /// How to search.
    #[command(flatten)]
    pub search: Search,
    /// Print a heat map below each translation: `auto` does so for one TEXT on a terminal
    #[arg(
        long,
        value_name = "WHEN",
        default_value = "auto",
        help_heading = "Pictures"
    )]
    pub attention: Attention,
    /// Pictures to write.
    #[command(flatten)]
    pub pictures: PictureFiles,
    /// Write what the model looked at, for `regard view` and for Python (safetensors)
    #[arg(long, value_name = "FILE", help_heading = "Pictures")]
    pub trace: Option<PathBuf>,
    /// Print JSON, with the weights if --attention is `always`
    #[arg(long)]
    pub json: bool,
    /// Print no warnings and no progress
    #[arg(short, long)]
    pub quiet: bool,
    /// How weights are kept.
    #[command(flatten)]
    pub weights: Stored,
    /// Where to compute.
    #[command(flatten)]
    pub compute: Compute,
}

/// When a heat map is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Attention {
    /// Not at all
    Never,
    /// For one TEXT, on a terminal
    Auto,
    /// For every translation
    Always,
}
