//! `regard classify`.

use std::path::PathBuf;

use clap::Args;

use super::{Compute, Show, pretrained::Stored, search::at_least_one};

const EXAMPLES: &str = "\
Examples:
  regard classify docs/digit.png
  regard classify --model runs/sst2-lstmn --attention \"a film that is never dull\"
  regard classify --model distilbert/distilbert-base-uncased-finetuned-sst-2-english --top 2 \"not bad at all\"
  regard classify --model dslim/bert-base-NER \"Angela Merkel was born in Hamburg.\"
  regard classify --model runs/sst2-lstmn --json < sentences.txt
  regard classify --model runs/cifar10-resnet20 cat.png photos/
  regard classify --model hf:openai/clip-vit-base-patch32 --labels \"cat,dog\" --prompt \"a photo of a {}\" cat.png

A classifier of images takes files (PNG, JPEG, WebP), or folders of them, in place of texts. A model of images and texts (CLIP) \
takes any --labels: it compares the image with the text of each. A model of `regard train` reads images of one shape, mostly \
square; of an image of another shape it sees the middle alone.

For each text the output is its label with the probability. A model that gives tokens a class, such as names of persons and \
places, names the stretches of text of one class: neighbouring tokens of a class are one stretch, a label that begins with `B-` \
starts a new one, and `O` is no class. Characters are counted from 0.

With --json all labels have their probabilities. Where several have a name, the number of each, counted from 0, follows it, as in \
`crane (134)`.

--attention shows what the model looked at. For an LSTMN of `regard train` a row says which earlier words its word was linked \
to; for a self-attentive classifier there is one row for each hop: the words from which the label was taken. A pretrained model \
shows its self-attention. With --json and --attention the weights are printed, too.";

/// Give texts, the words in them, or images a class, and see what the model looked at
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Classify {
    /// Texts (for a classifier of images: files or folders), one an argument; without any, lines of standard input
    #[arg(value_name = "TEXT")]
    pub texts: Vec<String>,
    /// A classifier: the run folder of `regard train` or its file, a folder as Hugging Face models have it, a name in the local cache,
    /// or `hf:NAME`, which is downloaded [default: the embedded one, which reads a handwritten digit in an image]
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<String>,
    /// How weights of a pretrained model are kept.
    #[command(flatten)]
    pub stored: Stored,
    /// Read lines from a file, plain or gzip
    #[arg(short, long, value_name = "FILE", conflicts_with = "texts")]
    pub input: Option<PathBuf>,
    /// Labels for the images, separated by commas, for a model of images and texts (CLIP); may be given several times
    #[arg(long, value_name = "LABELS", value_delimiter = ',')]
    pub labels: Vec<String>,
    /// The text that stands for a label: the label is put in place of `{}`
    #[arg(long, value_name = "TEXT", default_value = "{}", requires = "labels", value_parser = prompt)]
    pub prompt: String,
    /// How many labels of a text to print, likeliest first
    #[arg(long, value_name = "N", default_value = "1", value_parser = at_least_one)]
    pub top: usize,
    /// What is shown beside it.
    #[command(flatten)]
    pub show: Show,
    /// Where to compute.
    #[command(flatten)]
    pub compute: Compute,
}

fn prompt(text: &str) -> Result<String, String> {
    match text.contains("{}") {
        true => Ok(text.to_owned()),
        false => Err("expected `{}` where the label stands, such as `a photo of {}`".to_owned()),
    }
}
