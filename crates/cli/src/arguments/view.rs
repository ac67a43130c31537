//! `regard view`.

use std::{ops::Range, path::PathBuf};

use clap::Args;

use super::{OverImage, PictureFiles, search::whole};

const EXAMPLES: &str = "\
Examples:
  regard translate --trace look.safetensors \"Two dogs play in the snow.\"
  regard view look.safetensors
  regard view look.safetensors --index 1 --png look.png
  regard view look.safetensors --map encoder --layer 1 --head all --svg look.svg
  regard view look.safetensors --html look.html
  regard view book.safetensors --layer 12 --head 3 --queries 50001-60000 --png book.png

For a model with many maps one is shown, and its title says which: the cross-attention of the layer that is most like an \
alignment of words, the mean of its heads. In a decoder's self-attention a row is the token that was read, with the token that \
was written after it in parentheses.

A trace of a long text (`regard look --long`) is drawn as one head's map, in which a cell is the largest weight of its block, or as \
all heads, small.";

/// Show saved attention: the file of any command's --trace
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
    #[arg(long, value_name = "N", value_parser = whole::<usize>)]
    pub index: Option<usize>,
    /// Of a long text: draw these queries alone, counted from 1
    #[arg(long, value_name = "FIRST-LAST", value_parser = part)]
    pub queries: Option<Part>,
    /// Of a long text: draw these keys alone, counted from 1
    #[arg(long, value_name = "FIRST-LAST", value_parser = part)]
    pub keys: Option<Part>,
    /// Pictures to write.
    #[command(flatten)]
    pub pictures: PictureFiles,
    /// How maps over an image are drawn.
    #[command(flatten)]
    pub over_image: OverImage,
}

/// Positions from one to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part(pub Range<usize>);

fn part(text: &str) -> Result<Part, String> {
    let number = |text: &str| text.parse::<usize>().ok();
    let ends = text.split_once('-');
    let ends = ends.and_then(|(first, last)| Some((number(first)?, number(last)?)));
    match ends {
        Some((first, last)) if 0 < first && first <= last => Ok(Part(first - 1..last)),
        _ => Err("expected two positions, counted from 1, such as 5001-6000".to_owned()),
    }
}
