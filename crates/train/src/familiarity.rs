//! How far a sentence is from what a translation model was trained on.
//!
//! A small model translates any sentence, and writes nonsense for one unlike its training text. Two numbers detect most such
//! sentences:
//!
//! ```text
//! surprise     = (1/W) Σ_w min(s_max, Σ_{p in w} s_p),   s_p = -ln((n_p + 1) / (N + V)),   s_max = ln(N + V)
//! uncertainty  = -(1/T) Σ_t ln p(y_t)
//! score        = (surprise - m_s) / d_s + (uncertainty - m_u) / d_u
//! ```
//!
//! `n_p` counts piece `p` of the source vocabulary of `V` pieces in the training text of `N` pieces. `W` counts the words that
//! have a letter or a digit (all words, if none has); the surprise of a word is at most that of a piece that was never seen, `s_max`. `y` is the model's
//! own translation of `T` tokens. Means `m` and deviations `d` are those of held-out sentences. All of this is kept in the
//! model's file (`regard.familiarity`), where `regard model --familiarity` puts it.
//!
//! A sentence with a score of at least [`FAR`] is called far. With the embedded model these are 15 of the 1,000 sentences of
//! Multi30k's test_2016_flickr (`regard translate --json --quiet < FILE | grep -c '"unfamiliar"'`), and all greetings, questions,
//! and sentences of other kinds in `crates/cli/tests/command/unfamiliar.rs`. Counts, means and deviations do not depend on
//! test_2016_flickr, but [`FAR`] was chosen with its sentences in view. Some sentences are missed: "The house is very
//! expensive." passes for a caption.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    corpus::with_spaces,
    tokenizer::{SubwordTokenizer, TokenizerError},
    translator::{LineError, Translation, Translator},
};

/// A sentence with at least this score, a sum of two standard scores, is far from the training text.
pub const FAR: f64 = 5.0;

/// A part of the score is named as a reason if its standard score is at least this.
const REASON: f64 = 2.0;

/// Words rarer than one in this many pieces are named as rare.
const RARE: f64 = 10_000.0;

/// The smallest deviation: if the held-out sentences are all alike, not every other sentence is to be called far.
const SMALLEST_DEVIATION: f64 = 0.05;

/// Mean and standard deviation over held-out sentences.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Usual {
    /// The mean.
    pub mean: f64,
    /// The standard deviation.
    pub deviation: f64,
}

/// Statistics of a model's training text, and of its own translations of held-out sentences.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Familiarity {
    /// How often each piece of the source vocabulary stands in the training text.
    pieces: Vec<u32>,
    /// Nats per word.
    surprise: Usual,
    /// Nats per token of the translation.
    uncertainty: Usual,
}

/// A sentence far from the training text. Its `Display` is the reason.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Unfamiliar {
    /// At least [`FAR`].
    pub score: f64,
    /// How many deviations the source is more surprising than usual.
    pub surprise: f64,
    /// How many deviations the translation is less certain than usual.
    pub uncertainty: f64,
    /// Words that are rare in the training text or not in it, each once.
    pub rare_words: Vec<String>,
    /// The probability that the model gives a token of its translation, geometric mean.
    pub probability: f64,
    /// The same for held-out sentences.
    pub usual_probability: f64,
}

impl Usual {
    fn of(values: &[f64]) -> Self {
        let count = values.len().max(1) as f64;
        let mean = values.iter().sum::<f64>() / count;
        let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
        Self {
            mean,
            deviation: variance.sqrt().max(SMALLEST_DEVIATION),
        }
    }

    fn standard_score(&self, value: f64) -> f64 {
        (value - self.mean) / self.deviation
    }

    fn is_sound(&self) -> bool {
        self.mean.is_finite() && self.deviation.is_finite() && self.deviation > 0.0
    }
}

impl Familiarity {
    /// Counts the pieces of `training` sentences and lets `translator` translate `held_out` ones, both of its source language.
    ///
    /// # Errors
    /// A held-out line that is too long, where the model's settings make that an error.
    pub fn measure<S: AsRef<str>>(
        translator: &Translator,
        training: &[S],
        held_out: &[S],
    ) -> Result<Self, LineError> {
        let description = translator.description();
        let tokenizer = description.tokenizers.source();
        let mut pieces = vec![0u32; tokenizer.vocabulary_size()];
        for line in training {
            for id in tokenizer.encode(line.as_ref())? {
                pieces[id as usize] = pieces[id as usize].saturating_add(1);
            }
        }
        let unknown = Usual {
            mean: 0.0,
            deviation: 1.0,
        };
        let mut familiarity = Self {
            pieces,
            surprise: unknown,
            uncertainty: unknown,
        };
        let translated = translator.translate(held_out, translator.settings())?;
        let (mut surprises, mut uncertainties) = (vec![], vec![]);
        for (line, translated) in held_out.iter().zip(&translated) {
            let words = familiarity.words(tokenizer, line.as_ref())?;
            if let (Some(surprise), Some(best)) = (mean(&words), translated.n_best.first()) {
                surprises.push(surprise);
                uncertainties.push(uncertainty(best));
            }
        }
        familiarity.surprise = Usual::of(&surprises);
        familiarity.uncertainty = Usual::of(&uncertainties);
        Ok(familiarity)
    }

    /// What is wrong with the numbers of a file, for a source vocabulary of this many pieces.
    pub(crate) fn problem(&self, vocabulary: usize) -> Option<String> {
        if self.pieces.len() != vocabulary {
            let counts = self.pieces.len();
            return Some(format!("{counts} counts for {vocabulary} pieces"));
        }
        let sound = self.surprise.is_sound() && self.uncertainty.is_sound();
        (!sound).then(|| "a mean that is not finite, or a deviation that is not above 0".to_owned())
    }

    /// Whether `line` and its best `translation` are far from the training text.
    ///
    /// # Errors
    /// A tokenizer that fails on the line.
    pub fn judge(
        &self,
        tokenizer: &SubwordTokenizer,
        line: &str,
        translation: &Translation,
    ) -> Result<Option<Unfamiliar>, TokenizerError> {
        let words = self.words(tokenizer, line)?;
        let nats = uncertainty(translation);
        let Some(surprise) = mean(&words) else {
            return Ok(None);
        };
        let surprise = self.surprise.standard_score(surprise);
        let uncertainty = self.uncertainty.standard_score(nats);
        let score = surprise + uncertainty;
        if score.is_nan() || score < FAR {
            return Ok(None);
        }
        let mut rare_words: Vec<String> = vec![];
        let rare = RARE.ln().min(self.never_seen());
        for (word, surprise) in words {
            if surprise >= rare && !rare_words.contains(&word) {
                rare_words.push(word);
            }
        }
        Ok(Some(Unfamiliar {
            score,
            surprise,
            uncertainty,
            rare_words,
            probability: (-nats).exp(),
            usual_probability: (-self.uncertainty.mean).exp(),
        }))
    }

    /// `s_max = ln(N + V)`: the surprise of a piece that was never seen.
    fn never_seen(&self) -> f64 {
        let total: f64 = self.pieces.iter().map(|&count| f64::from(count)).sum();
        (total + self.pieces.len() as f64).ln()
    }

    /// The words of a line that have a letter or a digit (all words, if none has), each with its surprise in nats.
    fn words(
        &self,
        tokenizer: &SubwordTokenizer,
        line: &str,
    ) -> Result<Vec<(String, f64)>, TokenizerError> {
        let never_seen = self.never_seen();
        let ids = tokenizer.encode(&with_spaces(line))?;
        let mut words: Vec<(usize, String, f64)> = vec![];
        for (piece, &id) in tokenizer.pieces(&ids)?.iter().zip(&ids) {
            let count = self.pieces.get(id as usize).copied().unwrap_or(0);
            let surprise = never_seen - (f64::from(count) + 1.0).ln();
            match words.last_mut() {
                Some((word, text, sum)) if *word == piece.word => {
                    text.push_str(&piece.text);
                    *sum += surprise;
                }
                _ => words.push((piece.word, piece.text.clone(), surprise)),
            }
        }
        let is_word = |text: &str| text.chars().any(char::is_alphanumeric);
        let wordless = !words.iter().any(|(_, text, _)| is_word(text));
        let worded = words
            .into_iter()
            .filter(|(_, text, _)| wordless || is_word(text));
        Ok(worded
            .map(|(_, text, surprise)| (text, surprise.min(never_seen)))
            .collect())
    }
}

/// The mean surprise of words; `None` without words.
fn mean(words: &[(String, f64)]) -> Option<f64> {
    let sum: f64 = words.iter().map(|(_, surprise)| surprise).sum();
    (!words.is_empty()).then(|| sum / words.len() as f64)
}

/// Nats per token of a translation, `</s>` included.
fn uncertainty(translation: &Translation) -> f64 {
    -translation.log_probability / translation.tokens.max(1) as f64
}

impl fmt::Display for Unfamiliar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// The most words that are named.
        const NAMED: usize = 5;
        let mut reasons = vec![];
        if self.surprise >= REASON && !self.rare_words.is_empty() {
            let named: Vec<String> = self
                .rare_words
                .iter()
                .take(NAMED)
                .map(|word| format!("`{word}`"))
                .collect();
            let more = match self.rare_words.len().saturating_sub(NAMED) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let are = if self.rare_words.len() == 1 {
                "is"
            } else {
                "are"
            };
            reasons.push(format!(
                "{}{more} {are} rare in its training text or not in it",
                named.join(", ")
            ));
        } else if self.surprise >= REASON {
            reasons.push("its words are rarer in the training text than usual".to_owned());
        }
        if self.uncertainty >= REASON {
            reasons.push(format!(
                "the model gives a token of its translation a probability of {:.2}, where {:.2} is usual",
                self.probability, self.usual_probability
            ));
        }
        f.write_str(&reasons.join(", and "))
    }
}
