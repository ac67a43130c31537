//! `regard model`.

use std::path::PathBuf;

use clap::{ArgGroup, Args};

use super::Compute;

const EXAMPLES: &str = "\
Examples:
  regard model                         about the embedded model
  regard model runs/small
  regard model runs/small --f16 model.safetensors
  regard model runs/small --familiarity runs/small/recipe.toml --f16 model.safetensors

With --f16 the weights are stored in 16 bits: half the size, the same translations except for rare ties. \
The file holds the tokenizers and settings too, so that it is all that `regard translate --model` \
needs. The embedded model is made so: see crates/cli/models/multi30k-en-de/README.md.";

/// Describe a model, or write it in another form
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, group = ArgGroup::new("form").multiple(true))]
pub struct ModelFile {
    /// A model file, or the run folder of `regard train` [default: the embedded model]
    #[arg(value_name = "PATH")]
    pub path: Option<PathBuf>,
    /// Write the model with weights of 16 bits
    #[arg(long, value_name = "FILE", group = "form")]
    pub f16: Option<PathBuf>,
    /// Write the model with weights of 32 bits
    #[arg(long, value_name = "FILE", group = "form")]
    pub f32: Option<PathBuf>,
    /// Measure on the data of a recipe which sentences are familiar to the model, and store this in the file that is written:
    /// `regard translate` then warns of other sentences. The pieces of the training sources are counted, and the validation
    /// sources translated
    #[arg(long, value_name = "RECIPE", requires = "form")]
    pub familiarity: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Where to translate the validation sources.
    #[command(flatten)]
    pub compute: Compute,
}
