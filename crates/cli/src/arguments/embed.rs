//! `regard embed`.

use std::path::PathBuf;

use clap::Args;

use super::{
    Compute, Show,
    pretrained::{ENCODER, Pretrained},
};

const EXAMPLES: &str = "\
Examples:
  regard embed --model sentence-transformers/all-MiniLM-L6-v2 \"How are you?\" \"What is your age?\"
  regard embed --model ./minilm --output vectors.safetensors < sentences.txt
  regard embed --model hf:openai/clip-vit-base-patch32 \"a cat\" --image cat.png --image photos/

Each text becomes one vector: the mean of the states of its tokens, of length 1, or what the model's `modules.json` and \
`1_Pooling/config.json` say. Where `config_sentence_transformers.json` names a prompt (such as `query: `), it stands before each text. \
Texts longer than the model's `max_seq_length` are cut, with a warning. \
Without --output, a JSON object a text is printed, with `maps` too by --attention --json. A file of --output holds `vectors [texts, size]`.

A model of images and texts (CLIP) gives texts and images vectors of one space, of length 1: the nearer in meaning, the larger their \
product. Images come after the texts.";

/// Turn texts, or images, into vectors with a pretrained encoder
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, mut_arg("model", |model| model.help(ENCODER)))]
pub struct Embed {
    /// Texts, one an argument; without any (and without --image), lines of standard input
    #[arg(value_name = "TEXT")]
    pub texts: Vec<String>,
    /// The model.
    #[command(flatten)]
    pub model: Pretrained,
    /// The prompt that stands before each text, by its name in the model's `config_sentence_transformers.json` [default: the one that
    /// this file names, if any]
    #[arg(long, value_name = "NAME")]
    pub prompt: Option<String>,
    /// An image file (PNG, JPEG, WebP), or a folder of them, for a model of images and texts (CLIP); may be given several times
    #[arg(long = "image", value_name = "FILE")]
    pub images: Vec<String>,
    /// Write the vectors to a file (safetensors)
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Keep what is done in a file beside that of --output, FILE.part, and go on after what is done there already, by the same model, options
    /// and version of regard
    #[arg(long, requires = "output")]
    pub resume: bool,
    /// What is shown beside the vectors.
    #[command(flatten)]
    pub show: Show,
    /// Where to compute.
    #[command(flatten)]
    pub compute: Compute,
}
