//! How well the next token of a text is predicted: loss, accuracy, bits per byte; and both by position in a continuation.
//!
//! ```text
//! bits per byte = L / (B ln 2)     L: summed loss in nats, B: bytes of the text that the tokens stand for
//! ```
//! Unlike perplexities, bits per byte of models with different vocabularies can be compared.
//!
//! ```
//! use regard_evaluate::{Conditioning, NextToken};
//! let mut score = NextToken::new(Conditioning::TeacherForced);
//! score.add(8f64.ln(), true)?;
//! score.add(2f64.ln(), false)?;
//! assert_eq!(score.perplexity().value().unwrap().round(), 4.0);
//! assert_eq!(score.accuracy(), Some(0.5));
//! assert!((score.bits_per_byte(8).unwrap() - 0.5).abs() < 1e-12); // 3 bits and 1 bit, for 8 bytes
//! # Ok::<(), regard_evaluate::EvaluateError>(())
//! ```

use std::ops::Range;

use crate::{Conditioning, EvaluateError, Perplexity};

/// Running sums over predicted tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NextToken {
    perplexity: Perplexity,
    correct: u64,
}

impl NextToken {
    /// Of no token yet.
    pub const fn new(conditioning: Conditioning) -> Self {
        Self {
            perplexity: Perplexity::new(conditioning),
            correct: 0,
        }
    }

    /// Adds a token: its loss `-ln p`, in nats, and whether it was the likeliest.
    ///
    /// # Errors
    /// [`EvaluateError::InvalidLikelihood`]; nothing is added then.
    pub fn add(&mut self, loss: f64, correct: bool) -> Result<(), EvaluateError> {
        self.perplexity.add(loss, 1)?;
        self.correct += u64::from(correct);
        Ok(())
    }

    /// Adds other tokens.
    ///
    /// # Errors
    /// [`EvaluateError::MixedConditioning`].
    pub fn merge(&mut self, other: &Self) -> Result<(), EvaluateError> {
        self.perplexity.merge(&other.perplexity)?;
        self.correct += other.correct;
        Ok(())
    }

    /// Their perplexity, which also has their number and their mean loss.
    pub const fn perplexity(&self) -> &Perplexity {
        &self.perplexity
    }

    /// The share of tokens that were the likeliest, 0 to 1; `None` without tokens.
    pub fn accuracy(&self) -> Option<f64> {
        let tokens = self.perplexity.tokens();
        (tokens > 0).then(|| self.correct as f64 / tokens as f64)
    }

    /// The loss in bits for each of the `bytes` that the tokens stand for; `None` without bytes or tokens.
    pub fn bits_per_byte(&self, bytes: u64) -> Option<f64> {
        let tokens = self.perplexity.tokens() as f64;
        let bits = self.perplexity.bits()? * tokens;
        (bytes > 0).then(|| bits / bytes as f64)
    }
}

/// The same for each position of continuations.
#[derive(Debug, Clone, PartialEq)]
pub struct ByPosition {
    positions: Vec<NextToken>,
    conditioning: Conditioning,
}

impl ByPosition {
    /// Continuations of `positions` tokens.
    pub fn new(conditioning: Conditioning, positions: usize) -> Self {
        Self {
            positions: vec![NextToken::new(conditioning); positions],
            conditioning,
        }
    }

    /// Adds a token at a position, counted from 0; beyond the last position it does not count.
    ///
    /// # Errors
    /// As [`NextToken::add`]'s.
    pub fn add(&mut self, position: usize, loss: f64, correct: bool) -> Result<(), EvaluateError> {
        match self.positions.get_mut(position) {
            Some(score) => score.add(loss, correct),
            None => Ok(()),
        }
    }

    /// What the tokens were conditioned on.
    pub fn conditioning(&self) -> Conditioning {
        self.conditioning
    }

    /// The score of each position.
    pub fn positions(&self) -> &[NextToken] {
        &self.positions
    }

    /// The score of some positions together.
    pub fn over(&self, positions: Range<usize>) -> NextToken {
        let mut sum = NextToken::new(self.conditioning);
        let len = self.positions.len();
        for score in &self.positions[positions.start.min(len)..positions.end.min(len)] {
            // All have the conditioning of the sum, and losses that were checked.
            let _ = sum.merge(score);
        }
        sum
    }

    /// Positions in groups that double: 0, 1, 2 to 3, 4 to 7, ..
    pub fn groups(&self) -> Vec<Range<usize>> {
        let len = self.positions.len();
        let starts = std::iter::once(0).chain((0..usize::BITS).map(|power| 1 << power));
        let starts: Vec<usize> = starts.take_while(|&start| start < len).collect();
        let ends = starts[starts.len().min(1)..].iter().copied().chain([len]);
        starts
            .iter()
            .zip(ends)
            .map(|(&start, end)| start..end)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_double_and_hold_every_position_once() {
        let groups = |positions| ByPosition::new(Conditioning::FreeRunning, positions).groups();
        assert_eq!(groups(0), []);
        assert_eq!(groups(1), vec![0..1; 1]);
        assert_eq!(groups(2), [0..1, 1..2]);
        assert_eq!(groups(7), [0..1, 1..2, 2..4, 4..7]);
        assert_eq!(groups(8), [0..1, 1..2, 2..4, 4..8]);
    }

    #[test]
    fn positions_are_summed_and_wrong_numbers_refused() {
        let mut scores = ByPosition::new(Conditioning::FreeRunning, 3);
        scores.add(1, 2.0, true).unwrap();
        scores.add(2, 4.0, false).unwrap();
        scores.add(9, 1.0, false).unwrap();
        let all = scores.over(0..9);
        assert_eq!(all.perplexity().mean(), Some(3.0));
        assert_eq!((all.accuracy(), all.perplexity().tokens()), (Some(0.5), 2));
        assert_eq!(scores.positions()[0].accuracy(), None);
        for wrong in [f64::NAN, f64::INFINITY, -1.0] {
            assert!(scores.add(0, wrong, true).is_err());
        }
        assert_eq!(scores.over(0..1).perplexity().tokens(), 0);
        assert_eq!(all.bits_per_byte(0), None);
    }
}
