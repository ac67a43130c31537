//! What can go wrong while scoring, in words that name the file, the line and the remedy.

use std::io;
use std::path::PathBuf;

/// Every failure of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvaluateError {
    /// A file could not be opened or read.
    #[error("cannot read `{}`: {source}; give the path of a plain text file, one segment a line", path.display())]
    Read {
        /// The file asked for.
        path: PathBuf,
        /// What the operating system answered.
        #[source]
        source: io::Error,
    },
    /// A file holds bytes that are not UTF-8.
    #[error(
        "`{name}` is not valid UTF-8: line {line}, byte offset {offset} of the file; expected UTF-8 text, convert the file first"
    )]
    InvalidUtf8 {
        /// The file, or `standard input`.
        name: String,
        /// Line of the first bad byte, from 1.
        line: usize,
        /// Offset of the first bad byte from the start of the file, from 0.
        offset: usize,
    },
    /// A file or list holds no segment at all.
    #[error("`{name}` is empty; expected at least one line to score")]
    Empty {
        /// The file, or the role of the list.
        name: String,
    },
    /// Two streams that must be aligned by line differ in their number of lines.
    #[error(
        "`{first}` and `{second}` differ in their number of lines, {first_lines} and {second_lines}; expected the same number, line i of one belongs to line i of the other"
    )]
    LineCounts {
        /// The first file, or the role of the first list.
        first: String,
        /// Its number of lines.
        first_lines: usize,
        /// The second file, or the role of the second list.
        second: String,
        /// Its number of lines.
        second_lines: usize,
    },
    /// A metric was called without any reference stream.
    #[error("no references were given; expected at least one reference for each hypothesis")]
    NoReferences,
    /// An option has a value outside its range or names nothing known.
    #[error("{option} cannot be `{given}`; expected {expected}")]
    InvalidOption {
        /// The option, as a user writes it.
        option: &'static str,
        /// What was given.
        given: String,
        /// What would have been accepted.
        expected: String,
    },
    /// A token of an alignment file is not a link.
    #[error("`{name}`, line {line}, link {position} `{token}`: {reason}; expected {expected}")]
    MalformedLink {
        /// The file, or the role of the text.
        name: String,
        /// Line, from 1.
        line: usize,
        /// Which link of the line, from 1.
        position: usize,
        /// The link as written.
        token: String,
        /// What is wrong with it.
        reason: String,
        /// The form that is accepted.
        expected: &'static str,
    },
    /// Attention weights do not fill the matrix they are said to be.
    #[error(
        "{given} attention weights for {targets} target words and {sources} source words; expected {targets} x {sources} = {} weights, one row a target word",
        targets * sources
    )]
    WeightShape {
        /// Number of weights given.
        given: usize,
        /// Rows of the matrix.
        targets: usize,
        /// Columns of the matrix.
        sources: usize,
    },
    /// Two perplexities measured under different conditions were to be added.
    #[error("a {first} perplexity cannot be added to a {second} one; measure both the same way")]
    MixedConditioning {
        /// Conditioning of the first.
        first: &'static str,
        /// Conditioning of the second.
        second: &'static str,
    },
    /// A loss from which no perplexity can be computed.
    #[error(
        "negative log-likelihood {given} is not a finite number of at least 0; expected the summed cross-entropy of the tokens in nats"
    )]
    InvalidLikelihood {
        /// The value given.
        given: f64,
    },
}
