//! Texts that a model writes, as [`beam_search`](crate::generate::beam_search) takes them.

use regard_kernels::loss;

use crate::{
    generate::{penalize, repeating},
    generator::Stepper,
    vocabulary::Vocabulary,
};

/// Ids that no token has: they are never written.
const NONE: u32 = u32::MAX;
const START: u32 = u32::MAX - 1;

/// What a model may write. A text begins with the token that was read last before the search.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WritingRules {
    /// The penalty on tokens that a text has already (Keskar et al. 2019): as that of
    /// [`SampleConfig`](crate::generate::SampleConfig).
    pub repetition_penalty: Option<f64>,
    /// Whether that penalty changes logits, as in transformers' greedy search, or log-probabilities, as in its beam search.
    pub penalizes_logits: bool,
    /// No n-gram of this many tokens occurs twice in a text; 0 allows all.
    pub no_repeat_ngram: usize,
    /// Runs of tokens that are never written: the last of a run does not follow the others.
    pub banned: Vec<Vec<u32>>,
    /// Tokens with which no text goes on from its beginning, or from `first`.
    pub begin_banned: Vec<u32>,
    /// A text with fewer tokens, with those that were read and with its end, does not end.
    pub shortest: usize,
    /// The only first token.
    pub first: Option<u32>,
    /// Whether the probabilities of what may be written sum to 1.
    pub renormalized: bool,
}

/// Steps of a model that gives logits, as a search takes them: as log-probabilities, by the rules of what may be written.
#[derive(Debug, Clone)]
pub struct Searching<S> {
    steps: S,
    vocabulary: Vocabulary,
    ends: Vec<u32>,
    last: u32,
    /// What every row had read before.
    before: Vec<u32>,
    /// The text of each row: what it has read and written.
    texts: Vec<Vec<u32>>,
    rules: WritingRules,
}

impl<S: Stepper> Searching<S> {
    /// The rows of `steps`, each of which has read the tokens `before`: `last` is the token after them, in every row, and `ends` are
    /// those that end a text, if there are any.
    pub fn new(steps: S, before: &[u32], last: u32, ends: &[u32], rules: WritingRules) -> Self {
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
            before: before.to_vec(),
            texts: vec![],
            rules,
        }
    }

    /// Makes tokens that the texts have already less likely.
    fn penalize(&self, scores: &mut [f32]) {
        let Some(penalty) = self.rules.repetition_penalty else {
            return;
        };
        let rows = scores.chunks_exact_mut(self.vocabulary.size.max(1));
        for (scores, text) in rows.zip(&self.texts) {
            let mut seen = text.clone();
            seen.sort_unstable();
            seen.dedup();
            penalize(scores, &seen, penalty);
        }
    }

    /// The tokens that `text` must not go on with.
    fn banned(&self, text: &[u32]) -> Vec<u32> {
        let rules = &self.rules;
        let mut banned = repeating(text, rules.no_repeat_ngram);
        banned.extend(rules.banned.iter().filter_map(|run| {
            let (last, before) = run.split_last()?;
            text.ends_with(before).then_some(*last)
        }));
        if text.len() - self.before.len() == 1 + usize::from(rules.first.is_some()) {
            banned.extend(&rules.begin_banned);
        }
        if text.len() < rules.shortest {
            banned.extend(&self.ends);
        }
        banned
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
        let read = previous.iter().map(|&id| match id {
            START => self.last,
            id => id,
        });
        let read: Vec<u32> = read.collect();
        self.steps.step(&read, log_probabilities);
        self.texts.resize(read.len(), self.before.clone());
        for (text, &id) in self.texts.iter_mut().zip(&read) {
            text.push(id);
        }
        let size = self.vocabulary.size;
        if self.rules.penalizes_logits {
            self.penalize(log_probabilities);
        }
        loss::log_softmax(log_probabilities, size);
        if !self.rules.penalizes_logits {
            self.penalize(log_probabilities);
        }
        let rows = log_probabilities.chunks_exact_mut(size.max(1));
        for (scores, text) in rows.zip(&self.texts) {
            for id in self.banned(text) {
                if let Some(score) = scores.get_mut(id as usize) {
                    *score = f32::NEG_INFINITY;
                }
            }
            let begins = text.len() - self.before.len() == 1;
            let first = self.rules.first.filter(|_| begins);
            if let Some(first) = first {
                scores.fill(f32::NEG_INFINITY);
                if let Some(score) = scores.get_mut(first as usize) {
                    *score = 0.0;
                }
            }
        }
        if self.rules.renormalized {
            loss::log_softmax(log_probabilities, size);
        }
        None
    }

    fn select(&mut self, rows: &[usize], same_sources: bool) {
        self.steps.select(rows, same_sources);
        self.texts = rows.iter().map(|&row| self.texts[row].clone()).collect();
    }
}
