//! A vocabulary as a model sees it: how many entries it has, and which of them are marks (padding, start, end).

use std::fmt;

use serde::{Deserialize, Serialize};

/// A vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vocabulary {
    /// Its entries.
    pub size: usize,
    /// Fills a batch up to its longest sentence; never predicted, never attended to. Never [`end`](Self::end), which is
    /// predicted.
    pub padding: u32,
    /// Starts a target: the decoder's first input.
    pub start: u32,
    /// Ends a source and a target.
    pub end: u32,
}

impl Vocabulary {
    /// A vocabulary of `size` entries, the first three of which are its marks, in the order of the fields. For other marks write
    /// `Vocabulary { size, padding, start, end }`.
    pub const fn new(size: usize) -> Self {
        Self {
            size,
            padding: 0,
            start: 1,
            end: 2,
        }
    }
}

impl fmt::Display for Vocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            size,
            padding,
            start,
            end,
        } = self;
        write!(
            f,
            "{size} tokens, padding {padding}, start {start}, end {end}"
        )
    }
}

/// The vocabularies of source and target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vocabularies {
    /// The vocabulary of the source.
    pub source: Vocabulary,
    /// The vocabulary of the target.
    pub target: Vocabulary,
}

impl Vocabularies {
    /// Vocabularies of these sizes, with the marks of [`Vocabulary::new`].
    pub const fn new(source: usize, target: usize) -> Self {
        Self {
            source: Vocabulary::new(source),
            target: Vocabulary::new(target),
        }
    }
}
