//! The tree of a search: what was proposed at every step, and what was gone on with.
//!
//! A [`Recorder`] stands between a search and its [`Stepper`], and changes nothing that passes through it. So any search can be
//! recorded: a beam, a greedy or a sampled path.

use std::collections::BTreeMap;

use super::{Hypothesis, SampleEnd, Sampled};
use crate::{generator::Stepper, vocabulary::Vocabulary};

/// A token that a model proposed.
#[derive(Debug, Clone, PartialEq)]
pub struct Proposal {
    /// Its place among the proposals that it follows; `None` for the first token of a text.
    pub parent: Option<usize>,
    /// The token.
    pub token: u32,
    /// `ln p(token | source, tokens before it)`, before any setting of the search.
    pub log_probability: f64,
    /// Whether the search went on from it, or ended a text with it.
    pub taken: bool,
}

/// The proposals of one search, parents before their children, the likeliest child first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SearchTree {
    /// All of them.
    pub proposals: Vec<Proposal>,
    /// The last proposal of each text that was asked for.
    pub leaves: Vec<usize>,
}

impl SearchTree {
    /// The tokens of the text that ends with proposal `last`; none without one.
    ///
    /// # Panics
    /// If there is no such proposal.
    pub fn text(&self, last: Option<usize>) -> Vec<u32> {
        let before = |one: &&Proposal| one.parent.map(|parent| &self.proposals[parent]);
        let path = std::iter::successors(last.map(|last| &self.proposals[last]), before);
        let mut tokens: Vec<u32> = path.map(|one| one.token).collect();
        tokens.reverse();
        tokens
    }
}

/// A stepper that keeps its scores: `steps · rows · vocabulary` numbers, until it is dropped.
pub struct Recorder<S> {
    stepper: S,
    /// One for each row of each step.
    opened: Vec<Opened>,
    /// That of each row.
    rows: Vec<usize>,
}

/// A token that the search went on from.
struct Opened {
    parent: Option<usize>,
    token: u32,
    /// Of the token after it.
    scores: Vec<f32>,
    /// `ln Σ e^score`
    total: f64,
}

impl<S: Stepper> Recorder<S> {
    /// Records from now on. The search must begin with it.
    pub fn new(stepper: S) -> Self {
        Self {
            stepper,
            opened: vec![],
            rows: vec![],
        }
    }

    /// The tree of the search's row `row`, in which `texts` ended, each with the token that ended it, if one did. Beside what was
    /// taken it has the `listed` likeliest proposals of each step.
    pub fn tree(&self, row: usize, texts: &[Vec<u32>], listed: usize) -> SearchTree {
        let mut children: BTreeMap<(usize, u32), usize> = BTreeMap::new();
        for (place, opened) in self.opened.iter().enumerate() {
            children.extend(opened.parent.map(|parent| ((parent, opened.token), place)));
        }
        // Where each text ended: the token before its last one, and that.
        let ends: Vec<Option<(usize, u32)>> = texts
            .iter()
            .map(|text| {
                let (&last, before) = text.split_last()?;
                let next = |place, &token: &u32| children.get(&(place, token)).copied();
                let place = before.iter().try_fold(row, next)?;
                Some((place, last))
            })
            .collect();
        let mut tree = SearchTree::default();
        let mut places = BTreeMap::new();
        let mut next = std::collections::VecDeque::from([(row, None)]);
        while let Some((place, parent)) = next.pop_front() {
            let Some(opened) = self.opened.get(place) else {
                break;
            };
            let gone_on = children.range((place, 0)..=(place, u32::MAX));
            let mut tokens: Vec<u32> = gone_on.map(|((_, token), _)| *token).collect();
            tokens.extend(
                ends.iter()
                    .flatten()
                    .filter(|end| end.0 == place)
                    .map(|end| end.1),
            );
            let taken = tokens.clone();
            tokens.extend(opened.likeliest(listed));
            tokens.sort_unstable();
            tokens.dedup();
            tokens.sort_by(|&a, &b| opened.score(b).total_cmp(&opened.score(a)).then(a.cmp(&b)));
            for token in tokens {
                let at = tree.proposals.len();
                places.insert((place, token), at);
                tree.proposals.push(Proposal {
                    parent,
                    token,
                    log_probability: f64::from(opened.score(token)) - opened.total,
                    taken: taken.contains(&token),
                });
                if let Some(&child) = children.get(&(place, token)) {
                    next.push_back((child, Some(at)));
                }
            }
        }
        let leaves = ends.iter().flatten().filter_map(|end| places.get(end));
        tree.leaves = leaves.copied().collect();
        tree
    }
}

impl Opened {
    fn score(&self, token: u32) -> f32 {
        let score = self.scores.get(token as usize);
        score.copied().unwrap_or(f32::NEG_INFINITY)
    }

    /// The `count` likeliest tokens of those that have a probability.
    fn likeliest(&self, count: usize) -> Vec<u32> {
        let mut tokens: Vec<u32> = (0..self.scores.len() as u32)
            .filter(|&token| self.score(token) > f32::NEG_INFINITY)
            .collect();
        let order = |a: &u32, b: &u32| self.score(*b).total_cmp(&self.score(*a)).then(a.cmp(b));
        if count < tokens.len() {
            tokens.select_nth_unstable_by(count, order);
            tokens.truncate(count);
        }
        tokens
    }
}

impl<S: Stepper> Stepper for Recorder<S> {
    fn vocabulary(&self) -> Vocabulary {
        self.stepper.vocabulary()
    }

    fn ends(&self) -> Vec<u32> {
        self.stepper.ends()
    }

    fn step(&mut self, previous: &[u32], scores: &mut Vec<f32>) -> Option<Vec<f32>> {
        let weights = self.stepper.step(previous, scores);
        let parents = std::mem::take(&mut self.rows);
        let size = scores.len() / previous.len().max(1);
        for (row, (&token, scores)) in previous.iter().zip(scores.chunks(size.max(1))).enumerate() {
            self.rows.push(self.opened.len());
            let highest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let above = |score: &f32| f64::from(score - highest).exp();
            self.opened.push(Opened {
                parent: parents.get(row).copied(),
                token,
                scores: scores.to_vec(),
                total: f64::from(highest) + scores.iter().map(above).sum::<f64>().ln(),
            });
        }
        weights
    }

    fn select(&mut self, rows: &[usize], same_sources: bool) {
        self.rows = rows.iter().map(|&row| self.rows[row]).collect();
        self.stepper.select(rows, same_sources);
    }
}

impl Hypothesis {
    /// Its tokens with the one that ended it, as [`Recorder::tree`] takes them.
    pub fn with_end(&self) -> Vec<u32> {
        self.tokens.iter().copied().chain(self.end).collect()
    }
}

impl Sampled {
    /// Its tokens with the one that ended it, as [`Recorder::tree`] takes them.
    pub fn with_end(&self) -> Vec<u32> {
        let end = match self.end {
            SampleEnd::Stop(token) => Some(token),
            SampleEnd::Limit | SampleEnd::Caller => None,
        };
        self.tokens.iter().copied().chain(end).collect()
    }
}
