//! `regard view`.

use std::path::PathBuf;

use clap::Args;

use super::PictureFiles;

const EXAMPLES: &str = "\
Examples:
  regard translate --trace look.safetensors \"Two dogs play in the snow.\"
  regard view look.safetensors
  regard view look.safetensors --index 1 --png look.png
  regard view look.safetensors --map encoder --layer 1 --head all --svg look.svg
  regard view look.safetensors --html look.html

For a model with many maps one is shown, and its title says which: the cross-attention of the layer that is most like an \
alignment of words, the mean of its heads. In a decoder's self-attention a row is the token that was read, with the token that \
was written after it in parentheses.";

/// Show saved attention: a file of `regard translate --trace`
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct View {
    /// The trace file
    #[arg(value_name = "TRACE")]
    pub file: PathBuf,
    /// Print heat maps; the default if no picture is asked for
    #[arg(long)]
    pub terminal: bool,
    /// Show entry N alone, counted from 1
    #[arg(long, value_name = "N")]
    pub index: Option<usize>,
    /// Pictures to write.
    #[command(flatten)]
    pub pictures: PictureFiles,
}
