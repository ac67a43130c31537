//! Texts that a model writes, as [`beam_search`](crate::generate::beam_search) takes them.

use regard_kernels::loss;

use crate::{generator::Stepper, vocabulary::Vocabulary};

/// Ids that no token has: they are never written.
const NONE: u32 = u32::MAX;
const START: u32 = u32::MAX - 1;

/// What a model may write.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WritingRules {
    /// The only first token.
    pub first: Option<u32>,
    /// Tokens that are never written.
    pub banned: Vec<u32>,
    /// A text with fewer tokens, with those that were read and with its end, does not end.
    pub shortest: usize,
}

/// Steps of a model that gives logits, as a search takes them: as log-probabilities, by the rules of what may be written.
#[derive(Debug, Clone)]
pub struct Searching<S> {
    steps: S,
    vocabulary: Vocabulary,
    ends: Vec<u32>,
    last: u32,
    /// Tokens that were read and written.
    length: usize,
    rules: WritingRules,
}

impl<S: Stepper> Searching<S> {
    /// The rows of `steps`, each of which has read `length` tokens: `last` is the token after them, in every row, and `ends` are
    /// those that end a text, if there are any.
    pub fn new(steps: S, length: usize, last: u32, ends: &[u32], rules: WritingRules) -> Self {
        Self {
            vocabulary: Vocabulary {
                start: START,
                padding: NONE,
                end: ends.first().copied().unwrap_or(NONE),
                ..steps.vocabulary()
            },
            ends: ends.to_vec(),
            steps,
            last,
            length,
            rules,
        }
    }
}

impl<S: Stepper> Stepper for Searching<S> {
    fn vocabulary(&self) -> Vocabulary {
        self.vocabulary
    }

    fn ends(&self) -> Vec<u32> {
        self.ends.clone()
    }

    fn step(&mut self, previous: &[u32], log_probabilities: &mut Vec<f32>) -> Option<Vec<f32>> {
        let begins = |id: &u32| *id == START;
        let first = self.rules.first.filter(|_| previous.iter().all(begins));
        let read = previous.iter().map(|id| match begins(id) {
            true => self.last,
            false => *id,
        });
        let read: Vec<u32> = read.collect();
        self.steps.step(&read, log_probabilities);
        self.length += 1;
        let size = self.vocabulary.size;
        loss::log_softmax(log_probabilities, size);
        let rows = log_probabilities.chunks_exact_mut(size.max(1));
        for scores in rows {
            if let Some(first) = first {
                scores.fill(f32::NEG_INFINITY);
                if let Some(score) = scores.get_mut(first as usize) {
                    *score = 0.0;
                }
            }
            let early = self.length < self.rules.shortest;
            let ends = self.ends.iter().filter(|_| early);
            for &id in self.rules.banned.iter().chain(ends) {
                if let Some(score) = scores.get_mut(id as usize) {
                    *score = f32::NEG_INFINITY;
                }
            }
        }
        None
    }

    fn select(&mut self, rows: &[usize], same_sources: bool) {
        self.steps.select(rows, same_sources);
    }
}
