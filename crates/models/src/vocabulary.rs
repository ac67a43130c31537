//! What a model knows of a vocabulary: how many entries it has, and which of them are marks.

use serde::{Deserialize, Serialize};

use crate::tokens::{END, PADDING, START};

/// A vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vocabulary {
    /// Its entries.
    pub size: usize,
    /// Fills a batch up to its longest sentence; never predicted, never attended to.
    pub padding: u32,
    /// Starts a target: the decoder's first input.
    pub start: u32,
    /// Ends a source and a target.
    pub end: u32,
}

impl Vocabulary {
    /// A vocabulary of so many entries, the marks of [`tokens`](crate::tokens) among them.
    pub const fn new(size: usize) -> Self {
        Self {
            size,
            padding: PADDING,
            start: START,
            end: END,
        }
    }
}

/// The vocabularies of what is read and of what is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vocabularies {
    /// What is read.
    pub source: Vocabulary,
    /// What is written.
    pub target: Vocabulary,
}

impl Vocabularies {
    /// Vocabularies of so many entries, with the marks of [`tokens`](crate::tokens).
    pub const fn new(source: usize, target: usize) -> Self {
        Self {
            source: Vocabulary::new(source),
            target: Vocabulary::new(target),
        }
    }
}
