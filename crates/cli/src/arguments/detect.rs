//! `regard detect`.

use std::path::PathBuf;

use clap::Args;
use regard_train::LEAST_PROBABILITY;

use super::{Compute, Show};

const EXAMPLES: &str = "\
Examples:
  regard detect --model runs/scenes-detr scene.png
  regard detect --model runs/scenes-detr --threshold 0.5 --svg found.svg scene.png
  regard detect --model hf:facebook/detr-resnet-50 photo.jpg
  regard detect --model runs/scenes-detr-masks --masks --json photos/

For each image the output is one line for each object, the surest first: its class with the probability, and its box: the upper left \
corner and the size in pixels of the image. With --json a mask has the form of COCO, `size` with height and width, and `counts`, \
the lengths of runs by column.

Pictures show the image with the boxes (and, with --masks, the masks), and for each object where its query looked. Of several images \
each has its number in the name of its picture; one without objects has no picture.";

/// Find the objects in images: class, box and mask, and see what the model looked at
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Detect {
    /// Image files (PNG, JPEG, WebP), or folders of them
    #[arg(value_name = "IMAGE", required = true, num_args = 1..)]
    pub images: Vec<PathBuf>,
    /// A detector: the run folder of `regard train` or its file; a folder of DETR as Hugging Face has it, a name in the local cache, or
    /// `hf:NAME`, which is downloaded
    #[arg(short, long, value_name = "MODEL")]
    pub model: PathBuf,
    /// The least probability of an object that is shown, 0 to 1
    #[arg(long, value_name = "P", default_value_t = LEAST_PROBABILITY, value_parser = probability)]
    pub threshold: f32,
    /// Give each object's pixels, too; for a model that was trained with masks
    #[arg(long)]
    pub masks: bool,
    /// What is shown beside it.
    #[command(flatten)]
    pub show: Show,
    /// Where to compute.
    #[command(flatten)]
    pub compute: Compute,
}

fn probability(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(number) if (0.0..=1.0).contains(&number) => Ok(number),
        _ => Err("expected a number from 0 to 1, such as 0.7".to_owned()),
    }
}
