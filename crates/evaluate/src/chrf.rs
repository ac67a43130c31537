//! chrF and chrF++, equal to sacrebleu 2.6.0.
//!
//! ```text
//! P_n = matched n-grams / n-grams of the hypotheses,   R_n = matched / n-grams of the references
//! P, R = means over the character orders 1..6 (and word orders 1..2 for chrF++)
//! chrF_β = 100 · (1 + β²) P R / (β² P + R),   β = 2: recall counts twice as much
//! ```
//! Characters are counted without white space. Of several references the one with the best
//! segment score counts. Orders that the hypotheses or references are too short for are left out
//! of the mean (`eff:yes`). Popović 2015; chrF++ with word n-grams: Popović 2017.
//!
//! ```
//! use regard_evaluate::Chrf;
//! let hypotheses = ["The dog bit the man.", "It wasn't surprising."];
//! let references = [["The dog had bit the man.", "No one was surprised."]];
//! let score = Chrf::default().corpus(&hypotheses, &references)?;
//! assert_eq!(format!("{} {:.10}", score.name, score.score), "chrF2 51.5986456312");
//! let plus = Chrf::plus_plus().corpus(&hypotheses, &references)?;
//! assert_eq!(format!("{} {:.10}", plus.name, plus.score), "chrF2++ 51.4778717141");
//! # Ok::<(), regard_evaluate::EvaluateError>(())
//! ```

use serde::{Deserialize, Serialize};

use crate::ngrams::{clipped_matches, ngram_count};
use crate::tokenize::{is_space, words};
use crate::{EvaluateError, Metric, Score, SegmentCounts, Signature};

/// The chrF metric and its options; the defaults are those of sacrebleu (chrF2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chrf {
    /// Highest order of character n-grams; 6 by default.
    pub character_order: usize,
    /// Highest order of word n-grams; 0 by default, 2 for chrF++.
    pub word_order: usize,
    /// How many times as much recall counts as precision; 2 by default.
    pub beta: u32,
    /// Whether to lower-case both sides first; no by default.
    pub lowercase: bool,
    /// Whether white space belongs to the character n-grams; no by default.
    pub whitespace: bool,
    /// Whether to average F over all orders, an empty one counting 1e-16, as chrF++.py, NLTK and
    /// Moses do, in place of the effective order; no by default.
    pub epsilon_smoothing: bool,
}

impl Default for Chrf {
    fn default() -> Self {
        Self {
            character_order: 6,
            word_order: 0,
            beta: 2,
            lowercase: false,
            whitespace: false,
            epsilon_smoothing: false,
        }
    }
}

/// A chrF score with its settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChrfScore {
    /// `chrF2` or another name by β and word order, such as `chrF2++`.
    pub name: String,
    /// chrF, from 0 to 100.
    pub score: f64,
    /// Matched n-grams of each order, characters first, then words.
    pub counts: Vec<u64>,
    /// N-grams of the hypotheses of each order.
    pub hypothesis_totals: Vec<u64>,
    /// N-grams of the chosen references of each order.
    pub reference_totals: Vec<u64>,
    /// The settings.
    pub signature: Signature,
}

impl ChrfScore {
    /// The score in the form that all metrics share, for printing.
    pub fn report(&self) -> Score {
        Score {
            name: self.name.clone(),
            score: self.score,
            signature: self.signature.clone(),
            verbose: None,
            confidence: None,
        }
    }
}

impl Chrf {
    /// chrF++: chrF with word n-grams up to order 2.
    pub fn plus_plus() -> Self {
        Self {
            word_order: 2,
            ..Self::default()
        }
    }

    /// chrF of a corpus; `references[r][i]` is reference `r` of `hypotheses[i]`.
    ///
    /// # Errors
    /// Those of [`SegmentCounts::collect`].
    pub fn corpus<H, R, S>(
        &self,
        hypotheses: &[H],
        references: &[R],
    ) -> Result<ChrfScore, EvaluateError>
    where
        H: AsRef<str> + Sync,
        R: AsRef<[S]>,
        S: AsRef<str> + Sync,
    {
        Ok(self.of(&SegmentCounts::collect(self, hypotheses, references)?))
    }

    /// chrF of one sentence.
    ///
    /// # Errors
    /// [`EvaluateError::NoReferences`], [`EvaluateError::InvalidOption`].
    pub fn sentence(
        &self,
        hypothesis: &str,
        references: &[&str],
    ) -> Result<ChrfScore, EvaluateError> {
        let streams: Vec<[&str; 1]> = references.iter().map(|&reference| [reference]).collect();
        self.corpus(&[hypothesis], &streams)
    }

    /// chrF of counts that this metric has collected.
    pub fn of(&self, counts: &SegmentCounts) -> ChrfScore {
        let sums = counts.total();
        let column = |offset: usize| sums.iter().skip(offset).step_by(3).copied().collect();
        ChrfScore {
            name: self.name(),
            score: self.score(&sums),
            hypothesis_totals: column(0),
            reference_totals: column(1),
            counts: column(2),
            signature: self.signature(counts.references()),
        }
    }

    fn orders(&self) -> usize {
        self.character_order + self.word_order
    }

    fn units<'a>(&self, segment: &'a str) -> Units<'a> {
        let characters = segment
            .chars()
            .filter(|&character| self.whitespace || !is_space(character))
            .collect();
        let words = if self.word_order > 0 {
            separate_punctuation(segment)
        } else {
            Vec::new()
        };
        Units { characters, words }
    }

    /// `[hypothesis, reference, matched]` n-grams of each order against one reference.
    fn against(&self, hypothesis: &Units, reference: &Units) -> Vec<u64> {
        let mut counts = Vec::with_capacity(3 * self.orders());
        triplets(
            &hypothesis.characters,
            &reference.characters,
            self.character_order,
            &mut counts,
        );
        triplets(
            &hypothesis.words,
            &reference.words,
            self.word_order,
            &mut counts,
        );
        counts
    }
}

struct Units<'a> {
    characters: Vec<char>,
    words: Vec<&'a str>,
}

fn triplets<T: Ord>(hypothesis: &[T], reference: &[T], order: usize, counts: &mut Vec<u64>) {
    let matches = clipped_matches(hypothesis, &[reference], order);
    for (order, matched) in (1..).zip(matches) {
        let in_reference = ngram_count(reference.len(), order);
        // Where the reference has no n-grams of an order, those of the hypothesis are not counted either.
        let in_hypothesis = if in_reference > 0 {
            ngram_count(hypothesis.len(), order)
        } else {
            0
        };
        counts.extend([in_hypothesis, in_reference, matched]);
    }
}

/// chrF++'s words: split at white space, then one ASCII punctuation mark cut off, from the end if
/// there is one there, else from the start (so `(hi)` gives `(hi` and `)`, as in sacrebleu).
fn separate_punctuation(segment: &str) -> Vec<&str> {
    let mut separated = Vec::new();
    for word in words(segment) {
        let starts = word.starts_with(|character: char| character.is_ascii_punctuation());
        let ends = word.ends_with(|character: char| character.is_ascii_punctuation());
        if ends && word.len() > 1 {
            let (rest, mark) = word.split_at(word.len() - 1);
            separated.extend([rest, mark]);
        } else if starts && word.len() > 1 {
            let (mark, rest) = word.split_at(1);
            separated.extend([mark, rest]);
        } else {
            separated.push(word);
        }
    }
    separated
}

impl Metric for Chrf {
    fn name(&self) -> String {
        format!("chrF{}{}", self.beta, "+".repeat(self.word_order))
    }

    fn width(&self) -> usize {
        3 * self.orders()
    }

    /// `[hypothesis, reference, matched]` n-grams of each character order, then each word order,
    /// against the reference with the best segment score.
    fn segment(&self, hypothesis: &str, references: &[&str]) -> Vec<u64> {
        let lowercase = |segment: &str| {
            if self.lowercase {
                segment.to_lowercase()
            } else {
                segment.to_owned()
            }
        };
        let hypothesis = lowercase(hypothesis);
        let hypothesis = self.units(&hypothesis);
        let mut best = (-1.0, vec![0; self.width()]);
        for reference in references {
            let reference = lowercase(reference);
            let counts = self.against(&hypothesis, &self.units(&reference));
            let score = self.score(&counts);
            if score > best.0 {
                best = (score, counts);
            }
        }
        best.1
    }

    fn score(&self, sums: &[u64]) -> f64 {
        const EPSILON: f64 = 1e-16;
        let factor = f64::from(self.beta).powi(2);
        let (mut precision_sum, mut recall_sum, mut effective) = (0.0, 0.0, 0u32);
        let mut smoothed = 0.0;
        for counts in sums.chunks_exact(3) {
            let share = |of: u64| {
                if of > 0 {
                    counts[2] as f64 / of as f64
                } else {
                    EPSILON
                }
            };
            let (precision, recall) = (share(counts[0]), share(counts[1]));
            let denominator = factor * precision + recall;
            smoothed += if denominator > 0.0 {
                (1.0 + factor) * precision * recall / denominator
            } else {
                EPSILON
            };
            if counts[0] > 0 && counts[1] > 0 {
                precision_sum += precision;
                recall_sum += recall;
                effective += 1;
            }
        }
        if self.epsilon_smoothing {
            return 100.0 * smoothed / self.orders() as f64;
        }
        let orders = f64::from(effective.max(1));
        let (precision, recall) = (precision_sum / orders, recall_sum / orders);
        if precision + recall == 0.0 {
            return 0.0;
        }
        100.0 * ((1.0 + factor) * precision * recall / (factor * precision + recall))
    }

    fn report(&self, counts: &SegmentCounts) -> Score {
        self.of(counts).report()
    }

    fn signature(&self, references: usize) -> Signature {
        let yes_no = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
        Signature::new(
            references,
            &[
                (
                    "case",
                    if self.lowercase { "lc" } else { "mixed" }.to_owned(),
                ),
                ("eff", yes_no(!self.epsilon_smoothing)),
                ("nc", self.character_order.to_string()),
                ("nw", self.word_order.to_string()),
                ("space", yes_no(self.whitespace)),
            ],
        )
    }

    fn check(&self) -> Result<(), EvaluateError> {
        let refuse = |option, given: usize, expected: &str| {
            Err(EvaluateError::InvalidOption {
                option,
                given: given.to_string(),
                expected: expected.to_owned(),
            })
        };
        if !(1..=64).contains(&self.character_order) {
            return refuse(
                "chrF's character order",
                self.character_order,
                "a number from 1 to 64",
            );
        }
        if self.word_order > 64 {
            return refuse(
                "chrF's word order",
                self.word_order,
                "a number from 0 to 64",
            );
        }
        if !(1..=1000).contains(&self.beta) {
            return refuse("chrF's beta", self.beta as usize, "a number from 1 to 1000");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_mark_is_cut_off_a_word() {
        assert_eq!(
            separate_punctuation("(hi) \"so. - ... é! «a»"),
            ["(hi", ")", "\"so", ".", "-", "..", ".", "é", "!", "«a»"]
        );
    }

    #[test]
    fn impossible_settings_are_refused() {
        for chrf in [
            Chrf {
                character_order: 0,
                ..Chrf::default()
            },
            Chrf {
                word_order: 65,
                ..Chrf::default()
            },
            Chrf {
                beta: 0,
                ..Chrf::default()
            },
        ] {
            assert!(matches!(
                chrf.corpus(&["a"], &[["a"]]),
                Err(EvaluateError::InvalidOption { .. })
            ));
        }
    }
}
