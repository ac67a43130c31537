//! BLEU, equal to sacrebleu 2.6.0.
//!
//! ```text
//! BLEU = 100 · BP · exp( (1/N) Σ_{n=1..N} ln p_n ),   N = 4
//! p_n  = Σ_segments clipped matches of order n / Σ_segments n-grams of the hypotheses
//! BP   = 1 if c ≥ r, else exp(1 - r/c)
//! ```
//! `c` is the hypotheses' length in tokens, `r` the summed lengths of the references closest in
//! length (the shorter on a tie). A match is clipped at the largest count of the n-gram in any one
//! reference (Papineni et al. 2002). Where an order has no match, [`Smoothing`] decides
//! (Chen & Cherry 2014). Options are sacrebleu's, and so are the defaults: a plain
//! `Bleu::default()` prints what `sacrebleu ref.txt -i hyp.txt` prints.
//!
//! ```
//! use regard_evaluate::Bleu;
//! let hypotheses = ["The dog bit the man.", "It wasn't surprising.", "The man had just bitten him."];
//! let references = [
//!     ["The dog bit the man.", "It was not unexpected.", "The man bit him first."],
//!     ["The dog had bit the man.", "No one was surprised.", "The man had bitten the dog."],
//! ];
//! let score = Bleu::default().corpus(&hypotheses, &references)?;
//! assert_eq!(format!("{:.10}", score.score), "48.5308270099");
//! assert_eq!(
//!     score.verbose(),
//!     "82.4/50.0/45.5/37.5 (BP = 0.943 ratio = 0.944 hyp_len = 17 ref_len = 18)",
//! );
//! # Ok::<(), regard_evaluate::EvaluateError>(())
//! ```

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ngrams::{clipped_matches, ngram_count};
use crate::tokenize::{is_space, words};
use crate::{EvaluateError, Metric, Score, SegmentCounts, Signature, Tokenizer};

/// The value in place of the precision of an n-gram order without a match (Chen & Cherry 2014).
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Smoothing {
    /// Nothing: the score is 0.
    None,
    /// This count in place of 0 (method 1); sacrebleu's default value is 0.1.
    Floor(f64),
    /// This much added to numerator and denominator of every order above 1 (method 2); sacrebleu's
    /// default value is 1.
    AddK(f64),
    /// 1/2, 1/4, 1/8 ... of a count for the first, second, third empty order (method 3, NIST).
    #[default]
    Exp,
    /// 1e-15 in place of no match, 1e-9 in place of no n-gram: BLEU of captions as `pycocoevalcap` has it. sacrebleu does not know it,
    /// and it is not read from text.
    Tiny,
}

impl fmt::Display for Smoothing {
    /// As in a signature: `exp`, `none`, `floor[0.10]`, `add-k[1.00]`, `tiny`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => formatter.write_str("none"),
            Self::Floor(value) => write!(formatter, "floor[{value:.2}]"),
            Self::AddK(value) => write!(formatter, "add-k[{value:.2}]"),
            Self::Exp => formatter.write_str("exp"),
            Self::Tiny => formatter.write_str("tiny"),
        }
    }
}

impl FromStr for Smoothing {
    type Err = EvaluateError;

    /// `none`, `exp`, `floor`, `add-k`, the last two also with a value: `floor=0.1`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = || {
            EvaluateError::InvalidOption {
            option: "the smoothing",
            given: text.to_owned(),
            expected: "`exp`, `none`, `floor`, `add-k`, or the last two with a number above 0, such as `floor=0.1`".to_owned(),
        }
        };
        let (method, value) = match text.split_once('=') {
            Some((method, value)) => (method, Some(value.parse::<f64>().map_err(|_| refuse())?)),
            None => (text, None),
        };
        let smoothing = match (method, value) {
            ("none", None) => Self::None,
            ("exp", None) => Self::Exp,
            ("floor", value) => Self::Floor(value.unwrap_or(0.1)),
            ("add-k", value) => Self::AddK(value.unwrap_or(1.0)),
            _ => return Err(refuse()),
        };
        smoothing.check().map(|()| smoothing).map_err(|_| refuse())
    }
}

impl Smoothing {
    fn check(self) -> Result<(), EvaluateError> {
        match self {
            Self::Floor(value) | Self::AddK(value) if !(value > 0.0 && value.is_finite()) => {
                Err(EvaluateError::InvalidOption {
                    option: "the smoothing value",
                    given: value.to_string(),
                    expected: "a finite number above 0".to_owned(),
                })
            }
            _ => Ok(()),
        }
    }
}

/// The BLEU metric and its options; the defaults are those of sacrebleu.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Bleu {
    /// What a word is; `13a` by default.
    pub tokenizer: Tokenizer,
    /// Whether to lower-case both sides first; no by default.
    pub lowercase: bool,
    /// What to do about orders without a match; `exp` by default.
    pub smoothing: Smoothing,
    /// Whether the mean leaves out orders that the hypotheses are too short for; no by default for
    /// a corpus, always for [`sentence`](Self::sentence).
    pub effective_order: bool,
    /// `N`, the highest order; 4 by default.
    pub order: usize,
}

impl Default for Bleu {
    fn default() -> Self {
        Self {
            tokenizer: Tokenizer::Mteval13a,
            lowercase: false,
            smoothing: Smoothing::Exp,
            effective_order: false,
            order: 4,
        }
    }
}

/// A BLEU score with everything it was made of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BleuScore {
    /// BLEU, from 0 to 100.
    pub score: f64,
    /// Clipped matches of each order, before any smoothing.
    pub counts: Vec<u64>,
    /// N-grams of the hypotheses of each order, before any smoothing.
    pub totals: Vec<u64>,
    /// Precision of each order in percent, smoothed.
    pub precisions: Vec<f64>,
    /// Brevity penalty, from 0 to 1.
    pub brevity_penalty: f64,
    /// Tokens of the hypotheses.
    pub hypothesis_length: u64,
    /// Tokens of the closest references.
    pub reference_length: u64,
    /// The settings.
    pub signature: Signature,
}

impl BleuScore {
    /// Hypothesis length over reference length; 0 when the references are empty.
    pub fn ratio(&self) -> f64 {
        if self.reference_length == 0 {
            return 0.0;
        }
        self.hypothesis_length as f64 / self.reference_length as f64
    }

    /// The details as sacrebleu prints them: precisions, brevity penalty, ratio and lengths.
    pub fn verbose(&self) -> String {
        let precisions: Vec<String> = self
            .precisions
            .iter()
            .map(|precision| format!("{precision:.1}"))
            .collect();
        format!(
            "{} (BP = {:.3} ratio = {:.3} hyp_len = {} ref_len = {})",
            precisions.join("/"),
            self.brevity_penalty,
            self.ratio(),
            self.hypothesis_length,
            self.reference_length,
        )
    }

    /// The score in the form that all metrics share, for printing.
    pub fn report(&self) -> Score {
        Score {
            name: "BLEU".to_owned(),
            score: self.score,
            signature: self.signature.clone(),
            verbose: Some(self.verbose()),
            confidence: None,
        }
    }
}

impl Bleu {
    /// BLEU of a corpus; `references[r][i]` is reference `r` of `hypotheses[i]`.
    ///
    /// # Errors
    /// Those of [`SegmentCounts::collect`].
    pub fn corpus<H, R, S>(
        &self,
        hypotheses: &[H],
        references: &[R],
    ) -> Result<BleuScore, EvaluateError>
    where
        H: AsRef<str> + Sync,
        R: AsRef<[S]>,
        S: AsRef<str> + Sync,
    {
        Ok(self.of(&SegmentCounts::collect(self, hypotheses, references)?))
    }

    /// BLEU of one sentence, always with the effective order, as sacrebleu's `--sentence-level`.
    ///
    /// # Errors
    /// [`EvaluateError::NoReferences`], [`EvaluateError::InvalidOption`].
    pub fn sentence(
        &self,
        hypothesis: &str,
        references: &[&str],
    ) -> Result<BleuScore, EvaluateError> {
        let streams: Vec<[&str; 1]> = references.iter().map(|&reference| [reference]).collect();
        Self {
            effective_order: true,
            ..*self
        }
        .corpus(&[hypothesis], &streams)
    }

    /// BLEU of counts that this metric has collected.
    pub fn of(&self, counts: &SegmentCounts) -> BleuScore {
        let sums = counts.total();
        let parts = self.parts(&sums);
        BleuScore {
            score: parts.score,
            counts: sums[2..2 + self.order].to_vec(),
            totals: sums[2 + self.order..].to_vec(),
            precisions: parts.precisions,
            brevity_penalty: parts.brevity_penalty,
            hypothesis_length: sums[0],
            reference_length: sums[1],
            signature: self.signature(counts.references()),
        }
    }

    fn parts(&self, sums: &[u64]) -> Parts {
        let (lengths, ngrams) = sums.split_at(2);
        let (counts, totals) = ngrams.split_at(self.order);
        let (hypothesis, reference) = (lengths[0] as f64, lengths[1] as f64);
        let brevity_penalty = if hypothesis >= reference {
            1.0
        } else if hypothesis > 0.0 {
            (1.0 - reference / hypothesis).exp()
        } else {
            0.0
        };
        let mut precisions = vec![0.0; self.order];
        let tiny = self.smoothing == Smoothing::Tiny && hypothesis > 0.0;
        if counts.iter().all(|&count| count == 0) && !tiny {
            return Parts {
                score: 0.0,
                precisions,
                brevity_penalty,
            };
        }
        let mut halved = 1.0;
        let mut orders = self.order;
        for (index, precision) in precisions.iter_mut().enumerate() {
            let (count, total) = (counts[index] as f64, totals[index] as f64);
            let (count, total) = match self.smoothing {
                Smoothing::AddK(value) if index > 0 => (count + value, total + value),
                Smoothing::Tiny if total > 0.0 || !self.effective_order => {
                    (count.max(1e-15), total.max(1e-9))
                }
                _ => (count, total),
            };
            if total == 0.0 {
                break;
            }
            if self.effective_order {
                orders = index + 1;
            }
            *precision = if count > 0.0 {
                100.0 * count / total
            } else {
                match self.smoothing {
                    Smoothing::Exp => {
                        halved *= 2.0;
                        100.0 / (halved * total)
                    }
                    Smoothing::Floor(value) => 100.0 * value / total,
                    Smoothing::None | Smoothing::AddK(_) | Smoothing::Tiny => 0.0,
                }
            };
        }
        // sacrebleu takes -9999999999 for the logarithm of 0; its exponential is 0, like that of -∞.
        let logarithms: f64 = precisions[..orders]
            .iter()
            .map(|precision| precision.ln())
            .sum();
        Parts {
            score: brevity_penalty * (logarithms / orders as f64).exp(),
            precisions,
            brevity_penalty,
        }
    }

    fn preprocess(&self, segment: &str) -> String {
        if self.lowercase {
            self.tokenizer
                .apply(segment.to_lowercase().trim_end_matches(is_space))
        } else {
            self.tokenizer.apply(segment.trim_end_matches(is_space))
        }
    }
}

struct Parts {
    score: f64,
    precisions: Vec<f64>,
    brevity_penalty: f64,
}

impl Metric for Bleu {
    fn name(&self) -> String {
        "BLEU".to_owned()
    }

    fn width(&self) -> usize {
        2 + 2 * self.order
    }

    /// Hypothesis length, closest reference length, `order` clipped matches, `order` totals.
    fn segment(&self, hypothesis: &str, references: &[&str]) -> Vec<u64> {
        let hypothesis = self.preprocess(hypothesis);
        let references: Vec<String> = references
            .iter()
            .map(|reference| self.preprocess(reference))
            .collect();
        let hypothesis: Vec<&str> = words(&hypothesis).collect();
        let references: Vec<Vec<&str>> = references
            .iter()
            .map(|reference| words(reference).collect())
            .collect();
        let views: Vec<&[&str]> = references.iter().map(Vec::as_slice).collect();

        let length = hypothesis.len();
        let closest = views
            .iter()
            .map(|reference| reference.len())
            .min_by_key(|&reference| (reference.abs_diff(length), reference))
            .unwrap_or(0);
        let mut counts = vec![length as u64, closest as u64];
        counts.extend(clipped_matches(&hypothesis, &views, self.order));
        counts.extend((1..=self.order).map(|order| ngram_count(length, order)));
        counts
    }

    fn score(&self, sums: &[u64]) -> f64 {
        self.parts(sums).score
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
                ("eff", yes_no(self.effective_order)),
                ("tok", self.tokenizer.to_string()),
                ("smooth", self.smoothing.to_string()),
            ],
        )
    }

    fn check(&self) -> Result<(), EvaluateError> {
        self.smoothing.check()?;
        if !(1..=64).contains(&self.order) {
            return Err(EvaluateError::InvalidOption {
                option: "BLEU's highest n-gram order",
                given: self.order.to_string(),
                expected: "a number from 1 to 64".to_owned(),
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smoothing_is_read_as_written() {
        assert_eq!("floor".parse::<Smoothing>().unwrap(), Smoothing::Floor(0.1));
        assert_eq!(
            "add-k=2.5".parse::<Smoothing>().unwrap(),
            Smoothing::AddK(2.5)
        );
        for wrong in [
            "",
            "exp=1",
            "floor=0",
            "floor=-1",
            "floor=nan",
            "add-k=x",
            "kneser-ney",
        ] {
            assert!(
                wrong
                    .parse::<Smoothing>()
                    .unwrap_err()
                    .to_string()
                    .contains(wrong)
            );
        }
    }

    #[test]
    fn impossible_settings_are_refused() {
        for bleu in [
            Bleu {
                order: 0,
                ..Bleu::default()
            },
            Bleu {
                order: 65,
                ..Bleu::default()
            },
            Bleu {
                smoothing: Smoothing::Floor(f64::NAN),
                ..Bleu::default()
            },
        ] {
            assert!(matches!(
                bleu.corpus(&["a"], &[["a"]]),
                Err(EvaluateError::InvalidOption { .. })
            ));
        }
    }

    #[test]
    fn streams_must_agree() {
        let bleu = Bleu::default();
        let none: [[&str; 1]; 0] = [];
        assert!(matches!(
            bleu.corpus(&["a"], &none),
            Err(EvaluateError::NoReferences)
        ));
        assert!(matches!(
            bleu.corpus::<&str, [&str; 0], &str>(&[], &[[]]),
            Err(EvaluateError::Empty { .. })
        ));
        let error = bleu.corpus(&["a", "b"], &[["a"]]).unwrap_err().to_string();
        assert!(
            error.contains("`reference 1`") && error.contains("2 and 1"),
            "{error}"
        );
    }
}
