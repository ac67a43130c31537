//! Scores by source length: how they are grouped, and where they are drawn.

use std::str::FromStr;

use clap::Args;

use super::{Drawing, search::whole};

const HEADING: &str = "Scores by length";

/// Buckets of source lengths, and pictures of their scores.
#[derive(Debug, Clone, Args)]
pub struct Lengths {
    /// The longest source of each bucket, in words, in rising order [default: 10,20,30,40,50,60]
    #[arg(long, value_name = "N,N,..", help_heading = HEADING)]
    pub buckets: Option<Edges>,
    /// Merge buckets of fewer sentences into a neighbour
    #[arg(long, value_name = "N", default_value_t = LEAST_SENTENCES, value_parser = whole::<usize>, help_heading = HEADING)]
    pub least_sentences: usize,
    /// Score against length as a picture.
    #[command(flatten)]
    pub drawing: Drawing,
}

const LEAST_SENTENCES: usize = 20;

impl Default for Lengths {
    fn default() -> Self {
        Self {
            buckets: None,
            least_sentences: LEAST_SENTENCES,
            drawing: Drawing::default(),
        }
    }
}

impl Lengths {
    /// Whether it is said how lengths are grouped.
    pub fn grouped(&self) -> bool {
        self.buckets.is_some() || self.least_sentences != LEAST_SENTENCES
    }

    /// Whether anything is asked for that needs scores by length.
    pub fn asked(&self) -> bool {
        self.grouped() || self.drawing.any()
    }
}

/// The longest source of each bucket, rising, at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edges(pub Vec<usize>);

impl FromStr for Edges {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let edges: Result<Vec<usize>, _> =
            text.split(',').map(|edge| edge.trim().parse()).collect();
        match edges {
            Ok(edges) if edges[0] > 0 && edges.is_sorted_by(|a, b| a < b) => Ok(Self(edges)),
            _ => Err("expected rising numbers of words, such as 8,14,20"),
        }
    }
}
