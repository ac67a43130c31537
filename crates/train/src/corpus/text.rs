//! Plain text for language models: one long text, or a text a line.

use std::path::Path;

use rayon::prelude::*;

use super::{error::CorpusError, lines::read_lines};
use crate::tokenizer::SubwordTokenizer;

/// Lines are encoded in blocks of at least this many bytes.
const BLOCK: usize = 1 << 14;

/// The lines of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlainText {
    lines: Vec<String>,
}

impl PlainText {
    /// Reads a file, plain or gzip.
    ///
    /// # Errors
    /// Those of [`read_lines`]; [`CorpusError::Empty`] for a file without text.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, CorpusError> {
        let path = path.as_ref();
        let lines = read_lines(path)?;
        match lines.iter().all(|line| line.trim().is_empty()) {
            true => Err(CorpusError::Empty {
                path: path.to_owned(),
            }),
            false => Ok(Self { lines }),
        }
    }

    /// The lines.
    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    /// The last `share` of the bytes as a text of their own, cut after a line, or inside the only line that could be cut.
    pub fn split_off(&mut self, share: f64) -> Self {
        let bytes: usize = self.bytes();
        let mut left = ((1.0 - share) * bytes as f64).round() as usize;
        let fits = |line: &String| {
            let fits = line.len() < left;
            left = left.saturating_sub(line.len() + 1);
            fits
        };
        let first = self.lines.iter().map(fits).take_while(|fits| *fits).count();
        if first > 0 && first < self.lines.len() {
            return Self {
                lines: self.lines.split_off(first),
            };
        }
        // All the text to one side: the line at the cut is divided.
        let at = first.min(self.lines.len().saturating_sub(1));
        let Some(line) = self.lines.get_mut(at) else {
            return Self { lines: vec![] };
        };
        let place = ((1.0 - share) * line.len() as f64) as usize;
        let cut = (0..=place).rev().find(|&byte| line.is_char_boundary(byte));
        let rest = line.split_off(cut.unwrap_or(0));
        let mut lines = vec![rest];
        lines.extend(self.lines.split_off(at + 1));
        Self { lines }
    }

    /// Its length in bytes, each line with its end.
    pub fn bytes(&self) -> usize {
        self.lines.iter().map(|line| line.len() + 1).sum()
    }

    /// The text as a whole, each line with its end, in blocks of some lines.
    pub fn blocks(&self) -> Vec<String> {
        let mut blocks = vec![];
        let mut block = String::new();
        for line in &self.lines {
            block.push_str(line);
            block.push('\n');
            if block.len() >= BLOCK {
                blocks.push(std::mem::take(&mut block));
            }
        }
        if !block.is_empty() {
            blocks.push(block);
        }
        blocks
    }

    /// The tokens of the text as a whole.
    ///
    /// # Errors
    /// A tokenizer that fails.
    pub fn encode(&self, tokenizer: &SubwordTokenizer) -> Result<Vec<u32>, CorpusError> {
        let blocks = self.blocks();
        let encoded = blocks.par_iter().map(|block| tokenizer.encode(block));
        let encoded = encoded.collect::<Result<Vec<_>, _>>()?;
        Ok(encoded.concat())
    }

    /// The tokens of each line.
    ///
    /// # Errors
    /// A tokenizer that fails.
    pub fn encode_lines(&self, tokenizer: &SubwordTokenizer) -> Result<Vec<Vec<u32>>, CorpusError> {
        let encoded = self.lines.par_iter().map(|line| tokenizer.encode(line));
        Ok(encoded.collect::<Result<Vec<_>, _>>()?)
    }
}
