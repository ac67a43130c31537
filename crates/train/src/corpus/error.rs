//! What can go wrong with text.

use std::path::PathBuf;

use super::filter::FilterReport;
use crate::tokenizer::TokenizerError;

/// An error of reading, filtering, generating or batching text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CorpusError {
    /// The file is missing or may not be read.
    #[error("{name}: cannot read: {source}")]
    Read {
        /// The file, or `standard input`.
        name: String,
        /// Why.
        source: std::io::Error,
    },
    /// The compressed file ends before its data do, or is damaged.
    #[error(
        "{name}: damaged gzip data after line {line}: {source}; the file may be cut short, fetch \
         it again"
    )]
    Gzip {
        /// The file.
        name: String,
        /// Whole lines read before the damage.
        line: u64,
        /// What the decoder said.
        source: std::io::Error,
    },
    /// A line is not UTF-8.
    #[error(
        "{name}: line {line} is not UTF-8: byte 0x{byte:02x} at byte offset {offset} (counted \
         from 0 in the uncompressed text); convert the file to UTF-8"
    )]
    InvalidUtf8 {
        /// The file, or `standard input`.
        name: String,
        /// The line, counted from 1.
        line: u64,
        /// Offset of the offending byte from the start of the uncompressed text.
        offset: u64,
        /// The offending byte.
        byte: u8,
    },
    /// A line is longer than any text.
    #[error("{name}: line {line} has more than {most} bytes; expected text, with shorter lines")]
    EndlessLine {
        /// The file, or `standard input`.
        name: String,
        /// The line, counted from 1.
        line: u64,
        /// The most bytes that a line may have.
        most: u64,
    },
    /// The file has no text.
    #[error("{}: the file is empty; expected lines of text", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The two sides do not have the same number of lines.
    #[error(
        "{source_name} has {source_lines} lines but {target_name} has {target_lines}; line i of \
         the one must be the translation of line i of the other"
    )]
    LineCounts {
        /// The source side's file.
        source_name: String,
        /// Its lines.
        source_lines: usize,
        /// The target side's file.
        target_name: String,
        /// Its lines.
        target_lines: usize,
    },
    /// A line is longer than the limit, and long lines were to be refused.
    #[error(
        "line {line} has {length} {unit} on the {side} side, more than the {limit} allowed; \
         shorten it, raise the limit, or have it cut (--long-lines cut; in a recipe long_lines = \"cut\", or \"drop\" for training)"
    )]
    LongLine {
        /// The line, counted from 1.
        line: usize,
        /// `source` or `target`.
        side: &'static str,
        /// Its length.
        length: usize,
        /// The limit.
        limit: usize,
        /// `tokens` or `words`.
        unit: &'static str,
    },
    /// No pair passed the filter, or a text has not two tokens.
    #[error("nothing is left to train on: {}", left_out(report))]
    NothingLeft {
        /// What was dropped and why.
        report: FilterReport,
    },
    /// A line of labelled text without a label.
    #[error(
        "{name}: line {line} {problem}; expected a sentence, a tab and its label on every line"
    )]
    Label {
        /// The file.
        name: String,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The tokenizer failed on a line.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A label that the classifier does not know.
    #[error("{name}: line {line} has the label {label:?}, which no training sentence has; expected one of {}", known.join(", "))]
    UnknownLabel {
        /// The file.
        name: String,
        /// The line, counted from 1.
        line: usize,
        /// The label.
        label: String,
        /// The labels of the training text.
        known: Vec<String>,
    },
    /// An error in one of several texts.
    #[error("{text}: {source}")]
    Of {
        /// Which.
        text: &'static str,
        /// The error.
        source: Box<CorpusError>,
    },
    /// A setting that cannot be met.
    #[error("{field}: {problem}")]
    Setting {
        /// The setting.
        field: &'static str,
        /// What was found, what was expected.
        problem: String,
    },
}

fn left_out(report: &FilterReport) -> String {
    match report.dropped() {
        0 => "the text is too short to predict a token of it from others; give a longer one"
            .to_owned(),
        _ => report.to_string(),
    }
}

impl CorpusError {
    /// The same, of this text.
    pub fn of(self, text: &'static str) -> Self {
        let source = Box::new(self);
        Self::Of { text, source }
    }

    /// The same of a line that stands behind `before` others: the number of a long line counts them too.
    pub fn after(mut self, before: usize) -> Self {
        if let Self::LongLine { line, .. } = &mut self {
            *line += before;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::{CorpusError, FilterReport};

    #[test]
    fn a_short_text_is_no_pair() {
        let report = FilterReport::default();
        assert_eq!(
            CorpusError::NothingLeft { report }.to_string(),
            "nothing is left to train on: the text is too short to predict a token of it from others; give a longer one"
        );
    }
}
