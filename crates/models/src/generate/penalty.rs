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

/// What the log-probability of a hypothesis of `|Y|` tokens is divided by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LengthPenalty {
    /// `((5 + |Y|) / 6)^α`, of GNMT (Wu et al. 2016).
    #[default]
    Gnmt,
    /// `|Y|^α`, of fairseq and transformers.
    Power,
}

/// When the search of a sentence ends. A beam of 1 is greedy search with any of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stopping {
    /// Hypotheses that have ended leave the beam, which shrinks by their number (Bahdanau 2014's decoder), until it is empty. Those
    /// that the length limit cut are ranked behind the others.
    #[default]
    Shrinking,
    /// The beam keeps its width, and beside it as many of the best hypotheses that have ended: transformers' search. It stops as soon
    /// as there are so many (`early_stopping`).
    Early,
    /// As `Early`, but it goes on while the likeliest of the beam, ranked as if it ended now, is better than the worst of those
    /// that have ended (`early_stopping` false).
    Heuristic,
    /// As `Heuristic`, but ranked by the length that suits it best, so that what is left out could not have become better
    /// (`early_stopping` "never").
    Never,
}

/// The settings of beam search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BeamConfig {
    /// How many hypotheses are kept; 1 is greedy search.
    pub size: usize,
    /// When the search of a sentence ends.
    pub stopping: Stopping,
    /// What `length_penalty` is the exponent of.
    pub penalty: LengthPenalty,
    /// `α` of the length penalty; 0 ranks by plain log-probability, under which the empty translation may win (Stahlberg and
    /// Byrne 2019).
    pub length_penalty: f64,
    /// `β` of the coverage penalty; 0 switches it off.
    pub coverage_penalty: f64,
    /// How many hypotheses are returned, at most `size`.
    pub n_best: usize,
    /// Forbids any n-gram of this many tokens to occur twice; 0 allows all.
    pub no_repeat_ngram: usize,
    /// The longest translation.
    pub limit: LengthLimit,
    /// The token that stands at that limit, whatever the model prefers: its probability counts as 1.
    pub forced_end: Option<u32>,
}

impl Default for BeamConfig {
    fn default() -> Self {
        Self {
            size: 5,
            stopping: Stopping::default(),
            penalty: LengthPenalty::default(),
            length_penalty: 1.0,
            coverage_penalty: 0.0,
            n_best: 1,
            no_repeat_ngram: 0,
            limit: LengthLimit::default(),
            forced_end: None,
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
        let length = match self.penalty {
            LengthPenalty::Gnmt => (5.0 + tokens as f64) / 6.0,
            LengthPenalty::Power => tokens as f64,
        };
        let mut score = log_probability / length.powf(self.length_penalty);
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
