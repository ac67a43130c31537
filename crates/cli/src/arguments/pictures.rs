//! Which pictures are written, and where.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use regard_trace::Kind;
use regard_view::{
    choice::{Choice, Pick},
    image::{ImageOptions, Overlay},
};

/// Pictures and traces of the attention.
#[derive(Debug, Clone, Default, Args)]
pub struct PictureFiles {
    /// Write a heat map as SVG; of several texts or translations, FILE-LINE or FILE-LINE-RANK is
    /// written for each; of several images, if all that the model has is gates of channels, one with a row for each label that it found
    #[arg(long, value_name = "FILE", help_heading = "Pictures")]
    pub svg: Option<PathBuf>,
    /// Write a heat map as PNG, named as the SVG
    #[arg(long, value_name = "FILE", help_heading = "Pictures")]
    pub png: Option<PathBuf>,
    /// Write one page with all of them, to explore in a browser; it needs no network
    #[arg(long, value_name = "FILE", help_heading = "Pictures")]
    pub html: Option<PathBuf>,
    /// Show the subwords that the model works on, in place of whole words
    #[arg(long, help_heading = "Pictures")]
    pub subwords: bool,
    /// Which attention to draw [default: cross, if there is any]
    #[arg(long, value_name = "WHICH", help_heading = "Pictures")]
    map: Option<Map>,
    /// Draw layer N, or `all` side by side [default: of cross-attention the layer most like an alignment of words, of others the
    /// last]
    #[arg(long, value_name = "N", value_parser = number_or_all, help_heading = "Pictures")]
    layer: Option<Number>,
    /// Draw head N, or `all` side by side [default: the mean over heads]
    #[arg(long, value_name = "N", value_parser = number_or_all, help_heading = "Pictures")]
    head: Option<Number>,
}

/// What is shown of the attention beside results, and how these are printed.
#[derive(Debug, Args)]
pub struct Show {
    /// Print a heat map of what the model looked at
    #[arg(long, help_heading = "Pictures")]
    pub attention: bool,
    /// Pictures to write.
    #[command(flatten)]
    pub pictures: PictureFiles,
    /// How maps over an image are drawn.
    #[command(flatten)]
    pub over_image: OverImage,
    /// Write what the model looked at, for `regard view` and for Python (safetensors)
    #[arg(long, value_name = "FILE", help_heading = "Pictures")]
    pub trace: Option<PathBuf>,
    /// Print JSON, an object a text, on a line of its own
    #[arg(long)]
    pub json: bool,
    /// Print no warnings, no progress and no speed
    #[arg(short, long)]
    pub quiet: bool,
}

/// How maps over an image are drawn as SVG and PNG.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct OverImage {
    /// Draw each cell of a map over an image in one colour [default: smooth between the cells]
    #[arg(long, help_heading = "Pictures")]
    by_cell: bool,
    /// Give each map over an image a scale of its own, up to its largest weight, so that weak ones are seen, too; colours of two maps
    /// cannot be compared then [default: one scale for all maps of a picture]
    #[arg(long, help_heading = "Pictures")]
    own_scale: bool,
}

impl OverImage {
    /// The first of the options that is given.
    pub fn given(self) -> Option<&'static str> {
        let options = [("--by-cell", self.by_cell), ("--own-scale", self.own_scale)];
        let mut given = options.into_iter().filter(|(_, given)| *given);
        given.next().map(|(option, _)| option)
    }

    /// What is drawn so.
    pub fn options(self) -> ImageOptions {
        ImageOptions {
            overlay: match self.by_cell {
                true => Overlay::ByCell,
                false => Overlay::default(),
            },
            own_scale: self.own_scale,
            ..ImageOptions::default()
        }
    }
}

/// One picture in several forms.
#[derive(Debug, Clone, Default, Args)]
pub struct Drawing {
    /// Draw the result as SVG
    #[arg(long, value_name = "FILE", help_heading = "Pictures")]
    pub svg: Option<PathBuf>,
    /// Draw the result as PNG
    #[arg(long, value_name = "FILE", help_heading = "Pictures")]
    pub png: Option<PathBuf>,
    /// Write a page with the picture and its numbers, for a browser
    #[arg(long, value_name = "FILE", help_heading = "Pictures")]
    pub html: Option<PathBuf>,
}

impl Drawing {
    /// Whether any file is asked for.
    pub fn any(&self) -> bool {
        self.files().next().is_some()
    }

    /// The files that are asked for.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.svg, &self.png, &self.html].into_iter().flatten()
    }
}

/// Which attention of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Map {
    /// Attention of the decoder to the source
    Cross,
    /// Self-attention of the encoder
    Encoder,
    /// Self-attention of the decoder
    Decoder,
    /// Self-attention of a model with a single sequence
    #[value(name = "self")]
    Own,
    /// Any other, such as a classifier's pooling
    Other,
    /// All of them
    All,
}

/// One of several, counted from 0, or all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Number(Pick<usize>);

fn number_or_all(text: &str) -> Result<Number, String> {
    match (text, text.parse::<usize>()) {
        ("all", _) => Ok(Number(Pick::All)),
        (_, Ok(number)) if number > 0 => Ok(Number(Pick::One(number - 1))),
        _ => Err("expected a whole number of at least 1, or `all`".to_owned()),
    }
}

impl PictureFiles {
    /// Whether any file is asked for.
    pub fn any(&self) -> bool {
        self.svg.is_some() || self.png.is_some() || self.html.is_some()
    }

    /// Whether a figure of the chosen maps is asked for.
    pub fn draws_chosen(&self) -> bool {
        self.svg.is_some() || self.png.is_some()
    }

    /// Draws the only head of maps that have one.
    pub fn only_head(&mut self) {
        self.head = None;
    }

    /// Which maps are drawn. A page has all of them, and its reader chooses.
    pub fn choice(&self) -> Choice {
        let pick = |number: Option<Number>| number.map_or(Pick::Usual, |Number(pick)| pick);
        Choice {
            kind: match self.map {
                None => Pick::Usual,
                Some(Map::All) => Pick::All,
                Some(Map::Cross) => Pick::One(Kind::Cross),
                Some(Map::Encoder) => Pick::One(Kind::EncoderSelf),
                Some(Map::Decoder) => Pick::One(Kind::DecoderSelf),
                Some(Map::Own) => Pick::One(Kind::SelfAttention),
                Some(Map::Other) => Pick::One(Kind::Other),
            },
            layer: pick(self.layer),
            head: pick(self.head),
        }
    }
}
