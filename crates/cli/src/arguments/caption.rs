//! `regard caption`.

use std::path::PathBuf;

use clap::Args;

use super::{Compute, Show, search::beam};

const EXAMPLES: &str = "\
Examples:
  regard caption docs/scene.png --attention
  regard caption --model runs/scenes-captioner scene.png
  regard caption --model runs/scenes-captioner --attention --svg look.svg scene.png
  regard caption --model runs/scenes-captioner --json photos/ | jq -r .caption

For each image the output is its caption and its file. --attention shows for every word the image with the weights that the model had \
over it as it wrote the word; hard attention looks at a single cell, which is outlined. With --json and --attention the weights are \
printed, too.

A model reads images of one shape, mostly square. Of an image of another shape it sees the middle alone.";

/// Describe images in a sentence, and see where the model looked for every word
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Caption {
    /// Images (PNG, JPEG, WebP), or folders of them
    #[arg(value_name = "IMAGE", required = true)]
    pub images: Vec<PathBuf>,
    /// A captioner: the run folder of `regard train`, or its file [default: the embedded one, which describes drawn scenes]
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// Hypotheses kept at every step of the search; 1 is greedy search [default: as the model's recipe says]
    #[arg(long, value_name = "N", value_parser = beam)]
    pub beam: Option<usize>,
    /// What is shown beside it.
    #[command(flatten)]
    pub show: Show,
    /// Where to compute.
    #[command(flatten)]
    pub compute: Compute,
}
