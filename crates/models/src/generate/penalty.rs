//! How a beam is searched and its hypotheses are ranked.

use serde::{Deserialize, Serialize};

/// The longest translation of a source of `S` positions: `min(factor · S + constant, most)` tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LengthLimit {
    /// Tokens per source token.
    pub factor: f64,
    /// Tokens added to that.
    pub constant: usize,
    /// The largest limit, whatever the source.
    pub most: usize,
}

impl Default for LengthLimit {
    fn default() -> Self {
        Self {
            factor: 2.0,
            constant: 10,
            most: 512,
        }
    }
}

impl LengthLimit {
    /// The limit for a source of `source` positions, at least 1.
    pub fn tokens(&self, source: usize) -> usize {
        // A product that is too large for an integer becomes the largest integer.
        let scaled = (self.factor * source as f64) as usize;
        scaled.saturating_add(self.constant).min(self.most).max(1)
    }
}

/// The settings of beam search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BeamConfig {
    /// How many hypotheses are kept; 1 is greedy search.
    pub size: usize,
    /// `α` of the length penalty `((5 + |Y|) / 6)^α`; 0 ranks by plain log-probability, under which the empty translation may
    /// win (Stahlberg and Byrne 2019).
    pub length_penalty: f64,
    /// `β` of the coverage penalty; 0 switches it off.
    pub coverage_penalty: f64,
    /// How many hypotheses are returned, at most `size`.
    pub n_best: usize,
    /// Forbids any n-gram of this many tokens to occur twice; 0 allows all.
    pub no_repeat_ngram: usize,
    /// The longest translation.
    pub limit: LengthLimit,
}

impl Default for BeamConfig {
    fn default() -> Self {
        Self {
            size: 5,
            length_penalty: 1.0,
            coverage_penalty: 0.0,
            n_best: 1,
            no_repeat_ngram: 0,
            limit: LengthLimit::default(),
        }
    }
}

impl BeamConfig {
    /// Greedy search.
    pub fn greedy() -> Self {
        Self {
            size: 1,
            ..Self::default()
        }
    }

    /// `log P / lp + cp`. `tokens` counts `</s>`; `coverage` holds `Σ_j p_ij` per source position.
    pub fn rank(&self, log_probability: f64, tokens: usize, coverage: &[f32]) -> f64 {
        let length = ((5.0 + tokens as f64) / 6.0).powf(self.length_penalty);
        let mut score = log_probability / length;
        if self.coverage_penalty != 0.0 {
            // A position that was never looked at counts as 1e-9, so that the score stays finite.
            let covered: f64 = coverage
                .iter()
                .map(|&p| f64::from(p).clamp(1e-9, 1.0).ln())
                .sum();
            score += self.coverage_penalty * covered;
        }
        score
    }
}
