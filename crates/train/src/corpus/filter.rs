//! Which pairs to train on: limits on length, with a count of what they drop.

use std::fmt;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::error::CorpusError;
use super::parallel::ParallelText;
use crate::tokenizer::{SubwordTokenizer, TokenizerPair};

/// What to do with a line that is too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LongLines {
    /// Leave the pair out, and count it.
    #[default]
    Drop,
    /// Keep its first tokens, and count it.
    Cut,
    /// Stop with [`CorpusError::LongLine`].
    Error,
}

/// A sentence pair as token ids, without `<s>` and `</s>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedPair {
    /// The source's ids.
    pub source: Vec<u32>,
    /// The target's ids.
    pub target: Vec<u32>,
    /// Index of the pair's line in the text it came from, counted from 0.
    pub line: usize,
}

/// Limits on the length of training pairs. A limit of `None` allows all.
///
/// A pair with an empty side (no token, or white space alone) is always dropped.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LengthFilter {
    /// Most tokens on either side, without `<s>` and `</s>`.
    pub max_tokens: Option<usize>,
    /// Most white-space-delimited words on either side.
    pub max_words: Option<usize>,
    /// Largest ratio of the longer side to the shorter, in tokens. Beyond it the pair is dropped.
    pub max_ratio: Option<f64>,
    /// What to do with a line beyond `max_tokens` or `max_words`.
    pub long_lines: LongLines,
}

/// What a [`LengthFilter`] kept and dropped, in pairs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FilterReport {
    /// Pairs kept, those cut included.
    pub kept: usize,
    /// Dropped: a side was empty.
    pub empty: usize,
    /// Dropped: a side was too long.
    pub too_long: usize,
    /// Dropped: the lengths of the sides were too different.
    pub ratio: usize,
    /// Kept, but cut to the limit.
    pub cut: usize,
    /// Dropped: an image could not be read, or an object of one.
    pub broken: usize,
}

impl FilterReport {
    /// Pairs dropped for any reason.
    pub fn dropped(&self) -> usize {
        self.empty + self.too_long + self.ratio + self.broken
    }
}

impl fmt::Display for FilterReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} pairs kept ({} of them cut), {} dropped: {} with an empty side, {} too long, {} \
             of too different lengths",
            self.kept,
            self.cut,
            self.dropped(),
            self.empty,
            self.too_long,
            self.ratio
        )
    }
}

/// A text made to fit a limit, as by [`LengthFilter::limit`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limited {
    /// The ids to read, at most the limit.
    pub ids: Vec<u32>,
    /// The text's full length in tokens if it was cut: give a warning.
    pub cut_from: Option<usize>,
}

enum Verdict {
    /// The pair, and whether it was cut.
    Kept(EncodedPair, bool),
    Empty,
    TooLong,
    Ratio,
}

impl LengthFilter {
    /// Encodes the pairs of `text`, on all threads, and keeps those within the limits, in order.
    ///
    /// # Errors
    /// [`CorpusError::LongLine`] for the first long line if [`long_lines`](Self::long_lines) is
    /// [`LongLines::Error`]; [`CorpusError::NothingLeft`] if no pair is kept.
    pub fn apply(
        &self,
        text: &ParallelText,
        tokenizers: &TokenizerPair,
    ) -> Result<(Vec<EncodedPair>, FilterReport), CorpusError> {
        let verdicts: Vec<Result<Verdict, CorpusError>> = text
            .source()
            .par_iter()
            .zip(text.target())
            .enumerate()
            .map(|(line, (source, target))| self.judge(line, source, target, tokenizers))
            .collect();
        let mut report = FilterReport::default();
        let mut pairs = Vec::with_capacity(text.len());
        for verdict in verdicts {
            match verdict? {
                Verdict::Kept(pair, cut) => {
                    report.cut += usize::from(cut);
                    pairs.push(pair);
                }
                Verdict::Empty => report.empty += 1,
                Verdict::TooLong => report.too_long += 1,
                Verdict::Ratio => report.ratio += 1,
            }
        }
        report.kept = pairs.len();
        if pairs.is_empty() {
            return Err(CorpusError::NothingLeft { report });
        }
        Ok((pairs, report))
    }

    fn judge(
        &self,
        line: usize,
        source: &str,
        target: &str,
        tokenizers: &TokenizerPair,
    ) -> Result<Verdict, CorpusError> {
        if source.trim().is_empty() || target.trim().is_empty() {
            return Ok(Verdict::Empty);
        }
        let sides = [
            ("source", source, tokenizers.source()),
            ("target", target, tokenizers.target()),
        ];
        let mut encoded = [Vec::new(), Vec::new()];
        let mut cut = false;
        for ((side, text, tokenizer), ids) in sides.into_iter().zip(&mut encoded) {
            let text = match first_words(text, self.max_words) {
                Ok(text) => text,
                Err((length, start)) => {
                    let limit = self.max_words.unwrap_or(length);
                    if !self.cuts(line, side, length, limit, "words")? {
                        return Ok(Verdict::TooLong);
                    }
                    cut = true;
                    start
                }
            };
            *ids = tokenizer.encode(text)?;
            if let Some(limit) = self.max_tokens.filter(|&limit| ids.len() > limit) {
                if !self.cuts(line, side, ids.len(), limit, "tokens")? {
                    return Ok(Verdict::TooLong);
                }
                cut = true;
                ids.truncate(limit);
            }
        }
        let [source, target] = encoded;
        if source.is_empty() || target.is_empty() {
            return Ok(Verdict::Empty);
        }
        let (long, short) = (
            source.len().max(target.len()),
            source.len().min(target.len()),
        );
        if self
            .max_ratio
            .is_some_and(|most| long as f64 > most * short as f64)
        {
            return Ok(Verdict::Ratio);
        }
        Ok(Verdict::Kept(
            EncodedPair {
                source,
                target,
                line,
            },
            cut,
        ))
    }

    /// Whether a side beyond a limit is cut; else its pair is dropped.
    fn cuts(
        &self,
        line: usize,
        side: &'static str,
        length: usize,
        limit: usize,
        unit: &'static str,
    ) -> Result<bool, CorpusError> {
        match self.long_lines {
            LongLines::Drop => Ok(false),
            LongLines::Cut => Ok(true),
            LongLines::Error => Err(CorpusError::LongLine {
                line: line + 1,
                side,
                length,
                limit,
                unit,
            }),
        }
    }

    /// Encodes one source line for translation. An empty line, or one of white space, has no ids, and is not an error. White
    /// space around the text plays no part; tabs and other white space in it count as spaces.
    ///
    /// Nothing can be left out of a translation, so [`LongLines::Drop`] cuts as
    /// [`LongLines::Cut`] does. `max_words` and `max_ratio` do not matter here.
    ///
    /// # Errors
    /// [`CorpusError::LongLine`], with `line` counted from 0 by the caller, if `long_lines` is
    /// [`LongLines::Error`].
    pub fn limit(
        &self,
        line: usize,
        text: &str,
        tokenizer: &SubwordTokenizer,
    ) -> Result<Limited, CorpusError> {
        let mut ids = tokenizer.encode(&with_spaces(text))?;
        let length = ids.len();
        let mut cut_from = None;
        if let Some(limit) = self.max_tokens.filter(|&limit| length > limit) {
            self.cuts(line, "source", length, limit, "tokens")?;
            ids.truncate(limit);
            cut_from = Some(length);
        }
        Ok(Limited { ids, cut_from })
    }

    /// [`LengthFilter::limit`] of all `lines`, and their order by length.
    ///
    /// # Errors
    /// As of one line.
    pub(crate) fn limit_all<S: AsRef<str>>(
        &self,
        lines: &[S],
        tokenizer: &SubwordTokenizer,
    ) -> Result<(Vec<Limited>, Vec<usize>), CorpusError> {
        let lines = lines.iter().enumerate();
        let limited = lines
            .map(|(line, text)| self.limit(line, text.as_ref(), tokenizer))
            .collect::<Result<Vec<_>, _>>()?;
        let mut order: Vec<usize> = (0..limited.len()).collect();
        order.sort_by_key(|&line| limited[line].ids.len());
        Ok((limited, order))
    }
}

/// `text` as a model reads it: without white space around it, and with spaces for tabs and other white space in it.
pub(crate) fn with_spaces(text: &str) -> String {
    let space = |c: char| if c.is_whitespace() { ' ' } else { c };
    text.trim().chars().map(space).collect()
}

/// `text`, or if it has more than `limit` words their number and the text's start.
fn first_words(text: &str, limit: Option<usize>) -> Result<&str, (usize, &str)> {
    let Some(limit) = limit else {
        return Ok(text);
    };
    let mut words = text.split_whitespace();
    let last = words.by_ref().take(limit).last();
    let more = words.count();
    if more == 0 {
        return Ok(text);
    }
    let end = last.map_or(0, |word| {
        word.as_ptr() as usize - text.as_ptr() as usize + word.len()
    });
    Err((limit + more, &text[..end]))
}
