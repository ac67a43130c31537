//! `[validation]` and `[translate]`.

use regard_config::{
    Check, ConfigError, LARGEST_SIZE, NOT_NEGATIVE, POSITIVE, Place, Range, SIZE, config,
};
use regard_evaluate::Tokenizer;
use serde::{Deserialize, Serialize};

use crate::corpus::{LengthFilter, LongLines};

/// The measure by which the best checkpoint is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Measure {
    /// BLEU of the translations or captions of the validation set: higher is better.
    Bleu,
    /// Share of the validation set with its true label or answer: higher is better.
    Accuracy,
    /// Teacher-forced loss: lower is better.
    Loss,
}

/// What happens to a source line that is too long to translate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LongSource {
    /// Its start is translated, with a warning.
    #[default]
    Cut,
    /// It is refused.
    Error,
}

const BEAM: Range<usize> = Range {
    holds: |beam| (1..=1_000).contains(&beam),
    expected: "1 to 1000",
};

const DIAGNOSED: Range<usize> = Range {
    holds: |count| (1..=1000).contains(&count),
    expected: "1 to 1000",
};

const SOME: Range<usize> = Range {
    holds: |count| count >= 1,
    expected: "at least 1",
};

const SIZE_OR_NONE: Range<usize> = Range {
    holds: |size| size <= LARGEST_SIZE,
    expected: "0 to 1048576",
};

config! {
    /// How the model is judged during training.
    pub struct Validation {
        /// The measure that decides on the best checkpoint and on early stopping: "bleu" (of translations and captions), "accuracy" (of
        /// labels and answers) or "loss". If left out, "bleu" or "accuracy"; of a detector average precision, of a language model the
        /// loss.
        measure: Option<Measure> = None, example "\"loss\"";
        /// Beam for the translated validation text; 1 is greedy.
        beam: usize = 1, in BEAM;
        /// Measures attention at each validation, on this many of its first examples: entropy, dead heads, sinks, diagonality.
        diagnose: Option<usize> = None, in DIAGNOSED, example "16";
        /// Number of pairs that BLEU is of, the first ones; all if left out. The loss is of all pairs; where a model writes captions, of
        /// the same images as BLEU.
        max_sentences: Option<usize> = None, in SOME, example "1000";
        /// Sentences translated together.
        batch_sentences: usize = 64, in SIZE;
        /// BLEU's tokenisation: "13a", "none", "intl" or "char".
        tokenizer: Tokenizer = Tokenizer::Mteval13a;
        /// Whether BLEU ignores case.
        lowercase: bool = false;
    }
}

impl Validation {
    /// What a measure depends on, the loss if `of_loss`, as text: not which of the measures decides, nor what does not change it.
    pub(crate) fn scoring(&self, of_loss: bool) -> String {
        let usual = Self::default();
        let scoring = match of_loss {
            // The loss of captions is of as many images.
            true => Self {
                max_sentences: self.max_sentences,
                ..usual
            },
            false => Self {
                measure: usual.measure,
                diagnose: usual.diagnose,
                batch_sentences: usual.batch_sentences,
                ..self.clone()
            },
        };
        serde_json::to_string(&scoring).expect("plain data serialises")
    }
}

config! {
    /// How the trained model translates unless told otherwise.
    pub struct Translation {
        /// Beam size; 1 is greedy.
        beam: usize = 5, in BEAM;
        /// Exponent a of the length penalty ((5 + length) / 6)^a (Wu et al. 2016), at least 0.
        length_penalty: f64 = 1.0, in NOT_NEGATIVE;
        /// Weight b of the coverage penalty (Wu et al. 2016), at least 0.
        coverage_penalty: f64 = 0.0, in NOT_NEGATIVE;
        /// Translations given for each sentence, at most beam.
        n_best: usize = 1;
        /// Length of n-grams that must not occur twice in a translation; 0 allows all.
        no_repeat_ngram: usize = 0, in SIZE_OR_NONE;
        /// Sentences translated together.
        batch_sentences: usize = 32, in SIZE;
        /// Most tokens of a source line.
        max_source_tokens: usize = 1_000, in SIZE;
        /// A longer line: "cut" with a warning, or "error".
        long_lines: LongSource = LongSource::Cut;
        /// Where a translation ends at the latest.
        [table] max_length: MaxLength = MaxLength::default();
    }
    check Translation::agree
}

config! {
    /// Most tokens of a translation: min(factor * source tokens + extra, absolute).
    pub struct MaxLength {
        /// Tokens for each source token, above 0.
        factor: f64 = 2.0, in POSITIVE;
        /// Tokens added.
        extra: usize = 10, in SIZE_OR_NONE;
        /// The largest limit, whatever the source.
        absolute: usize = 250, in SIZE;
    }
}

impl MaxLength {
    /// The most tokens for a source of `source_tokens`, at least 1.
    ///
    /// ```
    /// use regard_train::recipe::MaxLength;
    /// let limit = MaxLength { factor: 1.5, extra: 5, absolute: 50 };
    /// assert_eq!(limit.tokens(10), 20);
    /// assert_eq!(limit.tokens(1_000), 50);
    /// ```
    pub fn tokens(&self, source_tokens: usize) -> usize {
        // A float that is too large for an integer becomes the largest integer.
        let scaled = (self.factor * source_tokens as f64) as usize;
        scaled.saturating_add(self.extra).min(self.absolute).max(1)
    }
}

impl Translation {
    fn agree(&self, check: &mut Check) {
        let holds = (1..=self.beam).contains(&self.n_best);
        check.require(holds, "n_best", self.n_best, "1 to translate.beam");
    }

    /// What the translations of a validation depend on beside `[validation]`, as text; `None` if all of that is as usual.
    pub(crate) fn scoring(&self) -> Option<String> {
        let usual = Self::default();
        let scoring = Self {
            beam: usual.beam,
            n_best: usual.n_best,
            batch_sentences: usual.batch_sentences,
            long_lines: usual.long_lines,
            ..self.clone()
        };
        let text = || serde_json::to_string(&scoring).expect("plain data serialises");
        (scoring != usual).then(text)
    }

    /// Checks the settings of the model file called `name` as those of a recipe are checked.
    ///
    /// # Errors
    /// [`ConfigError::Value`] for the first key whose value is out of range.
    pub fn check_file(&self, name: &str) -> Result<(), ConfigError> {
        let mut check = Check::default();
        check.table("translate", self);
        let name = name.to_owned();
        match check.into_first() {
            Some(problem) => Err(problem.at(Place::Name { name })),
            None => Ok(()),
        }
    }

    /// The limit on source lines; apply it with [`LengthFilter::limit`].
    pub fn length_filter(&self) -> LengthFilter {
        LengthFilter {
            max_tokens: Some(self.max_source_tokens),
            long_lines: match self.long_lines {
                LongSource::Cut => LongLines::Cut,
                LongSource::Error => LongLines::Error,
            },
            ..LengthFilter::default()
        }
    }
}
