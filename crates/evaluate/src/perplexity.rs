//! Perplexity, labelled by what the model was conditioned on.
//!
//! ```text
//! perplexity = exp( L / T ),   L = -Σ_t ln p(y_t | y_<t, x) in nats,   T tokens
//! ```
//! Conditioned on the true prefix (`teacher-forced`) and on the model's own output
//! (`free-running`) these are two different quantities; a number without its label cannot be
//! compared with anything, so the label is part of the type. Perplexities over different
//! vocabularies (sub-words, words) cannot be compared either: `T` counts the model's tokens.
//!
//! ```
//! use regard_evaluate::{Conditioning, Perplexity};
//! let mut total = Perplexity::new(Conditioning::TeacherForced);
//! total.add(4.0 * 10f64.ln(), 4)?;
//! total.add(6.0 * 10f64.ln(), 6)?;
//! assert_eq!(total.to_string(), "perplexity 10.00 (teacher-forced, 10 tokens)");
//! # Ok::<(), regard_evaluate::EvaluateError>(())
//! ```

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::EvaluateError;

/// What each token's probability was conditioned on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Conditioning {
    /// The tokens of the reference before it.
    TeacherForced,
    /// The tokens that the model itself produced before it.
    FreeRunning,
}

impl Conditioning {
    /// `teacher-forced` or `free-running`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::TeacherForced => "teacher-forced",
            Self::FreeRunning => "free-running",
        }
    }
}

impl fmt::Display for Conditioning {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// A running sum of negative log-likelihoods and the number of tokens in it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Perplexity {
    /// `L`, in nats.
    negative_log_likelihood: f64,
    /// `T`, without padding.
    tokens: u64,
    /// What the probabilities were conditioned on.
    conditioning: Conditioning,
}

impl Perplexity {
    /// The perplexity of nothing yet.
    pub const fn new(conditioning: Conditioning) -> Self {
        Self {
            negative_log_likelihood: 0.0,
            tokens: 0,
            conditioning,
        }
    }

    /// Adds the *summed* (not mean) negative log-likelihood, in nats, of some tokens. Label
    /// smoothing and padding must be left out of the sum.
    ///
    /// # Errors
    /// [`EvaluateError::InvalidLikelihood`] for NaN, infinity or a negative number; the sum is
    /// unchanged then.
    pub fn add(&mut self, negative_log_likelihood: f64, tokens: u64) -> Result<(), EvaluateError> {
        if !(negative_log_likelihood >= 0.0 && negative_log_likelihood.is_finite()) {
            return Err(EvaluateError::InvalidLikelihood {
                given: negative_log_likelihood,
            });
        }
        self.negative_log_likelihood += negative_log_likelihood;
        self.tokens += tokens;
        Ok(())
    }

    /// Adds another sum, such as that of another batch.
    ///
    /// # Errors
    /// [`EvaluateError::MixedConditioning`] if the labels differ.
    pub fn merge(&mut self, other: &Self) -> Result<(), EvaluateError> {
        if self.conditioning != other.conditioning {
            return Err(EvaluateError::MixedConditioning {
                first: self.conditioning.name(),
                second: other.conditioning.name(),
            });
        }
        self.add(other.negative_log_likelihood, other.tokens)
    }

    /// The label.
    pub const fn conditioning(&self) -> Conditioning {
        self.conditioning
    }

    /// Number of tokens.
    pub const fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Mean negative log-likelihood of a token in nats (the validation loss); `None` without
    /// tokens.
    pub fn mean(&self) -> Option<f64> {
        (self.tokens > 0).then(|| self.negative_log_likelihood / self.tokens as f64)
    }

    /// The perplexity; `None` without tokens, infinite where the mean exceeds 709 nats.
    pub fn value(&self) -> Option<f64> {
        self.mean().map(f64::exp)
    }

    /// Mean negative log-likelihood of a token in bits; `None` without tokens.
    pub fn bits(&self) -> Option<f64> {
        self.mean().map(|nats| nats / std::f64::consts::LN_2)
    }
}

impl fmt::Display for Perplexity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value() {
            Some(value) => write!(
                formatter,
                "perplexity {value:.2} ({}, {} tokens)",
                self.conditioning, self.tokens
            ),
            None => write!(
                formatter,
                "perplexity undefined ({}, 0 tokens)",
                self.conditioning
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uniform_over_eight_is_eight_and_three_bits() {
        let mut perplexity = Perplexity::new(Conditioning::FreeRunning);
        assert_eq!(perplexity.value(), None);
        perplexity.add(5.0 * 8f64.ln(), 5).unwrap();
        assert!((perplexity.value().unwrap() - 8.0).abs() < 1e-12);
        assert!((perplexity.bits().unwrap() - 3.0).abs() < 1e-12);
        let json = serde_json::to_string(&perplexity).unwrap();
        assert!(json.contains("\"free-running\""), "{json}");
        assert_eq!(
            serde_json::from_str::<Perplexity>(&json).unwrap(),
            perplexity
        );
    }

    #[test]
    fn what_is_no_likelihood_is_refused_and_labels_do_not_mix() {
        let mut perplexity = Perplexity::new(Conditioning::TeacherForced);
        for wrong in [f64::NAN, f64::INFINITY, -1.0] {
            assert!(perplexity.add(wrong, 1).is_err());
        }
        assert_eq!(perplexity, Perplexity::new(Conditioning::TeacherForced));
        let error = perplexity
            .merge(&Perplexity::new(Conditioning::FreeRunning))
            .unwrap_err();
        assert!(error.to_string().contains("free-running"));
    }
}
