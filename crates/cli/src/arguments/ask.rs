//! `regard ask`.

use std::path::PathBuf;

use clap::Args;

use super::{Compute, Show, search::at_least_one};

const EXAMPLES: &str = "\
Examples:
  regard ask docs/scene.png \"What colour is the square?\"
  regard ask scene.png \"How many red objects are there?\" \"What is above the star?\" --top 3
  regard ask --model runs/scenes-vqa scenes/ \"Is there a 7?\" --json
  regard ask scene.png \"Where is the heart?\" --attention --svg heart.svg

For each image and question the output is the answer with its probability. Answers have probabilities of their own, which need not \
sum to 100 %. Words of a question that the model has not learned are named. Of a long question the first words are read, as many as \
data.filter.max_tokens of the model's recipe says (100 by default), and a warning tells it.

--attention shows the regions of the image that the model read for its answer: an image for each look, over the image as the model \
reads it. With --json and --attention the weights are printed, too.

A model reads images of one shape, mostly square. Of an image of another shape it sees the middle alone.";

/// Answer questions about an image, and see where the model looked
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Ask {
    /// An image (PNG, JPEG, WebP), or a folder of images
    #[arg(value_name = "IMAGE")]
    pub image: PathBuf,
    /// Questions, one an argument
    #[arg(value_name = "QUESTION", required = true)]
    pub questions: Vec<String>,
    /// A model that answers questions about images: the run folder of `regard train`, or its file [default: the embedded one]
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// How many answers to print, likeliest first
    #[arg(long, value_name = "N", default_value = "1", value_parser = at_least_one)]
    pub top: usize,
    /// What is shown beside it.
    #[command(flatten)]
    pub show: Show,
    /// Where to compute.
    #[command(flatten)]
    pub compute: Compute,
}
