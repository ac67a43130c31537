//! Why a line cannot be translated, or a perplexity not be computed.

use regard_evaluate::EvaluateError;
use regard_kernels::KernelError;
use regard_models::{gradient::GradientError, pretrained::PretrainedError};
use regard_trace::TraceError;

use crate::{corpus::CorpusError, ranks::RanksError, tokenizer::TokenizerError};

/// Why a line could not be translated or classified.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// A line beyond the limit, and the settings say that this is an error.
    #[error(transparent)]
    Line(#[from] CorpusError),
    /// The tokenizer failed.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A pretrained model cannot be used.
    #[error(transparent)]
    Pretrained(#[from] PretrainedError),
    /// What is wrong with one of several lines.
    #[error("line {line}: {source}")]
    Of {
        /// The line, counted from 1.
        line: usize,
        /// The error.
        source: Box<LineError>,
    },
    /// More weights were asked for than fit in memory.
    #[error(
        "the line and its translations have {numbers} weights, at most {most} are kept; expected a shorter line or a smaller beam"
    )]
    TooManyWeights {
        /// How many.
        numbers: usize,
        /// The most.
        most: usize,
    },
    /// Heads that are not there.
    #[error(transparent)]
    Heads(#[from] KernelError),
    /// Heads were to be changed or observed, but the model was not prepared for it, or cannot be.
    #[error(
        "the heads of this model cannot be changed or observed; expected a Transformer whose attention has a kernel, after `open_heads`"
    )]
    Closed,
    /// Gradients that cannot be computed.
    #[error(transparent)]
    Gradients(#[from] GradientError),
    /// Nothing to read or to write.
    #[error("the text or its translation has no tokens; expected some text")]
    NoTokens,
    /// The numbers that the model gives are not attention weights.
    #[error("the model's attention is broken, its weights may be damaged: {0}")]
    Trace(#[from] TraceError),
}

impl LineError {
    /// The same, of this line of several, counted from 1.
    pub fn of_line(self, line: usize) -> Self {
        let source = Box::new(self);
        Self::Of { line, source }
    }

    /// Which line it is of, counted from 1, if it is of one of several.
    pub fn line(&self) -> Option<usize> {
        match self {
            Self::Of { line, .. } | Self::Line(CorpusError::LongLine { line, .. }) => Some(*line),
            _ => None,
        }
    }

    /// The same of a line that stands behind `before` others: its number counts them too.
    pub fn after(self, before: usize) -> Self {
        match self {
            Self::Of { line, source } => Self::Of {
                line: line + before,
                source,
            },
            Self::Line(error) => Self::Line(error.after(before)),
            other => other,
        }
    }
}

/// Why a perplexity could not be computed.
#[derive(Debug, thiserror::Error)]
pub enum PerplexityError {
    /// The text cannot be batched.
    #[error(transparent)]
    Text(#[from] CorpusError),
    /// The numbers that the model gives are not likelihoods.
    #[error("the model's weights may be damaged: {0}")]
    Likelihood(#[from] EvaluateError),
    /// The processes cannot work together.
    #[error(transparent)]
    Ranks(#[from] RanksError),
}

#[cfg(test)]
mod tests {
    use super::LineError;

    #[test]
    fn a_line_counts_those_before_it() {
        let error = LineError::NoTokens.of_line(2).after(64);
        assert_eq!(error.line(), Some(66));
        let told = error.to_string();
        assert!(told.starts_with("line 66: the text or its"), "{told}");
        assert_eq!(LineError::NoTokens.after(64).line(), None);
    }
}
