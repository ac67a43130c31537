//! Which pictures are written, and where.

use std::path::PathBuf;

use clap::Args;

/// Pictures and traces of the attention.
#[derive(Debug, Args)]
pub struct PictureFiles {
    /// Write a heat map as SVG; of several translations, FILE-LINE or FILE-LINE-RANK is written
    /// for each
    #[arg(long, value_name = "FILE", help_heading = "Pictures")]
    pub svg: Option<PathBuf>,
    /// Write a heat map as PNG, named as the SVG
    #[arg(long, value_name = "FILE", help_heading = "Pictures")]
    pub png: Option<PathBuf>,
    /// Write one page with all translations, to explore in a browser; it needs no network
    #[arg(long, value_name = "FILE", help_heading = "Pictures")]
    pub html: Option<PathBuf>,
    /// Keep the subwords that the model works on apart, in place of whole words
    #[arg(long, help_heading = "Pictures")]
    pub subwords: bool,
}

impl PictureFiles {
    /// Whether any file is asked for.
    pub fn any(&self) -> bool {
        self.svg.is_some() || self.png.is_some() || self.html.is_some()
    }
}
